"""Lengths of time and amounts of memory, as people write them in a fleet file.

A key whose name carries the unit takes a plain number (`wall_s = 90`); any such key, and those that carry none, take
text with a unit (`wall_s = "90s"`, `every = "5m"`, `memory = "512MiB"`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar, cast

from rota.model.checks import INTEGER_MAX, SECONDS_MAX

__all__ = ["Bytes", "Seconds", "Span", "schema_of", "unit_of", "usually_bytes", "usually_s"]

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_BYTES = {
    "B": 1, "kB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4,
    "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4,
}  # fmt: skip
_WRITTEN = re.compile(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)")


class Seconds(float):
    """A length of time: a number of seconds, or text such as "90s", "5m", "2h"."""

    in_words = 'a number of seconds, or a text such as "90s", "5m" or "2h"'
    schema: ClassVar[dict[str, Any]] = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}]}

    @classmethod
    def read(cls, value: Any) -> Seconds:
        """The value as it was written; ValueError if it is none."""
        if type(value) is str:
            return cls(_scaled(value, _SECONDS))
        if type(value) not in (int, float) or not 0 <= value <= SECONDS_MAX:
            raise ValueError(value)
        return cls(value)


class Span(Seconds):
    """A length of time whose key does not carry the unit, so that it must be written with one."""

    in_words = 'a text such as "90s", "5m" or "2h"'
    schema: ClassVar[dict[str, Any]] = {"type": "string"}

    @classmethod
    def read(cls, value: Any) -> Span:
        """The value as it was written; ValueError if it is none."""
        if type(value) is not str:
            raise ValueError(value)
        return cls(_scaled(value, _SECONDS))


class Bytes(int):
    """An amount of memory or of disk: a number of bytes, or text such as "512MiB"."""

    in_words = 'a number of bytes, or a text such as "512MiB" or "2GB"'
    schema: ClassVar[dict[str, Any]] = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}

    @classmethod
    def read(cls, value: Any) -> Bytes:
        """The value as it was written; ValueError if it is none."""
        if type(value) is str:
            value = round(_scaled(value, _BYTES))
        if type(value) is not int or not 0 <= value <= INTEGER_MAX:
            raise ValueError(value)
        return cls(value)


def _scaled(text: str, units: Mapping[str, float]) -> float:
    """The number in a text, in the smallest whole unit."""
    written = _WRITTEN.fullmatch(text.strip())
    if written is None or written[2] not in units:
        raise ValueError(text)
    amount = float(written[1]) * units[written[2]]
    if not math.isfinite(amount) or amount > SECONDS_MAX * 1000:
        raise ValueError(text)
    return amount


def usually_s(seconds: float) -> Seconds:
    """A default: a plain number, as a schema shows it."""
    return cast("Seconds", float(seconds))


def usually_bytes(count: int) -> Bytes:
    """A default: a plain number, as a schema shows it."""
    return cast("Bytes", count)


def unit_of(kind: type, value: Any) -> Any:
    """How msgspec reads the three types above."""
    if issubclass(kind, Seconds | Bytes):
        return kind.read(value)
    raise NotImplementedError(kind)


def schema_of(kind: type) -> dict[str, Any]:
    """How the three types above are told to an editor."""
    if issubclass(kind, Seconds | Bytes):
        return dict(kind.schema)
    raise NotImplementedError(kind)

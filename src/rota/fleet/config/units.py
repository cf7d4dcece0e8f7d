"""Values with units in a fleet file.

`Seconds` reads `wall_s = 90` or `wall_s = "90s"`, `Bytes` reads `memory = "512MiB"`. `DurationText` is for a key whose
name carries no unit, so that its value must: `every = "5m"`. `Dollars` reads `input_per_million = 2.50` exactly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar, cast

from rota.model.checks import AMOUNT_MAX, INTEGER_MAX, SECONDS_MAX
from rota.model.money import micro_of

__all__ = ["Bytes", "Dollars", "DurationText", "Seconds", "default_bytes", "default_seconds", "unit_schema"]

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_BYTES = {
    "B": 1, "kB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4,
    "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4,
}  # fmt: skip
_WITH_UNIT = re.compile(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)")


class Seconds(float):
    """A duration: a number of seconds, or a string such as "90s", "5m", "2h"."""

    description = 'a number of seconds, or a string such as "90s", "5m" or "2h"'
    schema: ClassVar[dict[str, Any]] = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}]}

    @classmethod
    def read(cls, value: Any) -> Seconds:
        """Return the value of a file as a duration, or raise ValueError."""
        if type(value) is str:
            return cls(_scale(value, _SECONDS))
        if type(value) not in (int, float) or not 0 <= value <= SECONDS_MAX:
            raise ValueError(value)
        return cls(value)


class DurationText(Seconds):
    """A duration under a key without a unit in its name: only a string with a unit is valid."""

    description = 'a string such as "90s", "5m" or "2h"'
    schema: ClassVar[dict[str, Any]] = {"type": "string"}

    @classmethod
    def read(cls, value: Any) -> DurationText:
        """Return the value of a file as a duration, or raise ValueError."""
        if type(value) is not str:
            raise ValueError(value)
        return cls(_scale(value, _SECONDS))


class Bytes(int):
    """An amount of memory or disk: a number of bytes, or a string such as "512MiB"."""

    description = 'a number of bytes, or a string such as "512MiB" or "2GB"'
    schema: ClassVar[dict[str, Any]] = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}

    @classmethod
    def read(cls, value: Any) -> Bytes:
        """Return the value of a file as a number of bytes, or raise ValueError."""
        if type(value) is str:
            value = round(_scale(value, _BYTES))
        if type(value) is not int or not 0 <= value <= INTEGER_MAX:
            raise ValueError(value)
        return cls(value)


class Dollars(int):
    """An amount of money, in millionths of a dollar; a number of dollars in the file."""

    description = "dollars, 0 or more, with up to six digits after the point"
    schema: ClassVar[dict[str, Any]] = {"type": "number", "minimum": 0}

    @classmethod
    def read(cls, value: Any) -> Dollars:
        """Return the value of a file in millionths of a dollar, or raise ValueError."""
        if type(value) not in (int, float):
            raise ValueError(value)
        micro = micro_of(value)
        if micro > AMOUNT_MAX:
            raise ValueError(value)
        return cls(micro)


def _scale(text: str, units: Mapping[str, float]) -> float:
    """Return the amount of a string with a unit, in seconds or bytes."""
    written = _WITH_UNIT.fullmatch(text.strip())
    if written is None or written[2] not in units:
        raise ValueError(text)
    amount = float(written[1]) * units[written[2]]
    if not math.isfinite(amount) or amount > SECONDS_MAX * 1000:
        raise ValueError(text)
    return amount


def default_seconds(seconds: float) -> Seconds:
    """Return the default of a key: a plain number, so that the schema shows it as one."""
    return cast("Seconds", float(seconds))


def default_bytes(count: int) -> Bytes:
    """Return the default of a key: a plain number, so that the schema shows it as one."""
    return cast("Bytes", count)


def unit_schema(kind: type) -> dict[str, Any]:
    """Return the JSON Schema of one of the types above; msgspec's `schema_hook`."""
    if issubclass(kind, Seconds | Bytes | Dollars):
        return dict(kind.schema)
    raise NotImplementedError(kind)

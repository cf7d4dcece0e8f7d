"""Every text of a document within its limit, and nulls gone.

In a graph file a field that is null says the same as a field that is not there. Only what belongs to somebody else, the
free form of `config` and of parameters, keeps its nulls; there the limits are on the depth and size of each value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from rota.graph.diagnostics import Diagnostic
from rota.graph.document import InputLimits, Section

__all__ = ["name_of", "tidied"]

FREE_FORM = ("config", "params", "parameters")
PATH_SHOWN = 160  # characters of a path in a message


def tidied(section: Section, limits: InputLimits, path: str = "") -> tuple[Section, list[Diagnostic]]:
    """The section without nulls, and every text in it that passes a limit."""
    tidy = _Tidy(limits)
    return tidy.section(section, path), tidy.found


def name_of(value: Any, at: int) -> str:
    """How an item of a list is called in a path: by its id, else by its place."""
    name = value.get("id") if isinstance(value, Section) else None
    return name if isinstance(name, str) and name else f"[{at}]"


class _Tidy:
    """One walk over a document."""

    def __init__(self, limits: InputLimits) -> None:
        self._limits = limits
        self.found: list[Diagnostic] = []

    def section(self, section: Section, path: str) -> Section:
        """A mapping."""
        tidy = Section(section.line)
        for key, value in section.items():
            place = f"{path}.{key}" if path else key
            self._text(key, place, section.line)
            if key in FREE_FORM and isinstance(value, dict):
                self._free_form(value, place, section.line)
                tidy[key] = value
            elif value is not None:
                tidy[key] = self._value(value, place, section.line)
        return tidy

    def _value(self, value: Any, path: str, line: int | None) -> Any:
        if isinstance(value, Section):
            return self.section(value, path)
        if isinstance(value, list):
            return [self._value(item, f"{path}.{name_of(item, at)}", line) for at, item in enumerate(value)]
        if isinstance(value, str):
            self._text(value, path, line)
        return value

    def _text(self, text: str, path: str, line: int | None) -> None:
        size = _utf8_bytes(text)
        if size is None:
            self._report("a text that UTF-8 cannot hold", path, line)
        elif size > self._limits.string_bytes:
            self._report(f"string exceeds limit {self._limits.string_bytes} bytes", path, line)

    def _free_form(self, config: dict[str, Any], path: str, line: int | None) -> None:
        limits = self._limits
        for key, value in config.items():
            place = f"{path}.{key}"
            self._text(key, place, line)
            size = _json_bytes(value)
            if size is None:
                self._report("a text that UTF-8 cannot hold", place, line)
            elif size > limits.config_value_bytes:
                self._report(f"value exceeds limit {limits.config_value_bytes} bytes", place, line)
            if _depth(value) >= limits.config_depth:
                self._report(f"nesting exceeds limit {limits.config_depth}", place, line)

    def _report(self, problem: str, path: str, line: int | None) -> None:
        shown = path.encode("ascii", "backslashreplace").decode() if _utf8_bytes(path) is None else path
        shown = shown if len(shown) <= PATH_SHOWN else shown[:PATH_SHOWN] + "…"
        self.found.append(Diagnostic.of("graph_validation_error", f"{shown}: {problem}", shown, line=line))


def _utf8_bytes(text: str) -> int | None:
    """How long a text is as UTF-8; None where it cannot be written so."""
    try:
        return len(text) if text.isascii() else len(text.encode())
    except UnicodeError:
        return None


def _json_bytes(value: Any) -> int | None:
    try:
        return _utf8_bytes(value) if isinstance(value, str) else len(msgspec.json.encode(value))
    except (UnicodeError, ValueError):
        return None


def _depth(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    items: Iterable[Any] = value.values() if isinstance(value, dict) else value
    return 1 + max(map(_depth, items), default=0)

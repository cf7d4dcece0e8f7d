"""Convert plain values to structs, one at a time; a value that does not match becomes a diagnostic.

The annotations of the structs are the rules, and msgspec checks a value against them. This module translates its error
message into the graph's terms: the path in the file, the allowed values, and the closest of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from rota.graph.diagnostics import Diagnostic
from rota.graph.document import Section

__all__ = ["convert", "unknown_field"]

_Struct = TypeVar("_Struct", bound=msgspec.Struct)

_AT = re.compile(r"(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?\Z", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`\Z", re.DOTALL)
_MISSING_FIELD = re.compile(r"Object missing required field `(.*)`\Z", re.DOTALL)
_BAD_ID = re.compile(r"Expected `str` matching regex .*\Z", re.DOTALL)
_BAD_CHOICE = re.compile(r"Invalid enum value (.*)\Z", re.DOTALL)

# Fields whose invalid value has a code of its own: a pattern of the path, and the code.
_CODES = (
    (re.compile(r"^lanes\.[^ ]*\.type$"), "unsupported_lane_type"),
    (re.compile(r"\.execution\.on_error$"), "unsupported_error_policy"),
    (re.compile(r"edges\..*\.policy(\.|$)"), "invalid_channel_policy"),
)


def convert(value: Any, kind: type[_Struct], path: str, line: int | None = None) -> _Struct | Diagnostic:
    """Return the value as a struct of this kind, or a diagnostic. `path` is the value's place in the graph."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as problem:
        return _translate(str(problem), value, kind, path, line)


def unknown_field(path: str, name: str, known: Iterable[str], line: int | None = None) -> Diagnostic:
    """Return the diagnostic for a field that does not exist."""
    names = list(known)
    return Diagnostic.of(
        "graph_validation_error",
        f"unexpected field {_join(path, name)}",
        _join(path, name),
        line=line,
        fix=f"{_suggestion(name, names)}The fields are: {', '.join(names)}.",
    )


def _translate(problem: str, value: Any, kind: type[msgspec.Struct], path: str, line: int | None) -> Diagnostic:
    parts = _AT.match(problem)
    what, steps = (parts["what"], _steps(parts["path"] or "")) if parts else (problem, [])
    place = _join(path, *(str(step) for step in steps))
    line = _line_at(value, steps, line)
    if found := _UNKNOWN_FIELD.match(what):
        return unknown_field(place, found[1], _fields_at(kind, steps), line)
    if found := _MISSING_FIELD.match(what):
        place = _join(place, found[1])
        return Diagnostic.of("graph_validation_error", f"{place} is required", place, line=line, fix="Add the field.")
    fix = None
    if _BAD_ID.match(what):
        what = "must not contain control characters"
    if found := _BAD_CHOICE.match(what):
        choices = _choices_at(kind, steps)
        what = f"must be one of {', '.join(choices)}, not {found[1]}"
        fix = f"{_suggestion(found[1].strip(chr(39)), choices)}Use one of these values."
    return Diagnostic.of(_code(place), f"{place}: {what}", place, line=line, fix=fix)


def _code(place: str) -> str:
    return next((code for pattern, code in _CODES if pattern.search(place)), "graph_validation_error")


def _join(path: str, *steps: str) -> str:
    return ".".join(part for part in (path, *steps) if part)


def _suggestion(given: str, choices: Sequence[str]) -> str:
    close = get_close_matches(given, choices, 1)
    return f"Did you mean {close[0]}? " if close else ""


# --- paths ---------------------------------------------------------------------------------------


def _steps(path: str) -> list[str | int]:
    """Split `.inputs[2]` into ["inputs", 2]; a position that msgspec does not give becomes 0."""
    steps: list[str | int] = []
    for name, position in _STEP.findall(path):
        steps.append(name or (int(position) if position.isdigit() else 0))
    return steps


def _line_at(value: Any, steps: Iterable[str | int], line: int | None) -> int | None:
    """Return the line of the innermost mapping on the path that has one."""
    for step in steps:
        if isinstance(value, Section) and value.line is not None:
            line = value.line
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return line
    return value.line if isinstance(value, Section) and value.line is not None else line


@cache
def _info(kind: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(kind)


def _type_at(kind: type[msgspec.Struct], steps: Iterable[str | int]) -> inspect.Type:
    """Return the type of the field at the end of a path."""
    info = _info(kind)
    for step in steps:
        if isinstance(info, inspect.UnionType):
            info = next((each for each in info.types if isinstance(each, inspect.StructType)), info)
        if isinstance(info, inspect.StructType):
            info = next((field.type for field in info.fields if field.encode_name == step), info)
        elif isinstance(info, inspect.CollectionType):
            info = info.item_type
    return info


def _fields_at(kind: type[msgspec.Struct], steps: Iterable[str | int]) -> list[str]:
    info = _type_at(kind, steps)
    if isinstance(info, inspect.UnionType):
        info = next((each for each in info.types if isinstance(each, inspect.StructType)), info)
    return [field.encode_name for field in info.fields] if isinstance(info, inspect.StructType) else []


def _choices_at(kind: type[msgspec.Struct], steps: Iterable[str | int]) -> list[str]:
    info = _type_at(kind, steps)
    return [str(choice) or '""' for choice in info.values] if isinstance(info, inspect.LiteralType) else []

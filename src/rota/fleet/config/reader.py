"""Reading a table of a file into a frozen structure, and saying all that is wrong with it at once.

msgspec stops at the first value that does not fit. Somebody who writes a file by hand wants the whole list, each with
the key, what was expected there and what was found. So the tables are walked here, key by key, along the annotations
of the structure; msgspec then judges each single value.
"""

from __future__ import annotations

import difflib
import math
import types
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from rota.fleet.config.units import unit_of

__all__ = ["MISSING", "NAME_CHARS_MAX", "Problems", "dotted", "expected", "found", "nearest", "read"]

PROBLEMS_MAX = 50  # said at once
NAME_CHARS_MAX = 100
FOUND_CHARS_MAX = 60  # of a value that is shown in a sentence
MISSING: Any = object()  # there was a value, and it was wrong: that has been said already

T = TypeVar("T")
_SCALARS: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    Any: "anything",
}


class Problems:
    """What is wrong with a file, in the order it was found."""

    def __init__(self) -> None:
        self._said: list[tuple[str, str]] = []

    def say(self, path: str, sentence: str) -> None:
        """Note one problem; the same key is not blamed twice."""
        if all(path != known for known, _ in self._said):
            self._said.append((path, sentence))

    def unfit(self, path: str, expected: str, value: Any) -> None:
        """Note that a value is not what was expected."""
        self.say(path, f"expected {expected}, found {found(value)}")

    def unknown(self, path: str, what: str, name: str, known: Iterable[str]) -> None:
        """Note a name that means nothing here, with the one that was perhaps meant."""
        names = sorted(known)
        close = nearest(name, names)
        if close is not None:
            self.say(path, f"there is no {what} {name!r}; did you mean {close!r}?")
        else:
            self.say(path, f"there is no {what} {name!r}; there is {', '.join(names) or 'none at all'}")

    def __bool__(self) -> bool:
        return bool(self._said)

    def __len__(self) -> int:
        return len(self._said)

    def sentences(self) -> list[str]:
        """Each problem as "key: what is wrong", not more than `PROBLEMS_MAX` of them."""
        told = [f"{path}: {sentence}" if path else sentence for path, sentence in self._said[:PROBLEMS_MAX]]
        if len(self._said) > PROBLEMS_MAX:
            told.append(f"and {len(self._said) - PROBLEMS_MAX} more")
        return told

    def keys(self) -> list[str]:
        """The keys that are blamed."""
        return [path for path, _ in self._said]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like this one, if any does."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def dotted(path: str, key: str) -> str:
    """A key inside a table, as TOML would write it."""
    bare = key and all(letter.isalnum() or letter in "_-" for letter in key)
    written = key if bare else msgspec.json.encode(key).decode()
    return f"{path}.{written}" if path else written


def found(value: Any) -> str:
    """A value as a sentence shows it."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    try:
        text = msgspec.json.encode(value).decode() if not isinstance(value, float) else repr(value)
    except (TypeError, ValueError):
        text = str(value)
    return text if len(text) <= FOUND_CHARS_MAX else text[:FOUND_CHARS_MAX] + "…"


def read(kind: Any, value: Any, path: str, problems: Problems) -> Any:
    """A value of a file as the type it is to have, or `MISSING` once its problems have been noted."""
    plain, _ = _unwrapped(kind)
    branch = _branch(plain, value)
    if branch is None:
        problems.unfit(path, expected(kind), value)
        return MISSING
    if isinstance(branch, type) and issubclass(branch, msgspec.Struct):
        return _struct(branch, value, path, problems)
    origin = get_origin(branch)
    if origin is dict:
        return _table(kind, branch, value, path, problems)
    if origin is tuple:
        return _list(kind, branch, value, path, problems)
    return _leaf(kind, value, path, problems)


def _struct(kind: type[msgspec.Struct], value: dict[str, Any], path: str, problems: Problems) -> Any:
    fields = _fields(kind)
    known = len(problems)
    given: dict[str, Any] = {}
    for key, item in value.items():
        if key in fields:
            given[key] = read(fields[key].type, item, dotted(path, key), problems)
        else:
            _unknown_key(key, path, fields, problems)
    for name, field in fields.items():
        if field.required and name not in value:
            problems.say(dotted(path, name), f"is missing: expected {expected(field.type)}")
    if len(problems) > known or MISSING in given.values():
        return MISSING
    try:
        return kind(**given)
    except ValueError as problem:  # what only the whole table can judge
        problems.say(path, str(getattr(problem, "message", problem)))
        return MISSING


@cache
def _fields(kind: type[msgspec.Struct]) -> Mapping[str, msgspec.structs.FieldInfo]:
    """A structure's fields by name; asking msgspec costs more than reading a table."""
    return {field.name: field for field in msgspec.structs.fields(kind)}


def _unknown_key(key: str, path: str, fields: Mapping[str, Any], problems: Problems) -> None:
    close = nearest(key, fields)
    hint = f"did you mean {close!r}?" if close else f"known here: {', '.join(fields)}"
    problems.say(dotted(path, key), f"unknown key; {hint}")


def _table(kind: Any, branch: Any, value: dict[str, Any], path: str, problems: Problems) -> Any:
    _, inner = get_args(branch)
    if _is_too_long(kind, value, path, problems):
        return MISSING
    given = {}
    for key, item in value.items():
        if not 1 <= len(key) <= NAME_CHARS_MAX:
            problems.say(dotted(path, key[:20]), f"expected a name of 1 to {NAME_CHARS_MAX} characters")
            continue
        given[key] = read(inner, item, dotted(path, key), problems)
    return MISSING if MISSING in given.values() else given


def _list(kind: Any, branch: Any, value: list[Any], path: str, problems: Problems) -> Any:
    inner = get_args(branch)[0]
    if _is_too_long(kind, value, path, problems):
        return MISSING
    if len(value) < (_unwrapped(kind)[1].min_length or 0):
        problems.unfit(path, expected(kind), value)
        return MISSING
    given = [read(inner, item, f"{path}[{at}]", problems) for at, item in enumerate(value)]
    return MISSING if any(item is MISSING for item in given) else tuple(given)


def _is_too_long(kind: Any, value: dict[str, Any] | list[Any], path: str, problems: Problems) -> bool:
    most = _unwrapped(kind)[1].max_length
    if most is None or len(value) <= most:
        return False
    problems.say(path, f"may hold at most {most:,}, found {len(value):,}")
    return True


def _leaf(kind: Any, value: Any, path: str, problems: Problems) -> Any:
    if _unwrapped(kind)[0] is Any:
        return msgspec.to_builtins(value)  # dates as text: what is kept is JSON
    if not isinstance(value, float) or math.isfinite(value):
        try:
            return msgspec.convert(value, kind, strict=True, dec_hook=unit_of)
        except ValueError:  # msgspec's own error is one
            pass
    problems.unfit(path, expected(kind), value)
    return MISSING


# --- what a type is, in words ----------------------------------------------------------------------


def _unwrapped(kind: Any) -> tuple[Any, msgspec.Meta]:
    """A type without its annotations, and the bounds they set. Nested annotations are one in Python's eyes."""
    if get_origin(kind) is not Annotated:
        return kind, msgspec.Meta()
    inner, *notes = get_args(kind)
    bounds = {
        name: value
        for note in notes
        for name in ("ge", "gt", "le", "min_length", "max_length")
        if (value := getattr(note, name)) is not None
    }
    return inner, msgspec.Meta(**bounds)


def _options(plain: Any) -> list[Any]:
    """What a union may be, without None: a file cannot say that."""
    if get_origin(plain) in (Union, types.UnionType):
        return [option for option in get_args(plain) if option is not type(None)]
    return [plain]


def _branch(plain: Any, value: Any) -> Any:
    """The one of a union's types that a value of this shape can be."""
    for option in _options(plain):
        bare, _ = _unwrapped(option)
        is_struct = isinstance(bare, type) and issubclass(bare, msgspec.Struct)
        is_table, is_list = is_struct or get_origin(bare) is dict, get_origin(bare) is tuple
        if bare is Any or (is_table, is_list) == (isinstance(value, dict), isinstance(value, list)):
            return bare
    return None


def expected(kind: Any) -> str:
    """What a type is, in words."""
    plain, meta = _unwrapped(kind)
    options = _options(plain)
    if len(options) > 1 or options[0] is not plain:
        return " or ".join(expected(option) for option in options)
    return _words(plain) + _bounds(plain, meta)


def _words(option: Any) -> str:
    if option in _SCALARS:
        return _SCALARS[option]
    origin, args = get_origin(option), get_args(option)
    if origin is tuple:
        return f"a list ({expected(args[0])} each)"
    if origin is dict:
        return f"a table ({expected(args[1])} each)"
    if origin is Literal or issubclass(option, Enum):
        words = [str(each) for each in (args if origin is Literal else option)]
        return f"one of {', '.join(words)}" if len(words) > 1 else f'"{words[0]}"'
    return str(getattr(option, "in_words", "a table"))


def _bounds(plain: Any, meta: msgspec.Meta) -> str:
    if plain is str and meta.max_length is not None:
        return f" of {meta.min_length or 0} to {meta.max_length} characters"
    if meta.ge is not None and meta.le is not None:
        return f" from {meta.ge:,} to {meta.le:,}"
    if meta.ge is not None:
        return f" from {meta.ge:,} on"
    if meta.gt is not None:
        return f" above {meta.gt:,}" + (f", at most {meta.le:,}" if meta.le is not None else "")
    return " that is not empty" if meta.min_length is not None else ""

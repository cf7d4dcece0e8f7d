"""Read the tables of a TOML file into frozen structures, and collect everything that is wrong with them.

msgspec stops at the first value that does not fit. The author of a file wants the complete list: each key with what is
expected there and what was found. So this module walks the tables key by key along the annotations of the structure,
and msgspec checks each single value.

Three types read values with units: `Seconds` (`wall_s = 90` or `wall_s = "90s"`), `Bytes` (`memory = "512MiB"`) and
`DurationText`, for a key whose name carries no unit, so that its value must (`every = "5m"`).
"""

from __future__ import annotations

import difflib
import math
import re
import types
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Union, cast, get_args, get_origin

import msgspec

from rota.model.checks import INTEGER_MAX, SECONDS_MAX

__all__ = [
    "INVALID",
    "NAME_CHARS_MAX",
    "Bytes",
    "DurationText",
    "Problems",
    "Seconds",
    "decode_unit",
    "default_bytes",
    "default_seconds",
    "describe_type",
    "describe_value",
    "join_key",
    "read",
    "unit_schema",
]

PROBLEMS_MAX = 50  # listed in one error
NAME_CHARS_MAX = 100
VALUE_CHARS_MAX = 60  # of a value that is quoted in a message
INVALID: Any = object()  # stands for a value whose problems are already recorded

_TYPE_NAMES: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a string",
    bool: "true or false",
    Any: "any value",
}


class Problems:
    """The problems of a file, in the order in which they were found."""

    def __init__(self) -> None:
        self._found: list[tuple[str, str]] = []

    def add(self, key: str, message: str) -> None:
        """Record a problem; only the first one of each key is kept."""
        if all(key != known for known, _ in self._found):
            self._found.append((key, message))

    def add_mismatch(self, key: str, expected: str, value: Any) -> None:
        """Record a value that is not what is expected."""
        self.add(key, f"expected {expected}, found {describe_value(value)}")

    def add_unknown_name(self, key: str, what: str, name: str, known: Iterable[str]) -> None:
        """Record a name that is not defined, with the closest defined one."""
        names = sorted(known)
        closest = _closest(name, names)
        if closest is not None:
            self.add(key, f"unknown {what} {name!r}; did you mean {closest!r}?")
        else:
            self.add(key, f"unknown {what} {name!r}; defined: {', '.join(names) or 'none'}")

    def __bool__(self) -> bool:
        return bool(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def messages(self) -> list[str]:
        """Return the problems as "key: message", at most `PROBLEMS_MAX` and a count of the rest."""
        shown = [f"{key}: {message}" if key else message for key, message in self._found[:PROBLEMS_MAX]]
        if len(self._found) > PROBLEMS_MAX:
            shown.append(f"and {len(self._found) - PROBLEMS_MAX} more")
        return shown

    def keys(self) -> list[str]:
        """Return the keys that have a problem."""
        return [key for key, _ in self._found]


def _closest(name: str, known: Iterable[str]) -> str | None:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def join_key(path: str, key: str) -> str:
    """Return the path of a key in a table, written as in TOML."""
    bare = key and all(letter.isalnum() or letter in "_-" for letter in key)
    written = key if bare else msgspec.json.encode(key).decode()
    return f"{path}.{written}" if path else written


# --- values with units -----------------------------------------------------------------------------

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


def decode_unit(kind: type, value: Any) -> Any:
    """Decode one of the three types above; msgspec's `dec_hook`."""
    if issubclass(kind, Seconds | Bytes):
        return kind.read(value)
    raise NotImplementedError(kind)


def unit_schema(kind: type) -> dict[str, Any]:
    """Return the JSON Schema of one of the three types above; msgspec's `schema_hook`."""
    if issubclass(kind, Seconds | Bytes):
        return dict(kind.schema)
    raise NotImplementedError(kind)


# --- values by type --------------------------------------------------------------------------------


def read(kind: Any, value: Any, path: str, problems: Problems) -> Any:
    """Return a value of a file as the given type, or record its problems and return `INVALID`."""
    plain, _ = _unwrap(kind)
    option = _matching_option(plain, value)
    if option is None:
        problems.add_mismatch(path, describe_type(kind), value)
        return INVALID
    if isinstance(option, type) and issubclass(option, msgspec.Struct):
        return _read_struct(option, value, path, problems)
    origin = get_origin(option)
    if origin is dict:
        return _read_table(kind, option, value, path, problems)
    if origin is tuple:
        return _read_list(kind, option, value, path, problems)
    return _read_scalar(kind, value, path, problems)


def _read_struct(kind: type[msgspec.Struct], value: dict[str, Any], path: str, problems: Problems) -> Any:
    fields = _fields(kind)
    problems_before = len(problems)
    given: dict[str, Any] = {}
    for key, item in value.items():
        if key in fields:
            given[key] = read(fields[key].type, item, join_key(path, key), problems)
        else:
            _add_unknown_key(key, path, fields, problems)
    for name, field in fields.items():
        if field.required and name not in value:
            problems.add(join_key(path, name), f"required key is missing; expected {describe_type(field.type)}")
    if len(problems) > problems_before or INVALID in given.values():
        return INVALID
    try:
        return kind(**given)
    except ValueError as problem:  # a rule over several keys of the table
        problems.add(path, str(getattr(problem, "message", problem)))
        return INVALID


@cache
def _fields(kind: type[msgspec.Struct]) -> Mapping[str, msgspec.structs.FieldInfo]:
    """The fields of a structure by name. Cached: msgspec needs longer for this than it takes to read a table."""
    return {field.name: field for field in msgspec.structs.fields(kind)}


def _add_unknown_key(key: str, path: str, fields: Mapping[str, Any], problems: Problems) -> None:
    closest = _closest(key, fields)
    hint = f"did you mean {closest!r}?" if closest else f"valid keys: {', '.join(fields)}"
    problems.add(join_key(path, key), f"unknown key; {hint}")


def _read_table(kind: Any, option: Any, value: dict[str, Any], path: str, problems: Problems) -> Any:
    _, inner = get_args(option)
    if _is_too_long(kind, value, path, problems):
        return INVALID
    given = {}
    for key, item in value.items():
        if not 1 <= len(key) <= NAME_CHARS_MAX:
            problems.add(join_key(path, key[:20]), f"expected a name of 1 to {NAME_CHARS_MAX} characters")
            continue
        given[key] = read(inner, item, join_key(path, key), problems)
    return INVALID if INVALID in given.values() else given


def _read_list(kind: Any, option: Any, value: list[Any], path: str, problems: Problems) -> Any:
    inner = get_args(option)[0]
    if _is_too_long(kind, value, path, problems):
        return INVALID
    if len(value) < (_unwrap(kind)[1].min_length or 0):
        problems.add_mismatch(path, describe_type(kind), value)
        return INVALID
    given = [read(inner, item, f"{path}[{at}]", problems) for at, item in enumerate(value)]
    return INVALID if any(item is INVALID for item in given) else tuple(given)


def _is_too_long(kind: Any, value: dict[str, Any] | list[Any], path: str, problems: Problems) -> bool:
    length_max = _unwrap(kind)[1].max_length
    if length_max is None or len(value) <= length_max:
        return False
    problems.add(path, f"expected at most {length_max:,} items, found {len(value):,}")
    return True


def _read_scalar(kind: Any, value: Any, path: str, problems: Problems) -> Any:
    if _unwrap(kind)[0] is Any:
        return msgspec.to_builtins(value)  # dates become strings, because the value is stored as JSON
    if not isinstance(value, float) or math.isfinite(value):
        try:
            return msgspec.convert(value, kind, strict=True, dec_hook=decode_unit)
        except ValueError:  # msgspec's ValidationError is one
            pass
    problems.add_mismatch(path, describe_type(kind), value)
    return INVALID


def _unwrap(kind: Any) -> tuple[Any, msgspec.Meta]:
    """Split an annotated type into the type and its bounds. Python flattens nested annotations into one."""
    if get_origin(kind) is not Annotated:
        return kind, msgspec.Meta()
    inner, *annotations = get_args(kind)
    bounds = {
        name: value
        for annotation in annotations
        for name in ("ge", "gt", "le", "min_length", "max_length")
        if (value := getattr(annotation, name)) is not None
    }
    return inner, msgspec.Meta(**bounds)


def _options(plain: Any) -> list[Any]:
    """The members of a union without None, which a TOML file cannot express; any other type alone."""
    if get_origin(plain) in (Union, types.UnionType):
        return [option for option in get_args(plain) if option is not type(None)]
    return [plain]


def _matching_option(plain: Any, value: Any) -> Any:
    """The member of a union that has the shape of the value (table, list or scalar), or None."""
    for option in _options(plain):
        bare, _ = _unwrap(option)
        is_struct = isinstance(bare, type) and issubclass(bare, msgspec.Struct)
        is_table, is_list = is_struct or get_origin(bare) is dict, get_origin(bare) is tuple
        if bare is Any or (is_table, is_list) == (isinstance(value, dict), isinstance(value, list)):
            return bare
    return None


# --- types and values in words ---------------------------------------------------------------------


def describe_value(value: Any) -> str:
    """Return a value as an error message quotes it."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    try:
        text = msgspec.json.encode(value).decode() if not isinstance(value, float) else repr(value)
    except (TypeError, ValueError):
        text = str(value)
    return text if len(text) <= VALUE_CHARS_MAX else text[:VALUE_CHARS_MAX] + "…"


def describe_type(kind: Any) -> str:
    """Return a type in words, with its bounds: `a whole number from 1 to 4,096`."""
    plain, meta = _unwrap(kind)
    options = _options(plain)
    if len(options) > 1 or options[0] is not plain:
        return " or ".join(describe_type(option) for option in options)
    return _describe_plain(plain) + _describe_bounds(plain, meta)


def _describe_plain(plain: Any) -> str:
    if plain in _TYPE_NAMES:
        return _TYPE_NAMES[plain]
    origin, args = get_origin(plain), get_args(plain)
    if origin is tuple:
        return f"a list (each item: {describe_type(args[0])})"
    if origin is dict:
        return f"a table (each value: {describe_type(args[1])})"
    if origin is Literal or issubclass(plain, Enum):
        words = [str(each) for each in (args if origin is Literal else plain)]
        return f"one of {', '.join(words)}" if len(words) > 1 else f'"{words[0]}"'
    return str(getattr(plain, "description", "a table"))


def _describe_bounds(plain: Any, meta: msgspec.Meta) -> str:
    if plain is str and meta.max_length is not None:
        return f" of {meta.min_length or 0} to {meta.max_length} characters"
    if meta.ge is not None and meta.le is not None:
        return f" from {meta.ge:,} to {meta.le:,}"
    if meta.ge is not None:
        return f" of at least {meta.ge:,}"
    if meta.gt is not None:
        return f" above {meta.gt:,}" + (f" and at most {meta.le:,}" if meta.le is not None else "")
    return " that is not empty" if meta.min_length is not None else ""

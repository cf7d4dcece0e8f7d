"""The types of the values in a file, made from the annotations of the structures they are read into.

    field: Annotated[int, Meta(ge=1, le=4096)]        NumberType: a whole number from 1 to 4,096
    field: tuple[ThreadSpec, ...] = ()                ListType of StructType
    field: Literal["never", "always"] | None = None   ChoiceType; None means that the key is missing

A type says whether a value fits (`accepts`, `check`) and what is expected, in words (`describe`). `struct_reader` walks
a file along them.
"""

from __future__ import annotations

import difflib
import math
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypeAlias, Union, get_args, get_origin

import msgspec

__all__ = [
    "INVALID",
    "AnyType",
    "ChoiceType",
    "FieldType",
    "ListType",
    "ScalarType",
    "StructType",
    "TableType",
    "TextType",
    "UnionType",
    "ValueType",
    "closest",
    "describe_value",
    "struct_type",
    "value_type",
]

VALUE_CHARS_MAX = 60  # of a value that is quoted in a message
COMPARED_CHARS_MAX = 200  # of a name that is compared with others, which is slow
MAPPING = "<mapping>"  # in descriptions: "table" in TOML, "mapping" in YAML
INVALID: Any = object()  # stands for a value that does not fit


class Bounds(NamedTuple):
    """The limits in an annotation's `Meta`."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None  # for the complete string


class ValueType:
    """What a value of a file must be. `expected` says it in words, with `MAPPING` for the format's word."""

    def __init__(self, expected: str, bounds: Bounds, notes: Mapping[str, Any]) -> None:
        self.notes = notes  # `Meta.extra`; "expected" replaces the description
        self.expected: str = self.notes.get("expected", expected)
        self.bounds = bounds

    def accepts(self, value: Any) -> bool:
        """Whether the value is of this kind (mapping, list, text, …), whatever its size and contents."""
        return isinstance(value, object)

    def describe(self, mapping: str = "table") -> str:
        """Return what is expected, in words; `mapping` is the file format's word for a mapping."""
        return self.expected.replace(MAPPING, mapping)


class AnyType(ValueType):
    """Any value: its meaning belongs to other code."""


# --- single values -----------------------------------------------------------------------------------


class ScalarType(ValueType):
    """A single value: neither a mapping nor a list."""

    def accepts(self, value: Any) -> bool:
        """Whether the value fits."""
        return self.check(value) is not INVALID

    def check(self, value: Any) -> Any:
        """Return the value as the structure stores it, or `INVALID`."""
        raise NotImplementedError


class BooleanType(ScalarType):
    """True or false."""

    def check(self, value: Any) -> Any:
        """Return the value."""
        return value if isinstance(value, bool) else INVALID


class NumberType(ScalarType):
    """An int or a float within bounds; an int is accepted where a float is expected."""

    def __init__(self, kind: type[int | float], bounds: Bounds, notes: Mapping[str, Any]) -> None:
        noun = "a whole number" if kind is int else "a number"
        super().__init__(noun + _describe_range(bounds), bounds, notes)
        self._kind = kind
        self._min = -math.inf if bounds.ge is None else bounds.ge
        self._above = bounds.gt
        self._max = math.inf if bounds.le is None else bounds.le

    def check(self, value: Any) -> Any:
        """Return the number, as an int or a float. True and False are not numbers."""
        if type(value) is not int and (type(value) is not float or self._kind is int):
            return INVALID
        if not self._min <= value <= self._max or (self._above is not None and value <= self._above):
            return INVALID
        if self._kind is int:
            return value
        try:
            number = float(value)
        except OverflowError:  # a whole number that is too large for a float
            return INVALID
        return number if math.isfinite(number) else INVALID


def _describe_range(bounds: Bounds) -> str:
    ge, gt, le, *_ = bounds
    if ge is not None:
        return f" from {ge:,} to {le:,}" if le is not None else f" of at least {ge:,}"
    if gt is not None:
        return f" above {gt:,}" + (f" and at most {le:,}" if le is not None else "")
    return f" of at most {le:,}" if le is not None else ""


class TextType(ScalarType):
    """A string within bounds; with the note "printable" a name, as `Checks.name` has it."""

    def __init__(self, bounds: Bounds, notes: Mapping[str, Any]) -> None:
        self._length_min = bounds.min_length or 0
        self._length_max = math.inf if bounds.max_length is None else bounds.max_length
        self._pattern = None if bounds.pattern is None else re.compile(bounds.pattern)
        self._printable = bool(notes.get("printable"))
        limited = f" of {self._length_min} to {bounds.max_length} characters" if bounds.max_length is not None else ""
        super().__init__("a string" + (limited or " that is not empty" * bool(self._length_min)), bounds, notes)

    def check(self, value: Any) -> Any:
        """Return the string."""
        if not isinstance(value, str) or not self._length_min <= len(value) <= self._length_max:
            return INVALID
        if self._printable and not value.isprintable():
            return INVALID
        return INVALID if self._pattern is not None and self._pattern.fullmatch(value) is None else value


class ChoiceType(ScalarType):
    """One of a few values: a literal or an enumeration. `choices` are in the order of the declaration."""

    def __init__(self, members: Iterable[Any], bounds: Bounds, notes: Mapping[str, Any]) -> None:
        self._members = {each.value if isinstance(each, Enum) else each: each for each in members}
        self._types = {type(value) for value in self._members}
        self.choices = tuple(str(value) for value in self._members)
        words = [choice or '""' for choice in self.choices]
        super().__init__(f"one of {', '.join(words)}" if len(words) > 1 else f'"{words[0]}"', bounds, notes)

    def check(self, value: Any) -> Any:
        """Return the choice. True is not the choice 1, although Python considers them equal."""
        return self._members.get(value, INVALID) if type(value) in self._types else INVALID


class UnitReader(Protocol):
    """A class that reads its own notation, such as a duration with a unit."""

    description: str

    @classmethod
    def read(cls, value: Any) -> Any:
        """Return the value, or raise ValueError."""
        ...


class UnitType(ScalarType):
    """A value in a notation of its own."""

    def __init__(self, unit: type[UnitReader], bounds: Bounds, notes: Mapping[str, Any]) -> None:
        super().__init__(unit.description, bounds, notes)
        self._unit = unit

    def check(self, value: Any) -> Any:
        """Return the value as the class reads it."""
        try:
            return self._unit.read(value)
        except ValueError:
            return INVALID


# --- values with contents ----------------------------------------------------------------------------


class ListType(ValueType):
    """A list of items of one type, read as a tuple or a list; `length` is None if it varies."""

    def __init__(
        self,
        kind: type[tuple[Any, ...] | list[Any]],
        item: ValueType,
        length: int | None,
        bounds: Bounds,
        notes: Mapping[str, Any],
    ) -> None:
        size = f" of {length} items" if length is not None else ""
        not_empty = " that is not empty" if bounds.min_length else ""
        super().__init__(f"a list{size} (each item: {item.expected}){not_empty}", bounds, notes)
        self.kind = kind
        self.item = item
        self.length = length

    def accepts(self, value: Any) -> bool:
        """Whether it is a list, or a program's tuple."""
        return isinstance(value, list | tuple)


class TableType(ValueType):
    """A mapping from names to values of one type."""

    def __init__(self, key: ValueType, item: ValueType, bounds: Bounds, notes: Mapping[str, Any]) -> None:
        super().__init__(f"a {MAPPING} (each value: {item.expected})", bounds, notes)
        self.key = key
        self.item = item

    def accepts(self, value: Any) -> bool:
        """Whether it is a mapping."""
        return isinstance(value, dict)


class FieldType(NamedTuple):
    """A key of a structure: the name of its field and its type."""

    name: str
    type: ValueType
    is_optional: bool  # None is a value of the field


class StructType(ValueType):
    """A mapping with the keys of a structure, or the list of its fields if msgspec encodes it as one."""

    def __init__(self, kind: type[msgspec.Struct], notes: Mapping[str, Any]) -> None:
        config, names = kind.__struct_config__, kind.__struct_encode_fields__
        self.is_list = config.array_like  # a list of the fields in their order, not a mapping
        self.ignores_unknown = not config.forbid_unknown_fields
        super().__init__(f"a list ({', '.join(names)})" if self.is_list else f"a {MAPPING}", Bounds(), notes)
        self.kind = kind
        self.fields: dict[str, FieldType] = {
            field.encode_name: FieldType(field.name, value_type(field.type), _is_optional(field.type))
            for field in msgspec.structs.fields(kind)
        }
        self.required = tuple(field.encode_name for field in msgspec.structs.fields(kind) if field.required)

    def accepts(self, value: Any) -> bool:
        """Whether it is a mapping, or the list that stands for one."""
        return isinstance(value, list | tuple if self.is_list else dict)


class UnionType(ValueType):
    """A value of one of several types."""

    def __init__(self, options: Sequence[ValueType], bounds: Bounds, notes: Mapping[str, Any]) -> None:
        super().__init__(" or ".join(each.expected for each in options), bounds, notes)
        self._options = options

    def accepts(self, value: Any) -> bool:
        """Whether one of the types accepts it."""
        return self.option(value) is not None

    def option(self, value: Any) -> ValueType | None:
        """Return the first type that accepts the value."""
        return next((each for each in self._options if each.accepts(value)), None)


# --- from annotations --------------------------------------------------------------------------------

_Notes: TypeAlias = Mapping[str, Any]


@cache
def struct_type(kind: type[msgspec.Struct]) -> StructType:
    """Return the type of a structure."""
    return StructType(kind, {})


def value_type(annotation: Any) -> ValueType:
    """Return the type of an annotation. Nested bounds and notes are joined; the outer ones take precedence."""
    plain, bounds, notes = _unwrap(annotation)
    if isinstance(plain, type) and issubclass(plain, msgspec.Struct) and not notes:
        return struct_type(plain)
    return _made(plain, bounds, notes)


def _made(plain: Any, bounds: Bounds, notes: _Notes) -> ValueType:
    origin, args = get_origin(plain), get_args(plain)
    if origin in (Union, types.UnionType):
        return _union([each for each in args if each not in (type(None), msgspec.UnsetType)], bounds, notes)
    if origin is Literal:
        return ChoiceType(args, bounds, notes)
    if origin in (tuple, list):
        length = len(args) if origin is tuple and args[-1] is not Ellipsis else None
        return ListType(origin, value_type(args[0]), length, bounds, notes)
    if origin is dict:
        return TableType(value_type(args[0]), value_type(args[1]), bounds, notes)
    return _made_from_class(plain, bounds, notes)


def _union(options: list[Any], bounds: Bounds, notes: _Notes) -> ValueType:
    if len(options) > 1:
        return UnionType([value_type(each) for each in options], bounds, notes)
    plain, inner_bounds, inner_notes = _unwrap(options[0])  # `X | None` is X: a missing key is None, or unset
    given = {name: value for name, value in bounds._asdict().items() if value is not None}
    return _made(plain, inner_bounds._replace(**given), {**inner_notes, **notes})


def _made_from_class(plain: Any, bounds: Bounds, notes: _Notes) -> ValueType:
    if plain is Any:
        return AnyType("any value", bounds, notes)
    if issubclass(plain, msgspec.Struct):
        return StructType(plain, notes)
    if issubclass(plain, Enum):
        return ChoiceType(plain, bounds, notes)
    if hasattr(plain, "read"):
        return UnitType(plain, bounds, notes)
    if plain is bool:
        return BooleanType("true or false", bounds, notes)
    return TextType(bounds, notes) if plain is str else NumberType(plain, bounds, notes)


def _is_optional(annotation: Any) -> bool:
    return type(None) in get_args(_unwrap(annotation)[0])


def _unwrap(annotation: Any) -> tuple[Any, Bounds, _Notes]:
    """Split an annotated type into the type, its bounds and its notes. Python flattens nested annotations into one."""
    if get_origin(annotation) is not Annotated:
        return annotation, Bounds(), {}
    plain, *metas = get_args(annotation)
    given = {name: found for meta in metas for name in Bounds._fields if (found := getattr(meta, name)) is not None}
    notes = {name: note for meta in metas for name, note in (meta.extra or {}).items()}
    return plain, Bounds(**given), notes


# --- words -------------------------------------------------------------------------------------------


def describe_value(value: Any, mapping: str = "table") -> str:
    """Return a value as an error message quotes it."""
    if isinstance(value, dict):
        return f"a {mapping}"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    try:
        text = repr(value) if isinstance(value, float) else msgspec.json.encode(value).decode()
    except (TypeError, ValueError):  # of no JSON type, or text that is not valid Unicode
        text = ascii(value)
    return text if len(text) <= VALUE_CHARS_MAX else text[:VALUE_CHARS_MAX] + "…"


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to this one, if one is similar."""
    if len(name) > COMPARED_CHARS_MAX:
        return None
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)), None)

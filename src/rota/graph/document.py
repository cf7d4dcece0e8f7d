"""Text to plain values: the part of reading a graph file that meets hostile input.

YAML is read event by event and never through its object constructors, so nothing in a file can name a class, a function
or another file. What this reader takes is the plain core of YAML 1.2 (and all of JSON): mappings with text keys,
sequences, text, whole numbers, decimal numbers, true, false and null. It refuses, with the line it happened on:

    bytes that are not UTF-8          tags such as !!python/object       a second document
    a key written twice               keys that are not plain text       numbers that JSON could not keep
    nesting without end               an alias inside its own anchor     aliases that unfold to millions of values

The last one is the *alias bomb*: a few lines in which each list names the one before it nine times,

    a: &a [x, x, x, x, x, x, x, x, x]
    b: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]
    c: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b]

are 9 + 81 + 729 values, and nine more lines are a billion. Each anchor's unfolded size is kept, each alias adds it to
the total, and the total has a limit: the file is refused before anything is unfolded.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, Literal, NoReturn, TypeAlias

import msgspec
import yaml
from yaml.events import (
    AliasEvent,
    CollectionStartEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    StreamEndEvent,
    StreamStartEvent,
)

from rota.errors import GraphInvalid
from rota.graph.diagnostics import Diagnostic
from rota.graph.spec import ID_BYTES_MAX, STRING_BYTES_MAX

__all__ = ["Format", "InputLimits", "Section", "read"]

Format: TypeAlias = Literal["yaml", "json"]
INTEGER_MAX = 2**63 - 1  # beyond it a JSON reader may not keep the number
NUMBER_SHOWN = 20  # characters of a number in a message

# The C parser gives the same events about ten times as fast; it comes with most builds of the library.
_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?[0-9]+\Z|0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_DECIMAL = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)\Z|\.(nan|NaN|NAN)\Z")


class InputLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much a graph file may be. A caller may ask for less, or for more."""

    graph_input_bytes: int = 1024 * 1024
    lanes: int = 256
    components: int = 4096
    edges: int = 8192
    composite_loops: int = 1024
    identifier_bytes: int = ID_BYTES_MAX
    string_bytes: int = STRING_BYTES_MAX
    config_depth: int = 8
    config_value_bytes: int = 4096
    nesting_depth: int = 32
    values: int = 500_000  # after aliases are unfolded


class Section(dict[str, Any]):
    """A mapping that knows the line it begins on; None where there are no lines, as in JSON."""

    __slots__ = ("line",)

    def __init__(self, line: int | None = None) -> None:
        super().__init__()
        self.line = line


def read(data: bytes | str, limits: InputLimits, form: Format | None = None) -> Section:
    """The mapping that a graph file is. Without `form`, text that is JSON is read as JSON, anything else as YAML."""
    text = _decode(data, limits)
    value: Any
    if form == "json" or (form is None and _is_json(text)):
        value = _read_json(text, limits)
    else:
        value = _YamlReader(text, limits).document()
    if not isinstance(value, Section):
        raise refuse("the file must be a mapping with schema_version, graph, lanes, components and edges", 1)
    return value


def refuse(problem: str, line: int | None = None) -> GraphInvalid:
    """The error for a file that cannot be read, to be raised by the caller."""
    return GraphInvalid(
        f"line {line}: {problem}" if line is not None else problem,
        diagnostics=[Diagnostic.of("graph_validation_error", problem, line=line)],
    )


def _decode(data: bytes | str, limits: InputLimits) -> str:
    try:
        size = len(data) if isinstance(data, bytes) else len(data.encode())
        if size > limits.graph_input_bytes:
            raise refuse(f"graph input size exceeds limit {limits.graph_input_bytes}")
        text = data.decode() if isinstance(data, bytes) else data
    except UnicodeError as problem:
        raise refuse(f"the file is not UTF-8 text ({problem})") from None
    return text.removeprefix("\ufeff")


# --- JSON ----------------------------------------------------------------------------------------


def _is_json(text: str) -> bool:
    """Whether text without a name is JSON: a YAML file may begin with a brace too."""
    if not text.lstrip(" \t\r\n").startswith("{"):
        return False
    try:
        json.loads(text, parse_int=str, parse_float=str)  # only the form: numbers are judged when it is read
    except (ValueError, RecursionError):
        return False
    return True


def _read_json(text: str, limits: InputLimits) -> Any:
    try:
        value = json.loads(
            text, object_pairs_hook=_pairs, parse_int=_integer, parse_float=_decimal, parse_constant=_no_constant
        )
        _check_depth(value, limits.nesting_depth)
    except json.JSONDecodeError as problem:
        raise refuse(f"the file is not JSON: {problem.msg}", problem.lineno) from None
    except RecursionError:
        raise refuse(f"nesting exceeds limit {limits.nesting_depth}") from None
    return value


def _pairs(pairs: list[tuple[str, Any]]) -> Section:
    section = Section()
    for key, value in pairs:
        if key in section:
            raise refuse(f"the key {key!r} is written twice")
        section[key] = value
    return section


def _no_constant(name: str) -> NoReturn:
    raise refuse(f"{name} is not a number that can be kept")


def _check_depth(value: Any, levels: int) -> None:
    if isinstance(value, dict | list):
        if levels == 0:
            raise RecursionError
        for item in value.values() if isinstance(value, dict) else value:
            _check_depth(item, levels - 1)


# --- numbers -------------------------------------------------------------------------------------


def _integer(text: str) -> int:
    try:
        number = int(text, 0) if text[:2] in {"0o", "0x"} else int(text)
    except ValueError:  # more digits than Python reads
        number = INTEGER_MAX + 1
    if abs(number) > INTEGER_MAX:
        raise _too_large(text)
    return number


def _decimal(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _too_large(text)
    return number


def _too_large(text: str) -> GraphInvalid:
    shown = text if len(text) <= NUMBER_SHOWN else text[:NUMBER_SHOWN] + "…"
    return refuse(f"the number {shown} is too large to be kept")


def _plain(text: str) -> Any:
    """What an unquoted YAML scalar means."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INTEGER.match(text):
        return _integer(text)
    if _DECIMAL.match(text):
        return _decimal(text)
    if _NOT_FINITE.match(text):
        _no_constant(text)
    return text


# --- YAML ----------------------------------------------------------------------------------------


class _YamlReader:
    """Builds one document from events, counting what it builds."""

    def __init__(self, text: str, limits: InputLimits) -> None:
        self._events = _events(text)
        self._limits = limits
        self._values = 0  # so far, with aliases unfolded
        self._anchors: dict[str, tuple[Any, int]] = {}  # name to value and unfolded size
        self._open: set[str] = set()  # anchors of collections not yet closed

    def document(self) -> Any:
        """The one document of the text."""
        self._expect(StreamStartEvent)
        first = next(self._events)
        if isinstance(first, StreamEndEvent):
            raise refuse("the file is empty")
        value = self._value(next(self._events), 0)
        self._expect(DocumentEndEvent)
        further = next(self._events)
        if isinstance(further, DocumentStartEvent):
            raise refuse("the file holds a second document", _line(further))
        return value

    def _expect(self, kind: type[Event]) -> None:
        event = next(self._events)
        assert isinstance(event, kind), event  # noqa: S101  # the parser's own grammar

    def _value(self, event: Event, depth: int) -> Any:
        self._count(1, event)
        if isinstance(event, AliasEvent):
            return self._alias(event)
        if isinstance(event, ScalarEvent):
            return self._anchored(event, self._scalar(event), 1)
        assert isinstance(event, CollectionStartEvent), event  # noqa: S101  # nothing else begins a value
        return self._collection(event, depth)

    def _collection(self, event: CollectionStartEvent, depth: int) -> Any:
        self._check_tag(event)
        if depth >= self._limits.nesting_depth:
            raise refuse(f"nesting exceeds limit {self._limits.nesting_depth}", _line(event))
        before = self._values
        if event.anchor:
            self._open.add(event.anchor)
        is_mapping = isinstance(event, MappingStartEvent)
        value = self._mapping(event, depth) if is_mapping else self._sequence(depth)
        self._open.discard(event.anchor)
        return self._anchored(event, value, self._values - before + 1)

    def _mapping(self, start: Event, depth: int) -> Section:
        section = Section(_line(start))
        while not isinstance(event := next(self._events), MappingEndEvent):
            key = self._key(event)
            if key in section:
                raise refuse(f"the key {key!r} is written twice", _line(event))
            section[key] = self._value(next(self._events), depth + 1)
        return section

    def _sequence(self, depth: int) -> list[Any]:
        items = []
        while not isinstance(event := next(self._events), SequenceEndEvent):
            items.append(self._value(event, depth + 1))
        return items

    def _key(self, event: Event) -> str:
        if not isinstance(event, ScalarEvent) or event.anchor:
            raise refuse("a key must be plain text", _line(event))
        self._check_tag(event)
        return str(event.value)  # lanes may be called 1 or on: a key is always text

    def _scalar(self, event: ScalarEvent) -> Any:
        self._check_tag(event)
        text = str(event.value)
        if event.style:
            return text  # quoted, or a block of text
        try:
            return _plain(text)
        except GraphInvalid as problem:
            raise refuse(problem.message, _line(event)) from None

    def _alias(self, event: AliasEvent) -> Any:
        name = str(event.anchor)
        if name in self._open:
            raise refuse(f"the alias *{name} stands inside its own anchor", _line(event))
        if name not in self._anchors:
            raise refuse(f"the alias *{name} has no anchor before it", _line(event))
        value, size = self._anchors[name]
        self._count(size - 1, event)
        return value

    def _anchored(self, event: NodeEvent, value: Any, size: int) -> Any:
        if event.anchor:
            self._anchors[event.anchor] = value, size
        return value

    def _check_tag(self, event: ScalarEvent | CollectionStartEvent) -> None:
        if event.tag is not None:
            raise refuse(f"tags are not read here, and {event.tag!r} is one", _line(event))

    def _count(self, values: int, event: Event) -> None:
        self._values += values
        if self._values > self._limits.values:
            raise refuse(f"the file unfolds to more values than the limit {self._limits.values}", _line(event))


def _events(text: str) -> Iterator[Event]:
    """The parser's events; what it cannot parse is our error, with its line."""
    try:
        yield from yaml.parse(text, Loader=_PARSER)
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        words = " ".join(str(part) for part in (problem.context, problem.problem) if part)
        raise refuse(f"the file is not YAML: {words}", mark.line + 1 if mark else None) from None
    except yaml.YAMLError as problem:  # characters that YAML does not allow
        raise refuse(f"the file is not YAML: {str(problem).splitlines()[0]}") from None


def _line(event: Event) -> int | None:
    return event.start_mark.line + 1 if event.start_mark is not None else None

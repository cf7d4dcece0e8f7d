"""Read the text of a graph file as plain values. The text is untrusted input.

The reader processes YAML as parser events and never through YAML's object constructors, so a file cannot name a class,
a function or another file. It accepts the plain core of YAML 1.2 and all of JSON: mappings with string keys, sequences,
strings, integers, decimal numbers, true, false and null. It refuses, with the line number:

    bytes that are not UTF-8          tags such as !!python/object       a second document
    duplicate keys                    keys that are not plain text       numbers too large for JSON
    nesting beyond a limit            an alias inside its own anchor     aliases that expand to millions of values

The last one is the *alias bomb*: a few lines in which each list repeats the previous list nine times,

    a: &a [x, x, x, x, x, x, x, x, x]
    b: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]
    c: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b]

hold 9 + 81 + 729 values, and nine more lines hold a billion. The reader keeps the expanded size of each anchor and adds
it to a total for each alias; a file whose total exceeds the limit is refused before anything is expanded.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
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

__all__ = ["Format", "InputLimits", "Section", "invalid_file", "is_plain_text", "read_document"]

Format: TypeAlias = Literal["yaml", "json"]
INTEGER_MAX = 2**63 - 1  # JSON readers may lose larger integers
NUMBER_SHOWN = 20  # characters of a number in a message

# The C parser emits the same events about ten times as fast; most builds of PyYAML include it.
_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?[0-9]+\Z|0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_DECIMAL = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)\Z|\.(nan|NaN|NAN)\Z")


class InputLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Maximum sizes of a graph file and its parts. A caller may lower or raise them."""

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
    values: int = 500_000  # after aliases are expanded


class Section(dict[str, Any]):
    """A mapping of the file, with the line it starts on; the line is None in JSON."""

    __slots__ = ("line",)

    def __init__(self, line: int | None = None) -> None:
        super().__init__()
        self.line = line


def read_document(data: bytes | str, limits: InputLimits, form: Format | None = None) -> Section:
    """Return the top-level mapping of a graph file. Without `form`, valid JSON is read as JSON, other text as YAML."""
    text = _decode(data, limits)
    value = _read_text(text, limits, form)
    if not isinstance(value, Section):
        raise invalid_file("the file must be a mapping with schema_version, graph, lanes, components and edges", 1)
    return value


def invalid_file(problem: str, line: int | None = None) -> GraphInvalid:
    """Return the error for a file that cannot be read; the caller raises it."""
    return GraphInvalid(
        f"line {line}: {problem}" if line is not None else problem,
        diagnostics=[Diagnostic.of("graph_validation_error", problem, line=line)],
    )


def _decode(data: bytes | str, limits: InputLimits) -> str:
    try:
        size = len(data) if isinstance(data, bytes) else len(data.encode())
        if size > limits.graph_input_bytes:
            raise invalid_file(f"graph input size exceeds limit {limits.graph_input_bytes}")
        text = data.decode() if isinstance(data, bytes) else data
    except UnicodeError as problem:
        raise invalid_file(f"the file is not UTF-8 text ({problem})") from None
    return text.removeprefix("\ufeff")


def _read_text(text: str, limits: InputLimits, form: Format | None) -> Any:
    if form == "json" or (form is None and text.lstrip(" \t\r\n").startswith("{")):
        try:
            return _JsonReader().document(text, limits)
        except json.JSONDecodeError as problem:
            if form == "json":  # otherwise it may be YAML: a YAML file may start with a brace too
                raise invalid_file(f"the file is not JSON: {problem.msg}", problem.lineno) from None
        except RecursionError:
            raise invalid_file(f"nesting exceeds limit {limits.nesting_depth}") from None
    return _YamlReader(text, limits).document()


# --- JSON ----------------------------------------------------------------------------------------


class _JsonReader:
    """Reads JSON. What JSON allows and a graph file does not is refused after the syntax was found to be valid."""

    def __init__(self) -> None:
        self._problems: list[GraphInvalid] = []

    def document(self, text: str, limits: InputLimits) -> Any:
        """Return the value of the text, or raise JSONDecodeError."""
        value = json.loads(
            text,
            object_pairs_hook=self._section,
            parse_int=partial(self._checked, _integer),
            parse_float=partial(self._checked, _decimal),
            parse_constant=partial(self._checked, _refuse_constant),
        )
        if self._problems:
            raise self._problems[0]
        _check_depth(value, limits.nesting_depth)
        return value

    def _section(self, pairs: list[tuple[str, Any]]) -> Section:
        section = Section()
        for key, value in pairs:
            if key in section:
                self._problems.append(invalid_file(f"duplicate key {key!r}"))
            section[key] = value
        return section

    def _checked(self, convert: Callable[[str], Any], text: str) -> Any:
        try:
            return convert(text)
        except GraphInvalid as problem:
            self._problems.append(problem)
            return None


def _refuse_constant(name: str) -> NoReturn:
    raise invalid_file(f"{name} is not a finite number")


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
    except ValueError:  # more digits than Python converts
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
    return invalid_file(f"the number {shown} is too large")


def _plain_scalar(text: str) -> Any:
    """Return the value of an unquoted YAML scalar."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INTEGER.match(text):
        return _integer(text)
    if _DECIMAL.match(text):
        return _decimal(text)
    if _NOT_FINITE.match(text):
        _refuse_constant(text)
    return text


def is_plain_text(text: str) -> bool:
    """Return whether an unquoted YAML scalar is read as this text, and not as a number, true, false or null."""
    try:
        return isinstance(_plain_scalar(text), str)
    except GraphInvalid:
        return False


# --- YAML ----------------------------------------------------------------------------------------


class _YamlReader:
    """Builds one document from parser events and counts its values."""

    def __init__(self, text: str, limits: InputLimits) -> None:
        self._events = _events(text)
        self._limits = limits
        self._values = 0  # so far, with aliases expanded
        self._anchors: dict[str, tuple[Any, int]] = {}  # name to value and expanded size
        self._open: set[str] = set()  # anchors of collections that are still being read

    def document(self) -> Any:
        """Return the only document of the text."""
        self._expect(StreamStartEvent)
        first = next(self._events)
        if isinstance(first, StreamEndEvent):
            raise invalid_file("the file is empty")
        value = self._value(next(self._events), 0)
        self._expect(DocumentEndEvent)
        further = next(self._events)
        if isinstance(further, DocumentStartEvent):
            raise invalid_file("the file contains a second document", _line(further))
        return value

    def _expect(self, kind: type[Event]) -> None:
        event = next(self._events)
        assert isinstance(event, kind), event  # noqa: S101  # guaranteed by the parser's grammar

    def _value(self, event: Event, depth: int) -> Any:
        self._count(1, event)
        if isinstance(event, AliasEvent):
            return self._alias(event)
        if isinstance(event, ScalarEvent):
            return self._anchored(event, self._scalar(event), 1)
        assert isinstance(event, CollectionStartEvent), event  # noqa: S101  # no other event starts a value
        return self._collection(event, depth)

    def _collection(self, event: CollectionStartEvent, depth: int) -> Any:
        self._check_tag(event)
        if depth >= self._limits.nesting_depth:
            raise invalid_file(f"nesting exceeds limit {self._limits.nesting_depth}", _line(event))
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
                raise invalid_file(f"duplicate key {key!r}", _line(event))
            section[key] = self._value(next(self._events), depth + 1)
        return section

    def _sequence(self, depth: int) -> list[Any]:
        items = []
        while not isinstance(event := next(self._events), SequenceEndEvent):
            items.append(self._value(event, depth + 1))
        return items

    def _key(self, event: Event) -> str:
        if not isinstance(event, ScalarEvent) or event.anchor:
            raise invalid_file("a key must be plain text", _line(event))
        self._check_tag(event)
        return str(event.value)  # a lane may be named 1 or on: keys are always strings

    def _scalar(self, event: ScalarEvent) -> Any:
        self._check_tag(event)
        text = str(event.value)
        if event.style:
            return text  # quoted, or a block scalar
        try:
            return _plain_scalar(text)
        except GraphInvalid as problem:
            raise invalid_file(problem.message, _line(event)) from None

    def _alias(self, event: AliasEvent) -> Any:
        name = str(event.anchor)
        if name in self._open:
            raise invalid_file(f"the alias *{name} is inside its own anchor", _line(event))
        if name not in self._anchors:
            raise invalid_file(f"the alias *{name} has no anchor before it", _line(event))
        value, size = self._anchors[name]
        self._count(size - 1, event)
        return value

    def _anchored(self, event: NodeEvent, value: Any, size: int) -> Any:
        if event.anchor:
            self._anchors[event.anchor] = value, size
        return value

    def _check_tag(self, event: ScalarEvent | CollectionStartEvent) -> None:
        if event.tag is not None:
            raise invalid_file(f"YAML tags are not allowed: {event.tag!r}", _line(event))

    def _count(self, values: int, event: Event) -> None:
        self._values += values
        if self._values > self._limits.values:
            raise invalid_file(f"the file expands to more values than the limit {self._limits.values}", _line(event))


def _events(text: str) -> Iterator[Event]:
    """Yield the parser's events; a syntax error becomes `GraphInvalid` with its line."""
    try:
        yield from yaml.parse(text, Loader=_PARSER)
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        reason = " ".join(str(part) for part in (problem.context, problem.problem) if part)
        raise invalid_file(f"the file is not YAML: {reason}", mark.line + 1 if mark else None) from None
    except yaml.reader.ReaderError as problem:
        line = text[: text.find(chr(problem.character))].count("\n") + 1
        raise invalid_file(f"YAML does not allow the character U+{problem.character:04X}", line) from None


def _line(event: Event) -> int | None:
    return event.start_mark.line + 1 if event.start_mark is not None else None

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

`normalize` then removes nulls and checks the size of every string.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
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

__all__ = ["Format", "InputLimits", "Section", "invalid_file", "item_name", "normalize", "read_document"]

Format: TypeAlias = Literal["yaml", "json"]
INTEGER_MAX = 2**63 - 1  # JSON readers may lose larger integers
NUMBER_SHOWN = 20  # characters of a number in a message
PATH_SHOWN = 160  # characters of a path in a message
FREE_FORM = ("config", "params", "parameters")  # keys whose values belong to a component or a policy

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
    value: Any
    if form == "json" or (form is None and _is_json(text)):
        value = _read_json(text, limits)
    else:
        value = _YamlReader(text, limits).document()
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


# --- JSON ----------------------------------------------------------------------------------------


def _is_json(text: str) -> bool:
    """Whether the text is JSON. A leading brace is not enough: a YAML file may start with one too."""
    if not text.lstrip(" \t\r\n").startswith("{"):
        return False
    try:
        json.loads(text, parse_int=str, parse_float=str)  # the syntax only; numbers are checked when it is read
    except (ValueError, RecursionError):
        return False
    return True


def _read_json(text: str, limits: InputLimits) -> Any:
    try:
        value = json.loads(
            text,
            object_pairs_hook=_section_of,
            parse_int=_integer,
            parse_float=_decimal,
            parse_constant=_refuse_constant,
        )
        _check_depth(value, limits.nesting_depth)
    except json.JSONDecodeError as problem:
        raise invalid_file(f"the file is not JSON: {problem.msg}", problem.lineno) from None
    except RecursionError:
        raise invalid_file(f"nesting exceeds limit {limits.nesting_depth}") from None
    return value


def _section_of(pairs: list[tuple[str, Any]]) -> Section:
    section = Section()
    for key, value in pairs:
        if key in section:
            raise invalid_file(f"duplicate key {key!r}")
        section[key] = value
    return section


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
    except yaml.YAMLError as problem:  # a character that YAML does not allow
        raise invalid_file(f"the file is not YAML: {str(problem).splitlines()[0]}") from None


def _line(event: Event) -> int | None:
    return event.start_mark.line + 1 if event.start_mark is not None else None


# --- nulls and sizes -----------------------------------------------------------------------------
#
# A null field means the same as a missing field. Only free-form mappings (`config` and parameters) keep their nulls:
# their contents belong to components and policies, and the limits there are on the depth and size of each value.


def normalize(section: Section, limits: InputLimits, path: str = "") -> tuple[Section, list[Diagnostic]]:
    """Return the section without nulls, and a diagnostic for each string or value that exceeds a limit."""
    normalizer = _Normalizer(limits)
    return normalizer.section(section, path), normalizer.found


def item_name(value: Any, at: int) -> str:
    """Return the name of a list item in a path: its id, or its position if it has none."""
    name = value.get("id") if isinstance(value, Section) else None
    return name if isinstance(name, str) and name else f"[{at}]"


class _Normalizer:
    """One walk over a document."""

    def __init__(self, limits: InputLimits) -> None:
        self._limits = limits
        self.found: list[Diagnostic] = []

    def section(self, section: Section, path: str) -> Section:
        """Return a copy of the mapping without nulls."""
        kept = Section(section.line)
        for key, value in section.items():
            place = f"{path}.{key}" if path else key
            self._text(key, place, section.line)
            if key in FREE_FORM and isinstance(value, dict):
                self._free_form(value, place, section.line)
                kept[key] = value
            elif value is not None:
                kept[key] = self._value(value, place, section.line)
        return kept

    def _value(self, value: Any, path: str, line: int | None) -> Any:
        if isinstance(value, Section):
            return self.section(value, path)
        if isinstance(value, list):
            return [self._value(item, f"{path}.{item_name(item, at)}", line) for at, item in enumerate(value)]
        if isinstance(value, str):
            self._text(value, path, line)
        return value

    def _text(self, text: str, path: str, line: int | None) -> None:
        size = _utf8_bytes(text)
        if size is None:
            self._report("the string is not valid UTF-8", path, line)
        elif size > self._limits.string_bytes:
            self._report(f"string exceeds limit {self._limits.string_bytes} bytes", path, line)

    def _free_form(self, config: dict[str, Any], path: str, line: int | None) -> None:
        limits = self._limits
        for key, value in config.items():
            place = f"{path}.{key}"
            self._text(key, place, line)
            size = _json_bytes(value)
            if size is None:
                self._report("the string is not valid UTF-8", place, line)
            elif size > limits.config_value_bytes:
                self._report(f"value exceeds limit {limits.config_value_bytes} bytes", place, line)
            if _depth(value) >= limits.config_depth:
                self._report(f"nesting exceeds limit {limits.config_depth}", place, line)

    def _report(self, problem: str, path: str, line: int | None) -> None:
        shown = path.encode("ascii", "backslashreplace").decode() if _utf8_bytes(path) is None else path
        shown = shown if len(shown) <= PATH_SHOWN else shown[:PATH_SHOWN] + "…"
        self.found.append(Diagnostic.of("graph_validation_error", f"{shown}: {problem}", shown, line=line))


def _utf8_bytes(text: str) -> int | None:
    """Return the length of the text as UTF-8, or None if it cannot be encoded."""
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

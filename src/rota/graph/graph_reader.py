"""Read the values of a graph file into structs, in one walk; everything that does not fit becomes a diagnostic.

The annotations of the structs are the rules. The walk also applies the limits on counts and strings, refuses the fields
of version 2 in a version 1 file, replaces the placeholders of a template instance, and notes the line of each part.
A null field means the same as a missing field. Only free-form mappings (`config` and `params`) keep their nulls: their
contents belong to components and policies, and the limits there are on the depth and size of each value.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from rota.graph.agent_components import completed_fields
from rota.graph.diagnostics import Diagnostic
from rota.graph.document import InputLimits, Section
from rota.graph.expansion import GraphFile, Instance, Part, Scalar, SubgraphFile, Template, fill_text
from rota.graph.spec import (
    VERSION_2_FIELDS,
    ComponentSpec,
    CompositeLoopSpec,
    EdgeSpec,
    ExecutionSpec,
    GraphInfo,
    LaneSpec,
)
from rota.model.struct_reader import StructReader
from rota.model.value_types import (
    INVALID,
    AnyType,
    ChoiceType,
    ListType,
    StructType,
    TableType,
    ValueType,
    closest,
    describe_value,
    struct_type,
)

__all__ = ["DIAGNOSTICS_MAX", "NO_LIMITS", "GraphReader", "shown_name"]

NO_LIMITS = InputLimits(**dict.fromkeys(InputLimits.__struct_fields__, sys.maxsize))
DIAGNOSTICS_MAX = 100  # reported per file; further ones are only counted
STEP_SHOWN = 160  # characters of a key in a path: every valid id is shown in full

_COUNTED: Mapping[Any, str] = {  # and the field of `InputLimits` with the maximum number
    LaneSpec: "lanes",
    ComponentSpec: "components",
    EdgeSpec: "edges",
    CompositeLoopSpec: "composite_loops",
}
_NAMED = {ComponentSpec, EdgeSpec, CompositeLoopSpec, SubgraphFile, Template, Instance}  # list items with an id
_LOCATED = {GraphInfo, LaneSpec, *_NAMED}  # `GraphReader.lines` has their lines
_NEW_IN_VERSION_2: Mapping[Any, tuple[str, ...]] = {
    LaneSpec: VERSION_2_FIELDS["lanes"],
    ExecutionSpec: VERSION_2_FIELDS["execution"],
    GraphInfo: VERSION_2_FIELDS["graph"],
}
_NEEDS_COMPONENTS = {SubgraphFile, Template}


class GraphReader(StructReader):
    """Reads the values of one file. `found` are its problems so far, `lines` the lines of its parts by path."""

    def __init__(self, limits: InputLimits, version: Literal[1, 2], *, null_is_missing: bool = True) -> None:
        super().__init__(null_is_missing=null_is_missing)
        self.found: list[Diagnostic] = []
        self.lines: dict[str, int] = {}
        self.values_filled = 0  # by template instances so far
        self._limits = limits
        self._version = version
        self._line: int | None = None  # of the innermost mapping
        self._code = "graph_validation_error"  # of a value that does not fit
        self._parameters: Mapping[str, Scalar] | None = None  # inside a template instance

    def read_file(self, root: Section) -> dict[str, Any]:
        """Return the valid contents of the top level, by field of `GraphFile`."""
        return self.read_fields(struct_type(GraphFile), root)

    def fill_template(self, instance: Instance, template: Template) -> Part:
        """Return the contents of the template with its placeholders replaced by the parameters of the instance."""
        self._parameters, self._steps = instance.parameters, ["template_instances", instance.id]
        contents = {name: getattr(template, name) for name in Part.__struct_fields__}
        given = self.read_fields(struct_type(Part), contents)
        self._parameters, self._steps = None, []
        return Part(**given)

    def report(
        self,
        message: str,
        path: str,
        *,
        line: int | None = None,
        code: str = "graph_validation_error",
        fix: str | None = None,
    ) -> None:
        """Add a problem of the file."""
        self.found.append(Diagnostic.of(code, message, path, line=line, fix=fix))

    # --- the walk -----------------------------------------------------------------------------------

    def read_fields(self, kind: StructType, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return the valid fields of a mapping."""
        outer, line = self._line, _line(value)
        self._line = line or outer
        if line is not None and kind.kind in _LOCATED:
            self.lines[self._path()] = line
        if kind.kind is ComponentSpec and self._version > 1:
            value = _with_agent_fields(value)
        given = super().read_fields(kind, value)
        if self._version == 1:
            self._check_version(kind, value)
        if kind.kind in _NEEDS_COMPONENTS and value.get("components") == []:
            self._add_missing("components", kind)
        self._line = outer
        return given

    def _check_version(self, kind: StructType, value: Mapping[str, Any]) -> None:
        """Report every version 2 field in a version 1 file, even if it is set to its default."""
        for name in _NEW_IN_VERSION_2.get(kind.kind, ()):
            if value.get(name) is not None:
                fix = f"{name} requires schema version 2: set schema_version: 2."
                self._report(f"unexpected field {self._path(name)} in schema_version 1", name, fix=fix)

    def _read(self, kind: ValueType, value: Any) -> Any:
        if self._parameters is not None:
            value = self._filled(value)
        if isinstance(value, str) and not self._check_text(value):
            return INVALID
        if "code" not in kind.notes:
            return super()._read(kind, value)
        outer, self._code = self._code, kind.notes["code"]
        found = super()._read(kind, value)
        self._code = outer
        return found

    def _filled(self, value: Any) -> Any:
        self.values_filled += 1
        return fill_text(value, self._parameters or {}) if isinstance(value, str) else value

    def _read_table(self, kind: TableType, value: Mapping[str, Any]) -> Any:
        if isinstance(kind.item, AnyType):
            return self._read_free_form(value)
        outer = self._line
        self._line = _line(value) or outer
        given = super()._read_table(kind, value)
        self._line = outer
        return given

    def _read_free_form(self, value: Mapping[str, Any]) -> dict[str, Any]:
        given = {}
        for key, item in value.items():
            self._steps.append(key)
            self._check_text(key)
            given[key] = self._copy(item)
            size, limits = _json_bytes(given[key]), self._limits
            if size is None:
                self._add("the string is not valid UTF-8")
            elif size > limits.config_value_bytes:
                self._add(f"value exceeds limit {limits.config_value_bytes} bytes")
            if _depth(item) >= limits.config_depth:
                self._add(f"nesting exceeds limit {limits.config_depth}")
            self._steps.pop()
        return given

    def _copy(self, value: Any) -> Any:
        """Return a free-form value with the placeholders of a template instance replaced."""
        if isinstance(value, dict):
            return {key: self._copy(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._copy(item) for item in value]
        return value if self._parameters is None else self._filled(value)

    def _read_any(self, value: Any) -> Any:
        """Check the strings in a template. The values are read when an instance fills them."""
        if isinstance(value, str):
            self._check_text(value)
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for step, item in items:
            self._steps.append(step if isinstance(step, str) else self._name_of(step, item))
            if isinstance(step, str):
                self._check_text(step)
            self._read_any(item)
            self._steps.pop()
        return value

    # --- names and limits ---------------------------------------------------------------------------

    def _item_step(self, kind: ListType, at: int, item: Any) -> str | int:
        in_template = isinstance(kind.item, AnyType)
        return self._name_of(at, item) if in_template or _struct(kind.item) in _NAMED else at

    def _name_of(self, at: int, item: Any) -> str:
        """Return the name of a list item in a path: its id, or its position if it has none."""
        name = item.get("id") if isinstance(item, dict) else None
        if isinstance(name, str) and self._parameters is not None:
            name = fill_text(name, self._parameters)
        return name if isinstance(name, str) and name else f"[{at}]"

    def _is_too_long(self, kind: ListType | TableType, length: int) -> bool:
        limit_name = _COUNTED.get(_struct(kind.item))
        if limit_name is None or length <= (limit := getattr(self._limits, limit_name)):
            return False
        self._report(f"runtime graph.{self._path()} count exceeds limit {limit}", fix="Split the graph in two.")
        return True

    def _check_text(self, text: str) -> bool:
        """Report a string that cannot be encoded or is too long; return whether it is accepted."""
        size, limit = _utf8_bytes(text), self._limits.string_bytes
        if size is None:
            self._add("the string is not valid UTF-8")
        elif size > limit:
            self._add(f"string exceeds limit {limit} bytes")
        else:
            return True
        return False

    # --- diagnostics --------------------------------------------------------------------------------

    def _problem_count(self) -> int:
        return len(self.found)

    def _path(self, *more: str) -> str:
        return ".".join(map(shown_name, (*self._steps, *more)))

    def _report(self, message: str, *more: str, code: str = "graph_validation_error", fix: str | None = None) -> None:
        self.report(message, self._path(*more), line=self._line, code=code, fix=fix)

    def _add(self, message: str) -> None:
        self._report(f"{self._path()}: {message}")

    def _add_mismatch(self, expected: ValueType, value: Any) -> None:
        path, found, outer = self._path(), describe_value(value, "mapping"), self._line
        self._line = _line(value) or outer
        if path == "schema_version":
            self._report("schema_version must be 1 or 2", fix="Set schema_version: 1 or schema_version: 2.")
        elif isinstance(expected, ChoiceType):
            fix = f"{self._suggestion(value, expected.choices)}Use one of these values."
            self._report(f"{path}: must be {expected.describe()}, not {found}", code=self._code, fix=fix)
        else:
            self._report(f"{path}: expected {expected.describe('mapping')}, found {found}", code=self._code)
        self._line = outer

    def _add_missing(self, key: str, kind: StructType) -> None:  # noqa: ARG002  # the path says which field it is
        fix = "Add the field." if self._steps else f"Add {key} at the top of the file."
        self._report(f"{self._path(key)} is required", key, fix=fix)

    def _add_unknown(self, key: str, kind: StructType) -> None:
        fix = f"{self._suggestion(key, kind.fields)}The fields are: {', '.join(kind.fields)}."
        self._report(f"unexpected field {self._path(key)}", key, fix=fix)

    def _suggestion(self, given: Any, known: Iterable[str]) -> str:
        if not isinstance(given, str) or len(self.found) >= DIAGNOSTICS_MAX:  # comparing names is slow
            return ""
        similar = closest(given, known)
        return f"Did you mean {similar}? " if similar else ""


def _with_agent_fields(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a component with the type and the lane that one that is an agent may leave out."""
    found = completed_fields(value)
    if not found:
        return value
    lane = {"lane": found.pop("lane")} if "lane" in found else {}
    execution = Section(_line(value["execution"]))
    execution.update({**value["execution"], **lane})
    return {**value, **found, "execution": execution}


def _line(value: Any) -> int | None:
    return value.line if isinstance(value, Section) else None


def _struct(kind: ValueType) -> type[msgspec.Struct] | None:
    return kind.kind if isinstance(kind, StructType) else None


def shown_name(step: str | int) -> str:
    """Return a key or an id as paths and messages show it: encodable, and of limited length."""
    text = str(step) or '""'
    if _utf8_bytes(text) is None:
        text = text.encode("ascii", "backslashreplace").decode()
    return text if len(text) <= STEP_SHOWN else text[:STEP_SHOWN] + "…"


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
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value), default=0)

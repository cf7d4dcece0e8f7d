"""Load a graph file into a `GraphSpec`.

    document    text to plain values, within the input limits; the only part that sees untrusted text
    conversion  each lane, component, edge and loop to its struct
    expansion   subgraphs and templates to a flat graph

Loading stops at the first problem only while the text itself is unreadable or exceeds a size limit. After that, the
loader converts every section on its own and reports all problems together, each with its path and, for YAML, its line.

A loaded graph is well-formed, not yet valid: `compiler.check` checks that edges lead to existing ports, cycles have
loops, and so on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from rota.errors import GraphInvalid
from rota.graph.conversion import convert, unknown_field
from rota.graph.diagnostics import Diagnostic
from rota.graph.document import Format, InputLimits, Section, invalid_file, item_name, normalize, read_document
from rota.graph.expansion import (
    Instance,
    Part,
    Template,
    add_prefix,
    check_parameters,
    check_placeholders,
    count_values,
    fill_template,
    join_parts,
    namespace_of,
)
from rota.graph.spec import (
    ID_PATTERN,
    VERSION_2_FIELDS,
    ComponentSpec,
    CompositeLoopSpec,
    EdgeSpec,
    GraphInfo,
    GraphSpec,
    LaneSpec,
    Namespace,
)

__all__ = ["DIAGNOSTICS_MAX", "LoadedGraph", "load", "load_mapping", "load_text", "read_graph"]

DIAGNOSTICS_MAX = 100  # reported per file; further ones are only counted
REQUIRED = ("schema_version", "graph", "lanes", "components", "edges")
OPTIONAL = ("composite_loops", "subgraphs", "templates", "template_instances")
SUBGRAPH_REQUIRED = ("id", "components", "edges")
SUBGRAPH_FIELDS = (*SUBGRAPH_REQUIRED, "composite_loops")

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class LoadedGraph(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded graph, and the line of each of its parts: `components.sink` to 14."""

    spec: GraphSpec
    lines: Mapping[str, int] = {}

    def with_lines(self, diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
        """Return the diagnostics, each with the line of the innermost part on its path."""
        return tuple(msgspec.structs.replace(each, line=self._line(each)) for each in diagnostics)

    def _line(self, diagnostic: Diagnostic) -> int | None:
        path = diagnostic.graph_path
        while path and diagnostic.line is None:
            if path in self.lines:
                return self.lines[path]
            path = path.rpartition(".")[0]
        return diagnostic.line


def load(path: str | Path, *, limits: InputLimits | None = None) -> GraphSpec:
    """Load a graph file. A file name that ends in `.json` is read as JSON, any other as YAML."""
    return read_graph(path, limits=limits).spec


def read_graph(path: str | Path, *, limits: InputLimits | None = None) -> LoadedGraph:
    """Load a graph file together with its line numbers."""
    limits = limits or InputLimits()
    try:
        with Path(path).open("rb") as file:
            data = file.read(limits.graph_input_bytes + 1)  # one byte over the limit is enough to refuse the file
    except OSError as problem:
        raise invalid_file(f"cannot read the graph file {path}: {problem.strerror}") from None
    return _Loader(limits).load(read_document(data, limits, "json" if Path(path).suffix == ".json" else "yaml"))


def load_text(text: bytes | str, *, limits: InputLimits | None = None, form: Format | None = None) -> GraphSpec:
    """Load a graph from YAML or JSON text."""
    limits = limits or InputLimits()
    return _Loader(limits).load(read_document(text, limits, form)).spec


def load_mapping(document: Mapping[str, Any], *, limits: InputLimits | None = None) -> GraphSpec:
    """Load a graph from a dictionary, with the same checks as for a file."""
    try:
        text = msgspec.json.encode(document)
    except (TypeError, ValueError, OverflowError, RecursionError) as problem:
        raise invalid_file(f"the dictionary cannot be encoded as JSON: {problem}") from None
    return load_text(text, limits=limits, form="json")


class _Loader:
    """Converts one document and collects its diagnostics."""

    def __init__(self, limits: InputLimits) -> None:
        self._limits = limits
        self._found: list[Diagnostic] = []
        self._lines: dict[str, int] = {}
        self._version: Literal[1, 2] = 1
        self._items_so_far: Counter[str] = Counter()  # per kind, in the graph and in its expanded parts
        self._values_filled = 0  # by template instances so far

    def load(self, root: Section) -> LoadedGraph:
        """Return the graph, or raise `GraphInvalid` with every problem of the document."""
        root, too_long = normalize(root, self._limits)
        if too_long:
            raise _invalid(too_long)  # paths and ids with these strings would be useless in further diagnostics
        self._root_fields(root)
        self._schema_version(root)
        info = self._convert(root["graph"], GraphInfo, "graph") if "graph" in root else None
        if info is not None:
            self._check_identifier(info.name, "graph.name")
        lanes = self._lanes(root)
        whole, hierarchy = self._parts(root)
        if self._found or info is None:
            raise _invalid(self._found)
        spec = GraphSpec(
            schema_version=self._version,
            graph=info,
            lanes=lanes,
            components=whole.components,
            edges=whole.edges,
            composite_loops=whole.composite_loops,
            hierarchy=hierarchy,
        )
        return LoadedGraph(spec=spec, lines=self._lines)

    # --- the root and the lanes -------------------------------------------------------------------

    def _root_fields(self, root: Section) -> None:
        known = REQUIRED + OPTIONAL
        self._found += [unknown_field("", name, known, root.line) for name in root if name not in known]
        for name in REQUIRED:
            if name not in root:
                self._report(f"{name} is required", name, root.line, fix=f"Add {name} at the top of the file.")

    def _schema_version(self, root: Section) -> None:
        version = root.get("schema_version", 1)
        if type(version) is not int or version not in {1, 2}:
            self._report(
                "schema_version must be 1 or 2",
                "schema_version",
                root.line,
                fix="Set schema_version: 1 or schema_version: 2.",
            )
        else:
            self._version = 2 if version == 2 else 1  # noqa: PLR2004  # 2 is the version's name

    def _lanes(self, root: Section) -> dict[str, LaneSpec]:
        section = root.get("lanes", Section())
        if not isinstance(section, Section):
            self._report("lanes must be a mapping of id to lane", "lanes", root.line)
            return {}
        lanes = {}
        if self._within_limit("lanes", len(section), self._limits.lanes):
            for name, value in section.items():
                self._check_identifier(name, f"lanes.{name}")
                self._check_version_fields(value, "lanes", f"lanes.{name}")
                if lane := self._convert(value, LaneSpec, f"lanes.{name}"):
                    lanes[name] = lane
        return lanes

    # --- components, edges and loops, of the graph and of its parts -------------------------------

    def _parts(self, root: Section) -> tuple[Part, tuple[Namespace, ...]]:
        """Return the complete, flat graph, and the ids that each subgraph and template instance added."""
        parts = [self._part(root, "")]
        self._add_to_totals(parts[0])
        hierarchy: list[Namespace] = []
        for path, name, template, section in chain(self._subgraphs(root), self._instances(root)):
            local = self._part(section, path)
            part = add_prefix(local, name)
            parts.append(part)
            hierarchy.append(namespace_of(part, name, template))
            self._record_lines(path, name, local)
            if not self._add_to_totals(part):
                break
        self._check_unique([each.id for each in hierarchy], "subgraphs")
        whole = join_parts(parts)
        for kind, items in whole.sections():
            for item in items:
                self._check_identifier(item.id, f"{kind}.{item.id}")
        return whole, tuple(hierarchy)

    def _part(self, section: Section, path: str) -> Part:
        limits = self._limits
        return Part(
            components=self._items(section, "components", ComponentSpec, path, limits.components),
            edges=self._items(section, "edges", EdgeSpec, path, limits.edges),
            composite_loops=self._items(section, "composite_loops", CompositeLoopSpec, path, limits.composite_loops),
        )

    def _items(self, section: Section, name: str, kind: type[_Struct], path: str, limit: int) -> tuple[_Struct, ...]:
        """Return the items of one list as structs."""
        place = f"{path}.{name}" if path else name
        values = self._list(section, name, place)
        items: list[_Struct] = []
        if self._within_limit(place, len(values), limit):
            for at, value in enumerate(values):
                item_path = f"{place}.{item_name(value, at)}"
                if kind is ComponentSpec and isinstance(value, Section):
                    self._check_version_fields(value.get("execution"), "execution", f"{item_path}.execution")
                if item := self._convert(value, kind, item_path):
                    items.append(item)
        return tuple(items)

    def _list(self, section: Section, name: str, place: str) -> list[Any]:
        values = section.get(name, [])
        if not isinstance(values, list):
            self._report(f"{place} must be a sequence", place, section.line)
            return []
        return values

    # --- subgraphs and templates ------------------------------------------------------------------

    def _subgraphs(self, root: Section) -> Iterator[tuple[str, str, str, Section]]:
        """Yield the path, the id, "" and the contents of each subgraph."""
        for at, value in enumerate(self._list(root, "subgraphs", "subgraphs")):
            path = f"subgraphs.{item_name(value, at)}"
            if not isinstance(value, Section):
                self._report(f"{path} must be a mapping", path, root.line)
                continue
            unknown = [name for name in value if name not in SUBGRAPH_FIELDS]
            self._found += [unknown_field(path, name, SUBGRAPH_FIELDS, value.line) for name in unknown]
            for name in SUBGRAPH_REQUIRED:
                if name not in value or (name != "edges" and not value[name]):
                    self._report(f"{path}.{name} is required", f"{path}.{name}", value.line, fix="Add the field.")
            if isinstance(value.get("id"), str):
                yield path, value["id"], "", value

    def _instances(self, root: Section) -> Iterator[tuple[str, str, str, Section]]:
        """Yield the path, the id, the template's id and the filled contents of each template instance."""
        templates = self._templates(root)
        sizes = {
            name: count_values([each.components, each.edges, each.composite_loops])
            for name, each in templates.items()
            if each is not None
        }
        for at, value in enumerate(self._list(root, "template_instances", "template_instances")):
            path = f"template_instances.{item_name(value, at)}"
            instance = self._convert(value, Instance, path)
            if instance and instance.template not in templates:
                self._report(f"{path}: unknown template {instance.template}", f"{path}.template", _line(value))
            template = templates.get(instance.template) if instance else None
            if instance is None or template is None:
                continue
            problems = list(check_parameters(instance, template, path))
            self._found += problems
            if problems:
                continue
            if not self._count_filled(sizes[template.id]):
                return
            section, too_long = normalize(fill_template(template, instance.parameters), self._limits, path)
            self._found += too_long  # a filled string may exceed its limit
            yield path, instance.id, template.id, section

    def _templates(self, root: Section) -> dict[str, Template | None]:
        """Return the templates by id. An invalid template is reported here, even if it is unused, and is None."""
        values = self._list(root, "templates", "templates")
        self._check_unique([item_name(value, at) for at, value in enumerate(values)], "templates")
        templates: dict[str, Template | None] = {}
        for at, value in enumerate(values):
            path = f"templates.{item_name(value, at)}"
            template = self._convert(value, Template, path)
            if template is None:
                templates[item_name(value, at)] = None
                continue
            if not template.components:
                self._report(f"{path}.components is required", f"{path}.components", _line(value), fix="Add the field.")
            problems = list(check_placeholders(template, path))
            self._found += problems
            templates[template.id] = None if problems else template
        return templates

    def _count_filled(self, values: int) -> bool:
        """Add the values of one more instance to the total; return whether it is within the limit.

        Without this limit, many instances of a large template could exhaust memory, like an alias bomb.
        """
        self._values_filled += values
        if self._values_filled <= self._limits.values:
            return True
        limit = self._limits.values
        self._report(f"the template instances expand to more values than the limit {limit}", "template_instances", None)
        return False

    def _record_lines(self, path: str, name: str, local: Part) -> None:
        """Record the line of each expanded item under its prefixed id."""
        for kind, items in local.sections():
            for item in items:
                if (line := self._lines.get(f"{path}.{kind}.{item.id}")) is not None:
                    self._lines[f"{kind}.{name}.{item.id}"] = line

    # --- limits and ids ---------------------------------------------------------------------------

    def _within_limit(self, place: str, count: int, limit: int) -> bool:
        if count > limit:
            self._report(
                f"runtime graph.{place} count exceeds limit {limit}", place, None, fix="Split the graph in two."
            )
        return count <= limit

    def _add_to_totals(self, part: Part) -> bool:
        """Add the items of a part to the totals; return whether the graph is still within its limits."""
        limits = {
            "components": self._limits.components,
            "edges": self._limits.edges,
            "composite_loops": self._limits.composite_loops,
        }
        self._items_so_far.update({kind: len(items) for kind, items in part.sections()})
        return all(self._within_limit(kind, self._items_so_far[kind], limit) for kind, limit in limits.items())

    def _check_identifier(self, name: str, path: str) -> None:
        limit = self._limits.identifier_bytes
        if len(name.encode()) > limit:
            self._report(f"{path[:80]}…: identifier exceeds limit {limit} bytes", path, self._lines.get(path))
        elif not ID_PATTERN.fullmatch(name):
            message = f"{path!a}: an identifier must not be empty or contain control characters"
            self._report(message, path, self._lines.get(path))

    def _check_unique(self, names: Sequence[str], place: str) -> None:
        for name, times in Counter(names).items():
            if times > 1:
                self._found.append(Diagnostic.of("duplicate_id", f"{place}: duplicate id {name}", f"{place}.{name}"))

    # --- converting a value -----------------------------------------------------------------------

    def _check_version_fields(self, value: Any, section: str, path: str) -> None:
        """Report every version 2 field in a version 1 file, even if it is set to its default."""
        if self._version == 1 and isinstance(value, Section):
            for name in VERSION_2_FIELDS[section]:
                if name in value:
                    self._report(
                        f"unexpected field {path}.{name} in schema_version 1",
                        f"{path}.{name}",
                        value.line,
                        fix=f"{name} requires schema version 2: set schema_version: 2.",
                    )

    def _convert(self, value: Any, kind: type[_Struct], path: str) -> _Struct | None:
        line = _line(value)
        if line is not None:
            self._lines[path] = line
        converted = convert(value, kind, path, line)
        if isinstance(converted, Diagnostic):
            self._found.append(converted)
            return None
        return converted

    def _report(self, message: str, path: str, line: int | None, *, fix: str | None = None) -> None:
        self._found.append(Diagnostic.of("graph_validation_error", message, path, line=line, fix=fix))


def _invalid(found: Sequence[Diagnostic]) -> GraphInvalid:
    shown = list(found[:DIAGNOSTICS_MAX])
    if len(found) > DIAGNOSTICS_MAX:
        shown.append(Diagnostic.of("diagnostic_note", f"{len(found) - DIAGNOSTICS_MAX:,} more problems are not shown"))
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return GraphInvalid(f"{found[0].message}{more}", diagnostics=shown, hint=found[0].suggested_fix)


def _line(value: Any) -> int | None:
    return value.line if isinstance(value, Section) else None

"""A graph file to a `GraphSpec`.

    document   text to plain values; hostile input ends here
    tidy       every text within its limit
    fitting    each lane, component, edge and loop to its structure
    expansion  subgraphs and templates to a flat graph

Reading stops early only while the text itself cannot be read or kept. After that every section is held against its
structure by itself and all that is wrong is reported together, each with its path and, for YAML, its line.

What is loaded is a well-formed graph, not yet a sensible one: whether edges lead somewhere and cycles have owners is
for `compiler.check`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from rota.errors import GraphInvalid
from rota.graph.diagnostics import Diagnostic
from rota.graph.document import Format, InputLimits, Section, read, refuse
from rota.graph.expansion import (
    Instance,
    Part,
    Template,
    check_parameters,
    check_placeholders,
    filled,
    joined,
    namespace,
    prefixed,
    values_in,
)
from rota.graph.fitting import fit, unknown_field
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
from rota.graph.tidy import name_of, tidied

__all__ = ["DIAGNOSTICS_MAX", "Loaded", "load", "load_mapping", "load_text", "read_graph"]

DIAGNOSTICS_MAX = 100  # of one file; further ones are counted
REQUIRED = ("schema_version", "graph", "lanes", "components", "edges")
OPTIONAL = ("composite_loops", "subgraphs", "templates", "template_instances")
SUBGRAPH_REQUIRED = ("id", "components", "edges")
SUBGRAPH_FIELDS = (*SUBGRAPH_REQUIRED, "composite_loops")

_Shape = TypeVar("_Shape", bound=msgspec.Struct)


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A graph, and the lines its parts begin on: `components.sink` to 14."""

    spec: GraphSpec
    lines: Mapping[str, int] = {}

    def located(self, diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
        """The diagnostics, each with the line of the nearest part its path names."""
        return tuple(msgspec.structs.replace(each, line=self._line(each)) for each in diagnostics)

    def _line(self, diagnostic: Diagnostic) -> int | None:
        path = diagnostic.graph_path
        while path and diagnostic.line is None:
            if path in self.lines:
                return self.lines[path]
            path = path.rpartition(".")[0]
        return diagnostic.line


def load(path: str | Path, *, limits: InputLimits | None = None) -> GraphSpec:
    """The graph in a file; `.json` is read as JSON, anything else as YAML."""
    return read_graph(path, limits=limits).spec


def read_graph(path: str | Path, *, limits: InputLimits | None = None) -> Loaded:
    """The graph in a file, with its lines."""
    limits = limits or InputLimits()
    try:
        with Path(path).open("rb") as file:
            data = file.read(limits.graph_input_bytes + 1)  # one more than allowed is enough to refuse it
    except OSError as problem:
        raise refuse(f"cannot read the graph file {path}: {problem.strerror}") from None
    return _Loader(limits).load(read(data, limits, "json" if Path(path).suffix == ".json" else "yaml"))


def load_text(text: bytes | str, *, limits: InputLimits | None = None, form: Format | None = None) -> GraphSpec:
    """The graph in a text, YAML or JSON."""
    limits = limits or InputLimits()
    return _Loader(limits).load(read(text, limits, form)).spec


def load_mapping(document: Mapping[str, Any], *, limits: InputLimits | None = None) -> GraphSpec:
    """The graph in a dictionary, checked as strictly as a file."""
    try:
        text = msgspec.json.encode(document)
    except (TypeError, ValueError, OverflowError, RecursionError) as problem:
        raise refuse(f"the dictionary cannot be written as JSON: {problem}") from None
    return load_text(text, limits=limits, form="json")


class _Loader:
    """Holds one document against the structures and collects what does not fit."""

    def __init__(self, limits: InputLimits) -> None:
        self._limits = limits
        self._found: list[Diagnostic] = []
        self._lines: dict[str, int] = {}
        self._version: Literal[1, 2] = 1
        self._items_so_far: Counter[str] = Counter()  # of each kind, in the graph and the parts unfolded into it
        self._values_filled = 0  # that templates were unfolded to

    def load(self, root: Section) -> Loaded:
        """The graph that the document says, or every reason why it says none."""
        root, too_long = tidied(root, self._limits)
        if too_long:
            raise _refused(too_long)  # texts that cannot be kept cannot be compared either
        self._root_fields(root)
        self._schema_version(root)
        info = self._fit(root["graph"], GraphInfo, "graph") if "graph" in root else None
        if info is not None:
            self._identifier(info.name, "graph.name")
        lanes = self._lanes(root)
        whole, hierarchy = self._parts(root)
        if self._found or info is None:
            raise _refused(self._found)
        spec = GraphSpec(
            schema_version=self._version,
            graph=info,
            lanes=lanes,
            components=whole.components,
            edges=whole.edges,
            composite_loops=whole.composite_loops,
            hierarchy=hierarchy,
        )
        return Loaded(spec=spec, lines=self._lines)

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
                "schema_version must be 1 or 2", "schema_version", root.line, fix="Say schema_version: 1 or 2."
            )
        else:
            self._version = 2 if version == 2 else 1  # noqa: PLR2004  # the number is the version's name

    def _lanes(self, root: Section) -> dict[str, LaneSpec]:
        section = root.get("lanes", Section())
        if not isinstance(section, Section):
            self._report("lanes must be a mapping of id to lane", "lanes", root.line)
            return {}
        lanes = {}
        if self._counted("lanes", len(section), self._limits.lanes):
            for name, value in section.items():
                self._identifier(name, f"lanes.{name}")
                self._version_2_only(value, "lanes", f"lanes.{name}")
                if lane := self._fit(value, LaneSpec, f"lanes.{name}"):
                    lanes[name] = lane
        return lanes

    # --- components, edges and loops, of the graph and of its parts -------------------------------

    def _parts(self, root: Section) -> tuple[Part, tuple[Namespace, ...]]:
        """The whole graph, flat, and where its names came from."""
        parts = [self._part(root, "")]
        self._still_small_enough(parts[0])
        hierarchy: list[Namespace] = []
        for path, name, template, section in chain(self._subgraphs(root), self._instances(root)):
            local = self._part(section, path)
            part = prefixed(local, name)
            parts.append(part)
            hierarchy.append(namespace(part, name, template))
            self._keep_lines(path, name, local)
            if not self._still_small_enough(part):
                break
        self._unique([each.id for each in hierarchy], "subgraphs")
        whole = joined(parts)
        for kind, items in whole.sections():
            for item in items:
                self._identifier(item.id, f"{kind}.{item.id}")
        return whole, tuple(hierarchy)

    def _part(self, section: Section, path: str) -> Part:
        limits = self._limits
        return Part(
            components=self._items(section, "components", ComponentSpec, path, limits.components),
            edges=self._items(section, "edges", EdgeSpec, path, limits.edges),
            composite_loops=self._items(section, "composite_loops", CompositeLoopSpec, path, limits.composite_loops),
        )

    def _items(self, section: Section, name: str, kind: type[_Shape], path: str, most: int) -> tuple[_Shape, ...]:
        """Every item of one list, as structures."""
        place = f"{path}.{name}" if path else name
        values = self._list(section, name, place)
        items: list[_Shape] = []
        if self._counted(place, len(values), most):
            for at, value in enumerate(values):
                item_path = f"{place}.{name_of(value, at)}"
                if kind is ComponentSpec and isinstance(value, Section):
                    self._version_2_only(value.get("execution"), "execution", f"{item_path}.execution")
                if item := self._fit(value, kind, item_path):
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
        """Each subgraph: where it stands, its name, no template, and what is in it."""
        for at, value in enumerate(self._list(root, "subgraphs", "subgraphs")):
            path = f"subgraphs.{name_of(value, at)}"
            if not isinstance(value, Section):
                self._report(f"{path} must be a mapping", path, root.line)
                continue
            strangers = [name for name in value if name not in SUBGRAPH_FIELDS]
            self._found += [unknown_field(path, name, SUBGRAPH_FIELDS, value.line) for name in strangers]
            for name in SUBGRAPH_REQUIRED:
                if name not in value or (name != "edges" and not value[name]):
                    self._report(f"{path}.{name} is required", f"{path}.{name}", value.line, fix="Add the field.")
            if isinstance(value.get("id"), str):
                yield path, value["id"], "", value

    def _instances(self, root: Section) -> Iterator[tuple[str, str, str, Section]]:
        """Each template instance, filled when its turn comes: where it stands, its name, its template, its part."""
        templates = self._templates(root)
        sizes = {
            name: values_in([each.components, each.edges, each.composite_loops])
            for name, each in templates.items()
            if each is not None
        }
        for at, value in enumerate(self._list(root, "template_instances", "template_instances")):
            path = f"template_instances.{name_of(value, at)}"
            instance = self._fit(value, Instance, path)
            if instance and instance.template not in templates:
                self._report(f"{path} names no template: {instance.template}", f"{path}.template", _line(value))
            template = templates.get(instance.template) if instance else None
            if instance is None or template is None:
                continue
            problems = list(check_parameters(instance, template, path))
            self._found += problems
            if problems:
                continue
            if not self._affordable(sizes[template.id]):
                return
            section, too_long = tidied(filled(template, instance.parameters), self._limits, path)
            self._found += too_long  # a filled text may have grown past its limit
            yield path, instance.id, template.id, section

    def _templates(self, root: Section) -> dict[str, Template | None]:
        """The templates by id; one with a fault is reported here, though nobody may use it, and is None."""
        values = self._list(root, "templates", "templates")
        self._unique([name_of(value, at) for at, value in enumerate(values)], "templates")
        templates: dict[str, Template | None] = {}
        for at, value in enumerate(values):
            path = f"templates.{name_of(value, at)}"
            template = self._fit(value, Template, path)
            if template is None:
                templates[name_of(value, at)] = None
                continue
            if not template.components:
                self._report(f"{path}.components is required", f"{path}.components", _line(value), fix="Add the field.")
            problems = list(check_placeholders(template, path))
            self._found += problems
            templates[template.id] = None if problems else template
        return templates

    def _affordable(self, values: int) -> bool:
        """Whether so many values more may be filled: many instances of a large template are a bomb like any other."""
        self._values_filled += values
        if self._values_filled <= self._limits.values:
            return True
        most = self._limits.values
        self._report(f"the templates unfold to more values than the limit {most}", "template_instances", None)
        return False

    def _keep_lines(self, path: str, name: str, local: Part) -> None:
        """An expanded item keeps the line it was written on."""
        for kind, items in local.sections():
            for item in items:
                if (line := self._lines.get(f"{path}.{kind}.{item.id}")) is not None:
                    self._lines[f"{kind}.{name}.{item.id}"] = line

    # --- limits and names -------------------------------------------------------------------------

    def _counted(self, place: str, count: int, most: int) -> bool:
        if count > most:
            self._report(
                f"runtime graph.{place} count exceeds limit {most}", place, None, fix="Split the graph in two."
            )
        return count <= most

    def _still_small_enough(self, part: Part) -> bool:
        """Whether the graph is within its limits after this part was unfolded into it."""
        most = {
            "components": self._limits.components,
            "edges": self._limits.edges,
            "composite_loops": self._limits.composite_loops,
        }
        self._items_so_far.update({kind: len(items) for kind, items in part.sections()})
        return all(self._counted(kind, self._items_so_far[kind], limit) for kind, limit in most.items())

    def _identifier(self, name: str, path: str) -> None:
        most = self._limits.identifier_bytes
        if len(name.encode()) > most:
            self._report(f"{path[:80]}…: identifier exceeds limit {most} bytes", path, self._lines.get(path))
        elif not ID_PATTERN.fullmatch(name):
            message = f"{path!a}: an identifier must not be empty or hold control characters"
            self._report(message, path, self._lines.get(path))

    def _unique(self, names: Sequence[str], place: str) -> None:
        for name, times in Counter(names).items():
            if times > 1:
                self._found.append(Diagnostic.of("duplicate_id", f"{place} has the id {name} twice", f"{place}.{name}"))

    # --- holding a value against its structure ----------------------------------------------------

    def _version_2_only(self, value: Any, section: str, path: str) -> None:
        """Version 1 is strict about what came after it, also where the value is the default."""
        if self._version == 1 and isinstance(value, Section):
            for name in VERSION_2_FIELDS[section]:
                if name in value:
                    self._report(
                        f"unexpected field {path}.{name} in schema_version 1",
                        f"{path}.{name}",
                        value.line,
                        fix=f"{name} belongs to schema version 2: say schema_version: 2.",
                    )

    def _fit(self, value: Any, kind: type[_Shape], path: str) -> _Shape | None:
        line = _line(value)
        if line is not None:
            self._lines[path] = line
        shaped = fit(value, kind, path, line)
        if isinstance(shaped, Diagnostic):
            self._found.append(shaped)
            return None
        return shaped

    def _report(self, message: str, path: str, line: int | None, *, fix: str | None = None) -> None:
        self._found.append(Diagnostic.of("graph_validation_error", message, path, line=line, fix=fix))


def _refused(found: Sequence[Diagnostic]) -> GraphInvalid:
    shown = list(found[:DIAGNOSTICS_MAX])
    if len(found) > DIAGNOSTICS_MAX:
        shown.append(Diagnostic.of("diagnostic_note", f"{len(found) - DIAGNOSTICS_MAX:,} more problems are not shown"))
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return GraphInvalid(f"{found[0].message}{more}", diagnostics=shown, hint=found[0].suggested_fix)


def _line(value: Any) -> int | None:
    return value.line if isinstance(value, Section) else None

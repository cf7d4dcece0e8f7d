"""Load a graph file into a `GraphSpec`.

    document      text to plain values, within the input limits; the only part that sees untrusted text
    graph_reader  values to structs: one walk, which reports everything that does not fit
    expansion     subgraphs and templates to a flat graph

Loading stops at the first problem only while the text itself is unreadable or exceeds a size limit. After that, the
loader reports all problems together, each with its path and, for YAML, its line.

A loaded graph is well-formed, not yet valid: `compiler.check` checks that edges lead to existing ports, cycles have
loops, and so on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import msgspec

from rota.errors import GraphInvalid
from rota.graph.agent_components import completed
from rota.graph.diagnostics import Diagnostic
from rota.graph.document import Format, InputLimits, Section, invalid_file, read_document
from rota.graph.expansion import (
    Instance,
    Part,
    Template,
    add_prefix,
    join_parts,
    namespace_of,
    parameter_problems,
    placeholder_problems,
)
from rota.graph.graph_reader import DIAGNOSTICS_MAX, GraphReader, shown_name
from rota.graph.spec import GraphSpec, Namespace

__all__ = ["LoadedGraph", "load", "load_mapping", "load_text", "read_graph"]


class LoadedGraph(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded graph, and the line of each of its parts: `components.sink` to 14."""

    spec: GraphSpec
    lines: Mapping[str, int] = {}

    def with_lines(self, diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
        """Return the diagnostics, each with the line of the innermost part on its path."""
        return tuple(msgspec.structs.replace(each, line=self._line(each)) for each in diagnostics)

    def _line(self, diagnostic: Diagnostic) -> int | None:
        return _innermost_line(self.lines, diagnostic.graph_path) if diagnostic.line is None else diagnostic.line


def _innermost_line(lines: Mapping[str, int], path: str) -> int | None:
    """Return the line of the innermost part on a path that has one."""
    while path and path not in lines:
        path = path.rpartition(".")[0]
    return lines.get(path)


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
    return _Loader(read_document(data, limits, "json" if Path(path).suffix == ".json" else "yaml"), limits).load()


def load_text(text: bytes | str, *, limits: InputLimits | None = None, form: Format | None = None) -> GraphSpec:
    """Load a graph from YAML or JSON text."""
    limits = limits or InputLimits()
    return _Loader(read_document(text, limits, form), limits).load().spec


def load_mapping(document: Mapping[str, Any], *, limits: InputLimits | None = None) -> GraphSpec:
    """Load a graph from a dictionary, with the same checks as for a file."""
    try:
        text = msgspec.json.encode(document)
    except (TypeError, ValueError, OverflowError, RecursionError) as problem:
        raise invalid_file(f"the dictionary cannot be encoded as JSON: {problem}") from None
    return load_text(text, limits=limits, form="json")


class _Loader:
    """Reads one document, expands it and collects its diagnostics."""

    def __init__(self, root: Section, limits: InputLimits) -> None:
        self._root = root
        self._limits = limits
        self._version: Literal[1, 2] = 2 if root.get("schema_version") == 2 else 1  # noqa: PLR2004  # its name
        self._reader = GraphReader(limits, self._version)
        self._items_so_far: Counter[str] = Counter()  # per kind, in the graph and in its expanded parts

    def load(self) -> LoadedGraph:
        """Return the graph, or raise `GraphInvalid` with every problem of the document."""
        given = self._reader.read_file(self._root)
        whole, hierarchy = self._parts(given)
        self._check_ids(given, whole)
        if self._reader.found:
            raise _invalid(self._reader.found)
        spec = GraphSpec(
            schema_version=self._version,
            graph=given["graph"],
            lanes=given["lanes"],
            components=whole.components,
            edges=whole.edges,
            composite_loops=whole.composite_loops,
            hierarchy=hierarchy,
        )
        return LoadedGraph(spec=completed(spec), lines=self._reader.lines)

    # --- subgraphs and templates ------------------------------------------------------------------

    def _parts(self, given: Mapping[str, Any]) -> tuple[Part, tuple[Namespace, ...]]:
        """Return the complete, flat graph, and the ids that each subgraph and template instance added."""
        parts = [Part(**{name: given[name] for name in Part.__struct_fields__ if name in given})]
        self._add_to_totals(parts[0])
        hierarchy: list[Namespace] = []
        for path, name, template, local in chain(_subgraphs(given), self._instances(given)):
            part = add_prefix(local, name)
            parts.append(part)
            hierarchy.append(namespace_of(part, name, template))
            self._record_lines(path, name, local)
            if not self._add_to_totals(part):
                break
        self._check_unique("subgraphs", "subgraphs", "template_instances")
        return join_parts(parts), tuple(hierarchy)

    def _instances(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Part]]:
        """Yield the path, the id, the template's id and the filled contents of each template instance."""
        templates, limit = self._templates(given), self._limits.values
        for instance in given.get("template_instances", ()):
            path = f"template_instances.{instance.id}"
            template = templates.get(instance.template)
            if template is None:
                if instance.template not in self._names("templates"):  # an invalid one has been reported already
                    self._report(f"{path}: unknown template {instance.template}", f"{path}.template")
            elif self._has_parameters(instance, template, path):
                contents = self._reader.fill_template(instance, template)
                yield path, instance.id, template.id, contents
            # without this limit, many instances of a large template could exhaust memory, like an alias bomb
            if self._reader.values_filled > limit:
                message = f"the template instances expand to more values than the limit {limit}"
                self._reader.report(message, "template_instances")
                return

    def _templates(self, given: Mapping[str, Any]) -> dict[str, Template]:
        """Return the usable templates by id. Wrong placeholders are reported even if the template is unused."""
        self._check_unique("templates", "templates")
        usable = {}
        for template in given.get("templates", ()):
            path = f"templates.{template.id}"
            problems = placeholder_problems(template)
            for problem in problems:
                fix = "Add the name to the template's parameters, or correct the placeholder."
                self._report(f"template {template.id}: {problem}", path, fix=fix)
            if not problems:
                usable[template.id] = template
        return usable

    def _has_parameters(self, instance: Instance, template: Template, path: str) -> bool:
        problems = list(parameter_problems(instance, template))
        for name, problem, fix in problems:
            self._report(f"template instance {instance.id}: {problem}", f"{path}.parameters.{name}", fix=fix)
        return not problems

    def _record_lines(self, path: str, name: str, local: Part) -> None:
        """Record the line of each expanded item under its prefixed id."""
        lines = self._reader.lines
        for kind, items in local.sections():
            for item in items:
                if (line := lines.get(f"{path}.{kind}.{item.id}")) is not None:
                    lines[f"{kind}.{name}.{item.id}"] = line

    # --- limits and ids ---------------------------------------------------------------------------

    def _add_to_totals(self, part: Part) -> bool:
        """Add the items of a part to the totals; return whether the graph is still within its limits."""
        within = True
        for kind, items in part.sections():
            self._items_so_far[kind] += len(items)
            if self._items_so_far[kind] > (limit := getattr(self._limits, kind)):
                fix = "Split the graph in two."
                self._reader.report(f"runtime graph.{kind} count exceeds limit {limit}", kind, fix=fix)
                within = False
        return within

    def _check_ids(self, given: Mapping[str, Any], whole: Part) -> None:
        """Report the ids that are too long; an expanded id includes its prefix."""
        if "graph" in given:
            self._check_id(given["graph"].name, "graph.name")
        for name in given.get("lanes", ()):
            self._check_id(name, "lanes", name)
        for kind, items in whole.sections():
            for item in items:
                self._check_id(item.id, kind, item.id)

    def _check_id(self, name: str, *path: str) -> None:
        limit = self._limits.identifier_bytes
        if len(name.encode()) > limit:
            place = ".".join(path)
            self._report(f"{place[:80]}…: identifier exceeds limit {limit} bytes", place)

    def _check_unique(self, place: str, *sections: str) -> None:
        names = Counter(name for section in sections for name in self._names(section))
        for name, times in names.items():
            if times > 1:
                self._report(f"{place}: duplicate id {name}", f"{place}.{name}", code="duplicate_id")

    def _names(self, section: str) -> list[str]:
        """Return the ids in a list of the document, also of items that are invalid."""
        items = self._root.get(section)
        ids = [item.get("id") for item in items if isinstance(item, dict)] if isinstance(items, list) else []
        return [shown_name(each) for each in ids if isinstance(each, str) and each]

    def _report(self, message: str, path: str, *, code: str = "graph_validation_error", fix: str | None = None) -> None:
        """Report a problem with the line of the innermost part on its path."""
        self._reader.report(message, path, line=_innermost_line(self._reader.lines, path), code=code, fix=fix)


def _subgraphs(given: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Part]]:
    """Yield the path, the id, "" and the contents of each subgraph."""
    for each in given.get("subgraphs", ()):
        contents = Part(components=each.components, edges=each.edges, composite_loops=each.composite_loops)
        yield f"subgraphs.{each.id}", each.id, "", contents


def _invalid(found: Sequence[Diagnostic]) -> GraphInvalid:
    shown = list(found[:DIAGNOSTICS_MAX])
    if len(found) > DIAGNOSTICS_MAX:
        shown.append(Diagnostic.of("diagnostic_note", f"{len(found) - DIAGNOSTICS_MAX:,} more problems are not shown"))
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return GraphInvalid(f"{found[0].message}{more}", diagnostics=shown, hint=found[0].suggested_fix)

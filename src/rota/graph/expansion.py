"""Expand subgraphs and templates, so that a loaded graph is flat.

A *subgraph* is a named part of the graph. Its name becomes the prefix of the ids of its components, edges and loops,
also where they are referenced inside it. Lane ids stay unchanged, because lanes belong to the whole graph:

    subgraphs:                                      components: cell.source, cell.sink
      - id: cell                                    edges:      cell.wire, from cell.source.out
        components: [{id: source, …}, {id: sink, …}]                       to   cell.sink.in
        edges: [{id: wire, from: source.out, to: sink.in, …}]

A *template* is such a part with placeholders. `{{name}}` in a string stands for a parameter; each template instance
replaces the placeholders and is then expanded like a subgraph with the instance's id. A string that consists of one
placeholder becomes the parameter's value and keeps its type, so a parameter can be a number; inside a longer string the
value is inserted as text. There are no expressions, conditions or includes: the file contains every component and edge.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from rota.graph.spec import ComponentSpec, CompositeLoopSpec, EdgeSpec, GraphInfo, Id, LaneSpec, Namespace

__all__ = [
    "GraphFile",
    "Instance",
    "Part",
    "Scalar",
    "SubgraphFile",
    "Template",
    "add_prefix",
    "fill_text",
    "join_parts",
    "namespace_of",
    "parameter_problems",
    "placeholder_problems",
]

Scalar: TypeAlias = str | int | float | bool
_PLACEHOLDER = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)


class Template(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a graph with placeholders. Its contents are checked when an instance fills them."""

    id: Id
    parameters: tuple[Id, ...] = ()
    components: list[Any]
    edges: list[Any]
    composite_loops: list[Any] = []


class Instance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An instance of a template: its id, the template, and the values of the parameters."""

    id: Id
    template: Id
    parameters: dict[str, Scalar] = {}


class SubgraphFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the graph. Its id becomes the prefix of the ids in it."""

    id: Id
    components: tuple[ComponentSpec, ...]
    edges: tuple[EdgeSpec, ...]
    composite_loops: tuple[CompositeLoopSpec, ...] = ()


class GraphFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A graph file before its subgraphs and templates are expanded."""

    schema_version: Literal[1, 2]
    graph: GraphInfo
    lanes: dict[Id, LaneSpec]
    components: tuple[ComponentSpec, ...]
    edges: tuple[EdgeSpec, ...]
    composite_loops: tuple[CompositeLoopSpec, ...] = ()
    subgraphs: tuple[SubgraphFile, ...] = ()
    templates: tuple[Template, ...] = ()
    template_instances: tuple[Instance, ...] = ()


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The components, edges and loops of a graph, a subgraph or a template instance."""

    components: tuple[ComponentSpec, ...] = ()
    edges: tuple[EdgeSpec, ...] = ()
    composite_loops: tuple[CompositeLoopSpec, ...] = ()

    def sections(self) -> tuple[tuple[str, Sequence[ComponentSpec | EdgeSpec | CompositeLoopSpec]], ...]:
        """Return the three lists with their keys in the file."""
        return ("components", self.components), ("edges", self.edges), ("composite_loops", self.composite_loops)


def join_parts(parts: Sequence[Part]) -> Part:
    """Return one part with the contents of all."""
    return Part(
        components=tuple(each for part in parts for each in part.components),
        edges=tuple(each for part in parts for each in part.edges),
        composite_loops=tuple(each for part in parts for each in part.composite_loops),
    )


# --- prefixes ------------------------------------------------------------------------------------


def add_prefix(part: Part, name: str) -> Part:
    """Return the part with the prefix `name.` on every component, edge and loop id, and on every reference to one."""

    def full(local: str) -> str:
        return f"{name}.{local}"

    replace = msgspec.structs.replace
    return Part(
        components=tuple(
            replace(each, id=full(each.id), depends_on=tuple(map(full, each.depends_on))) for each in part.components
        ),
        edges=tuple(
            replace(each, id=full(each.id), source=full(each.source), target=full(each.target)) for each in part.edges
        ),
        composite_loops=tuple(
            replace(each, id=full(each.id), components=tuple(map(full, each.components)))
            for each in part.composite_loops
        ),
    )


def namespace_of(part: Part, name: str, template: str = "") -> Namespace:
    """Return the record of an expanded part: its ids after the prefix was added."""
    return Namespace(
        id=name,
        template=template,
        components=tuple(each.id for each in part.components),
        edges=tuple(each.id for each in part.edges),
        composite_loops=tuple(each.id for each in part.composite_loops),
    )


# --- placeholders --------------------------------------------------------------------------------


def placeholder_problems(template: Template) -> list[str]:
    """Return what is wrong with the placeholders of a template: unknown, malformed or misplaced ones."""
    contents = [template.components, template.edges, template.composite_loops]
    found = (_problems(text, is_key, template.parameters) for text, is_key in _strings(contents))
    return list(dict.fromkeys(problem for problems in found for problem in problems))


def parameter_problems(instance: Instance, template: Template) -> Iterator[tuple[str, str, str]]:
    """Yield each missing or unknown parameter of an instance, the problem, and the fix."""
    given, declared = set(instance.parameters), set(template.parameters)
    for name in sorted(declared - given):
        yield name, f"the parameter {name} is missing", f"Add {name} to the instance's parameters."
    for name in sorted(given - declared):
        known = ", ".join(sorted(declared)) or "none"
        yield name, f"unknown parameter {name}", f"The template's parameters are: {known}."


def fill_text(text: str, parameters: Mapping[str, Scalar]) -> Scalar:
    """Return a string of a template with its placeholders replaced."""
    whole = _PLACEHOLDER.fullmatch(text)
    if whole and whole[1] in parameters:
        return parameters[whole[1]]
    return _PLACEHOLDER.sub(lambda match: _as_text(parameters[match[1]]), text)


def _as_text(value: Scalar) -> str:
    """Return a parameter as it is spelled in the file."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _strings(value: Any) -> Iterator[tuple[str, bool]]:
    """Yield every string in a value, and whether it is a key."""
    if isinstance(value, str):
        yield value, False
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key, True
            yield from _strings(item)


def _problems(text: str, is_key: bool, parameters: tuple[str, ...]) -> Iterator[str]:
    if "{{" not in text and "}}" not in text:
        return
    if is_key:
        yield f"a placeholder is not allowed in a key: {text!r}"
        return
    for name in _PLACEHOLDER.findall(text):
        if name not in parameters:
            yield f"the placeholder {{{{{name}}}}} does not match any parameter"
    rest = _PLACEHOLDER.sub("", text)
    if "{{" in rest or "}}" in rest:
        yield f"unbalanced placeholder braces in {text!r}"

"""Subgraphs and templates: names for parts of a file that are gone once it is loaded.

A *subgraph* is a part with a name. Its components, edges and loops get the name as a prefix, wherever they are named
inside it; lanes stay what they are, because lanes belong to the whole graph:

    subgraphs:                                      components: cell.source, cell.sink
      - id: cell                                    edges:      cell.wire, from cell.source.out
        components: [{id: source, …}, {id: sink, …}]                       to   cell.sink.in
        edges: [{id: wire, from: source.out, to: sink.in, …}]

A *template* is such a part with holes. `{{name}}` in a text stands for a parameter; each template instance fills the
holes and is then expanded like a subgraph of its own name. A text that is nothing but one placeholder becomes the
parameter's value with its type, so a number can be filled in; inside a longer text it is written out. There are no
expressions, no conditions and no includes: every component and edge that runs can be found in the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from rota.graph.diagnostics import Diagnostic
from rota.graph.document import Section
from rota.graph.spec import ComponentSpec, CompositeLoopSpec, EdgeSpec, Id, Namespace

__all__ = [
    "Instance",
    "Part",
    "Template",
    "check_parameters",
    "check_placeholders",
    "filled",
    "joined",
    "namespace",
    "prefixed",
    "values_in",
]

Scalar: TypeAlias = str | int | float | bool
_PLACEHOLDER = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)


class Template(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a graph with holes: what is in it is looked at when it is filled."""

    id: Id
    parameters: tuple[Id, ...] = ()
    components: list[Any]
    edges: list[Any]
    composite_loops: list[Any] = []


class Instance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A template, a name, and what fills its holes."""

    id: Id
    template: Id
    parameters: dict[str, Scalar] = {}


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The components, edges and loops of a graph or of a part of it."""

    components: tuple[ComponentSpec, ...] = ()
    edges: tuple[EdgeSpec, ...] = ()
    composite_loops: tuple[CompositeLoopSpec, ...] = ()

    def sections(self) -> tuple[tuple[str, Sequence[ComponentSpec | EdgeSpec | CompositeLoopSpec]], ...]:
        """The three lists, by the name they have in the file."""
        return ("components", self.components), ("edges", self.edges), ("composite_loops", self.composite_loops)


def joined(parts: Sequence[Part]) -> Part:
    """Several parts as one."""
    return Part(
        components=tuple(each for part in parts for each in part.components),
        edges=tuple(each for part in parts for each in part.edges),
        composite_loops=tuple(each for part in parts for each in part.composite_loops),
    )


# --- names ---------------------------------------------------------------------------------------


def prefixed(part: Part, name: str) -> Part:
    """The part with its name in front of every component, edge and loop, and of every mention of them."""

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


def namespace(part: Part, name: str, template: str = "") -> Namespace:
    """What is remembered of a part once its names have been put in front."""
    return Namespace(
        id=name,
        template=template,
        components=tuple(each.id for each in part.components),
        edges=tuple(each.id for each in part.edges),
        composite_loops=tuple(each.id for each in part.composite_loops),
    )


# --- holes ---------------------------------------------------------------------------------------


def check_placeholders(template: Template, path: str) -> Iterator[Diagnostic]:
    """What is wrong with a template before anybody fills it: unknown, malformed or misplaced placeholders."""
    seen: set[str] = set()
    for part in (template.components, template.edges, template.composite_loops):
        for text, is_key in _texts(part):
            for problem in _problems(text, is_key, template.parameters):
                if problem not in seen:
                    seen.add(problem)
                    yield Diagnostic.of(
                        "graph_validation_error",
                        f"template {template.id}: {problem}",
                        path,
                        fix="List the name under the template's parameters, or correct the placeholder.",
                    )


def check_parameters(instance: Instance, template: Template, path: str) -> Iterator[Diagnostic]:
    """What is wrong with how an instance fills a template: parameters that are missing or that there are not."""
    given, declared = set(instance.parameters), set(template.parameters)
    for name in sorted(declared - given):
        message = f"template instance {instance.id} gives no parameter {name}"
        yield Diagnostic.of("graph_validation_error", message, f"{path}.parameters.{name}", fix="Give the parameter.")
    for name in sorted(given - declared):
        message = f"template instance {instance.id} gives an unknown parameter {name}"
        fix = f"The template's parameters are: {', '.join(sorted(declared)) or 'none'}."
        yield Diagnostic.of("graph_validation_error", message, f"{path}.parameters.{name}", fix=fix)


def filled(template: Template, parameters: Mapping[str, Scalar]) -> Section:
    """The template's part with every placeholder filled in; the template itself stays as it is."""
    section = Section()
    for name in ("components", "edges", "composite_loops"):
        section[name] = _fill(getattr(template, name), parameters)
    return section


def values_in(value: Any) -> int:
    """How many values there are in a value, itself included: what filling it costs."""
    if isinstance(value, list):
        return 1 + sum(map(values_in, value))
    if isinstance(value, dict):
        return 1 + sum(map(values_in, value.values()))
    return 1


def _fill(value: Any, parameters: Mapping[str, Scalar]) -> Any:
    if isinstance(value, str):
        return _filled_text(value, parameters)
    if isinstance(value, list):
        return [_fill(item, parameters) for item in value]
    if isinstance(value, dict):
        section = Section(value.line if isinstance(value, Section) else None)
        for key, item in value.items():
            section[key] = _fill(item, parameters)
        return section
    return value


def _filled_text(text: str, parameters: Mapping[str, Scalar]) -> Scalar:
    whole = _PLACEHOLDER.fullmatch(text)
    if whole and whole[1] in parameters:
        return parameters[whole[1]]
    return _PLACEHOLDER.sub(lambda hole: _written(parameters[hole[1]]), text)


def _written(value: Scalar) -> str:
    """A parameter inside a longer text, as the file would spell it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _texts(value: Any) -> Iterator[tuple[str, bool]]:
    """Every text in a value, and whether it is a key."""
    if isinstance(value, str):
        yield value, False
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key, True
            yield from _texts(item)


def _problems(text: str, is_key: bool, parameters: tuple[str, ...]) -> Iterator[str]:
    if "{{" not in text and "}}" not in text:
        return
    if is_key:
        yield f"a placeholder cannot stand in the key {text!r}"
        return
    for name in _PLACEHOLDER.findall(text):
        if name not in parameters:
            yield f"the placeholder {{{{{name}}}}} names no parameter"
    rest = _PLACEHOLDER.sub("", text)
    if "{{" in rest or "}}" in rest:
        yield f"a placeholder is not closed in {text!r}"

"""What `rota graph` says about a graph without running it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import typer

from rota.errors import ComponentInvalid, GraphInvalid, InvalidInput, RotaError
from rota.graph.compiler import Checked, check
from rota.graph.compiler import lint as lint_graph
from rota.graph.component_registry import ComponentRegistry
from rota.graph.diagnostics import SEVERITIES, Diagnostic
from rota.graph.difference import PlanDifference, compare_plans
from rota.graph.document import InputLimits
from rota.graph.explain import explain_lines, region_stories
from rota.graph.loader import Loaded, read_graph
from rota.graph.mermaid import to_mermaid
from rota.graph.plan import Plan
from rota.graph.schema import graph_schema
from rota.graph.shapes import explain_shape, plan_shape, refused, validation_shape
from rota.graph.svg import to_svg

__all__ = [
    "diff_plan",
    "explain",
    "limits_of",
    "lint",
    "open_plan",
    "plan",
    "print_json",
    "registry_of",
    "render",
    "schema",
    "validate",
    "write",
]

_COLOURS = {"error": "red", "warning": "yellow", "advisory": "cyan", "info": "white"}


# --- the commands --------------------------------------------------------------------------------


def validate(
    file: Path, components: list[str], *, schema_only: bool, strict: bool, limits: Mapping[str, int], as_json: bool
) -> None:
    """Everything there is to say, and whether the graph is refused."""
    try:
        loaded = read_graph(file, limits=limits_of(limits))
        checked = Checked(diagnostics=()) if schema_only else _checked(loaded, components)
    except GraphInvalid as problem:
        checked = Checked(diagnostics=tuple(problem.diagnostics))
    _answer(checked, strict=strict, as_json=as_json)


def lint(file: Path, components: list[str], limits: Mapping[str, int], *, strict: bool, as_json: bool) -> None:
    """What `validate` says, and notes."""
    try:
        loaded = read_graph(file, limits=limits_of(limits))
        found = lint_graph(loaded.spec, registry_of(components) if components else None)
        checked = msgspec.structs.replace(found, diagnostics=loaded.located(found.diagnostics))
    except GraphInvalid as problem:
        checked = Checked(diagnostics=tuple(problem.diagnostics))
    _answer(checked, strict=strict, as_json=as_json)


def plan(file: Path, components: list[str], limits: Mapping[str, int], *, as_json: bool) -> None:
    """What the graph compiles to."""
    compiled = open_plan(file, registry_of(components) if components else None, limits_of(limits))
    if as_json:
        print_json(plan_shape(compiled))
        return
    for line in _plan_lines(compiled):
        typer.echo(line)


def render(file: Path, limits: Mapping[str, int], form: str, output: Path | None) -> None:
    """The graph as a drawing."""
    compiled = open_plan(file, None, limits_of(limits))
    write(to_svg(compiled) if form == "svg" else to_mermaid(compiled), output)


def explain(file: Path, components: list[str], limits: Mapping[str, int], *, as_json: bool) -> None:
    """Why the plan is as it is."""
    try:
        checked = _checked(read_graph(file, limits=limits_of(limits)), components)
    except GraphInvalid as problem:
        checked = Checked(diagnostics=tuple(problem.diagnostics))
    if as_json:
        print_json(explain_shape(checked))
    else:
        for line in explain_lines(checked):
            typer.echo(line)
    if checked.errors:
        raise typer.Exit(1)


def diff_plan(before: Path, after: Path, limits: Mapping[str, int], *, exit_code: bool, as_json: bool) -> None:
    """What leads from one plan to another."""
    found = compare_plans(*(open_plan(file, None, limits_of(limits)) for file in (before, after)))
    if as_json:
        print_json({"same": found.same, "order_changed": found.order_changed, **msgspec.to_builtins(found)})
    else:
        for line in _difference_lines(found):
            typer.echo(line)
    if exit_code and not found.same:
        raise typer.Exit(1)


def schema(version: int, output: Path | None) -> None:
    """The JSON Schema of graph files."""
    named: Literal[1, 2] = 1 if version == 1 else 2
    write(_pretty(graph_schema(named)) + "\n", output)


# --- opening -------------------------------------------------------------------------------------


def open_plan(file: Path, registry: ComponentRegistry | None = None, limits: InputLimits | None = None) -> Plan:
    """The plan of a file, its diagnostics with their lines; GraphInvalid when there are errors."""
    loaded = read_graph(file, limits=limits)
    checked = check(loaded.spec, registry)
    if checked.plan is None:
        errors = loaded.located(checked.errors)
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise GraphInvalid(
            f"{file}: {errors[0].sentence()}{more}",
            diagnostics=errors,
            hint=f"{errors[0].suggested_fix} `rota graph validate {file}` says everything.",
        )
    return checked.plan


def _checked(loaded: Loaded, components: Sequence[str]) -> Checked:
    found = check(loaded.spec, registry_of(components) if components else None)
    return msgspec.structs.replace(found, diagnostics=loaded.located(found.diagnostics))


def registry_of(components: Iterable[str]) -> ComponentRegistry:
    """The types of installed packages, of the named modules and of the named files."""
    registry = ComponentRegistry()
    registry.load_entry_points()
    for name in components:
        _load(registry, name)
    return registry


def _load(registry: ComponentRegistry, name: str) -> None:
    """Add a module's types. Loading it runs other people's code, which may fail in any way."""
    try:
        registry.load_module(_module_of(Path(name)) if name.endswith(".py") else name)
    except RotaError:
        raise
    except Exception as problem:
        raise ComponentInvalid(
            f"{name} cannot be loaded: {type(problem).__name__}: {problem}", hint="Mend the file that holds it."
        ) from problem


def _module_of(path: Path) -> str:
    """The module in a file. Its folder goes on the path, so that worker processes can import it by name as well."""
    if not path.is_file():
        raise ComponentInvalid(f"there is no component file {path}", hint="Name a .py file, or a module.")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    found = importlib.util.find_spec(path.stem)
    if found is None or Path(found.origin or "").resolve() != path.resolve():
        elsewhere = found.origin if found else "not found"
        raise ComponentInvalid(
            f"{path} cannot be imported: {path.stem} is {elsewhere}", hint="Give the file another name."
        )
    return path.stem


def limits_of(changes: Mapping[str, int]) -> InputLimits:
    """The input limits, with those changed that were given."""
    return msgspec.structs.replace(InputLimits(), **changes)


# --- printing ------------------------------------------------------------------------------------


def print_json(value: Any) -> None:
    """One JSON document on the terminal."""
    typer.echo(_pretty(value))


def _pretty(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def write(text: str, output: Path | None) -> None:
    """Text to a file, or to the terminal."""
    if output is None:
        typer.echo(text, nl=not text.endswith("\n"))
        return
    try:
        output.write_text(text)
    except OSError as problem:
        raise InvalidInput(f"cannot write {output}: {problem.strerror}", hint="Name another file.") from None


def _answer(checked: Checked, *, strict: bool, as_json: bool) -> None:
    bad = refused(checked.diagnostics, strict=strict)
    if as_json:
        print_json(validation_shape(checked.diagnostics, checked.plan, strict=strict))
    else:
        for diagnostic in checked.diagnostics:
            _echo(diagnostic)
        typer.echo(_verdict(checked, bad))
    if bad:
        raise typer.Exit(1)


def _echo(diagnostic: Diagnostic) -> None:
    typer.secho(diagnostic.sentence(), fg=_COLOURS[diagnostic.severity])
    typer.secho(f"  → {diagnostic.suggested_fix}", dim=True)


def _verdict(checked: Checked, bad: Sequence[Diagnostic]) -> str:
    counts = [(severity, sum(each.severity == severity for each in checked.diagnostics)) for severity in SEVERITIES]
    said = ", ".join(f"{count} {severity}" for severity, count in counts if count)
    if bad:
        return f"refused: {said}"
    size = ""
    if checked.plan is not None:
        made = checked.plan
        size = f" {made.name}: {len(made.components)} components, {len(made.edges)} edges, {len(made.regions)} regions"
    return f"ok{size}" + (f" ({said})" if said else "")


def _plan_lines(compiled: Plan) -> Iterable[str]:
    spec = compiled.spec
    size = f"{len(compiled.components)} components, {len(compiled.edges)} edges, {len(spec.lanes)} lanes"
    yield f"{compiled.name} (schema {spec.schema_version}): {size}"
    yield "\nepoch:"
    for story in region_stories(compiled):
        where = f" [{story.lane}]" if story.lane else ""
        yield f"  {story.place:>3}.{where} {story.region}: {story.because}"
    yield "\nlanes:"
    for lane in compiled.lanes.values():
        workers = f", {lane.workers} workers" if lane.workers else ""
        cadence = f", every {lane.period_ns / 1e6:g} ms" if lane.period_ns else ""
        yield f"  {lane.id}: {lane.type}{workers}{cadence}, {len(lane.components)} components"
        if lane.capability.applied_fields:
            yield f"      applied here: {', '.join(lane.capability.applied_fields)}"
        if lane.capability.advisory_fields:
            yield f"      not applied here: {', '.join(lane.capability.advisory_fields)}"


def _difference_lines(found: PlanDifference) -> Iterable[str]:
    if found.same:
        yield "the plans are the same"
        return
    yield from (f"- {name}" for name in found.removed)
    yield from (f"+ {name}" for name in found.added)
    yield from (f"~ {each.path}: {_short(each.before)} → {_short(each.after)}" for each in found.changed)
    if found.order_changed:
        yield f"order before: {', '.join(found.order_before)}"
        yield f"order after:  {', '.join(found.order_after)}"


def _short(value: Any) -> str:
    return msgspec.json.encode(value).decode()

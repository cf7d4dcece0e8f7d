"""The `rota graph` commands that do not run the graph: validate, lint, plan, render, explain, diff-plan, schema."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import typer

from rota.cli.terminal_text import say
from rota.errors import ComponentInvalid, GraphInvalid, InvalidInput, RotaError
from rota.graph import (
    SEVERITIES,
    CheckResult,
    ComponentRegistry,
    Diagnostic,
    InputLimits,
    LoadedGraph,
    Plan,
    PlanDifference,
    check,
    compare_plans,
    compile_graph,
    explanation_lines,
    explanation_to_dict,
    graph_schema,
    load_mapping,
    plan_to_dict,
    read_graph,
    refusing,
    region_placements,
    to_mermaid,
    to_svg,
    validation_to_dict,
)
from rota.graph import lint as lint_graph
from rota.store import write_private

__all__ = [
    "diff_plan",
    "explain",
    "input_limits",
    "lint",
    "load_registry",
    "open_plan",
    "plan",
    "print_json",
    "render",
    "render_run",
    "schema",
    "validate",
    "write",
]

_COLOURS = {"error": "red", "warning": "yellow", "advisory": "cyan", "info": "white"}


# --- the commands --------------------------------------------------------------------------------


def validate(
    file: Path, components: list[str], *, schema_only: bool, strict: bool, limits: Mapping[str, int], as_json: bool
) -> None:
    """Print all diagnostics, and whether the graph is refused."""
    try:
        loaded = read_graph(file, limits=input_limits(limits))
        result = CheckResult(diagnostics=()) if schema_only else _check(loaded, components)
    except GraphInvalid as problem:
        result = CheckResult(diagnostics=tuple(problem.diagnostics))
    _print_result(result, strict=strict, as_json=as_json)


def lint(file: Path, components: list[str], limits: Mapping[str, int], *, strict: bool, as_json: bool) -> None:
    """Print the diagnostics of `validate`, and notes on style."""
    try:
        loaded = read_graph(file, limits=input_limits(limits))
        found = lint_graph(loaded.spec, load_registry(components) if components else None)
        result = msgspec.structs.replace(found, diagnostics=loaded.with_lines(found.diagnostics))
    except GraphInvalid as problem:
        result = CheckResult(diagnostics=tuple(problem.diagnostics))
    _print_result(result, strict=strict, as_json=as_json)


def plan(file: Path, components: list[str], limits: Mapping[str, int], *, as_json: bool) -> None:
    """Print the plan of a graph."""
    compiled = open_plan(file, load_registry(components) if components else None, input_limits(limits))
    if as_json:
        print_json(plan_to_dict(compiled))
        return
    for line in _plan_lines(compiled):
        say(line)


def render(file: Path, limits: Mapping[str, int], form: str, output: Path | None) -> None:
    """Print a drawing of the graph."""
    compiled = open_plan(file, None, input_limits(limits))
    write(to_svg(compiled) if form == "svg" else to_mermaid(compiled), output)


def render_run(run_id: str, store: str, form: str, output: Path | None) -> None:
    """Print a drawing of a graph run, with the states of its nodes."""
    from rota.cli.connection import open_api

    with open_api(store) as api:
        report = api.graphs.show(run_id)
    if report.document is None:
        hint = f"Draw its graph file instead; `rota graph show {run_id}` shows the run."
        raise GraphInvalid(f"run {run_id} has no stored graph: a process runs it that has the graph", hint=hint)
    compiled = compile_graph(load_mapping(report.document))
    states = {node.node: node.state for node in report.nodes}
    write(to_svg(compiled, states) if form == "svg" else to_mermaid(compiled, states), output)


def explain(file: Path, components: list[str], limits: Mapping[str, int], *, as_json: bool) -> None:
    """Print the order of the regions with its reasons, and all diagnostics."""
    try:
        result = _check(read_graph(file, limits=input_limits(limits)), components)
    except GraphInvalid as problem:
        result = CheckResult(diagnostics=tuple(problem.diagnostics))
    if as_json:
        print_json(explanation_to_dict(result))
    else:
        for line in explanation_lines(result):
            say(line)
    if result.errors:
        raise typer.Exit(1)


def diff_plan(before: Path, after: Path, limits: Mapping[str, int], *, exit_code: bool, as_json: bool) -> None:
    """Print the difference between the plans of two files."""
    found = compare_plans(*(open_plan(file, None, input_limits(limits)) for file in (before, after)))
    if as_json:
        print_json({"same": found.same, "order_changed": found.order_changed, **msgspec.to_builtins(found)})
    else:
        for line in _difference_lines(found):
            say(line)
    if exit_code and not found.same:
        raise typer.Exit(1)


def schema(version: int, output: Path | None) -> None:
    """Print the JSON Schema of graph files."""
    named: Literal[1, 2] = 1 if version == 1 else 2
    write(_indented_json(graph_schema(named)) + "\n", output)


# --- opening -------------------------------------------------------------------------------------


def open_plan(file: Path, registry: ComponentRegistry | None = None, limits: InputLimits | None = None) -> Plan:
    """Return the plan of a graph file, or raise `GraphInvalid` with all errors and their lines."""
    loaded = read_graph(file, limits=limits)
    result = check(loaded.spec, registry)
    if result.plan is None:
        errors = loaded.with_lines(result.errors)
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise GraphInvalid(
            f"{file}: {errors[0].sentence()}{more}",
            diagnostics=errors,
            hint=f"{errors[0].suggested_fix} Show all problems with `rota graph validate {file}`.",
        )
    return result.plan


def _check(loaded: LoadedGraph, components: Sequence[str]) -> CheckResult:
    found = check(loaded.spec, load_registry(components) if components else None)
    return msgspec.structs.replace(found, diagnostics=loaded.with_lines(found.diagnostics))


def load_registry(components: Iterable[str]) -> ComponentRegistry:
    """Return a registry with the types of installed packages and of these modules and .py files."""
    registry = ComponentRegistry()
    registry.load_entry_points()
    for name in components:
        _load_components(registry, name)
    return registry


def _load_components(registry: ComponentRegistry, name: str) -> None:
    """Register the types of a module. Importing it runs its code, which may fail in any way."""
    try:
        registry.load_module(_module_name(Path(name)) if name.endswith(".py") else name)
    except RotaError:
        raise
    except Exception as problem:
        raise ComponentInvalid(
            f"{name} cannot be loaded: {type(problem).__name__}: {problem}", hint="Fix the error in that file."
        ) from problem


def _module_name(path: Path) -> str:
    """Return the module name of a file. Its folder goes on `sys.path`, so that worker processes can import it too."""
    if not path.is_file():
        raise ComponentInvalid(
            f"there is no component file {path}", hint="Give a module name or the path of a .py file."
        )
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    found = importlib.util.find_spec(path.stem)
    if found is None or Path(found.origin or "").resolve() != path.resolve():
        elsewhere = found.origin if found else "not found"
        raise ComponentInvalid(
            f"{path} cannot be imported as {path.stem}: that module is {elsewhere}", hint="Rename the file."
        )
    return path.stem


def input_limits(changes: Mapping[str, int]) -> InputLimits:
    """Return the default input limits with these changes."""
    return msgspec.structs.replace(InputLimits(), **changes)


# --- printing ------------------------------------------------------------------------------------


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    say(_indented_json(value))


def _indented_json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def write(text: str, output: Path | None) -> None:
    """Write text to a file, or to standard output without one."""
    if output is None:
        say(text, nl=not text.endswith("\n"))
        return
    try:
        write_private(output, text.encode())
    except OSError as problem:
        raise InvalidInput(
            f"cannot write {output}: {problem.strerror}", hint="Choose another file with --output."
        ) from None


def _print_result(result: CheckResult, *, strict: bool, as_json: bool) -> None:
    refusals = refusing(result.diagnostics, strict=strict)
    if as_json:
        print_json(validation_to_dict(result.diagnostics, result.plan, strict=strict))
    else:
        for diagnostic in result.diagnostics:
            _print_diagnostic(diagnostic)
        say(_verdict(result, refusals))
    if refusals:
        raise typer.Exit(1)


def _print_diagnostic(diagnostic: Diagnostic) -> None:
    say(diagnostic.sentence(), fg=_COLOURS[diagnostic.severity])
    say(f"  → {diagnostic.suggested_fix}", dim=True)


def _verdict(result: CheckResult, refusals: Sequence[Diagnostic]) -> str:
    counts = [(severity, sum(each.severity == severity for each in result.diagnostics)) for severity in SEVERITIES]
    totals = ", ".join(f"{count} {severity}" for severity, count in counts if count)
    if refusals:
        return f"refused: {totals}"
    size = ""
    if result.plan is not None:
        made = result.plan
        size = f" {made.name}: {len(made.components)} components, {len(made.edges)} edges, {len(made.regions)} regions"
    return f"ok{size}" + (f" ({totals})" if totals else "")


def _plan_lines(compiled: Plan) -> Iterable[str]:
    spec = compiled.spec
    size = f"{len(compiled.components)} components, {len(compiled.edges)} edges, {len(spec.lanes)} lanes"
    yield f"{compiled.name} (schema {spec.schema_version}): {size}"
    yield "\nepoch:"
    for each in region_placements(compiled):
        lane = f" [{each.lane}]" if each.lane else ""
        yield f"  {each.place:>3}.{lane} {each.region}: {each.because}"
    yield "\nlanes:"
    for planned in compiled.lanes.values():
        workers = f", {planned.workers} workers" if planned.workers else ""
        period = f", every {planned.period_ns / 1e6:g} ms" if planned.period_ns else ""
        yield f"  {planned.id}: {planned.type}{workers}{period}, {len(planned.components)} components"
        if planned.capability.applied_fields:
            yield f"      applied here: {', '.join(planned.capability.applied_fields)}"
        if planned.capability.ignored_fields:
            yield f"      not applied here: {', '.join(planned.capability.ignored_fields)}"


def _difference_lines(found: PlanDifference) -> Iterable[str]:
    if found.same:
        yield "the plans are the same"
        return
    yield from (f"- {name}" for name in found.removed)
    yield from (f"+ {name}" for name in found.added)
    yield from (f"~ {each.path}: {_as_json(each.before)} → {_as_json(each.after)}" for each in found.changed)
    if found.order_changed:
        yield f"order before: {', '.join(found.order_before)}"
        yield f"order after:  {', '.join(found.order_after)}"


def _as_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()

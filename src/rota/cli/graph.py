"""`rota graph …`: look at graphs and run them. Heavy imports wait until a command runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

__all__ = ["graph_app"]

graph_app = typer.Typer(help="Task graphs: check, draw, explain and run them.", no_args_is_help=True)


class Format(StrEnum):
    """How an answer is printed."""

    TEXT = "text"
    JSON = "json"


class Drawing(StrEnum):
    """How a graph is drawn."""

    MERMAID = "mermaid"
    SVG = "svg"


class TraceFormat(StrEnum):
    """How a trace is printed."""

    TEXT = "text"
    JSON = "json"
    NDJSON = "ndjson"
    CHROME = "chrome"


GraphFile = Annotated[Path, typer.Argument(help="A graph file, YAML or JSON.", show_default=False)]
Components = Annotated[
    list[str] | None,
    typer.Option(
        "--components", "-c", help="A module, or a .py file, with the component types. May be given several times."
    ),
]
AsFormat = Annotated[Format, typer.Option("--format", help="text for people, json for scripts.")]
Strict = Annotated[bool, typer.Option("--strict-diagnostics", help="Refuse warnings too.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file instead of the terminal.")]
Steps = Annotated[int | None, typer.Option("--steps", min=0, help="Epochs to run; without it one.")]
Duration = Annotated[float | None, typer.Option("--duration-ms", min=0, help="Stop after so many milliseconds.")]
UntilIdle = Annotated[bool, typer.Option("--until-idle", help="Stop after an epoch in which nothing ran.")]
Store = Annotated[
    Path | None,
    typer.Option("--store", help="Where a graph with a queue lane is kept: one file, made when it is missing."),
]
RunId = Annotated[
    str | None, typer.Option("--run-id", help="The name of the run; the same name again goes on where it ended.")
]
Workers = Annotated[
    int, typer.Option("--workers", min=0, help="Threads of this process that run entries; 0: `rota graph work` does.")
]

# Input limits that a caller may tighten or widen: the name of the limit, and what it bounds.
LIMITS = {
    "graph_input_bytes": "bytes of the file",
    "lanes": "lanes",
    "components": "components",
    "edges": "edges",
    "composite_loops": "loops",
    "identifier_bytes": "bytes of an id",
    "config_depth": "levels of a config value",
    "config_value_bytes": "bytes of a config value",
    "string_bytes": "bytes of any other text",
}


Options = Mapping[str, tuple[Any, Any]]  # what is typed and how, and what it is if it is not
Command = Callable[..., None]


def _instead_of(argument: str, options: Options, made: Callable[[dict[str, Any]], Any]) -> Callable[[Command], Command]:
    """A command takes these options in the place of one argument, which is made of them."""

    def change(command: Command) -> Command:
        @wraps(command)
        def changed(*arguments: Any, **given: Any) -> None:
            value = made({name: given.pop(name) for name in options})
            command(*arguments, **given, **{argument: value})

        hints = get_type_hints(command, include_extras=True)
        parameters: list[inspect.Parameter] = []
        for each in inspect.signature(command).parameters.values():
            if each.name == argument:
                parameters += [_option(name, *option) for name, option in options.items()]
            else:
                parameters.append(each.replace(annotation=hints[each.name]))
        # what typer reads: the annotations, already evaluated, and the signature
        changed.__annotations__ = {each.name: each.annotation for each in parameters}
        changed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return changed

    return change


def _option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _limit(words: str) -> tuple[Any, None]:
    option = typer.Option(min=0, help=f"At most so many {words}.", rich_help_panel="Limits")
    return Annotated[int | None, option], None


_with_limits = _instead_of(
    "limits",
    {f"max_{name}": _limit(words) for name, words in LIMITS.items()},
    lambda given: {name.removeprefix("max_"): value for name, value in given.items() if value is not None},
)
_with_bounds = _instead_of(
    "bounds",
    {"steps": (Steps, None), "duration_ms": (Duration, None), "run_until_idle": (UntilIdle, False)},
    lambda given: given,
)
_with_keeping = _instead_of(
    "keeping", {"store": (Store, None), "run_id": (RunId, None), "workers": (Workers, 1)}, lambda given: given
)


@graph_app.command()
@_with_limits
def validate(
    file: GraphFile,
    *,
    components: Components = None,
    schema_only: Annotated[bool, typer.Option("--schema-only", help="Only the form of the file.")] = False,
    semantic: Annotated[bool, typer.Option("--semantic", help="The form and the sense: what happens anyway.")] = False,
    strict: Strict = False,
    form: AsFormat = Format.TEXT,
    limits: dict[str, int],
) -> None:
    """Say everything that is wrong with a graph, or will disappoint. Exits with 1 when it is refused."""
    from rota.cli import graph_checks

    if schema_only and semantic:
        raise typer.BadParameter("--schema-only and --semantic exclude each other")
    graph_checks.validate(
        file, components or [], schema_only=schema_only, strict=strict, limits=limits, as_json=form == Format.JSON
    )


@graph_app.command()
@_with_limits
def plan(
    file: GraphFile, *, components: Components = None, form: AsFormat = Format.TEXT, limits: dict[str, int]
) -> None:
    """Show what a graph compiles to: regions, their order, and what each lane truly does here."""
    from rota.cli import graph_checks

    graph_checks.plan(file, components or [], limits, as_json=form == Format.JSON)


@graph_app.command()
@_with_limits
def render(
    file: GraphFile,
    *,
    form: Annotated[Drawing, typer.Option("--format", help="mermaid text, or an svg drawing.")] = Drawing.MERMAID,
    output: Output = None,
    limits: dict[str, int],
) -> None:
    """Draw a graph with its regions and lanes."""
    from rota.cli import graph_checks

    graph_checks.render(file, limits, form.value, output)


@graph_app.command()
@_with_limits
def explain(
    file: GraphFile, *, components: Components = None, form: AsFormat = Format.TEXT, limits: dict[str, int]
) -> None:
    """Say why each region runs when it does, and what each diagnostic is about."""
    from rota.cli import graph_checks

    graph_checks.explain(file, components or [], limits, as_json=form == Format.JSON)


@graph_app.command()
@_with_limits
def lint(
    file: GraphFile,
    *,
    components: Components = None,
    strict: Strict = False,
    form: AsFormat = Format.TEXT,
    limits: dict[str, int],
) -> None:
    """Check a graph and add what a second reader would ask about."""
    from rota.cli import graph_checks

    graph_checks.lint(file, components or [], limits, strict=strict, as_json=form == Format.JSON)


@graph_app.command("diff-plan")
@_with_limits
def diff_plan(
    before: Annotated[Path, typer.Argument(help="The graph as it was.", show_default=False)],
    after: Annotated[Path, typer.Argument(help="The graph as it is.", show_default=False)],
    *,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 when the plans differ.")] = False,
    form: AsFormat = Format.TEXT,
    limits: dict[str, int],
) -> None:
    """Show what changed between two graphs, down to the field, and whether the order did."""
    from rota.cli import graph_checks

    graph_checks.diff_plan(before, after, limits, exit_code=exit_code, as_json=form == Format.JSON)


@graph_app.command()
def schema(
    version: Annotated[int, typer.Option("--schema-version", min=1, max=2, help="1 or 2.")] = 2,
    output: Output = None,
) -> None:
    """Print the JSON Schema of graph files, for editors."""
    from rota.cli import graph_checks

    graph_checks.schema(version, output)


@graph_app.command()
@_with_limits
@_with_bounds
@_with_keeping
def run(
    file: GraphFile,
    *,
    components: Components = None,
    bounds: dict[str, Any],
    keeping: dict[str, Any],
    form: AsFormat = Format.TEXT,
    limits: dict[str, int],
) -> None:
    """Run a graph. Ctrl-C stops it at the next check; what was admitted is finished. Exits with 1 when it fails."""
    from rota.cli import graph_durable, graph_runs

    source = graph_runs.Source(file, components or [], limits, graph_durable.Keeping(**keeping))
    graph_runs.run(source, bounds, as_json=form == Format.JSON)


@graph_app.command()
@_with_limits
def work(
    file: GraphFile,
    *,
    store: Annotated[Path, typer.Option("--store", help="The file that the graph's runs are kept in.")],
    components: Components = None,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="Stop when no entry is ready.")] = False,
    form: AsFormat = Format.TEXT,
    limits: dict[str, int],
) -> None:
    """Run the entries of a graph's queue lanes, for whoever runs the graph. Ctrl-C stops it after the one it has."""
    from rota.cli import graph_runs

    source = graph_runs.Source(file, components or [], limits)
    graph_runs.work(source, store, until_idle=until_idle, as_json=form == Format.JSON)


@graph_app.command()
@_with_limits
@_with_bounds
@_with_keeping
def metrics(
    file: GraphFile,
    *,
    components: Components = None,
    bounds: dict[str, Any],
    keeping: dict[str, Any],
    form: AsFormat = Format.TEXT,
    limits: dict[str, int],
) -> None:
    """Run a graph and print every metric."""
    from rota.cli import graph_durable, graph_runs

    source = graph_runs.Source(file, components or [], limits, graph_durable.Keeping(**keeping))
    graph_runs.metrics(source, bounds, as_json=form == Format.JSON)


@graph_app.command()
@_with_limits
@_with_bounds
@_with_keeping
def trace(
    file: GraphFile,
    *,
    components: Components = None,
    bounds: dict[str, Any],
    keeping: dict[str, Any],
    form: Annotated[TraceFormat, typer.Option("--format", help="chrome opens in Perfetto.")] = TraceFormat.TEXT,
    output: Output = None,
    limits: dict[str, int],
) -> None:
    """Run a graph and print what happened when, and on which worker."""
    from rota.cli import graph_durable, graph_runs

    source = graph_runs.Source(file, components or [], limits, graph_durable.Keeping(**keeping))
    graph_runs.trace(source, bounds, form.value, output)


@graph_app.command()
@_with_limits
def bench(
    file: GraphFile,
    *,
    components: Components = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Epochs in each run.")] = 100,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Runs; the median counts.")] = 5,
    form: AsFormat = Format.TEXT,
    limits: dict[str, int],
) -> None:
    """Run a graph several times and say what an epoch and an invocation cost. For comparing on one machine only."""
    from rota.cli import graph_runs

    graph_runs.bench(graph_runs.Source(file, components or [], limits), steps, runs, as_json=form == Format.JSON)

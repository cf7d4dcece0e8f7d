"""`rota graph …`: check, draw, explain and run graphs. Each command imports what it needs when it runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from rota.cli.graph_budget import budget
from rota.cli.graph_operations import add_operations
from rota.cli.options import STORE, AsJson

__all__ = ["graph_app"]

graph_app = typer.Typer(help="Check, draw, explain and run task graphs.", no_args_is_help=True)


class Format(StrEnum):
    """The output format of most commands."""

    TEXT = "text"
    JSON = "json"


class DrawingFormat(StrEnum):
    """The output format of `render`."""

    MERMAID = "mermaid"
    SVG = "svg"


class TraceFormat(StrEnum):
    """The output format of `trace`."""

    TEXT = "text"
    JSON = "json"
    NDJSON = "ndjson"
    CHROME = "chrome"


GraphFile = Annotated[Path, typer.Argument(help="A graph file, YAML or JSON.", show_default=False)]
Components = Annotated[
    list[str] | None,
    typer.Option("--components", "-c", help="Module or .py file with component types. May be repeated."),
]
AsFormat = Annotated[Format, typer.Option("--format", help="Output format.")]
Strict = Annotated[bool, typer.Option("--strict-diagnostics", help="Treat warnings as errors.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file. Default: standard output.")]
Steps = Annotated[
    int | None,
    typer.Option(
        "--steps",
        min=0,
        help="Maximum number of epochs. Default: 1; 1000 with --until-idle; no limit with --duration-ms.",
    ),
]
Duration = Annotated[float | None, typer.Option("--duration-ms", min=0, help="Stop after this time, in milliseconds.")]
UntilIdle = Annotated[bool, typer.Option("--until-idle", help="Stop when nothing can run any more; wait for entries.")]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="The store of the run; required for a graph with a queue lane or with agents. A file is created if it is "
        "missing; for agents, also a daemon's address.",
    ),
]
RunId = Annotated[
    str | None,
    typer.Option("--run-id", help="Name of the run; an existing name resumes that run. Default: a new name."),
]
Workers = Annotated[
    int, typer.Option("--workers", min=0, help="Threads that run entries; 0: only `rota graph work` runs them.")
]

# The input limits: what each one limits, and its default in `rota.graph.InputLimits`. Each becomes an option `--max-…`.
LIMITS = {
    "graph_input_bytes": ("size of the file in bytes", 1_048_576),
    "lanes": ("number of lanes", 256),
    "components": ("number of components", 4096),
    "edges": ("number of edges", 8192),
    "composite_loops": ("number of loops", 1024),
    "identifier_bytes": ("size of an id in bytes", 128),
    "config_depth": ("nesting depth of a config value", 8),
    "config_value_bytes": ("size of a config value in bytes", 4096),
    "string_bytes": ("size of any other string in bytes", 4096),
}

OptionGroup = Mapping[str, tuple[Any, Any]]  # parameter name to annotation and default
Command = Callable[..., None]


def _option_group(
    parameter: str, options: OptionGroup, build: Callable[[dict[str, Any]], Any]
) -> Callable[[Command], Command]:
    """Return a decorator that replaces one parameter of a command by a group of options.

    The command receives `build(values)` for the replaced parameter.
    """

    def decorate(command: Command) -> Command:
        @wraps(command)
        def wrapper(*arguments: Any, **given: Any) -> None:
            value = build({name: given.pop(name) for name in options})
            command(*arguments, **given, **{parameter: value})

        hints = get_type_hints(command, include_extras=True)
        parameters: list[inspect.Parameter] = []
        for each in inspect.signature(command).parameters.values():
            if each.name == parameter:
                parameters += [_option(name, *option) for name, option in options.items()]
            else:
                parameters.append(each.replace(annotation=hints[each.name]))
        # typer reads the evaluated annotations and the signature
        wrapper.__annotations__ = {each.name: each.annotation for each in parameters}
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return wrapper

    return decorate


def _option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _limit(what: str, default: int) -> tuple[Any, None]:
    option = typer.Option(min=0, help=f"Maximum {what}. Default: {default}.", rich_help_panel="Limits")
    return Annotated[int | None, option], None


_with_limits = _option_group(
    "limits",
    {f"max_{name}": _limit(what, default) for name, (what, default) in LIMITS.items()},
    lambda given: {name.removeprefix("max_"): value for name, value in given.items() if value is not None},
)
_with_bounds = _option_group(
    "bounds",
    {"steps": (Steps, None), "duration_ms": (Duration, None), "run_until_idle": (UntilIdle, False)},
    lambda given: given,
)
_with_store = _option_group(
    "storage", {"store": (Store, None), "run_id": (RunId, None), "workers": (Workers, 1)}, lambda given: given
)


@graph_app.command()
@_with_limits
def validate(
    file: GraphFile,
    *,
    components: Components = None,
    schema_only: Annotated[bool, typer.Option("--schema-only", help="Check only the fields of the file.")] = False,
    semantic: Annotated[bool, typer.Option("--semantic", help="Check fields and rules. This is the default.")] = False,
    strict: Strict = False,
    form: AsFormat = Format.TEXT,
    limits: dict[str, int],
) -> None:
    """Check a graph file and report all problems.

    Exits with 1 if the graph is refused.
    """
    from rota.cli import graph_checks

    if schema_only and semantic:
        raise typer.BadParameter("--schema-only and --semantic cannot be combined")
    graph_checks.validate(
        file, components or [], schema_only=schema_only, strict=strict, limits=limits, as_json=form == Format.JSON
    )


@graph_app.command()
@_with_limits
def plan(
    file: GraphFile, *, components: Components = None, form: AsFormat = Format.TEXT, limits: dict[str, int]
) -> None:
    """Show the compiled plan: regions, order and lanes."""
    from rota.cli import graph_checks

    graph_checks.plan(file, components or [], limits, as_json=form == Format.JSON)


@graph_app.command()
@_with_limits
def render(
    file: Annotated[Path | None, typer.Argument(help="A graph file, YAML or JSON; not with --run.")] = None,
    *,
    run: Annotated[
        str | None, typer.Option("--run", help="A graph run: its nodes are coloured by their state.")
    ] = None,
    store: Annotated[str, typer.Option("--store", "-s", envvar="ROTA_STORE", help="The store of the run.")] = STORE,
    form: Annotated[DrawingFormat, typer.Option("--format", help="Output format.")] = DrawingFormat.MERMAID,
    output: Output = None,
    limits: dict[str, int],
) -> None:
    """Draw a graph with its regions and lanes, or a graph run with the states of its nodes."""
    from rota.cli import graph_checks

    if (file is None) == (run is None):
        raise typer.BadParameter("give a graph file, or a run with --run")
    if run is not None:
        graph_checks.render_run(run, store, form.value, output)
    elif file is not None:
        graph_checks.render(file, limits, form.value, output)


@graph_app.command()
@_with_limits
def explain(
    file: GraphFile, *, components: Components = None, form: AsFormat = Format.TEXT, limits: dict[str, int]
) -> None:
    """Explain the order of regions and all diagnostics.

    Exits with 1 if the graph has errors.
    """
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
    """Check a graph file and add notes on style.

    Exits with 1 if the graph is refused.
    """
    from rota.cli import graph_checks

    graph_checks.lint(file, components or [], limits, strict=strict, as_json=form == Format.JSON)


@graph_app.command("diff-plan")
@_with_limits
def diff_plan(
    before: Annotated[Path, typer.Argument(help="The old graph file.", show_default=False)],
    after: Annotated[Path, typer.Argument(help="The new graph file.", show_default=False)],
    *,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if the plans differ.")] = False,
    form: AsFormat = Format.TEXT,
    limits: dict[str, int],
) -> None:
    """Compare the plans of two graph files."""
    from rota.cli import graph_checks

    graph_checks.diff_plan(before, after, limits, exit_code=exit_code, as_json=form == Format.JSON)


@graph_app.command()
def schema(
    version: Annotated[int, typer.Option("--schema-version", min=1, max=2, help="Schema version, 1 or 2.")] = 2,
    output: Output = None,
) -> None:
    """Print the JSON Schema of graph files."""
    from rota.cli import graph_checks

    graph_checks.schema(version, output)


@graph_app.command()
@_with_limits
@_with_bounds
@_with_store
def run(
    file: GraphFile,
    *,
    components: Components = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", help="A value of an input: topic=tides; the value is JSON, or text. May be repeated."),
    ] = None,
    project: Annotated[str | None, typer.Option("--project", help="Graphs of agents: the project of the run.")] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option("--budget", help="Graphs of agents: what the run may use: tokens=5000. May be repeated."),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--detach", help="Graphs of agents: wait for the end of the run, or return at once.")
    ] = True,
    island: Annotated[
        bool,
        typer.Option("--island", help="Admit the whole graph on the cores of its host first, or refuse it."),
    ] = False,
    bounds: dict[str, Any],
    storage: dict[str, Any],
    form: AsFormat = Format.TEXT,
    as_json: AsJson = False,
    limits: dict[str, int],
) -> None:
    """Run a graph.

    A graph whose nodes are agents runs in its store, by the supervisors of `rota run`: this command starts it and
    waits; Ctrl-C leaves it running. Any other graph runs in this process, and Ctrl-C stops it at its next stop check,
    after the invocations that were already admitted. Exits with 1 if the run fails.
    """
    from rota.cli import graph_runs
    from rota.cli.arguments import amounts, named_values

    source = graph_runs.GraphSource(file, components or [], limits, graph_runs.Storage(**storage))
    options = graph_runs.GraphStartOptions(
        inputs=named_values(inputs or [], "input"),
        project=project,
        budget=amounts(budget, "budget") if budget else None,
        wait=wait,
        as_island=island,
    )
    graph_runs.run(source, bounds, options, as_json=as_json or form == Format.JSON)


@graph_app.command()
@_with_limits
def work(
    file: GraphFile,
    *,
    store: Annotated[str, typer.Option("--store", help="The store of the graph's runs: a file, or postgresql://….")],
    components: Components = None,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="Exit when no entry is ready.")] = False,
    form: AsFormat = Format.TEXT,
    limits: dict[str, int],
) -> None:
    """Run entries of a graph's queue lanes.

    Works for the processes that run the graph on the same store. Ctrl-C stops after the current entry.
    """
    from rota.cli import graph_runs

    source = graph_runs.GraphSource(file, components or [], limits)
    graph_runs.work(source, store, until_idle=until_idle, as_json=form == Format.JSON)


@graph_app.command()
@_with_limits
@_with_bounds
@_with_store
def metrics(
    file: GraphFile,
    *,
    components: Components = None,
    bounds: dict[str, Any],
    storage: dict[str, Any],
    form: AsFormat = Format.TEXT,
    limits: dict[str, int],
) -> None:
    """Run a graph and print all metrics."""
    from rota.cli import graph_runs

    source = graph_runs.GraphSource(file, components or [], limits, graph_runs.Storage(**storage))
    graph_runs.metrics(source, bounds, as_json=form == Format.JSON)


@graph_app.command()
@_with_limits
@_with_bounds
@_with_store
def trace(
    file: GraphFile,
    *,
    components: Components = None,
    bounds: dict[str, Any],
    storage: dict[str, Any],
    form: Annotated[
        TraceFormat, typer.Option("--format", help="Output format; chrome can be opened in Perfetto.")
    ] = TraceFormat.TEXT,
    output: Output = None,
    limits: dict[str, int],
) -> None:
    """Run a graph and print its trace."""
    from rota.cli import graph_runs

    source = graph_runs.GraphSource(file, components or [], limits, graph_runs.Storage(**storage))
    graph_runs.trace(source, bounds, form.value, output)


@graph_app.command()
@_with_limits
def bench(
    file: GraphFile,
    *,
    components: Components = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Epochs per run.")] = 100,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Number of runs; the median is reported.")] = 5,
    form: AsFormat = Format.TEXT,
    limits: dict[str, int],
) -> None:
    """Measure the time per epoch and per invocation.

    Use it only to compare graphs on one machine.
    """
    from rota.cli import graph_runs

    graph_runs.bench(graph_runs.GraphSource(file, components or [], limits), steps, runs, as_json=form == Format.JSON)


graph_app.command("budget")(budget)
add_operations(graph_app)

"""The `rota graph` commands that run a graph, and those that serve the entries of its queue lanes."""

from __future__ import annotations

import _thread
import contextlib
import statistics
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import typer

from rota import store
from rota.cli.exit_codes import INTERRUPTED, SIGNAL_CODES
from rota.cli.graph_checks import input_limits, load_registry, open_plan, print_json, write
from rota.cli.graph_start import GraphStartOptions, has_agents, start
from rota.cli.graph_stop import describe_stop, stop_on_signals
from rota.cli.terminal_text import say
from rota.clock import Clock, SystemClock
from rota.errors import InvalidInput, RotaError
from rota.fleet import Supervisor, graph_supervisor
from rota.graph import (
    TRACE_SCHEMA_VERSION,
    ComponentRegistry,
    DurableRuns,
    Plan,
    RuntimeRunner,
    RuntimeRunnerOptions,
    RuntimeRunnerResult,
    SchedulerStopReason,
    StopToken,
    compile_graph,
    island_spec,
)
from rota.kernel import Kernel
from rota.observe import to_chrome, to_ndjson
from rota.service import Dispatcher

__all__ = ["GraphSource", "GraphStartOptions", "Storage", "bench", "metrics", "progress", "run", "trace", "work"]

PROGRESS_EVERY_S = 0.2
_ENDING_HINT = "Cancel it with `rota graph cancel RUN`, or limit what it uses with --budget."
_OWN_HINT = "Leave the option out; a budget can be in the file: `graph: {name: …, budget: {tokens: 1000}}`."
# Counters of lost, late and promoted work; `run` prints each one that is not zero.
REPORTED_COUNTERS = (
    "rejected_count",
    "tick_overrun_count",
    "skipped_tick_count",
    "starvation_guard_count",
    "drop_count",
    "reject_count",
    "stale_drop_count",
    "deadline_miss_count",
)


class Storage(NamedTuple):
    """The database file of a durable run, the run's name, and how many threads of this process run its entries."""

    store: str | None
    run_id: str | None
    workers: int


class GraphSource(NamedTuple):
    """A graph file, its component modules, the input limits, and where its runs are stored."""

    file: Path
    components: list[str]
    limits: Mapping[str, int]
    storage: Storage = Storage(None, None, 0)


class _Ended(NamedTuple):
    """How a run ended, and the exit code of the command."""

    result: RuntimeRunnerResult
    code: int


# --- the commands --------------------------------------------------------------------------------


def run(source: GraphSource, bounds: dict[str, Any], options: GraphStartOptions, *, as_json: bool) -> None:
    """Run a graph and print the result. A graph whose nodes are agents is started in its store."""
    if has_agents(source.file):
        limits = {"--steps": bounds["steps"] is not None, "--duration-ms": bounds["duration_ms"] is not None}
        _refuse_options(limits, "a run of a graph of agents ends when nothing is left to do", _ENDING_HINT)
        start(source.file, source.storage.store, options._replace(run_id=source.storage.run_id), as_json=as_json)
        return
    others = {"--budget": options.budget, "--project": options.project, "--detach": not options.wait}
    _refuse_options(others, f"no component of {source.file} is an agent, so this process runs the graph", _OWN_HINT)
    result, code = _run(source, {**bounds, "inputs": options.inputs}, quiet=as_json, as_island=options.as_island)
    if as_json:
        print_json(result.summary())
    else:
        for line in _result_lines(result):
            say(line)
    _exit(code)


def metrics(source: GraphSource, bounds: dict[str, Any], *, as_json: bool) -> None:
    """Run a graph and print all metrics."""
    result, code = _run(source, bounds, quiet=True)
    if as_json:
        print_json(result.summary())
    else:
        for metric in result.runtime_metrics:
            subject = metric.component_id or metric.channel_id or metric.lane
            say(f"{metric.name:52} {subject:24} {metric.value:g}")
    _exit(code)


def trace(source: GraphSource, bounds: dict[str, Any], form: str, output: Path | None) -> None:
    """Run a graph and print its trace."""
    result, code = _run(source, {**bounds, "trace": True}, quiet=True)
    events = list(result.trace.events()) if result.trace is not None else []
    write(_TRACE_FORMATS[form](events), output)
    _exit(code)


def bench(source: GraphSource, steps: int, runs: int, *, as_json: bool) -> None:
    """Run a graph several times and print the median time per epoch and per invocation."""
    plan, registry = _open(source)
    clock = SystemClock()
    seconds: list[float] = []
    while len(seconds) < runs:
        started = clock.monotonic()
        result, code = _run_plan(plan, registry, {"steps": steps}, source.storage, quiet=True)
        seconds.append(clock.monotonic() - started)
        _exit(code)
    _print_bench(result, seconds, steps, as_json=as_json)


def work(source: GraphSource, path: str, *, until_idle: bool, as_json: bool) -> None:
    """Run entries of a graph's queue lanes, until stopped or until no entry is ready."""
    plan, registry = _open(source)
    token = StopToken()
    with stop_on_signals(token), _component_output(quiet=as_json), _open_kernel(path) as kernel:
        supervisor = graph_supervisor(Dispatcher(kernel), registry, [plan.name])
        token.subscribe(lambda: _drain_elsewhere(supervisor))
        count = supervisor.run(until_idle=until_idle).runs
    if as_json:
        print_json({"graph": plan.name, "entries_run": count})
    else:
        say(f"{plan.name}: entries run: {count:,}")


def _drain_elsewhere(supervisor: Supervisor) -> None:
    """Drain on another thread: the caller may be a signal handler that interrupted a thread with the lock."""
    _thread.start_new_thread(supervisor.drain, ())


def _refuse_options(given: Mapping[str, object], why: str, hint: str) -> None:
    """Refuse an option that is given and would have no effect."""
    for name, value in given.items():
        if value:
            raise InvalidInput(f"{name} has no effect: {why}", field=name, hint=hint)


# --- running -------------------------------------------------------------------------------------


def _open(source: GraphSource) -> tuple[Plan, ComponentRegistry]:
    registry = load_registry(source.components)
    return open_plan(source.file, registry, input_limits(source.limits)), registry


def _run(source: GraphSource, bounds: dict[str, Any], *, quiet: bool, as_island: bool = False) -> _Ended:
    plan, registry = _open(source)
    if not as_island and plan.spec.graph.island is None:
        return _run_plan(plan, registry, bounds, source.storage, quiet=quiet)
    from rota.cli.graph_island import admitted

    plan, token = compile_graph(island_spec(plan.spec), registry), StopToken()
    with admitted(plan, source.storage.store, token, quiet=quiet) as end:
        closed = {**bounds, "fails_closed": True}
        ended = _run_plan(plan, registry, closed, source.storage, quiet=quiet, token=token)
        if not ended.result.ok:
            end.failed(ended.result.errors[0] if ended.result.errors else "the run failed")
        elif ended.code:
            end.cancelled(token.reason)
        return ended


def _run_plan(
    plan: Plan,
    registry: ComponentRegistry,
    bounds: dict[str, Any],
    storage: Storage,
    *,
    quiet: bool,
    token: StopToken | None = None,
) -> _Ended:
    token = token or StopToken()
    on_epoch = progress(bounds.get("steps"), SystemClock())
    with (
        stop_on_signals(token) as stopped_by,
        _component_output(quiet=quiet),
        _durable_runs(plan, registry, storage) as durable,
    ):
        options = RuntimeRunnerOptions(
            **bounds, stop_token=token, on_epoch=on_epoch, durable=durable, run_id=storage.run_id
        )
        runner = RuntimeRunner(plan, registry, options)
        with describe_stop(token, runner.executing_components):
            result = runner.run()
    if result.scheduler_stop_reason == SchedulerStopReason.STOP_REQUESTED:
        return _Ended(result, SIGNAL_CODES + stopped_by[0] if stopped_by else INTERRUPTED)
    return _Ended(result, 0 if result.ok else 1)


def _component_output(*, quiet: bool) -> contextlib.AbstractContextManager[Any]:
    """Redirect what components print to standard error if standard output is for the result only."""
    return contextlib.redirect_stdout(sys.stderr) if quiet else contextlib.nullcontext()


def progress(steps: int | None, clock: Clock) -> Callable[[int], None] | None:
    """Return a function that shows the current epoch on standard error; None if that is not a terminal."""
    if not sys.stderr.isatty():
        return None
    shown_at = clock.monotonic()

    def show(epoch: int) -> None:
        nonlocal shown_at
        if clock.monotonic() - shown_at >= PROGRESS_EVERY_S:
            shown_at = clock.monotonic()
            sys.stderr.write(f"\repoch {epoch:,}" + (f" of {steps:,}" if steps else ""))  # only numbers
            sys.stderr.flush()

    return show


def _exit(code: int) -> None:
    if code:
        raise typer.Exit(code)


# --- runs with a store ---------------------------------------------------------------------------


@contextlib.contextmanager
def _durable_runs(plan: Plan, registry: ComponentRegistry, storage: Storage) -> Iterator[DurableRuns | None]:
    """Open the store and start the workers of a durable run; None without a store or without a durable lane."""
    if storage.store is None or plan.durable_lane is None:
        yield None
        return
    with _open_kernel(storage.store) as kernel, _workers(kernel, plan, registry, storage.workers):
        yield DurableRuns(kernel)


@contextlib.contextmanager
def _open_kernel(path: str) -> Iterator[Kernel]:
    opened = store.open(path)
    try:
        yield Kernel(opened)
    finally:
        opened.close()


@contextlib.contextmanager
def _workers(kernel: Kernel, plan: Plan, registry: ComponentRegistry, count: int) -> Iterator[None]:
    """Run entries in slots of this process. On exit, those in progress end before the store is closed."""
    if not count:
        yield
        return
    supervisor = graph_supervisor(Dispatcher(kernel), registry, [plan.name], slots=count)
    thread = threading.Thread(target=_serve, args=(supervisor,), name="graph-workers")
    thread.start()
    try:
        yield
    finally:
        supervisor.drain()
        thread.join()


def _serve(supervisor: Supervisor) -> None:
    try:
        supervisor.run()
    except RotaError as error:  # the run fails with the same error; this explains why its entries do not run
        say(f"rota: the workers of this process stopped: {error}", err=True)


# --- printing ------------------------------------------------------------------------------------


def _result_lines(result: RuntimeRunnerResult) -> Iterator[str]:
    verdict = "ok" if result.ok else "failed"
    yield (
        f"{result.graph_name}: {verdict}, {result.scheduler_stop_reason.value} after {result.epochs:,} epochs, "
        f"{result.executed:,} invocations"
    )
    for metric in result.runtime_metrics:
        name = metric.name.rpartition(".")[2]
        if name in REPORTED_COUNTERS and metric.value and not metric.component_id:
            yield f"  {metric.channel_id or metric.lane}: {name} {metric.value:g}"
    yield from (f"  error: {error}" for error in result.errors)


def _text(events: list[Any]) -> str:
    rows = []
    for event in events:
        subject = event.component_id or event.channel_id or event.lane
        worker = f" worker {event.worker_id}" if event.worker_id not in (None, "") else ""
        times = f"{event.start_offset_ns / 1e6:10.3f} ms {event.duration_ns / 1e3:10.1f} us"
        rows.append(f"{times}  epoch {event.epoch_id:>4}  {event.name:36} {subject}{worker}")
    return "\n".join(rows) + "\n"


def _json(events: list[Any]) -> str:
    document = {"trace_schema_version": TRACE_SCHEMA_VERSION, "events": events}
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def _ndjson(events: list[Any]) -> str:
    return "".join(f"{line.rstrip()}\n" for line in to_ndjson(events))


def _chrome(events: list[Any]) -> str:
    return msgspec.json.encode(to_chrome(events)).decode() + "\n"


_TRACE_FORMATS: dict[str, Callable[[list[Any]], str]] = {
    "text": _text,
    "json": _json,
    "ndjson": _ndjson,
    "chrome": _chrome,
}


def _print_bench(result: RuntimeRunnerResult, seconds: list[float], steps: int, *, as_json: bool) -> None:
    median_us, invocations = statistics.median(seconds) * 1e6, result.executed
    per_invocation_us = median_us / invocations if invocations else None
    row = {
        "graph": result.graph_name,
        "runs": len(seconds),
        "steps": steps,
        "invocations": invocations,
        "median_ms": median_us / 1e3,
        "us_per_epoch": median_us / steps,
        "us_per_invocation": per_invocation_us,
        "seconds": seconds,
    }
    if as_json:
        print_json(row)
        return
    cost = f"{per_invocation_us:.1f} us per invocation" if per_invocation_us is not None else "no invocations"
    say(
        f"{result.graph_name}: {steps:,} epochs, {invocations:,} invocations in {median_us / 1e3:.1f} ms "
        f"(median of {len(seconds)} runs): {median_us / steps:.1f} us per epoch, {cost}"
    )

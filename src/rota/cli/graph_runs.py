"""What `rota graph` does when it runs a graph."""

from __future__ import annotations

import contextlib
import signal
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import msgspec
import typer

from rota.cli.graph_checks import limits_of, open_plan, print_json, registry_of, write
from rota.cli.graph_durable import Keeping, kept
from rota.cli.graph_durable import work as run_entries
from rota.clock import Clock, SystemClock
from rota.graph.component_registry import ComponentRegistry
from rota.graph.plan import Plan
from rota.graph.run import RuntimeRunner
from rota.graph.run_options import RuntimeRunnerOptions, RuntimeRunnerResult, SchedulerStopReason
from rota.graph.stop import StopToken
from rota.graph.tracing import TRACE_SCHEMA_VERSION
from rota.observe.trace import to_chrome, to_ndjson

__all__ = ["Source", "bench", "metrics", "progress", "run", "trace", "work"]

PROGRESS_EVERY_S = 0.2
INTERRUPTED = 130  # the exit code of a command that Ctrl-C ended
# What was lost, late or rescued: said after a run, of each lane and channel where it is not zero.
WORTH_SAYING = (
    "rejected_count",
    "tick_overrun_count",
    "skipped_tick_count",
    "starvation_guard_count",
    "drop_count",
    "reject_count",
    "stale_drop_count",
    "deadline_miss_count",
)


class Source(NamedTuple):
    """Where a graph and its component types come from, and where its runs are kept."""

    file: Path
    components: list[str]
    limits: Mapping[str, int]
    keeping: Keeping = Keeping(None, None, 0)


# --- the commands --------------------------------------------------------------------------------


def run(source: Source, bounds: dict[str, Any], *, as_json: bool) -> None:
    """Run a graph and say what it came to."""
    result = _run(source, bounds, quiet=as_json)
    if as_json:
        print_json(result.summary())
    else:
        for line in _result_lines(result):
            typer.echo(line)
    _leave(result)


def metrics(source: Source, bounds: dict[str, Any], *, as_json: bool) -> None:
    """Run a graph and print every metric."""
    result = _run(source, bounds, quiet=True)
    if as_json:
        print_json(result.summary())
    else:
        for metric in result.runtime_metrics:
            whose = metric.component_id or metric.channel_id or metric.lane
            typer.echo(f"{metric.name:52} {whose:24} {metric.value:g}")
    _leave(result)


def trace(source: Source, bounds: dict[str, Any], form: str, output: Path | None) -> None:
    """Run a graph and print its trace."""
    result = _run(source, {**bounds, "trace": True}, quiet=True)
    events = list(result.trace.events()) if result.trace is not None else []
    write(_TRACES[form](events), output)
    _leave(result)


def bench(source: Source, steps: int, runs: int, *, as_json: bool) -> None:
    """Run a graph several times and say what an epoch and an invocation cost."""
    plan, registry = _opened(source)
    clock = SystemClock()
    seconds: list[float] = []
    while len(seconds) < runs:
        started = clock.monotonic()
        result = _run_plan(plan, registry, {"steps": steps}, source.keeping, quiet=True)
        seconds.append(clock.monotonic() - started)
        _leave(result)
    _bench_answer(result, seconds, steps, as_json=as_json)


def work(source: Source, path: Path, *, until_idle: bool, as_json: bool) -> None:
    """Run entries of a graph's queue lanes."""
    plan, registry = _opened(source)
    token = StopToken()
    with _stop_on_interrupt(token), _printing(quiet=as_json):
        count = run_entries(plan, registry, path, token, until_idle=until_idle)
    if as_json:
        print_json({"graph": plan.name, "entries_run": count})
    else:
        typer.echo(f"{plan.name}: entries run: {count:,}")


# --- running -------------------------------------------------------------------------------------


def _opened(source: Source) -> tuple[Plan, ComponentRegistry]:
    registry = registry_of(source.components)
    return open_plan(source.file, registry, limits_of(source.limits)), registry


def _run(source: Source, bounds: dict[str, Any], *, quiet: bool) -> RuntimeRunnerResult:
    plan, registry = _opened(source)
    return _run_plan(plan, registry, bounds, source.keeping, quiet=quiet)


def _run_plan(
    plan: Plan, registry: ComponentRegistry, bounds: dict[str, Any], keeping: Keeping, *, quiet: bool
) -> RuntimeRunnerResult:
    """Run a plan."""
    token = StopToken()
    on_epoch = progress(bounds.get("steps"), SystemClock())
    with _stop_on_interrupt(token), _printing(quiet=quiet), kept(plan, registry, keeping) as durable:
        options = RuntimeRunnerOptions(
            **bounds, stop_token=token, on_epoch=on_epoch, durable=durable, run_id=keeping.run_id
        )
        return RuntimeRunner(plan, registry, options).run()


def _printing(*, quiet: bool) -> contextlib.AbstractContextManager[Any]:
    """Where components print: when the answer is for scripts, to the error stream."""
    return contextlib.redirect_stdout(sys.stderr) if quiet else contextlib.nullcontext()


@contextlib.contextmanager
def _stop_on_interrupt(token: StopToken) -> Iterator[None]:
    """The first Ctrl-C stops the run at its next check; a second one ends the command."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        token.request()
        signal.signal(signal.SIGINT, before)

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def progress(steps: int | None, clock: Clock) -> Callable[[int], None] | None:
    """A line that says how far a long run is, where somebody looks at it."""
    if not sys.stderr.isatty():
        return None
    shown_at = clock.monotonic()

    def show(epoch: int) -> None:
        nonlocal shown_at
        if clock.monotonic() - shown_at >= PROGRESS_EVERY_S:
            shown_at = clock.monotonic()
            typer.echo(f"\repoch {epoch:,}" + (f" of {steps:,}" if steps else ""), nl=False, err=True)

    return show


def _leave(result: RuntimeRunnerResult) -> None:
    if result.scheduler_stop_reason == SchedulerStopReason.STOP_REQUESTED:
        raise typer.Exit(INTERRUPTED)
    if not result.ok:
        raise typer.Exit(1)


# --- printing ------------------------------------------------------------------------------------


def _result_lines(result: RuntimeRunnerResult) -> Iterator[str]:
    verdict = "ok" if result.ok else "failed"
    yield (
        f"{result.graph_name}: {verdict}, {result.scheduler_stop_reason.value} after {result.epochs:,} epochs, "
        f"{result.executed:,} invocations"
    )
    for metric in result.runtime_metrics:
        name = metric.name.rpartition(".")[2]
        if name in WORTH_SAYING and metric.value and not metric.component_id:
            yield f"  {metric.channel_id or metric.lane}: {name} {metric.value:g}"
    yield from (f"  error: {error}" for error in result.errors)


def _text(events: list[Any]) -> str:
    rows = []
    for event in events:
        whose = event.component_id or event.channel_id or event.lane
        worker = f" worker {event.worker_id}" if event.worker_id not in (None, "") else ""
        times = f"{event.start_offset_ns / 1e6:10.3f} ms {event.duration_ns / 1e3:10.1f} us"
        rows.append(f"{times}  epoch {event.epoch_id:>4}  {event.name:36} {whose}{worker}")
    return "\n".join(rows) + "\n"


def _json(events: list[Any]) -> str:
    document = {"trace_schema_version": TRACE_SCHEMA_VERSION, "events": events}
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def _ndjson(events: list[Any]) -> str:
    return "".join(f"{line.rstrip()}\n" for line in to_ndjson(events))


def _chrome(events: list[Any]) -> str:
    return msgspec.json.encode(to_chrome(events)).decode() + "\n"


_TRACES: dict[str, Callable[[list[Any]], str]] = {"text": _text, "json": _json, "ndjson": _ndjson, "chrome": _chrome}


def _bench_answer(result: RuntimeRunnerResult, seconds: list[float], steps: int, *, as_json: bool) -> None:
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
    cost = f"{per_invocation_us:.1f} us an invocation" if per_invocation_us is not None else "nothing was invoked"
    typer.echo(
        f"{result.graph_name}: {steps:,} epochs, {invocations:,} invocations in {median_us / 1e3:.1f} ms "
        f"(median of {len(seconds)}): {median_us / steps:.1f} us an epoch, {cost}"
    )

"""The callable runner: Python functions, on the slot's own thread or in a worker process that is already running.

    isolation     overhead             how it is stopped                   limits
    thread        microseconds         asked; the function must check      none: an advisory says so
    process       a tenth of a ms      asked, then killed                  memory, CPU time, files, processes (soft)

On a thread a function shares everything with the supervisor, and nothing can stop it from outside. In a process it can
be killed, and a crash affects only its own run. The worker process finds the function by name, because functions are
not sent between processes: it must be defined at the top level of a module or of the main program.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import msgspec

from rota.errors import RotaError, WorkersUnavailable
from rota.fleet.run_cpu import NO_GROUPS
from rota.fleet.runners.calling import CallPlacement, FunctionOutcome, call, call_in_worker, load_function
from rota.fleet.runners.context import STOP, RunContext, answer_request, facts_of
from rota.fleet.runners.contract import (
    NOT_FOUND,
    Assignment,
    RegisteredFunctions,
    RunChannel,
    RunOutcome,
    registered_function,
)
from rota.fleet.runners.cpu_hold import CpuHold
from rota.fleet.runners.printing import apart_from_prints, keep_prints, release_streams
from rota.fleet.runners.program import not_started_outcome, output_tail, whole_seconds
from rota.fleet.runners.resources import RunnerResources
from rota.host.call_outcome import CallOutcome
from rota.host.worker_pool import WorkerCall, WorkerPool
from rota.model.work import Agent, Limits

__all__ = ["CallableRunner"]

SLOTS = 4
PROCESS_LIMITS = ("cpu_s", "memory_bytes", "processes", "open_files")
STOP_REASON_CHARS_MAX = 500
_XCPU = "SIGXCPU"


class CallableRunner:
    """Runs functions: those that the program has registered for agents, and those that an agent's settings name."""

    def __init__(self, resources: RunnerResources, functions: RegisteredFunctions, *, slots: int = SLOTS) -> None:
        """`slots` is the maximum number of worker processes: one for each run at a time."""
        self._resources = resources
        self._functions = functions
        self._slots = slots
        self._loaded: dict[str, Callable[..., Any]] = {}
        self._pool_lock = threading.Lock()
        self._workers: WorkerPool | None = None

    def run(self, assignment: Assignment, channel: RunChannel) -> RunOutcome:
        """Call the agent's function with the payload."""
        started_at = self._resources.clock.monotonic()
        in_process = assignment.settings.isolation == "process"
        try:
            ended = self._in_process(assignment, channel) if in_process else self._on_thread(assignment, channel)
        except _FunctionNotFound as problem:
            return RunOutcome(exit_kind="failed", outcome=NOT_FOUND, result={"error": str(problem)})
        except RotaError as problem:
            return not_started_outcome(problem)
        if ended.exit_kind in ("failed", "crashed") and isinstance(ended.result, dict):
            ended = _with_output(ended, channel)
        wall_s = self._resources.clock.monotonic() - started_at
        usage = {"cpu_s": whole_seconds(ended.cpu_s), "wall_s": whole_seconds(wall_s)}
        return RunOutcome(
            exit_kind=ended.exit_kind,
            outcome=ended.outcome,
            result=ended.result,
            usage=usage,
            cpu_ms=round(ended.cpu_s * 1000),
            yield_after_s=ended.yield_after_s,
        )

    def close(self) -> None:
        """End the worker processes."""
        if self._workers is not None:
            self._discard(self._workers)
        release_streams()

    # --- on a thread -----------------------------------------------------------------------------

    def _on_thread(self, assignment: Assignment, channel: RunChannel) -> FunctionOutcome:
        function = self._function(assignment)
        facts = facts_of(assignment)
        stop_handle = _ThreadStopHandle()
        unenforced = _unenforced_limits(assignment.settings.limits)
        if assignment.cpu is not None:
            unenforced += [told for told, _state in assignment.cpu.states(NO_GROUPS, "thread")]
        channel.started(stop_handle, advisories=unenforced)
        with keep_prints(channel.log, echo=self._resources.echo):
            return call(function, facts, RunContext(facts, _with_own_streams(channel)), stop_handle.set_cancel)

    def _function(self, assignment: Assignment) -> Callable[..., Any]:
        path = assignment.settings.function
        if path is None:
            return self._registered(assignment.agent)
        if path not in self._loaded:
            try:
                self._loaded[path] = load_function(path)
            except Exception as problem:  # an import may raise anything
                raise _FunctionNotFound(f"cannot load {path}: {type(problem).__name__}: {problem}") from problem
        return self._loaded[path]

    def _registered(self, agent: Agent) -> Callable[..., Any]:
        function = registered_function(self._functions, agent)
        if function is None:
            raise _FunctionNotFound(f"no function is registered for agent {agent.name!r}")
        return function

    # --- in a worker process ---------------------------------------------------------------------

    def _in_process(self, assignment: Assignment, channel: RunChannel) -> FunctionOutcome:
        path = assignment.settings.function or self._path(assignment.agent)
        limits, grace_s = assignment.settings.limits, assignment.settings.stop_grace_s
        # a fallback: normally the supervisor's stop escalation ends the run when its wall time is over
        timeout_s = None if limits.wall_s is None else limits.wall_s + 2 * grace_s
        advisories: list[str] = []
        enforced: list[str] = []
        with self._held(assignment, advisories, enforced) as hold:
            placement = None if hold is None else self._placement(hold)
            worker_call = self._start(
                (path, facts_of(assignment), limits, self._resources.echo, placement),
                timeout_s=timeout_s,
                on_report=channel.log,
                on_request=lambda request: answer_request(channel, request),
            )
            try:
                channel.started(_ProcessStopHandle(worker_call), advisories=advisories, enforced=enforced)
                if hold is not None:
                    hold.report_changes(channel)
            except BaseException:
                worker_call.kill()
                worker_call.outcome()
                raise
            ended = worker_call.outcome()
            group = None if hold is None else hold.group
            cpu_s = ended.cpu_s if group is None else max(ended.cpu_s, group.cpu_s())
            return msgspec.structs.replace(_function_outcome(ended, limits), cpu_s=cpu_s)

    @contextmanager
    def _held(self, assignment: Assignment, advisories: list[str], enforced: list[str]) -> Iterator[CpuHold | None]:
        """Create the control group of a run with `cpu` settings, and remove it after the call."""
        if assignment.cpu is None:
            yield None
            return
        hold = CpuHold(self._resources, assignment, assignment.cpu, advisories, where="process")
        enforced += hold.enforced
        try:
            yield hold
        finally:
            hold.end()

    def _placement(self, hold: CpuHold) -> CallPlacement:
        files = [] if hold.group is None else hold.group.visit(self._resources.reaper.pid)
        return CallPlacement(files, hold.scheduling)

    def _path(self, agent: Agent) -> str:
        """Return the module:name under which a worker process finds a registered function."""
        function = self._registered(agent)
        module, qualified = getattr(function, "__module__", None), getattr(function, "__qualname__", "<")
        if module is None or "<" in qualified:
            raise _FunctionNotFound(
                f"agent {agent.name!r} cannot run in a process: {qualified} is not defined at the top level of a module"
            )
        return f"{module}:{qualified}"

    def _start(self, args: tuple[Any, ...], **options: Any) -> WorkerCall:
        workers = self._pool()
        try:
            return workers.start(call_in_worker, args, **options)
        except WorkersUnavailable:  # its reaper was lost, or its workers die: try once with a new pool
            self._discard(workers)
            return self._pool().start(call_in_worker, args, **options)

    def _discard(self, workers: WorkerPool) -> None:
        """End a pool. If another run has replaced it, the new one goes on: it runs that run."""
        with self._pool_lock:
            if self._workers is workers:
                self._workers = None
        workers.close()

    def _pool(self) -> WorkerPool:
        with self._pool_lock:
            if self._workers is None:
                main = any(getattr(function, "__module__", None) == "__main__" for function in self._functions.values())
                self._workers = WorkerPool(
                    self._resources.reaper,
                    self._slots,
                    preload=[call_in_worker.__module__],
                    main=main,
                    clock=self._resources.clock,
                )
            return self._workers


def _with_own_streams(channel: RunChannel) -> RunChannel:
    """Return a channel that does not print as the run: what rota logs during a call is not the function's output."""
    return cast("RunChannel", _ChannelWithOwnStreams(channel))


class _ChannelWithOwnStreams:
    def __init__(self, channel: RunChannel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._channel, name)
        if not callable(found):
            return found

        def call_apart(*arguments: Any, **options: Any) -> Any:
            with apart_from_prints():
                return found(*arguments, **options)

        return call_apart


def _with_output(ended: FunctionOutcome, channel: RunChannel) -> FunctionOutcome:
    """Add the end of what the function printed to its result, and its error to the log, as programs have it."""
    printed = output_tail(channel)
    error = f"{ended.result.get('traceback', '')}{ended.result.get('error', '')}\n"
    channel.log(error.encode("utf-8", "replace"))
    if not printed:
        return ended
    return msgspec.structs.replace(ended, result={**ended.result, "output_tail": printed})


class _FunctionNotFound(Exception):
    """There is no function to call."""


def _unenforced_limits(limits: Limits) -> list[str]:
    return [
        f"{field} = {value:,} is not enforced: a function on a thread cannot be limited"
        for field in PROCESS_LIMITS
        if (value := getattr(limits, field)) is not None
    ]


def _function_outcome(ended: CallOutcome, limits: Limits) -> FunctionOutcome:
    """Translate how a call in a worker process ended."""
    if ended.kind == "returned" and isinstance(ended.value, FunctionOutcome):
        return ended.value
    result = {"error": ended.message}
    if ended.kind == "timed_out":
        result["error"] = f"ran longer than {limits.wall_s:g} s and was killed"
        return FunctionOutcome(exit_kind="failed", outcome="timed_out", result=result)
    if ended.kind == "killed":
        return FunctionOutcome(exit_kind="cancelled", result=result)
    if limits.cpu_s is not None and _XCPU in ended.message:
        result["error"] = f"used more than {math.ceil(limits.cpu_s)} s of CPU time"
        return FunctionOutcome(exit_kind="failed", outcome="over_cpu", result=result)
    return FunctionOutcome(exit_kind="crashed", result=result)


# --- stopping --------------------------------------------------------------------------------------


class _ThreadStopHandle:
    """Stops a function on a thread: by request only. The task of an async function is cancelled."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_requested = False
        self._cancel: Callable[[], None] | None = None

    def set_cancel(self, cancel: Callable[[], None]) -> None:
        """The function runs as a task, which `cancel` cancels."""
        with self._lock:
            self._cancel = cancel
            is_requested = self._is_requested
        if is_requested:
            cancel()

    def request_stop(self, reason: str) -> bool:  # noqa: ARG002  # the function reads it from its context
        """Cancel the task of an async function. Others see the request in their context."""
        with self._lock:
            self._is_requested = True
            cancel = self._cancel
        if cancel is not None:
            cancel()
        return True

    def terminate(self) -> bool:
        """Not supported: a thread receives no signals."""
        return False

    def kill(self) -> bool:
        """Not supported: a thread cannot be killed."""
        return False


class _ProcessStopHandle:
    """Stops a function in a worker process: by request, then SIGKILL."""

    def __init__(self, worker_call: WorkerCall) -> None:
        self._call = worker_call

    def request_stop(self, reason: str) -> bool:
        """Tell the worker; an async function is cancelled, another sees it when it checks."""
        return self._call.notify((STOP, reason[:STOP_REASON_CHARS_MAX]))

    def terminate(self) -> bool:
        """Not supported: a worker process serves many runs, so it is asked or killed."""
        return False

    def kill(self) -> bool:
        """Kill the worker process; the pool starts another."""
        self._call.kill()
        return True

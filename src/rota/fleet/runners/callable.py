"""Python functions as agents: on the slot's own thread, or in a warm worker process.

    isolation     costs                a stop                              limits
    thread        microseconds         asked: the function must look       none: an advisory says so
    process       a tenth of a ms      asked, then killed                  memory, CPU time, files, processes: soft ones

On a thread a function shares everything with the supervisor and nothing can end it but itself. In a process it can be
killed, and may crash alone. There it is found by its name, since functions do not travel: it must stand at the top of
a module, or of the main program.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from typing import Any

from rota.errors import RotaError, WorkersUnavailable
from rota.fleet.runners.calling import Called, call, call_in_worker, found
from rota.fleet.runners.context import STOP, RunContext, answer, facts_of
from rota.fleet.runners.contract import Assignment, Line, Outcome
from rota.fleet.runners.program import not_started, whole_seconds
from rota.fleet.runners.resources import Workshop
from rota.host import outcome as host
from rota.host.worker_pool import Call, WarmWorkers
from rota.model.work import Limits

__all__ = ["CallableRunner"]

SLOTS = 4
PROCESS_LIMITS = ("cpu_s", "memory_bytes", "processes", "open_files")
STOP_REASON_CHARS_MAX = 500
_XCPU = "SIGXCPU"


class CallableRunner:
    """Runs functions: those it was given by agent name, and those that a plan names."""

    def __init__(self, workshop: Workshop, functions: Mapping[str, Callable[..., Any]], *, slots: int = SLOTS) -> None:
        """`slots` is how many worker processes there are at most: as many as can be asked for at once."""
        self._workshop = workshop
        self._functions = functions
        self._slots = slots
        self._loaded: dict[str, Callable[..., Any]] = {}
        self._making = threading.Lock()
        self._workers: WarmWorkers | None = None

    def run(self, work: Assignment, line: Line) -> Outcome:
        """Call the agent's function with the payload."""
        started_at = self._workshop.clock.monotonic()
        in_process = work.plan.isolation == "process"
        try:
            called = self._in_process(work, line) if in_process else self._on_thread(work, line)
        except _NoFunction as problem:
            return Outcome(exit_kind="failed", outcome="not_found", result={"error": str(problem)})
        except RotaError as problem:
            return not_started(problem)
        wall_s = self._workshop.clock.monotonic() - started_at
        usage = {"cpu_s": whole_seconds(called.cpu_s), "wall_s": whole_seconds(wall_s)}
        return Outcome(
            exit_kind=called.exit_kind,
            outcome=called.outcome,
            result=called.result,
            usage=usage,
            back_in_s=called.back_in_s,
        )

    def close(self) -> None:
        """End the worker processes."""
        with self._making:
            workers, self._workers = self._workers, None
        if workers is not None:
            workers.close()

    # --- on a thread -----------------------------------------------------------------------------

    def _on_thread(self, work: Assignment, line: Line) -> Called:
        function = self._function(work)
        facts = facts_of(work)
        stops = _ThreadStops()
        line.began(stops, advisories=_not_in_force(work.plan.limits))
        return call(function, facts, RunContext(facts, line), stops.can_cancel)

    def _function(self, work: Assignment) -> Callable[..., Any]:
        where = work.plan.function
        if where is None:
            return self._registered(work.agent.name)
        if where not in self._loaded:
            try:
                self._loaded[where] = found(where)
            except Exception as problem:  # whatever an import may raise
                raise _NoFunction(f"{where} cannot be loaded: {type(problem).__name__}: {problem}") from problem
        return self._loaded[where]

    def _registered(self, name: str) -> Callable[..., Any]:
        function = self._functions.get(name)
        if function is None:
            raise _NoFunction(f"no function is registered for agent {name!r}")
        return function

    # --- in a worker process ---------------------------------------------------------------------

    def _in_process(self, work: Assignment, line: Line) -> Called:
        where = work.plan.function or self._where(work.agent.name)
        limits, grace_s = work.plan.limits, work.plan.stop_grace_s
        # the supervisor climbs the ladder when the time is over; this is for when it cannot
        timeout_s = None if limits.wall_s is None else limits.wall_s + 2 * grace_s
        under_way = self._start(
            (where, facts_of(work), limits),
            timeout_s=timeout_s,
            on_note=line.log,
            on_ask=lambda question: answer(line, question),
        )
        try:
            line.began(_ProcessStops(under_way))
        except BaseException:
            under_way.kill()
            under_way.outcome()
            raise
        return _called(under_way.outcome(), limits)

    def _where(self, name: str) -> str:
        """Where a registered function is found by another process."""
        function = self._registered(name)
        module, qualified = getattr(function, "__module__", None), getattr(function, "__qualname__", "<")
        if module is None or "<" in qualified:
            raise _NoFunction(f"agent {name!r} cannot run in a process: {qualified} does not stand at the top")
        return f"{module}:{qualified}"

    def _start(self, args: tuple[Any, ...], **how: Any) -> Call:
        try:
            return self._pool().start(call_in_worker, args, **how)
        except WorkersUnavailable:  # its minder was lost, or its workers die: a new pool, once
            self.close()
            return self._pool().start(call_in_worker, args, **how)

    def _pool(self) -> WarmWorkers:
        with self._making:
            if self._workers is None:
                main = any(getattr(function, "__module__", None) == "__main__" for function in self._functions.values())
                self._workers = WarmWorkers(
                    self._workshop.minder,
                    self._slots,
                    preload=[call_in_worker.__module__],
                    main=main,
                    clock=self._workshop.clock,
                )
            return self._workers


class _NoFunction(Exception):
    """There is nothing to call."""


def _not_in_force(limits: Limits) -> list[str]:
    asked = {field: getattr(limits, field) for field in PROCESS_LIMITS}
    return [
        f"{field} ({value:,} was asked) is not in force: a function on a thread cannot be limited"
        for field, value in asked.items()
        if value is not None
    ]


def _called(ended: host.Outcome, limits: Limits) -> Called:
    """How a call in a worker ended, as a run's end."""
    if ended.kind == "returned" and isinstance(ended.value, Called):
        return ended.value
    result = {"error": ended.message}
    if ended.kind == "timed_out":
        result["error"] = f"it ran longer than {limits.wall_s:g} s, and was killed"
        return Called(exit_kind="failed", outcome="timed_out", result=result)
    if ended.kind == "killed":
        return Called(exit_kind="cancelled", result=result)
    if limits.cpu_s is not None and _XCPU in ended.message:
        result["error"] = f"it used more than {math.ceil(limits.cpu_s)} s of CPU time"
        return Called(exit_kind="failed", outcome="over_cpu", result=result)
    return Called(exit_kind="crashed", result=result)


# --- stopping --------------------------------------------------------------------------------------


class _ThreadStops:
    """A function on a thread can only be asked; an async one is cancelled where it waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked = False
        self._cancel: Callable[[], None] | None = None

    def can_cancel(self, cancel: Callable[[], None]) -> None:
        """There is a task now; this cancels it."""
        with self._lock:
            self._cancel = cancel
            asked = self._asked
        if asked:
            cancel()

    def ask(self, reason: str) -> bool:  # noqa: ARG002  # the function reads it from its context
        """Cancel its task, if it has one; the context knows already."""
        with self._lock:
            self._asked = True
            cancel = self._cancel
        if cancel is not None:
            cancel()
        return True

    def terminate(self) -> bool:
        """A thread gets no signals."""
        return False

    def kill(self) -> bool:
        """A thread cannot be ended."""
        return False


class _ProcessStops:
    """A function in a worker process can be asked and killed."""

    def __init__(self, under_way: Call) -> None:
        self._call = under_way

    def ask(self, reason: str) -> bool:
        """Tell it; it hears when it looks, and an async one at once."""
        return self._call.tell((STOP, reason[:STOP_REASON_CHARS_MAX]))

    def terminate(self) -> bool:
        """A worker serves others afterwards: it is asked or killed."""
        return False

    def kill(self) -> bool:
        """End the worker; another takes its place."""
        self._call.kill()
        return True

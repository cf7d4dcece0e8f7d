"""Two threads of a supervisor: one extends claims, one follows the journal and runs background tasks.

The second one waits on the journal, not on a timer. It wakes when an event is recorded or when a background task is
due. However many events are recorded, it reads the journal at most ten times a second, and only the kinds of event that
cancellation and the background tasks need. A task may take long, as triggers do for thousands of events that were
recorded while no supervisor ran; so claims have a thread of their own, or they would expire meanwhile. Without runs
that one writes nothing but the supervisor's own registration, every `WORKER_REFRESH_S`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from rota.errors import RotaError, StoreCorrupt, StoreReplaced, StoreUnavailable
from rota.fault_log import FaultLog
from rota.fleet.live_run import LiveRun
from rota.kernel.paging import READ_MAX
from rota.model.event_codec import decode
from rota.model.events import CancelRequested, Event, RunOverBudget
from rota.service.api import SchedulerApi
from rota.service.outages import RETRY_S
from rota.service.worker_registration import WorkerRegistration
from rota.store.author import keeping_author

__all__ = ["BackgroundTask", "Heartbeats"]

READ_PAUSE_S = 0.1  # between two reads of the journal
CLOCK_CHECK_S = 5.0  # how late a task notices that the wall clock has jumped, and both that the machine was asleep


class BackgroundTask(Protocol):
    """Work beside the runs, done on the background thread: in response to events, or when it is due."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of event to receive."""
        ...

    def on_events(self, events: Sequence[Event]) -> None:
        """Handle recorded events; other kinds than the requested ones may be among them."""
        ...

    def due_in_s(self) -> float | None:
        """How long until the task is due; None if it does not depend on time."""
        ...

    def on_due(self) -> None:
        """Do what is due."""
        ...


class Heartbeats:
    """Sends the heartbeats of a supervisor's runs and runs its background tasks, each on a thread."""

    def __init__(
        self,
        api: SchedulerApi,
        heartbeat_s: float,
        runs: Callable[[], list[LiveRun]],
        tasks: Sequence[BackgroundTask],
        *,
        registration: WorkerRegistration,
        preparing: Callable[[], list[tuple[int, int]]] = list,
        on_replaced: Callable[[StoreReplaced], bool] = lambda _: False,
    ) -> None:
        self._api = api
        self._on_replaced = on_replaced  # called when the store is no longer at its path; returns whether it acted
        self._heartbeat_s = heartbeat_s
        self._runs = runs
        self._preparing = preparing  # entries and tokens of claims whose runs do not exist yet
        self._tasks = tasks
        self._registration = registration
        own = {CancelRequested.kind, RunOverBudget.kind}
        self._kinds = tuple(sorted({*own, *(kind for task in tasks for kind in task.kinds)}))
        self._closing = threading.Condition()
        self._is_over = False
        self._faults = FaultLog("rota.fleet")  # of the thread's own turns, and of each thing that a task does
        self._reading = threading.Lock()  # held while events are handled
        self._cursor = api.journal.cursor()
        self._threads = [
            threading.Thread(target=keeping_author(self._keep_claims), name="rota-heartbeats", daemon=True),
            threading.Thread(target=keeping_author(self._serve), name="rota-background", daemon=True),
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def close(self, record: Callable[[], None]) -> None:
        """Stop the threads. `record` writes an event, which wakes the wait on the journal."""
        with self._closing:
            self._is_over = True
            self._closing.notify_all()
        record()
        for thread in self._threads:
            thread.join()

    def _keep_claims(self) -> None:
        """Extend the claims and renew the registration when it is time, whatever the background tasks do."""
        heartbeat_at = self._api.clock.monotonic() + self._heartbeat_s
        while not self._is_over:
            try:
                if (at := self._api.clock.monotonic()) >= heartbeat_at:
                    self._send_heartbeats()
                    heartbeat_at = at + self._heartbeat_s
                self._registration.renew_if_due()
                self._faults.worked("claims")
                due_in_s = min(heartbeat_at - self._api.clock.monotonic(), self._registration.due_in_s, CLOCK_CHECK_S)
                pause_s = max(READ_PAUSE_S, due_in_s)
            except Exception as problem:  # also a defect: without heartbeats every claim would expire
                pause_s = self._after_fault("heartbeats", problem, of="claims")
            self._pause(pause_s)

    def _serve(self) -> None:
        with self._reading:
            for task in self._tasks:  # triggers have a cursor of their own: events may have passed before this start
                self._guarded(task.on_events, (), outages=False)
        while not self._is_over:
            pause_s = READ_PAUSE_S
            try:
                cursor = self._api.journal.wait(self._cursor, self._until_due_s())
                with self._reading:
                    self._read_journal(cursor)
                    self._run_due_tasks()
                self._faults.worked()
            except Exception as problem:  # also a defect: only this thread cancels runs and fires triggers
                pause_s = self._after_fault("background thread", problem)
            self._pause(pause_s)

    def _after_fault(self, what: str, problem: Exception, of: str | None = None) -> float:
        """Log what went wrong, unless that ends the supervisor; return how long to pause."""
        if isinstance(problem, StoreReplaced) and self._on_replaced(problem):
            return READ_PAUSE_S
        self._faults.failed(what, problem, then=f"trying every {RETRY_S:g} s", of=of)
        return RETRY_S

    def _pause(self, pause_s: float) -> None:
        with self._closing:
            if not self._is_over:
                self._api.clock.wait(self._closing, pause_s)

    def catch_up(self) -> None:
        """Handle all events up to now and do what is due, on the calling thread."""
        with self._reading:
            self._read_journal(self._api.journal.cursor())
            self._run_due_tasks()

    def _until_due_s(self) -> float:
        due_in_s = [min(due_s, CLOCK_CHECK_S) for task in self._tasks if (due_s := task.due_in_s()) is not None]
        return max(0.0, min([self._heartbeat_s, *due_in_s]))

    def _send_heartbeats(self) -> None:
        """Extend every claim; stop a run whose claim was lost or whose entry is to be cancelled."""
        preparing = self._preparing()  # first: one of them may become a run now, and must not be in neither list
        runs = self._runs()
        if not runs and not preparing:
            return
        answers = self._api.queue.heartbeat_many([*((run.entry.sched_id, run.token) for run in runs), *preparing])
        for run, answer in zip(runs, answers[: len(runs)], strict=True):
            if not isinstance(answer, RotaError):
                if answer.cancel_requested:
                    run.stop("cancelled")
            elif any(run is other for other in self._runs()):  # otherwise the run has ended in the meantime
                run.stop("fenced")

    def _read_journal(self, cursor: int) -> None:
        while self._cursor < cursor and not self._is_over:
            events = self._api.journal.tail(self._cursor, READ_MAX, kinds=self._kinds)
            self._stop_cancelled(events)
            self._stop_over_budget(events)
            for task in self._tasks:
                self._guarded(task.on_events, events)
            self._cursor = cursor if len(events) < READ_MAX else events[-1].event_id

    def _stop_cancelled(self, events: Sequence[Event]) -> None:
        cancelled = {
            sched_id for event in events if event.kind == CancelRequested.kind for sched_id in _cancelled_by(event)
        }
        for run in self._runs() if cancelled else ():
            if run.entry.sched_id in cancelled:
                run.stop("cancelled")

    def _stop_over_budget(self, events: Sequence[Event]) -> None:
        """Stop runs whose programs have charged more than they may use: those charges pass the supervisor by."""
        over = [data for event in events if event.kind == RunOverBudget.kind and (data := _over_budget(event))]
        for data in over:
            for run in self._runs():
                if (run.entry.sched_id, run.token) == (data.sched_id, data.token):
                    run.stop_over_budget(data.level)

    def _run_due_tasks(self) -> None:
        for task in self._tasks:
            if (due_s := task.due_in_s()) is not None and due_s <= 0:
                self._guarded(task.on_due)

    def _guarded(self, act: Callable[..., None], *arguments: object, outages: bool = True) -> None:
        """Let a task act. A fault of one must not keep the events from the others; an outage concerns all."""
        try:
            act(*arguments)
        except Exception as problem:
            if outages and isinstance(problem, StoreUnavailable | StoreReplaced):
                raise
            self._faults.failed("background task", problem, then="continuing", of=act)
        else:
            self._faults.worked(act)


def _cancelled_by(event: Event) -> list[int]:
    """Return the entries that an event asks to cancel; none if it cannot be read."""
    try:
        data = decode(event.kind, event.payload)
    except StoreCorrupt:
        return []
    return data.sched_ids if isinstance(data, CancelRequested) else []


def _over_budget(event: Event) -> RunOverBudget | None:
    """Return what an event says of a run over budget; None if it cannot be read."""
    try:
        data = decode(event.kind, event.payload)
    except StoreCorrupt:
        return None
    return data if isinstance(data, RunOverBudget) else None

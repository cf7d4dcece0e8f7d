"""The loop that keeps a number of equal slots busy.

A slot holds one run at a time; each run has its own thread. The loop runs on one thread and is the only one that
reports ends and claims entries. It collects the reports of all runs that have ended and, in one commit, writes them and
claims as many entries as slots are free. So the commit that ends a run also refills its slot, and runs that end
together share a commit. Without work the loop waits inside the claim instead of polling. A run that ends during that
wait interrupts it.

    run ends → pending report → (interrupt) → end 3 runs and claim up to 3 entries → start them → …

A run that waits for its children releases its slot. The loop may start another run there (perhaps the child), and the
parent takes the next free slot before anything new is claimed. So waiting parents cannot deadlock, and never more runs
work than there are slots.

Reports that cannot be written (a full disk, a daemon that restarts) stay pending and are retried.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from rota.errors import RotaError
from rota.fleet.live_run import LiveRun
from rota.fleet.runners.contract import RunOutcome
from rota.kernel.run_reports import RunReport
from rota.model.work import ReadyEntry
from rota.service.api import SchedulerApi

__all__ = ["PARK_S", "SlotLoop"]

PARK_S = 300.0  # how long one wait for entries lasts before it is repeated
QUICK_S = 0.001  # a run shorter than this costs less than its commit
LINGER_S = 0.0005  # how long a commit waits for such runs
RETRY_S = 1.0  # after a failed commit
_log = logging.getLogger("rota.fleet")


class SlotLoop:
    """Keeps its slots busy until it is told to stop claiming and its last run has ended."""

    def __init__(
        self,
        api: SchedulerApi,
        worker_id: str,
        incarnation: str,
        slots: int,
        *,
        kinds: Sequence[str] = (),
        claim_timeout_s: float = 60.0,
        prepare: Callable[[SlotLoop, ReadyEntry, str], tuple[LiveRun, Callable[[], RunOutcome]]],
        before_report: Callable[[LiveRun, RunReport], None],
        after_report: Callable[[LiveRun, RunReport], None],
    ) -> None:
        self.worker_id = worker_id
        self.slots = slots
        self.kinds = tuple(kinds)
        self._api = api
        self._incarnation = incarnation
        self._claim_timeout_s = claim_timeout_s
        self._prepare = prepare  # returns a run for an entry, and the function that executes it
        self._before_report = before_report  # called for each run that has ended, before its report is committed
        self._after_report = after_report  # called for each run whose report is committed
        lock = threading.RLock()  # guards all below
        self._changed = threading.Condition(lock)
        self._quick_ended = threading.Condition(lock)  # the runs that `_wait_for_quick_runs` waits for
        self._started = 0  # runs started by the last iteration
        self._free = [f"slot-{number}" for number in range(slots, 0, -1)]
        self._last_number = slots  # the highest slot number so far
        self._surplus = 0  # slots to remove when they become free
        self._runs: dict[int, LiveRun] = {}  # by sched_id
        self._slot_of: dict[int, str] = {}  # by sched_id; a run that waits for children has none
        self._pending: list[tuple[LiveRun, RunReport]] = []  # reports that are not committed yet
        self._reacquiring: deque[tuple[int, threading.Event]] = deque()  # runs that want a slot again
        self._mean_run_s = QUICK_S  # moving average of how long a run lasts
        self._is_parked = False
        self._is_claiming = True
        self._threads = _RunThreads("rota-run")

    # --- for the supervisor ----------------------------------------------------------------------

    @property
    def runs(self) -> list[LiveRun]:
        """The runs in progress, including those that wait for children."""
        with self._changed:
            return list(self._runs.values())

    @property
    def free(self) -> int:
        """The number of free slots."""
        with self._changed:
            return len(self._free)

    def find_run(self, sched_id: int) -> LiveRun | None:
        """Return the run of an entry, if it runs here."""
        with self._changed:
            return self._runs.get(sched_id)

    def resize(self, slots: int) -> None:
        """Change the number of slots. A slot in use is removed when its run has ended."""
        with self._changed:
            self._surplus += self.slots - slots
            self.slots = slots
            while self._surplus < 0:
                self._last_number += 1
                self._free.append(f"slot-{self._last_number}")
                self._surplus += 1
            self._remove_surplus()
            was_parked = self._wake()
        self._interrupt_claim(was_parked)

    def _remove_surplus(self) -> None:
        """Remove free slots that are too many. The lock is held."""
        while self._surplus > 0 and self._free:
            self._free.pop()
            self._surplus -= 1

    def stop_claiming(self) -> None:
        """Claim nothing more; `serve` returns when the current runs have ended."""
        with self._changed:
            self._is_claiming = False
            was_parked = self._wake()
        self._interrupt_claim(was_parked)

    def serve(self, *, until_idle: bool = False) -> None:
        """Run entries until `stop_claiming`, or with `until_idle` until there is nothing to claim."""
        while self._iterate(until_idle=until_idle):
            pass
        self._threads.stop_idle()

    # --- one iteration ---------------------------------------------------------------------------

    def _iterate(self, *, until_idle: bool) -> bool:
        """Report, claim and start runs once; False when the loop is done."""
        with self._changed:
            self._remove_surplus()
            self._grant_slots()
            self._wait_for_quick_runs()
            reports, self._pending = self._pending, []
            wanted = len(self._free) if self._is_claiming else 0
            if not reports and not wanted:
                if not self._is_claiming and not self._runs:
                    return False
                self._api.clock.wait(self._changed)
                return True
            waits = not reports and not (until_idle and not self._runs)  # never delay a report
            self._is_parked = waits
        try:
            entries = self._report_and_claim(reports, wanted, PARK_S if waits else 0.0)
        finally:
            with self._changed:
                self._is_parked = False
        self._started = len(entries)
        for entry in entries:
            self._start(entry)
        return bool(entries or waits or reports)

    def _wait_for_quick_runs(self) -> None:
        """If runs are shorter than a commit, wait briefly so that those just started share it. The lock is held."""
        if self._mean_run_s < QUICK_S and (self._pending or not self._free):
            # real time, not the injected clock: this only decides how many runs share a commit
            self._quick_ended.wait_for(self._have_quick_ended, LINGER_S)

    def _have_quick_ended(self) -> bool:
        return len(self._pending) >= self._started

    def _report_and_claim(
        self, reports: list[tuple[LiveRun, RunReport]], wanted: int, wait_s: float
    ) -> list[ReadyEntry]:
        """Commit the reports and claim the next entries. If that fails, the reports are pending again."""
        try:
            answers, entries = self._api.turn(
                [report for _, report in reports],
                self.worker_id,
                wanted,
                wait_s=wait_s,
                claim_timeout_s=self._claim_timeout_s,
                incarnation=self._incarnation,
                kinds=self.kinds,
            )
        except RotaError as problem:
            _log.warning("cannot report or claim: %s; retrying in %g s", problem, RETRY_S)
            with self._changed:
                self._pending = reports + self._pending
                self._api.clock.wait(self._changed, RETRY_S)
            return []
        for (run, report), answer in zip(reports, answers, strict=True):
            if isinstance(answer, RotaError):
                _log.warning("the report of entry %s was refused: %s", report.sched_id, answer)
            self._after_report(run, report)
        return entries

    def _start(self, entry: ReadyEntry) -> None:
        with self._changed:
            slot = self._free.pop()
            self._slot_of[entry.sched_id] = slot
        run, execute = self._prepare(self, entry, slot)
        with self._changed:
            self._runs[entry.sched_id] = run
        self._threads.run(partial(self._run, run, execute))

    def _run(self, run: LiveRun, execute: Callable[[], RunOutcome]) -> None:
        """Execute a run on its own thread and queue its report."""
        outcome = execute()
        report = run.report(outcome)
        if report is not None:
            self._before_report(run, report)
        with self._changed:
            del self._runs[run.entry.sched_id]
            self._free.append(self._slot_of.pop(run.entry.sched_id))
            if report is not None:
                self._pending.append((run, report))
                self._mean_run_s += (report.wall_ms / 1000 - self._mean_run_s) / 8
            was_parked = self._wake()
        self._interrupt_claim(was_parked)

    # --- slots of runs that wait -----------------------------------------------------------------

    def release_slot(self, sched_id: int) -> None:
        """Free the slot of a run that waits for its children."""
        with self._changed:
            self._free.append(self._slot_of.pop(sched_id))
            was_parked = self._wake()
        self._interrupt_claim(was_parked)

    def reacquire_slot(self, sched_id: int) -> None:
        """Wait until the run has a slot again."""
        granted = threading.Event()
        with self._changed:
            self._reacquiring.append((sched_id, granted))
            was_parked = self._wake()
        self._interrupt_claim(was_parked)
        granted.wait()

    def _grant_slots(self) -> None:
        """Give free slots to the runs that wait for one, before anything new is claimed. The lock is held."""
        while self._reacquiring and self._free:
            sched_id, granted = self._reacquiring.popleft()
            self._slot_of[sched_id] = self._free.pop()
            granted.set()

    def _wake(self) -> bool:
        """Wake the loop; return whether it waits inside a claim, which must be interrupted. The lock is held."""
        self._changed.notify_all()
        if self._have_quick_ended():
            self._quick_ended.notify_all()
        was_parked, self._is_parked = self._is_parked, False
        return was_parked

    def _interrupt_claim(self, was_parked: bool) -> None:
        if was_parked:
            self._api.queue.nudge(self.worker_id, self._incarnation)


class _RunThreads:
    """Threads for runs. A thread that ends a run takes the next one: waking another costs as much as a short run."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0  # threads that wait for the inbox
        self._queued = 0  # work in the inbox; there is an idle thread for each

    def run(self, work: Callable[[], None]) -> None:
        """Run `work` on an idle thread, or on a new one."""
        with self._lock:
            self._queued += 1
            needs_thread = self._queued > self._idle
            if needs_thread:
                self._idle += 1
        self._inbox.put(work)
        if needs_thread:
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()

    def stop_idle(self) -> None:
        """Stop the idle threads."""
        with self._lock:
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._inbox.put(None)

    def _serve(self) -> None:
        while (work := self._inbox.get()) is not None:
            with self._lock:
                self._queued -= 1
                self._idle -= 1
            work()
            with self._lock:
                self._idle += 1

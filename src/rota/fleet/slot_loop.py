"""The loop that keeps a number of equal slots busy.

A slot holds one run at a time; each run has its own thread, except those that are only started here, because they are
executed elsewhere: the code that started such a run calls `end` when it has ended. The loop runs on one thread and is
the only one that reports ends and claims entries. It collects the reports of all runs that have ended and, in one
commit, writes them and claims as many entries as slots are free. So the commit that ends a run also refills its slot,
and runs that end together share a commit. Without work the loop waits inside the claim instead of polling. A run that
ends during that wait interrupts it.

    run ends → pending report → (interrupt) → end 3 runs and claim up to 3 entries → start them → …

A run that waits for its children releases its slot. The loop may start another run there (perhaps the child), and the
parent takes the next free slot before anything new is claimed. So waiting parents cannot deadlock, and never more runs
work than there are slots.

Reports that cannot be written now (a full disk, a daemon that restarts) stay pending and are retried. If the store
refuses a commit with several reports, or cannot read the row of one of them, they are sent one by one from then on
until none is left; one that is refused alone is sent in a form that can be stored (`storable`), and in the end only as
a failure. So no report keeps the others, or the next claim, waiting.

A run is known by its entry and the token of its claim: an entry whose claim expired during an outage may be claimed
here again while its earlier run still stops.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import msgspec

from rota.errors import InvalidInput, RotaError, SchemaMismatch, StoreCorrupt, StoreReplaced
from rota.fault_log import FaultLog
from rota.fleet.live_run import LiveRun
from rota.fleet.runners.contract import RunOutcome
from rota.kernel.run_reports import COMPLETE_MAX, INVALID_REPORT, CompletionAnswer, RunReport, storable
from rota.model.work import ReadyEntry
from rota.service.api import SchedulerApi
from rota.service.dispatcher import Dispatcher
from rota.service.outages import RETRY_S
from rota.store.author import keeping_author

__all__ = ["PARK_S", "PreparedRun", "SlotLoop"]

PARK_S = 300.0  # how long one wait for entries lasts before it is repeated
LEAVING_OUT_S = 5.0  # the same while the entries of some agents are left to others: these may run here by then
QUICK_S = 0.001  # a run shorter than this costs less than its commit
LINGER_S = 0.0005  # how long a commit waits for such runs
REPORT_TRIES = 5  # turns that fail before a loop that ends when it is idle, or at once, gives up its results
_log = logging.getLogger("rota.fleet")

RunKey: TypeAlias = tuple[int, int | None]  # sched_id and claim token
Pending: TypeAlias = tuple[LiveRun | None, RunReport]  # None: the run could not be prepared


class PreparedRun(NamedTuple):
    """A run, and the function that executes it; or, if it returns None, that starts it: `SlotLoop.end` ends it."""

    run: LiveRun
    execute: Callable[[], RunOutcome | None]


def run_key(entry: ReadyEntry) -> RunKey:
    """Return what identifies a run here."""
    return entry.sched_id, entry.token


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
        except_agents: Callable[[], tuple[int, ...]] = lambda: (),
        claim_timeout_s: float = 60.0,
        prepare: Callable[[SlotLoop, ReadyEntry, str], PreparedRun | RunReport | None],
        before_report: Callable[[LiveRun, RunReport], None],
        after_report: Callable[[LiveRun, RunReport | None], None],
    ) -> None:
        self.worker_id = worker_id
        self.slots = slots
        self.kinds = tuple(kinds)
        self._except_agents = except_agents  # those that cannot run here, as of now
        self._api = api
        self._incarnation = incarnation
        self._claim_timeout_s = claim_timeout_s
        self._prepare = prepare  # returns a run; a report if the entry cannot run; None if its claim is given up
        self._before_report = before_report  # called for each run that has ended, before its report is committed
        self._after_report = after_report  # called for each run whose report is committed, or (None) refused
        lock = threading.RLock()  # guards all below
        self._changed = threading.Condition(lock)
        self._quick_ended = threading.Condition(lock)  # the runs that `_wait_for_quick_runs` waits for
        self._started = 0  # runs started by the last iteration
        self._free = [f"slot-{number}" for number in range(slots, 0, -1)]
        self._last_number = slots  # the highest slot number so far
        self._surplus = 0  # slots to remove when they become free
        self._active: set[RunKey] = set()  # claimed and not ended, also while the run is prepared
        self._stops: dict[RunKey, Callable[[LiveRun], object]] = {}  # how to stop runs that are still prepared
        self._runs: dict[RunKey, LiveRun] = {}
        self._slot_of: dict[RunKey, str] = {}  # a run that waits for children has none
        self._pending: list[Pending] = []  # reports that are not committed yet
        self._batch_max = COMPLETE_MAX  # of them in one commit
        self._reacquiring: deque[tuple[RunKey, threading.Event]] = deque()  # runs that want a slot again
        self._mean_run_s = QUICK_S  # moving average of how long a run lasts
        self._is_parked = False
        self._is_claiming = True
        self._stop_new: Callable[[LiveRun], None] | None = None  # stops a run that begins all the same
        self.ended: Counter[str] = Counter()  # entries that ended here, by exit kind
        self.last_failed: int | None = None  # of them
        self._problem: RotaError | None = None  # why the last turn failed
        self._failures = 0  # turns that failed in a row
        self._faults = FaultLog("rota.fleet")  # of the loop, and of its turns
        self._ends_when_idle = False
        self._ends_at_once = False
        self._threads = _RunThreads("rota-run")

    # --- for the supervisor ----------------------------------------------------------------------

    @property
    def runs(self) -> list[LiveRun]:
        """The runs in progress, including those that wait for children."""
        with self._changed:
            return list(self._runs.values())

    @property
    def preparing(self) -> list[tuple[int, int]]:
        """The entries and claim tokens whose runs are still prepared."""
        with self._changed:
            return sorted(
                (sched_id, token) for sched_id, token in self._active - self._runs.keys() if token is not None
            )

    def stop_runs(self, stop: Callable[[LiveRun], object]) -> None:
        """Stop each run in this way; one that is still prepared is stopped as soon as it is ready."""
        with self._changed:
            runs = list(self._runs.values())
            self._stops.update(dict.fromkeys(self._active - self._runs.keys(), stop))
        for run in runs:
            stop(run)

    @property
    def free(self) -> int:
        """The number of free slots."""
        with self._changed:
            return len(self._free)

    def find_run(self, sched_id: int) -> LiveRun | None:
        """Return the run of an entry, if it runs here."""
        with self._changed:
            return next((run for (each, _), run in reversed(self._runs.items()) if each == sched_id), None)

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

    def stop_claiming(self, stop_new: Callable[[LiveRun], None] | None = None) -> None:
        """Claim nothing more; `serve` returns when the current runs have ended.

        A claim may be under way at this moment: `stop_new` stops what it begins.
        """
        with self._changed:
            self._is_claiming = False
            self._stop_new = stop_new or self._stop_new
            was_parked = self._wake()
        self._interrupt_claim(was_parked)

    def end_at_once(self) -> None:
        """Do not wait for a store that is away: after some turns that fail, results are given up."""
        with self._changed:
            self._ends_at_once, self._failures = True, 0
            self._changed.notify_all()

    @property
    def is_busy(self) -> bool:
        """Whether a run is in progress or its report is not committed yet."""
        with self._changed:
            return bool(self._active or self._pending)

    def serve(self, on_idle: Callable[[], bool] | None = None) -> None:
        """Run entries until `stop_claiming`.

        `on_idle` is called when nothing runs here and a claim returned nothing; it may wait, and returns whether to go
        on. A loop that has it also ends, with the error, if the store cannot be used: it must not look idle.
        """
        self._ends_when_idle = on_idle is not None
        going: bool | None = True
        while going:
            going = self._iterate_or_pause()
            if self._problem is not None and self._is_lost():
                raise self._problem
            if going is None and on_idle is not None:
                going = on_idle()
        self._threads.stop_idle()

    def _is_lost(self) -> bool:
        """Whether to give up: nothing runs, and the store cannot be used; with results to report, after some turns."""
        is_idle = self._ends_when_idle and self._failures > 0 and not self._active
        return is_idle and (not self._pending or self._failures >= REPORT_TRIES)

    def _iterate_or_pause(self) -> bool | None:
        try:
            going = self._iterate()
        except Exception as problem:  # a defect must not end the loop: the runs of all other agents depend on it
            self._faults.failed("slot loop", problem, then=f"trying every {RETRY_S:g} s")
            self._pause()
            return True
        self._faults.worked()
        return going

    def _pause(self) -> None:
        with self._changed:
            self._api.clock.wait(self._changed, RETRY_S)

    # --- one iteration ---------------------------------------------------------------------------

    def _iterate(self) -> bool | None:
        """Report, claim and start runs once; False when the loop is done, None when there was nothing to do."""
        with self._changed:
            self._remove_surplus()
            self._grant_slots()
            self._wait_for_quick_runs()
            reports, self._pending = self._pending[: self._batch_max], self._pending[self._batch_max :]
            wanted = self._wanted() if self._is_claiming else 0
            if not reports and not wanted:
                if not self._is_claiming and not self._active:
                    return False
                self._api.clock.wait(self._changed)
                return True
            waits = not reports and not (self._ends_when_idle and not self._active)  # never delay a report
            self._is_parked = waits
        try:
            entries = self._report_and_claim(reports, wanted, PARK_S if waits else 0.0)
        finally:
            with self._changed:
                self._is_parked = False
        self._started = len(entries)
        for entry in entries:
            self._start(entry)
        return True if entries or waits or reports else None

    def _wanted(self) -> int:
        """The number of entries to claim. The lock is held."""
        return len(self._free)

    def _wait_for_quick_runs(self) -> None:
        """If runs are shorter than a commit, wait briefly so that those just started share it. The lock is held."""
        if self._mean_run_s < QUICK_S and (self._pending or not self._free):
            # real time, not the injected clock: this only decides how many runs share a commit
            self._quick_ended.wait_for(self._have_quick_ended, LINGER_S)

    def _have_quick_ended(self) -> bool:
        return len(self._pending) >= self._started

    def _report_and_claim(self, reports: list[Pending], wanted: int, wait_s: float) -> list[ReadyEntry]:
        """Commit the reports and claim the next entries. If that fails, the reports are pending again."""
        try:
            answers, entries = self._turn([report for _, report in reports], wanted, wait_s)
        except RotaError as problem:
            if reports and isinstance(problem, StoreCorrupt) and wanted:  # is it a row of a report, or of the claim?
                return self._report_and_claim(reports, 0, 0.0)
            if reports and isinstance(problem, InvalidInput | StoreCorrupt):
                self._isolate(reports, problem)
                return []
            if self._is_final(problem) and not self._is_claiming:  # the supervisor ends without its store
                _say_given_up(reports, problem)
                return []
            self._problem, self._failures = problem, self._failures + 1
            self._put_back(reports)
            if not self._is_lost():
                self._faults.failed("cannot report or claim", problem, then=f"trying every {RETRY_S:g} s", of="turn")
                self._give_up_if_at_once(problem)
                self._pause()
            return []
        except Exception as problem:
            if not reports:
                raise
            self._faults.failed(f"a commit of {len(reports)} reports", problem, of="turn")
            self._isolate(reports, problem)
            return []
        self._problem, self._failures = None, 0
        self._faults.worked("turn")
        self._handle_answers(reports, answers)
        return entries

    def _is_final(self, problem: RotaError) -> bool:
        """Whether this process can never report again; a daemon that a newer rota has shut out may be replaced."""
        is_shut_out = isinstance(problem, SchemaMismatch) and isinstance(self._api, Dispatcher)
        return is_shut_out or isinstance(problem, StoreReplaced)

    def _give_up_if_at_once(self, problem: RotaError) -> None:
        with self._changed:
            if not self._ends_at_once or self._active or self._failures < REPORT_TRIES:
                return
            reports, self._pending = self._pending, []
        _say_given_up(reports, problem)

    @property
    def _kinds_now(self) -> tuple[str, ...]:
        """The kinds of entries that the next claim takes."""
        return self.kinds

    def _turn(
        self, reports: list[RunReport], wanted: int, wait_s: float
    ) -> tuple[list[CompletionAnswer], list[ReadyEntry]]:
        left_out = self._except_agents() if wanted else ()
        return self._api.turn(
            reports,
            self.worker_id,
            wanted,
            wait_s=min(wait_s, LEAVING_OUT_S) if left_out else wait_s,
            claim_timeout_s=self._claim_timeout_s,
            incarnation=self._incarnation,
            kinds=self._kinds_now,
            except_agents=left_out,
        )

    def _handle_answers(self, reports: list[Pending], answers: list[CompletionAnswer]) -> None:
        if self._batch_max == 1:
            with self._changed:
                self._batch_max = 1 if self._pending else COMPLETE_MAX
        for (run, sent), answer in zip(reports, answers, strict=True):
            report: RunReport | None = sent
            if isinstance(answer, RotaError):
                report = self._own_end(sent)
                if report is None:
                    _log.warning("the report of entry %s was refused: %s", sent.sched_id, answer)
                else:
                    self._count_end(report)
            elif answer[1] == "completed":
                self._count_end(sent)
            if run is not None:
                self._after_report(run, report)

    def _count_end(self, report: RunReport) -> None:
        exit_kind = report.exit_kind if report.back is None else "cancelled"
        self.ended[exit_kind] += 1
        if exit_kind in ("failed", "crashed"):
            self.last_failed = report.sched_id

    def _own_end(self, report: RunReport) -> RunReport | None:
        """Return the report with how the run has ended its entry itself, as by `rota complete`; None if it has not."""
        try:
            entry = self._api.queue.get(report.sched_id)
        except RotaError:
            return None
        if entry.token != report.token or entry.exit_kind is None:
            return None
        return msgspec.structs.replace(report, exit_kind=entry.exit_kind, outcome=entry.outcome, back=None)

    def _isolate(self, reports: list[Pending], problem: Exception) -> None:
        """Find the report because of which a commit was refused; replace it if it is the only one."""
        if len(reports) > 1:
            _log.warning("a commit of %s reports was refused: %s; sending them one by one", len(reports), problem)
            self._put_back(reports)
            self._batch_max = 1
            return
        ((run, report),) = reports
        _log.warning("the report of entry %s was refused: %s", report.sched_id, problem)
        replaced = next((shape(report) for shape in (storable, _as_failure) if shape(report) != report), None)
        if replaced is not None:
            self._put_back([(run, replaced)])
        else:
            _log.error("entry %s cannot be ended here: it is recovered when its claim expires", report.sched_id)

    def _put_back(self, reports: list[Pending]) -> None:
        with self._changed:
            self._pending = reports + self._pending

    def _start(self, entry: ReadyEntry) -> None:
        key = run_key(entry)
        with self._changed:
            self._active.add(key)
            slot = self._slot_of[key] = self._free.pop()
        self._threads.run(partial(self._run, entry, key, slot))

    def _run(self, entry: ReadyEntry, key: RunKey, slot: str) -> None:
        """Prepare and execute a run on its own thread, and queue its report."""
        run, report = None, None
        try:
            prepared = self._prepare(self, entry, slot)
            if isinstance(prepared, PreparedRun):
                run = prepared.run
                with self._changed:
                    self._runs[key] = run
                    stop = self._stops.pop(key, self._stop_new)
                if stop is not None:
                    stop(run)
                outcome = prepared.execute()
                if outcome is None:
                    return  # it has started
                report = self._report_of(run, outcome)
            else:
                report = prepared
        except BaseException as problem:  # a defect: the slot and the entry must not be lost with it
            _log.exception("run of entry %s: unexpected error", entry.sched_id)
            report = report or _crashed(entry, problem)
        self._end(key, run, report)

    def end(self, run: LiveRun, outcome: RunOutcome) -> None:
        """Queue the report of a run that was only started. Any thread may call it, once."""
        report = None
        try:
            report = self._report_of(run, outcome)
        except BaseException as problem:  # see above
            _log.exception("end of entry %s: unexpected error", run.entry.sched_id)
            report = report or _crashed(run.entry, problem)
        self._end(run_key(run.entry), run, report)

    def _report_of(self, run: LiveRun, outcome: RunOutcome) -> RunReport | None:
        report = run.report(outcome)
        if report is not None:
            self._before_report(run, report)
        return report

    def _end(self, key: RunKey, run: LiveRun | None, report: RunReport | None) -> None:
        """Free the slot of a run that has ended, and queue its report."""
        if run is not None and report is None:  # it lost its claim, or ended its entry itself and was stopped for it
            report = self._own_end(RunReport(sched_id=run.entry.sched_id, token=run.token))
        with self._changed:
            self._active.discard(key)
            self._stops.pop(key, None)
            self._runs.pop(key, None)
            self._free.append(self._slot_of.pop(key))
            if report is not None:
                self._pending.append((run, report))
                self._mean_run_s += (report.wall_ms / 1000 - self._mean_run_s) / 8
            was_parked = self._wake()
        self._interrupt_claim(was_parked)

    # --- slots of runs that wait -----------------------------------------------------------------

    def release_slot(self, key: RunKey) -> None:
        """Free the slot of a run that waits for its children."""
        with self._changed:
            self._free.append(self._slot_of.pop(key))
            was_parked = self._wake()
        self._interrupt_claim(was_parked)

    def reacquire_slot(self, key: RunKey) -> None:
        """Wait until the run has a slot again."""
        granted = threading.Event()
        with self._changed:
            self._reacquiring.append((key, granted))
            was_parked = self._wake()
        self._interrupt_claim(was_parked)
        granted.wait()

    def _grant_slots(self) -> None:
        """Give free slots to the runs that wait for one, before anything new is claimed. The lock is held."""
        while self._reacquiring and self._free:
            key, granted = self._reacquiring.popleft()
            self._slot_of[key] = self._free.pop()
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
            try:
                self._api.queue.nudge(self.worker_id, self._incarnation)
            except RotaError as problem:  # the claim that waits has lost the store, too, and returns by itself
                _log.warning("cannot interrupt a claim: %s", problem)


def _as_failure(report: RunReport) -> RunReport:
    """Return a report that has nothing but the failure of its run."""
    error = {"error": "the report of this run could not be stored"}
    return RunReport(
        sched_id=report.sched_id, token=report.token, exit_kind="failed", outcome=INVALID_REPORT, result=error
    )


def _crashed(entry: ReadyEntry, problem: BaseException) -> RunReport | None:
    if entry.token is None:
        return None
    return storable(
        RunReport(
            sched_id=entry.sched_id,
            token=entry.token,
            exit_kind="crashed",
            outcome="runner_failed",
            result={"error": f"{type(problem).__name__}: {problem}"},
        )
    )


def _say_given_up(reports: list[Pending], problem: RotaError) -> None:
    if reports:
        entries = ", ".join(f"#{report.sched_id}" for _, report in reports)
        text = "ending without reporting runs (%s), which are recovered when their claims expire: %s"
        _log.warning(text, entries, problem.message)


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
            threading.Thread(target=keeping_author(self._serve), name=self._name, daemon=True).start()

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

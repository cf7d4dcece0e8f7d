"""A shift: the loop that keeps a number of equal slots busy.

A slot is a place where one run runs; each run has a thread of its own while it lasts. One thread, the shift's, speaks
with the desk. It takes every report that has come in, and in one commit writes them down and takes as many entries as
slots are free: so a slot is refilled by the commit that ends its run, and runs that end together share that commit.
While there is nothing to take it waits, parked in the kernel, not asking again and again. A run that ends meanwhile
nudges it.

    run ends → report in the tray → (nudge) → turn: end 3 runs, take up to 3 entries → start them → …

A run that waits for its children gives up its seat: the shift may fill the slot with another run (the child, perhaps),
and the parent goes on when a slot is free again, before anything new is taken. So a fleet of parents that all wait
cannot lock itself up, and never more runs work than there are slots.

What cannot be written down (a full disk, a daemon that restarts) stays in the tray and is tried again.
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
from rota.fleet.runners.contract import Outcome
from rota.kernel.supervision import RunReport
from rota.model.work import ReadyEntry
from rota.service.api import Desk

__all__ = ["PARK_S", "Shift"]

PARK_S = 300.0  # how long one wait for entries lasts before it is begun again
QUICK_S = 0.001  # a run that is shorter than this costs less than its commit
LINGER_S = 0.0005  # how long a commit waits for such runs
RETRY_S = 1.0  # after the desk has failed
_log = logging.getLogger("rota.runtime")


class Shift:
    """Keeps its slots busy until it is told to take nothing more and its last run has ended."""

    def __init__(
        self,
        desk: Desk,
        worker_id: str,
        incarnation: str,
        slots: int,
        *,
        kinds: Sequence[str] = (),
        claim_timeout_s: float = 60.0,
        begin: Callable[[Shift, ReadyEntry, str], tuple[LiveRun, Callable[[], Outcome]]],
        ended: Callable[[LiveRun, RunReport], None],
        settled: Callable[[LiveRun, RunReport], None],
    ) -> None:
        self.worker_id = worker_id
        self.slots = slots
        self.kinds = tuple(kinds)
        self._desk = desk
        self._incarnation = incarnation
        self._claim_timeout_s = claim_timeout_s
        self._begin = begin  # makes a run of an entry, and what to call to run it
        self._ended = ended  # told of each run that has ended, before its end is written down
        self._settled = settled  # told of each run whose end is durable
        self._changed = threading.Condition()  # of all below
        self._free = [f"slot-{number}" for number in range(slots, 0, -1)]
        self._numbered = slots  # the highest number that a slot has had
        self._surplus = 0  # slots that are to go when they are free
        self._runs: dict[int, LiveRun] = {}  # by sched_id
        self._names: dict[int, str] = {}  # the slot of each run that has one
        self._tray: list[tuple[LiveRun, RunReport]] = []
        self._returning: deque[tuple[int, threading.Event]] = deque()  # parents that want a slot again
        self._usual_s = QUICK_S  # how long a run lasts, of late
        self._is_parked = False
        self._takes = True
        self._crew = _Crew("rota-run")

    # --- for the supervisor ----------------------------------------------------------------------

    @property
    def runs(self) -> list[LiveRun]:
        """What runs now, those that wait for children included."""
        with self._changed:
            return list(self._runs.values())

    @property
    def free(self) -> int:
        """How many slots are free."""
        with self._changed:
            return len(self._free)

    def run_of(self, sched_id: int) -> LiveRun | None:
        """The run of an entry, if it runs here."""
        with self._changed:
            return self._runs.get(sched_id)

    def resize(self, slots: int) -> None:
        """Have another number of slots. One that is in use goes when its run has ended."""
        with self._changed:
            self._surplus += self.slots - slots
            self.slots = slots
            while self._surplus < 0:
                self._numbered += 1
                self._free.append(f"slot-{self._numbered}")
                self._surplus += 1
            self._drop_surplus()
            parked = self._wake()
        self._nudge(parked)

    def _drop_surplus(self) -> None:
        """Slots that are free and too many go. The lock is held."""
        while self._surplus > 0 and self._free:
            self._free.pop()
            self._surplus -= 1

    def take_nothing_more(self) -> None:
        """Let what runs come to its end, and start nothing else."""
        with self._changed:
            self._takes = False
            parked = self._wake()
        self._nudge(parked)

    def serve(self, *, until_idle: bool = False) -> None:
        """Work until there is nothing left to do: told to take nothing more, or, if asked, nothing to be taken."""
        while self._turn(until_idle=until_idle):
            pass
        self._crew.dismiss()

    # --- one turn --------------------------------------------------------------------------------

    def _turn(self, *, until_idle: bool) -> bool:
        with self._changed:
            self._drop_surplus()
            self._seat_returning()
            self._linger()
            tray, self._tray = self._tray, []
            wanted = len(self._free) if self._takes else 0
            if not tray and not wanted:
                if not self._takes and not self._runs:
                    return False
                self._desk.clock.wait(self._changed)
                return True
            waits = not tray and not (until_idle and not self._runs)  # reports are answered before we wait
            self._is_parked = waits
        try:
            entries = self._at_the_desk(tray, wanted, PARK_S if waits else 0.0)
        finally:
            with self._changed:
                self._is_parked = False
        for entry in entries:
            self._start(entry)
        return bool(entries or waits or tray)

    def _linger(self) -> None:
        """Where runs take no longer than a commit does, let those under way come along. The lock is held."""
        if self._tray and self._runs and self._usual_s < QUICK_S:
            # by the machine's own clock: it decides nothing but how many share a commit
            self._changed.wait_for(lambda: not self._runs, LINGER_S)

    def _at_the_desk(self, tray: list[tuple[LiveRun, RunReport]], wanted: int, wait_s: float) -> list[ReadyEntry]:
        """Write down what ended and take what is next. What could not be written goes back into the tray."""
        try:
            answers, entries = self._desk.turn(
                [report for _, report in tray],
                self.worker_id,
                wanted,
                wait_s=wait_s,
                claim_timeout_s=self._claim_timeout_s,
                incarnation=self._incarnation,
                kinds=self.kinds,
            )
        except RotaError as problem:
            _log.warning("the desk cannot be reached (%s); trying again in %g s", problem, RETRY_S)
            with self._changed:
                self._tray = tray + self._tray
                self._desk.clock.wait(self._changed, RETRY_S)
            return []
        for (run, report), answer in zip(tray, answers, strict=True):
            if isinstance(answer, RotaError):
                _log.warning("the end of entry %s was not taken: %s", report.sched_id, answer)
            self._settled(run, report)
        return entries

    def _start(self, entry: ReadyEntry) -> None:
        with self._changed:
            slot = self._free.pop()
            self._names[entry.sched_id] = slot
        run, work = self._begin(self, entry, slot)
        with self._changed:
            self._runs[entry.sched_id] = run
        self._crew.run(partial(self._run, run, work))

    def _run(self, run: LiveRun, work: Callable[[], Outcome]) -> None:
        """On the run's own thread: run it, and hand in its report."""
        outcome = work()
        report = run.report(outcome)
        if report is not None:
            self._ended(run, report)
        with self._changed:
            del self._runs[run.entry.sched_id]
            self._free.append(self._names.pop(run.entry.sched_id))
            if report is not None:
                self._tray.append((run, report))
                self._usual_s += (report.wall_ms / 1000 - self._usual_s) / 8
            parked = self._wake()
        self._nudge(parked)

    # --- seats -----------------------------------------------------------------------------------

    def leave(self, sched_id: int) -> None:
        """A run gives up its slot for a while."""
        with self._changed:
            self._free.append(self._names.pop(sched_id))
            parked = self._wake()
        self._nudge(parked)

    def take_again(self, sched_id: int) -> None:
        """Wait for a slot to go on in."""
        seated = threading.Event()
        with self._changed:
            self._returning.append((sched_id, seated))
            parked = self._wake()
        self._nudge(parked)
        seated.wait()

    def _seat_returning(self) -> None:
        """Parents that came back are seated before anything new is taken. The lock is held."""
        while self._returning and self._free:
            sched_id, seated = self._returning.popleft()
            self._names[sched_id] = self._free.pop()
            seated.set()

    def _wake(self) -> bool:
        """Let the shift look again; whether it is parked and has to be nudged for that. The lock is held."""
        self._changed.notify_all()
        parked, self._is_parked = self._is_parked, False
        return parked

    def _nudge(self, parked: bool) -> None:
        if parked:
            self._desk.queue.nudge(self.worker_id, self._incarnation)


class _Crew:
    """Threads for runs. One that has finished its run waits for the next: starting one costs as much as a small run."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[Callable[[], None] | None]] = []

    def run(self, work: Callable[[], None]) -> None:
        """Run this on a thread that has nothing else to do."""
        with self._lock:
            hand = self._idle.pop() if self._idle else None
        if hand is None:
            hand = queue.SimpleQueue()
            threading.Thread(target=self._serve, args=(hand,), name=self._name, daemon=True).start()
        hand.put(work)

    def dismiss(self) -> None:
        """Let those who have nothing to do go."""
        with self._lock:
            idle, self._idle = self._idle, []
        for hand in idle:
            hand.put(None)

    def _serve(self, hand: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        while (work := hand.get()) is not None:
            work()
            with self._lock:
                self._idle.append(hand)

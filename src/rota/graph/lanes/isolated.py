"""The isolated_thread lane: one thread that belongs to one lane.

Without a cadence the thread sleeps until a boundary brings it something. With one it ticks by itself, at the pace of
its own period and whatever the rest of the graph does: several such lanes are several independent rates. What arrives
between two ticks waits for the next. A tick that is late is dealt with by the lane's overrun policy (see `pacing`).
"""

from __future__ import annotations

import threading

from rota.graph.lanes.independent import IndependentLane
from rota.graph.lanes.pacing import Pacer
from rota.graph.lanes.threads import WorkerReport, settle_in, worker_name
from rota.graph.reports import RunStopped, words

__all__ = ["IsolatedThread"]


class IsolatedThread(IndependentLane):
    """An independent lane with a thread of its own."""

    worker_report: WorkerReport | None = None
    _thread: threading.Thread | None = None
    _released = False
    _closing = False
    _last_look = False

    def start(self) -> None:
        """Start the thread and wait until it is ready."""
        if not self.lane.components:
            return
        self.meter.worker_count = 1
        self._thread = threading.Thread(target=self._run, name=worker_name(self.lane, 0), daemon=True)
        self._thread.start()
        with self.lock:
            self.lock.wait_for(lambda: self.worker_report is not None)

    def release(self) -> None:
        """Its components are active: it may begin."""
        with self.lock:
            self._released = True
            self.lock.notify_all()

    def stop(self, *, last_look: bool) -> None:
        """Let the thread finish what was admitted, then end it and wait for that.

        With a last look it also takes in what was committed and not seen yet; a stop does without.
        """
        with self.lock:
            self._last_look = last_look and not self.lane.period_ns  # a cadence looks at its ticks only
            self._closing = True
            self.lock.notify_all()
        if self._thread is not None:
            self._thread.join()
        self.give_up()

    def pass_on(self, interrupt: BaseException) -> None:
        """On a thread of its own there is nobody to interrupt: a component that exits has failed, and that is all."""

    def _at_boundary(self) -> None:
        if not self.lane.period_ns:  # with a cadence, a turn is a tick
            self.begin_turn()
            self.meter.tick_count += 1
            self.lock.notify_all()

    def _run(self) -> None:
        report = settle_in(self.lane, 0)
        with self.lock:
            self.worker_report = report
            self.lock.notify_all()
            self.lock.wait_for(lambda: self._released or self._closing)
        try:
            if self.lane.period_ns:
                self._keep_pace()
            else:
                self._follow_events()
            while self.run_next(look=self._last_look):  # what was admitted is executed, also after a stop
                pass
        except RunStopped:
            pass  # the failure is recorded, and the run looks for it
        except BaseException as problem:  # a member of a loop that exits: nobody else would notice
            self.settlement.reports.error("runtime", "lane_died", words(problem), lane=self.lane.id)
        finally:
            self.coroutines.close()

    def _follow_events(self) -> None:
        while self._wait_for_news():
            self.run_next()

    def _wait_for_news(self) -> bool:
        """Sleep until there is something to look at; False when the run is over."""
        with self.lock:
            self.lock.wait_for(lambda: self._closing or self._has_news)
            return not self._closing

    def _keep_pace(self) -> None:
        clock, recorder = self.settlement.clock, self.settlement.recorder
        pacer = Pacer(self.lane, self.meter, recorder, wall_clock=True)
        while self._wait_for_tick(pacer):
            epoch_id = self.epoch_id
            pacer.begin(clock.monotonic(), epoch_id)
            with self.lock:
                self.begin_turn()
            while not self._closing and self.run_next():
                pass
            pacer.end(clock.monotonic(), epoch_id)

    def _wait_for_tick(self, pacer: Pacer) -> bool:
        """Sleep until the next tick is due; False when the run is over."""
        clock = self.settlement.clock
        began_at_s = clock.monotonic()
        with self.lock:
            while not self._closing and (due_in_s := pacer.due_in_s(clock.monotonic())) > 0:
                clock.wait(self.lock, due_in_s)
        self.meter.blocked_s += clock.monotonic() - began_at_s
        return not self._closing

"""What follows from the end of a run for its agent: quarantine if it keeps failing, another run if it always runs.

Retrying one entry is the queue's business. This is about the agent: `quarantine_after` failures in a row, of whatever
entries, and it is left alone for `quarantine_s`. That it is, and until when, is kept with the agent, so that a
supervisor that starts later lifts it in time.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import Any

from rota.errors import RotaError
from rota.fleet.agent_settings import spec_for
from rota.fleet.live_run import LiveRun
from rota.host.watchdog import Watchdog
from rota.kernel.supervision import QUARANTINE, RunReport
from rota.model.work import RestartPolicy
from rota.service.api import Desk

__all__ = ["Restarts", "pause_s"]

LIFT_RETRY_S = 5.0
_log = logging.getLogger("rota.runtime")


def pause_s(restart: RestartPolicy, failures: int) -> float:
    """How long an agent that always runs rests before its next run, after so many failures in a row."""
    if not failures:
        return 0.0
    return min(restart.backoff.cap_s, restart.backoff.base_s * restart.backoff.factor ** min(failures - 1, 64))


class Restarts:
    """Counts failures, and acts on them."""

    def __init__(self, desk: Desk, watchdog: Watchdog) -> None:
        self._desk = desk
        self._watchdog = watchdog
        self._lock = threading.Lock()
        self._failures: dict[int, int] = {}  # in a row, by pid

    def resume_quarantined(self) -> None:
        """Agents that an earlier supervisor left alone: lift it when their time has come."""
        now = self._desk.clock.now()
        for agent in self._desk.agents.paused(QUARANTINE):
            left_s = max(0.0, agent.metadata.get("quarantined_until", now) - now)
            self._watchdog.watch(left_s, partial(self._lift, agent.pid))

    def before_report(self, run: LiveRun, report: RunReport) -> None:
        """A run has ended: quarantine comes before its end is written down, which may hand out the agent's next."""
        if report.back is not None or report.exit_kind == "cancelled":
            return
        restart = run.work.plan.restart
        failures = self._count(run.entry.pid, failed=report.exit_kind != "completed")
        if failures >= restart.quarantine_after > 0:
            self._quarantine(run, failures, restart.quarantine_s)

    def after_report(self, run: LiveRun, report: RunReport) -> None:
        """A run's end is durable: if its agent always runs, it runs again."""
        if report.back is None and report.exit_kind != "cancelled" and run.work.plan.restart.when == "always":
            self._enqueue_again(run, report)

    def _count(self, pid: int, *, failed: bool) -> int:
        with self._lock:
            if not failed:
                self._failures.pop(pid, None)
                return 0
            self._failures[pid] = self._failures.get(pid, 0) + 1
            return self._failures[pid]

    def _enqueue_again(self, run: LiveRun, report: RunReport) -> None:
        entry, plan = run.entry, run.work.plan
        said: dict[str, Any] = {
            "trigger": "restart",
            "key": f"restart:{entry.sched_id}:{report.token}",  # reported twice, started once
            "runnable_at": self._desk.clock.now() + pause_s(plan.restart, self._failures.get(entry.pid, 0)),
        }
        self._desk.queue.enqueue(spec_for(run.work.agent, plan, entry.payload, **said))

    def _quarantine(self, run: LiveRun, failures: int, quarantine_s: float) -> None:
        agent = run.work.agent
        self._count(agent.pid, failed=False)  # it begins anew afterwards
        _log.warning(
            "agent %s (%s) failed %s times in a row: left alone for %g s", agent.pid, agent.name, failures, quarantine_s
        )
        self._desk.supervision.quarantine(agent.pid, failures, self._desk.clock.now() + quarantine_s)
        self._watchdog.watch(quarantine_s, partial(self._lift, agent.pid))

    def _lift(self, pid: int) -> None:
        try:
            if self._desk.agents.get(pid).paused_by == QUARANTINE:
                self._desk.agents.resume(pid, QUARANTINE)
        except RotaError as problem:  # of the watchdog's thread, which must live on
            _log.warning("the quarantine of agent %s could not be lifted (%s); trying again", pid, problem)
            self._watchdog.watch(LIFT_RETRY_S, partial(self._lift, pid))

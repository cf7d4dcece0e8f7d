"""Restarts and quarantine: what the end of a run means for its agent.

The queue retries entries. This module is about the agent: after `quarantine_after` failures in a row, of any of its
entries, the agent is paused for `quarantine_s`; an agent with restart `always` is enqueued again after each run. The
end of the quarantine is stored with the agent, so that a supervisor that starts later resumes the agent in time.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import Any

from rota.errors import RotaError
from rota.fault_log import FaultLog
from rota.fleet.agent_settings import spec_for
from rota.fleet.live_run import LiveRun
from rota.host.watchdog import Watchdog
from rota.kernel.run_reports import RunReport
from rota.kernel.supervision import QUARANTINE
from rota.model.checks import SECONDS_MAX
from rota.model.retries import NOT_RETRYABLE
from rota.model.work import RestartPolicy
from rota.service.api import SchedulerApi
from rota.store.author import keeping_author

__all__ = ["Restarts", "restart_delay_s"]

RESUME_RETRY_S = 5.0
_log = logging.getLogger("rota.fleet")


def restart_delay_s(restart: RestartPolicy, failures: int) -> float:
    """Return the delay before the next run of an agent with restart `always`, after `failures` in a row."""
    if not failures:
        return 0.0
    return min(restart.backoff.cap_s, restart.backoff.base_s * restart.backoff.factor ** min(failures - 1, 64))


class Restarts:
    """Counts failures in a row per agent; quarantines and restarts agents."""

    def __init__(self, api: SchedulerApi, watchdog: Watchdog) -> None:
        self._api = api
        self._watchdog = watchdog
        self._lock = threading.Lock()
        self._failures: dict[int, int] = {}  # in a row, by pid
        self._faults = FaultLog("rota.fleet")  # of the ends of quarantines, by pid

    def resume_quarantined(self) -> None:
        """Schedule the end of every quarantine that an earlier supervisor began."""
        now = self._api.clock.now()
        for agent in self._api.agents.paused(QUARANTINE):
            until = agent.metadata.get("quarantined_until")
            left_s = max(0.0, until - now) if isinstance(until, int | float) and until <= SECONDS_MAX else 0.0
            self._end_quarantine_after(left_s, agent.pid)

    def before_report(self, run: LiveRun, report: RunReport) -> None:
        """Quarantine the agent if needed, before the commit that reports this run and may claim the agent's next."""
        if report.back is not None or report.exit_kind == "cancelled" or report.outcome == NOT_RETRYABLE:
            return  # an error that the agent declares as final says something about the entry, not about the agent
        restart = run.assignment.settings.restart
        failures = self._count(run.entry.pid, failed=report.exit_kind != "completed")
        if failures >= restart.quarantine_after > 0:
            self._quarantine(run, failures, restart.quarantine_s)

    def after_report(self, run: LiveRun, report: RunReport) -> None:
        """Enqueue the agent again if its restart policy is `always`, once the run's end is committed."""
        when = run.assignment.settings.restart.when
        if report.back is None and report.exit_kind != "cancelled" and when == "always":
            self._enqueue_again(run, report)

    def _count(self, pid: int, *, failed: bool) -> int:
        with self._lock:
            if not failed:
                self._failures.pop(pid, None)
                return 0
            self._failures[pid] = self._failures.get(pid, 0) + 1
            return self._failures[pid]

    def _enqueue_again(self, run: LiveRun, report: RunReport) -> None:
        entry, settings = run.entry, run.assignment.settings
        delay_s = restart_delay_s(settings.restart, self._failures.get(entry.pid, 0))
        options: dict[str, Any] = {
            "trigger": "restart",
            "key": f"restart:{entry.sched_id}:{report.token}",  # a report that is repeated restarts only once
            "delay_s": delay_s,
        }
        self._api.queue.enqueue(spec_for(run.assignment.agent, settings, entry.payload, **options))

    def _quarantine(self, run: LiveRun, failures: int, quarantine_s: float) -> None:
        agent = run.assignment.agent
        self._count(agent.pid, failed=False)  # the count starts at zero after the quarantine
        _log.warning(
            "agent %s (%s) failed %s times in a row: quarantined for %g s",
            agent.pid,
            agent.name,
            failures,
            quarantine_s,
        )
        self._api.supervision.quarantine(agent.pid, failures, for_s=quarantine_s)
        self._end_quarantine_after(quarantine_s, agent.pid)

    def _end_quarantine_after(self, delay_s: float, pid: int) -> None:
        self._watchdog.watch(delay_s, keeping_author(partial(self._end_quarantine, pid)))

    def _end_quarantine(self, pid: int) -> None:
        try:
            if self._api.agents.get(pid).paused_by == QUARANTINE:
                self._api.agents.resume(pid, QUARANTINE)
        except RotaError as problem:  # on the watchdog's thread, which must not end
            then = f"trying every {RESUME_RETRY_S:g} s"
            self._faults.failed(f"cannot end the quarantine of agent {pid}", problem, then=then, of=pid)
            self._end_quarantine_after(RESUME_RETRY_S, pid)
        else:
            self._faults.worked(pid)

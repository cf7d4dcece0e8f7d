"""`InMemoryRota`: a Rota for tests, in memory and on a clock that the test moves.

    def test_a_page_is_read(rota):                      # the fixture of rota's pytest plugin
        rota.replaces(app.rota)                         # what the program enqueues is enqueued here
        app.order_page("a page")
        rota.assert_enqueued(app.read, url="a page")
        summary = rota.run_until_idle()
        assert summary.ok

Nothing sleeps. `advance` lets time pass: schedules fire on the way, and nothing runs. `run_until_idle` runs what is
due, and moves the clock itself over the back-offs of retries and the refills of limits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from rota.app import AgentHandle, Job, Rota
from rota.app.moments import Duration, seconds_of
from rota.clock import ManualClock
from rota.fleet import IdleRule, RunSummary
from rota.model.work import ReadyEntry

__all__ = ["InMemoryRota"]

START = 1_767_225_600.0  # 1 January 2026, midnight UTC
STEPS_MAX = 10_000  # moves of the clock in one `run_until_idle`
STEP_MIN_S = 0.001
SHOWN_MAX = 10  # entries that a failed assertion lists
LIST_MAX = 10_000


class InMemoryRota(Rota):
    """A Rota for tests: a store in memory, and a clock that stands still unless the test moves it."""

    def __init__(self, *, now: float = START, **options: Any) -> None:
        self.clock = ManualClock(now)
        self._undo: list[Callable[[], None]] = []
        super().__init__(":memory:", clock=self.clock, **options)

    def replaces(self, other: Rota) -> None:
        """Make a program's Rota use this store, with its agents and schedules, until this one is closed."""
        self._undo.append(other._work_on(self.api))
        self._functions.update(other._functions)
        self._schedules.include(other._schedules)

    def close(self) -> None:
        """Close the store; what it replaced is as it was before."""
        while self._undo:
            self._undo.pop()()
        super().close()

    # --- time --------------------------------------------------------------------------------------

    def advance(self, duration: Duration) -> None:
        """Let time pass. Schedules that become due enqueue their agents; nothing runs."""
        self._schedules.start(self.api)
        end_at = self.clock.monotonic() + seconds_of("duration", duration)
        while True:
            left_s = end_at - self.clock.monotonic()
            due_s = self._schedules.due_in_s()
            if due_s is None or due_s > left_s:
                self.clock.advance(max(left_s, 0.0))
                return
            self.clock.advance(max(due_s, 0.0))
            self._schedules.fire_due()

    def run_until_idle(
        self, slots: int | dict[str, int] = 1, *, horizon_s: Duration = 0.0, **settings: Any
    ) -> RunSummary:
        """Run what is due until nothing is left, and return what was done.

        The clock moves over the back-offs of retries and the refills of limits, and over delays of up to `horizon_s`.
        """
        steps = itertools.count(1)

        def pass_time(seconds: float) -> None:
            if next(steps) > STEPS_MAX:
                raise AssertionError(f"not idle after {STEPS_MAX:,} moves of the clock")
            self.clock.advance(max(seconds, STEP_MIN_S))

        rule = IdleRule(seconds_of("horizon_s", horizon_s), pass_time)
        return self.supervisor(slots, **settings).run(until_idle=rule)

    # --- what is enqueued --------------------------------------------------------------------------

    def enqueued(self, agent: AgentHandle | str, **payload: Any) -> list[Job]:
        """Return the jobs of an agent whose payload has these values, in the order of their ids."""
        return [Job(self._link, entry.sched_id) for entry in self._entries(agent) if _has(entry, payload)]

    def assert_enqueued(self, agent: AgentHandle | str, /, *, count: int | None = None, **payload: Any) -> list[Job]:
        """Assert that the agent was enqueued with these values in its payload: at least once, or `count` times.

        Entries that have run count, too.
        """
        found = self.enqueued(agent, **payload)
        if (found and count is None) or len(found) == count:
            return found
        entries = self._entries(agent)
        wanted = "at least one entry" if count is None else f"{count} entries"
        lines = [f"  {entry.sched_id}: {entry.payload}" for entry in entries[:SHOWN_MAX]]
        if len(entries) > SHOWN_MAX:
            lines.append(f"  and {len(entries) - SHOWN_MAX} more")
        name = agent if isinstance(agent, str) else agent.name
        listed = "\n".join(lines) or "  nothing"
        raise AssertionError(f"expected {wanted} of {name} with {payload}, found {len(found)}; enqueued:\n{listed}")

    def _entries(self, agent: AgentHandle | str) -> list[ReadyEntry]:
        return self.api.queue.list(pid=self._handle(agent, None).pid, limit=LIST_MAX)[0]


def _has(entry: ReadyEntry, payload: dict[str, Any]) -> bool:
    return all(name in entry.payload and entry.payload[name] == value for name, value in payload.items())

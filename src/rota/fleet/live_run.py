"""A run that is under way, as its supervisor sees it: the other end of the runner's `Line`.

Everything a run says is written down before the call returns, under the token of its claim: a run whose claim was
lost can change nothing any more, and is stopped (`fenced`) as soon as that is noticed.

Why a run was stopped decides what becomes of its entry:

    reason        the run's exit                     outcome       the entry
    cancelled     cancelled                          cancelled     ends
    timed_out     failed                             timed_out     is retried as its spec says
    over_budget   failed                             over_budget   ends: its next attempt would ask for the same again
    preempted     none: it is put back               –             queued again, no attempt counted
    draining      none: it is put back               –             queued again, no attempt counted
    fenced        nobody's: another claim holds it   –             untouched

A run that ended well although it was asked to stop has ended well: what it did is done. What there is of a result is
kept in every case, with the last checkpoint as its `partial`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from rota.errors import StaleClaim, UnknownAgent
from rota.fleet.agent_settings import plan_of, spec_for
from rota.fleet.log import BoundedLog
from rota.fleet.runners.contract import Assignment, Outcome, Stops
from rota.fleet.stop_escalation import Ladder
from rota.host.watchdog import Watchdog
from rota.kernel.supervision import RunReport
from rota.model.work import ReadyEntry
from rota.service.api import Desk

__all__ = ["LiveRun", "Seat", "left_of"]

T = TypeVar("T")
BACK = {"preempted": "preempt", "draining": "yield"}  # reasons after which an entry goes back into the queue
FAILED = frozenset({"timed_out", "over_budget"})
LOG_TAIL_BYTES = 4_096  # of the output, in a result
WAIT_SLICE_S = 1.0  # how long one wait for a child is parked before it looks whether the run was stopped


class Seat(Protocol):
    """The place in a slot that a run may give up for a while."""

    def leave(self) -> None:
        """Somebody else may use the slot."""
        ...

    def take_again(self) -> None:
        """Wait for a slot and go on in it."""
        ...


def left_of(desk: Desk, pid: int, own: Mapping[str, int]) -> dict[str, int]:
    """What is left per dimension: of an agent's grants, and of a run's own ceiling where that is less."""
    left = {line.dim: line.hard_limit - line.used for line in desk.ledger.get(pid)}
    return left | {dim: min(amount, left.get(dim, amount)) for dim, amount in own.items()}


class LiveRun:
    """One run, from its claim to its report."""

    def __init__(self, desk: Desk, work: Assignment, watchdog: Watchdog, log: BoundedLog, seat: Seat) -> None:
        self.work = work
        self.ladder = Ladder(watchdog, work.plan.stop_grace_s)
        self.started_at = desk.clock.monotonic()
        self.os_pid: int | None = None
        self._desk = desk
        self._watchdog = watchdog
        self._log = log
        self._seat = seat
        self._lock = threading.Lock()  # of what was spent
        self._logging = threading.Lock()  # a run may have several threads that print
        self._spent: dict[str, int] = {}
        self._saved = work.checkpoint
        self._ceiling = work.entry.ceiling  # lower while a part of it is lent
        wall_s = work.plan.limits.wall_s
        self._wall = None if wall_s is None else watchdog.watch(wall_s, self._time_out)

    @property
    def entry(self) -> ReadyEntry:
        """What is run."""
        return self.work.entry

    @property
    def token(self) -> int:
        """The token of the claim it runs under."""
        token = self.work.entry.token
        assert token is not None  # noqa: S101  # it was claimed
        return token

    # --- from the supervisor -----------------------------------------------------------------------

    def stop(self, reason: str, grace_s: float | None = None) -> bool:
        """Ask it to stop, rung by rung; False if it was asked already."""
        return self.ladder.stop(reason, grace_s)

    def _time_out(self) -> None:
        self.stop("timed_out")

    def kill(self, reason: str) -> None:
        """End it now."""
        self.ladder.hurry(reason)

    def report(self, outcome: Outcome) -> RunReport | None:
        """What is to be written down about its end; None if it is not its supervisor's any more."""
        self.ladder.end()
        if self._wall is not None:
            self._watchdog.call_off(self._wall)
        self._log.close()
        reason = self.ladder.reason
        if reason == "fenced":
            return None
        told: dict[str, Any] = {
            "sched_id": self.entry.sched_id,
            "token": self.token,
            "result": self._result(outcome),
            "usage": outcome.usage,
            "wall_ms": round((self._desk.clock.monotonic() - self.started_at) * 1000),
        }
        if reason is None or outcome.exit_kind == "completed":
            return RunReport(**told, **self._own_end(outcome))
        return RunReport(**told, stopped_by=self.ladder.stopped_by, **_forced_end(reason))

    def _result(self, outcome: Outcome) -> Any:
        """What it gave; if it did not end well, also what it had saved."""
        if outcome.exit_kind == "completed" or self._saved is None:
            return outcome.result
        told = outcome.result if isinstance(outcome.result, dict) else {"result": outcome.result}
        return {**told, "partial": self._saved}

    def _own_end(self, outcome: Outcome) -> dict[str, Any]:
        if outcome.back_in_s is not None:
            return {"back": "yield", "back_at": self._desk.clock.now() + outcome.back_in_s}
        return {"exit_kind": outcome.exit_kind, "outcome": outcome.outcome}

    # --- the line --------------------------------------------------------------------------------

    @property
    def stop_reason(self) -> str | None:
        """Why the run was asked to stop; None as long as it was not."""
        return self.ladder.reason

    def began(self, stops: Stops, *, os_pid: int | None = None, advisories: Sequence[str] = ()) -> None:
        """The work is under way, and can be stopped like this."""
        for advisory in advisories:
            self.log(f"rota: {advisory}\n".encode())
        self.os_pid = os_pid
        if os_pid is not None:
            self._guarded(self._record_beginning)
        self.ladder.begin(stops)

    def _record_beginning(self) -> None:
        self._desk.supervision.began(
            self.entry.sched_id, self.token, slot=self.work.slot, runner=self.work.plan.runner, os_pid=self.os_pid
        )

    def log(self, data: bytes) -> None:
        """Keep output, within its limit."""
        with self._logging:
            self._log.write(data)

    def log_tail(self) -> str:
        """The end of what was logged."""
        return self._log.tail(LOG_TAIL_BYTES)

    def charge(self, amounts: Mapping[str, int]) -> dict[str, int]:
        """Record usage; the answer is what is left. A run past its ceiling, or its agent's grant, is stopped."""
        lines = self._guarded(lambda: self._desk.queue.charge(self.entry.sched_id, amounts, token=self.token))
        with self._lock:
            for dim, amount in amounts.items():
                self._spent[dim] = self._spent.get(dim, 0) + amount
            past = any(self._spent.get(dim, 0) > most for dim, most in self._ceiling.items())
        if past or any(line.over_limit for line in lines.values()):
            self.stop("over_budget")
        return self.remaining()

    def remaining(self) -> dict[str, int]:
        """What is left of its ceiling and its agent's grants, per dimension."""
        with self._lock:
            own = {dim: most - self._spent.get(dim, 0) for dim, most in self._ceiling.items()}
        return left_of(self._desk, self.entry.pid, own)

    def checkpoint(self, state: Mapping[str, Any]) -> None:
        """Save where the work stands."""
        saved = dict(state)
        self._guarded(lambda: self._desk.supervision.checkpoint(self.entry.sched_id, self.token, saved))
        self._saved = saved

    def throttled(self, retry_after_s: float, name: str | None = None) -> None:
        """A provider wants a pause: everybody who draws on that limit waits."""
        for limit in (name,) if name is not None else self.entry.draws_on:
            self._desk.contexts.throttle(limit, retry_after_s, by=self.entry.pid)

    def spawn(self, agent: str, payload: Mapping[str, Any], lent: Mapping[str, int], **said: Any) -> int:
        """Enqueue child work, with a part of this run's budget and at least its priority."""
        found = self._desk.agents.find(agent)
        if not found:
            raise UnknownAgent(agent)
        child = found[0]
        said.setdefault("priority", max(child.priority, self.entry.priority))
        said.setdefault("correlation_id", self.entry.correlation_id)
        spec = spec_for(child, plan_of(child), payload, parent_id=self.entry.sched_id, **said)
        sched_id = self._guarded(lambda: self._desk.supervision.spawn(spec, self.token, lent))
        if lent:
            self._look_at_ceiling()
        return sched_id

    def wait_for(self, sched_ids: Sequence[int], wait_s: float | None = None) -> list[ReadyEntry]:
        """Wait until children have ended, without the slot."""
        self._rest(waiting=True)
        self._seat.leave()
        try:
            return [self._wait_for(sched_id, wait_s) for sched_id in sched_ids]
        finally:
            self._seat.take_again()
            if self._rest(waiting=False):
                self._look_at_ceiling()

    def _rest(self, *, waiting: bool) -> dict[str, int]:
        rest = self._desk.supervision.rest
        return self._guarded(lambda: rest(self.entry.sched_id, self.token, waiting=waiting))

    def _look_at_ceiling(self) -> None:
        ceiling = self._desk.queue.get(self.entry.sched_id).ceiling
        with self._lock:
            self._ceiling = ceiling

    def _wait_for(self, sched_id: int, wait_s: float | None) -> ReadyEntry:
        give_up_at = None if wait_s is None else self._desk.clock.monotonic() + wait_s
        while True:
            left_s = WAIT_SLICE_S if give_up_at is None else give_up_at - self._desk.clock.monotonic()
            try:
                return self._desk.queue.wait(sched_id, max(0.0, min(left_s, WAIT_SLICE_S)))
            except TimeoutError:
                if self.stop_reason is not None or (give_up_at is not None and left_s <= WAIT_SLICE_S):
                    raise

    def _guarded(self, call: Callable[[], T]) -> T:
        """Do what a live run may do; if its claim was lost, it is one no more."""
        try:
            return call()
        except StaleClaim:
            self.stop("fenced")
            raise


def _forced_end(reason: str) -> dict[str, Any]:
    if reason in BACK:
        return {"back": BACK[reason]}
    if reason in FAILED:
        return {"exit_kind": "failed", "outcome": reason}
    return {"exit_kind": "cancelled", "outcome": reason}

"""A reference model of the queue: one dictionary, no index, no SQL, and every method written in the simplest way.

The real queue is compared with it. It has only the rules of the queue: no caps and no budgets, and no randomness (a
back-off is always half of its maximum).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from rota.errors import SchedAdmissionDenied, SchedIllegalTransition, SchedInvalidPayload, SchedUnknownId, StaleClaim
from rota.kernel.affinity import AFFINITY_WAIT_S
from rota.kernel.environment import ALIVE_S
from rota.model.work import Backoff, ScheduleSpec

LEFT = -1.0
FINAL = ("completed", "expired", "cancelled")


class HalfJitter(random.Random):
    """A generator that always returns the middle of a range."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


def pause_s(backoff: Backoff, attempt: int) -> float:
    return min(backoff.cap_s, backoff.base_s * backoff.factor ** (attempt - 1)) / 2


@dataclass
class ReferenceEntry:
    """One entry."""

    sched_id: int
    spec: ScheduleSpec
    priority: int
    runnable_at: float
    deadline: float | None
    waits_for: tuple[int, ...]
    created_at: float
    state: str = "queued"
    hold: str | None = None
    attempt: int = 0
    worker_id: str | None = None
    token: int | None = None
    dispatched_at: float | None = None
    heartbeat_at: float = 0.0
    timeout_s: float = 0.0
    cancel_requested: bool = False
    completed_at: float | None = None
    exit_kind: str | None = None
    held_until: float = 0.0
    by_date: bool = False  # runnable_at is a date, which stays where it is when the wall clock jumps

    @property
    def strictly(self) -> tuple[int, float, int]:
        return -self.priority, self.runnable_at, self.sched_id

    @property
    def expires_at(self) -> float | None:
        return self.heartbeat_at + self.timeout_s if self.state == "dispatched" else None

    def is_ready(self, now: float) -> bool:
        return self.hold is None and self.may_run(now)

    def may_run(self, now: float) -> bool:
        """Whether force_claim may claim it: an affinity hold does not matter."""
        in_time = self.runnable_at <= now and (self.deadline is None or now < self.deadline)
        return self.state == "queued" and self.hold in (None, "worker") and in_time


@dataclass
class ReferenceQueue:
    """All entries, by id."""

    entries: dict[int, ReferenceEntry] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    wait_s: float = AFFINITY_WAIT_S
    seen_at: dict[str, float] = field(default_factory=dict)  # by worker

    def __getitem__(self, sched_id: int) -> ReferenceEntry:
        if sched_id not in self.entries:
            raise SchedUnknownId(sched_id)
        return self.entries[sched_id]

    def ready(self, now: float) -> list[ReferenceEntry]:
        """Return the ready entries in strict order."""
        return sorted((entry for entry in self.entries.values() if entry.is_ready(now)), key=lambda one: one.strictly)

    # --- enqueueing ------------------------------------------------------------------------------

    def enqueue(self, spec: ScheduleSpec, now: float) -> int:
        return self.enqueue_many([spec], now)[0]

    def enqueue_many(self, specs: list[ScheduleSpec], now: float) -> list[int]:
        """Add specs in order; entries with a failed predecessor are cancelled after all are added."""
        ids: list[int] = []
        to_cancel: list[ReferenceEntry] = []
        for spec in specs:
            known = next((one.sched_id for one in self.entries.values() if spec.key and one.spec.key == spec.key), None)
            if known is not None:
                ids.append(known)
                continue
            entry = self._add(spec, tuple(other if other > 0 else ids[other] for other in spec.after), now)
            ids.append(entry.sched_id)
            if self._verdict(entry) == "cancel":
                to_cancel.append(entry)
        for entry in to_cancel:
            self._end(entry, "cancelled", now)
        self._resolve_dependents(to_cancel, now)
        return ids

    def enqueue_unique(self, spec: ScheduleSpec, now: float) -> tuple[int, bool]:
        for entry in self.entries.values():
            duplicate = (entry.spec.pid, entry.spec.trigger) == (spec.pid, spec.trigger)
            if duplicate and entry.state in ("queued", "dispatched"):
                return entry.sched_id, False
        return self.enqueue(spec, now), True

    def _add(self, spec: ScheduleSpec, waits_for: tuple[int, ...], now: float) -> ReferenceEntry:
        for other in waits_for:
            assert other in self.entries
        runnable_at = now + spec.delay_s if spec.delay_s else spec.runnable_at
        entry = ReferenceEntry(
            next(self.numbers), spec, spec.priority, runnable_at, spec.deadline, waits_for, created_at=now
        )
        entry.by_date = spec.runnable_at > 0
        self.entries[entry.sched_id] = entry
        self._hold(entry, now)
        return entry

    def _hold(self, entry: ReferenceEntry, now: float) -> None:
        entry.hold = "after" if self._verdict(entry) else ("time" if entry.runnable_at > now else None)
        if entry.hold is None:
            self._hold_for_worker(entry, now)

    # --- affinity --------------------------------------------------------------------------------

    def _hold_for_worker(self, entry: ReferenceEntry, now: float) -> None:
        """Hold an entry for the worker it names, if that worker is alive."""
        wanted = entry.spec.affinity
        if wanted is None or self.wait_s == 0:
            return
        if self.seen_at.get(wanted) == LEFT:
            return
        holds = any(one.state == "dispatched" and one.worker_id == wanted for one in self.entries.values())
        if holds or now - self.seen_at.get(wanted, now - ALIVE_S) < ALIVE_S:
            entry.hold, entry.held_until = "worker", now + self.wait_s

    def _held_for_worker(self) -> list[ReferenceEntry]:
        return [one for one in self.entries.values() if one.state == "queued" and one.hold == "worker"]

    def set_affinity_wait(self, wait_s: float, now: float) -> None:
        if wait_s != self.wait_s:
            self.wait_s = wait_s
            for entry in self._held_for_worker():
                entry.held_until = min(entry.held_until, now + wait_s)

    def release(self, sched_id: int) -> None:
        self[sched_id].hold = None

    # --- dependencies ----------------------------------------------------------------------------

    def _verdict(self, entry: ReferenceEntry) -> str | None:
        """Return "cancel", "after" (still waits) or None (may run), from the states of its predecessors."""
        bad = [one for one in self._unfinished(entry) if one.state in FINAL]
        if bad and entry.spec.on_failed == "cancel":
            return "cancel"
        if entry.spec.on_failed == "run":
            return "after" if len(bad) < len(self._unfinished(entry)) else None
        return "after" if self._unfinished(entry) else None

    def _unfinished(self, entry: ReferenceEntry) -> list[ReferenceEntry]:
        others = [self.entries[other] for other in entry.waits_for]
        return [one for one in others if (one.state, one.exit_kind) != ("completed", "completed")]

    def _resolve_dependents(self, ended: list[ReferenceEntry], now: float) -> None:
        """Release or cancel the dependents of these entries, and theirs, and so on."""
        while ended:
            just_ended = {one.sched_id for one in ended}
            ended = []
            for entry in self.entries.values():
                if entry.state == "queued" and entry.hold == "after" and just_ended & set(entry.waits_for):
                    if self._verdict(entry) == "cancel":
                        ended.append(entry)
                    else:
                        self._hold(entry, now)
            for entry in ended:
                self._end(entry, "cancelled", now)

    def _end(self, entry: ReferenceEntry, state: str, now: float, exit_kind: str | None = None) -> None:
        entry.state, entry.hold, entry.completed_at, entry.exit_kind = state, None, now, exit_kind

    # --- changing queued entries -----------------------------------------------------------------

    def cancel(self, sched_id: int, now: float) -> tuple[str, str]:
        entry = self[sched_id]
        if entry.state != "queued":
            raise SchedIllegalTransition("entry", sched_id, entry.state, "cancel")
        self._end(entry, "cancelled", now)
        self._resolve_dependents([entry], now)
        return "queued", "cancelled"

    def request_cancel(self, sched_id: int, now: float) -> str:
        entry = self[sched_id]
        if entry.state == "dispatched":
            entry.cancel_requested = True
            return "dispatched"
        return self.cancel(sched_id, now)[1]

    def change(
        self, sched_id: int, priority: int | None, runnable_at: float | None, deadline: float | None, now: float
    ) -> None:
        entry = self[sched_id]
        if entry.state != "queued":
            raise SchedIllegalTransition("entry", sched_id, entry.state, "change")
        given, runnable_at = runnable_at, entry.runnable_at if runnable_at is None else runnable_at
        deadline = entry.deadline if deadline is None else deadline
        if deadline is not None and deadline < runnable_at:
            raise SchedInvalidPayload("deadline is before runnable_at", field="deadline")
        entry.priority = entry.priority if priority is None else priority
        entry.by_date = entry.by_date if given is None else given > now
        entry.runnable_at, entry.deadline = runnable_at, deadline
        if entry.hold != "after":
            held = "backoff" if entry.hold == "backoff" else "time"
            kept = "worker" if entry.hold == "worker" else None
            entry.hold = held if runnable_at > now else kept

    # --- claims and heartbeats -------------------------------------------------------------------

    def claim(self, worker_id: str, most: int, timeout_s: float, token: int, now: float) -> list[int]:
        """Claim the first ready entries; `token` comes from the real queue, since a model cannot predict it."""
        self.turn(now)
        self.seen_at[worker_id] = now
        mine = [one for one in self._held_for_worker() if one.spec.affinity == worker_id]
        for entry in sorted(mine, key=lambda one: one.strictly)[:most]:
            entry.hold = None
        handed_out = self.ready(now)[:most]
        for entry in handed_out:
            self._dispatch(entry, worker_id, timeout_s, token, now)
        return [entry.sched_id for entry in handed_out]

    def force_claim(self, sched_id: int, worker_id: str, timeout_s: float, token: int, now: float) -> int:
        before = {one.sched_id: ReferenceEntry(**vars(one)) for one in self.entries.values()}
        self.turn(now)
        if sched_id in self.entries and self.entries[sched_id].may_run(now):
            self._dispatch(self.entries[sched_id], worker_id, timeout_s, token, now)
            return sched_id
        self.entries = before  # a refused call changes nothing
        self[sched_id]
        raise SchedAdmissionDenied("it is held")

    def _dispatch(self, entry: ReferenceEntry, worker_id: str, timeout_s: float, token: int, now: float) -> None:
        entry.state, entry.worker_id, entry.token, entry.timeout_s = "dispatched", worker_id, token, timeout_s
        entry.dispatched_at = entry.heartbeat_at = now
        entry.attempt += 1
        entry.hold = None

    def heartbeat(self, sched_id: int, token: int, now: float) -> tuple[float, bool]:
        entry = self._live(sched_id, token)
        entry.heartbeat_at = now
        return now + entry.timeout_s, entry.cancel_requested

    def _live(self, sched_id: int, token: int) -> ReferenceEntry:
        entry = self[sched_id]
        if entry.state != "dispatched" or entry.token != token:
            raise StaleClaim("not the live claim")
        return entry

    # --- ending ----------------------------------------------------------------------------------

    def complete(self, sched_id: int, exit_kind: str, token: int | None, now: float) -> tuple[str, str]:
        entry = self[sched_id] if token is None else self._live(sched_id, token)
        if entry.state != "dispatched":
            raise SchedIllegalTransition("entry", sched_id, entry.state, "complete")
        self._see(entry, token, now)
        if token is not None and self._is_retried(entry, exit_kind):
            self._back_off(entry, now)
            return "dispatched", "queued"
        self._end(entry, "completed", now, exit_kind)
        self._resolve_dependents([entry], now)
        return "dispatched", "completed"

    def _see(self, entry: ReferenceEntry, token: int | None, now: float) -> None:
        """Mark the worker of an ended run as alive."""
        if token is not None and entry.worker_id is not None:
            self.seen_at[entry.worker_id] = now

    def _is_retried(self, entry: ReferenceEntry, exit_kind: str) -> bool:
        left = entry.attempt < entry.spec.max_attempts
        return left and exit_kind in entry.spec.retry_on and not entry.cancel_requested

    def put_back(self, sched_id: int, token: int, at: float, now: float) -> None:
        """Return a run to the queue; a run with a cancel request ends as cancelled instead."""
        entry = self._live(sched_id, token)
        if entry.cancel_requested:
            self._see(entry, token, now)
            self._end(entry, "completed", now, "cancelled")
            self._resolve_dependents([entry], now)
            return
        entry.attempt -= 1
        self._return(entry, at, "time", now)
        entry.by_date = at > now

    def _back_off(self, entry: ReferenceEntry, now: float) -> None:
        self._return(entry, now + pause_s(entry.spec.backoff, entry.attempt), "backoff", now)

    def _return(self, entry: ReferenceEntry, at: float, hold: str, now: float) -> None:
        entry.state, entry.runnable_at, entry.hold = "queued", at, hold if at > now else None
        entry.worker_id = entry.token = entry.dispatched_at = None
        entry.by_date = False

    # --- the wall clock --------------------------------------------------------------------------

    def jump(self, by_s: float, now: float) -> None:
        """The wall clock has jumped: what lasts for a time moves with it, and what has a date does not."""
        self.seen_at = {name: at if at == LEFT else at + by_s for name, at in self.seen_at.items()}
        for entry in self.entries.values():
            if entry.state == "dispatched" and entry.dispatched_at is not None:
                entry.heartbeat_at += by_s
                entry.dispatched_at += by_s
            elif entry.state == "queued":
                self._jump(entry, by_s, now)

    def _jump(self, entry: ReferenceEntry, by_s: float, now: float) -> None:
        entry.held_until += by_s
        waits = entry.hold in ("time", "backoff") or (entry.hold == "after" and entry.runnable_at > 0)
        if waits and not entry.by_date:
            entry.runnable_at += by_s
        elif (
            entry.hold in (None, "worker") and entry.runnable_at > now
        ):  # it was ready, and stays so unless it has a date
            if entry.by_date:
                entry.hold = "time"
            else:
                entry.runnable_at = min(entry.runnable_at + by_s, now)

    # --- maintenance -----------------------------------------------------------------------------

    def turn(self, now: float) -> None:
        """Do what every claim does first: release, reclaim, sweep, in this order."""
        for entry in self.entries.values():
            if entry.state == "queued" and entry.hold in ("time", "backoff") and entry.runnable_at <= now:
                was, entry.hold = entry.hold, None
                if was == "time" and entry.attempt == 0:
                    self._hold_for_worker(entry, now)
        self._take_back([one for one in self.entries.values() if (one.expires_at or now + 1) <= now], now)
        self.gc_expired(now)
        for entry in self._held_for_worker():
            entry.hold = None if entry.held_until <= now else "worker"

    def gc_expired(self, now: float) -> int:
        waiting = [one for one in self.entries.values() if one.state == "queued" and one.deadline is not None]
        late = [one for one in waiting if one.deadline is not None and one.deadline < now]
        for entry in late:
            self._end(entry, "expired", now)
        self._resolve_dependents(late, now)
        return len(late)

    def gc_dispatched(self, stale_s: float, now: float) -> int:
        stale = [one for one in self.entries.values() if one.state == "dispatched" and one.heartbeat_at < now - stale_s]
        self._take_back(stale, now)
        return len(stale)

    def take_over(self, worker_id: str, now: float) -> int:
        """A worker comes in a new life: what its earlier ones held is taken back."""
        lost = [one for one in self.entries.values() if one.state == "dispatched" and one.worker_id == worker_id]
        self._take_back(lost, now)
        return len(lost)

    def _take_back(self, claims: list[ReferenceEntry], now: float) -> None:
        """End runs whose claim expired as crashed, or as cancelled after a cancel request."""
        for entry in claims:
            self.seen_at[entry.worker_id or ""] = LEFT
        ended = [entry for entry in claims if not self._is_retried(entry, "crashed")]
        for entry in claims:
            if entry in ended:
                self._end(entry, "completed", now, "cancelled" if entry.cancel_requested else "crashed")
            else:
                self._back_off(entry, now)
        self._resolve_dependents(ended, now)

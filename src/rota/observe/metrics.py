"""Metrics: a fold over the journal, in Prometheus' words.

Everything that counts something is counted from facts, from the moment this was made: a restart begins at nought, as
Prometheus expects. How long entries waited and ran comes from the facts that begin and end them, for entries whose
beginning was seen. What *is* rather than what *happened* (entries and agents in each state) is read from the tables
when somebody asks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from rota.kernel import Kernel
from rota.kernel.journal import TAIL_MAX
from rota.model.events import (
    AccessDenied,
    EntriesCancelled,
    EntriesClaimed,
    EntriesCompleted,
    EntriesEnqueued,
    EntriesExpired,
    EntriesReturned,
    Event,
    LedgerCharged,
    PolicyFellBack,
    decode,
)

__all__ = ["FOLD_MAX", "TRACKED_MAX", "Metrics"]

FOLD_MAX = 100_000  # events looked at in one go; if there are more, the lag says so
TRACKED_MAX = 100_000  # entries whose beginning is remembered; others are counted as untracked
_WAITS = (0.001, 0.005, 0.025, 0.1, 0.5, 1, 5, 30, 120, 600, 3600)


class Metrics:
    """What the journal says, in numbers."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._guard = threading.Lock()
        self._cursor = kernel.journal.cursor()
        self._queued_at: dict[int, float] = {}
        self._claimed_at: dict[int, float] = {}
        self._registry = registry = CollectorRegistry()
        self.events = Counter("rota_events", "Events of the journal.", ["kind"], registry=registry)
        self.enqueued = Counter("rota_entries_enqueued", "Entries put into the queue.", registry=registry)
        self.claimed = Counter("rota_entries_claimed", "Entries handed to workers.", ["policy"], registry=registry)
        self.completed = Counter("rota_entries_completed", "Runs that ended.", ["exit_kind"], registry=registry)
        self.returned = Counter("rota_entries_returned", "Runs that went back.", ["verb"], registry=registry)
        self.expired = Counter("rota_entries_expired", "Entries swept past their deadline.", registry=registry)
        self.cancelled = Counter("rota_entries_cancelled", "Entries cancelled while they waited.", registry=registry)
        self.used = Counter("rota_usage", "Usage charged.", ["dimension"], registry=registry)
        self.denied = Counter("rota_access_denied", "Callers turned away.", registry=registry)
        self.fell_back = Counter("rota_policy_fallbacks", "Policies that failed.", ["policy"], registry=registry)
        self.untracked = Counter("rota_metrics_untracked", "Entries too many to time.", registry=registry)
        self.wait = Histogram("rota_wait_seconds", "From enqueue to claim.", buckets=_WAITS, registry=registry)
        self.run = Histogram("rota_run_seconds", "From claim to the end.", buckets=_WAITS, registry=registry)
        self.entries = Gauge("rota_entries", "Entries in each state.", ["state"], registry=registry)
        self.agents = Gauge("rota_agents", "Agents in each state.", ["state"], registry=registry)
        self.lag = Gauge("rota_metrics_lag_events", "Events not looked at yet.", registry=registry)
        self._folds: dict[str, Callable[[float, Any], None]] = {
            EntriesEnqueued.kind: self._on_enqueued,
            EntriesClaimed.kind: self._on_claimed,
            EntriesCompleted.kind: self._on_completed,
            EntriesReturned.kind: self._on_returned,
            EntriesExpired.kind: self._on_expired,
            EntriesCancelled.kind: self._on_cancelled,
            LedgerCharged.kind: self._on_charged,
            AccessDenied.kind: self._on_denied,
            PolicyFellBack.kind: self._on_fell_back,
        }

    def catch_up(self) -> None:
        """Look at what has happened since the last time, up to `FOLD_MAX` events."""
        with self._guard:
            for _ in range(0, FOLD_MAX, TAIL_MAX):
                events = self._kernel.journal.tail(self._cursor, TAIL_MAX)
                if not events:
                    break
                for event in events:
                    self._fold(event)
                self._cursor = events[-1].event_id
            self.lag.set(self._kernel.journal.cursor() - self._cursor)

    def exposition(self) -> bytes:
        """Everything as Prometheus reads it."""
        self.catch_up()
        with self._guard:
            self._look(self.entries, self._kernel.queue.counts())
            self._look(self.agents, self._kernel.info()["live_states"])
            return generate_latest(self._registry)

    def _look(self, gauge: Gauge, counts: dict[str, int]) -> None:
        gauge.clear()
        for state, count in counts.items():
            gauge.labels(state).set(count)

    # --- one fact --------------------------------------------------------------------------------

    def _fold(self, event: Event) -> None:
        ours = event.kind.startswith("kernel.")
        self.events.labels(event.kind if ours else "user").inc()  # users' words are theirs, and without end
        fold = self._folds.get(event.kind)
        if fold is not None:
            fold(event.ts, decode(event.kind, event.payload))

    def _on_enqueued(self, ts: float, fact: EntriesEnqueued) -> None:
        self.enqueued.inc(fact.count)
        timed = min(fact.count, max(0, TRACKED_MAX - len(self._queued_at)))
        self._queued_at.update(dict.fromkeys(range(fact.first_id, fact.first_id + timed), ts))
        self.untracked.inc(fact.count - timed)

    def _on_claimed(self, ts: float, fact: EntriesClaimed) -> None:
        self.claimed.labels(fact.policy).inc(len(fact.entries))
        for entry in fact.entries:
            queued_at = self._queued_at.pop(entry.sched_id, None)
            if queued_at is not None:
                self.wait.observe(max(0.0, ts - queued_at))
            if len(self._claimed_at) < TRACKED_MAX:
                self._claimed_at[entry.sched_id] = ts
            else:
                self.untracked.inc()

    def _on_completed(self, ts: float, fact: EntriesCompleted) -> None:
        for entry in fact.entries:
            self.completed.labels(entry.exit_kind).inc()
            self._ended(entry.sched_id, ts)

    def _on_returned(self, ts: float, fact: EntriesReturned) -> None:
        self.returned.labels(fact.verb).inc(len(fact.sched_ids))
        for sched_id in fact.sched_ids:
            self._ended(sched_id, ts)

    def _ended(self, sched_id: int, ts: float) -> None:
        claimed_at = self._claimed_at.pop(sched_id, None)
        if claimed_at is not None:
            self.run.observe(max(0.0, ts - claimed_at))

    def _on_expired(self, _ts: float, fact: EntriesExpired) -> None:
        self.expired.inc(len(fact.sched_ids))
        self._forget(fact.sched_ids)

    def _on_cancelled(self, _ts: float, fact: EntriesCancelled) -> None:
        self.cancelled.inc(len(fact.sched_ids))
        self._forget(fact.sched_ids)

    def _forget(self, sched_ids: list[int]) -> None:
        for sched_id in sched_ids:
            self._queued_at.pop(sched_id, None)

    def _on_charged(self, _ts: float, fact: LedgerCharged) -> None:
        for dimension, amount in fact.amounts.items():
            self.used.labels(dimension).inc(amount)

    def _on_denied(self, _ts: float, _fact: AccessDenied) -> None:
        self.denied.inc()

    def _on_fell_back(self, _ts: float, fact: PolicyFellBack) -> None:
        self.fell_back.labels(fact.policy).inc()

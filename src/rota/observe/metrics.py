"""Prometheus metrics, computed from the journal.

Counters count events from the creation of the object: a restart begins at zero, as Prometheus expects. Waiting and
running times come from the events that start and end them, for entries whose start was seen. The current state (entries
and agents in each state) is read from the tables on each request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from rota.errors import StoreCorrupt
from rota.kernel import Kernel
from rota.kernel.journal import TAIL_MAX
from rota.model.event_codec import decode
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
)
from rota.service.store_policies import StorePolicies

__all__ = ["FOLD_MAX", "LABELS_MAX", "OTHER", "TRACKED_MAX", "Metrics"]

FOLD_MAX = 100_000  # events read per request; the lag metric shows how many are left
TRACKED_MAX = 100_000  # entries whose start is kept; others are counted as untracked
LABELS_MAX = 64  # values of a label that users choose, such as a dimension; further ones are counted as `OTHER`
OTHER = "other"
_WAITS = (0.001, 0.005, 0.025, 0.1, 0.5, 1, 5, 30, 120, 600, 3600)


class Metrics:
    """The metrics of one kernel."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._lock = threading.Lock()
        self._cursor = kernel.journal.cursor()
        self._queued_at: dict[int, float] = {}
        self._claimed_at: dict[int, float] = {}
        self._labels: dict[str, set[str]] = {}  # by metric: the values in use
        self._registry = registry = CollectorRegistry()
        self.events = Counter("rota_events", "Events of the journal.", ["kind"], registry=registry)
        self.enqueued = Counter("rota_entries_enqueued", "Entries enqueued.", registry=registry)
        self.claimed = Counter("rota_entries_claimed", "Entries claimed.", ["policy"], registry=registry)
        self.completed = Counter("rota_entries_completed", "Runs that ended.", ["exit_kind"], registry=registry)
        self.returned = Counter("rota_entries_returned", "Runs returned to the queue.", ["verb"], registry=registry)
        self.expired = Counter("rota_entries_expired", "Entries that expired at their deadline.", registry=registry)
        self.cancelled = Counter("rota_entries_cancelled", "Entries cancelled while queued.", registry=registry)
        self.used = Counter("rota_usage", "Usage charged.", ["dimension"], registry=registry)
        self.denied = Counter("rota_access_denied", "Calls denied.", registry=registry)
        self.fell_back = Counter("rota_policy_fallbacks", "Policies that failed.", ["policy"], registry=registry)
        self.untracked = Counter(
            "rota_metrics_untracked", "Entries beyond the tracking limit, not timed.", registry=registry
        )
        self.wait = Histogram("rota_wait_seconds", "From enqueue to claim.", buckets=_WAITS, registry=registry)
        self.run = Histogram("rota_run_seconds", "From claim to the end.", buckets=_WAITS, registry=registry)
        self.entries = Gauge("rota_entries", "Entries in each state.", ["state"], registry=registry)
        self.agents = Gauge("rota_agents", "Agents in each state.", ["state"], registry=registry)
        self.policy = Gauge(
            "rota_policy_in_force", "The policy of the store.", ["policy", "params", "share_by"], registry=registry
        )
        self.lag = Gauge("rota_metrics_lag_events", "Events not processed yet.", registry=registry)
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
        """Read the events since the last call, up to `FOLD_MAX`."""
        with self._lock:
            for _ in range(0, FOLD_MAX, TAIL_MAX):
                events = self._kernel.journal.tail(self._cursor, TAIL_MAX)
                if not events:
                    break
                for event in events:
                    self._fold(event)
                self._cursor = events[-1].event_id
            self.lag.set(self._kernel.journal.cursor() - self._cursor)

    def exposition(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        self.catch_up()
        with self._lock:
            self._set_counts(self.entries, self._kernel.queue.counts())
            self._set_counts(self.agents, self._kernel.info()["live_states"])
            self._set_policy()
            return generate_latest(self._registry)

    def _set_policy(self) -> None:
        in_force = StorePolicies(self._kernel.policies).get()
        params = ", ".join(f"{name}={value}" for name, value in in_force.params.items())
        self.policy.clear()
        self.policy.labels(in_force.name, params, in_force.share_by).set(1)

    def _set_counts(self, gauge: Gauge, counts: dict[str, int]) -> None:
        gauge.clear()
        for state, count in counts.items():
            gauge.labels(state).set(count)

    # --- one event -------------------------------------------------------------------------------

    def _fold(self, event: Event) -> None:
        ours = event.kind.startswith("kernel.")
        self.events.labels(
            event.kind if ours else "user"
        ).inc()  # user-defined kinds are unbounded, so they share one label
        fold = self._folds.get(event.kind)
        if fold is not None:
            with suppress(StoreCorrupt):  # an event that cannot be read is counted and otherwise left out
                fold(event.ts, decode(event.kind, event.payload))

    def _on_enqueued(self, ts: float, event: EntriesEnqueued) -> None:
        self.enqueued.inc(event.count)
        timed = min(event.count, max(0, TRACKED_MAX - len(self._queued_at)))
        self._queued_at.update(dict.fromkeys(range(event.first_id, event.first_id + timed), ts))
        self.untracked.inc(event.count - timed)

    def _on_claimed(self, ts: float, event: EntriesClaimed) -> None:
        self.claimed.labels(self._label("policy", event.policy)).inc(len(event.entries))
        for entry in event.entries:
            queued_at = self._queued_at.pop(entry.sched_id, None)
            if queued_at is not None:
                self.wait.observe(max(0.0, ts - queued_at))
            if len(self._claimed_at) < TRACKED_MAX:
                self._claimed_at[entry.sched_id] = ts
            else:
                self.untracked.inc()

    def _on_completed(self, ts: float, event: EntriesCompleted) -> None:
        for entry in event.entries:
            self.completed.labels(entry.exit_kind).inc()
            self._ended(entry.sched_id, ts)

    def _on_returned(self, ts: float, event: EntriesReturned) -> None:
        self.returned.labels(event.verb).inc(len(event.sched_ids))
        for sched_id in event.sched_ids:
            self._ended(sched_id, ts)

    def _ended(self, sched_id: int, ts: float) -> None:
        claimed_at = self._claimed_at.pop(sched_id, None)
        if claimed_at is not None:
            self.run.observe(max(0.0, ts - claimed_at))

    def _on_expired(self, _ts: float, event: EntriesExpired) -> None:
        self.expired.inc(len(event.sched_ids))
        self._forget(event.sched_ids)

    def _on_cancelled(self, _ts: float, event: EntriesCancelled) -> None:
        self.cancelled.inc(len(event.sched_ids))
        self._forget(event.sched_ids)

    def _forget(self, sched_ids: list[int]) -> None:
        for sched_id in sched_ids:
            self._queued_at.pop(sched_id, None)

    def _on_charged(self, _ts: float, event: LedgerCharged) -> None:
        for dimension, amount in event.amounts.items():
            self.used.labels(self._label("dimension", dimension)).inc(amount)

    def _label(self, name: str, value: str) -> str:
        """Return the value of a label; beyond `LABELS_MAX` different ones it is `OTHER`."""
        known = self._labels.setdefault(name, set())
        if value in known:
            return value
        if len(known) >= LABELS_MAX:
            return OTHER
        known.add(value)
        return value

    def _on_denied(self, _ts: float, event: AccessDenied) -> None:
        self.denied.inc(event.count)

    def _on_fell_back(self, _ts: float, event: PolicyFellBack) -> None:
        self.fell_back.labels(self._label("policy", event.policy)).inc()

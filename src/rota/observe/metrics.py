"""Prometheus metrics, computed from the journal.

Counters count events from the creation of the object: a restart begins at zero, as Prometheus expects. Waiting and
running times come from the events that start and end them, for entries whose start was seen. The current state is read
from the tables on each request (`table_metrics.py`).

Projects and agents are labels, by name; `metric_labels.py` limits how many, and with it the size of the page.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric

from rota.errors import RotaError, StoreCorrupt
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
from rota.observe.metric_labels import LABELS_MAX, OTHER, Labels
from rota.observe.table_metrics import TableMetrics

__all__ = ["FOLD_MAX", "LABELS_MAX", "OTHER", "PAGE_BYTES_MAX", "TRACKED_MAX", "Metrics"]

FOLD_MAX = 100_000  # events read per request; the lag metric shows how many are left
TRACKED_MAX = 100_000  # entries whose start is kept; others are counted as untracked
NAMES_MAX = 20_000  # agents whose names are kept; at the limit they are read again
DIMENSIONS_MAX = 8  # of one project
LOOKUPS_MAX = 1_000  # agents and entries looked up per request
PAGE_BYTES_MAX = 1024 * 1024  # of the page, whatever names there are
_STATUS = {"completed": "succeeded", "cancelled": "cancelled"}  # of the other exit kinds: failed
_RETURNED = {"retry": "retried", "reclaim": "lost", "yield": "returned", "preempt": "returned"}
_CREATED = re.compile(rb"^(?:# (?:HELP|TYPE) )?rota_\w+_created\b.*\n", re.MULTILINE)  # of no use, and half the page
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
        self._agent_of: dict[int, int] = {}  # the pid of each run
        self._names: dict[int, tuple[str | None, str]] = {}  # the project and the name of each agent
        self._lookups = 0
        self._labels = Labels()
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
        owner = ["project", "agent"]
        self.ended = Counter("rota_runs_ended", "Runs that ended, by status.", [*owner, "status"], registry=registry)
        self.started = Counter("rota_runs_started", "Runs that started.", owner, registry=registry)
        self.used_by = Counter("rota_project_usage", "Usage charged.", ["project", "dimension"], registry=registry)
        self.wait_of = Histogram(
            "rota_project_wait_seconds", "From enqueue to claim.", ["project"], buckets=_WAITS, registry=registry
        )
        self.tables = TableMetrics(kernel, registry)
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
            self._lookups = LOOKUPS_MAX
            for _ in range(0, FOLD_MAX, TAIL_MAX):
                events = self._kernel.journal.tail(self._cursor, TAIL_MAX)
                if not events:
                    break
                for event in events:
                    self._fold(event)
                self._cursor = events[-1].event_id
            self.lag.set(self._kernel.journal.cursor() - self._cursor)

    def collect(self) -> list[Metric]:
        """Return all metrics as the Prometheus client has them."""
        self.catch_up()
        with self._lock:
            self.tables.update()
            return list(self._registry.collect())

    def exposition(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        self.catch_up()
        with self._lock:
            self.tables.update()
            return _CREATED.sub(b"", generate_latest(self._registry))

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
        self.claimed.labels(self._labels.value("policy", event.policy)).inc(len(event.entries))
        for entry in event.entries:
            project_id, name = self._agent(entry.pid)
            self.started.labels(*self._labels.agent(project_id, name)).inc()
            queued_at = self._queued_at.pop(entry.sched_id, None)
            if queued_at is not None:
                self.wait.observe(max(0.0, ts - queued_at))
                self.wait_of.labels(self._labels.project(project_id)).observe(max(0.0, ts - queued_at))
            if len(self._claimed_at) < TRACKED_MAX:
                self._claimed_at[entry.sched_id] = ts
                self._agent_of[entry.sched_id] = entry.pid
            else:
                self.untracked.inc()

    def _on_completed(self, ts: float, event: EntriesCompleted) -> None:
        for entry in event.entries:
            self.completed.labels(entry.exit_kind).inc()
            self._ended(entry.sched_id, ts, _STATUS.get(entry.exit_kind, "failed"))

    def _on_returned(self, ts: float, event: EntriesReturned) -> None:
        self.returned.labels(event.verb).inc(len(event.sched_ids))
        for sched_id in event.sched_ids:
            self._ended(sched_id, ts, _RETURNED[event.verb])

    def _ended(self, sched_id: int, ts: float, status: str) -> None:
        self.ended.labels(*self._labels.agent(*self._agent(self._pid_of(sched_id))), status).inc()
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
        project = self._labels.project(event.project_id)
        for dimension, amount in event.amounts.items():
            self.used.labels(self._labels.value("dimension", dimension)).inc(amount)
            self.used_by.labels(project, self._labels.value(f"dimension of {project}", dimension, DIMENSIONS_MAX)).inc(
                amount
            )

    # --- names -----------------------------------------------------------------------------------

    def _pid_of(self, sched_id: int) -> int | None:
        """Return the agent of a run that ended; of one that started before this object was made, from its row."""
        pid = self._agent_of.pop(sched_id, None)
        if pid is None and self._may_look_up():
            with suppress(RotaError):  # it was pruned
                return self._kernel.queue.get(sched_id).pid
        return pid

    def _agent(self, pid: int | None) -> tuple[str | None, str]:
        """Return the project and the name of an agent."""
        if pid is None:
            return None, OTHER
        if pid not in self._names and self._may_look_up():
            if len(self._names) >= NAMES_MAX:
                self._names.clear()
            with suppress(RotaError):
                agent = self._kernel.agents.get(pid)
                self._names[pid] = agent.project_id, agent.name
        return self._names.get(pid, (None, OTHER))

    def _may_look_up(self) -> bool:
        self._lookups -= 1
        return self._lookups >= 0

    def _on_denied(self, _ts: float, event: AccessDenied) -> None:
        self.denied.inc(event.count)

    def _on_fell_back(self, _ts: float, event: PolicyFellBack) -> None:
        self.fell_back.labels(self._labels.value("policy", event.policy)).inc()

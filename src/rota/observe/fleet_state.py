"""What a fleet is doing and how it has performed, folded from the journal. It queries and writes nothing.

Its size is limited, however long the fleet runs and however deep its queue is. Counts need no memory of single entries,
because each event says where its entries came from: a claim takes them out of the queue, a completion ends runs, a
return requeues runs. Three things are kept per entry, up to `TRACKED_MAX`: since when it is ready (for its waiting
time), why it is held, and whether it runs.

**Share.** The share of a project is its part of what was charged to all projects that ran, in tokens, or in seconds of
running if no tokens were charged; its target is its part of their weights. The two are comparable only while all
projects have work waiting: an idle project gets less than its target, which is no fault. Jain's index sums it up: with
x = charged ÷ weight, (Σx)² ÷ (n·Σx²) is 1 when all are served in proportion and 1/n when one project gets everything.

**Lost.** The journal says how many entries were enqueued and how many ended; the tables say how many wait and run. The
difference is lost entries, and must be zero. The fleet state cannot detect it alone, because it counts what the journal
says; so the caller of `report` passes the counts of the tables.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from rota.errors import StoreCorrupt
from rota.model import events
from rota.model.event_codec import decode
from rota.model.events import Event, EventData
from rota.model.policy_setting import DEFAULT_SHARE_BY, SHARE_DIMS, PolicySetting, ShareBy
from rota.model.work import WEIGHT_UNIT, ReadyEntry
from rota.observe.event_text import EventText, describe, describe_own
from rota.observe.fleet_report import FleetReport, ProjectReport, WaitTimes, jain
from rota.observe.recent_rates import RecentRates
from rota.observe.recent_usage import OTHERS, AgentName, RecentShares, RecentUsage, Used, shares_of
from rota.observe.run_chart import WINDOW_S, ChartRow, ChartRows, RunEnding, RunSpan
from rota.observe.run_names import NO_PROJECT, Lookup, RunNames, ShownRun
from rota.policy.registry import DEFAULT_NAME, DEFAULT_PARAMS

__all__ = ["NO_PROJECT", "TEXTS_MAX", "TRACKED_MAX", "AgentName", "FleetState", "ProjectTotals", "StartingState"]

TRACKED_MAX = 100_000  # entries that are tracked; others are only counted
AGENTS_MAX = 100_000  # agents whose names are kept; others are shown by their pid
WAITS_MAX = 10_000  # the last waiting times, for the percentiles
RECENT_WAITS = 100  # of which, the ones that their mean counts
TEXTS_MAX = 200


DEFAULT_POLICY = PolicySetting(name=DEFAULT_NAME, params=dict(DEFAULT_PARAMS)).sentence()


class StartingState(msgspec.Struct, frozen=True, kw_only=True):
    """The counts and names after event `through_id`, to start without reading the journal from its first event."""

    through_id: int
    at: float
    weights: dict[str, int] = {}  # by project
    agents: dict[int, AgentName] = {}
    queued: int = 0
    running: int = 0
    runs: tuple[ReadyEntry, ...] = ()  # in progress
    policy: str = ""  # in force, with its parameters
    share_by: ShareBy = DEFAULT_SHARE_BY


class ProjectTotals(msgspec.Struct):
    """The totals of one project so far."""

    weight: int = WEIGHT_UNIT
    runs: int = 0  # ended runs
    failed: int = 0
    charged: dict[str, int] = {}  # by dimension
    seconds: float = 0.0  # of ended runs


class FleetState(RunNames):
    """The state of a fleet. `fold` every event in order; read it at any time between two."""

    def __init__(
        self, start: StartingState | None = None, *, lookup: Lookup | None = None, chart: ChartRows | None = None
    ) -> None:
        initial = start or StartingState(through_id=0, at=0.0)
        super().__init__(initial.agents, lookup)
        self.through_id = initial.through_id
        self.at = initial.at  # the time of the last event
        self.since_at = initial.at  # the time of the first one
        self.enqueued = initial.queued + initial.running
        self.finished: Counter[str] = Counter()  # entries by exit kind, or expired, cancelled
        self.queued = initial.queued  # including held entries
        self.running = initial.running
        self.retries = 0
        self.reclaimed = 0
        self.failures: Counter[str] = Counter()  # runs by outcome
        self.untracked = 0  # entries that are only counted
        self.throttles: dict[str, float] = {}  # by limit name: until when it is paused
        self.awaited: dict[int, str] = {}  # runs that wait for a limit: its name, by entry
        self.unread = 0  # events of a newer version of rota
        self.policy = initial.policy
        self.share_by = initial.share_by
        self.projects = {project_id: ProjectTotals(weight=weight) for project_id, weight in initial.weights.items()}
        self.texts: deque[EventText] = deque(maxlen=TEXTS_MAX)
        self._ready: dict[int, float] = {}
        self._held: dict[int, str] = {}
        self._waits: deque[float] = deque(maxlen=WAITS_MAX)
        self._waits_count = 0
        self._wait_max_s = 0.0
        self._chart = ChartRows() if chart is None else chart
        self._recent = RecentUsage(WINDOW_S)
        self.rates = RecentRates()
        self._folds: Mapping[type[EventData], Callable[[Any, Event], None]] = {
            events.ProcessCreated: self._fold_agent,
            events.ProcessUpdated: self._fold_agent_weight,
            events.ProjectCreated: self._fold_project,
            events.ProjectUpdated: self._fold_weight,
            events.EntriesEnqueued: self._fold_enqueued,
            events.EntriesReleased: self._fold_released,
            events.EntriesHeldForWorker: self._fold_kept,
            events.EntriesChanged: self._fold_changed,
            events.EntriesClaimed: self._fold_claimed,
            events.EntriesCompleted: self._fold_completed,
            events.EntriesReturned: self._fold_returned,
            events.EntriesExpired: self._fold_expired,
            events.EntriesCancelled: self._fold_cancelled,
            events.LedgerCharged: self._fold_charged,
            events.LedgerRefunded: self._fold_refunded,
            events.RunEnded: self._fold_run_ended,
            events.LimitThrottled: self._fold_throttled,
            events.LimitResumed: self._fold_resumed,
            events.LimitAwaited: self._fold_awaited,
            events.LimitAcquired: self._fold_acquired,
            events.LimitSettled: self._fold_acquired,
            events.PolicyChosen: self._fold_policy,
        }
        for entry in initial.runs:
            self._add_run_in_progress(entry)

    # --- folding ---------------------------------------------------------------------------------

    def fold(self, event: Event) -> list[EventText]:
        """Process one event and return the sentences about it. Unknown kinds of rota are skipped."""
        self.through_id = event.event_id
        self.at = max(self.at, event.ts)
        if event.kind not in events.EVENT_TYPES:
            own = [] if event.kind.startswith(events.RESERVED_PREFIX) else describe_own(event, self)
            self.texts.extend(own)
            return own
        try:
            data = decode(event.kind, event.payload)
        except StoreCorrupt:
            self.unread += 1
            return []
        texts = describe(event, data, self)
        fold = self._folds.get(type(data))
        if fold is not None:
            fold(data, event)
        self.texts.extend(text for text in texts if text.tone != "detail")
        return texts

    def _add_run_in_progress(self, entry: ReadyEntry) -> None:
        """Add a run whose start was not folded."""
        if entry.dispatched_at is None or len(self._runs) >= TRACKED_MAX:
            return
        self._add_wait(max(0.0, entry.dispatched_at - max(entry.created_at, entry.runnable_at)))
        span = RunSpan(entry.sched_id, entry.pid, entry.project_id, entry.dispatched_at)
        drawn = self._chart.begin(entry.worker_id or "", span)
        project_id = entry.project_id or NO_PROJECT
        self._runs[entry.sched_id] = ShownRun(entry.pid, project_id, entry.dispatched_at, drawn, entry.attempt)

    def _fold_policy(self, data: events.PolicyChosen, _event: Event) -> None:
        self.policy = DEFAULT_POLICY if data.policy is None else data.policy.sentence()
        self.share_by = data.share_by

    def _fold_agent(self, data: events.ProcessCreated, event: Event) -> None:
        if event.pid is not None and len(self._agents) < AGENTS_MAX:
            self._agents.setdefault(event.pid, AgentName(data.name, data.project_id))  # or its weight is known already

    def _fold_agent_weight(self, data: events.ProcessUpdated, event: Event) -> None:
        known = self._agents.get(event.pid or 0)
        if known is not None and event.pid is not None and "weight" in data.changes:
            self._agents[event.pid] = msgspec.structs.replace(known, weight=data.changes["weight"])

    def _fold_project(self, data: events.ProjectCreated, _event: Event) -> None:
        self._project(data.project_id).weight = data.weight

    def _fold_weight(self, data: events.ProjectUpdated, _event: Event) -> None:
        if "weight" in data.changes:
            self._project(data.project_id).weight = data.changes["weight"]

    def _fold_enqueued(self, data: events.EntriesEnqueued, event: Event) -> None:
        self.enqueued += data.count
        self.queued += data.count
        self.rates.add(event.ts, enqueued=data.count)
        held = {sched_id: hold for hold, sched_ids in data.held.items() for sched_id in sched_ids}
        capacity = max(0, TRACKED_MAX - len(self._ready) - len(self._held))
        self.untracked += max(0, data.count - capacity)
        for sched_id in range(data.first_id, data.first_id + min(data.count, capacity)):
            if sched_id in held:
                self._held[sched_id] = held[sched_id]
            else:
                self._ready[sched_id] = event.ts

    def _fold_released(self, data: events.EntriesReleased, event: Event) -> None:
        """A hold of entries ended.

        An entry that waited for predecessors may still wait for its time, which the event does not say. It counts as
        ready; when its time comes, the next event resets the start of its waiting time.
        """
        for sched_id in data.sched_ids:
            if self._held.pop(sched_id, None) is not None or sched_id in self._ready:
                self._ready[sched_id] = event.ts

    def _fold_kept(self, data: events.EntriesHeldForWorker, _event: Event) -> None:
        """A hold of entries ended, and they are now held for a worker."""
        for sched_id in data.sched_ids:
            known = self._held.pop(sched_id, None) is not None
            if self._ready.pop(sched_id, None) is not None or known:
                self._held[sched_id] = "worker"

    def _fold_changed(self, data: events.EntriesChanged, event: Event) -> None:
        """The time of entries changed: they may be held by it now, or no longer.

        An entry that waits for predecessors stays held, and so does one held for a worker, unless its time is later.
        """
        if "runnable_at" not in data.changes:
            return
        for sched_id in data.sched_ids:
            if data.changes["runnable_at"] <= event.ts:
                if self._held.get(sched_id, "after") not in ("after", "worker"):
                    del self._held[sched_id]
                    self._ready[sched_id] = event.ts
            elif self._ready.pop(sched_id, None) is not None or self._held.get(sched_id) == "worker":
                self._held[sched_id] = "time"

    def _fold_claimed(self, data: events.EntriesClaimed, event: Event) -> None:
        self.queued -= len(data.entries)
        self.running += len(data.entries)
        for entry in data.entries:
            self._held.pop(entry.sched_id, None)
            ready_at = self._ready.pop(entry.sched_id, None)
            wait_s = None if ready_at is None else max(0.0, event.ts - ready_at)
            if wait_s is not None:
                self._add_wait(wait_s)
            self.rates.add_start(event.ts, wait_s)
            if len(self._runs) < TRACKED_MAX:
                project_id = self._project_of(entry.pid)
                span = RunSpan(entry.sched_id, entry.pid, project_id or None, event.ts)
                drawn = self._chart.begin(data.worker_id, span)
                self._runs[entry.sched_id] = ShownRun(entry.pid, project_id, event.ts, drawn, entry.attempt)

    def _add_wait(self, wait_s: float) -> None:
        self._waits.append(wait_s)
        self._waits_count += 1
        self._wait_max_s = max(self._wait_max_s, wait_s)

    def _fold_run_ended(self, data: events.RunEnded, _event: Event) -> None:
        """Keep the report of the runner; the next event says what happens to the entry."""
        run = self._runs.get(data.sched_id)
        if run is not None:
            run.exit_kind, run.outcome, run.stopped_by = data.exit_kind, data.outcome, data.stopped_by

    def _fold_completed(self, data: events.EntriesCompleted, event: Event) -> None:
        self.running -= len(data.entries)
        wrong = sum(entry.exit_kind != "completed" for entry in data.entries)
        self.rates.add(event.ts, ended=len(data.entries), failed=wrong)
        for entry in data.entries:
            self.finished[entry.exit_kind] += 1
            lost = entry.outcome == "claim_expired"
            self.reclaimed += lost
            if entry.exit_kind == "completed":
                self._end(entry.sched_id, "completed", event.ts)
            else:
                self.failures[entry.outcome or entry.exit_kind] += 1
                self._end(entry.sched_id, "lost" if lost else "failed", event.ts)

    def _fold_returned(self, data: events.EntriesReturned, event: Event) -> None:
        self.running -= len(data.sched_ids)
        self.queued += len(data.sched_ids)
        self.retries += len(data.sched_ids) if data.verb == "retry" else 0
        self.reclaimed += len(data.sched_ids) if data.verb == "reclaim" else 0
        if data.verb in ("retry", "reclaim"):
            self.rates.add(event.ts, failed=len(data.sched_ids))
        hold = "backoff" if data.verb in ("retry", "reclaim") else "time"
        waits = data.runnable_at is not None and data.runnable_at > event.ts
        for sched_id in data.sched_ids:
            if data.verb in ("retry", "reclaim"):
                self.failures[self.why(sched_id, data.reason)] += 1
            self._end(sched_id, _ENDINGS[data.verb], event.ts)
            if len(self._ready) + len(self._held) >= TRACKED_MAX:
                self.untracked += 1
            elif waits:
                self._held[sched_id] = hold
            else:
                self._ready[sched_id] = event.ts

    def _end(self, sched_id: int, ending: RunEnding, at: float) -> None:
        self.awaited.pop(sched_id, None)
        run = self._runs.pop(sched_id, None)
        if run is None:
            return
        totals = self._project(run.project_id)
        totals.runs += 1
        totals.failed += ending in ("failed", "lost")
        totals.seconds += max(0.0, at - run.start_at)
        recent = self._recent.of(run.pid, at)
        recent.add(Used(1, int(ending in ("failed", "lost")), min(max(0.0, at - run.start_at), WINDOW_S)))
        if run.span is not None:
            run.span.end_at, run.span.ending = at, ending

    def _fold_expired(self, data: events.EntriesExpired, _event: Event) -> None:
        self._leave(data.sched_ids, "expired")

    def _fold_cancelled(self, data: events.EntriesCancelled, _event: Event) -> None:
        self._leave(data.sched_ids, "cancelled")

    def _leave(self, sched_ids: list[int], ending: str) -> None:
        """Entries ended without having run."""
        self.queued -= len(sched_ids)
        self.finished[ending] += len(sched_ids)
        for sched_id in sched_ids:
            self._ready.pop(sched_id, None)
            self._held.pop(sched_id, None)

    def _fold_charged(self, data: events.LedgerCharged, event: Event) -> None:
        project_id = data.project_id if data.project_id is not None else self._project_of(event.pid)
        self._charge(project_id, data.amounts, 1)
        self._recent.of(event.pid, event.ts).add(Used(charged=data.amounts))

    def _fold_refunded(self, data: events.LedgerRefunded, event: Event) -> None:
        self._charge(self._project_of(event.pid), data.amounts, -1)
        refunded = {dim: -amount for dim, amount in data.amounts.items()}
        self._recent.of(event.pid, event.ts).add(Used(charged=refunded))

    def _fold_throttled(self, data: events.LimitThrottled, event: Event) -> None:
        """Keep the pause, and drop those that are over."""
        self.throttles = {name: until_at for name, until_at in self.throttles.items() if until_at > event.ts}
        self.throttles[data.name] = data.until_at

    def _fold_resumed(self, data: events.LimitResumed, _event: Event) -> None:
        self.throttles.pop(data.name, None)

    def _fold_awaited(self, data: events.LimitAwaited, _event: Event) -> None:
        self.awaited[data.sched_id] = data.name

    def _fold_acquired(self, data: events.LimitAcquired | events.LimitSettled, _event: Event) -> None:
        self.awaited.pop(data.sched_id, None)

    def _charge(self, project_id: str, amounts: Mapping[str, int], sign: int) -> None:
        charged = self._project(project_id).charged
        for dim, amount in amounts.items():
            charged[dim] = charged.get(dim, 0) + sign * amount

    def _project(self, project_id: str) -> ProjectTotals:
        if project_id not in self.projects:
            self.projects[project_id] = ProjectTotals()
        return self.projects[project_id]

    # --- reading ---------------------------------------------------------------------------------

    @property
    def holds(self) -> dict[str, int]:
        """The number of held entries by hold: time, backoff, after, worker."""
        return dict(sorted(Counter(self._held.values()).items()))

    @property
    def rows(self) -> list[ChartRow]:
        """The rows of the chart of runs."""
        return self._chart.rows()

    def runs_of(self, worker_id: str) -> list[int]:
        """The entries that a worker runs now."""
        return [row.spans[-1].sched_id for row in self.rows if row.worker_id == worker_id and not row.is_free]

    def waits(self) -> WaitTimes:
        """How long entries were ready before they ran."""
        return WaitTimes.of(sorted(self._waits), self._waits_count, self._wait_max_s)

    def recent_wait_s(self) -> tuple[float, int]:
        """The mean of the last waiting times, and their number."""
        last = list(self._waits)[-RECENT_WAITS:]
        return (sum(last) / len(last) if last else 0.0), len(last)

    def recent_shares(self, now: float, waiting: Collection[str] = ()) -> RecentShares:
        """Return shares against targets in the last `WINDOW_S`; `waiting` are projects with entries that wait."""
        since_at = max(self.since_at, now - WINDOW_S)
        used = self._recent.totals(now)
        for run in self._runs.values():
            seconds = max(0.0, now - max(run.start_at, since_at))
            used.setdefault(run.pid, Used()).add(Used(seconds=seconds, running=1))
        weights = {project_id: totals.weight for project_id, totals in self.projects.items()}
        window_s = max(0.0, now - since_at)
        return shares_of(used, self._tag, weights, share_by=self.share_by, window_s=window_s, waiting=waiting)

    def _tag(self, pid: int) -> AgentName:
        name = "other agents" if pid == OTHERS else f"agent {pid}"
        return self._agents.get(pid) or AgentName(name)

    def shares(self, among: Collection[str] | None = None) -> tuple[str, list[ProjectReport]]:
        """Return the unit of shares and the report of each project: of those that ran, or of those in `among`."""
        known = sorted(set(self.projects if among is None else among) & set(self.projects) - {NO_PROJECT})
        ran = {project_id: self.projects[project_id] for project_id in known}
        if among is None:
            ran = {name: totals for name, totals in ran.items() if totals.runs or any(totals.charged.values())}
        dim = SHARE_DIMS[self.share_by]
        is_charged = any(totals.charged.get(dim) for totals in ran.values())
        used = {name: totals.charged.get(dim, 0) if is_charged else totals.seconds for name, totals in ran.items()}
        weights = sum(totals.weight for totals in ran.values())
        total = sum(used.values())
        return self.share_by if is_charged else "seconds", [
            ProjectReport(
                project_id=name,
                weight=totals.weight,
                runs=totals.runs,
                failed=totals.failed,
                charged=dict(totals.charged),
                seconds=totals.seconds,
                share=used[name] / total if total else 0.0,
                target=totals.weight / weights,
            )
            for name, totals in ran.items()
        ]

    def report(self, tables: Mapping[str, int], among: Collection[str] | None = None) -> FleetReport:
        """Return the report. `tables` is `queue.counts()` at the event up to which this state was folded."""
        measure, projects = self.shares(among)
        queued = sum(count for state, count in tables.items() if state.partition(":")[0] == "queued")
        running = tables.get("dispatched", 0)
        finished = self.finished.total()
        return FleetReport(
            measure=measure,
            projects=projects,
            jain=jain([project.share / project.weight for project in projects]),
            waits=self.waits(),
            retries=self.retries,
            reclaimed=self.reclaimed,
            failures=dict(sorted(self.failures.items())),
            enqueued=self.enqueued,
            finished=dict(sorted(self.finished.items())),
            queued=queued,
            running=running,
            lost=self.enqueued - finished - queued - running,
        )


_ENDINGS: Mapping[str, RunEnding] = {"retry": "failed", "reclaim": "lost", "yield": "returned", "preempt": "returned"}

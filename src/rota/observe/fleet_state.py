"""The board: what a fleet is doing and how it has done, folded from the journal. It asks nobody and writes nothing.

Everything on it has a bound, however long the fleet runs and however deep its queue is. Counts need no memory of single
entries, because each fact says where its entries came from: a claim takes them out of the queue, a completion ends
runs, a return puts runs back. Only three things are remembered one by one, up to `TRACKED_MAX`: since when an entry is
ready (for its wait), why it is held, and what runs.

**What share means.** A project's share is its part of what was charged to all projects that ran, in tokens, or in
seconds of running if nobody charged tokens; its target is its part of their weights. That compares like with like only
while all of them have work waiting: an idle project gets less than its target and that is no fault. Jain's index sums
it up: with x = charged ÷ weight, (Σx)² ÷ (n·Σx²) is 1 when all are served alike and 1/n when one has everything.

**What lost means.** The journal says how many entries were put in and how many ended; the tables say how many wait and
run. What is missing between the two is lost, and must be none. The board alone cannot see it, since it counts what
the journal tells it: so whoever asks for a report gives the counts of the tables with it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from rota.errors import StoreCorrupt
from rota.kernel.ledger import SHARED_DIM
from rota.model import events as facts
from rota.model.events import Event, Fact, decode
from rota.model.work import WEIGHT_UNIT
from rota.observe.event_text import Story, tell
from rota.observe.report import ProjectReport, Report, Waits, jain
from rota.observe.spans import Ending, Lane, Lanes, Span

__all__ = ["NO_PROJECT", "STORIES_MAX", "TRACKED_MAX", "AgentTag", "Board", "ProjectTally", "Start"]

TRACKED_MAX = 100_000  # entries of which more than their number is known
AGENTS_MAX = 100_000  # agents whose names are known; beyond that they are numbers
WAITS_MAX = 10_000  # waits that the percentiles are of: the last ones
STORIES_MAX = 200
NO_PROJECT = ""  # what runs of agents without a project are counted under; it has no share


class AgentTag(msgspec.Struct, frozen=True):
    """What an agent is called, and whose it is."""

    name: str
    project_id: str | None = None


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Where a board begins that is not read from the first fact on: how things stood after event `through_id`."""

    through_id: int
    at: float
    weights: dict[str, int] = {}  # by project
    agents: dict[int, AgentTag] = {}
    queued: int = 0
    running: int = 0


class ProjectTally(msgspec.Struct):
    """What one project has had so far."""

    weight: int = WEIGHT_UNIT
    runs: int = 0  # that ended, in any way
    failed: int = 0
    charged: dict[str, int] = {}  # by dimension
    seconds: float = 0.0  # of runs that ended


class _LiveRun(msgspec.Struct):
    pid: int
    project_id: str
    start_at: float
    span: Span | None
    exit_kind: str | None = None  # as its runner told it, just before its entry moves
    outcome: str | None = None
    stopped_by: str | None = None


class Board:
    """Give it every event, in order; read it at any time between two."""

    def __init__(self, start: Start | None = None) -> None:
        begin = start or Start(through_id=0, at=0.0)
        self.through_id = begin.through_id
        self.at = begin.at  # when the last fact was recorded
        self.enqueued = begin.queued + begin.running
        self.finished: Counter[str] = Counter()  # entries, by exit kind, or expired, cancelled
        self.queued = begin.queued  # those that are held included
        self.running = begin.running
        self.retries = 0
        self.reclaimed = 0
        self.failures: Counter[str] = Counter()  # runs, by outcome
        self.untracked = 0  # entries of which only the number was counted
        self.throttles: dict[str, float] = {}  # by the name of a limit, until when it is paused
        self.unread = 0  # facts of a newer rota
        self.projects = {project_id: ProjectTally(weight=weight) for project_id, weight in begin.weights.items()}
        self.stories: deque[Story] = deque(maxlen=STORIES_MAX)
        self._agents = dict(begin.agents)
        self._ready: dict[int, float] = {}
        self._held: dict[int, str] = {}
        self._runs: dict[int, _LiveRun] = {}
        self._waits: deque[float] = deque(maxlen=WAITS_MAX)
        self._waits_count = 0
        self._wait_max_s = 0.0
        self._lanes = Lanes()
        self._folds: Mapping[type[Fact], Callable[[Any, Event], None]] = {
            facts.ProcessCreated: self._fold_agent,
            facts.ProjectCreated: self._fold_project,
            facts.ProjectUpdated: self._fold_weight,
            facts.EntriesEnqueued: self._fold_enqueued,
            facts.EntriesReleased: self._fold_released,
            facts.EntriesKept: self._fold_kept,
            facts.EntriesChanged: self._fold_changed,
            facts.EntriesClaimed: self._fold_claimed,
            facts.EntriesCompleted: self._fold_completed,
            facts.EntriesReturned: self._fold_returned,
            facts.EntriesExpired: self._fold_expired,
            facts.EntriesCancelled: self._fold_cancelled,
            facts.LedgerCharged: self._fold_charged,
            facts.LedgerRefunded: self._fold_refunded,
            facts.RunEnded: self._fold_run_ended,
            facts.LimitThrottled: self._fold_throttled,
        }

    # --- folding ---------------------------------------------------------------------------------

    def fold(self, event: Event) -> list[Story]:
        """Take one event in; the answer is what there is to say about it. Kinds that are not known are passed over."""
        self.through_id = event.event_id
        self.at = max(self.at, event.ts)
        if event.kind not in facts.FACTS:
            return []
        try:
            fact = decode(event.kind, event.payload)
        except StoreCorrupt:
            self.unread += 1
            return []
        told = tell(event, fact, self)
        fold = self._folds.get(type(fact))
        if fold is not None:
            fold(fact, event)
        self.stories.extend(told)
        return told

    def _fold_agent(self, fact: facts.ProcessCreated, event: Event) -> None:
        if event.pid is not None and len(self._agents) < AGENTS_MAX:
            self._agents[event.pid] = AgentTag(fact.name, fact.project_id)

    def _fold_project(self, fact: facts.ProjectCreated, _event: Event) -> None:
        self._project(fact.project_id).weight = fact.weight

    def _fold_weight(self, fact: facts.ProjectUpdated, _event: Event) -> None:
        if "weight" in fact.changes:
            self._project(fact.project_id).weight = fact.changes["weight"]

    def _fold_enqueued(self, fact: facts.EntriesEnqueued, event: Event) -> None:
        self.enqueued += fact.count
        self.queued += fact.count
        held = {sched_id: hold for hold, sched_ids in fact.held.items() for sched_id in sched_ids}
        room = max(0, TRACKED_MAX - len(self._ready) - len(self._held))
        self.untracked += max(0, fact.count - room)
        for sched_id in range(fact.first_id, fact.first_id + min(fact.count, room)):
            if sched_id in held:
                self._held[sched_id] = held[sched_id]
            else:
                self._ready[sched_id] = event.ts

    def _fold_released(self, fact: facts.EntriesReleased, event: Event) -> None:
        """Entries need not wait for that any more.

        One that waited for others may still have to wait for its time, which its fact does not say: it counts as ready
        until the fact comes that its time has come, and from then on it has waited.
        """
        for sched_id in fact.sched_ids:
            if self._held.pop(sched_id, None) is not None or sched_id in self._ready:
                self._ready[sched_id] = event.ts

    def _fold_kept(self, fact: facts.EntriesKept, _event: Event) -> None:
        """Entries need not wait for that any more, and wait for a worker instead."""
        for sched_id in fact.sched_ids:
            known = self._held.pop(sched_id, None) is not None
            if self._ready.pop(sched_id, None) is not None or known:
                self._held[sched_id] = "worker"

    def _fold_changed(self, fact: facts.EntriesChanged, event: Event) -> None:
        """Another time: an entry may be held by it from now on, or not any more.

        One that waits for others stays, and so does one that is kept for a worker, unless its time is yet to come.
        """
        if "runnable_at" not in fact.changes:
            return
        for sched_id in fact.sched_ids:
            if fact.changes["runnable_at"] <= event.ts:
                if self._held.get(sched_id, "after") not in ("after", "worker"):
                    del self._held[sched_id]
                    self._ready[sched_id] = event.ts
            elif self._ready.pop(sched_id, None) is not None or self._held.get(sched_id) == "worker":
                self._held[sched_id] = "time"

    def _fold_claimed(self, fact: facts.EntriesClaimed, event: Event) -> None:
        self.queued -= len(fact.entries)
        self.running += len(fact.entries)
        for entry in fact.entries:
            self._held.pop(entry.sched_id, None)
            if (ready_at := self._ready.pop(entry.sched_id, None)) is not None:
                self._waited(max(0.0, event.ts - ready_at))
            if len(self._runs) < TRACKED_MAX:
                project_id = self._project_of(entry.pid)
                span = Span(entry.sched_id, entry.pid, project_id or None, event.ts)
                drawn = self._lanes.begin(fact.worker_id, span)
                self._runs[entry.sched_id] = _LiveRun(entry.pid, project_id, event.ts, drawn)

    def _waited(self, wait_s: float) -> None:
        self._waits.append(wait_s)
        self._waits_count += 1
        self._wait_max_s = max(self._wait_max_s, wait_s)

    def _fold_run_ended(self, fact: facts.RunEnded, _event: Event) -> None:
        """A runner's word: what becomes of the entry is the next fact's."""
        run = self._runs.get(fact.sched_id)
        if run is not None:
            run.exit_kind, run.outcome, run.stopped_by = fact.exit_kind, fact.outcome, fact.stopped_by

    def _fold_completed(self, fact: facts.EntriesCompleted, event: Event) -> None:
        self.running -= len(fact.entries)
        for entry in fact.entries:
            self.finished[entry.exit_kind] += 1
            lost = entry.outcome == "claim_expired"
            self.reclaimed += lost
            if entry.exit_kind == "completed":
                self._end(entry.sched_id, "well", event.ts)
            else:
                self.failures[entry.outcome or entry.exit_kind] += 1
                self._end(entry.sched_id, "lost" if lost else "badly", event.ts)

    def _fold_returned(self, fact: facts.EntriesReturned, event: Event) -> None:
        self.running -= len(fact.sched_ids)
        self.queued += len(fact.sched_ids)
        self.retries += len(fact.sched_ids) if fact.verb == "retry" else 0
        self.reclaimed += len(fact.sched_ids) if fact.verb == "reclaim" else 0
        hold = "backoff" if fact.verb in ("retry", "reclaim") else "time"
        waits = fact.runnable_at is not None and fact.runnable_at > event.ts
        for sched_id in fact.sched_ids:
            if fact.verb in ("retry", "reclaim"):
                self.failures[self.why(sched_id, fact.reason)] += 1
            self._end(sched_id, _ENDINGS[fact.verb], event.ts)
            if len(self._ready) + len(self._held) >= TRACKED_MAX:
                self.untracked += 1
            elif waits:
                self._held[sched_id] = hold
            else:
                self._ready[sched_id] = event.ts

    def _end(self, sched_id: int, ending: Ending, at: float) -> None:
        run = self._runs.pop(sched_id, None)
        if run is None:
            return
        tally = self._project(run.project_id)
        tally.runs += 1
        tally.failed += ending in ("badly", "lost")
        tally.seconds += max(0.0, at - run.start_at)
        if run.span is not None:
            run.span.end_at, run.span.ending = at, ending

    def _fold_expired(self, fact: facts.EntriesExpired, _event: Event) -> None:
        self._leave(fact.sched_ids, "expired")

    def _fold_cancelled(self, fact: facts.EntriesCancelled, _event: Event) -> None:
        self._leave(fact.sched_ids, "cancelled")

    def _leave(self, sched_ids: list[int], how: str) -> None:
        """Entries end without having run."""
        self.queued -= len(sched_ids)
        self.finished[how] += len(sched_ids)
        for sched_id in sched_ids:
            self._ready.pop(sched_id, None)
            self._held.pop(sched_id, None)

    def _fold_charged(self, fact: facts.LedgerCharged, event: Event) -> None:
        project_id = fact.project_id if fact.project_id is not None else self._project_of(event.pid)
        self._charge(project_id, fact.amounts, 1)

    def _fold_refunded(self, fact: facts.LedgerRefunded, event: Event) -> None:
        self._charge(self._project_of(event.pid), fact.amounts, -1)

    def _fold_throttled(self, fact: facts.LimitThrottled, event: Event) -> None:
        """Those that are over go, so that no more are kept than there are limits paused at once."""
        self.throttles = {name: until_at for name, until_at in self.throttles.items() if until_at > event.ts}
        self.throttles[fact.name] = fact.until_at

    def _charge(self, project_id: str, amounts: Mapping[str, int], sign: int) -> None:
        charged = self._project(project_id).charged
        for dim, amount in amounts.items():
            charged[dim] = charged.get(dim, 0) + sign * amount

    def _project(self, project_id: str) -> ProjectTally:
        if project_id not in self.projects:
            self.projects[project_id] = ProjectTally()
        return self.projects[project_id]

    def _project_of(self, pid: int | None) -> str:
        tag = self._agents.get(pid) if pid is not None else None
        return tag.project_id or NO_PROJECT if tag is not None else NO_PROJECT

    # --- names -----------------------------------------------------------------------------------

    def agent(self, pid: int | None) -> str:
        """An agent's name; its number, if nobody told it."""
        tag = self._agents.get(pid) if pid is not None else None
        return tag.name if tag is not None else f"agent {pid}"

    def run(self, sched_id: int) -> str:
        """What runs, by its agent's name and the entry's number."""
        run = self._runs.get(sched_id)
        return f"{self.agent(run.pid)} #{sched_id}" if run is not None else f"entry {sched_id}"

    def why(self, sched_id: int, reason: str | None) -> str:
        """What a run that did not end well ended with: its outcome, as fine as it is known."""
        run = self._runs.get(sched_id)
        told = None if run is None else run.outcome or run.exit_kind
        return told or reason or "failed"

    def how_it_ran(self, sched_id: int, at: float) -> str:
        """How long it ran, and which rung of the ladder stopped it, if one did."""
        run = self._runs.get(sched_id)
        if run is None:
            return ""
        stopped = f", stopped by {run.stopped_by}" if run.stopped_by is not None else ""
        return f" after {max(0.0, at - run.start_at):.1f} s{stopped}"

    # --- reading ---------------------------------------------------------------------------------

    @property
    def holds(self) -> dict[str, int]:
        """How many entries wait for what: a time, a back-off, other entries."""
        return dict(sorted(Counter(self._held.values()).items()))

    @property
    def lanes(self) -> list[Lane]:
        """Who ran where and when."""
        return self._lanes.rows()

    def runs_of(self, worker_id: str) -> list[int]:
        """What a worker runs now."""
        return [lane.spans[-1].sched_id for lane in self.lanes if lane.worker_id == worker_id and not lane.is_free]

    def waits(self) -> Waits:
        """How long entries were ready before they ran."""
        return Waits.of(sorted(self._waits), self._waits_count, self._wait_max_s)

    def shares(self, among: Collection[str] | None = None) -> tuple[str, list[ProjectReport]]:
        """What shares are counted in, and each project's; of those that ran, or of those that are named."""
        here = sorted(set(self.projects if among is None else among) & set(self.projects) - {NO_PROJECT})
        ran = {project_id: self.projects[project_id] for project_id in here}
        if among is None:
            ran = {name: tally for name, tally in ran.items() if tally.runs or any(tally.charged.values())}
        in_tokens = any(tally.charged.get(SHARED_DIM) for tally in ran.values())
        had = {name: tally.charged.get(SHARED_DIM, 0) if in_tokens else tally.seconds for name, tally in ran.items()}
        weights = sum(tally.weight for tally in ran.values())
        total = sum(had.values())
        return SHARED_DIM if in_tokens else "seconds", [
            ProjectReport(
                project_id=name,
                weight=tally.weight,
                runs=tally.runs,
                failed=tally.failed,
                charged=dict(tally.charged),
                seconds=tally.seconds,
                share=had[name] / total if total else 0.0,
                target=tally.weight / weights,
            )
            for name, tally in ran.items()
        ]

    def report(self, tables: Mapping[str, int], among: Collection[str] | None = None) -> Report:
        """How it went. `tables` is what `queue.counts()` says at the moment up to which the board was folded."""
        measure, projects = self.shares(among)
        queued = sum(count for state, count in tables.items() if state.partition(":")[0] == "queued")
        running = tables.get("dispatched", 0)
        finished = self.finished.total()
        return Report(
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


_ENDINGS: Mapping[str, Ending] = {"retry": "badly", "reclaim": "lost", "yield": "back", "preempt": "back"}

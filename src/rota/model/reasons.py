"""Every reason why an entry waits, or why it was picked.

There are two kinds of waiting. A *blocking* reason means that the entry may not run for any worker: time, budget or an
operator must remove it. An *ordering* reason means that the entry may run, and others run first. Both are about a
claim. Besides them, a *worker* reason means that no worker is there to make such a claim. Each reason is typed and
carries its numbers; `sentence` returns it as text, with times as people read them.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

import msgspec

from rota.clock import local_time
from rota.model.money import amount_text, dim_text
from rota.model.workers import PlacementCode
from rota.time_text import span

__all__ = [
    "BLOCKING",
    "ORDERING",
    "UNATTENDED",
    "WORKERS",
    "BlockingBase",
    "BlockingReason",
    "OrderingBase",
    "OrderingReason",
    "PickReason",
    "WorkerBase",
    "WorkerReason",
]


def _until(at: float | None) -> str:
    return f" until {local_time(at)}" if at else ""


class BlockingBase(msgspec.Struct, frozen=True, kw_only=True, tag_field="code"):
    """Base of the reasons why an entry may not run now."""

    remedy: ClassVar[str] = ""  # what would remove it, in a few words

    def sentence(self) -> str:
        """Return the reason as text."""
        raise NotImplementedError


class NotYetRunnable(BlockingBase, frozen=True, kw_only=True, tag="not_yet_runnable"):
    """Its runnable_at lies in the future."""

    remedy = "wait, or reschedule it"
    runnable_at: float

    def sentence(self) -> str:
        """Return the reason as text."""
        return f"it is not runnable before {local_time(self.runnable_at)}"


class BackingOff(BlockingBase, frozen=True, kw_only=True, tag="backing_off"):
    """Its last attempt failed and the backoff is not over."""

    remedy = "wait, or retry it now"
    until_at: float
    attempt: int

    def sentence(self) -> str:
        """Return the reason as text."""
        return f"attempt {self.attempt} failed; the next may start at {local_time(self.until_at)}"


class AfterPredecessor(BlockingBase, frozen=True, kw_only=True, tag="after_predecessor"):
    """It waits for other entries to complete."""

    remedy = "complete its predecessors, or release it"
    waiting_for: tuple[int, ...]

    def sentence(self) -> str:
        """Return the reason as text."""
        return f"it waits for {', '.join(map(str, self.waiting_for))}"


class PastDeadline(BlockingBase, frozen=True, kw_only=True, tag="past_deadline"):
    """Its deadline has passed; the sweep expires it."""

    remedy = "set a later deadline"
    deadline: float

    def sentence(self) -> str:
        """Return the reason as text."""
        return f"its deadline, {local_time(self.deadline)}, has passed"


class NotQueued(BlockingBase, frozen=True, kw_only=True, tag="not_queued"):
    """It is running or finished."""

    remedy = "none: enqueue a new entry"
    state: str

    def sentence(self) -> str:
        """Return the reason as text."""
        return f"it is {self.state}"


class OwnerDead(BlockingBase, frozen=True, kw_only=True, tag="owner_dead"):
    """Its agent is dead."""

    remedy = "enqueue it for a live agent"
    pid: int

    def sentence(self) -> str:
        """Return the reason as text."""
        return f"its agent {self.pid} is dead"


class OverBudget(BlockingBase, frozen=True, kw_only=True, tag="over_budget"):
    """Usage, reservations and its own ask together exceed a budget; the strictest one is named."""

    remedy = "raise the budget, or wait until usage leaves the window"
    level: str  # agent, project, global, graph
    owner: str
    dim: str
    used: int
    reserved: int
    ask: int
    limit: int
    frees_at: float | None = None
    node: str = ""  # of a graph run; "": of the whole run

    def sentence(self) -> str:
        """Return the reason as text."""
        used, reserved, ask, limit = (
            amount_text(self.dim, each) for each in (self.used, self.reserved, self.ask, self.limit)
        )
        node = f"node {self.node} of " if self.node else ""
        level = "graph run" if self.level == "graph" else self.level
        what = f"{dim_text(self.dim)} of {node}{level} {self.owner}"
        return f"{what}: {used} used + {reserved} reserved + {ask} asked is over {limit}"


class LimitExhausted(BlockingBase, frozen=True, kw_only=True, tag="limit_exhausted"):
    """A shared limit it draws on is exhausted."""

    remedy = "wait for the refill"
    name: str
    until_at: float | None = None

    def sentence(self) -> str:
        """Return the reason as text."""
        return f"the shared limit {self.name} is exhausted{_until(self.until_at)}"


class WaitsOnLimit(BlockingBase, frozen=True, kw_only=True, tag="waits_on_limit"):
    """It runs, has asked a shared limit for more than is available, and waits for its turn."""

    remedy = "wait for the refill, or raise the limit"
    name: str
    asked: dict[str, int]
    since_at: float

    def sentence(self) -> str:
        """Return the reason as text."""
        amounts = " and ".join(f"{amount:,} {unit}" for unit, amount in self.asked.items())
        return f"its run waits for {amounts} of the shared limit {self.name}"


class ContextExhausted(BlockingBase, frozen=True, kw_only=True, tag="context_depleted"):
    """Its own or its project's budget per period is used up."""

    remedy = "wait for the refill"
    context_id: int
    until_at: float | None = None

    def sentence(self) -> str:
        """Return the reason as text."""
        return f"context {self.context_id} is depleted{_until(self.until_at)}"


class CapReached(BlockingBase, frozen=True, kw_only=True, tag="cap_reached"):
    """Its agent, its project or its concurrency key already has the maximum of live runs."""

    remedy = "wait for a run to end, or raise the cap"
    level: str  # agent, project, kind, key
    owner: str
    running: int
    cap: int

    def sentence(self) -> str:
        """Return the reason as text."""
        return f"{self.level} {self.owner} runs {self.running} of at most {self.cap}"


class WorkspaceTaken(BlockingBase, frozen=True, kw_only=True, tag="workspace_taken"):
    """No workspace it could use is free."""

    remedy = "wait for the holder, or add a workspace"
    workspace: str | None  # None: every workspace of the project
    held_by: tuple[int, ...]
    since_at: float | None = None

    def sentence(self) -> str:
        """Return the reason as text."""
        what = f"workspace {self.workspace}" if self.workspace else "every workspace of its project"
        return f"{what} is held by {', '.join(map(str, self.held_by))}"


class PausedByOperator(BlockingBase, frozen=True, kw_only=True, tag="paused"):
    """An operator or a constraint paused its agent, its project or the fleet."""

    remedy = "resume it"
    level: str
    owner: str
    by: str

    def sentence(self) -> str:
        """Return the reason as text."""
        return f"{self.level} {self.owner} was paused by {self.by}"


class ProjectInactive(BlockingBase, frozen=True, kw_only=True, tag="project_inactive"):
    """Its project is paused or archived."""

    remedy = "resume or restore the project"
    project_id: str
    status: str

    def sentence(self) -> str:
        """Return the reason as text."""
        return f"project {self.project_id} is {self.status}"


class Unreadable(BlockingBase, frozen=True, kw_only=True, tag="unreadable"):
    """A stored row cannot be read: one that it depends on, or its own, which the claim that reaches it ends."""

    remedy = "write the row again; for its own, enqueue a new entry"
    problem: str
    level: str = "entry"  # entry, project, context
    owner: str = ""

    def sentence(self) -> str:
        """Return the reason as text."""
        row = "its stored row" if self.level == "entry" else f"the stored row of {self.level} {self.owner}"
        return f"{row} cannot be read: {self.problem}"


BlockingReason: TypeAlias = (
    NotYetRunnable
    | BackingOff
    | AfterPredecessor
    | PastDeadline
    | NotQueued
    | OwnerDead
    | OverBudget
    | LimitExhausted
    | WaitsOnLimit
    | ContextExhausted
    | CapReached
    | WorkspaceTaken
    | PausedByOperator
    | ProjectInactive
    | Unreadable
)  # decoded from JSON by its tag


class OrderingBase(msgspec.Struct, frozen=True, kw_only=True, tag_field="code"):
    """Base of the reasons why an eligible entry was not picked."""

    def sentence(self) -> str:
        """Return the reason as text."""
        raise NotImplementedError


class NoSlot(OrderingBase, frozen=True, kw_only=True, tag="no_slot"):
    """Every slot that fits it is busy."""

    kind: str | None = None
    busy: int = 0

    def sentence(self) -> str:
        """Return the reason as text."""
        kind = f" of kind {self.kind}" if self.kind else ""
        return f"no free slot{kind} ({self.busy} busy)"


class WaitsForWorker(OrderingBase, frozen=True, kw_only=True, tag="waits_for_worker"):
    """It is held for its affinity worker for a while."""

    worker_id: str
    until_at: float

    def sentence(self) -> str:
        """Return the reason as text."""
        return f"it is held for worker {self.worker_id}{_until(self.until_at)}"


class Outranked(OrderingBase, frozen=True, kw_only=True, tag="outranked"):
    """Others run first."""

    policy: str
    ahead: int
    first: tuple[int, ...] = ()  # the first few of them
    score: str = ""  # its own, in the policy's terms, if the policy reached it
    at_least: bool = False  # the count stopped at `ahead`

    def sentence(self) -> str:
        """Return the reason as text."""
        if self.at_least and not self.first:
            return f"others go first by {self.policy}"
        count = f"{self.ahead:,} or more go" if self.at_least else f"{self.ahead:,} go{'es' * (self.ahead == 1)}"
        more = ", …" if self.ahead > len(self.first) else ""
        return f"{count} first by {self.policy}: {', '.join(map(str, self.first))}{more}"


class CrowdedOut(OrderingBase, frozen=True, kw_only=True, tag="crowded_out"):
    """Nothing blocks it now, but entries ahead of it take what it needs."""

    by: tuple[int, ...]  # the first few of them
    then: tuple[BlockingReason, ...]

    def sentence(self) -> str:
        """Return the reason as text."""
        return f"entries ahead of it take what it needs: then {'; '.join(reason.sentence() for reason in self.then)}"


class NotPicked(OrderingBase, frozen=True, kw_only=True, tag="not_picked"):
    """A slot was free, and the policy did not fill it."""

    policy: str

    def sentence(self) -> str:
        """Return the reason as text."""
        return f"{self.policy} saw it and did not pick it"


class OutsideWindow(OrderingBase, frozen=True, kw_only=True, tag="outside_window"):
    """The policy sees a bounded number of candidates, and this entry is not among them yet."""

    window: int

    def sentence(self) -> str:
        """Return the reason as text."""
        return f"it is not among the first {self.window} candidates, which the policy sees"


OrderingReason: TypeAlias = NoSlot | WaitsForWorker | Outranked | CrowdedOut | NotPicked | OutsideWindow


class WorkerBase(msgspec.Struct, frozen=True, kw_only=True, tag_field="code"):
    """Base of the reasons why no worker would claim an entry now."""

    remedy: ClassVar[str] = ""  # what would remove it, in a few words

    def sentence(self) -> str:
        """Return the reason as text."""
        raise NotImplementedError


class NoWorker(WorkerBase, frozen=True, kw_only=True, tag="no_worker"):
    """No worker is running."""

    remedy = "start one"
    start: str = ""  # a command, or a call in Python, that starts one
    refusal: str = ""  # why the last one was refused the cores that it asks for

    def sentence(self) -> str:
        """Return the reason as text."""
        refused = f"; the last one was refused the cores that it asks for: {self.refusal}" if self.refusal else ""
        return f"no worker is running{_start(self.start)}{refused}"


class NoWorkerForKind(WorkerBase, frozen=True, kw_only=True, tag="no_worker_for_kind"):
    """Workers are running, and none has a slot of its kind."""

    remedy = "start one with such slots"
    kind: str
    start: str = ""

    def sentence(self) -> str:
        """Return the reason as text."""
        return f"no running worker has a slot of kind {self.kind}{_start(self.start)}"


class NoFunction(WorkerBase, frozen=True, kw_only=True, tag="no_function"):
    """Workers are running, and none has its agent's function: its program is not among them, or no import finds it."""

    remedy = "start the program that registers its function, or install its module where a worker runs and restart it"
    start: str = ""
    lacks: tuple[str, ...] = ()  # what cannot be imported, with the host, of the first few workers

    def sentence(self) -> str:
        """Return the reason as text."""
        if self.lacks:
            told = "; ".join(self.lacks)
            return f"no running worker has its agent's functions ({told}): install the module and restart the worker"
        return f"no running worker has its agent's function{_start(self.start)}"


class NoRunner(WorkerBase, frozen=True, kw_only=True, tag="no_runner"):
    """Workers are running, and none has its agent's runner: the package that provides it is not installed there."""

    remedy = "install the package that provides it where a worker runs"
    runner: str

    def sentence(self) -> str:
        """Return the reason as text."""
        return f"no running worker has its agent's runner, {self.runner}"


class WorkersDraining(WorkerBase, frozen=True, kw_only=True, tag="workers_draining"):
    """Every worker that could run it is draining: it ends its runs and claims no more."""

    remedy = "start another one"
    workers: tuple[str, ...] = ()  # the first few of them
    start: str = ""

    def sentence(self) -> str:
        """Return the reason as text."""
        names = f" ({', '.join(self.workers)})" if self.workers else ""
        return f"every worker that could run it is draining{names}{_start(self.start)}"


class WorkersSilent(WorkerBase, frozen=True, kw_only=True, tag="workers_silent"):
    """The worker that runs it, or every worker that could, has not been seen lately: stopped, cut off or dead."""

    remedy = "let it go on, or start another one"
    workers: tuple[str, ...] = ()  # the first few of them
    silent_s: float | None = None  # for how long the one that was seen last

    def sentence(self) -> str:
        """Return the reason as text."""
        since = "" if self.silent_s is None else f" for {span(self.silent_s)}"
        if len(self.workers) > 1:
            names = ", ".join(self.workers)
            return f"workers {names} have been silent{since}: they are stopped, cut off from the store, or dead"
        name = f"worker {self.workers[0]}" if self.workers else "its worker"
        return f"{name} has been silent{since}: it is stopped, cut off from the store, or dead"


class SlotsBusy(WorkerBase, frozen=True, kw_only=True, tag="slots_busy"):
    """Every slot that fits it is in use."""

    remedy = "wait for a run to end, or add slots"
    slots: int = 0  # 0: not shown to this caller
    held_by: tuple[int, ...] = ()  # the entries that run there: the first few, longest running first

    def sentence(self) -> str:
        """Return the reason as text."""
        what = "every slot that fits it is" if self.slots <= 1 else f"all {self.slots:,} slots that fit it are"
        if not self.held_by:
            return f"{what} busy"
        more = ", …" if self.slots > len(self.held_by) else ""
        return f"{what} busy with entr{'y' if self.slots == 1 else 'ies'} {', '.join(map(str, self.held_by))}{more}"


class CoresRefused(WorkerBase, frozen=True, kw_only=True, tag="cores_refused"):
    """A worker claimed it, and its host refused the cores that it asks for; it is tried again."""

    remedy = "wait for a lease to end, or ask for less"
    refusal: str = ""  # with its numbers; empty: not shown to this caller
    host_name: str = ""
    held_by: tuple[int, ...] = ()  # the entries whose grants are in the way
    refused_at: float | None = None
    never: bool = False  # that host cannot grant it, whatever ends there: another one may

    def sentence(self) -> str:
        """Return the reason as text."""
        return f"the cores that it asks for are refused{f': {self.refusal}' if self.refusal else ''}"


class NotPlaced(WorkerBase, frozen=True, kw_only=True, tag="not_placed"):
    """The worker that would run it elsewhere, on a cluster, cannot place it there now."""

    remedy = "give the cluster what is missing, or let the agent ask for less"
    kind: str
    problem: PlacementCode
    text: str = ""

    def sentence(self) -> str:
        """Return the reason as text."""
        return self.text or f"the cluster cannot run it: {self.problem}"


WorkerReason: TypeAlias = (
    NoWorker
    | NoWorkerForKind
    | NoFunction
    | NoRunner
    | WorkersDraining
    | WorkersSilent
    | SlotsBusy
    | CoresRefused
    | NotPlaced
)
# no worker that is there makes such a claim
UNATTENDED = (NoWorker, NoWorkerForKind, NoFunction, NoRunner, WorkersDraining, WorkersSilent)


def _start(command: str) -> str:
    return f": start one with `{command}`" if command else ""


class PickReason(msgspec.Struct, frozen=True, gc=False):
    """Why a candidate was picked: the policy, and what decided."""

    policy: str
    words: str

    def sentence(self) -> str:
        """Return the reason as text."""
        return f"{self.policy}: {self.words}"


BLOCKING: tuple[type[BlockingBase], ...] = tuple(BlockingBase.__subclasses__())
ORDERING: tuple[type[OrderingBase], ...] = tuple(OrderingBase.__subclasses__())
WORKERS: tuple[type[WorkerBase], ...] = tuple(WorkerBase.__subclasses__())

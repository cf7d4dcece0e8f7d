"""Every reason an entry waits, or was chosen.

Two kinds of waiting, never mixed. A *blocking* reason means it may not run, whoever asks: lifting it
needs time, money or an operator. An *ordering* reason means it may, and somebody else goes first.
Each reason is typed and carries its numbers; `sentence` says it in words.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

import msgspec

__all__ = ["BLOCKING", "ORDERING", "Because", "Blocking", "BlockingReason", "Ordering", "OrderingReason"]


class Blocking(msgspec.Struct, frozen=True, kw_only=True, tag_field="code"):
    """Why an entry may not run now."""

    lifts: ClassVar[str] = ""  # what would lift it, in a few words

    def sentence(self) -> str:
        """The reason in words."""
        raise NotImplementedError


class NotYetRunnable(Blocking, frozen=True, kw_only=True, tag="not_yet_runnable"):
    """Its time has not come."""

    lifts = "wait, or reschedule it"
    runnable_at: float

    def sentence(self) -> str:
        """The reason in words."""
        return f"it is not runnable before {self.runnable_at}"


class BackingOff(Blocking, frozen=True, kw_only=True, tag="backing_off"):
    """Its last attempt failed and the next one waits."""

    lifts = "wait, or retry it now"
    until_at: float
    attempt: int

    def sentence(self) -> str:
        """The reason in words."""
        return f"attempt {self.attempt} failed; the next may start at {self.until_at}"


class AfterPredecessor(Blocking, frozen=True, kw_only=True, tag="after_predecessor"):
    """It waits for other entries to complete."""

    lifts = "complete what it waits for, or release it"
    waiting_for: tuple[int, ...]

    def sentence(self) -> str:
        """The reason in words."""
        return f"it waits for {', '.join(map(str, self.waiting_for))}"


class PastDeadline(Blocking, frozen=True, kw_only=True, tag="past_deadline"):
    """Its deadline is over; the sweep will expire it."""

    lifts = "move its deadline"
    deadline: float

    def sentence(self) -> str:
        """The reason in words."""
        return f"its deadline ({self.deadline}) has passed"


class NotQueued(Blocking, frozen=True, kw_only=True, tag="not_queued"):
    """It is running or finished."""

    lifts = "nothing: enqueue a new one"
    state: str

    def sentence(self) -> str:
        """The reason in words."""
        return f"it is {self.state}"


class OwnerDead(Blocking, frozen=True, kw_only=True, tag="owner_dead"):
    """Its agent has ended."""

    lifts = "enqueue it for a living agent"
    pid: int

    def sentence(self) -> str:
        """The reason in words."""
        return f"its agent {self.pid} is dead"


class OverBudget(Blocking, frozen=True, kw_only=True, tag="over_budget"):
    """Used, reserved and asked together pass a limit: the strictest one is named."""

    lifts = "raise the grant, or wait for the window to move"
    level: str  # agent, project, global
    owner: str
    dim: str
    used: int
    reserved: int
    ask: int
    limit: int
    frees_at: float | None = None

    def sentence(self) -> str:
        """The reason in words."""
        return (
            f"{self.dim} of {self.level} {self.owner}: {self.used:,} used + {self.reserved:,} reserved "
            f"+ {self.ask:,} asked is over {self.limit:,}"
        )


class LimitExhausted(Blocking, frozen=True, kw_only=True, tag="limit_exhausted"):
    """A shared limit it draws on has nothing left."""

    lifts = "wait for the refill"
    name: str
    until_at: float | None = None

    def sentence(self) -> str:
        """The reason in words."""
        return f"the shared limit {self.name} is exhausted" + (f" until {self.until_at}" if self.until_at else "")


class ContextDepleted(Blocking, frozen=True, kw_only=True, tag="context_depleted"):
    """Its own budget per period is used up."""

    lifts = "wait for the refill"
    context_id: int
    until_at: float | None = None

    def sentence(self) -> str:
        """The reason in words."""
        return f"context {self.context_id} is depleted" + (f" until {self.until_at}" if self.until_at else "")


class CapReached(Blocking, frozen=True, kw_only=True, tag="cap_reached"):
    """Its agent or project already runs as much as it may."""

    lifts = "wait for one to end, or raise the cap"
    level: str  # agent, project, kind
    owner: str
    running: int
    cap: int

    def sentence(self) -> str:
        """The reason in words."""
        return f"{self.level} {self.owner} runs {self.running} of at most {self.cap}"


class WorkspaceTaken(Blocking, frozen=True, kw_only=True, tag="workspace_taken"):
    """No workspace it could use is free."""

    lifts = "wait for the holder, or add a workspace"
    workspace: str | None  # None: every workspace of the project
    held_by: tuple[int, ...]
    since_at: float | None = None

    def sentence(self) -> str:
        """The reason in words."""
        what = f"workspace {self.workspace}" if self.workspace else "every workspace of its project"
        return f"{what} is held by {', '.join(map(str, self.held_by))}"


class PausedBy(Blocking, frozen=True, kw_only=True, tag="paused"):
    """Somebody paused its agent, its project or the fleet."""

    lifts = "resume it"
    level: str
    owner: str
    by: str

    def sentence(self) -> str:
        """The reason in words."""
        return f"{self.level} {self.owner} was paused by {self.by}"


class ProjectInactive(Blocking, frozen=True, kw_only=True, tag="project_inactive"):
    """Its project does not take part."""

    lifts = "resume or restore the project"
    project_id: str
    status: str

    def sentence(self) -> str:
        """The reason in words."""
        return f"project {self.project_id} is {self.status}"


BlockingReason: TypeAlias = (
    NotYetRunnable
    | BackingOff
    | AfterPredecessor
    | PastDeadline
    | NotQueued
    | OwnerDead
    | OverBudget
    | LimitExhausted
    | ContextDepleted
    | CapReached
    | WorkspaceTaken
    | PausedBy
    | ProjectInactive
)  # by its tag, so that one can be read back from JSON


class Ordering(msgspec.Struct, frozen=True, kw_only=True, tag_field="code"):
    """Why an entry that may run was not picked."""

    def sentence(self) -> str:
        """The reason in words."""
        raise NotImplementedError


class NoSlot(Ordering, frozen=True, kw_only=True, tag="no_slot"):
    """Every slot that it fits is taken."""

    kind: str | None = None
    busy: int = 0

    def sentence(self) -> str:
        """The reason in words."""
        kind = f" of kind {self.kind}" if self.kind else ""
        return f"no free slot{kind} ({self.busy} busy)"


class WaitsForWorker(Ordering, frozen=True, kw_only=True, tag="waits_for_worker"):
    """It is kept for the worker it would rather have, for a while."""

    worker_id: str
    until_at: float

    def sentence(self) -> str:
        """The reason in words."""
        return f"it is kept for worker {self.worker_id} until {self.until_at}"


class Outranked(Ordering, frozen=True, kw_only=True, tag="outranked"):
    """Others go first."""

    policy: str
    ahead: int
    first: tuple[int, ...] = ()  # the first few of them
    score: str = ""  # its own, in the policy's words, where it was reached
    at_least: bool = False  # nobody looked further

    def sentence(self) -> str:
        """The reason in words."""
        count = f"{self.ahead:,} or more go" if self.at_least else f"{self.ahead:,} go{'es' * (self.ahead == 1)}"
        more = ", …" if self.ahead > len(self.first) else ""
        return f"{count} first by {self.policy}: {', '.join(map(str, self.first))}{more}"


class CrowdedOut(Ordering, frozen=True, kw_only=True, tag="crowded_out"):
    """Nothing blocks it now, and once those before it have been taken something does."""

    by: tuple[int, ...]  # the first few of those
    then: tuple[BlockingReason, ...]

    def sentence(self) -> str:
        """The reason in words."""
        return f"others take what it needs: then {'; '.join(reason.sentence() for reason in self.then)}"


class NotPicked(Ordering, frozen=True, kw_only=True, tag="not_picked"):
    """There was room, and the policy left it empty."""

    policy: str

    def sentence(self) -> str:
        """The reason in words."""
        return f"{self.policy} was shown it and did not pick it"


class OutsideWindow(Ordering, frozen=True, kw_only=True, tag="outside_window"):
    """The policy looks at a bounded number of candidates, and it is not among them yet."""

    window: int

    def sentence(self) -> str:
        """The reason in words."""
        return f"it is not among the candidates that the policy is shown, at most {self.window}"


OrderingReason: TypeAlias = NoSlot | WaitsForWorker | Outranked | CrowdedOut | NotPicked | OutsideWindow


class Because(msgspec.Struct, frozen=True, gc=False):
    """Why this candidate was chosen: the policy, and the words for what decided."""

    policy: str
    words: str

    def sentence(self) -> str:
        """The reason in words."""
        return f"{self.policy}: {self.words}"


BLOCKING: tuple[type[Blocking], ...] = tuple(Blocking.__subclasses__())
ORDERING: tuple[type[Ordering], ...] = tuple(Ordering.__subclasses__())

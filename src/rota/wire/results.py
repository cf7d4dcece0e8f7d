"""What each method answers, where that is not one of the model's own nouns, and how answers become results.

A `Shape` says how what a kernel's verb returns is put on the wire and taken off again, so that a client's verb
returns exactly what the kernel's would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from rota.errors import RotaError
from rota.kernel.asks import Beat, Turnover
from rota.kernel.ledger import Charged, Checked
from rota.kernel.retention import Pruning
from rota.model.budgets import BudgetLine, LedgerLine, SchedulingContext
from rota.model.events import Event
from rota.model.work import Agent, Project, ReadyEntry, Workspace
from rota.wire.faults import Fault, error_of, fault_of

__all__ = ["Shape"]


class Shape(NamedTuple):
    """How an answer is put on the wire (it sees the parameters too) and taken off again."""

    result: Any  # its type on the wire
    pack: Callable[[Any, Any], Any]
    unpack: Callable[[Any], Any]


def same(result: Any) -> Shape:
    """The answer is the result."""
    return Shape(result, lambda _params, answer: answer, lambda result: result)


def one(result: type[msgspec.Struct]) -> Shape:
    """The answer is the result's one field."""
    (field,) = result.__struct_fields__
    return Shape(result, lambda _params, answer: result(answer), lambda packed: getattr(packed, field))


def fields(result: type[msgspec.Struct], back: Callable[..., Any]) -> Shape:
    """The answer is a tuple of the result's fields."""
    return Shape(result, lambda _params, answer: result(*answer), lambda packed: back(*msgspec.structs.astuple(packed)))


def together(*items: Any) -> tuple[Any, ...]:
    """A plain tuple of fields."""
    return items


class Done(msgspec.Struct, frozen=True):
    """Nothing but that it was done."""


DONE = Shape(Done, lambda _params, _answer: Done(), lambda _result: None)


# --- entries -------------------------------------------------------------------------------------


class Enqueued(msgspec.Struct, frozen=True):
    """The new entry, or the one that has its key."""

    sched_id: int


class EnqueuedMany(msgspec.Struct, frozen=True):
    """The new entries, in the order of their specs."""

    sched_ids: list[int]


class EnqueuedUnique(msgspec.Struct, frozen=True):
    """The entry, and whether it is new."""

    sched_id: int
    created: bool


class Claimed(msgspec.Struct, frozen=True):
    """What was handed out."""

    entries: list[ReadyEntry]


class Completed(msgspec.Struct, frozen=True):
    """What became of a run: `completed`, or `queued` if it is to be tried again."""

    sched_id: int
    state: str
    prev_state: str


COMPLETED = Shape(
    Completed,
    lambda params, answer: Completed(params.sched_id, answer[1], answer[0]),
    lambda result: (result.prev_state, result.state),
)


class Ended(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one run of many: its states, or why nothing changed."""

    state: str | None = None
    prev_state: str | None = None
    error: Fault | None = None


class CompletedMany(msgspec.Struct, frozen=True):
    """What became of each run, in order."""

    answers: list[Ended]


class TurnedOver(msgspec.Struct, frozen=True):
    """What became of each run, and what to run next."""

    answers: list[Ended]
    entries: list[ReadyEntry]


def _ended(answer: tuple[str, str] | RotaError) -> Ended:
    if isinstance(answer, RotaError):
        return Ended(error=fault_of(answer))
    return Ended(answer[1], answer[0])


def _ending(ended: Ended) -> tuple[str, str] | RotaError:
    return (ended.prev_state or "", ended.state or "") if ended.error is None else error_of(ended.error)


COMPLETED_MANY = Shape(
    CompletedMany,
    lambda _params, answers: CompletedMany([_ended(each) for each in answers]),
    lambda result: [_ending(each) for each in result.answers],
)
TURNED_OVER = Shape(
    TurnedOver,
    lambda _params, turnover: TurnedOver([_ended(each) for each in turnover.answers], turnover.entries),
    lambda result: Turnover([_ending(each) for each in result.answers], result.entries),
)


class Amounts(msgspec.Struct, frozen=True):
    """Amounts, per dimension."""

    amounts: dict[str, int]


class Held(msgspec.Struct, frozen=True):
    """Until when a claim lasts, and whether its run was asked to stop."""

    claim_expires_at: float
    cancel_requested: bool


class HeldOrLost(msgspec.Struct, frozen=True, omit_defaults=True):
    """A claim that lasts, or why it is lost."""

    claim_expires_at: float | None = None
    cancel_requested: bool = False
    error: Fault | None = None


class HeldMany(msgspec.Struct, frozen=True):
    """How each claim stands, in order."""

    answers: list[HeldOrLost]


def _held(answer: Beat | RotaError) -> HeldOrLost:
    return HeldOrLost(error=fault_of(answer)) if isinstance(answer, RotaError) else HeldOrLost(*answer)


def _beat(held: HeldOrLost) -> Beat | RotaError:
    if held.error is not None:
        return error_of(held.error)
    return Beat(held.claim_expires_at or 0.0, held.cancel_requested)


HELD = fields(Held, Beat)
HELD_MANY = Shape(
    HeldMany,
    lambda _params, answers: HeldMany([_held(each) for each in answers]),
    lambda result: [_beat(each) for each in result.answers],
)


class Cancelled(msgspec.Struct, frozen=True):
    """The entry's new state, and the one before."""

    sched_id: int
    state: str
    prev_state: str


CANCELLED = Shape(
    Cancelled,
    lambda params, answer: Cancelled(params.sched_id, answer[1], answer[0]),
    lambda result: (result.prev_state, result.state),
)


class State(msgspec.Struct, frozen=True):
    """`cancelled`, or `dispatched` while a run has yet to hear of it."""

    state: str


class Count(msgspec.Struct, frozen=True):
    """How many."""

    count: int


class Swept(msgspec.Struct, frozen=True):
    """How many were swept."""

    swept: int


class Retried(msgspec.Struct, frozen=True):
    """Which entry runs again as which."""

    sched_ids: dict[int, int]


class Counts(msgspec.Struct, frozen=True):
    """How many entries are in each state; those that wait also by why."""

    states: dict[str, int]


class EntryPage(msgspec.Struct, frozen=True):
    """A page of entries, and how many match in all."""

    entries: list[ReadyEntry]
    total: int


class Next(msgspec.Struct, frozen=True):
    """When the next thing falls due; null is never."""

    next_at: float | None


# --- agents, budgets, projects, events -----------------------------------------------------------


class NewAgent(msgspec.Struct, frozen=True):
    """The new agent."""

    pid: int


class AgentList(msgspec.Struct, frozen=True):
    """Agents."""

    agents: list[Agent]


class AgentPage(msgspec.Struct, frozen=True):
    """A page of agents, and how many match in all."""

    agents: list[Agent]
    total: int


class Pids(msgspec.Struct, frozen=True):
    """The agents concerned."""

    pids: list[int]


class Lines(msgspec.Struct, frozen=True):
    """Ledger lines."""

    entries: list[LedgerLine]


class Standing(msgspec.Struct, frozen=True):
    """Where a line stands after a charge."""

    used: int
    granted: int
    hard_limit: int
    over_limit: bool
    first_breach: bool
    warned: bool


class RunCharged(msgspec.Struct, frozen=True):
    """Where the lines of the run's agent stand, by dimension."""

    lines: dict[str, Standing]


class WouldUse(msgspec.Struct, frozen=True):
    """What a charge would do."""

    used: int
    would_use: int
    hard_limit: int
    would_exceed: bool


class Budgets(msgspec.Struct, frozen=True):
    """Budgets of projects and of everybody."""

    budgets: list[BudgetLine]


class Contexts(msgspec.Struct, frozen=True):
    """Contexts."""

    contexts: list[SchedulingContext]


class Until(msgspec.Struct, frozen=True):
    """Until when."""

    until_at: float


class ProjectPage(msgspec.Struct, frozen=True):
    """A page of projects, and how many match in all."""

    projects: list[Project]
    total: int


class Workspaces(msgspec.Struct, frozen=True):
    """Workspaces and who holds them."""

    workspaces: list[Workspace]


class PausedBy(msgspec.Struct, frozen=True):
    """Who paused everybody; null if nobody did."""

    paused_by: str | None


class ShareWindow(msgspec.Struct, frozen=True):
    """How far back fair_share looks, in seconds."""

    window_s: float


class Appended(msgspec.Struct, frozen=True):
    """The new event."""

    event_id: int


class Note(msgspec.Struct, frozen=True):
    """What is kept under a name; null if nothing is."""

    note: dict[str, Any] | None


class Cursor(msgspec.Struct, frozen=True):
    """The last event."""

    cursor: int


class Events(msgspec.Struct, frozen=True):
    """Events, oldest first, and where to go on."""

    events: list[Event]
    next_cursor: int


EVENTS = Shape(
    Events,
    lambda params, events: Events(events, events[-1].event_id if events else params.since),
    lambda result: result.events,
)
STANDING = fields(Standing, Charged)
WOULD_USE = fields(WouldUse, Checked)
RUN_CHARGED = Shape(
    RunCharged,
    lambda _params, lines: RunCharged({dim: Standing(*line) for dim, line in lines.items()}),
    lambda result: {dim: Charged(*msgspec.structs.astuple(line)) for dim, line in result.lines.items()},
)


# --- the daemon itself ---------------------------------------------------------------------------


class Welcome(msgspec.Struct, frozen=True):
    """Who answers, in which versions, and what the caller may do."""

    rota_version: str
    protocol: int
    store: str
    policy: str
    caller: str
    scope: str
    projects: tuple[str, ...] | None = None


class Pruned(msgspec.Struct, frozen=True):
    """What was removed, behind which checkpoint."""

    events: int
    entries: int
    checkpoint_id: int


PRUNED = fields(Pruned, Pruning)


class Checkpoint(msgspec.Struct, frozen=True):
    """The event that a checkpoint is true at."""

    through_id: int


class TokenLine(msgspec.Struct, frozen=True, kw_only=True):
    """A token, without its secret."""

    token_id: str
    name: str
    scope: str
    projects: tuple[str, ...] | None = None
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None


class NewToken(msgspec.Struct, frozen=True):
    """A token with its secret, which is shown this once."""

    token: str
    line: TokenLine


class Tokens(msgspec.Struct, frozen=True):
    """Every token, without its secret."""

    tokens: list[TokenLine]

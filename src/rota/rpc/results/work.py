"""What is answered about entries and their runs."""

from __future__ import annotations

import msgspec

from rota.errors import RotaError
from rota.kernel.claim_request import Beat, Turnover
from rota.kernel.ledger import Charged
from rota.model.work import ReadyEntry
from rota.rpc.error_codec import Fault, error_of, fault_of
from rota.rpc.results import Shape, fields


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


class AffinityWait(msgspec.Struct, frozen=True):
    """How long an entry is kept for the worker it would rather have, in seconds."""

    wait_s: float


# --- what a run used ---------------------------------------------------------------------------


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


STANDING = fields(Standing, Charged)
RUN_CHARGED = Shape(
    RunCharged,
    lambda _params, lines: RunCharged({dim: Standing(*line) for dim, line in lines.items()}),
    lambda result: {dim: Charged(*msgspec.structs.astuple(line)) for dim, line in result.lines.items()},
)

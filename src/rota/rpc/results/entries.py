"""Results of the methods for entries and their runs."""

from __future__ import annotations

import msgspec

from rota.errors import RotaError
from rota.kernel.claims import TurnResult
from rota.kernel.ledger import ChargeResult
from rota.kernel.runs import HeartbeatReply
from rota.model.work import ReadyEntry
from rota.rpc.error_codec import ErrorObject, from_error_object, to_error_object
from rota.rpc.results import ResultCodec, many_fields


class EnqueueResult(msgspec.Struct, frozen=True):
    """The new entry, or the existing one with its key."""

    sched_id: int


class EnqueueManyResult(msgspec.Struct, frozen=True):
    """The new entries, in the order of their specs."""

    sched_ids: list[int]


class EnqueueUniqueResult(msgspec.Struct, frozen=True):
    """The entry, and whether it is new."""

    sched_id: int
    created: bool


class ClaimResult(msgspec.Struct, frozen=True):
    """The claimed entries."""

    entries: list[ReadyEntry]


class CompleteResult(msgspec.Struct, frozen=True):
    """The entry's new state: `completed`, or `queued` if it will be retried."""

    sched_id: int
    state: str
    prev_state: str


COMPLETE = ResultCodec(
    CompleteResult,
    lambda params, states: CompleteResult(params.sched_id, states[1], states[0]),
    lambda result: (result.prev_state, result.state),
)


class CompletionOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The states of one completed run, or the error that left it unchanged."""

    state: str | None = None
    prev_state: str | None = None
    error: ErrorObject | None = None


class CompleteManyResult(msgspec.Struct, frozen=True):
    """The outcome of each run, in order."""

    answers: list[CompletionOutcome]


class CompleteAndClaimResult(msgspec.Struct, frozen=True):
    """The outcome of each run, and the claimed entries."""

    answers: list[CompletionOutcome]
    entries: list[ReadyEntry]


def _pack_outcome(states: tuple[str, str] | RotaError) -> CompletionOutcome:
    if isinstance(states, RotaError):
        return CompletionOutcome(error=to_error_object(states))
    return CompletionOutcome(states[1], states[0])


def _unpack_outcome(packed: CompletionOutcome) -> tuple[str, str] | RotaError:
    return (packed.prev_state or "", packed.state or "") if packed.error is None else from_error_object(packed.error)


COMPLETE_MANY = ResultCodec(
    CompleteManyResult,
    lambda _params, answers: CompleteManyResult([_pack_outcome(each) for each in answers]),
    lambda result: [_unpack_outcome(each) for each in result.answers],
)
COMPLETE_AND_CLAIM = ResultCodec(
    CompleteAndClaimResult,
    lambda _params, turnover: CompleteAndClaimResult(
        [_pack_outcome(each) for each in turnover.answers], turnover.entries
    ),
    lambda result: TurnResult([_unpack_outcome(each) for each in result.answers], result.entries),
)


class AmountsResult(msgspec.Struct, frozen=True):
    """Amounts, per dimension."""

    amounts: dict[str, int]


class HeartbeatResult(msgspec.Struct, frozen=True):
    """When the claim expires, and whether its run was asked to stop."""

    claim_expires_at: float
    cancel_requested: bool


class ClaimStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """When a claim expires, or why it is lost."""

    claim_expires_at: float | None = None
    cancel_requested: bool = False
    error: ErrorObject | None = None


class HeartbeatManyResult(msgspec.Struct, frozen=True):
    """The status of each claim, in order."""

    answers: list[ClaimStatus]


def _pack_claim(reply: HeartbeatReply | RotaError) -> ClaimStatus:
    return ClaimStatus(error=to_error_object(reply)) if isinstance(reply, RotaError) else ClaimStatus(*reply)


def _unpack_claim(packed: ClaimStatus) -> HeartbeatReply | RotaError:
    if packed.error is not None:
        return from_error_object(packed.error)
    return HeartbeatReply(packed.claim_expires_at or 0.0, packed.cancel_requested)


HEARTBEAT = many_fields(HeartbeatResult, HeartbeatReply)
HEARTBEAT_MANY = ResultCodec(
    HeartbeatManyResult,
    lambda _params, answers: HeartbeatManyResult([_pack_claim(each) for each in answers]),
    lambda result: [_unpack_claim(each) for each in result.answers],
)


class CancelResult(msgspec.Struct, frozen=True):
    """The entry's new state, and the one before."""

    sched_id: int
    state: str
    prev_state: str


CANCEL = ResultCodec(
    CancelResult,
    lambda params, states: CancelResult(params.sched_id, states[1], states[0]),
    lambda result: (result.prev_state, result.state),
)


class StateResult(msgspec.Struct, frozen=True):
    """`cancelled`, or `dispatched` until the run has stopped."""

    state: str


class CountResult(msgspec.Struct, frozen=True):
    """The number of entries."""

    count: int


class SweepResult(msgspec.Struct, frozen=True):
    """The number of expired entries."""

    swept: int


class RetryResult(msgspec.Struct, frozen=True):
    """The new entry of each retried entry, by id."""

    sched_ids: dict[int, int]


class CountsResult(msgspec.Struct, frozen=True):
    """The number of entries in each state; queued entries also by hold."""

    states: dict[str, int]


class EntryPageResult(msgspec.Struct, frozen=True):
    """A page of entries, and the number of matches."""

    entries: list[ReadyEntry]
    total: int


class NextResult(msgspec.Struct, frozen=True):
    """When maintenance is next due; null means never."""

    next_at: float | None


class AffinityWaitResult(msgspec.Struct, frozen=True):
    """How long an entry is reserved for its affinity worker, in seconds."""

    wait_s: float


# --- charges -------------------------------------------------------------------------------------


class ChargedLine(msgspec.Struct, frozen=True):
    """A ledger line after a charge."""

    used: int
    granted: int
    hard_limit: int
    over_limit: bool
    first_breach: bool
    warned: bool


class ChargeRunResult(msgspec.Struct, frozen=True):
    """The ledger lines of the run's agent, by dimension."""

    lines: dict[str, ChargedLine]


CHARGE = many_fields(ChargedLine, ChargeResult)
CHARGE_RUN = ResultCodec(
    ChargeRunResult,
    lambda _params, lines: ChargeRunResult({dim: ChargedLine(*line) for dim, line in lines.items()}),
    lambda result: {dim: ChargeResult(*msgspec.structs.astuple(line)) for dim, line in result.lines.items()},
)

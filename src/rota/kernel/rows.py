"""Between rows and nouns: how an entry and an agent are written down and read back.

What few entries have is kept in two JSON columns that are NULL for all others. `needs` is what an entry asks
for besides its agent's leave: amounts, shared limits, a workspace. Entries of one agent with the same kind and
the same needs are *alike*: at any moment all of them may run or none. `options` is what only matters later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import msgspec

from rota.errors import SchedInvalidPayload
from rota.model.checks import Checks
from rota.model.work import Agent, Backoff, ExitKind, Intent, ReadyEntry, ScheduleSpec
from rota.store import Row

__all__ = [
    "ATTEMPT",
    "COMPLETED_AT",
    "CREATED_AT",
    "DEADLINE",
    "DISPATCHED_AT",
    "KIND",
    "NEEDS",
    "NO_NEEDS",
    "PID",
    "PRIORITY",
    "PROJECT",
    "READY_WIDTH",
    "RUNNABLE_AT",
    "STATE",
    "TOKEN",
    "Needs",
    "Options",
    "agent_of",
    "encode_json",
    "entry_of",
    "needs_of",
    "options_of",
    "ready_entry_of",
    "size_of",
    "spent_of",
    "state_and_hold",
    "written",
]

# Where things are in a row of `statements.queue.READY_COLUMNS`, and so in one of `ENTRY`.
PID, PRIORITY, RUNNABLE_AT, DEADLINE = 1, 2, 3, 4
PROJECT, ATTEMPT, KIND, NEEDS = 8, 9, 13, 14
_PAYLOAD, _RESULT = 6, 16
READY_WIDTH = 17  # what an entry has while it is ready
CREATED_AT = 7
STATE, DISPATCHED_AT, COMPLETED_AT, _HOLD, TOKEN = 17, 19, 20, 22, 23
_READY_TAIL = ("queued", None, None, None, None, None, None, None, 0, None)  # the rest, while it is ready

_encoder = msgspec.json.Encoder(order="deterministic")
_decode = msgspec.json.decode
_queue = Checks("Queue", SchedInvalidPayload)


def encode_json(field: str, value: Any, bytes_max: int) -> str:
    """A value as JSON text, or the queue's error that names the field."""
    try:
        body = _encoder.encode(value)
    except (TypeError, ValueError, RecursionError) as problem:
        raise _queue.refuse(field, f"is not JSON: {problem}") from problem
    if len(body) > bytes_max:
        raise _queue.refuse(field, f"is {len(body):,} bytes; at most {bytes_max:,} are taken")
    return body.decode()


_NOTHING: Mapping[str, int] = {}


class Needs(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an entry asks for besides its agent's leave."""

    expected: dict[str, int] = {}
    ceiling: dict[str, int] = {}
    draws_on: tuple[str, ...] = ()
    workspace: str | None = None
    mode: Literal["exclusive", "shared"] | None = None
    path: str | None = None  # the entry at the root of its call path, if it was spawned by one

    def ask(self, dim: str, otherwise: int) -> int:
        """How much of a dimension is reserved for the run: its ceiling, else what it expects, else a default."""
        amount = self.ceiling.get(dim)
        if amount is None:
            amount = self.expected.get(dim, otherwise)
        return amount

    def reserved(self, dim: str, otherwise: int, spent: Mapping[str, int] = _NOTHING) -> int:
        """What is still set aside for a run that has spent so much: used counts once, as usage."""
        return max(0, max(otherwise, self.ask(dim, otherwise)) - spent.get(dim, 0))

    @property
    def dims(self) -> frozenset[str]:
        """Every dimension in which it says how much it may use."""
        return frozenset(self.expected) | frozenset(self.ceiling)


class Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """What only matters later, or to whoever reads."""

    tags: tuple[str, ...] = ()
    on_failed: Literal["cancel", "run", "hold"] = "cancel"
    retry_on: tuple[ExitKind, ...] = ("crashed",)
    backoff: Backoff = Backoff()
    affinity: str | None = None
    parent_id: int | None = None
    correlation_id: str | None = None
    causation_id: str | None = None


NO_NEEDS = Needs()
_NO_OPTIONS = Options()


def written(spec: ScheduleSpec, path: str | None = None) -> tuple[str | None, str | None]:
    """A spec's needs and options as they are stored; None where everything is at its default."""
    if spec.is_plain and path is None:
        return None, None
    needs = Needs(spec.expected, spec.ceiling, spec.draws_on, spec.workspace, spec.workspace_mode, path)
    options = Options(
        spec.tags,
        spec.on_failed,
        spec.retry_on,
        spec.backoff,
        spec.affinity,
        spec.parent_id,
        spec.correlation_id,
        spec.causation_id,
    )
    return (
        None if needs == NO_NEEDS else _encoder.encode(needs).decode(),
        None if options == _NO_OPTIONS else _encoder.encode(options).decode(),
    )


@lru_cache(maxsize=4096)
def _decoded_needs(text: str) -> Needs:
    return _decode(text, type=Needs)


def needs_of(text: str | None) -> Needs:
    """The needs in a row."""
    return NO_NEEDS if text is None else _decoded_needs(text)


@lru_cache(maxsize=4096)
def _decoded_spent(text: str) -> dict[str, int]:
    return _decode(text, type=dict[str, int])


def spent_of(text: str | None) -> Mapping[str, int]:
    """What a run has used so far, per dimension."""
    return _NOTHING if text is None else _decoded_spent(text)


@lru_cache(maxsize=4096)
def _decoded_options(text: str) -> Options:
    return _decode(text, type=Options)


def options_of(text: str | None) -> Options:
    """The options in a row."""
    return _NO_OPTIONS if text is None else _decoded_options(text)


def ready_entry_of(row: Sequence[Any]) -> ReadyEntry:
    """The entry in a row of `statements.queue.READY_COLUMNS`."""
    return entry_of((*row[:READY_WIDTH], *_READY_TAIL))


def entry_of(row: Sequence[Any]) -> ReadyEntry:
    """The entry in a row of `statements.queue.ENTRY`."""
    (
        sched_id, pid, priority, runnable_at, deadline, trigger, payload, created_at, project_id, attempt, max_attempts,
        outcome, key, kind, needs_text, options_text, result, state, worker_id, dispatched_at, completed_at, exit_kind,
        hold, token, expires_at, cancel_requested, held_workspace,
    ) = row  # fmt: skip
    body = {} if payload == "{}" else _decode(payload)
    seed = (
        sched_id, pid, priority, runnable_at, deadline, trigger, body, state, worker_id, created_at, dispatched_at,
        completed_at, exit_kind,
    )  # fmt: skip
    if needs_text is None and options_text is None:
        return ReadyEntry(
            *seed,
            project_id=project_id,
            hold=hold,
            attempt=attempt,
            max_attempts=max_attempts,
            outcome=outcome,
            result=None if result is None else _decode(result),
            key=key,
            token=token,
            claim_expires_at=expires_at,
            cancel_requested=cancel_requested == 1,
            kind=kind,
        )
    needs, options = needs_of(needs_text), options_of(options_text)
    return ReadyEntry(
        *seed,
        project_id=project_id,
        hold=hold,
        attempt=attempt,
        max_attempts=max_attempts,
        outcome=outcome,
        result=None if result is None else _decode(result),
        key=key,
        token=token,
        claim_expires_at=expires_at,
        cancel_requested=cancel_requested == 1,
        kind=kind,
        workspace=held_workspace or needs.workspace,
        expected=needs.expected,
        ceiling=needs.ceiling,
        draws_on=needs.draws_on,
        tags=options.tags,
        parent_id=options.parent_id,
        correlation_id=options.correlation_id,
    )


def size_of(row: Sequence[Any]) -> int:
    """How much an entry brings along: its payload, and its result or where an earlier attempt stood."""
    return len(row[_PAYLOAD]) + len(row[_RESULT] or "")


def state_and_hold(row: Sequence[Any]) -> tuple[str, str | None]:
    """How the entry in a row stands; one of `READY_COLUMNS` is ready."""
    return (row[STATE], row[_HOLD]) if len(row) > READY_WIDTH else ("queued", None)


def agent_of(row: Row) -> Agent:
    """The agent in a row of `statements.agents.GET`."""
    own = row[:11]
    ours = (row[13], row[14], row[15], row[16], Intent(row[17]), bool(row[18]), row[19], row[20])
    return Agent(*own, _decode(row[11]), _decode(row[12]), *ours)  # type: ignore[call-arg]  # a row has just these

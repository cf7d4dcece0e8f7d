"""Conversion between stored rows and model objects.

Rarely used fields of an entry are in two JSON columns, which are NULL for most entries. `needs` is what an entry
requires besides its agent: amounts, shared limits, a workspace. Entries of one agent with the same kind and the same
needs form a *group*: at any moment either all of them may run or none. `options` is what matters only after the claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Literal, TypeVar

import msgspec

from rota.errors import SchedInvalidPayload
from rota.model.checks import Checks
from rota.model.work import Agent, Backoff, ExitKind, Intent, Project, ProjectConstraint, ReadyEntry, ScheduleSpec
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
    "NO_OPTIONS",
    "PAYLOAD",
    "PID",
    "PRIORITY",
    "PROJECT",
    "READY_WIDTH",
    "RESULT",
    "RUNNABLE_AT",
    "STATE",
    "TOKEN",
    "EntryOptions",
    "Needs",
    "agent_from_row",
    "decode_constraint",
    "decode_needs",
    "decode_options",
    "decode_spent",
    "encode_json",
    "encode_needs_and_options",
    "entry_from_row",
    "json_list",
    "json_text",
    "payload_bytes",
    "project_from_row",
    "ready_entry_from_row",
    "state_and_hold",
]

# Positions in a row of `statements.queue.READY_COLUMNS`, and so in one of `ENTRY`.
PID, PRIORITY, RUNNABLE_AT, DEADLINE = 1, 2, 3, 4
PROJECT, ATTEMPT, KIND, NEEDS = 8, 9, 13, 14
PAYLOAD, RESULT = 6, 16
READY_WIDTH = 17  # columns that a ready entry has
CREATED_AT = 7
STATE, DISPATCHED_AT, COMPLETED_AT, _HOLD, TOKEN = 17, 19, 20, 22, 23
_READY_TAIL = ("queued", None, None, None, None, None, None, None, 0, None)  # the other columns of a ready entry

_encoder = msgspec.json.Encoder(order="deterministic")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.decode
_queue = Checks("Queue", SchedInvalidPayload)
T = TypeVar("T")


def json_list(values: Iterable[int | str]) -> str:
    """Encode values as a JSON array, the form in which statements take lists."""
    return _encode(list(values)).decode()


def json_text(checks: Checks, field: str, value: Any, bytes_max: int, encode: Callable[[Any], bytes] = _encode) -> str:
    """Encode a value as JSON text; raises the error of `checks` if it is not JSON or too large."""
    try:
        body = encode(value)
    except (TypeError, ValueError, RecursionError) as problem:
        raise checks.refuse(field, f"is not JSON: {problem}") from problem
    if len(body) > bytes_max:
        raise checks.refuse(field, f"is {len(body):,} bytes; the maximum is {bytes_max:,}")
    return body.decode()


# encodes a payload or result with sorted keys: (field, value, bytes_max)
encode_json = partial(json_text, _queue, encode=_encoder.encode)


_NOTHING: Mapping[str, int] = {}


class Needs(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an entry requires besides its agent."""

    expected: dict[str, int] = {}
    ceiling: dict[str, int] = {}
    draws_on: tuple[str, ...] = ()
    workspace: str | None = None
    mode: Literal["exclusive", "shared"] | None = None
    path: str | None = None  # the entry at the root of its call path, if another entry spawned it

    def requested(self, dim: str, default: int) -> int:
        """Return how much of a dimension is reserved for a run: its ceiling, else the expected usage, or `default`."""
        amount = self.ceiling.get(dim)
        if amount is None:
            amount = self.expected.get(dim, default)
        return amount

    def reserved(self, dim: str, default: int, spent: Mapping[str, int] = _NOTHING) -> int:
        """Return what is still reserved for a run: what it has spent counts as usage, not as reservation."""
        return max(0, max(default, self.requested(dim, default)) - spent.get(dim, 0))

    @property
    def dims(self) -> frozenset[str]:
        """Every dimension with a ceiling or an expected usage."""
        return frozenset(self.expected) | frozenset(self.ceiling)


class EntryOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Fields of an entry that no claim looks at."""

    tags: tuple[str, ...] = ()
    on_failed: Literal["cancel", "run", "hold"] = "cancel"
    retry_on: tuple[ExitKind, ...] = ("crashed",)
    backoff: Backoff = Backoff()
    affinity: str | None = None
    parent_id: int | None = None
    correlation_id: str | None = None
    causation_id: str | None = None


NO_NEEDS = Needs()
NO_OPTIONS = EntryOptions()


def encode_needs_and_options(spec: ScheduleSpec, path: str | None = None) -> tuple[str | None, str | None]:
    """Return a spec's needs and options as stored; None where every field has its default."""
    if spec.is_plain and path is None:
        return None, None
    needs = Needs(spec.expected, spec.ceiling, spec.draws_on, spec.workspace, spec.workspace_mode, path)
    options = EntryOptions(
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
        None if options == NO_OPTIONS else _encoder.encode(options).decode(),
    )


def _column(kind: type[T], empty: T) -> Callable[[str | None], T]:
    """Return a function that decodes a JSON column; many rows have the same text, so the last ones are kept."""

    @lru_cache(maxsize=4096)
    def decode(text: str | None) -> T:
        return empty if text is None else _decode(text, type=kind)

    return decode


decode_needs = _column(Needs, NO_NEEDS)
decode_options = _column(EntryOptions, NO_OPTIONS)
decode_spent: Callable[[str | None], Mapping[str, int]] = _column(dict[str, int], {})  # what a run has used so far
decode_constraint = _column(ProjectConstraint, ProjectConstraint())


def ready_entry_from_row(row: Sequence[Any]) -> ReadyEntry:
    """Build an entry from a row of `statements.queue.READY_COLUMNS`."""
    return entry_from_row((*row[:READY_WIDTH], *_READY_TAIL))


def entry_from_row(row: Sequence[Any]) -> ReadyEntry:
    """Build an entry from a row of `statements.queue.ENTRY`."""
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
    entry = ReadyEntry(
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
    if needs_text is None and options_text is None:
        return entry
    needs, options = decode_needs(needs_text), decode_options(options_text)
    return msgspec.structs.replace(
        entry,
        workspace=held_workspace or needs.workspace,
        expected=dict(needs.expected),  # a copy: decoded columns are shared between entries
        ceiling=dict(needs.ceiling),
        draws_on=needs.draws_on,
        tags=options.tags,
        parent_id=options.parent_id,
        correlation_id=options.correlation_id,
    )


def payload_bytes(row: Sequence[Any]) -> int:
    """Return the size of an entry: its payload and its result, or the checkpoint of an earlier attempt."""
    return len(row[PAYLOAD]) + len(row[RESULT] or "")


def state_and_hold(row: Sequence[Any]) -> tuple[str, str | None]:
    """Return the state and hold of the entry in a row; a row of `READY_COLUMNS` is ready."""
    return (row[STATE], row[_HOLD]) if len(row) > READY_WIDTH else ("queued", None)


def agent_from_row(row: Row) -> Agent:
    """Build an agent from a row of `statements.agents.GET`."""
    process = row[:11]
    scheduling = (row[13], row[14], row[15], row[16], Intent(row[17]), bool(row[18]), row[19], row[20])
    return Agent(*process, _decode(row[11]), _decode(row[12]), *scheduling)  # type: ignore[call-arg]  # a row has exactly these fields


def project_from_row(row: Row) -> Project:
    """Build a project from a row of `statements.projects.GET`."""
    return Project(
        project_id=row[0],
        name=row[1],
        weight=row[2],
        max_concurrent=row[3],
        status=row[4],
        constraint=decode_constraint(row[5]),
        paused_by=row[6],
        created_at=row[7],
        updated_at=row[8],
        metadata=_decode(row[9]),
    )

"""Conversion between stored rows and model objects.

Rarely used fields of an entry are in two JSON columns, which are NULL for most entries. `needs` is what an entry
requires besides its agent: amounts, shared limits, a workspace. Entries of one agent with the same kind and the same
needs form a *group*: at any moment either all of them may run or none. `options` is what matters only after the claim.

**Unreadable columns.** A damaged or foreign value in one row must not stop a statement that reads many rows. So nothing
here raises: a column that cannot be decoded is read as empty, and the object says so in `unreadable`. What follows is
decided where it matters: a claim ends such an entry (claim_pass.py), a supervisor quarantines such an agent, a project
whose constraint is unreadable starts nothing. A live run whose needs became unreadable reserves nothing any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Literal, TypeVar

import msgspec

from rota.decoding import json_decoder
from rota.errors import ProjectInvalid, RotaError, SchedInvalidPayload
from rota.model.checks import ID_CHARS_MAX, Checks, check_finite
from rota.model.entry_status import derive_status
from rota.model.graph_budgets import GraphAccount
from rota.model.work import (
    WEIGHT_UNIT,
    Agent,
    AttemptError,
    Backoff,
    ExitKind,
    Intent,
    Project,
    ProjectConstraint,
    ReadyEntry,
    ScheduleSpec,
)
from rota.store import Row

__all__ = [
    "ATTEMPT",
    "COMPLETED_AT",
    "CREATED_AT",
    "DEADLINE",
    "DECODE_ERRORS",
    "DISPATCHED_AT",
    "EXIT_KIND",
    "KIND",
    "NEEDS",
    "NO_NEEDS",
    "NO_OPTIONS",
    "PAYLOAD",
    "PID",
    "PRIORITY",
    "PROBLEM_CHARS_MAX",
    "PROJECT",
    "READY_WIDTH",
    "RESULT",
    "RUNNABLE_AT",
    "STATE",
    "TOKEN",
    "UNREADABLE_CONSTRAINT",
    "UNREADABLE_NEEDS",
    "EntryOptions",
    "Needs",
    "agent_from_row",
    "claimed_entry",
    "column_problem",
    "decode_constraint",
    "decode_needs",
    "decode_options",
    "decode_problem",
    "decode_spent",
    "encode_json",
    "encode_needs_and_options",
    "entry_from_row",
    "join_problems",
    "json_list",
    "json_text",
    "options_with_error",
    "payload_bytes",
    "project_from_row",
    "ready_entry_from_row",
    "state_and_hold",
    "unreadable_columns",
]

# Positions in a row of `statements.queue.READY_COLUMNS`, and so in one of `ENTRY`.
PID, PRIORITY, RUNNABLE_AT, DEADLINE = 1, 2, 3, 4
PROJECT, ATTEMPT, KIND, NEEDS, _OPTIONS = 8, 9, 13, 14, 15
PAYLOAD, RESULT = 6, 16
READY_WIDTH = 17  # columns that a ready entry has
CREATED_AT = 7
STATE, DISPATCHED_AT, COMPLETED_AT, EXIT_KIND, _HOLD, TOKEN = 17, 19, 20, 21, 22, 23
_READY_TAIL = ("queued", None, None, None, None, None, None, None, 0)  # the others of a ready entry, but its workspace

_encoder = msgspec.json.Encoder(order="deterministic")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.decode
_decode_payload = json_decoder(dict[str, Any]).decode
_queue = Checks("Queue", SchedInvalidPayload)
T = TypeVar("T")


def json_list(values: Iterable[int | str]) -> str:
    """Encode values as a JSON array, the form in which statements take lists."""
    return _encode(list(values)).decode()


def json_text(checks: Checks, field: str, value: Any, bytes_max: int, encode: Callable[[Any], bytes] = _encode) -> str:
    """Encode a value as JSON text; raises the error of `checks` if it is not JSON or too large."""
    try:
        body = encode(value)
        check_finite(value, body)
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
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    lender: int | None = None  # the entry that lent it its ceiling, if one did: it asks for less than others
    account: GraphAccount | None = None  # the graph run and node in whose budgets it counts

    def requested(self, dim: str, default: int) -> int:
        """Return how much of a dimension is reserved for a run: its ceiling, else the expected usage, or `default`."""
        amount = self.ceiling.get(dim)
        if amount is None:
            amount = self.expected.get(dim, default)
        return amount

    def reserved(self, dim: str, default: int, spent: Mapping[str, int] = _NOTHING) -> int:
        """Return what is still reserved for a run: what it has spent counts as usage, not as reservation.

        A ceiling of 0 reserves nothing, also where `default` is 1: the run may use nothing, or has lent everything.
        """
        return max(0, self.requested(dim, default) - spent.get(dim, 0))

    @property
    def dims(self) -> frozenset[str]:
        """Every dimension with a ceiling or an expected usage."""
        return frozenset(self.expected) | frozenset(self.ceiling)


class EntryOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Fields of an entry that no claim looks at."""

    tags: tuple[str, ...] = ()
    on_failed: Literal["cancel", "run", "hold", "any"] = "cancel"  # any: a run that waits for the first of them
    retry_on: tuple[ExitKind, ...] = ("crashed",)
    backoff: Backoff = Backoff()
    affinity: str | None = None
    parent_id: int | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    errors: tuple[AttemptError, ...] = ()  # of the attempts that were retried
    traceparent: str | None = None
    tracestate: str | None = None


ERRORS_MAX = 100  # attempts of one entry whose errors are kept: the last ones
NO_NEEDS = Needs()
NO_OPTIONS = EntryOptions()


def encode_needs_and_options(
    spec: ScheduleSpec, path: str | None = None, account: GraphAccount | None = None
) -> tuple[str | None, str | None]:
    """Return a spec's needs and options as stored; None where every field has its default.

    `account` is that of the entry that spawned it, or of the node that its graph run is.
    """
    if spec.is_plain and path is None and account is None:
        return None, None
    needs = Needs(
        spec.expected,
        spec.ceiling,
        spec.draws_on,
        spec.workspace,
        spec.workspace_mode,
        path,
        spec.concurrency_key,
        spec.concurrency_limit,
        account=account if spec.account is None else spec.account.inside(account),
    )
    options = EntryOptions(
        spec.tags,
        spec.on_failed,
        spec.retry_on,
        spec.backoff,
        spec.affinity,
        spec.parent_id,
        spec.correlation_id,
        spec.causation_id,
        traceparent=spec.traceparent,
        tracestate=spec.tracestate,
    )
    return (
        None if needs == NO_NEEDS else _encoder.encode(needs).decode(),
        None if options == NO_OPTIONS else _encoder.encode(options).decode(),
    )


def options_with_error(text: str | None, error: AttemptError) -> str | None:
    """Return an entry's options with the error of one more attempt; None if they cannot be decoded and stay as is."""
    options = decode_options(text)
    if options is _UNREADABLE_OPTIONS:
        return None
    kept = (*options.errors, error)[-ERRORS_MAX:]
    return _encoder.encode(msgspec.structs.replace(options, errors=kept)).decode()


def options_with_tags(text: str | None, tags: tuple[str, ...]) -> str | None:
    """Return an entry's options with other tags; options that cannot be decoded stay as they are."""
    options = decode_options(text)
    if options is _UNREADABLE_OPTIONS:
        return text
    changed = msgspec.structs.replace(options, tags=tags)
    return None if changed == NO_OPTIONS else _encoder.encode(changed).decode()


# what the decoders raise for a value that is not JSON, has other types, or is no text at all
DECODE_ERRORS = (msgspec.DecodeError, ValueError, TypeError, RecursionError)
PROBLEM_CHARS_MAX = 200  # of the description of one unreadable column


def decode_problem(problem: Exception) -> str:
    """Return what is wrong with a value; of an error of rota, which msgspec passes on as a text, without its hint."""
    cause = problem if isinstance(problem, RotaError) else problem.__cause__
    return cause.message if isinstance(cause, RotaError) else str(problem)


UNREADABLE_NEEDS = Needs()  # stands for needs that cannot be decoded; compare by identity
_UNREADABLE_OPTIONS = EntryOptions()
# a project whose constraint cannot be decoded starts nothing: the constraint may have been an operator's pause
UNREADABLE_CONSTRAINT = ProjectConstraint(pause_scheduling=True)


def _column(kind: Any, empty: T, unreadable: T) -> Callable[[str | None], T]:
    """Return a function that decodes a JSON column; many rows have the same text, so the last ones are kept."""

    @lru_cache(maxsize=4096)
    def decode(text: str | None) -> T:
        if text is None:
            return empty
        try:
            return _decode(text, type=kind)  # type: ignore[no-any-return]
        except DECODE_ERRORS:
            return unreadable

    return decode


decode_needs = _column(Needs, NO_NEEDS, UNREADABLE_NEEDS)
decode_options = _column(EntryOptions, NO_OPTIONS, _UNREADABLE_OPTIONS)
decode_spent: Callable[[str | None], Mapping[str, int]] = _column(dict[str, int], {}, {})  # what a run has used so far
decode_constraint = _column(ProjectConstraint, ProjectConstraint(), UNREADABLE_CONSTRAINT)


def _decode_or(text: Any, default: Any, kind: Any = Any) -> Any:
    """Decode a column; returns the default if it is NULL or cannot be decoded."""
    try:
        return default if text is None else _decode(text, type=kind)
    except DECODE_ERRORS:
        return default


def column_problem(column: str, text: Any, kind: Any = Any) -> str | None:
    """Return why a stored column cannot be decoded; None if it can, or is NULL."""
    if text is None:
        return None
    try:
        _decode(text, type=kind)
    except DECODE_ERRORS as problem:
        return f"{column}: {problem}"[:PROBLEM_CHARS_MAX]
    return None


def join_problems(*found: str | None) -> str | None:
    """Return the problems of a row as one text; None if it has none."""
    return "; ".join(each for each in found if each is not None) or None


def unreadable_columns(row: Sequence[Any]) -> str | None:
    """Return which columns of an entry's row cannot be decoded, and why; None if all can."""
    return join_problems(
        column_problem("payload", row[PAYLOAD], dict[str, Any]),
        column_problem("needs", row[NEEDS], Needs),
        column_problem("options", row[_OPTIONS], EntryOptions),
        column_problem("result", row[RESULT]),
    )


def ready_entry_from_row(row: Sequence[Any]) -> ReadyEntry:
    """Build an entry from a row of `statements.queue.READY_COLUMNS`."""
    return _entry(row[:READY_WIDTH], _READY_TAIL)


def entry_from_row(row: Sequence[Any]) -> ReadyEntry:
    """Build an entry from a row of `statements.queue.ENTRY`."""
    return _entry(row[:READY_WIDTH], row[READY_WIDTH:-1], row[-1])


def claimed_entry(row: Sequence[Any], claim: Sequence[Any], workspace: str | None) -> ReadyEntry:
    """Build an entry that is claimed now; `claim` has the columns of `ENTRY` that its row of `READY_COLUMNS` lacks."""
    return _entry(row[:READY_WIDTH], claim, workspace, is_claimed=True)


def _entry(
    row: Sequence[Any], rest: Sequence[Any], held_workspace: str | None = None, *, is_claimed: bool = False
) -> ReadyEntry:
    """Build an entry from its columns; if it is claimed now, the row does not count this run yet."""
    (
        sched_id, pid, priority, runnable_at, deadline, trigger, payload, created_at, project_id, attempt, max_attempts,
        outcome, key, kind, needs_text, options_text, result,
    ) = row  # fmt: skip
    state, worker_id, dispatched_at, completed_at, exit_kind, hold, token, expires_at, cancel_requested = rest
    unreadable = None
    try:
        body = {} if payload == "{}" else _decode_payload(payload)
        value = None if result is None else _decode(result)
    except DECODE_ERRORS:
        body, value = _decode_or(payload, {}, dict[str, Any]), _decode_or(result, None)
        unreadable = unreadable_columns(row)
    entry = ReadyEntry(
        sched_id, pid, priority, runnable_at, deadline, trigger, body, state, worker_id, created_at, dispatched_at,
        completed_at, exit_kind,
        status="running" if state == "dispatched" else derive_status(state, hold, exit_kind),  # no call in a claim
        project_id=project_id,
        hold=hold,
        attempt=attempt + 1 if is_claimed else attempt,
        max_attempts=max_attempts,
        outcome=outcome,
        result=value,
        key=key,
        token=token,
        claim_expires_at=expires_at,
        cancel_requested=cancel_requested == 1,
        kind=kind,
        unreadable=unreadable,
    )  # fmt: skip
    if needs_text is None and options_text is None:
        return entry
    needs, options = decode_needs(needs_text), decode_options(options_text)
    if needs is UNREADABLE_NEEDS or options is _UNREADABLE_OPTIONS:
        unreadable = unreadable_columns(row)
    return msgspec.structs.replace(
        entry,
        workspace=held_workspace or needs.workspace,
        expected=dict(needs.expected),  # a copy: decoded columns are shared between entries
        ceiling=dict(needs.ceiling),
        draws_on=needs.draws_on,
        tags=options.tags,
        errors=options.errors,
        parent_id=options.parent_id,
        correlation_id=options.correlation_id,
        account=needs.account,
        traceparent=options.traceparent,
        tracestate=options.tracestate,
        unreadable=unreadable,
    )


def payload_bytes(row: Sequence[Any]) -> int:
    """Return the size of an entry: its payload and its result, or the checkpoint of an earlier attempt."""
    return len(row[PAYLOAD]) + len(row[RESULT] or "")


def state_and_hold(row: Sequence[Any]) -> tuple[str, str | None]:
    """Return the state and hold of the entry in a row; a row of `READY_COLUMNS` is ready."""
    return (row[STATE], row[_HOLD]) if len(row) > READY_WIDTH else ("queued", None)


def agent_from_row(row: Row) -> Agent:
    """Build an agent from a row of `statements.agents.GET`."""
    detail, metadata, intent, unreadable = row[11], row[12], row[17], None
    try:
        decoded = _decode_payload(detail), _decode_payload(metadata), Intent(intent)
    except DECODE_ERRORS:
        unreadable = join_problems(
            column_problem("metadata", metadata, dict[str, Any]),
            column_problem("exit_detail", detail, dict[str, Any]),
            None if intent in [each.value for each in Intent] else f"intent: there is no intent {intent!r}",
        )
        decoded = {}, {}, Intent.NEUTRAL
    scheduling = (row[13], row[14], row[15], row[16], decoded[2], bool(row[18]), row[19], row[20], unreadable)
    return Agent(*row[:11], decoded[0], decoded[1], *scheduling)  # type: ignore[call-arg]  # a row has exactly these fields


def project_from_row(row: Row) -> Project:
    """Build a project from a row of `statements.projects.GET`."""
    project_id, name, weight, cap, status, constraint, paused_by, created_at, updated_at, metadata = row
    body, unreadable = (
        {},
        join_problems(
            column_problem("constraint", constraint, ProjectConstraint),
            column_problem("metadata", metadata, dict[str, Any]),
        ),
    )
    if unreadable is None:
        body = _decode_payload(metadata)
    checked = {"project_id": project_id, "name": name, "weight": weight, "max_concurrent": cap}
    while True:
        try:
            return Project(
                **checked,
                status=status,
                constraint=decode_constraint(constraint),
                paused_by=paused_by,
                created_at=created_at,
                updated_at=updated_at,
                metadata=body,
                unreadable=unreadable,
            )
        except ProjectInvalid as problem:  # once for a field, for what is put in its place is valid
            field = problem.data["field"]
            shown_id = repr(project_id)[:ID_CHARS_MAX]
            shown = {"project_id": shown_id, "name": checked["project_id"], "weight": WEIGHT_UNIT}
            checked[field], unreadable = shown.get(field), unreadable or f"{field}: {problem.message}"

"""The ndjson protocol: every message between a supervisor and an agent, declared once.

A message is one JSON object on one line; its `op` says what it is. The supervisor speaks first:

    supervisor → agent                          agent → supervisor
    init        who you are, what to do         ready       I am here: within the handshake's time, or it is over
    stop        please end, you have this long  log chunk tool_call iteration_start     for the log
    remaining                                   charge iteration_done                   usage, recorded at once
    spawned     } answers, each with the id     heartbeat                               it lives; nothing more
    waited      } of the question               checkpoint throttled                    see runners.Line
    refused                                     remaining spawn wait                    questions, with an id
                                                result      what the run is to return
                                                yield exit  the last word

What an agent says with an `op` that is not in the table is logged and passed over, so that it may be newer than its
supervisor, and fields that are not in the table likewise. What is not JSON, or has a field of the wrong type, ends the
run: an agent whose charges are not understood must not go on.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from rota.errors import RunnerProtocolBroken
from rota.model.work import ReadyEntry

__all__ = ["MESSAGE_BYTES_MAX", "Lines", "Said", "decode", "encode"]

MESSAGE_BYTES_MAX = 1024 * 1024
EXCERPT_BYTES = 200  # of a line, in an error

RequestId: TypeAlias = int | str


# --- what an agent says ----------------------------------------------------------------------------


class Ready(msgspec.Struct, frozen=True, tag_field="op", tag="ready"):
    """I am here."""

    pid: int | None = None  # as it was told


class Log(msgspec.Struct, frozen=True, tag_field="op", tag="log"):
    """A line for the log."""

    text: str
    level: str = "info"


class Chunk(msgspec.Struct, frozen=True, tag_field="op", tag="chunk"):
    """A part of a longer text, for the log."""

    text: str


class ToolCall(msgspec.Struct, frozen=True, tag_field="op", tag="tool_call"):
    """A tool is used, for the log."""

    name: str
    arguments: Any = None


class IterationStart(msgspec.Struct, frozen=True, tag_field="op", tag="iteration_start"):
    """A round of work begins, for the log."""

    iteration: int | None = None


class IterationDone(msgspec.Struct, frozen=True, tag_field="op", tag="iteration_done"):
    """A round of work is over; what it used is charged."""

    iteration: int | None = None
    tokens: int = 0
    cost_micro: int = 0


class Charge(msgspec.Struct, frozen=True, tag_field="op", tag="charge"):
    """Usage: one dimension (`dim`, `amount`) or several (`amounts`). With an id, the answer is `remaining`."""

    dim: str | None = None
    amount: int = 0
    amounts: dict[str, int] = {}
    id: RequestId | None = None

    @property
    def all(self) -> dict[str, int]:
        """Every dimension that is charged."""
        return self.amounts if self.dim is None else {**self.amounts, self.dim: self.amount}


class Remaining(msgspec.Struct, frozen=True, tag_field="op", tag="remaining"):
    """What is left? The answer is `remaining`."""

    id: RequestId


class Heartbeat(msgspec.Struct, frozen=True, tag_field="op", tag="heartbeat"):
    """I live. The supervisor keeps the claim by itself: nothing follows from this."""


class Checkpoint(msgspec.Struct, frozen=True, tag_field="op", tag="checkpoint"):
    """Where the work stands: the next attempt is given it."""

    state: dict[str, Any]


class Throttled(msgspec.Struct, frozen=True, tag_field="op", tag="throttled"):
    """A provider wants a pause."""

    retry_after_s: float
    name: str | None = None


class Spawn(msgspec.Struct, frozen=True, tag_field="op", tag="spawn"):
    """Run another agent for me. The answer is `spawned`."""

    id: RequestId
    agent: str
    payload: dict[str, Any] = {}
    lent: dict[str, int] = {}
    priority: int | None = None


class Wait(msgspec.Struct, frozen=True, tag_field="op", tag="wait"):
    """Tell me when these have ended. The answer is `waited`."""

    id: RequestId
    children: tuple[int, ...]
    wait_s: float | None = None


class Result(msgspec.Struct, frozen=True, tag_field="op", tag="result"):
    """What the run is to return. The last one counts, also if the run does not end well."""

    value: Any = None


class YieldBack(msgspec.Struct, frozen=True, tag_field="op", tag="yield"):
    """I give the slot back and want to run again, this much later. The last word: the program ends now."""

    after_s: float = 0.0


class ExitMessage(msgspec.Struct, frozen=True, tag_field="op", tag="exit"):
    """How it went. The last word: the program ends now."""

    exit_kind: Literal["completed", "failed", "crashed", "cancelled"] = "completed"
    summary: str | None = None
    text: str | None = None
    metadata: dict[str, Any] = {}


Said: TypeAlias = (
    Ready
    | Log
    | Chunk
    | ToolCall
    | IterationStart
    | IterationDone
    | Charge
    | Remaining
    | Heartbeat
    | Checkpoint
    | Throttled
    | Spawn
    | Wait
    | Result
    | YieldBack
    | ExitMessage
)


# --- what an agent is told -------------------------------------------------------------------------


class Init(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="init"):
    """Who you are and what to do. (sched_id, attempt, token) is the idempotency key."""

    pid: int
    sched_id: int
    attempt: int
    token: int | None
    deadline: float | None
    trigger: str
    payload: dict[str, Any]
    remaining: dict[str, int]
    checkpoint: dict[str, Any] | None


class Stop(msgspec.Struct, frozen=True, tag_field="op", tag="stop"):
    """Please end; after the grace you are sent SIGTERM."""

    reason: str
    grace_s: float


class Left(msgspec.Struct, frozen=True, tag_field="op", tag="remaining"):
    """What is left, per dimension."""

    id: RequestId
    remaining: dict[str, int]


class Spawned(msgspec.Struct, frozen=True, tag_field="op", tag="spawned"):
    """The child is in the queue."""

    id: RequestId
    sched_id: int


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """How a child ended."""

    sched_id: int
    exit_kind: str | None
    outcome: str | None
    result: Any


class Waited(msgspec.Struct, frozen=True, tag_field="op", tag="waited"):
    """The children have ended."""

    id: RequestId
    children: list[Child]


class RefusedMessage(msgspec.Struct, frozen=True, tag_field="op", tag="refused"):
    """What was asked was not done, and why. Without an id if what was said had none."""

    id: RequestId | None
    of: str  # the op
    name: str  # of the error
    error: str


Told: TypeAlias = Init | Stop | Left | Spawned | Waited | RefusedMessage


def child(entry: ReadyEntry) -> Child:
    """How a child ended, of its entry."""
    return Child(sched_id=entry.sched_id, exit_kind=entry.exit_kind, outcome=entry.outcome, result=entry.result)


# --- lines -----------------------------------------------------------------------------------------


class _Op(msgspec.Struct):
    op: str


_said: msgspec.json.Decoder[Said] = msgspec.json.Decoder(Said)
_op = msgspec.json.Decoder(_Op)
OPS = frozenset(str(kind.__struct_config__.tag) for kind in Said.__args__)


def encode(message: Told) -> bytes:
    """A message as it is sent."""
    return msgspec.json.encode(message) + b"\n"


def decode(line: bytes) -> Said | str:
    """What an agent said; for an `op` that is not known, the op. RunnerProtocolBroken if it cannot be understood."""
    try:
        return _said.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        op = _op_of(line)
        if op is not None and op not in OPS:
            return op
        what = "a line that is not JSON" if op is None else f"{op!r} with a field that cannot be"
        raise RunnerProtocolBroken(
            f"the agent said {what}: {problem}", line=line[:EXCERPT_BYTES].decode("utf-8", "replace")
        ) from problem


def _op_of(line: bytes) -> str | None:
    try:
        return _op.decode(line).op
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class Lines:
    """Whole lines of what comes in pieces; no line is longer than a message may be."""

    def __init__(self) -> None:
        self._begun = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that end in this piece, empty ones left out."""
        *ends, rest = data.split(b"\n")
        lines: list[bytes] = []
        for end in ends:
            self._extend(end)
            if self._begun.strip():
                lines.append(bytes(self._begun))
            self._begun.clear()
        self._extend(rest)
        return lines

    def rest(self) -> bytes:
        """What has begun and will not end."""
        return bytes(self._begun)

    def _extend(self, part: bytes) -> None:
        self._begun += part
        if len(self._begun) > MESSAGE_BYTES_MAX:
            raise RunnerProtocolBroken(
                f"the agent said a line of more than {MESSAGE_BYTES_MAX:,} bytes",
                line=bytes(self._begun[:EXCERPT_BYTES]).decode("utf-8", "replace"),
            )

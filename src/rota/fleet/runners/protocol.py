"""The ndjson protocol: every message between a supervisor and an agent, declared once.

A message is one JSON object on one line; its `op` names the kind. The supervisor sends the first message:

    supervisor → agent                              agent → supervisor
    init        what to run                         ready       the answer to init, required within the timeout
    stop        stop within the grace period        log chunk tool_call iteration_start     for the log
    remaining                                       charge iteration_done                   usage, recorded immediately
    spawned     } replies, each with the id         heartbeat                               accepted and ignored
    waited      } of the request                    checkpoint throttled progress emit      see AgentChannel
    acquired    }                                   remaining spawn wait acquire settle     requests, each with an id
    refused
                                                    result      what the run returns
                                                    yield exit  the final message

The supervisor logs and ignores a message with an unknown `op`, and ignores unknown fields, so that an agent may be
newer than its supervisor. A line that is not JSON, or has a field of the wrong type, ends the run: an agent whose
charges the supervisor cannot read must not continue.

A message that is only for the log never ends a run (`FOR_THE_LOG`). Its text may be called `text`, `msg` or `content`,
a tool `name` or `tool` with `arguments` or `args`. What it has besides, or instead, is logged as it came; one that is
too long is cut. It may come before `ready`.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal, TypeAlias

import msgspec

from rota.decoding import json_decoder
from rota.errors import RunnerProtocolBroken
from rota.model.work import ReadyEntry

__all__ = ["MESSAGE_BYTES_MAX", "AgentMessage", "LineSplitter", "SupervisorMessage", "decode", "encode"]

MESSAGE_BYTES_MAX = 1024 * 1024
EXCERPT_BYTES = 200  # of a line, in an error

RequestId: TypeAlias = int | str


# --- from the agent --------------------------------------------------------------------------------


class ReadyMessage(msgspec.Struct, frozen=True, tag_field="op", tag="ready"):
    """The agent has started."""

    pid: int | None = None  # as in init


class LogMessage(msgspec.Struct, frozen=True, tag_field="op", tag="log"):
    """A line for the log."""

    text: str
    level: str = "info"


class ChunkMessage(msgspec.Struct, frozen=True, tag_field="op", tag="chunk"):
    """A part of a longer text, for the log."""

    text: str


class ProgressMessage(msgspec.Struct, frozen=True, tag_field="op", tag="progress"):
    """How far the work is."""

    fraction: float  # from 0 to 1
    text: str = ""


class ToolCallMessage(msgspec.Struct, frozen=True, tag_field="op", tag="tool_call"):
    """The agent uses a tool, for the log."""

    name: str
    arguments: Any = None
    args: Any = None  # the same under another name


class IterationStartMessage(msgspec.Struct, frozen=True, tag_field="op", tag="iteration_start"):
    """An iteration starts, for the log."""

    iteration: int | None = None


class IterationDoneMessage(msgspec.Struct, frozen=True, tag_field="op", tag="iteration_done"):
    """An iteration has ended; its usage is charged."""

    iteration: int | None = None
    tokens: int = 0
    cost_micro: int = 0
    model: str | None = None


class ChargeMessage(msgspec.Struct, frozen=True, tag_field="op", tag="charge"):
    """Usage in one dimension (`dim`, `amount`) or several (`amounts`). With an id, the reply is `remaining`."""

    dim: str | None = None
    amount: int = 0
    amounts: dict[str, int] = {}
    id: RequestId | None = None
    model: str | None = None

    @property
    def all(self) -> dict[str, int]:
        """Every dimension that is charged."""
        return self.amounts if self.dim is None else {**self.amounts, self.dim: self.amount}


class RemainingRequest(msgspec.Struct, frozen=True, tag_field="op", tag="remaining"):
    """Ask what is left of the budgets. The reply is `remaining`."""

    id: RequestId


class HeartbeatMessage(msgspec.Struct, frozen=True, tag_field="op", tag="heartbeat"):
    """The agent is alive. It has no effect: the supervisor extends the claim itself."""


class CheckpointMessage(msgspec.Struct, frozen=True, tag_field="op", tag="checkpoint"):
    """The state of the work, for the next attempt."""

    state: dict[str, Any]


class EmitMessage(msgspec.Struct, frozen=True, tag_field="op", tag="emit"):
    """An event of the agent's own, for the journal."""

    kind: str
    payload: dict[str, Any] = {}


class ThrottledMessage(msgspec.Struct, frozen=True, tag_field="op", tag="throttled"):
    """A provider asked for a pause."""

    retry_after_s: float
    name: str | None = None


class SpawnRequest(msgspec.Struct, frozen=True, tag_field="op", tag="spawn"):
    """Enqueue a child. The reply is `spawned`."""

    id: RequestId
    agent: str
    payload: dict[str, Any] = {}
    lent: dict[str, int] = {}
    priority: int | None = None


class WaitRequest(msgspec.Struct, frozen=True, tag_field="op", tag="wait"):
    """Wait until these children have ended. The reply is `waited`."""

    id: RequestId
    children: tuple[int, ...]
    wait_s: float | None = None


class AcquireRequest(msgspec.Struct, frozen=True, tag_field="op", tag="acquire"):
    """Wait until a limit has these amounts. The reply is `acquired`."""

    id: RequestId
    name: str
    amounts: dict[str, int]
    wait_s: float | None = None


class SettleRequest(msgspec.Struct, frozen=True, tag_field="op", tag="settle"):
    """Say what was used of what was acquired, by its key. With an id, the reply is `remaining`."""

    key: str
    used: dict[str, int] = {}
    id: RequestId | None = None


class ResultMessage(msgspec.Struct, frozen=True, tag_field="op", tag="result"):
    """What the run returns. The last one counts; it is kept even if the run does not complete."""

    value: Any = None


class YieldMessage(msgspec.Struct, frozen=True, tag_field="op", tag="yield"):
    """Give up the slot and run again after a delay. The final message: the program exits now."""

    after_s: float = 0.0


class ExitMessage(msgspec.Struct, frozen=True, tag_field="op", tag="exit"):
    """How the run ended. The final message: the program exits now."""

    exit_kind: Literal["completed", "failed", "crashed", "cancelled"] = "completed"
    summary: str | None = None
    text: str | None = None
    metadata: dict[str, Any] = {}


AgentMessage: TypeAlias = (
    ReadyMessage
    | LogMessage
    | ChunkMessage
    | ProgressMessage
    | ToolCallMessage
    | IterationStartMessage
    | IterationDoneMessage
    | ChargeMessage
    | RemainingRequest
    | HeartbeatMessage
    | CheckpointMessage
    | EmitMessage
    | ThrottledMessage
    | SpawnRequest
    | WaitRequest
    | AcquireRequest
    | SettleRequest
    | ResultMessage
    | YieldMessage
    | ExitMessage
)


# --- from the supervisor ---------------------------------------------------------------------------


class InitMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="init"):
    """What to run. (sched_id, attempt, token) is the idempotency key."""

    pid: int
    sched_id: int
    attempt: int
    token: int | None
    deadline: float | None
    trigger: str
    payload: dict[str, Any]
    remaining: dict[str, int]
    checkpoint: dict[str, Any] | None
    agent: str = ""
    workspace: str | None = None


class StopMessage(msgspec.Struct, frozen=True, tag_field="op", tag="stop"):
    """Stop; SIGTERM follows after the grace period."""

    reason: str
    grace_s: float


class RemainingReply(msgspec.Struct, frozen=True, tag_field="op", tag="remaining"):
    """What is left, per dimension."""

    id: RequestId
    remaining: dict[str, int]


class SpawnedReply(msgspec.Struct, frozen=True, tag_field="op", tag="spawned"):
    """The child is in the queue."""

    id: RequestId
    sched_id: int


class ChildOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a child ended."""

    sched_id: int
    exit_kind: str | None
    outcome: str | None
    result: Any


class WaitedReply(msgspec.Struct, frozen=True, tag_field="op", tag="waited"):
    """The children have ended."""

    id: RequestId
    children: list[ChildOutcome]


class AcquiredReply(msgspec.Struct, frozen=True, tag_field="op", tag="acquired"):
    """The limit has what was asked for; the key is for `settle`."""

    id: RequestId
    key: str


class RefusedReply(msgspec.Struct, frozen=True, tag_field="op", tag="refused"):
    """The message had no effect. Without an id if the message had none."""

    id: RequestId | None
    of: str  # the op of the message
    name: str  # of the error
    error: str


SupervisorMessage: TypeAlias = (
    InitMessage | StopMessage | RemainingReply | SpawnedReply | WaitedReply | AcquiredReply | RefusedReply
)


def child_outcome(entry: ReadyEntry) -> ChildOutcome:
    """Return how a child ended, from its entry."""
    return ChildOutcome(sched_id=entry.sched_id, exit_kind=entry.exit_kind, outcome=entry.outcome, result=entry.result)


# --- lines -----------------------------------------------------------------------------------------


class _Op(msgspec.Struct):
    op: str


FOR_THE_LOG = (LogMessage, ChunkMessage, ProgressMessage, ToolCallMessage, IterationStartMessage, HeartbeatMessage)
_LOG_OPS = frozenset(str(kind.__struct_config__.tag) for kind in FOR_THE_LOG)
_TEXTS = ("text", "msg", "content")  # what the text of a log message may be called
_FIRST_OP = re.compile(rb'"op"\s*:\s*"([a-z_]*)"')

_message: msgspec.json.Decoder[AgentMessage] = json_decoder(AgentMessage)
_op = json_decoder(_Op)
OPS = frozenset(str(kind.__struct_config__.tag) for kind in AgentMessage.__args__)


def encode(message: SupervisorMessage) -> bytes:
    """Encode a message as a line."""
    return msgspec.json.encode(message) + b"\n"


def decode(line: bytes) -> AgentMessage | str:
    """Decode a line from an agent; return the op itself if it is unknown. RunnerProtocolBroken if it is invalid."""
    try:
        return _message.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        for_the_log = _decode_for_the_log(line)
        if for_the_log is not None:
            return for_the_log
        op = _op_of(line)
        if op is not None and op not in OPS:
            return op
        what = "a line that is not a JSON object with an op" if op is None else f"{op!r} with an invalid field"
        raise RunnerProtocolBroken(
            f"the agent sent {what}: {problem}", line=line[:EXCERPT_BYTES].decode("utf-8", "replace")
        ) from problem


def _decode_for_the_log(line: bytes) -> AgentMessage | None:
    """Decode a message that is only for the log, whatever its fields are; None if it is another one, or no message."""
    try:
        fields = json.loads(line.decode("utf-8", "replace"))  # this accepts NaN, as many programs write it
    except (ValueError, RecursionError):
        return None
    op = fields.get("op") if isinstance(fields, dict) else None
    if op not in _LOG_OPS:
        return None
    if op == "tool_call":
        arguments = fields.get("arguments", fields.get("args"))
        name = _text(fields.get("name", fields.get("tool", "?")))
        return ToolCallMessage(name, None if arguments is None else _text(arguments))
    if op == "iteration_start":
        return LogMessage(f"iteration {_text(fields.get('iteration'))} starts")
    given = next((fields[name] for name in _TEXTS if name in fields), None)
    text = _text({name: value for name, value in fields.items() if name != "op"} if given is None else given)
    return ChunkMessage(text) if op == "chunk" else LogMessage(text)


def _text(value: Any) -> str:
    """Return a value as text that can be written as UTF-8."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", "replace").decode()


def _op_of(line: bytes) -> str | None:
    try:
        return _op.decode(line).op
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class LineSplitter:
    """Splits a stream that arrives in pieces into lines of limited length."""

    def __init__(self) -> None:
        self._partial = bytearray()
        self._skips = False  # the rest of a line that is too long and only for the log

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that end in this piece, without empty ones."""
        *ends, rest = data.split(b"\n")
        lines: list[bytes] = []
        for end in ends:
            self._extend(end)
            if self._partial.strip():
                lines.append(bytes(self._partial))
            self._partial.clear()
            self._skips = False
        self._extend(rest)
        return lines

    def rest(self) -> bytes:
        """Return the last, unfinished line."""
        return bytes(self._partial)

    def _extend(self, part: bytes) -> None:
        if self._skips:
            return
        self._partial += part
        if len(self._partial) > MESSAGE_BYTES_MAX:
            op = _FIRST_OP.search(self._partial)
            if op is not None and op[1].decode() in _LOG_OPS:
                excerpt = bytes(self._partial[:EXCERPT_BYTES]).decode("utf-8", "replace")
                cut = LogMessage(f"{excerpt} ... (cut: a message of more than {MESSAGE_BYTES_MAX:,} bytes)")
                self._partial[:], self._skips = msgspec.json.encode(cut), True
                return
            raise RunnerProtocolBroken(
                f"the agent sent a line of more than {MESSAGE_BYTES_MAX:,} bytes",
                line=bytes(self._partial[:EXCERPT_BYTES]).decode("utf-8", "replace"),
            )

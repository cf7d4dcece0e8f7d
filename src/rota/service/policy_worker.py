"""The process of one policy: it receives snapshots and answers with decisions (see policy_process.py).

    first      a pickle from the process that started it: where to import from, and the policy or its name
    ◀          the description of the policy, or what went wrong
    then       a snapshot, as msgpack
    ◀          decisions as plain data, or how the policy failed

Each message is four bytes for the length and as many of content. Nothing that comes from the policy is sent as it is:
the reader must not have to trust this process. It has no other purpose, so the policy runs on its only thread; the
process that asks ends it when it is late.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from rota.decoding import msgpack_decoder
from rota.errors import PolicyFailed
from rota.lazy import late
from rota.model.snapshot import Snapshot
from rota.policy import registry
from rota.policy.contract import Policy, as_policy
from rota.policy.foreign import copy_decisions, describe_error, printable, raised

if TYPE_CHECKING:
    import socket
else:
    socket = late("socket")

__all__ = [
    "ANSWER_BYTES_MAX",
    "CONNECTION_FD",
    "Answer",
    "Description",
    "PolicySource",
    "main",
    "read_answer",
    "read_description",
    "read_message",
    "write_message",
]

CONNECTION_FD = 3
ANSWER_BYTES_MAX = 1024 * 1024  # a message from the process: a thousand decisions are some hundred kilobytes
DETAIL_CHARS_MAX = 400
_LENGTH = struct.Struct(">I")


class PolicySource(msgspec.Struct, frozen=True, kw_only=True):
    """Where a policy comes from: the registry, or a policy whose ranking function can be imported."""

    path: list[str]  # where to import from
    name: str
    params: dict[str, Any] = {}
    policy: Policy | None = None

    def packed(self) -> bytes:
        """Return the message that begins a session: the path comes first, for the rest may need it to be read."""
        return pickle.dumps((self.path, pickle.dumps(self)))

    def make(self) -> Policy:
        """Make the policy."""
        return registry.make(self.name, **self.params) if self.policy is None else as_policy(self.policy)


class Description(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a policy says about itself, or why it cannot be made."""

    problem: str = ""
    name: str = ""
    sentence: str = ""
    bound: tuple[str, str] | None = None  # its subject and its sentence
    window: str = "owner"
    accounts: tuple[str, ...] = ()
    eligibility: bool = True
    guarantee: bool = True
    holds_back: bool = False


class Answer(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The decisions of a policy as (candidate, slot, reason), or how it failed."""

    decisions: list[tuple[int, int, str]] = []
    failure: str = ""
    detail: str = ""


def read_message(connection: socket.socket, bytes_max: int) -> bytes:
    """Read one message. Raises EOFError at the end of the connection, and ValueError for a message that is too long."""
    (length,) = _LENGTH.unpack(_read(connection, _LENGTH.size))
    if length > bytes_max:
        raise ValueError(f"a message of {length:,} bytes; the maximum is {bytes_max:,}")
    return _read(connection, length)


def write_message(connection: socket.socket, content: bytes) -> None:
    """Write one message."""
    connection.sendall(_LENGTH.pack(len(content)) + content)


def _read(connection: socket.socket, length: int) -> bytes:
    content = bytearray(length)
    view, done = memoryview(content), 0
    while done < length:
        count = connection.recv_into(view[done:])
        if not count:
            raise EOFError
        done += count
    return bytes(content)


# --- in the process ------------------------------------------------------------------------------


def main(_arguments: list[str]) -> None:
    """Serve one policy until the connection ends."""
    connection = socket.socket(fileno=CONNECTION_FD)
    try:
        policy = _load(connection)
        while policy is not None:
            snapshot = _snapshots.decode(read_message(connection, sys.maxsize))
            process, answer = os.getpid(), _ask(policy, snapshot)
            if os.getpid() != process:
                os._exit(0)  # the policy has forked: this is the child, and its parent answers
            write_message(connection, _encode(answer))
    except (EOFError, OSError):
        return  # the other process is gone


def _load(connection: socket.socket) -> Policy | None:
    source = read_message(connection, sys.maxsize)
    try:
        path, rest = pickle.loads(source)  # noqa: S301  # from the process that started this one
        sys.path[:] = path
        policy: Policy | None = pickle.loads(rest).make()  # noqa: S301  # the same
        described = _describe(policy)
    except BaseException as problem:  # imports and factories are code of another package
        policy, described = None, Description(problem=printable(describe_error(problem), DETAIL_CHARS_MAX))
    write_message(connection, _encode(described))
    return policy


def _describe(policy: Policy | None) -> Description:
    assert policy is not None  # noqa: S101  # it was just made
    return Description(
        name=policy.name,
        sentence=policy.sentence,
        bound=None if policy.bound is None else (policy.bound.subject, policy.bound.sentence),
        window=policy.window,
        accounts=policy.accounts,
        eligibility=policy.eligibility,
        guarantee=policy.guarantee,
        holds_back=policy.holds_back,
    )


def _ask(policy: Policy, snapshot: Snapshot) -> Answer:
    owners, groups = MappingProxyType(snapshot.owners), MappingProxyType(snapshot.groups)
    slots = len(snapshot.slots)
    shown = msgspec.structs.replace(snapshot, owners=owners, groups=groups)
    try:
        answer: object = policy.rank(shown)
    except BaseException as error:  # a policy may raise anything
        return _failed(raised(policy, error))
    try:
        # whether they fit the snapshot is checked where the policy cannot have changed it
        decisions = copy_decisions(policy, answer, slots)
    except PolicyFailed as failure:
        return _failed(failure)
    return Answer(decisions=[(each.candidate_id, each.slot_id, each.reason.words) for each in decisions])


def _failed(failure: PolicyFailed) -> Answer:
    return Answer(failure=failure.data["failure"], detail=printable(failure.message, DETAIL_CHARS_MAX))


_encode = msgspec.msgpack.Encoder().encode
_snapshots = msgpack_decoder(Snapshot)
read_answer = msgpack_decoder(Answer).decode
read_description = msgpack_decoder(Description).decode

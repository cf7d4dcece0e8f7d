"""The client: a desk whose kernel is in another process.

It has the verbs of the desk, and the kernel's parts with the kernel's own verbs; what they return and raise is what the
kernel would. It may be used by many threads: each call has a connection to itself, and connections are kept.

When a connection is lost, a call that was not sent yet is sent again; so is one that is *safe*: it changes nothing, or
asking twice changes the same. An enqueue is made safe by a key, which is put on every entry that has none (`keys`), so
a retried enqueue makes one entry. Asking again for a claim is safe too: what a lost answer had handed out is taken
back when its claim expires. What remains (an ending, a charge) is not sent again; its error says that it may have
happened, and a worker that is told so asks `get`.
"""

from __future__ import annotations

import itertools
import os
import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from rota.clock import Clock, SystemClock
from rota.errors import SchedInvalidPayload, StoreUnavailable
from rota.kernel.agents import Agents
from rota.kernel.claim_request import Completion, Turnover
from rota.kernel.claims import CLAIM_TIMEOUT_S
from rota.kernel.contexts import Contexts
from rota.kernel.journal import Journal
from rota.kernel.ledger import Ledger
from rota.kernel.projects import Projects
from rota.kernel.queue import Queue
from rota.kernel.supervision import RunReport, Supervision
from rota.model.explanation import Explanation
from rota.model.work import Agent, ReadyEntry, ScheduleSpec
from rota.rpc.client.connections import Connection, Lost
from rota.rpc.client.parts import RemoteJournal, RemotePart, RemoteQueue
from rota.rpc.jsonrpc import encode_call, result_of
from rota.rpc.methods import METHODS, Method

__all__ = ["BACKOFF_S", "Client", "Keys", "is_safe", "lost_answer", "unreachable"]

IDLE_MAX = 32  # connections kept open
BACKOFF_S = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)  # between two tries to reach the daemon

_ENQUEUE = METHODS["kernel.sched.enqueue"]
_ENQUEUE_MANY = METHODS["kernel.sched.enqueue_many"]
_CLAIM = METHODS["kernel.sched.claim"]
_TURN_OVER = METHODS["kernel.sched.complete_and_claim"]
_TURN = METHODS["kernel.run.turn"]


class Keys:
    """Keys for entries that have none: unique, and the same when a call is sent again."""

    def __init__(self) -> None:
        self._life = secrets.token_hex(8)
        self._numbers = itertools.count(1)

    def put(self, spec: ScheduleSpec) -> ScheduleSpec:
        """The same wish with a key."""
        if not isinstance(spec, ScheduleSpec):
            raise SchedInvalidPayload(f"Queue.spec must be a ScheduleSpec, not {type(spec).__name__}", field="spec")
        if spec.key is not None:
            return spec
        return msgspec.structs.replace(spec, key=f"~{self._life}-{next(self._numbers)}")

    def on(self, method: Method, params: Any) -> Any:
        """A call's parameters with keys on what it enqueues."""
        if method is _ENQUEUE:
            return self.put(params)
        if method is _ENQUEUE_MANY and isinstance(params["specs"], list | tuple):
            return {"specs": [self.put(spec) for spec in params["specs"]]}
        return params


def is_safe(method: Method, params: Any) -> bool:
    """Whether a call may be sent again when it is not known what became of it."""
    if method is _ENQUEUE:
        return params.key is not None
    if method is _ENQUEUE_MANY:
        return all(spec.key is not None for spec in params["specs"])
    return method.safe or method is _CLAIM or (method is _TURN and not params["reports"])


def lost_answer(address: str, method: Method, lost: BaseException) -> StoreUnavailable:
    """The error for a call that may or may not have been carried out."""
    text = f"the answer to {method.name} was lost ({str(lost) or 'timed out'}): it may have been carried out"
    return StoreUnavailable(text, hint="Look before you call again.", address=address)


def unreachable(address: str, lost: BaseException) -> StoreUnavailable:
    """The error for a daemon that cannot be reached."""
    text = f"the daemon at {address} cannot be reached: {str(lost) or 'timed out'}"
    hint = "Is it running? `rota serve` starts it."
    if address.startswith("http:"):
        hint += " With TLS its address begins with https:."
    return StoreUnavailable(text, hint=hint, address=address)


class Client:
    """A desk over a connection."""

    def __init__(
        self,
        open_connection: Callable[[], Connection],
        address: str,
        *,
        timeout_s: float = 30.0,
        retry_s: float = 30.0,
        keys: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.address = address
        self._open_connection = open_connection
        self._timeout_s = timeout_s  # for an answer, besides what the call itself may wait
        self._retry_s = retry_s  # for the daemon to come back
        self._keys = Keys() if keys else None
        self.clock = self._clock = clock or SystemClock()
        self._idle: list[Connection] = []
        self._process = os.getpid()
        self._numbers = itertools.count(1)
        self._closed = False
        self._ended = threading.Condition()
        self.queue = cast("Queue", RemoteQueue(self.send))
        self.agents = cast("Agents", RemotePart("agents", Agents, self.send))
        self.ledger = cast("Ledger", RemotePart("ledger", Ledger, self.send))
        self.contexts = cast("Contexts", RemotePart("contexts", Contexts, self.send))
        self.projects = cast("Projects", RemotePart("projects", Projects, self.send))
        self.journal = cast("Journal", RemoteJournal(self.send))
        self.supervision = cast("Supervision", RemotePart("supervision", Supervision, self.send))
        # the parts' verbs that are used most can be called without naming the part
        self.create_agent = self.agents.create
        self.enqueue, self.enqueue_many = self.queue.enqueue, self.queue.enqueue_many
        self.complete, self.complete_many = self.queue.complete, self.queue.complete_many
        self.heartbeat = self.queue.heartbeat
        self.get, self.wait = self.queue.get, self.queue.wait

    # --- asking ----------------------------------------------------------------------------------

    def call(self, name: str, /, **params: Any) -> Any:
        """Call any method of the wire table by its name."""
        return self.send(METHODS[name], params)

    def send(self, method: Method, params: Any) -> Any:
        """Send a call, and wait for its answer."""
        if self._keys is not None:
            params = self._keys.on(method, params)
        wait_s = params.get("wait_s", 0.0) if isinstance(params, dict) else 0.0
        body = encode_call(next(self._numbers), method, params)
        return result_of(method, self._ask(body, self._timeout_s + max(0.0, wait_s), is_safe(method, params), method))

    def _ask(self, body: bytes, timeout_s: float, safe: bool, method: Method) -> bytes:
        give_up_at = self._clock.monotonic() + self._retry_s
        pauses = iter(BACKOFF_S)
        while True:
            connection: Connection | None = None
            try:
                connection = self._take()
                answer = connection.ask(body, timeout_s)
            except Lost as lost:
                if connection is not None:
                    connection.close()
                if lost.sent and not safe:
                    raise lost_answer(self.address, method, lost) from lost
                self._pause(next(pauses, BACKOFF_S[-1]), give_up_at, lost)
            except BaseException:  # an interrupt: the answer may still come, to nobody
                if connection is not None:
                    connection.close()
                raise
            else:
                self._idle.append(connection) if len(self._idle) < IDLE_MAX else connection.close()
                return answer

    def _take(self) -> Connection:
        if self._closed:
            raise StoreUnavailable("the client is closed", hint="Connect again.")
        if self._process != os.getpid():  # a child shares its parent's connections, and must not use them
            self._idle, self._process = [], os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return self._open_connection()

    def _pause(self, pause_s: float, give_up_at: float, lost: Lost) -> None:
        """Wait a little before the next try; other idle connections are to the same daemon, and lost with it."""
        while self._idle:
            self._idle.pop().close()
        if self._clock.monotonic() + pause_s > give_up_at:
            raise unreachable(self.address, lost) from lost
        with self._ended:
            self._clock.wait(self._ended, pause_s)

    def close(self) -> None:
        """Ask no more."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()
        with self._ended:
            self._ended.notify_all()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the desk --------------------------------------------------------------------------------

    def terminate(self, pid: int, exit_kind: str, detail: dict[str, Any] | None = None, **how: Any) -> Agent:
        """End an agent for good."""
        params = {"pid": pid, "exit_kind": exit_kind, "detail": detail, **how}
        return cast("Agent", self.send(METHODS["kernel.agent.terminate"], params))

    def info(self) -> dict[str, Any]:
        """A few numbers about the file."""
        return cast("dict[str, Any]", self.send(METHODS["system.info"], {}))

    def claim(
        self,
        worker_id: str,
        max_n: int = 1,
        *,
        wait_s: float = 0.0,
        claim_timeout_s: float = CLAIM_TIMEOUT_S,
        incarnation: str = "",
        kinds: Sequence[str] = (),
        **asked: Any,
    ) -> list[ReadyEntry]:
        """Take the next entries; while there are none, wait up to `wait_s`."""
        params = _wishes(worker_id, max_n, wait_s, claim_timeout_s, incarnation, kinds)
        return cast("list[ReadyEntry]", self.send(_CLAIM, params | asked))

    def complete_and_claim(
        self,
        completions: Sequence[Completion],
        worker_id: str,
        max_n: int = 1,
        *,
        wait_s: float = 0.0,
        claim_timeout_s: float = CLAIM_TIMEOUT_S,
        incarnation: str = "",
        kinds: Sequence[str] = (),
        **asked: Any,
    ) -> Turnover:
        """End runs and take the next entries in one commit."""
        params = _wishes(worker_id, max_n, wait_s, claim_timeout_s, incarnation, kinds)
        return cast("Turnover", self.send(_TURN_OVER, {**params, "completions": completions, **asked}))

    def turn(
        self,
        reports: Sequence[RunReport],
        worker_id: str,
        max_n: int = 1,
        *,
        wait_s: float = 0.0,
        claim_timeout_s: float = CLAIM_TIMEOUT_S,
        incarnation: str = "",
        kinds: Sequence[str] = (),
        **asked: Any,
    ) -> Turnover:
        """A supervisor's turn: end runs, take the next entries and move the agents of both, in one commit."""
        params = _wishes(worker_id, max_n, wait_s, claim_timeout_s, incarnation, kinds)
        return cast("Turnover", self.send(_TURN, {**params, "reports": reports, **asked}))

    def explain(self, sched_id: int, **claim: Any) -> Explanation:
        """Why an entry is not running."""
        return cast("Explanation", self.send(METHODS["kernel.sched.explain"], {"sched_id": sched_id, **claim}))


def _wishes(  # noqa: PLR0917  # all of them, in the order in which both verbs have them
    worker_id: str, max_n: int, wait_s: float, claim_timeout_s: float, incarnation: str, kinds: Sequence[str]
) -> dict[str, Any]:
    """A claim's wishes; what is at its default is not sent."""
    wishes: dict[str, Any] = {"worker_id": worker_id, "max_n": max_n, "claim_timeout_s": claim_timeout_s}
    if wait_s:
        wishes["wait_s"] = wait_s
    if incarnation:
        wishes["incarnation"] = incarnation
    if kinds:
        wishes["kinds"] = kinds
    return wishes

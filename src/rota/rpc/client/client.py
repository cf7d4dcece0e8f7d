"""The client: the scheduler API of a kernel in another process.

It has the functions of `SchedulerApi` and proxies for the kernel's parts; they return and raise what the kernel does.
Many threads may use one client: each call has a connection to itself, and connections are pooled.

When a connection is lost, a call that was not sent yet is retried. A call that was sent is retried if that is *safe*:
it changes nothing, or executing it twice has the effect of once. An enqueue is safe because the client adds a key to
every entry without one (`keys`), so a retried enqueue creates one entry. A claim is safe because entries in a lost
response return to the queue when their claim expires. Other calls (a completion, a charge) are not retried; the error
says that they may have been executed, and the caller can check with `get`.
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
from rota.kernel.claim_request import CLAIM_TIMEOUT_S
from rota.kernel.claims import TurnResult
from rota.kernel.completion import Completion
from rota.kernel.contexts import Contexts
from rota.kernel.journal import Journal
from rota.kernel.ledger import Ledger
from rota.kernel.projects import Projects
from rota.kernel.queue import Queue
from rota.kernel.supervision import RunReport, Supervision
from rota.model.explanation import Explanation
from rota.model.work import Agent, ReadyEntry, ScheduleSpec
from rota.rpc.client.connections import Connection, ConnectionLost
from rota.rpc.client.remote_parts import RemoteJournal, RemotePart, RemoteQueue
from rota.rpc.jsonrpc import decode_result, encode_call
from rota.rpc.methods import METHODS, Method

__all__ = ["BACKOFF_S", "Client", "EntryKeys", "is_retry_safe", "lost_response", "unreachable"]

IDLE_MAX = 32  # connections in the pool
BACKOFF_S = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)  # between two attempts; the last one repeats

_ENQUEUE = METHODS["kernel.sched.enqueue"]
_ENQUEUE_MANY = METHODS["kernel.sched.enqueue_many"]
_CLAIM = METHODS["kernel.sched.claim"]
_COMPLETE_AND_CLAIM = METHODS["kernel.sched.complete_and_claim"]
_TURN = METHODS["kernel.run.turn"]


class EntryKeys:
    """Adds a unique key to entries without one, so that a retried enqueue creates no second entry."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(8)
        self._numbers = itertools.count(1)

    def add(self, spec: ScheduleSpec) -> ScheduleSpec:
        """Return the spec with a key."""
        if not isinstance(spec, ScheduleSpec):
            raise SchedInvalidPayload(f"Queue.spec must be a ScheduleSpec, not {type(spec).__name__}", field="spec")
        if spec.key is not None:
            return spec
        return msgspec.structs.replace(spec, key=f"~{self._prefix}-{next(self._numbers)}")

    def add_to_params(self, method: Method, params: Any) -> Any:
        """Return a call's parameters with keys on the entries it enqueues."""
        if method is _ENQUEUE:
            return self.add(params)
        if method is _ENQUEUE_MANY and isinstance(params["specs"], list | tuple):
            return {"specs": [self.add(spec) for spec in params["specs"]]}
        return params


def is_retry_safe(method: Method, params: Any) -> bool:
    """Return whether a call may be retried when its response was lost."""
    if method is _ENQUEUE:
        return params.key is not None
    if method is _ENQUEUE_MANY:
        return all(spec.key is not None for spec in params["specs"])
    return method.retry_safe or method is _CLAIM or (method is _TURN and not params["reports"])


def lost_response(address: str, method: Method, lost: BaseException) -> StoreUnavailable:
    """Return the error for a call that may or may not have been executed."""
    text = f"the response to {method.name} was lost ({str(lost) or 'timed out'}): it may have been executed"
    return StoreUnavailable(text, hint="Check the entry's state before you repeat the call.", address=address)


def unreachable(address: str, lost: BaseException) -> StoreUnavailable:
    """Return the error for a daemon that cannot be reached."""
    text = f"the daemon at {address} cannot be reached: {str(lost) or 'timed out'}"
    hint = "Start the daemon with `rota serve`."
    if address.startswith("http:"):
        hint += " If it uses TLS, its address begins with https:."
    return StoreUnavailable(text, hint=hint, address=address)


class Client:
    """The scheduler API over connections to a daemon."""

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
        self._timeout_s = timeout_s  # for a response, in addition to the call's own wait_s
        self._retry_s = retry_s  # how long an unreachable daemon is retried
        self._keys = EntryKeys() if keys else None
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
        # the most used functions can be called without naming their part
        self.create_agent = self.agents.create
        self.enqueue, self.enqueue_many = self.queue.enqueue, self.queue.enqueue_many
        self.complete, self.complete_many = self.queue.complete, self.queue.complete_many
        self.heartbeat = self.queue.heartbeat
        self.get, self.wait = self.queue.get, self.queue.wait

    # --- calls -----------------------------------------------------------------------------------

    def call(self, name: str, /, **params: Any) -> Any:
        """Call a method by its name on the wire."""
        return self.send(METHODS[name], params)

    def send(self, method: Method, params: Any) -> Any:
        """Send a call and wait for its response."""
        if self._keys is not None:
            params = self._keys.add_to_params(method, params)
        wait_s = params.get("wait_s", 0.0) if isinstance(params, dict) else 0.0
        body = encode_call(next(self._numbers), method, params)
        timeout_s = self._timeout_s + max(0.0, wait_s)
        return decode_result(method, self._request(body, timeout_s, is_retry_safe(method, params), method))

    def _request(self, body: bytes, timeout_s: float, retry_safe: bool, method: Method) -> bytes:
        give_up_at = self._clock.monotonic() + self._retry_s
        pauses = iter(BACKOFF_S)
        while True:
            connection: Connection | None = None
            try:
                connection = self._take()
                response = connection.request(body, timeout_s)
            except ConnectionLost as lost:
                if connection is not None:
                    connection.close()
                if lost.sent and not retry_safe:
                    raise lost_response(self.address, method, lost) from lost
                self._pause(next(pauses, BACKOFF_S[-1]), give_up_at, lost)
            except BaseException:  # an interrupt: the response may still come, so the connection cannot be reused
                if connection is not None:
                    connection.close()
                raise
            else:
                self._idle.append(connection) if len(self._idle) < IDLE_MAX else connection.close()
                return response

    def _take(self) -> Connection:
        if self._closed:
            raise StoreUnavailable("the client is closed", hint="Create a new client with `connect`.")
        if self._process != os.getpid():  # a forked child must not use its parent's connections
            self._idle, self._process = [], os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return self._open_connection()

    def _pause(self, pause_s: float, give_up_at: float, lost: ConnectionLost) -> None:
        """Wait before the next attempt. Idle connections go to the same daemon and are lost with it."""
        while self._idle:
            self._idle.pop().close()
        if self._clock.monotonic() + pause_s > give_up_at:
            raise unreachable(self.address, lost) from lost
        with self._ended:
            self._clock.wait(self._ended, pause_s)

    def close(self) -> None:
        """Close all connections."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()
        with self._ended:
            self._ended.notify_all()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- scheduler API ---------------------------------------------------------------------------

    def terminate(self, pid: int, exit_kind: str, detail: dict[str, Any] | None = None, **options: Any) -> Agent:
        """Terminate an agent."""
        params = {"pid": pid, "exit_kind": exit_kind, "detail": detail, **options}
        return cast("Agent", self.send(METHODS["kernel.agent.terminate"], params))

    def info(self) -> dict[str, Any]:
        """Return counts and sizes of the store."""
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
        **options: Any,
    ) -> list[ReadyEntry]:
        """Claim the next entries; while there are none, wait up to `wait_s`."""
        params = _claim_params(worker_id, max_n, wait_s, claim_timeout_s, incarnation, kinds)
        return cast("list[ReadyEntry]", self.send(_CLAIM, params | options))

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
        **options: Any,
    ) -> TurnResult:
        """Complete runs and claim the next entries in one commit."""
        params = _claim_params(worker_id, max_n, wait_s, claim_timeout_s, incarnation, kinds)
        return cast("TurnResult", self.send(_COMPLETE_AND_CLAIM, {**params, "completions": completions, **options}))

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
        **options: Any,
    ) -> TurnResult:
        """For supervisors: complete runs, claim the next entries and move the agents of both, in one commit."""
        params = _claim_params(worker_id, max_n, wait_s, claim_timeout_s, incarnation, kinds)
        return cast("TurnResult", self.send(_TURN, {**params, "reports": reports, **options}))

    def explain(self, sched_id: int, **claim: Any) -> Explanation:
        """Explain why an entry is not running."""
        return cast("Explanation", self.send(METHODS["kernel.sched.explain"], {"sched_id": sched_id, **claim}))


def _claim_params(  # noqa: PLR0917  # in the order in which all three functions have them
    worker_id: str, max_n: int, wait_s: float, claim_timeout_s: float, incarnation: str, kinds: Sequence[str]
) -> dict[str, Any]:
    """Return the parameters of a claim; defaults are not sent."""
    params: dict[str, Any] = {"worker_id": worker_id, "max_n": max_n, "claim_timeout_s": claim_timeout_s}
    if wait_s:
        params["wait_s"] = wait_s
    if incarnation:
        params["incarnation"] = incarnation
    if kinds:
        params["kinds"] = kinds
    return params

"""What both clients do for a call, without I/O: encode it, and decide what happens when an attempt fails.

When a connection is lost, a call that was not sent yet is retried. A call that was sent is retried if that is *safe*:
it changes nothing, or executing it twice has the effect of once. An enqueue, a spawn or the charge of a run is safe
because the client adds a key to each without one (`keys`), so a retried call creates one entry, or counts once. A claim
is safe because entries in a lost response return to the queue when their claim expires. Other calls (a completion, an
event) are not retried; the error says that they may have been executed, and the caller can check with `get`.

The time for which a daemon is retried (`retry_s`) is that of an outage, not of each call: a supervisor that ends while
its daemon is away makes a few calls, one after the other. A call that begins later is still retried for `LATE_RETRY_S`.
"""

from __future__ import annotations

import itertools
import secrets
from typing import Any

import msgspec

from rota.errors import LimitExceeded, SchedInvalidPayload, StoreUnavailable
from rota.model.work import ScheduleSpec
from rota.rpc.jsonrpc import BODY_BYTES_MAX, decode_result, encode_call
from rota.rpc.methods import METHODS, Method
from rota.store.forks import in_child
from rota.store.socket_paths import is_run_socket

__all__ = ["BACKOFF_S", "LATE_RETRY_S", "CallKeys", "ConnectionLost", "RemoteCall", "RemoteCalls", "is_retry_safe"]

BACKOFF_S = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)  # between two attempts; the last one repeats
LATE_RETRY_S = 1.0  # how long a call is retried that begins when its daemon has been away for long

_ENQUEUE = METHODS["kernel.sched.enqueue"]
_ENQUEUE_MANY = METHODS["kernel.sched.enqueue_many"]
_SPAWN = METHODS["kernel.run.spawn"]
_CHARGES = METHODS["kernel.sched.charge"], METHODS["kernel.ledger.charge_graph"]
_CLAIM = METHODS["kernel.sched.claim"]
_TURN = METHODS["kernel.run.turn"]


class ConnectionLost(Exception):  # never leaves this package
    """The connection ended before the response came."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent  # whether the daemon may have executed the call


class CallKeys:
    """Adds a unique key to entries and charges without one, so that a retried call has the effect of one."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._choose_prefix()
        in_child(self._choose_prefix)

    def _choose_prefix(self) -> None:
        """Also in every forked child: what has a key of the parent would be taken for the parent's."""
        self._prefix = secrets.token_hex(8)

    def add(self, spec: ScheduleSpec) -> ScheduleSpec:
        """Return the spec with a key."""
        if not isinstance(spec, ScheduleSpec):
            raise SchedInvalidPayload(f"Queue.spec must be a ScheduleSpec, not {type(spec).__name__}", field="spec")
        if spec.key is not None:
            return spec
        return msgspec.structs.replace(spec, key=self._next())

    def _next(self) -> str:
        return f"~{self._prefix}-{next(self._numbers)}"

    def add_to_params(self, method: Method, params: Any) -> Any:
        """Return a call's parameters with keys on the entries that it enqueues, or on its charge."""
        if method is _ENQUEUE:
            return self.add(params)
        if method is _ENQUEUE_MANY and isinstance(params.specs, list | tuple):
            return _ENQUEUE_MANY.params([self.add(spec) for spec in params.specs])
        if method is _SPAWN:
            return msgspec.structs.replace(params, spec=self.add(params.spec))
        if method in _CHARGES and params.key is None:
            return msgspec.structs.replace(params, key=self._next())
        return params


def is_retry_safe(method: Method, params: Any) -> bool:
    """Return whether a call may be retried when its response was lost."""
    if method is _ENQUEUE or method in _CHARGES:
        return params.key is not None
    if method is _ENQUEUE_MANY:
        return all(spec.key is not None for spec in params.specs)
    if method is _SPAWN:
        return params.spec.key is not None
    return method.retry_safe or method is _CLAIM or (method is _TURN and not params.reports)


class RemoteCalls:
    """Makes the calls of one client."""

    def __init__(self, address: str, *, timeout_s: float, retry_s: float, keys: bool) -> None:
        self.address = address
        self.timeout_s = timeout_s  # for a response, in addition to the call's own wait_s
        self.retry_s = retry_s  # how long an unreachable daemon is retried
        self._lost_at: float | None = None  # since when it is unreachable; None: its last response came
        self._failed_at = 0.0  # the last failed attempt
        self._keys = CallKeys() if keys else None
        self._numbers = itertools.count(1)

    def make(self, method: Method, params: Any, now: float) -> RemoteCall:
        """Return a call that begins now."""
        if self._keys is not None:
            params = self._keys.add_to_params(method, params)
        return RemoteCall(self, next(self._numbers), method, params, now)

    def failed(self, now: float) -> float:
        """An attempt has failed; return since when the daemon is unreachable, as far as calls have shown it."""
        if self._lost_at is None or now - self._failed_at > self.retry_s:
            self._lost_at = now
        self._failed_at = now
        return self._lost_at

    def worked(self) -> None:
        """A response has come."""
        self._lost_at = None


class RemoteCall:
    """One call: its body, and what to do after a failed attempt. It is told the time and does no I/O."""

    __slots__ = ("_attempts", "_began_at", "_client", "_method", "_params", "body", "number", "timeout_s")

    def __init__(self, client: RemoteCalls, number: int, method: Method, params: Any, now: float) -> None:
        self.number = number
        self.body = encode_call(number, method, params)
        if len(self.body) > BODY_BYTES_MAX:  # the daemon would refuse it and close the connection
            raise LimitExceeded("body_bytes_max", BODY_BYTES_MAX, len(self.body))
        self.timeout_s = client.timeout_s + max(0.0, getattr(params, "wait_s", 0.0))
        self._client = client
        self._method = method
        self._params = params
        self._began_at = now
        self._attempts = 0

    def result_of(self, response: bytes) -> Any:
        """Return what the method returned, or raise what it raised."""
        self._client.worked()
        return decode_result(self._method, response)

    def pause_after(self, lost: ConnectionLost, now: float) -> float:
        """Return how long to pause before the next attempt, or raise the call's error if there is none."""
        if lost.sent and not is_retry_safe(self._method, self._params):
            raise self._response_lost(lost) from lost
        retry_s = self._client.retry_s
        give_up_at = max(self._client.failed(now) + retry_s, self._began_at + min(LATE_RETRY_S, retry_s))
        pause_s = BACKOFF_S[min(self._attempts, len(BACKOFF_S) - 1)]
        self._attempts += 1
        if now + pause_s > give_up_at:
            raise self._unreachable(lost) from lost
        return pause_s

    def _response_lost(self, lost: ConnectionLost) -> StoreUnavailable:
        text = f"the response to {self._method.name} was lost ({str(lost) or 'timed out'}): it may have been executed"
        hint = "Check the entry's state before you repeat the call."
        return StoreUnavailable(text, hint=hint, address=self._client.address, may_be_executed=True)

    def _unreachable(self, lost: ConnectionLost) -> StoreUnavailable:
        address = self._client.address
        if is_run_socket(address.removeprefix("unix:")):
            text = f"the supervisor of this run cannot be reached at {address}: {str(lost) or 'timed out'}"
            hint = "It has ended; the entry is queued again when its claim expires."
            return StoreUnavailable(text, hint=hint, address=address, closed=True)  # nothing to wait for
        hint = "Start the daemon with `rota serve`."
        if address.startswith("http:"):
            hint += " If it uses TLS, its address begins with https:."
        text = f"the daemon at {address} cannot be reached: {str(lost) or 'timed out'}"
        return StoreUnavailable(text, hint=hint, address=address)

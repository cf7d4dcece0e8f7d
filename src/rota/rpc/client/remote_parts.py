"""Proxies for the parts of a kernel in another process: the same functions with the same signatures.

A proxy is made from the method table and the kernel's own class. Calls are bound to the signature of the kernel's
function, so they take the same arguments, by position or by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from rota.kernel.journal import Journal
from rota.kernel.queue import Queue
from rota.model.events import Event, EventData
from rota.rpc.methods import METHODS, Method, methods_of_part

__all__ = ["RemoteJournal", "RemoteMethod", "RemotePart", "RemoteQueue", "remote_methods"]

POLL_S = 30.0  # how long one request waits for events

Send = Callable[[Method, Any], Any]


class RemoteMethod:
    """A function that can be called remotely, with its signature."""

    def __init__(self, method: Method, signature: inspect.Signature) -> None:
        self.method = method
        self.signature = signature
        own = list(signature.parameters.values())[1:]  # without self
        self._in_order = tuple(each.name for each in own if each.kind is each.POSITIONAL_OR_KEYWORD)
        self._known = frozenset(each.name for each in own if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL))
        self._required = frozenset(each.name for each in own if each.name in self._known and each.default is each.empty)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the parameters to send: the given arguments by name, or the one struct that the function takes."""
        if self.method.takes_struct and len(args) == 1 and not kwargs:
            return args[0]
        given = dict(zip(self._in_order, args, strict=False)) | kwargs
        bound_once = len(args) <= len(self._in_order) and len(given) == len(args) + len(kwargs)
        if not (bound_once and self._required <= given.keys() <= self._known):
            given = self._bind_slowly(args, kwargs)
        return next(iter(given.values())) if self.method.takes_struct else given

    def _bind_slowly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Bind with `inspect`, which supports every kind of parameter and explains what is wrong with a call."""
        given = self.signature.bind(None, *args, **kwargs).arguments
        given.pop("self")
        for name, parameter in self.signature.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD and name in given:
                given |= given.pop(name)
        return given


def remote_methods(part: str, kind: type) -> dict[str, RemoteMethod]:
    """Return the functions of a part that can be called remotely."""
    return {
        verb: RemoteMethod(method, inspect.signature(getattr(kind, verb)))
        for verb, method in methods_of_part(part).items()
    }


class RemotePart:
    """A proxy for one part of a kernel in another process."""

    def __init__(self, part: str, kind: type, send: Send) -> None:
        self._send = send
        self._part = part
        self._verbs = remote_methods(part, kind)

    def __getattr__(self, verb: str) -> Any:
        """Return a function of this part; it is created on first use."""
        found = self.__dict__.get("_verbs", {}).get(verb)
        if found is None:
            raise AttributeError(f"{self.__dict__.get('_part', 'this part')} has no remote function {verb!r}")

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._send(found.method, found.bind(args, kwargs))

        call.__name__, call.__doc__ = verb, found.method.summary
        call.__signature__ = _without_self(found.signature)  # type: ignore[attr-defined]  # inspect reads it
        setattr(self, verb, call)
        return call


def _without_self(signature: inspect.Signature) -> inspect.Signature:
    return signature.replace(parameters=list(signature.parameters.values())[1:])


class RemoteQueue(RemotePart):
    """The queue. Its own claims use strict order, whatever policy the daemon uses."""

    def __init__(self, send: Send) -> None:
        super().__init__("queue", Queue, send)
        for verb in ("claim", "complete_and_claim"):
            self._verbs[verb] = RemoteMethod(METHODS[f"kernel.sched.{verb}"], inspect.signature(getattr(Queue, verb)))

        def send_strict(method: Method, params: Any) -> Any:
            claims = method.part == "dispatcher"
            return send(method, {**params, "policy": "strict"} if claims else params)

        self._send = send_strict


class RemoteJournal(RemotePart):
    """The journal. To follow it, the client repeats requests that wait for events."""

    def __init__(self, send: Send) -> None:
        super().__init__("journal", Journal, send)

    def wait(self, since: int, wait_s: float) -> int:
        """Wait up to `wait_s` for an event after `since`, and return the cursor."""
        self._send(METHODS["kernel.event.tail"], {"since": since, "limit": 1, "wait_s": wait_s})
        return int(self.cursor())

    def record(self, fact: EventData, *, pid: int | None = None) -> int:
        """Record an event about running work."""
        params = {"kind": fact.kind, "payload": msgspec.to_builtins(fact), "pid": pid}
        return int(self._send(METHODS["kernel.event.record"], params))

    def follow(self, since: int | None = None, *, wait_s: float | None = None) -> Iterator[Event]:
        """Yield events as they are committed, from a cursor or from now on; end after `wait_s` without one."""
        cursor = self.cursor() if since is None else since
        tail = METHODS["kernel.event.tail"]
        left_s = wait_s
        while left_s is None or left_s > 0:
            poll_s = POLL_S if left_s is None else min(left_s, POLL_S)
            events = self._send(tail, {"since": cursor, "wait_s": poll_s})
            if events:
                yield from events
                cursor, left_s = events[-1].event_id, wait_s
            elif left_s is not None:
                left_s -= poll_s

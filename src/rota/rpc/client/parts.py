"""The kernel's parts, far away: the same verbs with the same signatures.

A part is made from the wire table and the kernel's own class: a call is bound to the signature of the kernel's verb,
so what it takes, by position or by name, is the same by construction.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from rota.kernel.journal import Journal
from rota.kernel.queue import Queue
from rota.model.events import Event, Fact
from rota.rpc.methods import METHODS, Method, of_part

__all__ = ["RemoteJournal", "RemotePart", "RemoteQueue", "Verb", "verbs_of"]

POLL_S = 30.0  # how long one request of a follower waits

Send = Callable[[Method, Any], Any]


class Verb:
    """A verb that can be called over the wire, and how its arguments are read."""

    def __init__(self, method: Method, signature: inspect.Signature) -> None:
        self.method = method
        self.signature = signature
        own = list(signature.parameters.values())[1:]  # without self
        self._in_order = tuple(each.name for each in own if each.kind is each.POSITIONAL_OR_KEYWORD)
        self._known = frozenset(each.name for each in own if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL))
        self._needed = frozenset(each.name for each in own if each.name in self._known and each.default is each.empty)

    def bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What is sent for a call: the arguments that were given, by name, or the one noun that the verb takes."""
        if self.method.whole and len(args) == 1 and not kwargs:
            return args[0]
        given = dict(zip(self._in_order, args, strict=False)) | kwargs
        once = len(args) <= len(self._in_order) and len(given) == len(args) + len(kwargs)
        if not (once and self._needed <= given.keys() <= self._known):
            given = self._bound_slowly(args, kwargs)
        return next(iter(given.values())) if self.method.whole else given

    def _bound_slowly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """As the language does it, which knows every kind of parameter and says well what is wrong with a call."""
        given = self.signature.bind(None, *args, **kwargs).arguments
        given.pop("self")
        for name, parameter in self.signature.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD and name in given:
                given |= given.pop(name)
        return given


def verbs_of(part: str, kind: type) -> dict[str, Verb]:
    """The verbs of a part that can be called over the wire."""
    return {verb: Verb(method, inspect.signature(getattr(kind, verb))) for verb, method in of_part(part).items()}


class RemotePart:
    """One part of a kernel that is elsewhere."""

    def __init__(self, part: str, kind: type, send: Send) -> None:
        self._send = send
        self._part = part
        self._verbs = verbs_of(part, kind)

    def __getattr__(self, verb: str) -> Any:
        """A verb of this part; made when it is first used."""
        found = self.__dict__.get("_verbs", {}).get(verb)
        if found is None:
            raise AttributeError(f"{self.__dict__.get('_part', 'a part')} has no verb {verb!r} over the wire")

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._send(found.method, found.bound(args, kwargs))

        call.__name__, call.__doc__ = verb, found.method.sentence
        call.__signature__ = _without_self(found.signature)  # type: ignore[attr-defined]  # as inspect reads it
        setattr(self, verb, call)
        return call


def _without_self(signature: inspect.Signature) -> inspect.Signature:
    return signature.replace(parameters=list(signature.parameters.values())[1:])


class RemoteQueue(RemotePart):
    """The queue. Its own claims are strict, whatever policy the daemon follows."""

    def __init__(self, send: Send) -> None:
        super().__init__("queue", Queue, send)
        for verb in ("claim", "complete_and_claim"):
            self._verbs[verb] = Verb(METHODS[f"kernel.sched.{verb}"], inspect.signature(getattr(Queue, verb)))

        def strictly(method: Method, params: Any) -> Any:
            claims = method.part == "desk"
            return send(method, {**params, "policy": "strict"} if claims else params)

        self._send = strictly


class RemoteJournal(RemotePart):
    """The journal. Whoever follows it asks again and again, and each time waits for an answer."""

    def __init__(self, send: Send) -> None:
        super().__init__("journal", Journal, send)

    def wait(self, since: int, wait_s: float) -> int:
        """Wait until something was recorded after `since`, or until the time has passed; the cursor is the answer."""
        self._send(METHODS["kernel.event.tail"], {"since": since, "limit": 1, "wait_s": wait_s})
        return int(self.cursor())

    def record(self, fact: Fact, *, pid: int | None = None) -> int:
        """Record a fact about running work."""
        said = {"kind": fact.kind, "payload": msgspec.to_builtins(fact), "pid": pid}
        return int(self._send(METHODS["kernel.event.record"], said))

    def follow(self, since: int | None = None, *, wait_s: float | None = None) -> Iterator[Event]:
        """Events as they are committed, from a cursor or from now on; ends when nothing came for `wait_s`."""
        cursor = self.cursor() if since is None else since
        tail = METHODS["kernel.event.tail"]
        left_s = wait_s
        while left_s is None or left_s > 0:
            ask_s = POLL_S if left_s is None else min(left_s, POLL_S)
            events = self._send(tail, {"since": cursor, "wait_s": ask_s})
            if events:
                yield from events
                cursor, left_s = events[-1].event_id, wait_s
            elif left_s is not None:
                left_s -= ask_s

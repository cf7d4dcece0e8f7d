"""The threads of a simulation: how long they work, and what they do next.

A thread is a small state machine with one question: *your work is finished, what next?* It returns the instant at which
its sleep ends, or `CALL` (call a server), or `REPLY`. (A hog never finishes.)
"""

from __future__ import annotations

import random
from collections import deque
from functools import cache
from typing import TypeAlias

from rota.sim.scenario import DurationUs, ThreadSpec

__all__ = [
    "CALL",
    "ENDLESS",
    "REPLY",
    "CallerThread",
    "HogThread",
    "PeriodicThread",
    "ServerThread",
    "SimThread",
    "SleeperThread",
    "make_thread",
]

US = 1_000
ENDLESS = 1 << 62  # ns of work: longer than any simulation

CALL, REPLY = -1, -2  # actions other than a sleep
NextAction: TypeAlias = int  # the instant in ns at which a sleep ends, or one of the actions above
DurationRange: TypeAlias = tuple[int, int]  # the shortest in microseconds, and how many values there are


@cache  # shared by the threads of one table
def _duration_range(span: DurationUs) -> DurationRange:
    return (span, 1) if isinstance(span, int) else (span[0], span[1] - span[0] + 1)


class SimThread:
    """A thread and what was observed of it."""

    __slots__ = (
        "_random",
        "entity",
        "latencies",
        "name",
        "remaining_ns",
        "responses",
        "started_at_ns",
        "woken_at_ns",
    )

    begins_when_run = False  # a server's activation begins when it gets a core

    def __init__(self, name: str, entity: int, rng: random.Random) -> None:
        self.name = name
        self.entity = entity
        self._random = rng.random
        self.remaining_ns = 0  # remaining work
        self.started_at_ns = 0  # when it last started
        self.woken_at_ns: int | None = None  # None once it has run
        self.latencies: list[int] = []  # from waking to running, ns
        self.responses: list[int] = []  # from request to completion, ns

    def begin(self, now: int) -> None:
        """Start a new activation."""
        raise NotImplementedError

    def done(self, now: int) -> NextAction:
        """The work is finished: return the next action."""
        raise NotImplementedError

    def draw(self, lengths: DurationRange) -> int:
        """Return a duration in ns, drawn from the range in whole microseconds."""
        low, count = lengths
        return (low + int(self._random() * count)) * US


class HogThread(SimThread):
    """Works without end."""

    __slots__ = ()

    def begin(self, _now: int) -> None:
        """Work without end."""
        self.remaining_ns = ENDLESS

    def done(self, now: int) -> NextAction:
        """Never happens."""
        raise AssertionError(f"{self.name} finished at {now}")


class SleeperThread(SimThread):
    """Works, sleeps and works again."""

    __slots__ = ("_rest_ns", "_sleep", "_work")

    def __init__(self, name: str, entity: int, rng: random.Random, *, work: DurationUs, sleep: DurationUs) -> None:
        super().__init__(name, entity, rng)
        self._work, self._sleep = _duration_range(work), _duration_range(sleep)
        self._rest_ns = 0

    def begin(self, _now: int) -> None:
        """Draw the work and the following sleep."""
        random = self._random
        shortest_us, count = self._work
        self.remaining_ns = (shortest_us + int(random() * count)) * US
        shortest_us, count = self._sleep
        self._rest_ns = (shortest_us + int(random() * count)) * US

    def done(self, now: int) -> NextAction:
        """Sleep."""
        return now + self._rest_ns


class PeriodicThread(SimThread):
    """Has new work every period, even if the last is not finished."""

    __slots__ = ("_every_ns", "_requested_at_ns", "_work")

    def __init__(self, name: str, entity: int, rng: random.Random, *, work: DurationUs, every_us: int) -> None:
        super().__init__(name, entity, rng)
        self._work, self._every_ns = _duration_range(work), every_us * US
        self._requested_at_ns: int | None = None

    def begin(self, now: int) -> None:
        """Start the work of the next period."""
        self._requested_at_ns = now if self._requested_at_ns is None else self._requested_at_ns + self._every_ns
        self.remaining_ns = self.draw(self._work)

    def done(self, now: int) -> NextAction:
        """Wait for the next period; if it has begun, continue immediately."""
        asked_at_ns = self._requested_at_ns or 0
        self.responses.append(now - asked_at_ns)
        return max(now, asked_at_ns + self._every_ns)


class ServerThread(SimThread):
    """Works when it is called, for as long as each caller requests."""

    __slots__ = ("requests",)
    begins_when_run = True

    def __init__(self, name: str, entity: int, rng: random.Random) -> None:
        super().__init__(name, entity, rng)
        self.requests: deque[tuple[int, int]] = deque()  # calls not started yet: caller, work in ns

    def begin(self, _now: int) -> None:
        """Start the oldest call. If its caller ended before it was started, there is nothing to do but to reply."""
        _, self.remaining_ns = self.requests.popleft() if self.requests else (0, 0)

    def forget(self, caller: int) -> None:
        """Drop the calls of a caller that ended."""
        self.requests = deque(one for one in self.requests if one[0] != caller)

    def done(self, _now: int) -> NextAction:
        """Reply."""
        return REPLY


class CallerThread(SimThread):
    """Works, calls a server, and sleeps."""

    __slots__ = ("_called_at_ns", "_serve", "_sleep", "_work", "server")

    def __init__(
        self, name: str, entity: int, rng: random.Random, *, work: DurationUs, serve: DurationUs, sleep: DurationUs
    ) -> None:
        super().__init__(name, entity, rng)
        self._work, self._serve, self._sleep = _duration_range(work), _duration_range(serve), _duration_range(sleep)
        self.server: ServerThread | None = None
        self._called_at_ns: int | None = None  # None: not yet in this activation

    def begin(self, _now: int) -> None:
        """Start with its own work."""
        self._called_at_ns = None
        self.remaining_ns = self.draw(self._work)

    def done(self, now: int) -> NextAction:
        """Call the server, and after the reply sleep."""
        if self._called_at_ns is None and self.server is not None:
            self._called_at_ns = now
            self.server.requests.append((self.entity, self.draw(self._serve)))
            return CALL
        self.responses.append(now - (self._called_at_ns or now))
        return now + self.draw(self._sleep)


def make_thread(spec: ThreadSpec, name: str, entity: int, rng: random.Random) -> SimThread:
    """Return the thread that a table of the scenario describes."""
    if spec.kind == "hog":
        return HogThread(name, entity, rng)
    if spec.kind == "server":
        return ServerThread(name, entity, rng)
    work = _required(spec.work_us)
    if spec.kind == "periodic":
        return PeriodicThread(name, entity, rng, work=work, every_us=spec.every_us or 1)
    if spec.kind == "sleeper":
        return SleeperThread(name, entity, rng, work=work, sleep=_required(spec.sleep_us))
    return CallerThread(name, entity, rng, work=work, serve=_required(spec.serve_us), sleep=_required(spec.sleep_us))


def _required(span: DurationUs | None) -> DurationUs:
    """Return a field that a checked scenario always has."""
    if span is None:
        raise AssertionError("the scenario was not checked")
    return span

"""What the threads of a simulation do: how long they work, and what comes then.

A thread is a small state machine that is asked one thing only: *your stretch of work is done, what now?* The
answer is an instant to sleep until, or `CALL` (a server), or `REPLY`. (A hog is never asked.)
"""

from __future__ import annotations

import random
from collections import deque
from functools import cache
from typing import TypeAlias

from rota.sim.scenario import Span, ThreadSpec

__all__ = ["CALL", "ENDLESS", "REPLY", "Caller", "Hog", "Periodic", "Server", "Sleeper", "Thread", "make_thread"]

US = 1_000
ENDLESS = 1 << 62  # ns of work: more than any simulation lasts

CALL, REPLY = -1, -2  # what comes then, if it is no sleep
Then: TypeAlias = int  # the instant in ns at which a sleep ends, or one of these
Lengths: TypeAlias = tuple[int, int]  # the shortest in microseconds, and how many there are to draw from


@cache  # the threads of one table share theirs, so that it is at hand whoever wakes
def _lengths(span: Span) -> Lengths:
    return (span, 1) if isinstance(span, int) else (span[0], span[1] - span[0] + 1)


class Thread:
    """One thread: what it does, and what was seen of it."""

    __slots__ = (
        "_random",
        "entity",
        "latencies",
        "left_ns",
        "name",
        "responses",
        "started_at_ns",
        "woken_at_ns",
    )

    begins_when_run = False  # a server's activation begins when it is given a core

    def __init__(self, name: str, entity: int, chance: random.Random) -> None:
        self.name = name
        self.entity = entity
        self._random = chance.random
        self.left_ns = 0  # of the stretch under way
        self.started_at_ns = 0  # when it was last given a core
        self.woken_at_ns: int | None = None  # None once it has run
        self.latencies: list[int] = []  # from waking to running, ns
        self.responses: list[int] = []  # from being asked to being done, ns

    def begin(self, now: int) -> None:
        """A sleep is over: a new activation begins."""
        raise NotImplementedError

    def done(self, now: int) -> Then:
        """A stretch of work is done: what comes then."""
        raise NotImplementedError

    def draw(self, lengths: Lengths) -> int:
        """A length of time in ns, drawn if it is a range; in whole microseconds."""
        low, count = lengths
        return (low + int(self._random() * count)) * US


class Hog(Thread):
    """Never stops by itself."""

    __slots__ = ()

    def begin(self, _now: int) -> None:
        """It works for ever."""
        self.left_ns = ENDLESS

    def done(self, now: int) -> Then:
        """Not in this world."""
        raise AssertionError(f"{self.name} came to an end at {now}")


class Sleeper(Thread):
    """Works, sleeps and works again."""

    __slots__ = ("_rest_ns", "_sleep", "_work")

    def __init__(self, name: str, entity: int, chance: random.Random, *, work: Span, sleep: Span) -> None:
        super().__init__(name, entity, chance)
        self._work, self._sleep = _lengths(work), _lengths(sleep)
        self._rest_ns = 0

    def begin(self, _now: int) -> None:
        """Work for a while, then sleep; both are drawn now, while the generator is at hand."""
        random = self._random
        shortest_us, count = self._work
        self.left_ns = (shortest_us + int(random() * count)) * US
        shortest_us, count = self._sleep
        self._rest_ns = (shortest_us + int(random() * count)) * US

    def done(self, now: int) -> Then:
        """Sleep for a while."""
        return now + self._rest_ns


class Periodic(Thread):
    """Is asked for its work every so often, whether it is done with the last or not."""

    __slots__ = ("_asked_at_ns", "_every_ns", "_work")

    def __init__(self, name: str, entity: int, chance: random.Random, *, work: Span, every_us: int) -> None:
        super().__init__(name, entity, chance)
        self._work, self._every_ns = _lengths(work), every_us * US
        self._asked_at_ns: int | None = None

    def begin(self, now: int) -> None:
        """The next period's work."""
        self._asked_at_ns = now if self._asked_at_ns is None else self._asked_at_ns + self._every_ns
        self.left_ns = self.draw(self._work)

    def done(self, now: int) -> Then:
        """Wait for the next period; if that has begun already, go on at once."""
        asked_at_ns = self._asked_at_ns or 0
        self.responses.append(now - asked_at_ns)
        return max(now, asked_at_ns + self._every_ns)


class Server(Thread):
    """Works when it is called, for as long as each caller asks."""

    __slots__ = ("asked",)
    begins_when_run = True

    def __init__(self, name: str, entity: int, chance: random.Random) -> None:
        super().__init__(name, entity, chance)
        self.asked: deque[tuple[int, int]] = deque()  # calls that were made and not begun: who, work in ns

    def begin(self, _now: int) -> None:
        """Take up the call that came first."""
        _, self.left_ns = self.asked.popleft()

    def forget(self, caller: int) -> None:
        """Whoever asked is gone."""
        self.asked = deque(one for one in self.asked if one[0] != caller)

    def done(self, _now: int) -> Then:
        """Answer."""
        return REPLY


class Caller(Thread):
    """Works, calls a server, and sleeps."""

    __slots__ = ("_called_at_ns", "_serve", "_sleep", "_work", "server")

    def __init__(self, name: str, entity: int, chance: random.Random, *, work: Span, serve: Span, sleep: Span) -> None:
        super().__init__(name, entity, chance)
        self._work, self._serve, self._sleep = _lengths(work), _lengths(serve), _lengths(sleep)
        self.server: Server | None = None
        self._called_at_ns: int | None = None  # None: it has not called in this activation

    def begin(self, _now: int) -> None:
        """Work for a while first."""
        self._called_at_ns = None
        self.left_ns = self.draw(self._work)

    def done(self, now: int) -> Then:
        """First the call, then the sleep."""
        if self._called_at_ns is None and self.server is not None:
            self._called_at_ns = now
            self.server.asked.append((self.entity, self.draw(self._serve)))
            return CALL
        self.responses.append(now - (self._called_at_ns or now))
        return now + self.draw(self._sleep)


def make_thread(spec: ThreadSpec, name: str, entity: int, chance: random.Random) -> Thread:
    """The thread that a table of the scenario describes."""
    if spec.kind == "hog":
        return Hog(name, entity, chance)
    if spec.kind == "server":
        return Server(name, entity, chance)
    work = _given(spec.work_us)
    if spec.kind == "periodic":
        return Periodic(name, entity, chance, work=work, every_us=spec.every_us or 1)
    if spec.kind == "sleeper":
        return Sleeper(name, entity, chance, work=work, sleep=_given(spec.sleep_us))
    return Caller(name, entity, chance, work=work, serve=_given(spec.serve_us), sleep=_given(spec.sleep_us))


def _given(span: Span | None) -> Span:
    """A length of time that this kind of thread must have: the scenario was checked for it."""
    if span is None:
        raise AssertionError("a scenario is simulated that was not checked")
    return span

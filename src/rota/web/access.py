"""Who looks: an access is a connection to the scheduler API with the rights of one caller.

People who sign in with the same token share one access: one connection pool, one follower of the journal, and one
answer for what several of their pages ask in the same moment. Two tokens never share anything, so what a page shows is
what the daemon gives to that token. `allow` decides which buttons a page has; the daemon decides again on every call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

from rota.clock import SystemClock
from rota.errors import Forbidden
from rota.rpc import CallerRights
from rota.service import SchedulerApi, SystemApi
from rota.web.feed import Feed

__all__ = ["CallerAccess", "DashboardApi", "Opener"]

READERS_MAX = 8  # calls of one access at the same time
CACHED_MAX = 512  # answers that are kept until the next update
SLOW_MAX = 64  # answers that are used for a while; beyond, old ones are dropped
T = TypeVar("T")


class DashboardApi(SchedulerApi, SystemApi, Protocol):
    """What pages call: the scheduler API, with `show` and `explain`."""


Opener: TypeAlias = Callable[[str | None], DashboardApi]  # opens the API with a token, or with the process's own rights


class CallerAccess:
    """The scheduler API with the rights of one caller, for all pages of that caller."""

    def __init__(self, api: DashboardApi, rights: CallerRights, name: str) -> None:
        self.api = api
        self.rights = rights
        self.name = name
        self.feed = Feed(api, name)
        self._threads = ThreadPoolExecutor(READERS_MAX, thread_name_prefix=f"rota-web-{name}")
        self._answers: dict[Any, asyncio.Future[Any]] = {}
        self._answers_of = -1  # the update that they belong to
        self._slow: dict[Any, tuple[float, int, asyncio.Future[Any]]] = {}  # with their end, and their update
        self._clock = SystemClock()

    async def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Make a call on another thread, so that no page waits for another page's call."""
        self.feed.calls += 1
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(function, *args, **kwargs))

    async def read(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Make a call that only reads; pages that ask the same within one update share the answer."""
        if self._answers_of != self.feed.generation or len(self._answers) >= CACHED_MAX:
            self._answers, self._answers_of = {}, self.feed.generation
        key = _key(function, args, kwargs)
        found = self._answers.get(key)
        if found is None:
            found = self._answers[key] = self._begin(function, args, kwargs)
        answer: T = await asyncio.shield(found)
        return answer

    async def read_every(self, age_s: float, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Like `read`, for what costs more or changes slowly: an answer is used for `age_s`, or until a `touch`."""
        key, now = (self.feed.touches, _key(function, args, kwargs)), self._clock.monotonic()
        if len(self._slow) >= SLOW_MAX:
            self._slow = {known: kept for known, kept in self._slow.items() if kept[0] > now}
        until, update, found = self._slow.get(key, (0.0, -1, None))
        is_old = now >= until and update != self.feed.generation
        if found is None or is_old or (found.done() and found.exception() is not None):
            found = self._begin(function, args, kwargs)
            self._slow[key] = (now + age_s, self.feed.generation, found)
        answer: T = await asyncio.shield(found)
        return answer

    def _begin(self, function: Callable[..., T], args: Any, kwargs: Any) -> asyncio.Future[T]:
        begun = asyncio.ensure_future(self.call(function, *args, **kwargs))
        begun.add_done_callback(_observed)
        return begun

    async def read_if_allowed(self, method: str, function: Callable[..., T], *args: Any, **kwargs: Any) -> T | None:
        """Like `read`, but None where the method is refused to this caller."""
        if not self.rights.allow(method):
            return None
        try:
            return await self.read(function, *args, **kwargs)
        except Forbidden:
            return None

    def close(self) -> None:
        """Stop following, and close the connection."""
        self.feed.stop()
        self.api.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _key(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function, args, tuple(sorted(kwargs.items()))


def _observed(done: asyncio.Future[Any]) -> None:
    """Take the error of a call that no page waits for any more."""
    if not done.cancelled():
        done.exception()

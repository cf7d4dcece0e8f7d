"""Ending what a caller waits for, as soon as it loses its rights.

A call is authorized when it comes. One that then waits, or a stream of events, may outlive its caller's rights: the
access token is revoked or expires, or the run that it belongs to ends. Every such call is watched here. A caller is
checked again when tokens change, when its own run may have ended, and when its token or its run's claim expires.
Callers that cannot lose their rights (the daemon's own user) are not watched and cost nothing.

Everything here runs in the event loop, except the notices that tokens have changed or a run has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from rota.clock import Clock
from rota.errors import RotaError
from rota.rpc.authorization import Principal
from rota.rpc.tokens import AccessTokens

__all__ = ["EndedRights"]

CHECK_EVERY_S = (0.01, 5.0)  # what expires is checked then, but not more often, and not less: the clock may jump

End = Callable[[RotaError], None]


class _Watched(NamedTuple):
    principal: Principal
    end: End
    unwatch_run: Callable[[], None] | None


class EndedRights:
    """The callers that wait, and how to end their waiting."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, tokens: AccessTokens, clock: Clock, *, deliver: Callable[..., None]
    ) -> None:
        self._loop = loop
        self._tokens = tokens
        self._clock = clock
        self._deliver = deliver  # from any thread: call this in the loop
        self._watched: dict[object, _Watched] = {}
        self._timer: asyncio.TimerHandle | None = None
        tokens.on_change(self._tokens_changed)

    def _tokens_changed(self) -> None:
        if self._watched:
            self._deliver(self._check_all, None)

    def watch(self, principal: Principal, end: End) -> Callable[[], None]:
        """Call `end` with the error when the principal has lost its rights; the returned function ends that."""
        key = object()
        unwatch_run = None
        if principal.run is not None:
            unwatch_run = self._tokens.watch_run(principal.run, partial(self._deliver, self._check, key))
        self._watched[key] = _Watched(principal, end, unwatch_run)
        self._loop.call_soon(self._check, key)  # not before the caller has what this returns
        return partial(self._forget, key)

    def _forget(self, key: object) -> None:
        watched = self._watched.pop(key, None)
        if watched is not None and watched.unwatch_run is not None:
            watched.unwatch_run()

    def _check_all(self, _none: None = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for key in list(self._watched):
            self._check(key)

    def _check(self, key: object) -> None:
        """End what a caller waits for if its rights have ended; else check it again when they expire."""
        watched = self._watched.get(key)
        if watched is None:
            return
        try:
            expires_at = self._tokens.check(watched.principal)
        except RotaError as error:
            self._forget(key)
            watched.end(error)
            return
        if expires_at is not None:
            soonest_s, latest_s = CHECK_EVERY_S
            self._check_within(max(soonest_s, min(expires_at - self._clock.now(), latest_s)))

    def _check_within(self, delay_s: float) -> None:
        at = self._loop.time() + delay_s
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._check_all)

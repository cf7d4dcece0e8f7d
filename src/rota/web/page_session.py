"""What a page gets: the API with its caller's rights, live updates, and a way to act that reports what happened."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import msgspec
from nicegui import Client, ui
from starlette.requests import Request

from rota.errors import Forbidden, RotaError, StoreUnavailable
from rota.web.access import DashboardApi
from rota.web.feed import Feed
from rota.web.sessions import WebSession

__all__ = ["Build", "PageSession", "Refresh", "WebPage"]

T = TypeVar("T")
Refresh: TypeAlias = Callable[[], Awaitable[None]]


class PageSession:
    """One open page of one signed-in browser."""

    def __init__(self, session: WebSession, client: Client, request: Request, store: str) -> None:
        self.session = session
        self.access = session.access
        self.client = client
        self.request = request
        self.store = store
        self._refreshes: list[Refresh] = []
        self._is_drawing = False
        self._is_stale = False
        self._is_behind = False  # whether there was an update before its browser was connected
        self._show_problem: Callable[[str], None] = _ignore

    @property
    def api(self) -> DashboardApi:
        """The scheduler API. Its calls wait, so pages make them through `read` and `act`."""
        return self.access.api

    @property
    def feed(self) -> Feed:
        """The journal's last events, folded."""
        return self.access.feed

    @property
    def caller(self) -> str:
        """Who acts, as the journal names it."""
        return self.access.rights.caller

    def may(self, method: str, *fields: str) -> bool:
        """Return whether the caller may call a method and set these of its fields: no button without it."""
        return self.access.rights.allow(method, *fields)

    def command(self, words: str) -> str:
        """Return a command to paste, for this store."""
        return words if self.store == "rota.db" else f"{words} --store {shlex.quote(self.store)}"

    @property
    def fleet_command(self) -> str:
        """The command that runs a fleet on this store, which is named in the fleet's file."""
        command = "rota run fleet.toml"
        return command if self.store == "rota.db" else f'{command}  # in it: store = "{self.store}"'

    def query(self, name: str, default: str = "") -> str:
        """Return a field of the page's address."""
        return self.request.query_params.get(name, default)

    def path(self, name: str) -> str:
        """Return a part of the page's path."""
        return str(self.request.path_params[name])

    # --- reading ---------------------------------------------------------------------------------

    async def read(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a function of the API that reads; pages that ask the same in one update share the answer."""
        return await self.access.read(function, *args, **kwargs)

    async def read_if_allowed(self, method: str, function: Callable[..., T], *args: Any, **kwargs: Any) -> T | None:
        """Like `read`; None where this caller may not call the method."""
        return await self.access.read_if_allowed(method, function, *args, **kwargs)

    async def read_every(self, age_s: float, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Like `read`, for what costs more or changes slowly: an answer is used for `age_s`."""
        return await self.access.read_every(age_s, function, *args, **kwargs)

    # --- live ------------------------------------------------------------------------------------

    def live(self, refresh: Refresh) -> None:
        """Call this function when the page is built, and whenever something has changed since."""
        self._refreshes.append(refresh)

    async def start(self, show_problem: Callable[[str], None]) -> None:
        """Draw the page for the first time, and follow the feed until its browser is gone."""
        self._show_problem = show_problem
        await self.refresh()
        self.feed.subscribe(self._update)
        self.client.on_connect(self._catch_up)
        self.client.on_delete(lambda: self.feed.unsubscribe(self._update))

    async def refresh(self) -> None:
        """Draw what is live again. While it is being drawn, another wish is kept for afterwards."""
        if self._is_drawing:
            self._is_stale = True
            return
        self._is_drawing = True
        try:
            self._is_stale = False
            for refresh in self._refreshes:
                await refresh()
            self._show_problem("")
        except StoreUnavailable as problem:
            self._show_problem(problem.message)
        except RotaError as problem:
            self._show_problem(str(problem))
        finally:
            self._is_drawing = False
        if self._is_stale:
            await self.refresh()

    async def _update(self) -> None:
        if self.client.is_deleted:
            return
        self._is_behind = not self.client.has_socket_connection
        if self._is_behind:
            return
        with self.client:
            if self.feed.status == "ended":
                self.client.open("/login")
            else:
                await self.refresh()

    async def _catch_up(self) -> None:
        """Draw what was missed: without events, the next update is `IDLE_S` away."""
        if self._is_behind:
            await self._update()

    # --- acting ----------------------------------------------------------------------------------

    async def act(self, method: str, words: str, function: Callable[..., T], *args: Any, **kwargs: Any) -> T | None:
        """Make a call that changes something, say what happened, and update the pages; None if it failed.

        `words` say what was done, such as "entry 7 is retried". The daemon checks the caller's rights again.
        """
        try:
            if not self.may(method):
                raise Forbidden(f"{self.caller} may not call {method}")
            result = await self.access.call(function, *args, **kwargs)
        except RotaError as problem:
            self.say_problem(problem)
            return None
        self.say(words)
        self.feed.touch()
        return result

    def say(self, words: str) -> None:
        """Show a short message."""
        with self.client:
            ui.notify(words, position="bottom", timeout=4_000, classes="note tone-good")

    def say_problem(self, problem: RotaError) -> None:
        """Show an error with what to do about it."""
        with self.client:
            text = str(problem)
            ui.notify(
                text, position="bottom", timeout=10_000, multi_line=True, close_button="OK", classes="note tone-bad"
            )


def _ignore(_text: str) -> None:
    pass


Build: TypeAlias = Callable[[PageSession], Awaitable[None]]


class WebPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page: its address, and the function that builds it."""

    path: str
    title: str
    build: Build
    icon: str = ""  # in the navigation; empty: the page is not there
    key: str = ""  # after "g", opens the page
    needs: str = ""  # a method that a caller must be allowed to call; others do not see the page

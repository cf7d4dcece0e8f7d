"""The live feed and the access behind pages, in this process: what is coalesced, shared and allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from rota import store
from rota.errors import Forbidden, RotaError
from rota.kernel import Kernel
from rota.model.work import ScheduleSpec
from rota.rpc import METHODS, SCOPES, CallerRights
from rota.rpc.authorization import Principal, authorize
from rota.rpc.methods import Scope
from rota.service import Dispatcher
from rota.web import feed as web_feed
from rota.web.access import CallerAccess
from rota.web.feed import EVENTS_KEPT, Feed
from rota.web.page_session import PageSession
from rota.web.sessions import FAILURES_MAX, Sessions
from tests.web.harness import PATIENCE_S

T = TypeVar("T")


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Dispatcher]:
    kernel = Kernel(store.open(str(tmp_path / "rota.db")))
    dispatcher = Dispatcher(kernel)
    yield dispatcher
    dispatcher.close()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a thread of its own: playwright's event loop may be open in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result(PATIENCE_S)


async def until(happened: asyncio.Event) -> None:
    await asyncio.wait_for(happened.wait(), PATIENCE_S)


def test_a_burst_of_events_is_a_few_updates_and_all_of_them_are_folded(api: Dispatcher) -> None:
    burst = 3_000

    async def watch() -> tuple[int, int, int]:
        feed, done, updates = Feed(api, "test"), asyncio.Event(), 0
        pid = api.agents.create("bursts")

        async def listener() -> None:
            nonlocal updates
            updates += 1
            if feed.state is not None and feed.state.enqueued >= burst:
                done.set()

        def enqueue() -> None:
            for _ in range(burst // 100):
                for _ in range(10):
                    api.queue.enqueue_many([ScheduleSpec(pid=pid)] * 10)

        feed.subscribe(listener)
        await asyncio.to_thread(enqueue)
        await until(done)
        feed.stop()
        assert feed.state is not None
        return feed.state.enqueued, updates, len(feed.events)

    enqueued, updates, kept = run(watch())
    assert enqueued == burst
    assert updates < burst // 100, "updates are per moment, not per event"
    assert kept <= EVENTS_KEPT


def test_a_page_that_fails_is_logged_once_and_does_not_end_the_updates_of_others(
    api: Dispatcher, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_feed, "TICK_S", 0.0)

    async def watch() -> None:
        feed, done, fails = Feed(api, "test"), asyncio.Event(), 0

        async def broken() -> None:
            nonlocal fails
            fails += 1
            feed.touch()  # the next update follows at once
            raise RuntimeError("a page")

        async def healthy() -> None:
            if feed.status == "live" and fails >= 3:
                done.set()

        feed.subscribe(broken)
        feed.subscribe(healthy)
        await until(done)
        feed.unsubscribe(broken)
        assert not feed._faults.is_failing  # a page that is closed is forgotten
        feed.stop()

    run(watch())
    assert caplog.messages == ["a page could not be updated: unexpected error"]


class FakeClient:
    """A browser's page as the toolkit has it, before and after the browser is connected."""

    is_deleted = False

    def __init__(self) -> None:
        self.has_socket_connection = False
        self.connected: list[Callable[[], Awaitable[None]]] = []

    def on_connect(self, handler: Callable[[], Awaitable[None]]) -> None:
        self.connected.append(handler)

    def on_delete(self, handler: Callable[[], None]) -> None:
        """The page stays."""

    def __enter__(self) -> None:
        """Nothing is built."""

    def __exit__(self, *error: object) -> None:
        """Nothing was built."""


def test_an_update_before_the_browser_is_connected_is_drawn_when_it_is(api: Dispatcher) -> None:
    drawn: list[str] = []

    async def watch() -> None:
        access = CallerAccess(api, CallerRights(), "test")  # type: ignore[arg-type]  # it reads nothing of it
        client, updated = FakeClient(), asyncio.Event()
        page = PageSession(SimpleNamespace(access=access), client, None, "rota.db")  # type: ignore[arg-type]  # a page

        async def draw() -> None:
            drawn.append(access.feed.status)

        async def note() -> None:
            if access.feed.status == "live":
                updated.set()

        page.live(draw)
        await page.start(lambda _: None)
        access.feed.subscribe(note)
        await until(updated)
        assert drawn == ["connecting"]
        client.has_socket_connection = True
        for _ in range(2):  # the second time, nothing was missed
            for handler in client.connected:
                await handler()
            assert drawn == ["connecting", "live"]
        access.feed.stop()

    run(watch())


def test_pages_share_one_answer_within_an_update_and_ask_again_after_a_change(api: Dispatcher) -> None:
    calls: list[int] = []

    def ask(number: int) -> int:
        calls.append(number)
        return number

    async def read() -> None:
        access = CallerAccess(api, CallerRights(), "test")  # type: ignore[arg-type]  # it reads nothing of it
        answers = await asyncio.gather(*(access.read(ask, 1) for _ in range(20)), access.read(ask, 2))
        assert answers == [*[1] * 20, 2]
        assert sorted(calls) == [1, 2]
        access.feed.touch()
        await access.read(ask, 1)
        assert sorted(calls) == [1, 1, 2]
        await access.read_every(3_600.0, ask, 3)
        access.feed.generation += 1  # another update
        await access.read_every(3_600.0, ask, 3)
        assert calls.count(3) == 1
        access.feed.touch()
        await access.read_every(3_600.0, ask, 3)
        assert calls.count(3) == 2
        access.feed.stop()

    run(read())


def test_an_error_is_not_kept(api: Dispatcher) -> None:
    async def read() -> None:
        access = CallerAccess(api, CallerRights(), "test")  # type: ignore[arg-type]  # it reads nothing of it
        failures = iter((Forbidden("no"), None))

        def ask() -> str:
            if (problem := next(failures)) is not None:
                raise problem
            return "yes"

        with pytest.raises(Forbidden):
            await access.read_every(3_600.0, ask)
        assert await access.read_every(3_600.0, ask) == "yes"

    run(read())


@pytest.mark.parametrize("projects", [None, ("mine",)], ids=["all projects", "one project"])
@pytest.mark.parametrize("scope", SCOPES)
def test_buttons_follow_the_same_rules_as_the_daemon(scope: Scope, projects: tuple[str, ...] | None) -> None:
    """For every method: a page offers it exactly if the daemon would accept the call of this caller."""
    rights = CallerRights(scope, projects)
    bound = None if projects is None else frozenset(projects)
    principal = Principal(name="someone", scope=scope, projects=bound)
    for name, method in METHODS.items():
        for field in (None, *method.operate_fields):
            defaults = {each: object() if each == field else value for each, value in method.operate_defaults.items()}
            params = type("Params", (), defaults)
            try:
                authorize(principal, method, params)
                accepted = True
            except RotaError:
                accepted = False
            assert rights.allow(name, *([] if field is None else [field])) is accepted, (name, field)


def test_wrong_links_are_slowed_down_and_the_right_one_works_once() -> None:
    keys: list[str] = []

    class Api:
        def close(self) -> None:
            pass

    async def sign_in() -> None:
        sessions = Sessions(lambda _: Api(), keys.append)  # type: ignore[arg-type,return-value]  # nothing is asked of it
        sessions.new_link()
        session = await sessions.open_link(keys[-1], "a")
        assert sessions.find(session.session_id) is session
        assert len(keys) == 2
        for _ in range(FAILURES_MAX):
            with pytest.raises(RotaError, match="used already"):
                await sessions.open_link(keys[0], "b")
        with pytest.raises(RotaError, match="too many wrong sign-ins"):
            await sessions.open_link(keys[1], "b")
        await sessions.open_link(keys[1], "c")  # others are not slowed down
        sessions.end(session)
        assert sessions.find(session.session_id) is None
        sessions.close()

    run(sign_in())

"""What open pages cost the daemon: as many calls with four pages of a kind as with one. Counted at the daemon's door.

A proxy stands between the web process and the daemon and counts the requests by method. The overview asks for the
counts of entries once in every update, so calls are compared with that: how fast the machine is does not matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import HTTPCookieProcessor, build_opener

import msgspec
import pytest

from bench.web_pages import OpenPage
from rota.rpc import Client
from rota.store.socket_paths import socket_path
from rota.web.feed import CALLS_S_MAX, IDLE_S, TICK_S, rest_s
from tests.web.harness import PATIENCE_S, Board, World
from tests.web.made import agent, queued, running

UPDATE = "kernel.sched.counts"  # once per update
PACED = "kernel.event.tail"  # one follower for all pages asks for events by time, not by update
UPDATES = 3
QUIET_S = 0.25  # without a call: the pages show what there is
LINE_MAX = 1 << 24


class Proxy:
    """Passes on what clients of a daemon send, and counts the methods."""

    def __init__(self, socket: str, target: str) -> None:
        self.address = f"unix:{socket}"
        self.calls: Counter[str] = Counter()
        self._socket, self._target = socket, target
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._is_ready.wait(PATIENCE_S)

    async def _run(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with await asyncio.start_unix_server(self._serve, self._socket, limit=LINE_MAX):
            self._is_ready.set()
            await self._end.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with socket_path(self._target) as target:
            answers, requests = await asyncio.open_unix_connection(target, limit=LINE_MAX)
        try:
            await asyncio.gather(self._pass_on(reader, requests, self._count), self._pass_on(answers, writer))
        finally:
            requests.close()
            writer.close()

    def _count(self, line: bytes) -> None:
        with contextlib.suppress(msgspec.DecodeError):
            found = msgspec.json.decode(line)
            self.calls.update(each.get("method", "") for each in (found if isinstance(found, list) else [found]))

    @staticmethod
    async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, look: object = None) -> None:
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                if callable(look):
                    look(line)
                writer.write(line)
                await writer.drain()
        writer.close()

    def stop(self) -> None:
        """End it."""
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(PATIENCE_S)


@pytest.fixture
def proxy(world: World, socket_folder: Path) -> Iterator[Proxy]:
    made = Proxy(str(socket_folder / "proxy.sock"), world.socket)
    yield made
    made.stop()


@contextlib.asynccontextmanager
async def open_pages(url: str, cookie: str, paths: list[str]) -> AsyncIterator[None]:
    """Hold these pages open, as browsers do."""
    pages = [OpenPage(url, cookie, path) for path in paths]
    tasks = [asyncio.create_task(page.keep_open()) for page in pages]
    await asyncio.wait_for(asyncio.gather(*(page.is_open.wait() for page in pages)), PATIENCE_S)
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def calls_per_update(proxy: Proxy, client: Client, pid: int) -> dict[str, float]:
    """Let several updates happen, and return the calls of each method in one of them."""
    async with asyncio.timeout(PATIENCE_S):
        known = -1  # on a busy machine, pages that have just been opened still ask for what they show
        while known != (asked := proxy.calls.total() - proxy.calls[PACED]):
            known = asked
            await asyncio.sleep(QUIET_S)
        before = Counter(proxy.calls)
        while proxy.calls[UPDATE] - before[UPDATE] < UPDATES:
            await asyncio.to_thread(queued, client, pid, runnable_at=4e9)  # each is an event
    spent = proxy.calls - before
    return {method: count / spent[UPDATE] for method, count in spent.items()}


@pytest.mark.timeout(600)
def test_more_pages_make_no_more_calls(world: World, proxy: Proxy) -> None:
    board = Board(proxy.address)
    opener = build_opener(handler := HTTPCookieProcessor())
    opener.open(board.take_link(), timeout=PATIENCE_S).read()
    cookie = "; ".join(f"{each.name}={each.value}" for each in handler.cookiejar)

    async def compare(client: Client) -> tuple[dict[str, float], dict[str, float]]:
        client.projects.resume_fleet("test")
        pid = agent(client, "counted-calls")
        runs, token = running(client, pid)
        client.logs.append(runs, 1, token, 0, b"a line\n")
        waits = queued(client, pid, runnable_at=4e9)
        paths = ["/", "/queue", "/projects", "/cores", "/policies", f"/entry/{runs}", f"/entry/{waits}"]
        async with open_pages(board.url, cookie, paths):
            few = await calls_per_update(proxy, client, pid)
            async with open_pages(board.url, cookie, paths * 3):
                return few, await calls_per_update(proxy, client, pid)

    try:
        with world.client() as client:
            # the browser of other tests has an event loop in this thread
            few, many = ThreadPoolExecutor(1).submit(asyncio.run, compare(client)).result()
    finally:
        board.process.stop()
    # what is asked by time (`read_every`) may fall into one of the updates or not; unshared, calls would be four-fold
    for spent in (few, many):
        spent.pop(PACED, None)
    before = Counter(few)
    more = {method: (before[method], count) for method, count in many.items() if count > 2 * before[method] + 2}
    assert more == {}
    assert sum(many.values()) < 2 * sum(few.values())


def test_the_rest_between_updates_grows_with_what_they_cost() -> None:
    assert rest_s(took_s=0.01, cpu_s=0.01, calls=10) == TICK_S
    assert rest_s(took_s=0.1, cpu_s=0.5, calls=10) == 2.0  # a fifth of a core
    assert rest_s(took_s=0.1, cpu_s=60.0, calls=10) == IDLE_S
    assert rest_s(took_s=8.0, cpu_s=0.1, calls=10) == 8.0  # a slow daemon
    assert rest_s(took_s=0.1, cpu_s=0.1, calls=200) == 200 / CALLS_S_MAX
    assert rest_s(took_s=0.1, cpu_s=0.1, calls=200, feeds=8) == 2 * 200 / CALLS_S_MAX

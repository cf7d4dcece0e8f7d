"""Open pages of a dashboard without a browser: `python -m bench.web_pages URL COOKIE COUNT PATH...`.

Each page is what a browser holds: the page is fetched, its web socket is opened, and what arrives is read and thrown
away. So a hundred of them need no hundred browsers, whose work would not be done on the server's machine. It prints
`open` when all of them are there; for each line of its standard input, how many are open and what has arrived.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import os
import re
import sys
import urllib.request
import uuid
from urllib.parse import quote, urlencode, urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException
from websockets.typing import Origin

__all__ = ["OpenPage"]

_QUERY = re.compile(r"query: (\{.*?\}),")
PING, PONG, CONNECT, UPDATE = "2", "3", "40", "42"  # of the socket.io protocol
SIZE_MAX = 1 << 24
OPEN_S = 60.0  # how long one page may take to be opened


class OpenPage:
    """One open page. When its socket is closed it is opened again, as a browser does."""

    def __init__(self, url: str, cookie: str, path: str) -> None:
        self._url, self._cookie, self._path = url, cookie, path
        self.updates = 0
        self.size = 0
        self.opened = 0
        self.is_open = asyncio.Event()

    async def keep_open(self) -> None:
        """Open the page again and again."""
        while True:
            with contextlib.suppress(OSError, WebSocketException):
                await self.read()
            self.is_open.clear()

    def _fetch(self) -> dict[str, object]:
        request = urllib.request.Request(f"{self._url}{self._path}", headers={"Cookie": self._cookie})
        with urllib.request.urlopen(request, timeout=60) as answer:
            found = _QUERY.search(answer.read().decode())
        assert found is not None, f"{self._path} is not a page of a dashboard"
        query: dict[str, object] = ast.literal_eval(found[1])  # it is written so that Python and JavaScript can read it
        return query

    async def read(self) -> None:
        """Open the page, and read what arrives until it is closed."""
        query = await asyncio.to_thread(self._fetch)
        names = {"document_id": str(uuid.uuid4()), "tab_id": str(uuid.uuid4()), "EIO": "4", "transport": "websocket"}
        given = {name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items()}
        address = (
            f"ws://{urlsplit(self._url).netloc}/_nicegui_ws/socket.io/?{urlencode({**given, **names}, quote_via=quote)}"
        )
        headers = {"Cookie": self._cookie}
        async with connect(
            address,
            origin=Origin(self._url),
            additional_headers=headers,
            max_size=SIZE_MAX,
            compression=None,
            ping_interval=None,
        ) as socket:
            await self._follow(socket)

    async def _follow(self, socket: ClientConnection) -> None:
        async for message in socket:
            text = message if isinstance(message, str) else ""
            self.size += len(message)
            if text.startswith("0"):
                await socket.send(CONNECT)
            elif text.startswith(CONNECT):
                self.opened += 1
                self.is_open.set()
            elif text == PING:
                await socket.send(PONG)
            elif text.startswith(UPDATE):
                self.updates += 1


async def _open_all(url: str, cookie: str, count: int, paths: list[str]) -> None:
    pages = [OpenPage(url, cookie, paths[number % len(paths)]) for number in range(count)]
    tasks = []
    for page in pages:  # one after the other, as people open them
        tasks.append(asyncio.create_task(page.keep_open()))
        await asyncio.wait_for(page.is_open.wait(), OPEN_S)
    print("open", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):  # each line asks how they are
        now = sum(page.is_open.is_set() for page in pages)
        whole = {"open": now, "opened": sum(page.opened for page in pages)}
        whole |= {"updates": sum(page.updates for page in pages), "bytes": sum(page.size for page in pages)}
        print(json.dumps(whole), flush=True)
    os._exit(0)  # the sockets need no farewell


def main() -> None:
    url, cookie, count, *paths = sys.argv[1:]
    os.nice(19)  # browsers are on other machines: they must not take a core from the server
    asyncio.run(_open_all(url, cookie, int(count), paths))


if __name__ == "__main__":
    main()

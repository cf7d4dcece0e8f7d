"""Open pages of a dashboard without a browser: `python -m bench.web_pages URL COOKIE COUNT PATH...`.

Each page is what a browser holds: the page is fetched, its web socket is opened, and what arrives is read and thrown
away. So a hundred of them need no hundred browsers, whose work would not be done on the server's machine. It prints
`open` when all of them are there, and how many bytes and updates arrived when its standard input is closed.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import urllib.request
import uuid
from urllib.parse import quote, urlencode, urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Origin

__all__ = ["OpenPage"]

_QUERY = re.compile(r"query: (\{.*?\}),")
PING, PONG, CONNECT, UPDATE = "2", "3", "40", "42"  # of the socket.io protocol
SIZE_MAX = 1 << 24


class OpenPage:
    """One open page."""

    def __init__(self, url: str, cookie: str, path: str) -> None:
        self._url, self._cookie, self._path = url, cookie, path
        self.updates = 0
        self.size = 0
        self.is_open = asyncio.Event()

    def _fetch(self) -> dict[str, object]:
        request = urllib.request.Request(f"{self._url}{self._path}", headers={"Cookie": self._cookie})
        with urllib.request.urlopen(request, timeout=60) as answer:
            found = _QUERY.search(answer.read().decode())
        assert found is not None, f"{self._path} is not a page of a dashboard"
        query: dict[str, object] = json.loads(found[1])
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
                self.is_open.set()
            elif text == PING:
                await socket.send(PONG)
            elif text.startswith(UPDATE):
                self.updates += 1


async def _open_all(url: str, cookie: str, count: int, paths: list[str]) -> None:
    pages = [OpenPage(url, cookie, paths[number % len(paths)]) for number in range(count)]
    tasks: list[asyncio.Task[None]] = []
    for page in pages:  # one after the other, as people open them
        tasks.append(asyncio.create_task(page.read()))
        waiting = asyncio.create_task(page.is_open.wait())
        await asyncio.wait((tasks[-1], waiting), timeout=60, return_when=asyncio.FIRST_COMPLETED)
        if not page.is_open.is_set():
            tasks[-1].cancel()
            raise SystemExit(f"a page was not opened: {tasks[-1]}")
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    lost = sum(task.done() for task in tasks)
    print(json.dumps({"lost": lost, "updates": sum(p.updates for p in pages), "bytes": sum(p.size for p in pages)}))
    sys.stdout.flush()
    os._exit(0)  # the sockets need no farewell


def main() -> None:
    url, cookie, count, *paths = sys.argv[1:]
    os.nice(19)  # browsers are on other machines: they must not take a core from the server
    asyncio.run(_open_all(url, cookie, int(count), paths))


if __name__ == "__main__":
    main()

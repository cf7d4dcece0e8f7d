"""A proxy in front of a PostgreSQL server that delivers everything later, as a long network does."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

SOCKET = ".s.PGSQL.5432"  # the name that PostgreSQL's clients look for in a folder
CHUNK_BYTES = 65_536


class DelayingProxy:
    """Listens at a socket in `folder` and forwards to the one in `server`; `delay_s` in each direction."""

    def __init__(self, folder: Path, server: Path, delay_s: float) -> None:
        self.folder, self._server, self._delay_s = folder, server, delay_s
        self.trips = 0  # how often, on any connection, a client sent something after the server's last answer
        self._loop = asyncio.new_event_loop()
        self._links: set[asyncio.Task[None]] = set()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        answers, asks = await asyncio.open_unix_connection(str(self._server / SOCKET))
        answered = [True]
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._forward(reader, asks, answered, is_client=True))
                both.create_task(self._forward(answers, writer, answered, is_client=False))
        except* ConnectionError:
            pass
        finally:
            for each in (writer, asks):
                each.close()
                with contextlib.suppress(ConnectionError):
                    await each.wait_closed()
            self._links.discard(link)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answered: list[bool], *, is_client: bool
    ) -> None:
        while data := await reader.read(CHUNK_BYTES):
            if is_client and answered[0]:
                self.trips += 1
            answered[0] = not is_client
            self._loop.call_later(self._delay_s, _write, writer, data)
        self._loop.call_later(self._delay_s, writer.close)

    @contextlib.contextmanager
    def running(self) -> Iterator[DelayingProxy]:
        """Run it on a thread during the block."""
        listening = threading.Event()
        stop = asyncio.Event()

        async def serve() -> None:
            async with await asyncio.start_unix_server(self._connect, str(self.folder / SOCKET)):
                listening.set()
                await stop.wait()
                for link in self._links:
                    link.cancel()
                await asyncio.gather(*self._links, return_exceptions=True)

        thread = threading.Thread(target=self._loop.run_until_complete, args=(serve(),))
        thread.start()
        try:
            assert listening.wait(10.0)
            yield self
        finally:
            self._loop.call_soon_threadsafe(stop.set)
            thread.join()
            self._loop.close()


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    if not writer.is_closing():
        writer.write(data)

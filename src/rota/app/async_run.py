"""Running a blocking call on a thread of its own for a coroutine.

`asyncio.to_thread` shares a few threads with every other call of the program; a supervisor would keep one of them for
as long as it runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["on_own_thread"]

T = TypeVar("T")


async def on_own_thread(call: Callable[[], T], stop: Callable[[], None]) -> T:
    """Make a call on a new thread and return its result. If the coroutine is cancelled, `stop` ends the call first."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = call()
        except BaseException as problem:
            loop.call_soon_threadsafe(ended.set_exception, problem)
        else:
            loop.call_soon_threadsafe(ended.set_result, result)

    threading.Thread(target=run, name="rota-run", daemon=True).start()
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        await asyncio.to_thread(stop)
        await asyncio.wait([ended])
        raise

"""Functions that run as agents, on a thread and in a worker process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from pathlib import Path
from typing import Any

from rota.fleet.runners.context import RunContext


def summarise(ctx: Any, url: str, words: int = 3) -> dict[str, Any]:
    ctx.log(f"reading {url}")
    left = ctx.charge(tokens=100)
    ctx.checkpoint(next=1)
    ctx.throttled(30.0, "api")
    child = ctx.spawn("reader", lent={"tokens": 5}, priority=2, page=3)
    return {
        "url": url,
        "words": words,
        "key": ctx.key,
        "saved": ctx.saved,
        "left": left,
        "remaining": ctx.remaining(),
        "child": child.result(),
        "all": [entry.exit_kind for entry in ctx.wait([child])],
        "cancelled": ctx.cancelled,
        "deadline": ctx.deadline,
        "payload": ctx.payload,
        "workspace": ctx.workspace,
        "agent": ctx.agent,
        "trigger": ctx.trigger,
    }


def plain(a: int, b: int) -> int:
    return a + b


def where() -> dict[str, Any]:
    """Where this call runs."""
    return {
        "pid": os.getpid(),
        "groups": Path("/proc/self/cgroup").read_text(),
        "policy": os.sched_getscheduler(0),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
    }


def annotated(anything: RunContext, a: int) -> list[Any]:
    return [anything.sched_id, a]


async def waits(ctx: Any) -> None:
    ctx.log("waiting")
    await asyncio.Event().wait()


async def tidies(ctx: Any) -> None:
    ctx.log("waiting")
    try:
        await asyncio.Event().wait()
    finally:
        ctx.checkpoint(why=ctx.stop_reason)


async def adds(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


def looks(ctx: Any) -> None:
    ctx.log("looking")
    while True:
        ctx.raise_if_cancelled()
        os.sched_yield()


def yields(ctx: Any) -> None:
    try:
        ctx.yield_back(2.5)
    except Exception as problem:
        raise AssertionError("it is not an Exception") from problem


def raises() -> None:
    raise ValueError("no network")


def leaves(how: str) -> None:
    if how == "exit":
        sys.exit(3)
    raise KeyboardInterrupt


def unreadable() -> None:
    raise Unreadable


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def surrogates() -> None:
    raise ValueError("\ud800")


def returns(what: str) -> Any:
    return {"set": {1}, "object": object(), "key": {(1, 2): 3}, "large": "x" * 300_000, "lone": "\ud800"}[what]


def refused(ctx: Any) -> list[str]:
    names = []
    acts: list[Callable[[], Any]] = [
        lambda: ctx.spawn("missing"),
        lambda: ctx.charge(tokens=-1),
        lambda: ctx.spawn("x").result(0.001),
    ]
    for act in acts:
        try:
            act()
        except Exception as problem:
            names.append(type(problem).__name__)
    return names


def in_threads(ctx: Any) -> dict[str, int]:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _n: ctx.charge(tokens=1), range(100)))
    return dict(ctx.remaining())


def hangs(ctx: Any) -> None:
    ctx.log(f"pid {os.getpid()}")
    signal.pause()


def dies() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def burns() -> None:
    while True:
        pass


def works(ms: int) -> None:
    until_s = time.thread_time() + ms / 1000
    while time.thread_time() < until_s:
        pass


def works_by_others(ms: int) -> None:
    """Work in another thread, and as much in a child."""
    thread = threading.Thread(target=works, args=(ms,))
    thread.start()
    thread.join()
    if (child := os.fork()) == 0:
        works(ms)
        os._exit(0)
    os.waitpid(child, 0)


def works_and_hangs(ctx: Any, ms: int) -> None:
    works(ms)
    hangs(ctx)


def hogs() -> int:
    return len(bytearray(600 * 1024 * 1024))


def hogs_files() -> int:
    held: list[int] = []
    try:
        while len(held) < 5000:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        return len(held)
    finally:
        for fd in held:
            os.close(fd)
    return len(held)


def late(ctx: Any, path: str) -> int:
    """Leave a thread behind whose request is never answered."""

    def ask() -> None:
        try:
            ctx.wait([])
        except Exception as problem:
            whole = Path(path).with_suffix(".new")
            whole.write_text(type(problem).__name__)
            whole.rename(path)

    threading.Thread(target=ask).start()
    while not Path(path).with_suffix(".asked").exists():
        os.sched_yield()
    return os.getpid()


def wrapped(function: Any) -> Any:
    """Like the decorator of an agent: the module has the handle, not the function."""

    @wraps(function)
    def handle() -> None:
        raise AssertionError("the handle was called, not the function")

    return handle


@wrapped
def behind(a: int) -> int:
    return a * 2


NOT_A_FUNCTION = 3

"""The daemon beside the embedded kernel: the same entries, with as many callers, in the same run.

The clients are threads of this process, as the embedded callers are; the daemon is a process of its own, so with two
cores it has one of them. Clients are as users have them: every enqueue carries a key, so that sending it again makes
one entry; the embedded side has no need of that. A round counts only if both sides answered with the same ids and
both files have the same entries in each state.

`wake` is the time from just before an enqueue to the answer that a client of another connection was waiting for.
`memory` is what the daemon has grown by, after all that was sent and with subscribers who never fetch anything.
"""

from __future__ import annotations

import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from bench.harness import Arena, Case, Measured
from bench.queue_files import Entry, Folder, draw, new_file, open_kernel
from rota.kernel import ScheduleSpec
from rota.rpc import Client, connect
from rota.rpc.daemon.runtime_dir import find_daemon
from rota.rpc.handlers import RpcHandlers
from rota.service.dispatcher import Dispatcher

__all__ = ["cases"]

SEED = 20_260_508
STANDING = 10_000  # entries that wait throughout
CLIENTS = 16
WAKES = 300
REQUESTS = 100_000
SUBSCRIBERS = 100
GROWTH_MIB_MAX = 128.0  # the store's own caches and one batch of events for each subscriber
PATIENCE_S = 60.0


def cases() -> Iterator[Case]:
    yield _case("enqueue-1c", 600, "embedded, 1 thread", _enqueue, clients=1, goal=0.45)
    yield _case("enqueue-16c", 1_600, "embedded, 16 threads", _enqueue, clients=CLIENTS, goal=0.6)
    yield _case("claim-complete-16c", 800, "embedded, 16 threads", _claim_complete, clients=CLIENTS, goal=0.65)
    yield _case("http-enqueue-16c", 1_600, "embedded, 16 threads", _enqueue, clients=CLIENTS, goal=0.3, over_http=True)
    for name, share in (("wake-p50", 0.50), ("wake-p99", 0.99)):
        yield Case(name, WAKES, "ms", "", partial(_wake, share), rounds=3)
    yield Case("memory", REQUESTS, "MiB", "", _memory, rounds=1)


Make = Callable[["Sides", int], Arena]


def _case(
    name: str, count: int, baseline: str, make: Make, *, clients: int, goal: float, over_http: bool = False
) -> Case:
    return Case(name, count, "ops/s", baseline, partial(_arena, count, make, clients, over_http), ops=count, goal=goal)


def _arena(count: int, make: Make, clients: int, over_http: bool) -> Arena:
    return make(Sides(count, over_http=over_http), clients)


class Served:
    """A daemon as users start it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.token = _token(path)
        command = [sys.executable, "-m", "rota", "serve", "--store", path, "--listen", "127.0.0.1:0"]
        self._child = subprocess.Popen([*command, "--log-level", "warning"])
        pause = threading.Event()
        give_up_at = time.perf_counter() + PATIENCE_S
        while (info := find_daemon(path)) is None:
            if time.perf_counter() > give_up_at or self._child.poll() is not None:
                raise RuntimeError("the daemon did not start")
            pause.wait(0.01)
        self.unix, self.url = info.addresses

    def client(self, *, over_http: bool = False) -> Client:
        """A client of it."""
        return connect(self.url, token=self.token) if over_http else connect(self.unix)

    def memory_mib(self) -> float:
        """What it has in memory."""
        lines = Path(f"/proc/{self._child.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024

    def stop(self) -> None:
        """End it."""
        self._child.terminate()
        self._child.wait(PATIENCE_S)


def _token(path: str) -> str:
    kernel = open_kernel(path)
    handlers = RpcHandlers(kernel, Dispatcher(kernel))
    token: str = handlers.call("system.token_create", name="bench", scope="admin").token
    handlers.close()
    kernel.store.close()
    return token


class Sides:
    """The same entries behind a daemon and in an embedded kernel."""

    def __init__(self, count: int, *, over_http: bool = False) -> None:
        self.count = count
        self.entries: list[Entry] = []
        self._chance = random.Random(SEED)
        self._folder = Folder()
        self.served = Served(new_file(self._folder.file("served.db")))
        self.client = self.served.client(over_http=over_http)
        self.kernel = open_kernel(new_file(self._folder.file("embedded.db")))

    def draw(self, _round: int) -> None:
        """The entries that a round enqueues."""
        self.entries = draw(self._chance, self.count)

    def add(self, count: int) -> None:
        """Put the same entries in on both sides."""
        specs = [entry.spec for entry in draw(self._chance, count)]
        for at in range(0, count, 1_000):
            self.client.enqueue_many(specs[at : at + 1_000])
        self.kernel.queue.enqueue_many(specs)

    def same(self, ours: list[int], theirs: list[int]) -> bool:
        """Whether both answered with the same ids, and as many entries are in each state."""
        return sorted(ours) == sorted(theirs) and self.client.queue.counts() == self.kernel.queue.counts()

    def close(self) -> None:
        """End the daemon and remove the files."""
        self.client.close()
        self.served.stop()
        self.kernel.store.close()
        self._folder.close()


# --- rates ---------------------------------------------------------------------------------------


def _enqueue(sides: Sides, clients: int) -> Arena:
    def by(enqueue: Callable[[ScheduleSpec], int], thread: int) -> list[int]:
        return [enqueue(entry.spec) for entry in sides.entries[thread::clients]]

    return Arena(
        rota=lambda: _in_threads(clients, partial(by, sides.client.enqueue)),
        base=lambda: _in_threads(clients, partial(by, sides.kernel.queue.enqueue)),
        before=sides.draw,
        verify=sides.same,
        close=sides.close,
    )


def _claim_complete(sides: Sides, clients: int) -> Arena:
    sides.add(STANDING)
    each = sides.count // clients
    queue, client = sides.kernel.queue, sides.client

    def ours(thread: int) -> list[int]:
        ids = []
        for _ in range(each):
            (entry,) = client.claim(f"worker {thread}")
            client.complete(entry.sched_id, "completed", token=entry.token)
            ids.append(entry.sched_id)
        return ids

    def theirs(thread: int) -> list[int]:
        ids = []
        for _ in range(each):
            (entry,) = queue.claim(worker_id=f"worker {thread}")
            queue.complete(entry.sched_id, "completed", token=entry.token)
            ids.append(entry.sched_id)
        return ids

    return Arena(
        rota=lambda: _in_threads(clients, ours),
        base=lambda: _in_threads(clients, theirs),
        before=lambda _round: sides.add(sides.count),
        verify=sides.same,
        close=sides.close,
    )


def _in_threads(count: int, work: Callable[[int], list[int]]) -> list[int]:
    if count == 1:
        return work(0)
    with ThreadPoolExecutor(count) as pool:
        return [each for answer in pool.map(work, range(count)) for each in answer]


# --- how soon a waiting client is woken ----------------------------------------------------------


def _wake(share: float) -> Arena:
    folder = Folder()
    served = Served(new_file(folder.file("served.db")))
    client, waiter = served.client(), served.client()

    def measure() -> Measured:
        took_ms: list[float] = []
        ids: list[int] = []
        for _ in range(WAKES):
            heard: list[tuple[int, float]] = []
            thread = threading.Thread(target=_hear, args=(waiter, heard))
            thread.start()
            thread.join(0.005)  # by then it waits at the daemon
            sent_at = time.perf_counter()
            ids.append(client.enqueue(ScheduleSpec(1)))
            thread.join(PATIENCE_S)
            (sched_id, heard_at) = heard[0]
            took_ms.append((heard_at - sent_at) * 1e3)
            client.complete(sched_id, "completed")
        value = statistics.quantiles(took_ms, n=100)[round(share * 100) - 1]
        return Measured(value, client.queue.counts().get("completed", 0) % WAKES == 0 and len(set(ids)) == WAKES)

    def close() -> None:
        client.close()
        waiter.close()
        served.stop()
        folder.close()

    return Arena(rota=measure, verify=lambda ours, _theirs: bool(ours), close=close)


def _hear(waiter: Client, heard: list[tuple[int, float]]) -> None:
    (entry,) = waiter.claim("waiter", wait_s=PATIENCE_S)
    heard.append((entry.sched_id, time.perf_counter()))


# --- memory --------------------------------------------------------------------------------------


def _memory() -> Arena:
    folder = Folder()
    served = Served(new_file(folder.file("served.db")))
    client = served.client()
    slow: list[socket.socket] = []
    grown: dict[str, float] = {}

    def measure() -> Measured:
        if not slow:  # the round that is not counted: caches are filled, and what is needed once is loaded
            _send_many(served, REQUESTS // 10)
            grown["from"] = served.memory_mib()
            slow.extend(_subscribe(served) for _ in range(SUBSCRIBERS))
            return Measured(0.0, answer=True)
        answered = _send_many(served, REQUESTS)
        mib = served.memory_mib() - grown["from"]
        return Measured(mib, answered == REQUESTS and mib <= GROWTH_MIB_MAX)

    def close() -> None:
        for each in slow:
            each.close()
        client.close()
        served.stop()
        folder.close()

    return Arena(rota=measure, verify=lambda ours, _theirs: bool(ours), close=close)


def _subscribe(served: Served) -> socket.socket:
    """One who asks for every event and fetches none."""
    parts = urlsplit(served.url)
    subscriber = socket.create_connection((parts.hostname or "", parts.port or 0))
    head = f"GET /events?since=0 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.token}\r\n\r\n"
    subscriber.sendall(head.encode())
    return subscriber


def _send_many(served: Served, count: int, batch: int = 500) -> int:
    """So many requests, in batches: half of them write and half of them read."""
    answered = 0
    wish = {"jsonrpc": "2.0", "method": "kernel.sched.enqueue", "params": {"pid": 1, "payload": {"text": "x" * 100}}}
    look = {"jsonrpc": "2.0", "method": "kernel.sched.get", "params": {"sched_id": 1}}
    body = msgspec.json.encode([(wish if i % 2 else look) | {"id": i} for i in range(batch)]) + b"\n"
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(served.unix.removeprefix("unix:"))
        with raw.makefile("rb") as lines:
            for _ in range(0, count, batch):
                raw.sendall(body)
                answered += len(msgspec.json.decode(lines.readline()))
    return answered

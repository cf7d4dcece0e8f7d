"""Programs that open a store, or connect to a daemon, and then fork. Run as a file: NAME ADDRESS LOG [SEED].

Every process appends the number of each entry to the log once it is acknowledged. The test compares the log with the
store. What a program finds out otherwise is printed as a line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rota import store
from rota.errors import RotaError
from rota.kernel import Kernel
from rota.model.work import ScheduleSpec
from rota.store import forks

warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of a fork with threads

PER_CHILD = 12


class World:
    """The address of the store, and where acknowledged entries are recorded."""

    def __init__(self, address: str, log: str, seed: str = "0") -> None:
        self.address = address
        self.rng = random.Random(seed)
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def open(self) -> Any:
        """Open the store, or connect to the daemon."""
        if self.address.startswith("/"):
            return Kernel(store.open(self.address))
        from rota.rpc import connect  # noqa: PLC0415  # most programs do not need it

        return connect(self.address)

    def enqueue(self, api: Any, count: int) -> None:
        """Enqueue entries, each with a number of its own, and record those that are acknowledged."""
        for _ in range(count):
            number = int.from_bytes(os.urandom(6), "big")
            sched_id = api.queue.enqueue(ScheduleSpec(pid=1, payload={"n": number}))
            os.write(self._log, f"{number} {sched_id}\n".encode())

    def operator(self) -> None:
        """Do what `rota queue` does: open the store, read, and close it, perhaps as its only user."""
        code = "import sys; from rota import store; opened = store.open(sys.argv[1]); opened.check(); opened.close()"
        subprocess.run([sys.executable, "-c", code, self.address], check=True)


@contextlib.contextmanager
def child() -> Iterator[bool]:
    """Fork; the block runs in both processes, and the child ends with it. The parent waits for the child."""
    pid = os.fork()
    if pid:
        yield False
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        return
    try:
        yield True
    except BaseException as error:  # it must not go on as its parent
        say(child=repr(error))
        os._exit(1)
    os._exit(0)


def start(work: Callable[[], None]) -> int:
    """Run work in a forked child and return its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException as error:
        say(child=repr(error))
        os._exit(1)
    os._exit(0)


def join(pids: list[int]) -> None:
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert not any(codes), codes


def say(**found: Any) -> None:
    os.write(1, (json.dumps(found) + "\n").encode())


def outcome(call: Callable[[], Any]) -> str:
    """What a call came to: its error's code and message, or `done`."""
    try:
        call()
    except RotaError as error:
        return f"{type(error).__name__}: {error.message}"
    return "done"


# --- everyday programs -----------------------------------------------------------------------------


def preload(world: World) -> None:
    """A web server: the application is loaded, and the store opened, before the workers are forked."""
    app = world.open()
    world.enqueue(app, world.rng.randrange(3))
    go_on, signal_to_go_on = os.pipe()

    def serve(*, closes: bool) -> None:
        os.close(signal_to_go_on)
        world.enqueue(app, PER_CHILD)
        os.read(go_on, 1)
        world.enqueue(app, PER_CHILD)
        if closes:
            app.store.close()

    workers = [start(partial(serve, closes=world.rng.random() < 0.5)) for _ in range(4)]
    master_writes = world.rng.random() < 0.5
    if master_writes:
        world.enqueue(app, PER_CHILD)
    else:
        app.store.close()
    world.operator()
    os.close(signal_to_go_on)
    if master_writes:
        world.enqueue(app, 2)
        app.store.close()
    world.operator()
    join(workers)


def daemonize(world: World) -> None:
    """Two forks; the parents end, each in its own way, and the grandchild goes on without them."""
    app = world.open()
    world.enqueue(app, 3)
    if os.fork():
        if world.rng.random() < 0.5:
            app.store.close()
        return
    os.setsid()
    if world.rng.random() < 0.5:
        world.enqueue(app, 2)
    if os.fork():
        os._exit(0) if world.rng.random() < 0.5 else sys.exit()
    for _ in range(2):
        world.enqueue(app, PER_CHILD)
        world.operator()
    world.enqueue(app, PER_CHILD)
    if world.rng.random() < 0.5:
        app.store.close()
    os._exit(0) if world.rng.random() < 0.5 else sys.exit()


def busy(world: World) -> None:
    """Forks while other threads write, read, wait for entries and follow the journal."""
    kernel = world.open()
    stopping = threading.Event()

    def write() -> None:
        while not stopping.is_set():
            world.enqueue(kernel, 1)

    def read() -> None:
        while not stopping.is_set():
            kernel.queue.list(limit=20)

    def wait() -> None:
        while not stopping.is_set():
            kernel.journal.wait(kernel.journal.cursor() + 5, 0.01)
            kernel.queue.claim(worker_id="nobody", kinds=("none",), wait_s=0.01)

    jobs = [write, write, write, read, read, wait]
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()

    def work(closes: bool) -> None:
        world.enqueue(kernel, 3)
        kernel.queue.list(limit=5)
        kernel.journal.wait(0, 1.0)
        if closes:
            kernel.store.close()

    children = []
    for _ in range(6):
        time.sleep(world.rng.random() * 0.01)  # not for the result: a fork at another moment each time
        children.append(start(partial(work, closes=world.rng.random() < 0.5)))
    join(children)
    stopping.set()
    for thread in threads:
        thread.join()
    kernel.store.close()


def closes(world: World) -> None:
    """Children that only close the store, or end without it, one after the other."""
    app = world.open()
    app.journal.cursor()  # a reading connection is open too
    for _ in range(6):
        world.enqueue(app, 2)
        ends: list[Callable[[], None]] = [app.store.close, lambda: None, sys.exit, lambda: os.kill(os.getpid(), 9)]
        end = world.rng.choice(ends)
        pid = os.fork()
        if not pid:
            end()
            os._exit(0)
        os.waitpid(pid, 0)
        if world.rng.random() < 0.3:
            world.operator()
    world.enqueue(app, 2)
    app.store.close()


def generations(world: World) -> None:
    """Each process forks the next one and ends; some use the store, some do not."""
    app = world.open()
    for _ in range(6):
        if world.rng.random() < 0.6:
            world.enqueue(app, 3)
        if os.fork():
            os._exit(0)
    world.enqueue(app, 3)
    world.operator()
    world.enqueue(app, 3)


def processes(world: World, method: str = "fork") -> None:
    """The start methods of multiprocessing."""
    app = world.open()
    world.enqueue(app, 1)
    context: Any = multiprocessing.get_context(method)
    log = sys.argv[3]
    started = [context.Process(target=_process, args=(world.address, log))]
    if method == "fork":
        started += [context.Process(target=world.enqueue, args=(app, 5)) for _ in range(2)]
    for process in started:
        process.start()
    world.enqueue(app, 5)
    for process in started:
        process.join()
    say(codes=[process.exitcode for process in started])
    app.store.close()


def _process(address: str, log: str) -> None:
    world = World(address, log)
    app = world.open()
    world.enqueue(app, 5)
    app.store.close()


def spawn(world: World) -> None:
    processes(world, "spawn")


def forkserver(world: World) -> None:
    processes(world, "forkserver")


# --- clients of a daemon ---------------------------------------------------------------------------


def clients(world: World) -> None:
    """Parent and children send at the same time."""
    app = world.open()
    world.enqueue(app, 2)
    children = [start(lambda: world.enqueue(app, PER_CHILD)) for _ in range(3)]
    world.enqueue(app, PER_CHILD)
    join(children)
    app.close()


def async_clients(world: World) -> None:
    """A child of a process with an event loop that has a connection runs a loop of its own."""
    import asyncio  # noqa: PLC0415

    from rota.rpc import connect_async  # noqa: PLC0415

    async def send(client: Any, count: int) -> None:
        for _ in range(count):
            number = int.from_bytes(os.urandom(6), "big")
            sched_id = await client.enqueue(ScheduleSpec(pid=1, payload={"n": number}))
            os.write(world._log, f"{number} {sched_id}\n".encode())

    async def parent() -> None:
        async with connect_async(world.address) as client:
            await send(client, 2)
            reader, writer = os.pipe()
            with child() as is_child:
                if is_child:
                    asyncio._set_running_loop(None)
                    asyncio.run(send(client, PER_CHILD))
                else:
                    os.close(writer)
                    await send(client, PER_CHILD)
            os.close(reader)

    asyncio.run(parent())


def parent_is_killed(world: World) -> None:
    """A claim waits at the daemon; then the process forks, and the test kills it. Its child waits for the test."""
    app = world.open()
    app.journal.cursor()
    threading.Thread(target=lambda: app.claim(worker_id="parent", wait_s=60), daemon=True).start()
    sys.stdin.readline()
    if os.fork():
        say(forked=True)
        signal.pause()
    sys.stdin.readline()


# --- forks at a bad moment -------------------------------------------------------------------------


def inside_write(world: World) -> None:
    """A fork inside a transaction."""
    kernel = world.open()

    def work(tx: Any) -> None:
        tx.run(store.Statement("note", "", "INSERT INTO kernel_meta VALUES ('fork', 'yes')"))
        with child() as is_child:
            if is_child:
                found = {
                    "statement": outcome(lambda: tx.run(store.Statement("note", "", "SELECT 1"))),
                    "read": outcome(kernel.journal.cursor),
                    "write": outcome(lambda: world.enqueue(kernel, 1)),
                    "open": outcome(world.open),
                    "close": outcome(kernel.store.close),
                }
                say(**found)

    kernel.store.write(work)
    world.enqueue(kernel, 2)
    world.operator()
    kernel.store.close()


def returns_from_write(world: World) -> None:
    """A fork inside a transaction whose child returns from the transaction's function."""
    kernel = world.open()
    pids = []

    def work(tx: Any) -> str:
        tx.run(store.Statement("note", "", "INSERT INTO kernel_meta VALUES ('fork', 'yes')"))
        pids.append(os.fork())
        return "returned"

    found = outcome(lambda: kernel.store.write(work))
    if not pids[0]:
        say(write=found, close=outcome(kernel.store.close))
        sys.exit()
    join(pids)
    world.enqueue(kernel, 2)
    kernel.store.close()


def late_exit(world: World) -> None:
    """A child that was forked inside a transaction ends when its parent's later store is all that is there."""
    app = world.open()
    go_on, signal_to_go_on = os.pipe()

    def work(tx: Any) -> None:
        tx.run(store.Statement("note", "", "INSERT INTO kernel_meta VALUES ('fork', 'yes')"))
        if not os.fork():
            os.close(signal_to_go_on)
            os.read(go_on, 1)
            sys.exit()

    app.store.write(work)
    app.store.close()
    world.enqueue(world.open(), 5)  # into a new log
    os._exit(0)  # as if killed: the log stays


def inside_listener(world: World) -> None:
    """A fork inside a commit listener, and one inside a read."""
    kernel = world.open()
    forked: list[int] = []

    def listen() -> None:
        if not forked:
            forked.append(1)
            with child() as is_child:
                if is_child:
                    say(
                        read=outcome(kernel.journal.cursor),
                        write=outcome(lambda: world.enqueue(kernel, 1)),
                        open=outcome(lambda: world.enqueue(world.open(), 2)),
                    )

    kernel.store.on_change(listen)
    world.enqueue(kernel, 2)

    def read(tx: Any) -> None:
        with child() as is_child:
            if is_child:
                say(
                    statement=outcome(lambda: tx.run(store.Statement("note", "", "SELECT 1"))),
                    read=outcome(kernel.journal.cursor),
                    write=outcome(lambda: world.enqueue(kernel, 1)),
                )

    kernel.store.read(read)
    world.enqueue(kernel, 1)
    kernel.store.close()


def stuck_thread(world: World) -> None:
    """Another thread stays inside a transaction for longer than a fork waits."""
    forks.FORK_WAIT_S = 0.1
    kernel = world.open()
    inside, leave = threading.Event(), threading.Event()

    def work(tx: Any) -> None:
        tx.run(store.Statement("note", "", "INSERT INTO kernel_meta VALUES ('fork', 'yes')"))
        inside.set()
        leave.wait()

    writer = threading.Thread(target=lambda: kernel.store.write(work))
    writer.start()
    inside.wait()
    pid = os.fork()
    if not pid:
        say(
            read=outcome(kernel.journal.cursor),
            write=outcome(lambda: world.enqueue(kernel, 1)),
            open=outcome(world.open),
            close=outcome(kernel.store.close),
        )
        sys.exit()  # finalises what was inherited
    join([pid])
    leave.set()
    writer.join()
    world.enqueue(kernel, 2)
    world.operator()
    world.enqueue(kernel, 2)
    kernel.store.close()


def in_memory(_: World) -> None:
    """A store in memory."""
    app = Kernel(store.open(":memory:"))
    app.agents.create("reader")
    with child() as is_child:
        if is_child:
            say(
                read=outcome(app.journal.cursor),
                write=outcome(lambda: app.queue.enqueue(ScheduleSpec(pid=1))),
                close=outcome(app.store.close),
            )
    app.queue.enqueue(ScheduleSpec(pid=1))
    app.store.close()


# --- what the child has ----------------------------------------------------------------------------


def locks(world: World) -> None:
    """The SQLite locks and the descriptors of parent and child."""
    app = world.open()
    world.enqueue(app, 1)
    app.journal.cursor()

    def held() -> int:
        """The number of this process's SQLite locks."""
        inodes = {Path(world.address + suffix).stat().st_ino for suffix in ("", "-shm")}
        rows = [line.split() for line in Path("/proc/locks").read_text(encoding="ascii").splitlines()]
        mine = [row for row in rows if row[1] == "POSIX" and row[4] == str(os.getpid())]
        return sum(int(row[5].split(":")[2]) in inodes for row in mine)

    def descriptors() -> int:
        """The number of open files of the store."""
        files = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
        return sum(file.removesuffix(f"-{file.split('-')[-1]}") == world.address for file in files)

    before = held()
    with child() as is_child:
        if is_child:
            first = descriptors()
            world.enqueue(app, 1)
            say(before=before, inherited=first, after=held())
    say(parent=held())
    app.store.close()


def worker_id(world: World) -> None:
    """A child outlives the block in which its parent holds a worker id."""
    from rota.fleet.worker_lock import hold_worker_id  # noqa: PLC0415

    folder = f"{world.address}-workers"
    go_on, signal_to_go_on = os.pipe()

    def outlive() -> None:
        os.close(signal_to_go_on)
        os.read(go_on, 1)

    with hold_worker_id(folder, "box"):
        pid = start(outlive)
    with hold_worker_id(folder, "box"):
        say(held=True)
    os.close(signal_to_go_on)
    join([pid])


def waiting_claim(world: World) -> None:
    """A thread of the parent waits for an entry; the child enqueues one, and may not take it for that thread."""
    kernel = world.open()
    claimed: list[Any] = []
    waiter = threading.Thread(target=lambda: claimed.extend(kernel.queue.claim(worker_id="parent", wait_s=60)))
    waiter.start()
    writer: Any = kernel.store
    while not writer.parked:
        time.sleep(0.001)
    with child() as is_child:
        if is_child:
            inherited = writer.parked
            world.enqueue(kernel, 1)
            say(parked=inherited)
    waiter.join()
    say(claimed=[entry.worker_id for entry in claimed])
    kernel.store.close()


def caches(world: World) -> None:
    """What the parent had cached is read again by the child."""
    kernel = world.open()
    world.enqueue(kernel, 1)
    kernel.queue.claim(worker_id="parent", max_n=1)  # caches the agent and the due summary
    reader, writer = os.pipe()
    with child() as is_child:
        if is_child:
            os.read(reader, 1)
            say(claimed=len(kernel.queue.claim(worker_id="child")))
        else:
            world.enqueue(kernel, 1)
            kernel.agents.pause(1, by="operator")
            os.write(writer, b"!")
    kernel.store.close()


if __name__ == "__main__":
    globals()[sys.argv[1]](World(*sys.argv[2:]))

"""A store with rows of every kind, ways to damage its file, and the calls that a user would make on it."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import apsw

from rota import store
from rota.kernel import Kernel, KernelState, ScheduleSpec
from rota.service import Dispatcher, explain

PAGE_BYTES = 2_048
HEADER_BYTES = 100

# --- the file ------------------------------------------------------------------------------------


def populate(path: Path) -> None:
    """Make a file with rows in every table, and finished, live, waiting and unreadable-if-damaged fields."""
    kernel = Kernel(store.open(str(path)), rng=random.Random(1))
    kernel.projects.create("lab", metadata={"team": "red"})
    kernel.projects.add_workspace("desk", "lab", "/desk")
    pids = [kernel.agents.create(f"agent-{n}", project_id="lab", metadata={"n": n}) for n in range(6)]
    kernel.terminate(pids[5], "failed", {"why": "test"})
    kernel.ledger.create(pids[0], {"tokens": 100_000})
    kernel.ledger.set_budget("project", "lab", "tokens", 1_000_000)
    kernel.ledger.set_budget("global", "*", "tokens", 10_000_000)
    kernel.contexts.create(bound_to="name", bound_id="api", budget=5_000, period_s=60)
    plain = [kernel.queue.enqueue(ScheduleSpec(pids[n % 5], payload={"text": "x" * 200})) for n in range(60)]
    rich = ScheduleSpec(
        pids[0],
        expected={"tokens": 10},
        ceiling={"tokens": 20},
        draws_on=("api",),
        tags=("red",),
        max_attempts=5,
        key="one",
    )
    kernel.queue.enqueue(rich)
    kernel.queue.enqueue(ScheduleSpec(pids[1], after=(plain[-1],), on_failed="hold"))
    kernel.queue.enqueue(ScheduleSpec(pids[1], delay_s=3_600.0))
    claimed = kernel.queue.claim(worker_id="w", max_n=20)
    for number, entry in enumerate(claimed):
        if number < 8:
            kernel.queue.charge(entry.sched_id, {"tokens": 3}, token=entry.token)
            kernel.queue.complete(entry.sched_id, "completed", token=entry.token, result={"answer": number})
        elif number < 11:
            kernel.queue.complete(entry.sched_id, "crashed", token=entry.token)
    kernel.journal.append(pids[0], "user.note", {"text": "hello"})
    kernel.journal.remember("reader", {"cursor": 1})
    kernel.graphs.take("run-1", "graph.json", pids[2])
    kernel.retention.checkpoint()
    for pid in pids[:3]:
        kernel.agents.update(pid, priority=2)
    kernel.store.close()


def copy_of(path: Path, folder: Path) -> Path:
    """Copy a closed store's file."""
    folder.mkdir(exist_ok=True)
    return Path(shutil.copy(path, folder / "rota.db"))


# --- damage --------------------------------------------------------------------------------------


def flip(path: Path, rng: random.Random) -> str:
    """Change one byte, often one in the header or in the page of the schema."""
    data = bytearray(path.read_bytes())
    area = rng.choice([HEADER_BYTES, PAGE_BYTES, 6 * PAGE_BYTES, len(data), len(data), len(data)])
    at = rng.randrange(min(area, len(data)))
    data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return f"a bit flipped at {at}"


def zero_page(path: Path, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    page = rng.randrange(len(data) // PAGE_BYTES)
    data[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = bytes(PAGE_BYTES)
    path.write_bytes(data)
    return f"page {page + 1} zeroed"


def scribble(path: Path, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    at, size = rng.randrange(len(data)), rng.choice([4, 64, 700])
    data[at : at + size] = rng.randbytes(len(data[at : at + size]))
    path.write_bytes(data)
    return f"{size} random bytes at {at}"


def shorten(path: Path, rng: random.Random) -> str:
    size = rng.randrange(1, path.stat().st_size)
    with path.open("r+b") as file:
        file.truncate(size)
    return f"cut to {size} bytes"


VALUES: tuple[Any, ...] = (
    "text",
    "",
    "{",
    "[1]",
    '{"a":1}',
    '"\\ud800"',
    -1,
    2**62,
    1e300,
    0.5,
    b"\xff\xfe",
    b"",
    None,
)


def change_value(path: Path, rng: random.Random) -> str:
    """Put a value of another kind into one column of one row, past all constraints."""
    connection = apsw.Connection(str(path))
    with contextlib.closing(connection):
        for pragma in ("ignore_check_constraints = ON", "foreign_keys = OFF"):
            connection.execute(f"PRAGMA {pragma}")
        names = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
        while True:
            table = rng.choice([row[0] for row in connection.execute(names)])
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            column, value = rng.choice(columns), rng.choice(VALUES)
            text = rng.random() < 0.2 and isinstance(value, bytes)  # text that is not UTF-8
            rows = len(connection.execute(f"SELECT 1 FROM {table}").fetchall())
            if not rows:
                continue
            change = "CAST(? AS TEXT)" if text else "?"
            keys = ", ".join(row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[5])
            one = f"SELECT {keys} FROM {table} LIMIT 1 OFFSET {rng.randrange(rows)}"
            try:
                connection.execute(f"UPDATE {table} SET {column} = {change} WHERE ({keys}) = ({one})", (value,))
            except apsw.Error:
                continue
            return f"{table}.{column} = {value!r}"


DAMAGES: tuple[Callable[[Path, random.Random], str], ...] = (flip, zero_page, scribble, shorten, change_value)


# --- calls ---------------------------------------------------------------------------------------


def calls(kernel: Kernel, folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every kind of call, readers before writers."""
    queue, dispatcher = kernel.queue, Dispatcher(kernel)
    yield "info", kernel.info
    yield "queue.get", lambda: [queue.get(n) for n in range(1, 64)]
    yield "queue.list", lambda: queue.list(limit=1_000)
    yield "queue.counts", queue.counts
    yield "queue.peek", lambda: queue.peek(5)
    yield "agents.get", lambda: [kernel.agents.get(n) for n in range(1, 7)]
    yield "agents.list", kernel.agents.list
    yield "projects.list", kernel.projects.list
    yield "projects.get", lambda: kernel.projects.get("lab")
    yield "projects.workspaces", lambda: kernel.projects.workspaces("lab")
    yield "ledger.get", lambda: kernel.ledger.get(1)
    yield "ledger.budgets", kernel.ledger.budgets
    yield "ledger.breached", kernel.ledger.list_breached
    yield "contexts.list", kernel.contexts.list
    yield "graphs.list", kernel.graphs.list
    yield "journal.tail", lambda: kernel.journal.tail(0, 10_000)
    yield "journal.recall", lambda: kernel.journal.recall("reader")
    yield "replay", lambda: kernel.store.read(KernelState.from_journal)
    yield "tables", lambda: kernel.store.read(KernelState.from_tables)
    yield "explain", lambda: [explain(dispatcher, n) for n in (21, 61, 62, 63)]
    yield "backup", lambda: kernel.store.backup(str(folder / "backup.db"))
    yield "enqueue", lambda: queue.enqueue(ScheduleSpec(1))
    yield "enqueue_unique", lambda: queue.enqueue_unique(ScheduleSpec(2))
    yield "change", lambda: queue.change(30, priority=3)
    yield "cancel", lambda: queue.cancel(31)
    yield "request_cancel", lambda: queue.request_cancel(15)
    yield "retry", lambda: queue.retry(9)
    yield "heartbeat", lambda: queue.heartbeat_many([(n, 1) for n in range(9, 21)])
    yield "charge", lambda: queue.charge(15, {"tokens": 1})
    yield "complete", lambda: queue.complete(16, "completed", result={"a": 1})
    yield "fail", lambda: queue.complete(17, "crashed")
    yield "claim", lambda: queue.claim(worker_id="v", max_n=5)
    yield "turn", lambda: dispatcher.turn([], worker_id="u", max_n=5)
    for policy in ("eevdf", "fair_share", "edf"):
        yield f"turn {policy}", partial(Dispatcher(kernel, policy).turn, [], worker_id="u", max_n=5)
    yield "upkeep", queue.upkeep
    yield "take_over", lambda: queue.take_over("w", "next")
    yield "gc_dispatched", lambda: queue.gc_dispatched(0.0)
    yield "agents.update", lambda: kernel.agents.update(1, priority=1)
    yield "agents.pause", lambda: kernel.agents.pause(2, "me")
    yield "recover", kernel.supervision.recover
    yield "projects.update", lambda: kernel.projects.update("lab", weight=5)
    yield "ledger.charge", lambda: kernel.ledger.charge(1, "tokens", 1)
    yield "contexts.charge", lambda: kernel.contexts.charge(1, 1)
    yield "terminate", lambda: kernel.terminate(3, "completed")
    yield "journal.append", lambda: kernel.journal.append(1, "user.more", {})
    yield "checkpoint", kernel.retention.checkpoint
    yield "prune", lambda: kernel.retention.prune(events_older_than_s=0.0, entries_older_than_s=0.0)

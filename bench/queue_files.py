"""Where the queue's benchmarks keep their files, and how they fill them.

Files lie in `.bench/` of this checkout: on its own disk, since a flush to memory costs nothing, and gone when
their case is or, after a run that was killed, when the next one begins. Everything runs as users run it: WAL,
`synchronous=FULL`, the journal on.

What is there before a case begins does not have to come through the kernel: a million enqueues would take longer
than all the rest. So `write_rows` puts such rows into the table with one statement while nobody has the file open,
as the kernel would have left them. Only the facts of their past are missing from the journal.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import apsw

from rota import store
from rota.clock import Clock
from rota.kernel import Kernel, ScheduleSpec
from rota.kernel.enqueue import ENQUEUE_MAX
from rota.store.sqlite import Durability

__all__ = [
    "AGENTS",
    "PRIORITIES",
    "Entry",
    "Folder",
    "Rows",
    "draw",
    "enqueue_all",
    "new_file",
    "open_kernel",
    "write_rows",
]

FOLDER = Path(__file__).resolve().parents[1] / ".bench"
AGENTS = 100
PRIORITIES = 10


class Folder:
    """A folder for the files of one case."""

    def __init__(self) -> None:
        FOLDER.mkdir(exist_ok=True)
        _remove_orphans()
        self._folder = tempfile.TemporaryDirectory(dir=FOLDER, prefix=f"{os.getpid()}-")

    def file(self, name: str) -> str:
        """The path of a file in it."""
        return str(Path(self._folder.name, name))

    def copy(self, template: str, name: str) -> str:
        """A copy of a file that nobody has open; what an earlier file of this name left behind is removed."""
        path = self.file(name)
        for beside in Path(self._folder.name).glob(f"{name}*"):
            shutil.rmtree(beside) if beside.is_dir() else beside.unlink()
        shutil.copy(template, path)
        _flush(path)
        return path

    def close(self) -> None:
        """Remove it with all that is in it."""
        self._folder.cleanup()
        with contextlib.suppress(OSError):  # another case has files there
            FOLDER.rmdir()


def _remove_orphans() -> None:
    """A run that was killed leaves its folders behind: remove those whose process is gone."""
    for folder in FOLDER.iterdir():
        if not Path("/proc", folder.name.split("-")[0]).exists():
            shutil.rmtree(folder, ignore_errors=True)


def open_kernel(path: str, *, clock: Clock | None = None, durability: Durability = "full") -> Kernel:
    """A kernel as users open it."""
    return Kernel(store.open(path, clock=clock, durability=durability))


def new_file(path: str, specs: Sequence[ScheduleSpec] = (), *, projects: int = 0) -> str:
    """A file with the agents 1 to `AGENTS`, in some projects or in none, and these entries, which is not open."""
    kernel = open_kernel(path, durability="normal")  # filling is not what is measured
    for number in range(projects):
        kernel.projects.create(f"project {number}")
    for number in range(AGENTS):
        kernel.agents.create(f"agent {number}", project_id=f"project {number % projects}" if projects else None)
    enqueue_all(kernel, specs)
    kernel.store.close()
    return path


def enqueue_all(kernel: Kernel, specs: Sequence[ScheduleSpec]) -> None:
    """Put entries in, as many at once as go."""
    for at in range(0, len(specs), ENQUEUE_MAX):
        kernel.queue.enqueue_many(specs[at : at + ENQUEUE_MAX])


class Entry(NamedTuple):
    """An entry to be, for either side."""

    pid: int
    priority: int
    step: int

    @property
    def spec(self) -> ScheduleSpec:
        """As rota takes it."""
        return ScheduleSpec(self.pid, self.priority, payload={"step": self.step})

    @property
    def row(self) -> tuple[int, int, float, str]:
        """As a bare table takes it: pid, priority, runnable_at, payload."""
        return self.pid, self.priority, 0.0, f'{{"step":{self.step}}}'


def draw(chance: random.Random, count: int) -> list[Entry]:
    """Entries of random agents and priorities."""
    return [Entry(1 + chance.randrange(AGENTS), chance.randrange(PRIORITIES), step) for step in range(count)]


class Rows(NamedTuple):
    """Rows that are alike, for `write_rows`."""

    number: int
    state: Literal["queued", "completed"] = "queued"
    due_at: float = 0.0  # later than now: held until then
    priority: int | None = None  # None: any


# ?1 how many, ?2 agents, ?3 priorities, ?4 the one priority or NULL. The large factor scatters the priorities.
_MANY = (
    "INSERT INTO agent_schedule_queue (pid, priority, payload, created_at, state, {columns}) "
    "WITH RECURSIVE step(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM step WHERE i < ?1) "
    "SELECT 1 + i % ?2, coalesce(?4, (i * 2654435761 >> 16) % ?3), json_object('step', i), 0, {values} FROM step"
)
_READY = _MANY.format(columns="runnable_at", values="'queued', 0")
_HELD = _MANY.format(columns="runnable_at, hold", values="'queued', ?5, 'time'")
_COMPLETED = _MANY.format(
    columns="worker_id, dispatched_at, heartbeat_at, completed_at, exit_kind, attempt, token, claim_timeout_s",
    values="'completed', 'worker', 1, 1, 2, 'completed', 1, 1, 3600",
)


def write_rows(path: str, *kinds: Rows) -> None:
    """Put many rows into a file that nobody has open."""
    with contextlib.closing(apsw.Connection(path)) as connection:
        connection.execute("PRAGMA synchronous = OFF")  # it is not what is measured
        for rows in kinds:
            parameters: tuple[object, ...] = (rows.number, AGENTS, PRIORITIES, rows.priority)
            if rows.state == "completed":
                connection.execute(_COMPLETED, parameters)
            elif rows.due_at > 0:
                connection.execute(_HELD, (*parameters, rows.due_at))
            else:
                connection.execute(_READY, parameters)
    _flush(path)


def _flush(path: str) -> None:
    """Let the disk have it now: written while a round runs, it would be charged to that round."""
    with Path(path).open("rb") as file:
        os.fsync(file.fileno())

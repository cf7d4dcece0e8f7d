"""Power cuts: what a store wrote is replayed with every legal loss, and nothing that was committed is missing.

A random life (enqueues, claims, completions, charges, prunes, restarts) runs on a disk that records. After each commit
the contents of all tables are noted. Then the power is cut after random operations, many times, and the disk keeps what
it has to and some of the rest. The file that is left must open, be sound, and hold

- `durability="full"`: exactly what it held after the last commit that had returned, or after the one in progress
- `durability="normal"`: what it held after some earlier commit, whole; the last ones may be lost

and its journal replays to its tables.
"""

from __future__ import annotations

import hashlib
import random
from functools import partial
from pathlib import Path
from typing import NamedTuple

import apsw
import pytest

from rota import store
from rota.clock import Clock
from rota.kernel import Kernel, replay, retention
from rota.store import sqlite_engine
from rota.store.sqlite import Durability
from tests.adversity.conftest import Rounds
from tests.adversity.recorded_disk import AloneStore, Operation, RecordedDisk, after_power_cut
from tests.kernel_proof.test_replay import Life

STEPS = 40  # calls in one life
CUTS = 30  # power cuts in one life


class Commit(NamedTuple):
    """A commit that had returned after so many operations, and the contents of the tables."""

    operations: int
    contents: str


class RecordedLife:
    """A random life on a recorded disk."""

    def __init__(self, seed: int, folder: Path, durability: Durability) -> None:
        self.rng = random.Random(seed)
        self.path = str(folder / "rota.db")
        self.disk = RecordedDisk(f"recorded-{id(self)}")
        self.commits = [Commit(0, "")]  # before the first one there is no file
        self._durability = durability
        with self.disk.recording():
            self.life = Life(seed, self.path, partial(self._open, durability=durability))
        for _ in range(STEPS):
            self.rng.choice([*self.life.deeds, self.life.prune, self._reopen])()
        self.life.kernel.store.close()

    def _open(self, path: str, *, clock: Clock, durability: Durability) -> AloneStore:
        opened = AloneStore(path, clock=clock, durability=durability)
        connection, commit = opened._engine.connection, opened._engine.commit

        def noted() -> None:
            commit()
            self.commits.append(Commit(len(self.disk.operations), contents(connection)))

        self.commits.append(Commit(len(self.disk.operations), contents(connection)))
        opened._engine.commit = noted  # type: ignore[method-assign]
        return opened

    def _reopen(self) -> None:
        """Close the file, which ends its log, and go on."""
        life = self.life
        life.kernel.store.close()
        with self.disk.recording():
            life.kernel = Kernel(self._open(self.path, clock=life.clock, durability=self._durability), rng=life.rng)
        life.api = type(life.api)(life.kernel)

    def allowed_after(self, operations: int) -> tuple[list[str], list[str]]:
        """The contents before and after the commit in progress, and those after all commits up to it."""
        done = sum(commit.operations <= operations for commit in self.commits)
        contents = [commit.contents for commit in self.commits[: done + 1]]
        return contents[done - 1 :], contents


def contents(connection: apsw.Connection) -> str:
    """A digest of every row of every table."""
    seen = hashlib.sha256()
    tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall()
    for (table,) in tables:
        seen.update(repr((table, connection.execute(f"SELECT * FROM {table}").fetchall())).encode())
    return seen.hexdigest() if tables else ""


def left_by(operations: list[Operation], rng: random.Random, folder: Path) -> str:
    """Write the files that a power cut may leave into a folder; returns the path of the database."""
    folder.mkdir()
    for name, body in after_power_cut(operations, rng).items():
        (folder / Path(name).name).write_bytes(body)
    return str(folder / "rota.db")


def contents_of(path: str) -> str:
    if not Path(path).exists():
        return ""
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # leave the log for the store
    try:
        return contents(connection)
    finally:
        connection.close()


def check_with_rota(path: str, life: Life) -> None:
    """Open the file as a store; it is sound, its journal replays, and work continues."""
    kernel = life.kernel = Kernel(store.open(path, clock=life.clock))
    tables, journal = life.both()
    assert journal == tables
    kernel.journal.append(None, "user.note")
    assert kernel.store.check() == []
    kernel.store.close()


@pytest.fixture(autouse=True)
def _short_log_and_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the log be copied into the file again and again, and a prune of a few rows need many commits."""
    monkeypatch.setattr(sqlite_engine, "LOG_PAGES", 40)
    monkeypatch.setattr(replay, "PART_MAX", 3)
    monkeypatch.setattr(retention, "PRUNE_MAX", 5)


def test_a_power_cut_loses_no_commit_that_had_returned(tmp_path: Path, rounds: Rounds) -> None:
    for seed in rounds(2):
        folder = tmp_path / str(seed)
        folder.mkdir()
        recorded = RecordedLife(seed, folder, "full")
        for cut in range(CUTS):
            operations = recorded.rng.randrange(1, len(recorded.disk.operations) + 1)
            path = left_by(recorded.disk.operations[:operations], recorded.rng, folder / f"cut {cut}")
            found = contents_of(path)
            assert found in recorded.allowed_after(operations)[0], f"seed {seed}, after operation {operations}"
            check_with_rota(path, recorded.life)


def test_without_a_flush_for_each_commit_a_power_cut_loses_the_last_ones_whole(tmp_path: Path, rounds: Rounds) -> None:
    lost = 0
    for seed in rounds(2):
        folder = tmp_path / str(seed)
        folder.mkdir()
        recorded = RecordedLife(seed, folder, "normal")
        for cut in range(CUTS):
            operations = recorded.rng.randrange(1, len(recorded.disk.operations) + 1)
            path = left_by(recorded.disk.operations[:operations], recorded.rng, folder / f"cut {cut}")
            found = contents_of(path)
            last, some = recorded.allowed_after(operations)
            assert found in some, f"seed {seed}, after operation {operations}"
            lost += found not in last
            check_with_rota(path, recorded.life)
    assert lost > 0, "no cut lost anything, so the cuts above prove nothing"

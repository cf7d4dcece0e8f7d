"""Two services, each a Python program with agents of its own, on one store: neither touches the work of the other.

Over each door and on each kind of store. One of them is started last, so the other one sees its entries before any
program can run them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rota import Rota
from rota.model.events import EntriesClaimed
from tests.stories.processes import PATIENCE_S, door, run_rota

COUNT = 20
SERVICE = """
import os
import sys

from rota import Rota

rota = Rota(os.environ["STORE"], token=os.environ.get("TOKEN"))


@rota.agent(sys.argv[1], project=sys.argv[1], max_attempts=2)
def work(ctx, n: int):
    return [sys.argv[1], n]


work.map(list(range(int(sys.argv[2]))))
print("enqueued", flush=True)
rota.run(slots=2)
"""


@contextmanager
def service(name: str, env: dict[str, str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A program that runs its own agent until it is stopped."""
    argv = [sys.executable, "-c", SERVICE, name, str(COUNT)]
    with subprocess.Popen(
        argv, env={**os.environ, **env}, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "enqueued\n"
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize("kind", ["file", "unix", "http", "postgres"])
def test_each_service_runs_its_own_entries_and_no_other(kind: str, tmp_path: Path) -> None:
    with (
        door(kind, tmp_path / "rota.db") as env,
        Rota(env["STORE"], token=env.get("TOKEN")) as rota,
        service("mail", env, tmp_path),
    ):
        bills = rota.agent("bills", project="bills", max_attempts=2)(print)
        early = [bills.enqueue(n=-1 - number) for number in range(3)]  # nothing that runs has the function
        if kind != "http":  # a command gets its token in another way
            said = _until_said("no running worker has its agent's function", env["STORE"], early[0].sched_id, tmp_path)
            assert "rota.run()" in said
        with service("bills", env, tmp_path):
            entries, _ = rota.api.queue.list(limit=1_000)
            jobs = [rota.job(entry.sched_id) for entry in entries]
            assert len(jobs) == 2 * COUNT + 3
            for job in jobs:
                job.result(wait_s=PATIENCE_S)
        assert {(job.status, job.entry().attempt) for job in jobs} == {("succeeded", 1)}
        claimed = rota.api.journal.tail(0, 1_000, kinds=(EntriesClaimed.kind,))
        claims = sum(len(event.payload["entries"]) for event in claimed)
        assert claims <= len(jobs) + 2 * 2  # each program has two slots to find out what it cannot run


def _until_said(words: str, store: str, sched_id: int, folder: Path) -> str:
    """Ask why an entry waits until the answer has these words: a program finds out with its first claim."""
    said = ""
    for _ in range(50):
        said = " ".join(run_rota("why", str(sched_id), "--store", store, cwd=folder).split())
        if words in said:
            return said
    raise AssertionError(said)

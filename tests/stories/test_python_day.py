"""A day with rota in Python: one program that enqueues and waits, one that runs, over each door.

The worker is killed in the middle and started again; Ctrl-C ends it in the evening. What failed, was retried or printed
can be read afterwards, in Python and with the command.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rota import Rota
from tests.stories.processes import PATIENCE_S, door, run_rota

DESK = """
import os

from rota import Rota
from rota.model import Backoff, RestartPolicy

rota = Rota(os.environ["STORE"], token=os.environ.get("TOKEN"))


class Paywall(Exception):
    pass


@rota.agent(project="desk", non_retryable=[Paywall], restart=RestartPolicy(backoff=Backoff(base_s=0.05)))
def read(ctx, url: str):
    print("reading", url)
    ctx.progress(0.5, f"reading {url}")
    if url == "paywall":
        raise Paywall("pay first")
    if url == "flaky" and ctx.attempt < 3:
        raise OSError(f"attempt {ctx.attempt}")
    if url == "slow" and ctx.attempt == 1:
        ctx.wait_for_stop()
    return {"words": len(url), "attempt": ctx.attempt}


@rota.agent(project="desk", every="365d")
async def digest(ctx, of: list[int] = []):
    ctx.result(sum(rota.job(sched_id).result()["words"] for sched_id in of))
"""

PRODUCER = """
import asyncio
import json

from desk import digest, read, rota


async def day():
    async with rota:
        jobs = await read.amap(["page", "flaky", "paywall", "slow"], tags="morning")
        last = await digest.aenqueue(of=[jobs[0].sched_id, jobs[1].sched_id], after=jobs[:2], key="digest")
        ended = [job.sched_id async for job in rota.aas_completed([*jobs, last], wait_s=60)]
        assert ended[-1] == jobs[3].sched_id, ended
        results = await rota.agather(*jobs, last, return_exceptions=True)
        errors = [error.error for error in await jobs[1].aerrors()]
        print(json.dumps({"results": [each if isinstance(each, dict | int) else str(each) for each in results],
                          "errors": errors, "ids": [job.sched_id for job in jobs]}))


asyncio.run(day())
"""

WORKER = """
import sys

from desk import rota

summary = rota.run(slots=4, worker_id="desk", logs="logs")
print(summary.ok, summary.completed > 0)
"""


class Programs:
    """The programs of a day; none outlives its test."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._folder, self._env = folder, {**os.environ, **env}
        self._started: list[subprocess.Popen[str]] = []

    def start(self, name: str) -> subprocess.Popen[str]:
        program = subprocess.Popen(
            [sys.executable, f"{name}.py"], cwd=self._folder, env=self._env,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._started.append(program)
        return program

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._started:
            program.kill()
            program.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize("kind", ["file", "unix", "http"])
def test_a_day_in_python(tmp_path: Path, kind: str) -> None:
    for name, text in (("desk", DESK), ("producer", PRODUCER), ("worker", WORKER)):
        (tmp_path / f"{name}.py").write_text(text)
    store = tmp_path / "rota.db"
    with door(kind, store) as env, Programs(tmp_path, env) as programs:
        worker = programs.start("worker")
        producer = programs.start("producer")
        # the others end while the slow one runs; then its worker is killed
        with Rota(env["STORE"], token=env.get("TOKEN")) as rota:
            wait_until(rota, lambda: rota.api.queue.counts() == {"completed": 4, "dispatched": 1})
            wait_until(rota, lambda: rota.job(4).progress() == (0.5, "reading slow"))
        worker.kill()
        worker.communicate(timeout=PATIENCE_S)
        worker = programs.start("worker")
        out, errors = producer.communicate(timeout=PATIENCE_S)
        assert producer.returncode == 0, errors
        said = json.loads(out)
        worker.send_signal(signal.SIGINT)
        evening, line = worker.communicate(timeout=PATIENCE_S)
        assert (worker.returncode, evening.splitlines()[-1]) == (0, "True True")
        assert [each for each in line.splitlines() if "stopping" in each] == ["stopping: nothing is running"]
    page, flaky, paywall, slow, digest = said["results"]
    assert (page, flaky, slow) == (
        {"words": 4, "attempt": 1}, {"words": 5, "attempt": 3}, {"words": 4, "attempt": 2}
    )  # fmt: skip
    assert paywall.startswith("entry 3 ended not_retryable after 1 attempt: Paywall: pay first (not retried: its agent")
    assert digest == 9
    assert said["errors"] == ["OSError: attempt 1", "OSError: attempt 2"]
    if kind != "file":  # the rest is the same behind each door
        return
    story = run_rota("why", str(said["ids"][1]), "--store", str(store), cwd=tmp_path)
    assert "run 2 ended: failed: OSError: attempt 2" in story
    log = run_rota("logs", str(said["ids"][1]), "--attempt", "1", "--folder", "logs", cwd=tmp_path)
    assert log.startswith("reading flaky\n")
    assert log.endswith("OSError: attempt 1\n")


def wait_until(rota: Rota, holds: Callable[[], bool]) -> None:
    """Wait until a condition on the store holds; any event may make it true."""
    cursor = -1
    while not holds():
        last = rota.api.journal.wait(cursor, PATIENCE_S)
        assert last > cursor, rota.api.queue.counts()
        cursor = last


FLEET = """
slots = 2

[agents.checker]
function = "checks:check"
non_retryable = ["checks.Hopeless"]
restart = {{ backoff_s = 0.05 }}
triggers = [{{ on = "start" }}]
payload = {{ how = "{how}" }}

[agents.follower]
function = "checks:follow"
triggers = [{{ after = "checker" }}]
"""

CHECKS = """
class Hopeless(Exception):
    pass


def check(ctx, how):
    print("checking", how)
    if how == "hopeless":
        raise Hopeless("no way")
    if how == "flaky" and ctx.attempt == 1:
        raise OSError("once")


def follow():
    return "followed"
"""


@pytest.mark.parametrize(
    ("how", "code", "counts"),
    [("fine", 0, (2, 2, 0)), ("flaky", 0, (3, 2, 0)), ("hopeless", 1, (1, 0, 1))],
)
def test_a_fleet_of_functions_until_it_is_idle(
    tmp_path: Path, how: str, code: int, counts: tuple[int, int, int]
) -> None:
    (tmp_path / "checks.py").write_text(CHECKS)
    (tmp_path / "fleet.toml").write_text(FLEET.format(how=how))
    done = subprocess.run(
        [sys.executable, "-m", "rota", "run", "--until-idle", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["ended"], summary["completed"], summary["failed"]) == counts
    assert summary["waiting"] == []
    (store,) = tmp_path.glob("*.db")
    assert run_rota("logs", "1", "--store", str(store), "--attempt", "1", cwd=tmp_path).startswith(f"checking {how}\n")

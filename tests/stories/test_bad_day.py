"""S8: a bad day. One after the other, beside a fleet that goes on working, the daemon is killed, the clock jumps by
hours both ways, the log folder vanishes, the disk is full, and the policy hangs.

What was acknowledged is done, once; messages say what happened; work goes on when the cause is gone; `rota doctor`
names it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.kernel import ScheduleSpec
from rota.rpc import Client, connect
from tests.daemon.harness import Process, no_room
from tests.stories.processes import PATIENCE_S, ROTA, run_rota

HOUR_S = 3_600.0

# every process of this machine imports this when it starts: its wall clock shows what the file `offset` adds to it
CLOCK = """
import time
from pathlib import Path

from rota.clock import SystemClock

OFFSET = Path(__file__).with_name("offset")
SystemClock.now = staticmethod(lambda: time.time() + float(OFFSET.read_text()))
"""
POLICY = """
import threading
from pathlib import Path

from rota.model import PickReason
from rota.policy import Policy, assign_slots

HANG = Path(__file__).with_name("hang")
REASON = PickReason("patient", "the lowest id")


def rank(snapshot):
    if HANG.exists():
        threading.Event().wait()
    order = sorted(snapshot.candidates, key=lambda each: each.id)
    return assign_slots(((each, REASON) for each in order), snapshot.slots)


def patient():
    return Policy(name="patient", rank=rank, sentence="The lowest id first.")
"""
FLEET = """
store = "unix:{socket}"
slots = 2

[agents.worker]
command = ["sh", "-c", "echo entry $ROTA_SCHED_ID; echo $ROTA_SCHED_ID.$ROTA_ATTEMPT >> ran"]
cwd = "."

[agents.patient]
command = ["sh", "-c", "touch begun; until [ -e go ]; do sleep 0.05; done; echo $ROTA_SCHED_ID.$ROTA_ATTEMPT >> ran"]
cwd = "."
"""


class Day:
    """A folder with a store, a daemon that serves it, a fleet at the daemon, and a client."""

    def __init__(self, folder: Path, site: Path) -> None:
        self.folder = folder
        self.site = site
        self.store = folder / "rota.db"
        self.daemon = self.serve()
        socket = self.store.with_name("rota.db-daemon") / "rota.sock"
        self.address = f"unix:{socket}"
        (folder / "fleet.toml").write_text(FLEET.format(socket=socket))
        self.fleet = subprocess.Popen(
            [*ROTA, "run", "fleet.toml", "--plain"],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.fleet.stdout is not None
        self.fleet_log = [self.fleet.stdout.readline()]
        while "started" not in self.fleet_log[-1]:
            self.fleet_log.append(self.fleet.stdout.readline())
            assert self.fleet_log[-1], "".join(self.fleet_log)
        self.client: Client = connect(self.address)
        self.acknowledged: list[int] = []

    def serve(self) -> Process:
        return Process(str(self.store), "--policy", "patient")

    def rota(self, *arguments: str, check: bool = True) -> str:
        return run_rota(*arguments, cwd=self.folder, check=check)

    def enqueue(self, agent: str = "worker", **more: float) -> int:
        (found,) = self.client.agents.find(agent)
        self.acknowledged.append(self.client.enqueue(ScheduleSpec(found.pid, **more)))  # type: ignore[arg-type]
        return self.acknowledged[-1]

    def ended(self, sched_id: int) -> str:
        return str(self.client.queue.wait(sched_id, wait_s=PATIENCE_S).status)

    def jump(self, by_s: float) -> None:
        path = self.site / "offset"
        now = float(path.read_text())
        (self.site / "next").write_text(str(now + by_s))
        (self.site / "next").replace(path)

    def until_exists(self, name: str) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        while not (self.folder / name).exists():
            assert time.monotonic() < give_up_at, "".join(self.fleet_log)
            os.sched_yield()

    def ran(self) -> list[str]:
        path = self.folder / "ran"
        return sorted(path.read_text().split()) if path.exists() else []

    def end(self) -> None:
        self.client.close()
        if self.fleet.poll() is None:
            self.fleet.send_signal(signal.SIGTERM)
        out, _ = self.fleet.communicate(timeout=PATIENCE_S)
        self.fleet_log.append(out)
        self.daemon.stop()


@pytest.fixture
def day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Day]:
    site = tmp_path / "site"
    info = site / "patience-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "sitecustomize.py").write_text(CLOCK)
    (site / "offset").write_text("0")
    (site / "patience.py").write_text(POLICY)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: patience\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rota.policies]\npatient = patience:patient\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    made = Day(tmp_path, site)
    yield made
    with contextlib.suppress(subprocess.TimeoutExpired):
        made.end()


def test_a_bad_day(day: Day) -> None:
    assert day.ended(day.enqueue()) == "succeeded", "the morning is quiet"

    # the daemon is killed while a run is in progress, and started again
    slow = day.enqueue("patient")
    day.until_exists("begun")
    waiting = [day.enqueue(delay_s=0.2) for _ in range(3)]
    day.daemon.kill()
    refused = subprocess.run(
        [sys.executable, "-c", f"from rota.rpc import connect\nconnect({day.address!r}, retry_s=0.0).queue.counts()"],
        cwd=day.folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert "cannot be reached" in refused.stderr
    assert "`rota serve`" in refused.stderr
    day.daemon = day.serve()
    assert [day.ended(sched_id) for sched_id in waiting] == ["succeeded"] * 3

    # the clock jumps by hours, both ways, while that run goes on and others wait
    for by_s in (6 * HOUR_S, -12 * HOUR_S, 6 * HOUR_S):
        later = day.enqueue(delay_s=0.2)
        day.jump(by_s)
        assert day.ended(later) == "succeeded"
    (day.folder / "go").touch()
    assert day.ended(slow) == "succeeded"
    assert f"{slow}.1" in day.ran(), "neither the daemon's end nor the clock has ended its claim"
    assert "the wall clock jumped by" in day.rota("doctor", "--store", str(day.store), check=False)

    # the log folder vanishes
    shutil.rmtree(day.folder / "rota.db-logs")
    logged = day.enqueue()
    assert day.ended(logged) == "succeeded"
    assert day.rota("logs", str(logged), "--store", day.address) == f"entry {logged}\n"

    # the disk of the daemon is full for a while
    with no_room(day.daemon.pid, day.store):
        payload = '{"text": "' + "x" * 100_000 + '"}'
        said = day.rota("enqueue", "worker", "--payload", payload, "--store", day.address, check=False)
        assert "nothing was written" in said
        assert "Free disk space" in said
        assert "Traceback" not in said
    assert day.ended(day.enqueue()) == "succeeded"

    # the policy hangs
    (day.site / "hang").touch()
    assert day.ended(day.enqueue()) == "succeeded", "strict order replaces it"
    assert "policy patient stalled" in day.rota("doctor", "--store", str(day.store), check=False)

    # the evening
    day.end()
    assert len(day.ran()) == len(set(day.ran())) == len(day.acknowledged), "all that was acknowledged ran, once"
    assert "Traceback" not in "".join(day.fleet_log)
    assert "Traceback" not in "".join(day.daemon.log)
    assert "no damage" in day.rota("db", "check", "--store", str(day.store))

"""S6: cores. Under `rota run`, two CPU-bound agents are weighted 3:1, one has a quota of 20 %, one leases a core, and
several sleep most of the time.

Shares are within 2 points on one core and on all of them, the quota holds, nothing but its owner is on the leased core,
no one is throttled or stopped without a quota, and everything is released when a run ends or the supervisor is killed.

What is compared is the CPU time of competitors on the same cores, by the kernel's own count: how much of the machine
they have together is not asserted, so other work on it does not matter.
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rota
from rota.host.cgroup_mounts import hierarchies
from rota.host.cgroups import Cgroups
from rota.host.cpu_groups import CPU_FEATURES
from rota.host.lineage import descendants_of, mark_of
from rota.host.process_cpu import process_cpu_ns
from rota.host.thread_settings import allowed_cores
from rota.service.core_grants import this_host
from tests.host.support import cpu_measured, stolen_ns
from tests.stories.processes import PATIENCE_S, ROTA

CGROUPS = Cgroups()
pytestmark = [
    pytest.mark.skipif(
        not all(CGROUPS.support[feature].works for feature in CPU_FEATURES),
        reason="no control groups for CPU time: none can be made here",
    ),
    pytest.mark.skipif(len(allowed_cores()) < 2, reason="a lease needs two cores"),
]

POINTS = 0.02
ENOUGH_NS = 1_000_000_000  # of CPU time, from which a share is measured
FLEET = """
name = "cores"
slots = 8

[projects.busy]

[agents.heavy]
project = "busy"
command = ["sh", "hog.sh", "heavy"]
cpu = { weight = 3 }
triggers = [{ on = "start" }]

[agents.light]
project = "busy"
command = ["sh", "hog.sh", "light"]
cpu = { weight = 1 }
triggers = [{ on = "start" }]

[agents.limited]
project = "busy"
command = ["sh", "hog.sh", "limited"]
cpu = { quota = "20ms/100ms" }
triggers = [{ on = "start" }]

[agents.owner]
project = "busy"
command = ["sh", "hog.sh", "owner"]
cpu = { lease = 1 }
triggers = [{ on = "start" }]

[agents.sleeper]
project = "busy"
command = ["sh", "-c", "while :; do sleep 0.05; done"]
cpu = { class = "sensitive" }
triggers = [{ on = "start" }, { on = "start" }, { on = "start" }]
"""
HOG = """
hog() { while :; do :; done; }
hog & first=$!
hog & echo $first $! > "$1.new"
mv "$1.new" "$1.pids"
wait
"""


class Machine:
    """A fleet on this machine, and its processes by agent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "fleet.toml").write_text(FLEET)
        (folder / "hog.sh").write_text(HOG)
        with (folder / "log").open("wb") as log:
            self.supervisor = subprocess.Popen([*ROTA, "run", "fleet.toml"], cwd=folder, stderr=log, stdout=log)

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition; shows what the supervisor printed if it does not come."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            assert self.supervisor.poll() is None, (self.folder / "log").read_text()
            time.sleep(0.005)  # leaves the core to what is measured

    def pids(self, agent: str) -> list[int]:
        file = self.folder / f"{agent}.pids"
        self.until(file.exists)
        return [int(word) for word in file.read_text().split()]

    def used_ns(self, agent: str) -> int:
        return sum(map(process_cpu_ns, self.pids(agent)))

    def shares(self, *agents: str, expected: Callable[[dict[str, float]], bool]) -> dict[str, float]:
        """What each of some agents uses, of what they use together from now on."""
        before = {agent: self.used_ns(agent) for agent in agents}

        def shares() -> dict[str, float] | None:
            used = {agent: self.used_ns(agent) - before[agent] for agent in agents}
            total = sum(used.values())
            return {agent: used[agent] / total for agent in agents} if total >= ENOUGH_NS else None

        return cpu_measured(shares, expected, self.until)

    def groups(self) -> list[Path]:
        return [folder for each in hierarchies() for folder in each.base.glob(f"rota-{self.supervisor.pid}-*")]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    try:
        yield made
    finally:
        made.supervisor.kill()
        made.supervisor.wait()


def three_to_one(shares: dict[str, float]) -> bool:
    return shares["heavy"] == pytest.approx(0.75, abs=POINTS)


def test_cores(machine: Machine) -> None:
    # a lease: its owner has one core, and nothing else that the supervisor runs is there
    leased = max(this_host().cores)
    machine.until(lambda: all(allowed_cores(pid) == {leased} for pid in machine.pids("owner")))
    others = [pid for agent in ("heavy", "light", "limited") for pid in machine.pids(agent)]
    everything = [machine.supervisor.pid, *descendants_of(machine.supervisor.pid)]
    owner = {pid for pid in everything if _session_of(pid) == _session_of(machine.pids("owner")[0])}
    assert set(others) <= set(everything) - owner
    machine.until(lambda: all(leased not in _cores(pid) for pid in everything if pid not in owner))

    # weights and a quota on the cores that are left
    began = time.monotonic()
    before = machine.used_ns("limited")
    stolen = stolen_ns()
    shares = machine.shares("heavy", "light", expected=three_to_one)
    used = machine.used_ns("limited") - before
    assert three_to_one(shares)
    periods = (time.monotonic() - began) / 0.1 + 1  # a window of n periods holds n + 1 budgets at most
    stolen = stolen_ns() - stolen  # by this machine's host: it counts as used by whoever was running
    assert used - stolen <= periods * 20_000_000 * 1.1

    # the lease ends with its run: the core is there for all, and weights hold on every core
    with rota.Rota(machine.folder / "rota.db") as app:
        running, _total = app.api.queue.list(state="dispatched")
        (entry,) = (each.sched_id for each in running if app.api.agents.get(each.pid).name == "owner")
        app.api.queue.request_cancel(entry)
        machine.until(lambda: app.api.queue.get(entry).status == "cancelled")
        assert app.api.cores.leased(this_host().key) == {}
    machine.until(lambda: all(leased in allowed_cores(pid) for pid in others))
    for agent in ("heavy", "light"):
        for pid, core in zip(machine.pids(agent), sorted(this_host().cores)[-2:], strict=True):
            os.sched_setaffinity(pid, {core})  # one of each on each core, so that nothing else decides
    assert three_to_one(machine.shares("heavy", "light", expected=three_to_one))

    # work-conserving: only a quota holds anyone back
    assert _throttled(machine.groups(), machine.pids("light")[0]) == 0

    # killed: no process and no group is left
    pidfds = [os.pidfd_open(pid) for pid in others]
    machine.supervisor.kill()
    assert all(select.select([fd], [], [], PATIENCE_S)[0] for fd in pidfds)
    for fd in pidfds:
        os.close(fd)
    machine.supervisor.wait()
    deadline = time.monotonic() + PATIENCE_S
    while machine.groups() and time.monotonic() < deadline:
        Cgroups()  # the next start removes what the reaper could not
    assert machine.groups() == []


def _session_of(pid: int) -> str:
    return str(mark_of(pid))


def _cores(pid: int) -> frozenset[int]:
    try:
        return allowed_cores(pid)
    except rota.errors.NotFound:
        return frozenset()  # it has ended: a sleeper's sleep


def _throttled(groups: list[Path], pid: int) -> int:
    """How often the group of a process was throttled, or a group that it is in."""
    found = 0
    for group in groups:
        if any(str(pid) in file.read_text().split() for file in group.rglob("cgroup.procs")):
            for file in group.rglob("cpu.stat"):
                lines = dict(line.split() for line in file.read_text().splitlines())
                found += int(lines.get("nr_throttled", 0))
    return found

"""S12: a policy of another package.

It keeps the laws, then drives the fleet, a graph lane, the tick world and the core simulator by its name. Then it is
broken on purpose: everything still runs, and the journal and `rota why` say so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rota import store
from rota.kernel import Kernel, ScheduleSpec
from tests.stories.processes import PATIENCE_S, daemon_of, run_rota

ROOT = Path(__file__).parents[2]
PACKAGE = """
import os

from rota.model import PickReason
from rota.policy import Policy, assign_slots

REASON = PickReason("humble_first", "the lowest priority")


def rank(snapshot):
    if os.environ.get("BREAK_THE_POLICY"):
        raise RuntimeError("broken on purpose")
    order = sorted(snapshot.candidates, key=lambda each: (each.priority, each.id))
    return assign_slots(((each, REASON) for each in order), snapshot.slots)


def humble_first():
    return Policy(name="humble_first", rank=rank, sentence="The lowest priority first.")
"""
LAWS = """
from rota.policy import make
from rota.testing import LAWS, check

for law in LAWS:
    check(make("humble_first"), law)
print("kept", len(LAWS))
"""
TICK = """
from rota.tick import AgentDescriptor, SchedulerConfig, TickWorld

log = []
world = TickWorld(SchedulerConfig(policy="humble_first"), step=lambda pid, world: log.append(pid))
for priority in (2.0, 3.0, 1.0):
    world.spawn(AgentDescriptor(priority=priority))
world.run(1)
print(*log, world.scheduler.metrics.policy_failures)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the package, installed as pip would, and a fleet."""
    site = tmp_path / "site"
    info = site / "favourites-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "favourites.py").write_text(PACKAGE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: favourites\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rota.policies]\nhumble_first = favourites:humble_first\n")
    (tmp_path / "work.py").write_text("def nothing(ctx):\n    pass\n")
    agents = [f'[agents.a{number}]\nfunction = "work:nothing"\npriority = {number}\n' for number in (1, 2, 3, 4)]
    head = 'policy = "humble_first"\nslots = 1\nlogs_max = 0\n'
    (tmp_path / "fleet.toml").write_text(head + "".join(agents))
    return tmp_path


def environment(folder: Path, *, broken: bool) -> dict[str, str]:
    return {"PYTHONPATH": str(folder / "site")} | ({"BREAK_THE_POLICY": "1"} if broken else {})


def run_python(code: str, folder: Path, *, broken: bool = False) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, **environment(folder, broken=broken)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def enqueue_all(folder: Path) -> None:
    """Enqueue an entry of each agent, the first with the lowest priority."""
    kernel = Kernel(store.open(str(folder / "rota.db")))
    for number in (1, 2, 3, 4):
        (agent,) = kernel.agents.find(f"a{number}")
        kernel.queue.enqueue(ScheduleSpec(agent.pid, agent.priority))
    kernel.store.close()


def claims(folder: Path) -> tuple[list[int], set[str], list[str]]:
    """The priorities in the order of the claims, the policies of these, and the policies that failed."""
    kernel = Kernel(store.open(str(folder / "rota.db")))
    events = kernel.journal.tail(limit=10_000)
    claimed = [event.payload for event in events if event.kind == "kernel.sched.claimed"]
    order = [kernel.queue.get(entry[0]).priority for claim in claimed for entry in claim["entries"]]
    failed = [event.payload["policy"] for event in events if event.kind == "kernel.policy.fell_back"]
    kernel.store.close()
    return order, {claim["policy"] for claim in claimed}, failed


@pytest.mark.parametrize("broken", [False, True], ids=["sound", "broken"])
def test_it_drives_the_fleet_also_at_a_daemon(folder: Path, broken: bool) -> None:
    env = environment(folder, broken=broken)
    run_rota("run", "--until-idle", "--plain", cwd=folder, env=env)  # creates the agents, and records the policy
    enqueue_all(folder)
    explained = run_rota("why", "4", cwd=folder, env=env)
    assert "humble_first" in explained
    assert ("has failed, and strict order replaces it" in explained) == broken
    run_rota("run", "--until-idle", "--plain", cwd=folder, env=env)
    expected = [4, 3, 2, 1] if broken else [1, 2, 3, 4]
    assert claims(folder) == (
        expected,
        {"strict" if broken else "humble_first"},
        ["humble_first"] if broken else [],
    )
    # the same store at a daemon: its policy is in force there, too
    enqueue_all(folder)
    with daemon_of(folder / "rota.db", env=env) as daemon:
        address = daemon.addresses[0]
        shown = json.loads(run_rota("policy", "show", "--json", "--store", address, cwd=folder))
        assert (shown["name"], shown["set_by"]) == ("humble_first", "fleet fleet")
        text = (folder / "fleet.toml").read_text()
        (folder / "fleet.toml").write_text(f'store = "{address}"\n{text}')
        run_rota("run", "--until-idle", "--plain", cwd=folder, env=env)
    assert claims(folder)[0] == expected * 2


def test_it_keeps_the_laws(folder: Path) -> None:
    assert run_python(LAWS, folder).startswith("kept")


def test_it_drives_a_lane_the_tick_world_and_the_simulator(folder: Path) -> None:
    graph = (ROOT / "examples" / "graphs" / "agents.yaml").read_text().replace("policy: eevdf", "policy: humble_first")
    (folder / "agents.yaml").write_text(graph)
    parts = str(ROOT / "examples" / "graphs" / "parts.py")
    results = []
    for broken in (False, True):
        env = environment(folder, broken=broken)
        *order, failures = run_python(TICK, folder, broken=broken).split()
        assert len(order) == 3
        assert (order[0], failures != "0") == (("2", True) if broken else ("3", False))
        run_rota("graph", "run", "agents.yaml", "-c", parts, cwd=folder, env=env)
        scenario = str(ROOT / "examples" / "cpu" / "provider.toml")
        results.append(run_rota("cpu", "sim", scenario, "--policy", "humble_first", cwd=folder, env=env))
    assert results[0] != results[1], "the simulator says that the policy failed"

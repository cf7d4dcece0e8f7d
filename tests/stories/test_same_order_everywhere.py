"""S3: the same fleet at three doors.

A seeded workload, enqueued beforehand, starts in the same order and is charged the same: embedded, at a daemon over the
unix socket, and over HTTP with a token. The policy of the fleet file, with its parameters, is in force at each.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from rota import store
from rota.fleet.agent_settings import settings_of, spec_for
from rota.fleet.config.apply import apply_fleet
from rota.fleet.config.loader import load_fleet
from rota.kernel import Kernel
from rota.kernel.replay import KernelState
from tests.stories.processes import daemon_of, run_rota

DOORS = ("embedded", "unix", "http")
WEIGHTS = {"gold": 3, "silver": 2, "bronze": 1}
ENTRIES = 30
POLICIES = {
    "default": "",
    "fair_share": 'policy = "fair_share"\n',
    "with a parameter": 'policy = {name = "wfq", params = {priority_first = true}}\n',
}
AGENT = """
def charge(ctx, tokens):
    ctx.charge(tokens=tokens)
"""


class Outcome(NamedTuple):
    """What a fleet did."""

    order: list[int]  # the entries as they were started
    projects: list[str]  # of these entries
    charges: dict[int, int]  # tokens by entry
    policies: set[str]  # that claims used
    in_force: str


def fleet_text(policy: str, address: str, slots: int) -> str:
    text = f'{policy}name = "story"\nstore = "{address}"\nslots = {slots}\nlogs_max = 0\n'
    for name, weight in WEIGHTS.items():
        text += f"[projects.{name}]\nweight = {weight}\n"
        for agent in (f"{name}-a", f"{name}-b"):
            text += f'[agents.{agent}]\nproject = "{name}"\nfunction = "charging:charge"\n'
            text += f"weight = {2 if agent.endswith('a') else 1}\n"
    return text


def prepare(folder: Path, policy: str, seed: int) -> Path:
    """Create the store, with its projects and agents and all entries."""
    folder.mkdir()
    (folder / "charging.py").write_text(AGENT)
    (folder / "fleet.toml").write_text(fleet_text(policy, "rota.db", 1))
    fleet = load_fleet(folder / "fleet.toml")
    kernel = Kernel(store.open(fleet.store_path))
    apply_fleet(kernel, fleet)
    agents = [kernel.agents.find(name)[0] for name in fleet.agents]
    rng = random.Random(seed)
    for _ in range(ENTRIES):
        agent = rng.choice(agents)
        tokens = rng.choice((100, 200, 300))
        spec = spec_for(agent, settings_of(agent), {"tokens": tokens}, priority=rng.choice((0, 0, 0, 5)))
        kernel.queue.enqueue(spec)
    kernel.store.close()
    return folder / "rota.db"


@contextmanager
def at_door(door: str, folder: Path, path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the address for the fleet file, and what the environment needs."""
    if door == "embedded":
        yield "rota.db", {}
        return
    token = run_rota("token", "create", "story", "--scope", "operate", "--store", str(path), cwd=folder).splitlines()[0]
    with daemon_of(path) as daemon:
        yield daemon.addresses[0 if door == "unix" else 1], {"ROTA_ACCESS_TOKEN": token}


def run_fleet(folder: Path, policy: str, door: str, slots: int, seed: int = 7) -> Outcome:
    path = prepare(folder, policy, seed)
    with at_door(door, folder, path) as (address, env):
        (folder / "fleet.toml").write_text(fleet_text(policy, address, slots))
        run_rota("run", "--until-idle", "--plain", "fleet.toml", cwd=folder, env=env | {"PYTHONPATH": str(folder)})
    return read_outcome(path)


def read_outcome(path: Path) -> Outcome:
    kernel = Kernel(store.open(str(path)))
    events = kernel.journal.tail(limit=10_000)
    claims = [event.payload for event in events if event.kind == "kernel.sched.claimed"]
    order = [entry[0] for claim in claims for entry in claim["entries"]]
    charges: Counter[int] = Counter()
    for event in events:
        if event.kind == "kernel.ledger.charged":
            charges[event.payload["sched_id"]] += event.payload["amounts"].get("tokens", 0)
    policies = {claim["policy"] for claim in claims}
    projects = [kernel.queue.get(sched_id).project_id or "" for sched_id in order]
    setting = kernel.policies.get().setting
    now = kernel.clock.now()
    assert kernel.store.read(lambda tx: KernelState.from_tables(tx).at(now)) == kernel.store.read(
        lambda tx: KernelState.from_journal(tx).at(now)
    )
    kernel.store.close()
    return Outcome(order, projects, dict(charges), policies, "" if setting is None else setting.sentence())


@pytest.mark.parametrize("policy", POLICIES)
def test_one_slot_gives_the_same_order_and_the_same_charges(tmp_path: Path, policy: str) -> None:
    outcomes = {door: run_fleet(tmp_path / door, POLICIES[policy], door, slots=1) for door in DOORS}
    embedded = outcomes["embedded"]
    assert len(embedded.order) == ENTRIES
    assert outcomes["unix"] == embedded
    assert outcomes["http"] == embedded
    in_force = {
        "default": ({"eevdf"}, ""),
        "fair_share": ({"fair_share"}, "fair_share(min_guarantee=True)"),
        "with a parameter": ({"wfq"}, "wfq(priority_first=True)"),
    }
    assert (embedded.policies, embedded.in_force) == in_force[policy]
    assert embedded.order != sorted(embedded.order), "the policy has an effect"


def test_four_slots_give_the_same_shares(tmp_path: Path) -> None:
    for door in DOORS:
        outcome = run_fleet(tmp_path / door, POLICIES["default"], door, slots=4)
        assert len(outcome.order) == ENTRIES
        # while every project has work, usage is by weight: within one run of each slot
        used: Counter[str] = Counter()
        left = Counter(outcome.projects)
        for sched_id, project in zip(outcome.order, outcome.projects, strict=True):
            used[project] += outcome.charges[sched_id]
            left[project] -= 1
            if not left[project]:
                break
        total = sum(used.values())
        for project, weight in WEIGHTS.items():
            assert abs(used[project] - total * weight / 6) <= 4 * 300, (door, used)

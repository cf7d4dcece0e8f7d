"""What a process remembers between transactions is what it would read, whatever another one has done meanwhile.

Everyday work of others (entries enqueued, claimed, ended) leaves it remembered on PostgreSQL; everything else makes the
process read again. A cached due summary may name an instant too early, but none too late: except that it notices a
claim, or usage that leaves a window, of another process `DUE_AGAIN_S` late at most.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rota.clock import ManualClock
from rota.errors import RotaError
from rota.kernel.environment import DUE_AGAIN_S, CachedAgent, DueSummary, KernelCache, read_due_summary
from rota.kernel.store_policy import read_store_policy
from rota.store import Transaction
from rota.store.statements import claims as sql
from tests.kernel.blocked_entries import CHANGES
from tests.kernel.world import START, World

ROUNDS, STEPS = 4, 60
EVERYDAY_INSTANTS = ("expires_at", "window_edge_at")  # that everyday work of others may add
INSTANTS = ("held_at", "deadline", "refill_at", "affinity_until", *EVERYDAY_INSTANTS)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[World, World]]:
    """Two kernels on one store, each with a connection of its own: to the store they are two processes."""
    clock = ManualClock(START)
    here, there = World(str(tmp_path / "rota.db"), clock), World(str(tmp_path / "rota.db"), clock)
    yield here, there
    here.close()
    there.close()


def remember(world: World) -> None:
    """Fill the cache of a kernel with everything that it can remember."""

    def work(tx: Transaction) -> None:
        cache, now = world.kernel.env.cache, world.kernel.env.read_clock(tx)
        world.queue.maintenance.remember_due(tx, now)
        cache.store_policy(tx)
        cache.agents(tx, {row[0] for row in tx.run(sql.AGENT_FACTS, ("[1,2,3,4,5,6,7,8,9]",))})
        cache.projects(tx, ["lab", "shop"])

    world.store.write(work)


def check_remembered(world: World) -> None:
    """Compare what a kernel remembers with what it would read."""

    def work(tx: Transaction) -> None:
        cache, fresh = world.kernel.env.cache, KernelCache()
        due, true = cache.due_summary(tx), read_due_summary(tx)
        if due is not None:
            check_due(due, true, world.now)
        agents = cache.cached_agents(tx)
        if agents:
            rows = tx.run_for(sql.AGENT_FACTS, list(agents))
            assert agents == {row[0]: CachedAgent(*row[1:]) for row in rows}
        assert cache.projects(tx, ["lab", "shop"]) == fresh.projects(tx, ["lab", "shop"])
        assert cache.store_policy(tx) == read_store_policy(tx)
        assert cache.share_window_s(tx) == fresh.share_window_s(tx)

    world.store.write(work)


def check_due(cached: DueSummary, true: DueSummary, now: float) -> None:
    for name in DueSummary.__struct_fields__:
        said, is_so = getattr(cached, name), getattr(true, name)
        if name not in INSTANTS:
            assert said == is_so, name
        elif is_so is not None:
            at = math.inf if said is None else said
            again_at = now + DUE_AGAIN_S if cached.expires_at is None else cached.expires_at
            late = name in EVERYDAY_INSTANTS and at > is_so and again_at <= now + DUE_AGAIN_S
            assert at <= is_so or late, (name, said, is_so, cached.expires_at)


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_what_others_change_is_read_again(pair: tuple[World, World], change: str) -> None:
    here, there = pair
    remember(here)
    unblock = CHANGES[change](there)
    check_remembered(here)
    remember(here)
    unblock()
    check_remembered(here)


def _random_step(world: World, chance: random.Random, pids: list[int]) -> Callable[[], object]:
    """Return one thing that a process may do."""
    pid = chance.choice(pids)
    queue, entry = world.queue, world.take
    everyday: list[Callable[[], object]] = [
        lambda: world.put(pid),
        lambda: [world.put(chance.choice(pids)) for _ in range(3)],
        lambda: world.dispatcher.claim("worker", 2, claim_timeout_s=chance.choice([0.5, 5.0, 50.0])),
        lambda: [queue.complete(each.sched_id, "completed", token=each.token) for each in entry(2)],
        lambda: [world.dispatcher.complete_and_claim([], "worker", 1)],
        lambda: [queue.charge(each.sched_id, {"tokens": 3}, token=each.token) for each in entry(1)],
    ]
    other: list[Callable[[], object]] = [
        lambda: world.put(pid, runnable_at=world.now + chance.choice([0.2, 2.0, 20.0])),
        lambda: world.put(pid, delay_s=1.5),
        lambda: world.put(pid, deadline=world.now + chance.choice([0.3, 3.0])),
        lambda: [queue.complete(each.sched_id, "failed", token=each.token) for each in entry(1)],
        lambda: _put_back(world),
        lambda: world.agents.pause(pid, "anna"),
        lambda: world.agents.resume(pid, "anna"),
        lambda: world.agents.update(pid, max_concurrent=chance.choice([None, 0, 3])),
        lambda: world.projects.update("lab", max_concurrent=chance.choice([None, 1])),
        lambda: world.projects.move("shop", chance.choice(["pause", "resume"])),
        lambda: world.projects.pause_fleet("anna"),
        lambda: world.projects.resume_fleet("anna"),
        lambda: world.ledger.create(pid, {"tokens": 100}),
        lambda: world.ledger.charge(pid, "tokens", 7),
        lambda: world.ledger.set_budget("project", "lab", "tokens", chance.choice([None, 50]), window_s=3.0),
        lambda: world.ledger.set_share_window(chance.choice([60.0, 3600.0])),
        lambda: world.kernel.policies.set(None, chance.choice(["tokens", "cpu"]), by="anna", replace=True),
        lambda: world.contexts.create(bound_to="agent", bound_id=str(pid), budget=5, period_s=2.0),
        lambda: world.agents.transition(pids[-1], "DEAD"),
        lambda: world.clock.advance(chance.choice([0.1, 1.0, 6.0])),
    ]
    return chance.choice(everyday if chance.random() < 0.6 else other)


def _put_back(world: World) -> None:
    for entry in world.take(1):
        world.queue.put_back(entry.sched_id, token=entry.token or 0, delay_s=0.7)


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_what_is_remembered_is_what_would_be_read(pair: tuple[World, World], seed: int) -> None:
    chance = random.Random(seed)
    here, there = pair
    for name in ("lab", "shop"):
        here.projects.create(name)
    pids = [here.agent(project_id=chance.choice([None, "lab", "shop"])) for _ in range(4)]
    done = 0
    for _ in range(STEPS):
        actor, watcher = (here, there) if chance.random() < 0.5 else (there, here)
        remember(watcher)
        try:
            _random_step(actor, chance, pids)()
            done += 1
        except RotaError:
            pass  # what cannot be done now changes nothing
        check_remembered(watcher)
    assert done > STEPS // 2

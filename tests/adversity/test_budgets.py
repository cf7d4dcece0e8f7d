"""Budgets hold at every moment: loans that return, runs that are killed and retried, refunds, the edges of windows.

The law: together, runs use more than a budget allows only by what they charged past their own ask. `budget_history.py`
adds up the charges by itself and compares after every step.
"""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from rota import store
from rota.clock import SystemClock
from rota.errors import RotaError
from rota.kernel import Kernel, ScheduleSpec
from rota.model.work import ReadyEntry
from rota.service.explanation import explain
from tests.adversity.budget_history import PERIOD_S, WINDOW_S, WORKERS, History
from tests.adversity.conftest import Rounds
from tests.kernel.world import POLICIES, World

STEPS = 130  # of one history


# --- random histories ----------------------------------------------------------------------------


def test_runs_that_keep_to_their_ceilings_never_exceed_a_budget(rounds: Rounds) -> None:
    for seed in rounds(24):
        history = History(seed)
        for step in range(STEPS):
            history.step()
            assert history.violations() + history.reserved() == [], f"seed {seed}, step {step}"
        assert history.journal_equals_tables(), f"seed {seed}"


def test_runs_exceed_a_budget_by_no_more_than_they_charged_past_their_own_ask(rounds: Rounds) -> None:
    for seed in rounds(12):
        history = History(seed, obedient=False)
        for step in range(STEPS):
            history.step()
            assert history.violations() == [], f"seed {seed}, step {step}"
        assert history.journal_equals_tables(), f"seed {seed}"


def test_in_no_window_of_a_period_more_than_the_limit_starts(rounds: Rounds) -> None:
    """A limit of 40 requests in 10 s: arrivals, claims of several workers, and clocks that stop anywhere."""
    limit, period_s = 40, 10.0
    for seed in rounds(4):
        rng, world, starts = random.Random(seed), World(), []
        world.contexts.create(bound_to="name", bound_id="api", budget=limit, period_s=period_s, unit="requests")
        agents = [world.agent(f"agent {number}") for number in range(3)]
        for _ in range(250):
            for _ in range(rng.choice((0, 1, 2, 5))):
                world.put(rng.choice(agents), draws_on=("api",))
            for entry in world.dispatcher.claim("worker", rng.choice((1, 3, 50)), policy=rng.choice(POLICIES)):
                starts.append(world.now)
                if rng.random() < 0.8:
                    world.queue.complete(entry.sched_id, "completed", token=entry.token)
            next_at = world.queue.upkeep()
            if next_at is not None and rng.random() < 0.3:  # to the edge of a refill, or a little beside it
                world.clock.advance(max(0.0, next_at - world.now + rng.choice((0.0, 0.0, -0.0004, 0.0004))))
            else:
                world.clock.advance(rng.choice((rng.random() * 0.3, rng.random() * 0.001, rng.expovariate(2))))
        for first, at in enumerate(starts):
            within = [later for later in starts[first:] if later < at + period_s - 1e-6]
            assert len(within) <= limit, f"seed {seed}: {len(within)} starts from {at} on"


def test_sixteen_threads_keep_to_a_budget_that_they_lend_and_return(tmp_path: Path) -> None:
    limit = 2_000
    opened = store.open(str(tmp_path / "rota.db"), clock=SystemClock())
    kernel = Kernel(opened)
    kernel.projects.create("lab")
    kernel.ledger.set_budget("project", "lab", "tokens", limit, window_s=3_600)
    pid = kernel.agents.create("agent", project_id="lab")
    kernel.queue.enqueue_many([ScheduleSpec(pid, ceiling={"tokens": 100}) for _ in range(60)])
    used, problems = [0] * WORKERS, []

    def work(number: int) -> None:
        rng = random.Random(number)
        try:
            for _ in range(8):
                for run in kernel.queue.claim(worker_id=f"worker {number}"):
                    used[number] += _use(kernel, run, rng)
        except BaseException as problem:  # shown by the test
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    (line,) = kernel.ledger.budgets()
    assert 0 < line.used == sum(used) <= limit
    assert line.used + line.reserved <= limit
    opened.close()


def _use(kernel: Kernel, run: ReadyEntry, rng: random.Random) -> int:
    """Lend, collect and charge as much as the ceiling allows; returns what was charged."""
    token, used = run.token or 0, 0
    for _ in range(3):
        left = kernel.queue.get(run.sched_id).ceiling.get("tokens", 0) - used
        if left > 1 and rng.random() < 0.5:
            spec = ScheduleSpec(run.pid, parent_id=run.sched_id, priority=1)
            kernel.supervision.spawn(spec, token, {"tokens": rng.randint(1, left)})
        elif left > 0:
            amount = rng.randint(1, left)
            kernel.queue.charge(run.sched_id, {"tokens": amount}, token=token)
            used += amount
        kernel.supervision.rest(run.sched_id, token, waiting=False)
    kernel.queue.complete(run.sched_id, rng.choice(("completed", "failed", "crashed")), token=token)
    return used


# --- loans, one by one ---------------------------------------------------------------------------


@pytest.fixture
def lab() -> Lab:
    return Lab()


class Lab:
    """A project with a budget of 1,000 tokens and one agent in it."""

    def __init__(self, limit: int = 1_000) -> None:
        self.world = World()
        self.limit = limit
        self.world.projects.create("lab")
        self.world.ledger.set_budget("project", "lab", "tokens", limit, window_s=WINDOW_S * 100)
        self.pid = self.world.agent(project_id="lab")

    def start(self, ceiling: int, **spec: Any) -> ReadyEntry:
        """Enqueue an entry, and claim it; raises if it may not run."""
        sched_id = self.world.put(self.pid, ceiling={"tokens": ceiling}, **spec)
        return self.claim(sched_id)

    def claim(self, sched_id: int) -> ReadyEntry:
        return self.world.queue.force_claim(sched_id, worker_id="worker")

    def lend(self, parent: ReadyEntry, amount: int, **spec: Any) -> int:
        wanted = ScheduleSpec(spec.pop("pid", self.pid), parent_id=parent.sched_id, **spec)
        return self.world.kernel.supervision.spawn(wanted, parent.token or 0, {"tokens": amount})

    def collect(self, parent: ReadyEntry) -> dict[str, int]:
        return self.world.kernel.supervision.rest(parent.sched_id, parent.token or 0, waiting=False)

    def charge(self, run: ReadyEntry, amount: int) -> None:
        self.world.queue.charge(run.sched_id, {"tokens": amount}, token=run.token)

    def end(self, run: ReadyEntry, exit_kind: str = "completed") -> None:
        self.world.queue.complete(run.sched_id, exit_kind, token=run.token)

    def ceiling(self, sched_id: int) -> int:
        return self.world.queue.get(sched_id).ceiling["tokens"]

    @property
    def reserved(self) -> int:
        return self.world.ledger.budgets()[0].reserved

    @property
    def free(self) -> int:
        line = self.world.ledger.budgets()[0]
        return line.limit - line.used - line.reserved


def test_what_a_child_left_is_free_for_nobody_until_its_parent_has_collected_it(lab: Lab) -> None:
    parent = lab.start(1_000)
    child = lab.claim(lab.lend(parent, 900))
    lab.end(child)
    assert lab.reserved == 1_000
    with pytest.raises(RotaError, match="asked is over"):
        lab.start(900)  # it would be spent twice
    assert lab.collect(parent) == {"tokens": 900}
    lab.charge(parent, 1_000)
    assert lab.world.ledger.budgets()[0].used == 1_000


def test_a_loan_is_reserved_from_the_first_moment_and_by_one_of_the_two(lab: Lab) -> None:
    parent = lab.start(700)
    assert lab.free == 300
    child_id = lab.lend(parent, 400)
    assert lab.free == 300  # queued
    child = lab.claim(child_id)
    assert lab.free == 300  # running
    lab.charge(child, 150)
    assert lab.free == 300
    lab.end(child, "crashed")
    assert (lab.free, lab.ceiling(child_id)) == (300, 250)  # retried
    lab.world.clock.advance(10)
    lab.world.queue.cancel(child_id)
    assert lab.free == 300  # cancelled before it starts again
    assert lab.collect(parent) == {"tokens": 250}
    assert (lab.free, lab.ceiling(parent.sched_id)) == (300, 550)
    assert lab.collect(parent) == {}


def test_a_run_can_lend_its_whole_budget(lab: Lab) -> None:
    parent = lab.start(1_000)
    child = lab.claim(lab.lend(parent, 1_000))
    grandchild = lab.claim(lab.lend(child, 1_000))
    assert lab.free == 0
    lab.charge(grandchild, 400)
    lab.end(grandchild)
    assert lab.collect(child) == {"tokens": 600}
    lab.end(child)
    assert (lab.collect(parent), lab.free) == ({"tokens": 600}, 0)


def test_what_a_grandchild_uses_does_not_return_to_the_grandparent(lab: Lab) -> None:
    parent = lab.start(1_000)
    child = lab.claim(lab.lend(parent, 900))
    grandchild = lab.claim(lab.lend(child, 800))
    lab.charge(grandchild, 800)
    lab.end(grandchild)
    lab.end(child)  # without collecting
    assert lab.collect(parent) == {"tokens": 100}
    assert (lab.ceiling(parent.sched_id), lab.reserved) == (200, 200)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_child_on_a_loan_starts_though_the_budget_is_used_up(policy: str) -> None:
    lab = Lab(100)
    parent = lab.start(100)
    for number in range(5):  # ahead of it, in several groups
        lab.world.put(lab.pid, ceiling={"tokens": 40 + number}, priority=5)
    child_id = lab.lend(parent, 40)
    assert [entry.sched_id for entry in lab.world.queue.peek(3)] == [child_id]
    told = explain(lab.world.dispatcher, child_id, policy=policy)
    assert (told.blocking, told.ordering, told.position) == ((), (), 1)
    found = lab.world.dispatcher.claim("worker", 3, policy=policy)
    assert [entry.sched_id for entry in found] == [child_id]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_child_on_a_loan_starts_though_the_budget_of_all_projects_is_used_up(policy: str) -> None:
    lab = Lab(1_000)
    lab.world.ledger.set_budget("global", "*", "tokens", 100)
    parent = lab.start(100)
    other = lab.world.agent("other")
    lab.world.projects.grant("lab", None)
    lab.world.put(other, priority=9)
    child_id = lab.lend(parent, 100, pid=other)
    found = lab.world.dispatcher.claim("worker", 3, policy=policy)
    assert [entry.sched_id for entry in found] == [child_id]


def test_an_entry_with_the_same_ceiling_does_not_hide_a_child_on_a_loan() -> None:
    lab = Lab(100)
    parent = lab.start(90)
    spec = {"parent_id": parent.sched_id, "ceiling": {"tokens": 40}, "priority": 5}
    lab.world.put(lab.pid, **spec)  # a child without a loan: the same agent, the same needs
    child_id = lab.lend(parent, 40)
    assert lab.world.take_ids() == [child_id]


def test_the_loan_of_a_parent_that_ended_is_free_and_returns_to_nobody(lab: Lab) -> None:
    parent = lab.start(1_000)
    ended = lab.claim(lab.lend(parent, 300))
    queued_id = lab.lend(parent, 200)
    running = lab.claim(lab.lend(parent, 100))
    lab.end(ended)
    lab.end(parent)
    assert lab.reserved == 100  # of the child that runs
    big = lab.start(900)
    with pytest.raises(RotaError, match="asked is over"):
        lab.claim(queued_id)  # it is an entry like any other now
    lab.end(big)
    lab.end(running)
    assert lab.claim(queued_id).ceiling == {"tokens": 200}


@pytest.mark.parametrize("how", ["crashed", "reclaimed", "put back"])
def test_a_retried_parent_asks_for_its_whole_ceiling_and_collects_nothing_of_its_earlier_attempt(
    lab: Lab, how: str
) -> None:
    parent = lab.start(1_000)
    child = lab.claim(lab.lend(parent, 600))
    lab.end(lab.claim(lab.lend(parent, 100)))
    if how == "crashed":
        lab.end(parent, "crashed")
    elif how == "put back":
        lab.world.queue.put_back(parent.sched_id, token=parent.token or 0)
    else:
        lab.world.clock.advance(3_000)
        lab.world.queue.heartbeat(child.sched_id, child.token or 0)
        lab.world.clock.advance(700)
        lab.world.queue.upkeep()
    assert lab.ceiling(parent.sched_id) == 1_000
    assert lab.reserved == 600  # of the child that runs
    lab.world.clock.advance(5)
    with pytest.raises(RotaError, match="asked is over"):
        lab.claim(parent.sched_id)
    lab.charge(child, 500)
    lab.end(child)
    lab.world.ledger.set_budget("project", "lab", "tokens", 1_500, window_s=WINDOW_S * 100)
    again = lab.claim(parent.sched_id)
    assert (lab.collect(again), lab.free) == ({}, 0)


def test_a_retried_child_has_what_it_and_its_own_children_left(lab: Lab) -> None:
    parent = lab.start(1_000)
    child_id = lab.lend(parent, 800)
    child = lab.claim(child_id)
    lab.charge(child, 100)
    grandchild = lab.claim(lab.lend(child, 300))
    lab.charge(grandchild, 50)
    lab.end(grandchild)
    running = lab.claim(lab.lend(child, 200))
    lab.end(child, "crashed")
    assert lab.ceiling(child_id) == 800 - 100 - 50 - 200
    assert lab.reserved == 200 + 450 + 200  # of the parent, the loan to the child, the grandchild that runs
    lab.end(running)
    lab.world.clock.advance(5)
    lab.claim(child_id)
    assert lab.free == 1_000 - 150 - 650


def test_a_loan_to_another_project_stays_reserved_in_the_parents_own(lab: Lab) -> None:
    world = lab.world
    world.projects.create("shop")
    world.projects.grant("lab", "shop")
    world.ledger.set_budget("project", "shop", "tokens", 500)
    world.ledger.set_budget("global", "*", "tokens", 1_000)
    keeper = world.agent("keeper", project_id="shop")
    parent = lab.start(1_000)
    child = lab.claim(lab.lend(parent, 400, pid=keeper))
    reserved = {line.owner: line.reserved for line in world.ledger.budgets()}
    assert reserved == {"lab": 1_000, "shop": 400, "*": 1_000}
    lab.charge(child, 100)
    reserved = {line.owner: line.reserved for line in world.ledger.budgets()}
    assert reserved == {"lab": 900, "shop": 300, "*": 900}


def test_a_loan_that_a_child_lends_on_stays_reserved_with_every_lender(lab: Lab) -> None:
    """What the grandchild leaves may return through the child to the first lender, so it is free in none of them."""
    world = lab.world
    world.ledger.set_budget("global", "*", "tokens", 1_000)
    for project in ("shop", "depot"):
        world.projects.create(project)
        world.ledger.set_budget("project", project, "tokens", 1_000)
    world.projects.grant("lab", "shop")
    world.projects.grant("shop", "depot")
    keeper, carrier = world.agent("keeper", project_id="shop"), world.agent("carrier", project_id="depot")

    def reserved() -> dict[str, int]:
        return {line.owner: line.reserved for line in world.ledger.budgets()}

    parent = lab.start(1_000)
    child = lab.claim(lab.lend(parent, 800, pid=keeper))
    grandchild_id = lab.lend(child, 500, pid=carrier)
    assert reserved() == {"lab": 1_000, "shop": 800, "depot": 0, "*": 1_000}  # queued
    grandchild = lab.claim(grandchild_id)
    assert reserved() == {"lab": 1_000, "shop": 800, "depot": 500, "*": 1_000}
    with pytest.raises(RotaError, match="asked is over"):
        lab.start(1)
    lab.charge(grandchild, 100)
    lab.end(grandchild)
    assert reserved() == {"lab": 900, "shop": 700, "depot": 0, "*": 900}
    assert lab.collect(child) == {"tokens": 400}
    lab.end(child)
    assert reserved() == {"lab": 900, "shop": 0, "depot": 0, "*": 900}
    assert lab.collect(parent) == {"tokens": 700}
    assert (lab.ceiling(parent.sched_id), reserved()["lab"]) == (900, 900)


def test_a_loan_to_another_agent_stays_reserved_on_the_ledger_of_the_parents(lab: Lab) -> None:
    world = lab.world
    world.ledger.create(lab.pid, {"tokens": 1_000})
    other = world.agent("other", project_id="lab")
    parent = lab.start(1_000)
    child = lab.claim(lab.lend(parent, 900, pid=other))
    world.ledger.set_budget("project", "lab", "tokens", 10_000, window_s=WINDOW_S * 100)
    with pytest.raises(RotaError, match="of agent"):
        lab.start(900)
    lab.charge(child, 800)  # on the budget of its project; the agent of the child has no ledger
    lab.end(child)
    lab.start(800)
    assert lab.collect(parent) == {"tokens": 100}
    lab.charge(parent, 200)


def test_a_loan_is_reserved_in_the_limits_that_the_parent_draws_on() -> None:
    lab = Lab(100_000)
    lab.world.contexts.create(bound_to="name", bound_id="api", budget=100, period_s=PERIOD_S)
    parent = lab.start(100, draws_on=("api",))
    child = lab.claim(lab.lend(parent, 90, draws_on=("api",)))
    lab.end(child)
    with pytest.raises(RotaError, match="api"):
        lab.start(90, draws_on=("api",))
    lab.collect(parent)
    child_id = lab.lend(parent, 100, draws_on=("api",))
    assert child_id in lab.world.take_ids()


def test_a_child_that_exists_already_gets_no_second_loan(lab: Lab) -> None:
    parent = lab.start(1_000)
    child_id = lab.lend(parent, 300, key="part 1")
    assert lab.lend(parent, 300, key="part 1") == child_id
    assert (lab.ceiling(parent.sched_id), lab.reserved) == (700, 1_000)
    lab.end(parent, "crashed")
    lab.world.clock.advance(10)
    parent = lab.claim(parent.sched_id)
    assert lab.lend(parent, 300, key="part 1") == child_id
    assert lab.ceiling(parent.sched_id) == 1_000


def test_a_copy_of_an_entry_has_no_loan(lab: Lab) -> None:
    parent = lab.start(1_000)
    child = lab.claim(lab.lend(parent, 300, max_attempts=1))
    lab.end(child, "failed")
    copy_id = lab.world.queue.retry(child.sched_id)
    with pytest.raises(RotaError, match="asked is over"):
        lab.claim(copy_id)


# --- refunds -------------------------------------------------------------------------------------


def test_a_refund_does_not_take_back_what_another_agent_used(lab: Lab) -> None:
    world, other = lab.world, lab.world.agent("other", project_id="lab")
    world.contexts.create(bound_to="project", bound_id="lab", budget=1_000, period_s=60)
    for pid in (lab.pid, other):
        world.ledger.create(pid, {"tokens": 5_000})
    world.ledger.charge(lab.pid, "tokens", 400)
    world.clock.advance(WINDOW_S * 101)
    world.ledger.charge(other, "tokens", 400)
    world.ledger.refund(lab.pid, "tokens", 400)  # of what has left the window and the period
    assert world.ledger.get(lab.pid)[0].used == 0
    (line,) = world.ledger.budgets()
    (context,) = world.contexts.list()
    assert (line.used, context.remaining) == (400, 600)

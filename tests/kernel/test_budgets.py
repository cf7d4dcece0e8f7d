"""Budgets of projects and of all projects together, per rolling window, to the edge of a bucket."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.errors import LedgerInvalidAmount
from rota.kernel import ScheduleSpec
from rota.kernel.usage_windows import BUCKETS, ROLL_MAX
from rota.model.events import BudgetSet
from rota.model.reasons import OverBudget
from rota.service.dispatcher import Dispatcher
from tests.kernel.world import START, World

WINDOW_S = float(BUCKETS)  # a window whose buckets are one second wide


def spend(world: World, pid: int, tokens: int) -> None:
    """Run an entry that uses this many tokens."""
    sched_id = world.put(pid)
    world.queue.force_claim(sched_id, worker_id="spender", admission_check=False)
    world.queue.charge(sched_id, {"tokens": tokens})
    world.queue.complete(sched_id, "completed")


def _over(level: str, owner: str, used: int, *, frees_at: float) -> OverBudget:
    return OverBudget(
        level=level, owner=owner, dim="tokens", used=used, reserved=0, ask=1, limit=100, frees_at=frees_at
    )


def used(world: World, owner: str = "lab") -> int:
    world.queue.upkeep()
    return next(budget.used for budget in world.ledger.budgets() if budget.owner == owner)


@pytest.mark.parametrize(("spent", "runs"), [(0, True), (99, True), (100, False), (101, False)])
def test_a_project_that_has_used_up_its_budget_does_not_run(world: World, lab: int, spent: int, runs: bool) -> None:
    world.ledger.set_budget("project", "lab", "tokens", 100, window_s=WINDOW_S)
    spend(world, lab, spent)
    sched_id, free = world.put(lab, priority=9), world.put(world.agent())
    assert world.take_ids() == ([sched_id, free] if runs else [free])
    if not runs:
        assert world.reasons_against(sched_id) == [_over("project", "lab", spent, frees_at=START + 1 + WINDOW_S)]


def test_usage_leaves_its_window_with_its_bucket_at_most_one_bucket_late(world: World, lab: int) -> None:
    world.ledger.set_budget("project", "lab", "tokens", 100, window_s=WINDOW_S)
    world.clock.advance(0.25)
    spend(world, lab, 60)  # in the bucket from 1000 to 1001
    world.clock.advance(0.75)
    spend(world, lab, 40)  # at 1001: in the next
    sched_id = world.put(lab)
    exact = START + 0.25 + WINDOW_S
    world.clock.advance(exact - world.now)
    assert used(world) == 100
    world.clock.advance(START + 1 + WINDOW_S - 0.001 - world.now)
    assert (used(world), world.take()) == (100, [])
    world.clock.advance(0.001)
    assert used(world) == 40
    assert world.take_ids() == [sched_id]
    world.clock.advance(1)
    assert used(world) == 0


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 50)), min_size=1, max_size=8))
def test_the_sum_of_a_window_is_never_below_the_exact_one_and_at_most_a_bucket_above(
    charges: list[tuple[int, int]],
) -> None:
    """Charges quarter-seconds apart, checked after each: exact ≤ stored ≤ exact for a window one bucket longer."""
    world = World()
    world.projects.create("lab")
    pid = world.agent(project_id="lab")
    world.ledger.create(pid, {"tokens": 10**9})
    world.ledger.set_budget("project", "lab", "tokens", 10**9, window_s=WINDOW_S)
    story: list[tuple[float, int]] = []
    for pause, amount in charges:
        world.clock.advance(pause / 4)
        world.ledger.charge(pid, "tokens", amount)
        story.append((world.now, amount))
        exact = sum(amount for at, amount in story if at > world.now - WINDOW_S)
        longer = sum(amount for at, amount in story if at > world.now - WINDOW_S - 1)
        assert exact <= used(world) <= longer
    world.close()


def test_a_budget_shows_the_usage_in_its_window_even_before_a_claim(world: World, lab: int) -> None:
    world.ledger.set_budget("project", "lab", "tokens", 100, window_s=WINDOW_S)
    spend(world, lab, 60)
    world.clock.advance(WINDOW_S + 1)
    (budget,) = world.ledger.budgets()
    assert budget.used == 0


def test_a_budget_shows_what_live_claims_have_reserved(world: World, lab: int) -> None:
    world.ledger.set_budget("project", "lab", "tokens", 100, window_s=WINDOW_S)
    world.ledger.set_budget("global", "*", "tokens", 1_000, window_s=WINDOW_S)
    world.put(lab, ceiling={"tokens": 40})
    world.put(lab)
    world.take(2)
    assert {budget.owner: budget.reserved for budget in world.ledger.budgets()} == {"lab": 41, "*": 41}


def test_a_refund_of_what_left_the_window_is_no_credit(world: World, lab: int) -> None:
    world.ledger.set_budget("project", "lab", "tokens", 100, window_s=WINDOW_S)
    world.ledger.create(lab, {"tokens": 1_000})
    world.ledger.charge(lab, "tokens", 50)
    world.clock.advance(WINDOW_S + 1)
    assert used(world) == 0
    world.ledger.refund(lab, "tokens", 50)
    assert used(world) == 0
    world.ledger.charge(lab, "tokens", 30)
    assert used(world) == 30


def test_a_refund_of_what_is_in_the_window_leaves_it_at_once_and_only_once(world: World, lab: int) -> None:
    world.ledger.set_budget("project", "lab", "tokens", 100, window_s=WINDOW_S)
    world.ledger.create(lab, {"tokens": 1_000})
    world.ledger.charge(lab, "tokens", 80)
    world.clock.advance(100)
    world.ledger.refund(lab, "tokens", 50)
    assert used(world) == 30
    world.clock.advance(WINDOW_S - 99)
    assert used(world) == 0
    world.clock.advance(WINDOW_S)
    assert used(world) == 0


def test_all_projects_together_can_have_budgets(world: World, lab: int) -> None:
    world.ledger.set_budget("global", "*", "tokens", 100, window_s=WINDOW_S)
    stranger = world.agent()
    spend(world, lab, 60)
    spend(world, stranger, 40)
    ids = [world.put(lab), world.put(stranger)]
    assert world.take() == []
    for sched_id in ids:
        assert world.reasons_against(sched_id) == [_over("global", "*", 100, frees_at=START + 1 + WINDOW_S)]
    world.ledger.set_budget("global", "*", "tokens", None)
    assert world.take_ids() == ids


def test_a_budget_of_zero_blocks_a_project_until_it_is_removed(world: World, lab: int) -> None:
    sched_id = world.put(lab)
    world.ledger.set_budget("project", "lab", "tokens", 0)
    assert world.take() == []
    assert world.facts()[-1] == BudgetSet(level="project", owner="lab", dim="tokens", limit=0, window_s=86_400.0)
    world.ledger.set_budget("project", "lab", "tokens", None)
    assert world.ledger.budgets() == []
    assert world.take_ids() == [sched_id]


def test_a_budget_in_one_dimension_does_not_count_another(world: World, lab: int) -> None:
    world.ledger.set_budget("project", "lab", "cost_micro", 10)
    spend(world, lab, 1_000)
    sched_id = world.put(lab)
    assert world.take_ids() == [sched_id]


def test_the_window_of_a_budget_can_be_changed(world: World, lab: int) -> None:
    world.ledger.set_budget("project", "lab", "tokens", 100, window_s=WINDOW_S)
    world.ledger.set_budget("project", "lab", "tokens", 50, window_s=2 * WINDOW_S)
    (budget,) = world.ledger.budgets()
    assert (budget.limit, budget.window_s) == (50, 2 * WINDOW_S)
    spend(world, lab, 20)
    assert used(world) == 20


@pytest.mark.parametrize(
    "wrong",
    [
        {"level": "planet"},
        {"owner": ""},
        {"owner": "*"},
        {"level": "global"},
        {"dim": ""},
        {"limit": -1},
        {"limit": True},
        {"limit": 1.5},
        {"window_s": 0},
        {"window_s": float("nan")},
        {"window_s": float("inf")},
    ],
)
@pytest.mark.usefixtures("lab")
def test_an_invalid_budget_is_refused(world: World, wrong: dict[str, Any]) -> None:
    before = world.everything()
    good: dict[str, Any] = {"level": "project", "owner": "lab", "dim": "tokens", "limit": 5, "window_s": 60.0}
    with pytest.raises(LedgerInvalidAmount):
        world.ledger.set_budget(**(good | wrong))
    assert world.everything() == before


def test_many_windows_are_rolled_a_batch_at_a_time_and_none_is_forgotten(world: World) -> None:
    pid = None
    for n in range(ROLL_MAX + 1):
        world.projects.create(f"p{n}")
        pid = world.agent(project_id=f"p{n}")
        world.ledger.create(pid, {"tokens": 1_000})
        world.ledger.set_budget("project", f"p{n}", "tokens", 10, window_s=WINDOW_S)
        world.ledger.charge(pid, "tokens", 10)
    world.clock.advance(WINDOW_S + 1)
    assert pid is not None
    sched_id = world.put(pid)
    world.queue.upkeep()
    full = world.rows(f"SELECT count(*) FROM usage_windows WHERE used > 0 AND window_s = {WINDOW_S}")
    assert full == [(1,)]
    world.queue.upkeep()
    assert world.take_ids() == [sched_id]


@pytest.mark.parametrize("exit_kind", ["failed", "crashed", "cancelled"])
def test_a_project_whose_runs_all_end_badly_does_not_stay_first_for_ever(world: World, exit_kind: str) -> None:
    """A run that ended in any way counts for its project's share."""
    api = Dispatcher(world.kernel, "fair_share")
    pids = {}
    for name in ("bad", "good"):
        world.projects.create(name)
        pids[name] = world.agent(project_id=name)
        world.queue.enqueue_many([ScheduleSpec(pids[name])] * 20)
    served = []
    for _ in range(20):
        (entry,) = api.claim("worker")
        served.append(entry.project_id)
        world.queue.complete(entry.sched_id, exit_kind if entry.project_id == "bad" else "completed")
    assert served.count("good") == served.count("bad") == 10

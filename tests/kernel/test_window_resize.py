"""Resizing a usage window: its usage moves to the new buckets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.errors import LedgerInvalidAmount
from rota.kernel.usage_windows import BUCKETS, SHARE_WINDOW_S
from rota.model.events import ShareWindowSet
from rota.service.dispatcher import Dispatcher
from tests.kernel.test_budgets import spend, used
from tests.kernel.world import World

SHARES = "SELECT owner, used, ended FROM usage_windows WHERE dim = 'share'"
WINDOW_S = float(BUCKETS)  # buckets of one second


def shares(world: World) -> dict[str, tuple[int, int]]:
    """What fair_share sees of each project: what it used, and how many of its runs have ended."""
    world.queue.upkeep()
    return {owner: (tokens, ended) for owner, tokens, ended in world.rows(SHARES)}


@pytest.fixture
def labs(world: World) -> dict[str, int]:
    pids = {}
    for name in ("a", "b"):
        world.projects.create(name)
        pids[name] = world.agent(project_id=name)
    return pids


def test_a_shorter_share_window_forgets_sooner_and_says_so_in_the_journal(world: World, labs: dict[str, int]) -> None:
    spend(world, labs["a"], 100)
    world.clock.advance(2 * 3600)
    spend(world, labs["a"], 7)
    spend(world, labs["b"], 30)
    assert shares(world) == {"a": (107, 2), "b": (30, 1)}
    world.ledger.set_share_window(3600.0)
    assert world.facts()[-1] == ShareWindowSet(window_s=3600.0, previous_s=SHARE_WINDOW_S)
    assert world.ledger.share_window() == 3600.0
    assert shares(world) == {"a": (7, 1), "b": (30, 1)}
    world.clock.advance(3600 * (1 + 1 / BUCKETS) + 300)
    assert shares(world) == {"a": (0, 0), "b": (0, 0)}


def test_a_longer_share_window_keeps_what_is_known_and_counts_it_longer(world: World, labs: dict[str, int]) -> None:
    world.ledger.set_share_window(3600.0)
    spend(world, labs["a"], 50)
    world.clock.advance(1800)
    world.ledger.set_share_window(7200.0)
    world.clock.advance(3600)
    assert shares(world)["a"] == (50, 1)
    world.clock.advance(3600)
    assert shares(world)["a"] == (0, 0)


def test_a_project_made_later_is_counted_in_the_same_window(world: World) -> None:
    world.ledger.set_share_window(3600.0)
    world.projects.create("late")
    spend(world, world.agent(project_id="late"), 5)
    world.clock.advance(3600 + 60)
    assert shares(world) == {"late": (0, 0)}


def test_the_length_that_is_there_already_writes_nothing(world: World) -> None:
    before = world.facts()
    world.ledger.set_share_window(SHARE_WINDOW_S)
    assert world.facts() == before


@pytest.mark.parametrize("bad", [0, -1, float("inf"), "1h", True])
def test_a_length_that_is_none_is_refused(world: World, bad: float) -> None:
    with pytest.raises(LedgerInvalidAmount, match="window_s"):
        world.ledger.set_share_window(bad)


def test_who_was_served_beyond_the_window_goes_first_again(world: World, labs: dict[str, int]) -> None:
    """The policy itself looks back as far as it is told: yesterday's big spender is even again."""
    spend(world, labs["a"], 1_000)
    spend(world, labs["b"], 1)
    world.clock.advance(2 * 3600)
    spend(world, labs["b"], 10)
    spend(world, labs["a"], 1)
    first, second = world.put(labs["a"]), world.put(labs["b"])
    api = Dispatcher(world.kernel, "fair_share")
    (day,) = api.claim("w", 1)
    assert day.sched_id == second
    world.queue.complete(day.sched_id, "completed")
    world.put(labs["b"])
    world.ledger.set_share_window(3600.0)
    (hour,) = api.claim("w", 1)
    assert hour.sched_id == first


def test_a_budget_does_not_start_afresh_when_its_window_changes(world: World) -> None:
    world.projects.create("lab")
    pid = world.agent(project_id="lab")
    world.ledger.set_budget("project", "lab", "tokens", 100, window_s=WINDOW_S)
    spend(world, pid, 100)
    world.ledger.set_budget("project", "lab", "tokens", 100, window_s=2 * WINDOW_S)
    assert used(world) == 100
    world.clock.advance(WINDOW_S + 2)
    assert used(world) == 100
    world.clock.advance(WINDOW_S)
    assert used(world) == 0


@given(
    st.lists(st.tuples(st.integers(0, 600), st.integers(1, 50)), min_size=1, max_size=8),
    st.sampled_from([0.5, 1.0, 2.0, 3.0]),
    st.integers(0, 600),
)
def test_after_a_change_of_length_usage_is_never_below_what_is_known_and_at_most_two_buckets_above(
    charges: list[tuple[int, int]], factor: float, later: int
) -> None:
    world = World()
    world.projects.create("lab")
    pid = world.agent(project_id="lab")
    world.ledger.create(pid, {"tokens": 10**9})
    world.ledger.set_budget("project", "lab", "tokens", 10**9, window_s=WINDOW_S)
    story = []
    for pause, amount in charges:
        world.clock.advance(pause / 4)
        world.ledger.charge(pid, "tokens", amount)
        story.append((world.now, amount))
    known_since = world.now - WINDOW_S
    used(world)
    new_s = WINDOW_S * factor
    world.ledger.set_budget("project", "lab", "tokens", 10**9, window_s=new_s)
    world.clock.advance(later / 4)
    exact = sum(amount for at, amount in story if at > max(world.now - new_s, known_since))
    longer = sum(amount for at, amount in story if at > world.now - new_s - 1 - factor)
    assert exact <= used(world) <= longer
    world.close()

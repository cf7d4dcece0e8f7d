"""Reservations: used, reserved and asked together stay within every limit, at every level."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rota.kernel import ScheduleSpec
from rota.model.events import EntriesClaimed
from rota.model.reasons import OverBudget
from tests.kernel.world import START, World


def over(who: str, used: int, reserved: int, ask: int, limit: int, *, frees_at: float | None = None) -> OverBudget:
    """The reason that a budget does not allow it; who is "level owner"."""
    level, owner = who.split()
    return OverBudget(
        level=level,
        owner=owner,
        dim="tokens",
        used=used,
        reserved=reserved,
        ask=ask,
        limit=limit,
        frees_at=frees_at,
    )


def test_an_agents_runs_fit_iff_used_and_reserved_and_asked_stay_within_its_grant(world: World, pid: int) -> None:
    world.ledger.create(pid, {"tokens": 100})
    world.ledger.charge(pid, "tokens", 60)
    running = world.put(pid, ceiling={"tokens": 30})
    assert world.take_ids() == [running]
    too_much, fits = world.put(pid, ceiling={"tokens": 11}, priority=9), world.put(pid, ceiling={"tokens": 10})
    assert world.take_ids() == [fits]
    assert world.reasons_against(too_much) == [over(f"agent {pid}", 60, 40, 11, 100)]
    modest = world.put(pid)  # it says nothing, so it asks nothing of its agent's grant
    assert world.take_ids() == [modest]


def test_the_ask_is_the_ceiling_else_what_is_expected_else_a_default(world: World) -> None:
    world.projects.create("lab")
    pid = world.agent(project_id="lab")
    world.ledger.create(pid, {"tokens": 100})
    world.ledger.set_budget("project", "lab", "tokens", 100)
    world.ledger.charge(pid, "tokens", 100)
    entries = {
        world.put(pid, ceiling={"tokens": 7}, expected={"tokens": 5}): (7, 7),
        world.put(pid, expected={"tokens": 5}): (5, 5),
        world.put(pid, expected={"cpu_s": 5}): (None, 1),  # nothing of the agent's, one of the project's
    }
    frees_at = world.queue.upkeep()
    for sched_id, (of_agent, of_project) in entries.items():
        wanted = [over(f"agent {pid}", 100, 0, of_agent, 100)] if of_agent is not None else []
        wanted.append(over("project lab", 100, 0, of_project, 100, frees_at=frees_at))
        assert world.reasons_against(sched_id) == wanted


def test_one_claim_of_many_reserves_as_it_goes(world: World, pid: int) -> None:
    world.ledger.create(pid, {"tokens": 100})
    ids = [world.put(pid, expected={"tokens": 30}) for _ in range(5)]
    assert world.take_ids() == ids[:3]
    assert world.take() == []


def test_a_reservation_ends_with_its_claim(world: World, pid: int) -> None:
    world.ledger.create(pid, {"tokens": 100})
    first, second = (world.put(pid, ceiling={"tokens": 60}) for _ in range(2))
    entry = world.take_one(claim_timeout_s=10)
    assert world.take() == []
    world.queue.put_back(first, token=entry.token or 0, runnable_at=START + 5)
    assert world.take_ids(claim_timeout_s=10) == [second]
    world.clock.advance(10)
    world.queue.upkeep()  # the claim expired, and so did its reservation
    assert world.take_ids() == [first]


def test_what_a_run_has_spent_is_used_and_no_longer_reserved(world: World, pid: int) -> None:
    world.ledger.create(pid, {"tokens": 100})
    running = world.put(pid, ceiling={"tokens": 50})
    world.take_one()
    blocked = world.put(pid, ceiling={"tokens": 51})
    for spent, used, reserved in ((20, 20, 30), (30, 50, 0), (10, 60, 0)):
        world.queue.charge(running, {"tokens": spent})
        reason = over(f"agent {pid}", used, reserved, 51, 100)
        assert world.reasons_against(blocked) == [reason]
    world.queue.complete(running, "completed")
    assert world.reasons_against(blocked) == [over(f"agent {pid}", 60, 0, 51, 100)]


def test_all_three_levels_must_agree_and_the_strictest_is_named_first(world: World) -> None:
    world.projects.create("lab")
    pid = world.agent(project_id="lab")
    world.ledger.create(pid, {"tokens": 100})
    world.ledger.set_budget("project", "lab", "tokens", 90, window_s=288.0)
    world.ledger.set_budget("global", "*", "tokens", 95, window_s=288.0)
    world.put(pid, ceiling={"tokens": 50})
    world.take_one()
    blocked = world.put(pid, ceiling={"tokens": 60})
    assert world.reasons_against(blocked) == [
        over("project lab", 0, 50, 60, 90),
        over("global *", 0, 50, 60, 95),
        over(f"agent {pid}", 0, 50, 60, 100),
    ]
    world.ledger.set_budget("project", "lab", "tokens", 110, window_s=288.0)
    assert [reason.level for reason in world.reasons_against(blocked) if isinstance(reason, OverBudget)] == [
        "global",
        "agent",
    ]
    world.ledger.set_budget("global", "*", "tokens", 110, window_s=288.0)
    assert world.take() == []
    world.ledger.update_grant(pid, "tokens", 110)
    assert world.take_ids() == [blocked]


def test_reservations_at_project_and_fleet_are_of_all_their_agents(world: World) -> None:
    world.projects.create("lab")
    one, two, stranger = world.agent(project_id="lab"), world.agent(project_id="lab"), world.agent()
    world.ledger.set_budget("project", "lab", "tokens", 100)
    world.ledger.set_budget("global", "*", "tokens", 150)
    world.put(one, ceiling={"tokens": 70})
    world.put(stranger, ceiling={"tokens": 50})
    world.take(2)
    in_lab, outside = world.put(two, ceiling={"tokens": 31}), world.put(stranger, ceiling={"tokens": 31})
    assert world.reasons_against(in_lab) == [
        over("project lab", 0, 70, 31, 100),
        over("global *", 0, 120, 31, 150),
    ]
    assert world.reasons_against(outside) == [over("global *", 0, 120, 31, 150)]
    fits = world.put(two, ceiling={"tokens": 30})
    assert world.take_ids() == [fits]


def test_a_run_that_says_nothing_reserves_one_unit_of_a_project(world: World) -> None:
    world.projects.create("lab")
    pid = world.agent(project_id="lab")
    world.ledger.set_budget("project", "lab", "tokens", 3)
    ids = [world.put(pid) for _ in range(5)]
    assert world.take_ids() == ids[:3]
    world.queue.complete(ids[0], "completed")
    assert world.take_ids() == ids[3:4]


def test_an_entry_that_does_not_fit_hides_no_entry_behind_it(world: World) -> None:
    world.projects.create("lab")
    pid = world.agent(project_id="lab")
    world.ledger.set_budget("project", "lab", "tokens", 10)
    world.queue.enqueue_many([ScheduleSpec(pid, priority=9, ceiling={"tokens": 11})] * 50)
    small, free = world.put(pid, ceiling={"tokens": 10}), world.put(world.agent())
    assert world.take_ids(1) == [small]
    assert world.take_ids(1) == [free]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60)), min_size=1, max_size=10), st.integers(1, 100))
def test_joint_overspend_is_at_most_what_live_runs_charged_past_their_own_ask(
    runs: list[tuple[int, int]], limit: int
) -> None:
    world = World()
    world.projects.create("lab")
    pid = world.agent(project_id="lab")
    world.ledger.set_budget("project", "lab", "tokens", limit)
    said = {world.put(pid, ceiling={"tokens": ask}): (ask, charge) for ask, charge in runs}
    while live := world.take(3):
        past_their_ask = 0
        for entry in live:
            ask, charge = said[entry.sched_id]
            world.queue.charge(entry.sched_id, {"tokens": charge}, token=entry.token)
            past_their_ask += max(0, charge - ask)
        (budget,) = world.ledger.budgets()
        assert budget.used <= limit + past_their_ask
        for entry in live:
            world.queue.complete(entry.sched_id, "completed", token=entry.token)
    world.close()


def test_the_fact_of_a_claim_says_what_each_run_may_use(world: World, pid: int) -> None:
    sched_id = world.put(pid, ceiling={"tokens": 9}, expected={"tokens": 5, "cpu_s": 2})
    world.take_one(worker_id="sup", incarnation="i")
    fact = world.facts()[-1]
    assert isinstance(fact, EntriesClaimed)
    assert (fact.worker_id, fact.incarnation, fact.policy) == ("sup", "i", "strict")
    (claimed,) = fact.entries
    assert (claimed.sched_id, claimed.pid, claimed.attempt, claimed.ask) == (
        sched_id,
        pid,
        1,
        {"tokens": 9, "cpu_s": 2},
    )

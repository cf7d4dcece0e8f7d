"""Contexts: budgets per period that are drawn on by name, by call path, by agent or by project."""

from __future__ import annotations

from typing import Any

import pytest

from rota.clock import ManualClock
from rota.errors import (
    ContextExists,
    ContextIllegalTransition,
    ContextInvalid,
    ContextUnknown,
    ProjectUnknown,
    SchedInvalidPayload,
    StaleHandle,
    UnknownPid,
)
from rota.kernel import ScheduleSpec
from rota.kernel.contexts import REFILL_MAX
from rota.model import reasons
from rota.model.budgets import Handle
from rota.model.events import ContextAdjusted, ContextBudgetDepleted, ContextCreated, ContextReplenished, LimitThrottled
from rota.model.reasons import LimitExhausted
from tests.kernel.world import START, World


def limit(world: World, budget: int = 100, period_s: float = 60, unit: str = "tokens", name: str = "api") -> int:
    """Create a limit; returns its context id."""
    made = world.contexts.create(bound_to="name", bound_id=name, budget=budget, period_s=period_s, unit=unit)
    return made.context_id


def left(world: World, context_id: int) -> int:
    return world.contexts.get(context_id).remaining


# --- creating and reading ------------------------------------------------------------------------


def test_a_new_context_is_full_and_active(world: World) -> None:
    context_id = limit(world, 100, 60)
    context = world.contexts.get(context_id)
    assert (context.budget, context.period, context.remaining, context.state) == (100, 60_000, 100, "active")
    assert (context.bound_to, context.bound_id, context.unit, context.generation) == ("name", "api", "tokens", 0)
    assert (context.refills, world.contexts.list()) == ((), [context])
    assert world.facts()[-1] == ContextCreated(
        context_id=context_id, budget=100, period=60_000, bound_to="name", bound_id="api"
    )


def test_a_thing_has_one_context_of_each_unit_until_it_is_revoked(world: World) -> None:
    first = limit(world)
    limit(world, unit="requests")
    limit(world, name="other")
    before = world.everything()
    with pytest.raises(ContextExists) as caught:
        limit(world)
    assert caught.value.code == -32192
    assert world.everything() == before
    world.contexts.revoke(first)
    assert limit(world) > first  # ids are not reused


@pytest.mark.parametrize(
    "wrong",
    [
        {"bound_to": "planet"},
        {"bound_id": ""},
        {"bound_id": None},
        {"bound_id": True},
        {"budget": 0},
        {"budget": True},
        {"budget": 1.0},
        {"period_s": 0},
        {"period_s": float("nan")},
        {"period_s": float("inf")},
        {"period_s": "60"},
        {"unit": "ns"},
    ],
)
def test_an_invalid_context_is_refused(world: World, wrong: dict[str, Any]) -> None:
    before = world.everything()
    good: dict[str, Any] = {"bound_to": "name", "bound_id": "api", "budget": 5, "period_s": 60.0}
    with pytest.raises(ContextInvalid) as caught:
        world.contexts.create(**(good | wrong))
    assert caught.value.code == -32193
    assert world.everything() == before


def test_what_a_context_is_bound_to_must_exist(world: World) -> None:
    before = world.everything()
    with pytest.raises(UnknownPid):
        world.contexts.create(bound_to="agent", bound_id=99, budget=5, period_s=60)
    with pytest.raises(ProjectUnknown):
        world.contexts.create(bound_to="project", bound_id="nowhere", budget=5, period_s=60)
    assert world.everything() == before


def test_an_unknown_context_is_named(world: World) -> None:
    for call in (world.contexts.get, world.contexts.revoke):
        with pytest.raises(ContextUnknown) as caught:
            call(99)
        assert caught.value.code == -32191
    with pytest.raises(ContextUnknown):
        world.contexts.throttle("unknown", 5.0)


# --- using up and coming back --------------------------------------------------------------------


def test_what_is_used_comes_back_one_period_after_it_was_used(world: World) -> None:
    context_id = limit(world, 100, 60)
    world.contexts.charge(context_id, 30)
    world.clock.advance(20)
    world.contexts.charge(context_id, 50)
    assert left(world, context_id) == 20
    assert [(refill.at, refill.amount) for refill in world.contexts.get(context_id).refills] == [
        ((START + 60) * 1_000, 30),
        ((START + 80) * 1_000, 50),
    ]
    world.clock.advance(39.999)
    assert left(world, context_id) == 20
    world.clock.advance(0.001)
    assert left(world, context_id) == 50
    world.clock.advance(20)
    assert left(world, context_id) == 100


def test_an_overshoot_is_debt_and_later_refills_pay_for_it(world: World) -> None:
    context_id = limit(world, 100, 60)
    assert world.contexts.charge(context_id, 130).remaining == -30
    world.clock.advance(60)
    assert left(world, context_id) == 70
    world.clock.advance(60)
    assert left(world, context_id) == 100


def test_depletion_and_the_coming_back_are_on_record(world: World) -> None:
    context_id = limit(world, 100, 60)
    cursor = world.journal.cursor()
    world.contexts.charge(context_id, 100)
    assert world.contexts.get(context_id).state == "depleted"
    world.clock.advance(60)
    world.queue.upkeep()
    assert world.contexts.get(context_id).state == "active"
    facts = [fact for fact in world.facts(cursor) if isinstance(fact, (ContextBudgetDepleted, ContextReplenished))]
    assert facts == [
        ContextBudgetDepleted(context_id=context_id, remaining=0, refill_at=START + 60),
        ContextReplenished(context_id=context_id, amount=100, remaining=100),
    ]


@pytest.mark.parametrize("begins_at", [1_988.006, 1_988.008, 2_000.0, 2_037.151])
def test_a_refill_is_there_at_the_very_instant_that_was_named(begins_at: float) -> None:
    """Milliseconds and seconds of the same instant must not differ by a rounding, as they can at 2048.006."""
    clock = ManualClock(begins_at)
    world = World(clock=clock)
    context_id = limit(world, 10, 60)
    sched_id = world.put(world.agent(), draws_on=("api",))
    world.contexts.charge(context_id, 10)
    assert world.take() == []
    due_at = world.queue.upkeep()
    assert due_at is not None
    clock.advance(due_at - clock.now())
    clock.jump(due_at - clock.now())  # to the very instant: the sum above may be rounded
    assert world.take_ids() == [sched_id]
    world.close()


# --- drawing on a name ---------------------------------------------------------------------------


def test_all_who_draw_on_a_name_share_it_whatever_project_they_are_of(world: World) -> None:
    context_id = limit(world, 100, 60)
    world.projects.create("lab")
    first, second, third = world.agent(project_id="lab"), world.agent(), world.agent()
    a = world.put(first, draws_on=("api",), expected={"tokens": 60})
    b = world.put(second, draws_on=("api",), expected={"tokens": 60})
    free = world.put(third, expected={"tokens": 60})
    assert world.take_ids() == [a, free]  # 60 are reserved, 60 more do not fit
    assert world.reasons_against(b) == [LimitExhausted(name="api")]  # no refill would lift it, only the end of a run
    world.queue.charge(a, {"tokens": 30})
    world.queue.complete(a, "completed")
    assert left(world, context_id) == 70
    assert world.take_ids() == [b]


def test_an_entry_that_draws_on_several_names_needs_all_of_them(world: World) -> None:
    one, two = limit(world, 10, name="one"), limit(world, 10, name="two")
    sched_id = world.put(world.agent(), draws_on=("one", "two"), expected={"tokens": 4})
    world.contexts.charge(two, 10)
    assert world.take() == []
    assert world.reasons_against(sched_id) == [LimitExhausted(name="two", until_at=START + 60)]
    world.clock.advance(60)
    assert world.take_ids() == [sched_id]
    world.queue.charge(sched_id, {"tokens": 4})
    assert (left(world, one), left(world, two)) == (6, 6)


def test_an_entry_blocked_by_a_limit_hides_no_entry_behind_it(world: World) -> None:
    context_id = limit(world, 10)
    world.contexts.charge(context_id, 10)
    pid = world.agent()
    world.queue.enqueue_many([ScheduleSpec(pid, priority=9, draws_on=("api",))] * 30)
    free = world.put(pid)
    assert world.take_ids(1) == [free]


def test_a_claim_of_many_reserves_as_it_goes(world: World) -> None:
    limit(world, 100)
    pid = world.agent()
    ids = [world.put(pid, draws_on=("api",), expected={"tokens": 30}) for _ in range(5)]
    assert world.take_ids() == ids[:3]
    assert world.take_ids() == []


def test_an_ask_above_the_whole_budget_waits_for_a_full_allowance_instead_of_for_ever(world: World) -> None:
    context_id = limit(world, 10, 60)
    sched_id = world.put(world.agent(), draws_on=("api",), ceiling={"tokens": 1_000})
    world.contexts.charge(context_id, 1)
    assert world.take() == []
    world.clock.advance(60)
    assert world.take_ids() == [sched_id]


def test_a_name_that_no_limit_has_is_refused(world: World) -> None:
    pid = world.agent()
    with pytest.raises(SchedInvalidPayload, match="draws_on names 'unheard of', and no limit has this name"):
        world.put(pid, draws_on=("unheard of",))
    made = limit(world, 2, 60)
    specs = [ScheduleSpec(pid), ScheduleSpec(pid, draws_on=("api",)), ScheduleSpec(pid, draws_on=("ap1",))]
    with pytest.raises(SchedInvalidPayload, match=r"specs\[2\]: .*'ap1'"):
        world.queue.enqueue_many(specs)
    assert world.queue.counts() == {}
    world.contexts.revoke(made)
    with pytest.raises(SchedInvalidPayload, match="'api'"):
        world.put(pid, draws_on=("api",))


def test_requests_are_used_when_a_run_begins_and_tokens_when_they_are_charged(world: World) -> None:
    requests, tokens = limit(world, 2, 60, "requests"), limit(world, 100, 60)
    pid = world.agent()
    ids = [world.put(pid, draws_on=("api",)) for _ in range(3)]
    assert world.take_ids() == ids[:2]
    assert (left(world, requests), left(world, tokens)) == (0, 100)
    for sched_id in ids[:2]:
        world.queue.charge(sched_id, {"tokens": 20})
        world.queue.complete(sched_id, "completed")
    assert (left(world, requests), left(world, tokens)) == (0, 60)
    assert world.take() == []  # a request that ended was still made
    world.clock.advance(60)
    assert world.take_ids() == ids[2:]


def test_a_request_that_was_taken_is_in_the_fact_of_its_claim(world: World) -> None:
    context_id = limit(world, 5, 60, "requests")
    pid = world.agent()
    for _ in range(2):
        world.put(pid, draws_on=("api",))
    world.take(2)
    assert world.events()[-1].payload["contexts"] == {str(context_id): 2}


def test_without_the_admission_check_a_limit_is_passed_and_charged_all_the_same(world: World) -> None:
    context_id = limit(world, 1, 60, "requests")
    pid = world.agent()
    ids = [world.put(pid, draws_on=("api",)) for _ in range(2)]
    assert world.take_ids(admission_check=False) == ids
    assert left(world, context_id) == -1


# --- exactly one context pays ----------------------------------------------------------------------


def _family(world: World) -> tuple[int, int, dict[str, int]]:
    """An agent, the entry at the root of a call path, and a context bound to each."""
    world.projects.create("lab")
    pid = world.agent(project_id="lab")
    root = world.put(pid)
    bound: dict[str, str | int] = {"project": "lab", "agent": pid, "call_path": str(root)}
    ids = {
        level: world.contexts.create(bound_to=level, bound_id=to, budget=100, period_s=60).context_id
        for level, to in bound.items()
    }
    return pid, root, ids


def test_the_call_path_pays_else_the_agent_else_the_project(world: World) -> None:
    pid, root, ids = _family(world)
    world.take_ids()
    for payer in ("call_path", "agent", "project", None):
        child = world.put(pid, parent_id=root)
        world.take_one()
        world.queue.charge(child, {"tokens": 7})
        paid = {level for level, context_id in ids.items() if left(world, context_id) == 93}
        assert paid == ({payer} if payer is not None else set())
        for context_id in ids.values():
            world.clock.advance(60)
            assert left(world, context_id) == 100
        if payer is not None:
            world.contexts.revoke(ids.pop(payer))


def test_a_call_path_reaches_from_its_root_to_every_descendant(world: World) -> None:
    pid, root, ids = _family(world)
    child = world.put(pid, parent_id=root)
    grandchild = world.put(pid, parent_id=child)
    stranger = world.put(pid)
    world.take_ids()
    world.queue.charge(grandchild, {"tokens": 5})
    assert (left(world, ids["call_path"]), left(world, ids["agent"])) == (95, 100)
    world.queue.charge(stranger, {"tokens": 5})
    assert (left(world, ids["call_path"]), left(world, ids["agent"])) == (95, 95)


def test_a_depleted_context_of_an_agent_blocks_it_and_says_until_when(world: World) -> None:
    pid = world.agent()
    context_id = world.contexts.create(bound_to="agent", bound_id=pid, budget=10, period_s=60).context_id
    sched_id = world.put(pid)
    world.ledger.create(pid, {"tokens": 1_000})
    world.ledger.charge(pid, "tokens", 10)  # one charge updates the agent's line and its context
    assert left(world, context_id) == 0
    assert world.reasons_against(sched_id) == [reasons.ContextExhausted(context_id=context_id, until_at=START + 60)]
    world.ledger.refund(pid, "tokens", 10)
    assert world.take_ids() == [sched_id]


# --- throttling ----------------------------------------------------------------------------------


def test_throttle_blocks_every_entry_that_draws_on_the_limit(world: World) -> None:
    limit(world, 100)
    pid = world.agent()
    sched_id = world.put(pid, draws_on=("api",))
    free = world.put(pid)
    assert world.contexts.throttle("api", 30.0, by=sched_id) == START + 30
    assert world.facts()[-1] == LimitThrottled(name="api", until_at=START + 30, by=sched_id)
    assert world.take_ids() == [free]
    assert world.reasons_against(sched_id) == [LimitExhausted(name="api", until_at=START + 30)]
    world.clock.advance(29.9)
    assert world.take() == []
    assert world.queue.upkeep() == START + 30
    world.clock.advance(0.1)
    assert world.take_ids() == [sched_id]


def test_a_refill_does_not_end_a_pause_that_lasts_longer(world: World) -> None:
    context_id = limit(world, 10, 20)
    sched_id = world.put(world.agent(), draws_on=("api",))
    world.contexts.charge(context_id, 10)
    world.contexts.throttle("api", 50.0)
    world.clock.advance(20)
    assert world.take() == []
    assert world.queue.upkeep() == START + 50
    world.clock.advance(30)
    assert world.take_ids() == [sched_id]


def test_a_shorter_pause_does_not_cut_a_longer_one_short(world: World) -> None:
    limit(world, 100)
    sched_id = world.put(world.agent(), draws_on=("api",))
    world.contexts.throttle("api", 60.0)
    world.contexts.throttle("api", 5.0)  # a shorter pause, reported by another worker
    world.clock.advance(30)
    assert world.take() == []
    world.clock.advance(30)
    assert world.take_ids() == [sched_id]


# --- adjusting -----------------------------------------------------------------------------------


def test_an_adjustment_takes_effect_at_the_next_refill(world: World) -> None:
    context_id = limit(world, 100, 60)
    world.contexts.charge(context_id, 100)
    world.contexts.adjust(context_id, budget=150, period_s=30)
    assert world.facts()[-1] == ContextAdjusted(context_id=context_id, changes={"budget": 150, "period": 30_000})
    assert (world.contexts.get(context_id).budget, left(world, context_id)) == (100, 0)
    world.clock.advance(60)
    context = world.contexts.get(context_id)
    assert (context.budget, context.period, context.remaining) == (150, 30_000, 150)


def test_an_adjustment_takes_effect_immediately_if_no_refill_is_pending(world: World) -> None:
    context_id = limit(world, 100, 60)
    assert world.contexts.adjust(context_id, budget=40, period_s=30).remaining == 40


@pytest.mark.parametrize("wrong", [{"budget": 0}, {"budget": True}, {"period_s": -1}, {"period_s": float("nan")}])
def test_an_invalid_adjustment_changes_nothing(world: World, wrong: dict[str, Any]) -> None:
    context_id = limit(world)
    before = world.everything()
    good: dict[str, Any] = {"budget": 5, "period_s": 60.0}
    with pytest.raises(ContextInvalid):
        world.contexts.adjust(context_id, **(good | wrong))
    assert world.everything() == before


# --- revoking ------------------------------------------------------------------------------------


def test_a_revoked_context_blocks_nothing_and_its_handles_are_stale(world: World) -> None:
    context_id = limit(world, 10)
    world.contexts.charge(context_id, 10)
    sched_id = world.put(world.agent(), draws_on=("api",))
    handle = Handle(context_id, 0)
    assert world.contexts.resolve(handle).context_id == context_id
    world.contexts.revoke(context_id)
    assert world.take_ids() == [sched_id]
    before = world.everything()
    with pytest.raises(StaleHandle) as stale:
        world.contexts.resolve(handle)
    assert stale.value.code == -32195
    with pytest.raises(StaleHandle):
        world.contexts.charge(context_id, 1)
    with pytest.raises(StaleHandle):
        world.contexts.adjust(context_id, budget=5, period_s=5)
    with pytest.raises(ContextIllegalTransition) as caught:
        world.contexts.revoke(context_id)
    assert caught.value.code == -32302
    assert world.everything() == before


def test_many_contexts_are_refilled_a_batch_at_a_time_and_none_is_forgotten(world: World) -> None:
    ids = [limit(world, 1, 60, name=f"api-{n}") for n in range(REFILL_MAX + 1)]
    for context_id in ids:
        world.contexts.charge(context_id, 1)
    world.clock.advance(60)
    world.queue.upkeep()
    states = world.rows("SELECT state, count(*) FROM contexts GROUP BY state ORDER BY state")
    assert states == [("active", REFILL_MAX), ("depleted", 1)]
    world.queue.upkeep()
    assert world.rows("SELECT DISTINCT state FROM contexts") == [("active",)]

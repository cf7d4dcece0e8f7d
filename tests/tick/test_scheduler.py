"""The tick scheduler beyond its specification: capacity, growth, any policy, bad input."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from rota.errors import PolicyInvalid, RotaError, UnknownPid, UnknownPolicy
from rota.model.reasons import PickReason
from rota.model.snapshot import Decision, Decisions, Snapshot
from rota.policy import registry, virtual_time
from rota.policy.contract import Policy
from rota.tick import AgentDescriptor, AgentProcessState, NPCIntentType, ProcessTable, SchedulerConfig, TickScheduler
from rota.tick import scheduler as scheduler_module

EEVDF = Policy(name="fair by virtual time", rank=virtual_time.rank, sentence="Least virtual deadline.")


def table_of(*priorities: float) -> ProcessTable:
    table = ProcessTable()
    for priority in priorities:
        table.spawn_agent(AgentDescriptor(priority=priority, state=AgentProcessState.READY))
    return table


def run(scheduler: TickScheduler, ticks: range) -> list[list[int]]:
    """Execute every schedule completely."""
    orders = []
    for tick in ticks:
        orders.append(scheduler.build_schedule(tick))
        scheduler.record_execution(orders[-1], tick)
    return orders


# --- capacity and growth -------------------------------------------------------------------------


def test_the_default_growth_is_fixed_without_a_capacity_and_linear_with_one() -> None:
    assert SchedulerConfig().growth == "fixed"
    assert SchedulerConfig(max_per_tick=1).growth == "linear"
    assert SchedulerConfig(max_per_tick=1, starvation_growth="fixed").growth == "fixed"
    assert SchedulerConfig(starvation_growth="linear").growth == "linear"


def test_a_fixed_boost_starves_priority_1_against_priority_10() -> None:
    config = SchedulerConfig("WEIGHTED_PRIORITY", max_per_tick=1, starvation_growth="fixed")
    assert run(TickScheduler(table_of(10.0, 1.0), config), range(1_000)) == [[1]] * 1_000


def test_a_linear_boost_does_not() -> None:
    config = SchedulerConfig("WEIGHTED_PRIORITY", max_per_tick=1)
    orders = run(TickScheduler(table_of(10.0, 1.0), config), range(100))
    runs = [tick for tick, order in enumerate(orders) if order == [2]]
    assert runs == [25, 50, 75]  # 1 + 2 × (25 // 5) = 11 > 10, then it waits again


def test_round_robin_with_a_capacity_takes_the_agents_that_ran_longest_ago() -> None:
    orders = run(TickScheduler(table_of(1, 1, 1, 1, 1), SchedulerConfig(max_per_tick=2)), range(1, 6))
    assert orders == [[1, 2], [3, 4], [5, 1], [2, 3], [4, 1]]  # 1 and 5 ran in the same tick: the lower pid


def test_the_subset_that_ran_is_what_counts() -> None:
    scheduler = TickScheduler(table_of(1, 1, 1), SchedulerConfig(max_per_tick=3))
    scheduler.record_execution([3, 1], 4)
    assert [scheduler.last_executed(pid) for pid in (1, 2, 3)] == [4, 0, 4]
    assert scheduler.build_schedule(5) == [2, 1, 3]


def test_an_agent_born_later_waits_from_its_birth() -> None:
    table = table_of(3.0)
    scheduler = TickScheduler(table, SchedulerConfig("WEIGHTED_PRIORITY"))
    table.spawn_agent(AgentDescriptor(priority=2.0, birth_tick=10, state=AgentProcessState.READY))
    orders = []
    for tick in range(10, 16):
        orders.append(scheduler.build_schedule(tick))
        scheduler.record_execution([1], tick)
    assert orders == [[1, 2]] * 5 + [[2, 1]]


def test_metrics_of_boosts_count_every_tick_and_agent() -> None:
    scheduler = TickScheduler(table_of(1, 1), SchedulerConfig("WEIGHTED_PRIORITY", max_per_tick=1))
    for tick in range(8):
        scheduler.build_schedule(tick)
    assert scheduler.metrics.starvation_boosts == 6  # both, at ticks 5, 6 and 7
    assert scheduler.metrics.total_agents_scheduled == 8


def test_a_small_and_a_large_table_are_ordered_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    priorities = [1 + at % 9 for at in range(scheduler_module.NUMPY_AGENTS_MIN + 50)]

    def orders() -> list[list[int]]:
        config = SchedulerConfig("WEIGHTED_PRIORITY", max_per_tick=20)
        return run(TickScheduler(table_of(*priorities), config), range(30))

    quick = orders()
    monkeypatch.setattr(scheduler_module, "ordering_numpy", None)
    assert orders() == quick


# --- any policy ----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", registry.names())
def test_every_registered_policy_orders_the_tick_world(policy: str) -> None:
    scheduler = TickScheduler(table_of(1, 5, 3), SchedulerConfig(policy, max_per_tick=2))
    for order in run(scheduler, range(20)):
        assert len(order) == len(set(order)) == 2
        assert set(order) <= {1, 2, 3}
    assert scheduler.metrics.policy_failures == 0


def test_strict_by_name_is_priority_and_then_pid() -> None:
    scheduler = TickScheduler(table_of(1, 5, 3, 5), SchedulerConfig("strict"))
    assert run(scheduler, range(10)) == [[2, 4, 3, 1]] * 10


@pytest.mark.parametrize("name", ["round_robin", "weighted_priority", "intent_weighted"])
def test_the_three_own_orders_answer_to_both_spellings(name: str) -> None:
    assert SchedulerConfig(name) == SchedulerConfig(name.upper())


def test_under_virtual_time_agents_run_in_proportion_to_their_priority() -> None:
    scheduler = TickScheduler(table_of(1, 2, 5), SchedulerConfig(EEVDF, max_per_tick=1))
    runs = Counter(order[0] for order in run(scheduler, range(80)))
    assert runs == {1: 10, 2: 20, 3: 50}


def test_an_agent_that_was_away_under_virtual_time_has_saved_nothing_up() -> None:
    table = table_of(1, 1)
    scheduler = TickScheduler(table, SchedulerConfig(EEVDF, max_per_tick=1))
    run(scheduler, range(2))
    table.set_running(2)
    table.block(2, until_tick=100)
    run(scheduler, range(2, 100))
    table.spawn_agent(AgentDescriptor(birth_tick=100, state=AgentProcessState.READY))
    runs = Counter(order[0] for order in run(scheduler, range(100, 130)))
    assert max(runs.values()) - min(runs.values()) <= 1


def test_a_new_priority_under_virtual_time_counts_from_now_on() -> None:
    table = table_of(1, 1)
    scheduler = TickScheduler(table, SchedulerConfig(EEVDF, max_per_tick=1))
    run(scheduler, range(100))
    table.set_priority(2, 3.0)
    runs = Counter(order[0] for order in run(scheduler, range(100, 140)))
    assert abs(runs[2] - 30) <= 1


def test_virtual_time_continues_after_all_agents_left_and_returned() -> None:
    table = table_of(1, 1)
    scheduler = TickScheduler(table, SchedulerConfig(EEVDF, max_per_tick=1))
    run(scheduler, range(10))
    for pid in (1, 2):
        table.set_running(pid)
        table.block(pid, until_tick=20)
    assert run(scheduler, range(10, 20)) == [[]] * 10
    table.spawn_agent(AgentDescriptor(birth_tick=20, state=AgentProcessState.READY))
    runs = Counter(order[0] for order in run(scheduler, range(20, 50)))
    assert max(runs.values()) - min(runs.values()) <= 1


@pytest.mark.parametrize("name", [name for name in registry.names() if registry.make(name).incremental is not None])
def test_a_policys_ordering_and_its_plain_function_give_the_same_run(name: str) -> None:
    def orders(policy: Policy) -> list[list[int]]:
        rng = random.Random(5)
        table = table_of(1, 2, 3, 5, 5)
        scheduler = TickScheduler(table, SchedulerConfig(policy, max_per_tick=2))
        seen = []
        for tick in range(60):
            seen += run(scheduler, range(tick, tick + 1))
            table.set_priority(rng.randrange(1, 6), rng.uniform(0.1, 10))
            if rng.random() < 0.3:
                table.set_running(seen[-1][0])
                table.block(seen[-1][0], tick + rng.randrange(1, 6))
        return seen

    policy = registry.make(name)
    assert orders(policy) == orders(msgspec.structs.replace(policy, incremental=None))


def picking(*pids: int) -> Policy:
    """A policy that always returns the same picks."""

    def rank(_snapshot: Snapshot) -> Decisions:
        return tuple(Decision(pid, at, PickReason("odd", "because")) for at, pid in enumerate(pids))

    return Policy(name="odd", rank=rank, sentence="Always the same.")


def raising(_snapshot: Snapshot) -> Decisions:
    raise ZeroDivisionError("by design")


def silent(_snapshot: Snapshot) -> Any:
    return None


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (picking(1, 1), "twice"),
        (picking(9), "not in the snapshot"),
        (picking(4), "not in the snapshot"),
        (picking(1, 2, 3), "3 decisions for 2 slots"),
        (Policy(name="odd", rank=raising, sentence="Never."), "ZeroDivisionError: by design"),
        (Policy(name="odd", rank=silent, sentence="Nothing."), "returned NoneType"),
    ],
)
def test_a_policy_that_fails_is_replaced_by_strict_order_and_named(policy: Policy, words: str) -> None:
    table = table_of(1, 5, 3)
    table.spawn_agent(AgentDescriptor())  # not ready
    scheduler = TickScheduler(table, SchedulerConfig(policy, max_per_tick=2))
    assert run(scheduler, range(2)) == [[2, 3]] * 2
    assert scheduler.metrics.policy_failures == 2
    assert words in str(scheduler.policy_failure)
    assert "odd failed at tick 1" in str(scheduler.policy_failure)


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_starvation_ticks": 0},
        {"max_starvation_ticks": 2.5},
        {"max_starvation_ticks": True},
        {"starvation_boost": math.nan},
        {"starvation_boost": math.inf},
        {"starvation_boost": -1.0},
        {"intent_weights": {"DOMINATE": math.nan}},
        {"intent_weights": {"DOMINATE": -1.0}},
        {"intent_weights": {"SLEEP": 1.0}},
        {"max_per_tick": 0},
        {"max_per_tick": 1.5},
        {"starvation_growth": "quadratic"},
        {"policy": 3},
    ],
)
def test_an_invalid_configuration_is_refused_and_the_field_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(PolicyInvalid) as refused:
        SchedulerConfig(**wrong)
    assert next(iter(wrong)) in str(refused.value)


def test_an_unknown_policy_is_refused_and_the_known_ones_named() -> None:
    with pytest.raises(UnknownPolicy) as refused:
        SchedulerConfig("lottery")
    assert "WEIGHTED_PRIORITY" in str(refused.value)
    assert "strict" in str(refused.value)


def test_recording_an_unknown_agent_is_refused_and_records_nothing() -> None:
    scheduler = TickScheduler(table_of(1, 1))
    for stranger in (0, -1, 3):
        with pytest.raises(UnknownPid):
            scheduler.record_execution([1, stranger], 5)
        with pytest.raises(UnknownPid):
            scheduler.last_executed(stranger)
    assert scheduler.last_executed(1) == 0


@pytest.mark.parametrize("tick", [1.5, True, None, "3"])
def test_a_tick_is_a_whole_number(tick: Any) -> None:
    scheduler = TickScheduler(table_of(1))
    with pytest.raises(RotaError):
        scheduler.build_schedule(tick)
    with pytest.raises(RotaError):
        scheduler.record_execution([1], tick)


def test_a_configuration_cannot_change_under_a_scheduler() -> None:
    weights = {NPCIntentType.DOMINATE: 2.0}
    config = SchedulerConfig("INTENT_WEIGHTED", intent_weights=weights)
    weights[NPCIntentType.DOMINATE] = math.nan
    assert config.intent_weights == {NPCIntentType.DOMINATE: 2.0}

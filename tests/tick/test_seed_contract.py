"""The specification of the tick scheduler: its nine topics, its usage contract, its defaults."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from rota.tick import (
    AgentDescriptor,
    AgentPriorityQueue,
    AgentProcessState,
    NPCIntentType,
    ProcessTable,
    SchedulerConfig,
    SchedulerMetrics,
    SchedulingPolicy,
    TickScheduler,
)


def table_of(priorities: Sequence[float], intents: Sequence[NPCIntentType] | None = None) -> ProcessTable:
    table = ProcessTable()
    for at, priority in enumerate(priorities):
        intent = intents[at] if intents else NPCIntentType.NEUTRAL
        table.activate(table.spawn_agent(AgentDescriptor(priority=priority, intent=intent)))
    return table


def test_round_robin_deterministic_order() -> None:
    table = table_of([1.0, 9.0, 5.0])
    for tick in range(3):
        assert TickScheduler(table, SchedulerConfig()).build_schedule(tick) == [1, 2, 3]


def test_weighted_priority_ordering_by_effective_priority() -> None:
    scheduler = TickScheduler(table_of([1.0, 9.0, 5.0]), SchedulerConfig(SchedulingPolicy.WEIGHTED_PRIORITY))
    assert scheduler.build_schedule(0) == [2, 3, 1]


def test_intent_weighted_ordering_with_intent_multipliers() -> None:
    intents = [NPCIntentType.NEUTRAL, NPCIntentType.DOMINATE, NPCIntentType.PROTECT]
    table = table_of([2.5, 1.0, 1.5], intents)  # 2.5 × 1.0, 1.0 × 3.0, 1.5 × 1.5
    assert TickScheduler(table, SchedulerConfig(SchedulingPolicy.INTENT_WEIGHTED)).build_schedule(0) == [2, 1, 3]


def test_an_intent_without_a_weight_weighs_one() -> None:
    table = table_of([2.0, 1.0], [NPCIntentType.NEUTRAL, NPCIntentType.DOMINATE])
    config = SchedulerConfig(SchedulingPolicy.INTENT_WEIGHTED, intent_weights={NPCIntentType.NEUTRAL: 1.0})
    assert TickScheduler(table, config).build_schedule(0) == [1, 2]


def test_starvation_prevention_after_n_ticks() -> None:
    scheduler = TickScheduler(table_of([3.0, 2.0]), SchedulerConfig(SchedulingPolicy.WEIGHTED_PRIORITY))
    firsts = []
    for tick in range(7):
        order = scheduler.build_schedule(tick)
        firsts.append(order[0])
        scheduler.record_execution(order[:1], tick)  # there was time for one only
    # an agent that never ran counts from birth: agent 2 is boosted from tick 5 on, 2.0 + 2.0 > 3.0
    assert firsts == [1, 1, 1, 1, 1, 2, 1]
    assert scheduler.metrics.starvation_boosts == 1


def test_agent_priority_queue_push_pop_peek_update() -> None:
    queue = AgentPriorityQueue()
    queue.push(1, 1.0)
    queue.push(2, 5.0)
    queue.push(3, 3.0)
    assert queue.peek() == 2
    queue.update_priority(1, 4.0)
    assert queue.to_sorted_list() == [(2, 5.0), (1, 4.0), (3, 3.0)]
    assert [queue.pop(), queue.pop(), queue.pop()] == [2, 1, 3]
    assert len(queue) == 0


@pytest.mark.parametrize("policy", [SchedulingPolicy.WEIGHTED_PRIORITY, SchedulingPolicy.INTENT_WEIGHTED])
def test_deterministic_tie_breaking_by_pid(policy: SchedulingPolicy) -> None:
    assert TickScheduler(table_of([2.0] * 5), SchedulerConfig(policy)).build_schedule(0) == [1, 2, 3, 4, 5]
    queue = AgentPriorityQueue()
    for pid in (3, 1, 2):
        queue.push(pid, 2.0)
    assert [queue.pop() for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("policy", [*SchedulingPolicy, "strict"])
@pytest.mark.parametrize("max_per_tick", [None, 3])
def test_empty_ready_set_gives_empty_schedule(policy: str, max_per_tick: int | None) -> None:
    table = ProcessTable()
    scheduler = TickScheduler(table, SchedulerConfig(policy, max_per_tick=max_per_tick))
    assert scheduler.build_schedule(0) == []
    table.spawn_agent(AgentDescriptor())  # created, not yet ready
    assert scheduler.build_schedule(1) == []
    scheduler.record_execution([], 1)


def test_metrics_accumulation_across_ticks() -> None:
    table = table_of([1.0, 1.0, 1.0, 1.0])
    table.set_running(2)
    table.block(2)
    table.terminate(3, 0)
    scheduler = TickScheduler(table)
    assert scheduler.metrics == SchedulerMetrics()
    for tick in range(3):
        scheduler.record_execution(scheduler.build_schedule(tick), tick)
    assert scheduler.metrics == SchedulerMetrics(
        total_schedules_built=3, total_agents_scheduled=6, starvation_boosts=0, skipped_agents=6
    )


def test_auto_unblock_integration_with_process_table() -> None:
    table = table_of([1.0, 1.0])
    scheduler = TickScheduler(table)
    table.set_running(1)
    table.block(1, until_tick=3)
    assert [scheduler.build_schedule(tick) for tick in (1, 2, 3)] == [[2], [2], [1, 2]]


def test_the_usage_contract_works_as_written() -> None:
    process_table, config, num_ticks = table_of([1.0, 2.0]), SchedulerConfig(), 10
    log = []

    scheduler = TickScheduler(process_table, config)
    for tick in range(num_ticks):
        execution_order = scheduler.build_schedule(tick)
        for pid in execution_order:
            log.append((tick, pid))  # noqa: PERF401  # the loop is the contract
        scheduler.record_execution(execution_order, tick)

    assert log == [(tick, pid) for tick in range(10) for pid in (1, 2)]


def test_the_default_policy_is_a_drop_in_replacement_for_a_sorted_loop() -> None:
    rng = random.Random(7)
    table = table_of([rng.uniform(0.1, 10) for _ in range(300)])
    for pid in rng.sample(range(1, 301), 60):
        table.terminate(pid, 0)
    scheduler = TickScheduler(table)
    for tick in range(5):
        order = scheduler.build_schedule(tick)
        assert order == sorted(agent.pid for agent in table.list_by_state(AgentProcessState.READY))
        scheduler.record_execution(rng.sample(order, 100), tick)  # it ignores which agents ran


def test_the_configuration_has_the_fields_and_defaults_of_the_specification() -> None:
    config = SchedulerConfig()
    assert (config.policy, config.max_starvation_ticks, config.starvation_boost) == ("ROUND_ROBIN", 5, 2.0)
    weights = {"DOMINATE": 3.0, "ACCUMULATE": 2.5, "DISCOVER": 2.0, "BELONG": 1.8, "PROTECT": 1.5, "NEUTRAL": 1.0}
    assert config.intent_weights == weights
    assert SchedulerConfig(SchedulingPolicy.INTENT_WEIGHTED, 7, 1.5, {NPCIntentType.BELONG: 4.0}) == SchedulerConfig(
        policy="INTENT_WEIGHTED", max_starvation_ticks=7, starvation_boost=1.5, intent_weights={NPCIntentType.BELONG: 4}
    )


def test_building_a_schedule_only_releases_agents_whose_block_is_over() -> None:
    table = table_of([1.0, 2.0, 3.0])
    table.set_running(3)
    before = table.to_snapshot()
    assert TickScheduler(table).build_schedule(0) == [1, 2]
    assert table.to_snapshot() == before

"""The orders: the plain form, the numpy form and the policy on a snapshot give the same result, bit for bit."""

from __future__ import annotations

import subprocess
import sys
from array import array
from dataclasses import dataclass
from types import ModuleType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rota.errors import UnknownPid
from rota.model.snapshot import Account, Candidate, Slot, Snapshot
from rota.policy import ranking
from rota.policy.contract import Policy
from rota.policy.ranking import Growth
from rota.tick import (
    AgentDescriptor,
    AgentProcessState,
    NPCIntentType,
    ProcessTable,
    SchedulerConfig,
    ordering,
    ordering_numpy,
)
from rota.tick.ordering import Aging

FORMS = [ordering, ordering_numpy]


@dataclass
class Moment:
    """A table at a tick, and a configuration to order it by."""

    table: ProcessTable
    last_executed: array[int]
    tick: int
    config: SchedulerConfig

    @property
    def ready(self) -> list[AgentDescriptor]:
        return self.table.list_by_state(AgentProcessState.READY)

    def by_priority(self, form: ModuleType) -> tuple[list[int], int]:
        aging, capacity = Aging.of(self.config), self.config.max_per_tick
        pids, boosted = form.by_effective_priority(self.table.columns, self.last_executed, aging, self.tick, capacity)
        return pids, boosted

    def by_last_executed(self, form: ModuleType) -> list[int]:
        pids: list[int] = form.by_last_executed(self.table.columns, self.last_executed, self.config.max_per_tick).pids
        return pids


PRIORITIES = st.one_of(
    st.sampled_from([1.0, 1.5, 2.0, 3.0]),  # ties, also across boosts: 1 + 2 = 3
    st.floats(0.1, 10.0),
    st.integers(0, 8).map(lambda ulps: 3.0 + ulps * 2.0**-51),  # adjacent floats, which rounding would make equal
)
AGENTS = st.tuples(
    PRIORITIES, st.sampled_from(NPCIntentType), st.integers(0, 30), st.sampled_from(["READY", "CREATED"])
)


@st.composite
def moments(draw: st.DrawFn, policy: str) -> Moment:
    table, last_executed = ProcessTable(), array("q", [0])
    for priority, intent, last, state in draw(st.lists(AGENTS, max_size=40)):
        table.spawn_agent(AgentDescriptor(priority=priority, intent=intent, state=AgentProcessState(state)))
        last_executed.append(last)
    config = SchedulerConfig(
        policy,
        draw(st.integers(1, 7)),
        draw(st.sampled_from([0.0, 0.1, 2.0])),
        draw(st.dictionaries(st.sampled_from(NPCIntentType), st.sampled_from([0.0, 0.3, 1.0, 2.5]))),
        max_per_tick=draw(st.none() | st.integers(1, 45)),
        starvation_growth=draw(st.sampled_from(["fixed", "linear", None])),
    )
    return Moment(table, last_executed, draw(st.integers(0, 40)), config)


def ranked(moment: Moment) -> list[int]:
    """The same moment as a snapshot, ranked by the policy of the same name."""
    config, ready = moment.config, moment.ready
    settings = (config.max_starvation_ticks, config.starvation_boost, config.growth)
    snapshot = Snapshot(
        now=moment.tick,
        slots=tuple(Slot(at) for at in range(config.max_per_tick or len(ready))),
        candidates=tuple(Candidate(a.pid, a.pid, priority=a.priority, intent=a.intent) for a in ready),
        owners={a.pid: Account(last_run_at=moment.last_executed[a.pid]) for a in ready},
    )
    decisions = _policy(config, *settings).rank(snapshot)
    return [decision.candidate_id for decision in decisions]


def _policy(config: SchedulerConfig, max_wait: int, step: float, growth: Growth) -> Policy:
    if config.policy == "WEIGHTED_PRIORITY":
        return ranking.weighted_priority(max_wait=max_wait, starvation_boost=step, growth=growth)
    weights = {str(intent): weight for intent, weight in config.intent_weights.items()}
    return ranking.intent_weighted(max_wait=max_wait, starvation_boost=step, growth=growth, intent_weights=weights)


@given(moments("WEIGHTED_PRIORITY"))
def test_weighted_priority_is_one_order_in_three_forms(moment: Moment) -> None:
    assert moment.by_priority(ordering) == moment.by_priority(ordering_numpy)
    assert moment.by_priority(ordering)[0] == ranked(moment)


@given(moments("INTENT_WEIGHTED"))
def test_intent_weighted_is_one_order_in_three_forms(moment: Moment) -> None:
    assert moment.by_priority(ordering) == moment.by_priority(ordering_numpy)
    assert moment.by_priority(ordering)[0] == ranked(moment)


@given(moments("ROUND_ROBIN"))
def test_round_robin_is_the_same_in_both_forms_and_as_a_sorted_list(moment: Moment) -> None:
    pids = [agent.pid for agent in moment.ready]
    if moment.config.max_per_tick is not None:
        by_last_executed = sorted(pids, key=lambda pid: (moment.last_executed[pid], pid))
        pids = by_last_executed[: moment.config.max_per_tick]
    assert moment.by_last_executed(ordering) == moment.by_last_executed(ordering_numpy) == pids


@given(moments("WEIGHTED_PRIORITY"))
def test_boosts_are_counted_over_all_ready_agents_not_only_scheduled_ones(moment: Moment) -> None:
    config = moment.config
    waits = [moment.tick - moment.last_executed[agent.pid] for agent in moment.ready]
    boosts = [ranking.boost(w, config.max_starvation_ticks, config.starvation_boost, config.growth) for w in waits]
    assert moment.by_priority(ordering)[1] == sum(boost != 0 for boost in boosts)


@given(st.lists(st.sampled_from([1.0, 2.0]), min_size=1, max_size=60), st.integers(1, 60))
@example([1.0] * 10, 4)
@example([1.0, 2.0] * 5, 5)
@example([1.0, 2.0] * 5, 7)
def test_at_a_tie_on_the_edge_of_the_capacity_the_lower_pids_get_in(priorities: list[float], capacity: int) -> None:
    table = ProcessTable()
    for priority in priorities:
        table.spawn_agent(AgentDescriptor(priority=priority, state=AgentProcessState.READY))
    config = SchedulerConfig("WEIGHTED_PRIORITY", max_per_tick=capacity)
    moment = Moment(table, array("q", [0] * len(table.columns)), 0, config)
    best = sorted(range(1, len(table) + 1), key=lambda pid: (-priorities[pid - 1], pid))[:capacity]
    assert moment.by_priority(ordering_numpy)[0] == moment.by_priority(ordering)[0] == best


@pytest.mark.parametrize("form", FORMS)
def test_recording_an_unknown_pid_records_nothing(form: ModuleType) -> None:
    last_executed = array("q", [0, 0, 0])
    for stranger in (0, -1, 3):
        with pytest.raises(UnknownPid):
            form.record_executed(last_executed, [1, stranger, 2], 5)
    assert last_executed.tolist() == [0, 0, 0]
    form.record_executed(last_executed, [2], 5)
    form.record_executed(last_executed, [], 6)
    assert last_executed.tolist() == [0, 0, 5]


@pytest.mark.parametrize("form", FORMS)
def test_ordering_does_not_keep_the_table_from_growing(form: ModuleType) -> None:
    table = ProcessTable()
    moment = Moment(table, array("q", [0] * 3), 9, SchedulerConfig("INTENT_WEIGHTED", max_per_tick=1))
    for _ in range(2):
        table.spawn_agent(AgentDescriptor(state=AgentProcessState.READY))
    moment.by_priority(form), moment.by_last_executed(form)
    table.spawn_agent(AgentDescriptor())
    moment.last_executed.append(0)


def test_without_numpy_the_tick_world_works() -> None:
    program = """
import sys
sys.modules["numpy"] = None
from rota.tick import AgentDescriptor, AgentProcessState, ProcessTable, SchedulerConfig, TickScheduler
table = ProcessTable()
for number in range(300):
    table.spawn_agent(AgentDescriptor(priority=1 + number % 7, state=AgentProcessState.READY))
scheduler = TickScheduler(table, SchedulerConfig("WEIGHTED_PRIORITY", max_per_tick=3))
for tick in range(2):
    order = scheduler.build_schedule(tick)
    print(order)
    scheduler.record_execution(order, tick)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[7, 14, 21]"] * 2

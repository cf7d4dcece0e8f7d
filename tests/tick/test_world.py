"""The tick world: which agents run, what a step may do, faults, hooks, interrupts, and reproducible runs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.errors import InvalidPayload, UnknownPid
from rota.policy import registry
from rota.tick import AgentDescriptor, AgentProcessState, PhasedStep, SchedulerConfig, TickScheduler, TickWorld

READY, RUNNING, BLOCKED, TERMINATED = list(AgentProcessState)[1:]
Log = list[tuple[int, int]]


def nothing(pid: int, world: TickWorld) -> None:
    pass


def writing(log: Log) -> Callable[[int, TickWorld], None]:
    def step(pid: int, world: TickWorld) -> None:
        assert world.process_table.state(pid) is RUNNING
        log.append((world.tick, pid))

    return step


def spawn_all(world: TickWorld, *priorities: float) -> list[int]:
    return [world.spawn(AgentDescriptor(priority=priority)) for priority in priorities]


# --- running -------------------------------------------------------------------------------------


def test_agents_run_in_the_order_of_the_policy_and_are_ready_again() -> None:
    log: Log = []
    world = TickWorld(SchedulerConfig("WEIGHTED_PRIORITY"), step=writing(log))
    spawn_all(world, 1.0, 3.0, 2.0)
    world.run(2)
    assert log == [(0, 2), (0, 3), (0, 1), (1, 2), (1, 3), (1, 1)]
    assert world.process_table.count(READY) == 3
    assert world.tick == 2


def test_no_more_run_in_a_tick_than_there_is_capacity_for() -> None:
    log: Log = []
    world = TickWorld(SchedulerConfig(max_per_tick=2), step=writing(log))
    spawn_all(world, 1, 1, 1)
    world.tick = 1
    world.run(3)
    assert log == [(1, 1), (1, 2), (2, 3), (2, 1), (3, 2), (3, 1)]


@pytest.mark.parametrize("policy", [*registry.names(), "ROUND_ROBIN", "WEIGHTED_PRIORITY", "INTENT_WEIGHTED"])
def test_every_policy_runs_a_world(policy: str) -> None:
    log: Log = []
    world = TickWorld(SchedulerConfig(policy), step=writing(log))
    spawn_all(world, 1, 2, 3)
    world.run(4)
    assert sorted(log) == [(tick, pid) for tick in range(4) for pid in (1, 2, 3)]


def test_an_agents_own_step_precedes_its_roles_and_the_default() -> None:
    log: list[str] = []

    def saying(word: str) -> Callable[[int, TickWorld], None]:
        return lambda _pid, _world: log.append(word)

    world = TickWorld(step=saying("all"), role_steps={"SCOUT": saying("scout")})
    world.spawn(AgentDescriptor())
    world.spawn(AgentDescriptor(role="SCOUT"))
    world.spawn(AgentDescriptor(role="SCOUT"), step=saying("own"))
    world.run(1)
    world.assign(2, saying("changed"))
    world.run(1)
    assert log == ["all", "scout", "own", "all", "changed", "own"]


def test_an_agent_without_a_step_is_refused_before_any_agent_runs() -> None:
    log: Log = []
    world = TickWorld(role_steps={"SCOUT": writing(log)})
    world.spawn(AgentDescriptor(role="SCOUT"))
    world.spawn(AgentDescriptor(role="JUDGE"))
    with pytest.raises(InvalidPayload, match="agent 2 of role 'JUDGE'"):
        world.run(1)
    assert (log, world.tick) == ([], 0)
    world.assign(2, nothing)
    world.run(1)
    assert log == [(0, 1)]


def test_invalid_steps_and_unknown_agents_are_refused() -> None:
    with pytest.raises(InvalidPayload):
        TickWorld(step=3)  # type: ignore[arg-type]
    world = TickWorld(step=nothing)
    with pytest.raises(UnknownPid):
        world.assign(1, nothing)
    with pytest.raises(InvalidPayload):
        world.run(-1)


# --- what a step may do --------------------------------------------------------------------------


def test_an_agent_ended_by_one_that_ran_before_it_is_not_run() -> None:
    log: Log = []
    world = TickWorld(step=writing(log))
    spawn_all(world, 1, 1, 1)
    world.assign(1, lambda _pid, world: world.process_table.terminate(2, world.tick, "by agent 1"))
    world.run(1)
    assert log == [(0, 3)]
    assert world.scheduler.last_executed(3) == 0
    assert world.process_table.get_descriptor(2).exit_tick == 0


def test_an_agent_blocked_by_one_that_ran_before_it_is_not_run_and_goes_on_waiting() -> None:
    log: Log = []
    world = TickWorld(step=writing(log))
    spawn_all(world, 1, 1)

    def block_other(_pid: int, world: TickWorld) -> None:
        if world.tick == 4:
            world.process_table.set_running(2)
            world.process_table.block(2, until_tick=6)

    world.assign(1, block_other)
    world.run(8)
    assert log == [(tick, 2) for tick in (0, 1, 2, 3, 6, 7)]
    assert world.scheduler.metrics.total_agents_scheduled == 15  # it was in the schedule of tick 4
    assert world.scheduler.metrics.skipped_agents == 1  # and blocked when that of tick 5 was built


def test_being_skipped_is_not_a_run() -> None:
    world = TickWorld(step=nothing)
    spawn_all(world, 1, 1)

    def block_other(_pid: int, world: TickWorld) -> None:
        if world.tick == 4:
            world.process_table.set_running(2)
            world.process_table.block(2)

    world.assign(1, block_other)
    world.run(6)
    assert [world.scheduler.last_executed(pid) for pid in (1, 2)] == [5, 3]


def test_a_step_may_block_or_end_its_own_agent() -> None:
    log: Log = []
    world = TickWorld(step=writing(log))
    spawn_all(world, 1, 1, 1)
    world.assign(1, lambda pid, world: world.process_table.block(pid, world.tick + 2))
    world.assign(2, lambda pid, world: world.process_table.terminate(pid, world.tick))
    world.run(1)
    states = [world.process_table.state(pid) for pid in (1, 2, 3)]
    assert states == [BLOCKED, TERMINATED, READY]
    assert world.faults.fault_count() == 0


def test_agents_spawned_in_a_tick_run_from_the_next_one_on() -> None:
    log: Log = []
    world = TickWorld(step=writing(log))
    world.spawn(AgentDescriptor(), step=lambda _pid, world: world.spawn(AgentDescriptor()))
    world.run(3)
    assert log == [(1, 2), (2, 2), (2, 3)]
    assert [world.process_table.get_descriptor(pid).birth_tick for pid in (2, 3, 4)] == [0, 1, 2]


# --- faults --------------------------------------------------------------------------------------


def test_one_agents_exception_never_ends_the_tick() -> None:
    log: Log = []
    errors = {1: ValueError("a"), 2: RuntimeError("b"), 3: RecursionError("c")}

    def failing(pid: int, world: TickWorld) -> None:
        log.append((world.tick, pid))
        if pid in errors:
            raise errors[pid]

    world = TickWorld(step=failing)
    spawn_all(world, 1, 1, 1, 1)
    world.run(4)
    all_pids, recovered = [1, 2, 3, 4], [1, 4]
    assert [[pid for tick, pid in log if tick == at] for at in range(4)] == [all_pids, recovered, recovered, [1, 2, 4]]
    assert world.process_table.get_descriptor(3).exit_tick == 0
    assert world.faults.get_healthy_ratio() == 1 / 3
    assert world.scheduler.last_executed(2) == 3  # failing is a run too


def test_an_agent_that_ends_itself_and_then_fails_stays_ended() -> None:
    def step(pid: int, world: TickWorld) -> None:
        world.process_table.terminate(pid, world.tick)
        raise RuntimeError

    world = TickWorld(step=step)
    spawn_all(world, 1)
    world.run(3)
    assert world.process_table.state(1) is TERMINATED
    assert world.faults.fault_count() == 1


class Phased:
    """Fails in a given phase."""

    def __init__(self, failing: str | None = None) -> None:
        self.failing = failing
        self.log: list[Any] = []

    def _do(self, phase: str, given: Any) -> str:
        self.log.append((phase, given))
        if phase == self.failing:
            raise ValueError(phase)
        return f"what {phase} returned"

    def observe(self, pid: int, _world: TickWorld) -> str:
        return self._do("OBSERVE", pid)

    def decide(self, _pid: int, _world: TickWorld, observed: Any) -> str:
        return self._do("DECIDE", observed)

    def act(self, _pid: int, _world: TickWorld, decided: Any) -> str:
        return self._do("ACT", decided)


def test_a_step_in_phases_passes_on_what_each_phase_returned() -> None:
    step = Phased()
    assert isinstance(step, PhasedStep)
    world = TickWorld(step=step)
    spawn_all(world, 1)
    world.run(1)
    assert step.log == [("OBSERVE", 1), ("DECIDE", "what OBSERVE returned"), ("ACT", "what DECIDE returned")]


@pytest.mark.parametrize("phase", ["OBSERVE", "DECIDE", "ACT"])
def test_a_fault_names_the_phase_it_happened_in_and_a_plain_function_is_all_act(phase: str) -> None:
    def plain(pid: int, _world: TickWorld) -> None:
        raise KeyError(pid)

    world = TickWorld(step=plain)
    world.spawn(AgentDescriptor(), step=Phased(phase))
    world.spawn(AgentDescriptor())
    world.run(1)
    assert [record.phase for record in world.faults.records] == [phase, "ACT"]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_propagates_and_the_world_can_continue(interrupt: type[BaseException]) -> None:
    log: Log = []
    world = TickWorld(step=writing(log))
    spawn_all(world, 1, 1, 1)

    def interrupted_once(_pid: int, world: TickWorld) -> None:
        if world.tick == 5:
            raise interrupt

    world.assign(2, interrupted_once)
    with pytest.raises(interrupt):
        world.run(10)
    assert world.process_table.count(READY) == 3
    assert [world.scheduler.last_executed(pid) for pid in (1, 2, 3)] == [5, 5, 4]
    assert (world.tick, world.faults.fault_count()) == (6, 0)
    world.run(1)
    assert log[-2:] == [(6, 1), (6, 3)]


# --- hooks ---------------------------------------------------------------------------------------


def test_hooks_run_before_and_after_every_tick_in_order() -> None:
    log: list[Any] = []
    world = TickWorld(step=lambda pid, _world: log.append(pid))
    spawn_all(world, 1)
    world.before_tick += [lambda world: log.append(("before", world.tick)), lambda _world: log.append("second")]
    world.after_tick.append(lambda world: log.append(("after", world.tick)))
    world.run(2)
    assert log == [("before", 0), "second", 1, ("after", 0), ("before", 1), "second", 1, ("after", 1)]


def test_a_hook_may_spawn_an_agent_that_runs_in_the_same_tick() -> None:
    log: Log = []
    world = TickWorld(step=writing(log))
    world.before_tick.append(lambda world: world.spawn(AgentDescriptor()))
    world.run(2)
    assert log == [(0, 1), (1, 1), (1, 2)]


# --- the same run, the same hash -----------------------------------------------------------------


def busy_step(seed: int) -> Callable[[int, TickWorld], None]:
    """A step that uses every operation a step may use, drawn from a seed."""
    rng = random.Random(seed)

    def step(pid: int, world: TickWorld) -> None:
        table = world.process_table
        match rng.randrange(12):
            case 0:
                table.block(pid, world.tick + rng.randrange(4))
            case 1:
                world.spawn(AgentDescriptor(parent_pid=pid, priority=rng.uniform(0.1, 10)))
            case 2 if len(table) > 2:
                other = rng.randrange(1, len(table) + 1)
                table.terminate(other, world.tick, "picked")
            case 3:
                table.set_priority(pid, rng.uniform(0.1, 10))
            case 4:
                raise rng.choice([ValueError, RuntimeError, MemoryError])("drawn")

    return step


def busy_world(seed: int, config: SchedulerConfig) -> TickWorld:
    world = TickWorld(config, step=busy_step(seed))
    spawn_all(world, 1, 2, 3, 4, 5)
    return world


CONFIGS = st.builds(
    SchedulerConfig,
    st.sampled_from(["ROUND_ROBIN", "WEIGHTED_PRIORITY", "INTENT_WEIGHTED", *registry.names()]),
    max_per_tick=st.none() | st.integers(1, 4),
)


@given(st.integers(0, 2**32), CONFIGS, st.integers(0, 25))
def test_the_same_run_gives_the_same_hash(seed: int, config: SchedulerConfig, ticks: int) -> None:
    first, second = busy_world(seed, config), busy_world(seed, config)
    first.run(ticks)
    for _ in range(ticks):
        second.run(1)
    assert first.to_hash() == second.to_hash()
    assert list(first.faults.records) == list(second.faults.records)
    assert first.process_table.count(RUNNING) == 0


@pytest.mark.parametrize("change", ["priority", "who ran", "fault", "tick"])
def test_different_runs_have_different_hashes(change: str) -> None:
    def world_with(changed: bool) -> TickWorld:
        world = TickWorld(SchedulerConfig(max_per_tick=1), step=nothing)
        spawn_all(world, 1, 1)
        world.run(3)
        if changed and change == "priority":
            world.process_table.set_priority(1, 2.0)
        if changed and change == "who ran":
            world.scheduler.record_execution([1, 2], 2)
        if changed and change == "fault":
            world.faults.handle(1, 2, ValueError())
        if changed and change == "tick":
            world.tick += 1
        return world

    assert world_with(False).to_hash() == world_with(False).to_hash()
    assert world_with(False).to_hash() != world_with(True).to_hash()


class OneByOneWorld(TickWorld):
    """The same world, changing each agent with the methods of the table."""

    def _run_agents(self, order: list[int]) -> None:
        table, ran = self.process_table, []
        for pid in order:
            if table.state(pid) is READY:
                table.set_running(pid)
                ran.append(pid)
                try:
                    self._steps[pid](pid, self)
                except Exception as error:
                    self._fault(pid, error)
                if table.state(pid) is RUNNING:
                    table.set_ready(pid)
        self.scheduler.record_execution(ran, self.tick)


@given(st.integers(0, 2**32), CONFIGS, st.integers(0, 25))
def test_moving_the_state_column_equals_moving_agents_one_by_one(
    seed: int, config: SchedulerConfig, ticks: int
) -> None:
    quick = busy_world(seed, config)
    plain = OneByOneWorld(config, step=busy_step(seed))
    spawn_all(plain, 1, 2, 3, 4, 5)
    quick.run(ticks)
    plain.run(ticks)
    assert quick.to_hash() == plain.to_hash()


def test_a_separate_scheduler_sees_what_the_world_did() -> None:
    world = TickWorld(step=nothing)
    spawn_all(world, 1, 1)
    world.run(3)
    assert isinstance(world.scheduler, TickScheduler)
    assert world.scheduler.metrics.total_schedules_built == 3
    assert world.scheduler.metrics.total_agents_scheduled == 6

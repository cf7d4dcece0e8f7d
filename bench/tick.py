"""The tick world beside what people write instead: a sorted loop, and Mesa's shuffled activation."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial

from bench.harness import Arena, Case
from rota.model.work import Intent
from rota.policy.ranking import INTENT_WEIGHTS
from rota.tick import AgentDescriptor, AgentProcessState, ProcessTable, SchedulerConfig, TickScheduler, TickWorld

SEED = 20_260_226
MAX_WAIT = 5
BOOST = 2.0
SORTED_LOOP = "sorted(agents, key=(-effective, pid))"
WORLD_AGENTS = 10_000
WORLD_TICKS = 20


def cases() -> Iterator[Case]:
    yield _order("order-weighted-100k", "WEIGHTED_PRIORITY", 100_000, goal=8)
    yield _order("order-intent-100k", "INTENT_WEIGHTED", 100_000, goal=8)
    yield _order("order-weighted-1m", "WEIGHTED_PRIORITY", 1_000_000, goal=8, rounds=3)
    yield _order("top-100-of-100k", "WEIGHTED_PRIORITY", 100_000, goal=30, capacity=100)
    yield Case(
        "world-10k",
        WORLD_AGENTS,
        "ops/s",
        "Mesa agents.shuffle_do, 10,000 agents, empty step",
        _world_arena,
        ops=WORLD_AGENTS * WORLD_TICKS,
        goal=1.5,
    )


# --- ordering ------------------------------------------------------------------------------------


class PlainAgent:
    """A descriptor as the sorted loop has it: an object with just what its key reads."""

    __slots__ = ("intent", "last_executed", "pid", "priority")

    def __init__(self, pid: int, priority: float, intent: Intent) -> None:
        self.pid, self.priority, self.intent = pid, priority, intent
        self.last_executed = 0


def _order(name: str, policy: str, agents: int, *, goal: float, capacity: int | None = None, rounds: int = 7) -> Case:
    arena = partial(_order_arena, policy, agents, capacity)
    return Case(name, agents, "ms", SORTED_LOOP, arena, goal=goal, rounds=rounds)


def _order_arena(policy: str, agents: int, capacity: int | None) -> Arena:
    rng = random.Random(SEED)
    config = SchedulerConfig(policy, MAX_WAIT, BOOST, max_per_tick=capacity, starvation_growth="fixed")
    table, plain = _same_agents(agents, rng)
    scheduler = TickScheduler(table, config)
    tick = 0

    def before(number: int) -> None:
        """A tick has passed: a third ran in it, and every priority has changed."""
        nonlocal tick
        tick = number * MAX_WAIT
        ran = rng.sample(range(1, agents + 1), agents // 3)
        scheduler.record_execution(ran, tick)
        for pid in ran:
            plain[pid - 1].last_executed = tick
        table.set_priorities({pid: rng.uniform(0.1, 10.0) for pid in range(1, agents + 1)})
        for agent, priority in zip(plain, table.columns.priority[1:], strict=True):
            agent.priority = priority

    def base() -> list[int]:
        effective = _effective(policy, tick)
        return [agent.pid for agent in sorted(plain, key=lambda a: (-effective(a), a.pid))[:capacity]]

    return Arena(rota=lambda: scheduler.build_schedule(tick), base=base, before=before)


def _same_agents(agents: int, rng: random.Random) -> tuple[ProcessTable, list[PlainAgent]]:
    """The same agents twice: in a process table, and as objects in a list."""
    table, plain = ProcessTable(), []
    intents = list(Intent)
    for _ in range(agents):
        descriptor = AgentDescriptor(state=AgentProcessState.READY, intent=rng.choice(intents))
        pid = table.spawn_agent(descriptor)
        plain.append(PlainAgent(pid, descriptor.priority, descriptor.intent))
    return table, plain


def _effective(policy: str, tick: int) -> Callable[[PlainAgent], float]:
    def boost(agent: PlainAgent) -> float:
        return BOOST if tick - agent.last_executed >= MAX_WAIT else 0.0

    def weighted(agent: PlainAgent) -> float:
        return agent.priority + boost(agent)

    def intent_weighted(agent: PlainAgent) -> float:
        return agent.priority * INTENT_WEIGHTS[agent.intent] + boost(agent)

    return weighted if policy == "WEIGHTED_PRIORITY" else intent_weighted


# --- the whole world -----------------------------------------------------------------------------


def _world_arena() -> Arena:
    import mesa  # noqa: PLC0415  # of the dependency group bench: listing the cases works without it

    class EmptyAgent(mesa.Agent):  # type: ignore[misc]  # mesa has no types
        def step(self) -> None:
            """Nothing: what is measured is getting here."""

    model = mesa.Model(seed=SEED)
    EmptyAgent.create_agents(model, WORLD_AGENTS)
    world = _empty_world()

    def theirs() -> int:
        for _ in range(WORLD_TICKS):
            model.agents.shuffle_do("step")
        return WORLD_AGENTS * WORLD_TICKS

    def ours() -> int:
        scheduled = world.scheduler.metrics.total_agents_scheduled
        world.run(WORLD_TICKS)
        assert world.faults.get_healthy_ratio() == 1.0
        return world.scheduler.metrics.total_agents_scheduled - scheduled

    return Arena(rota=ours, base=theirs)


def _empty_world() -> TickWorld:
    rng = random.Random(SEED)

    def step(pid: int, world: TickWorld) -> None:
        """Nothing, as on the other side."""

    world = TickWorld(SchedulerConfig("WEIGHTED_PRIORITY"), step=step)
    for _ in range(WORLD_AGENTS):
        world.spawn(AgentDescriptor(priority=rng.uniform(0.1, 10.0)))
    return world

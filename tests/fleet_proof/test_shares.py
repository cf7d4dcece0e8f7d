"""A simulated day: each project is charged in proportion to its weight, however many agents it has."""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import pytest

from rota.fleet.supervisor import Supervisor
from tests.supervisor.world import START, World

DAY_S = 24 * 3_600.0
RUN_S = 120.0 if "ROTA_SOAK" in os.environ else 240.0
SHARING = ("fair_share", "eevdf")


def a_day(policy: str, projects: dict[str, tuple[float, int]]) -> Counter[str]:
    """Return the tokens charged to each project (weight, agents), with one slot that is always busy."""
    world = World(policy=policy)
    chance = random.Random(7)
    charged: Counter[str] = Counter()
    supervisors: list[Supervisor] = []

    def work(ctx: Any, project: str) -> None:
        tokens = chance.randint(50, 500) * (3 if project == "expensive" else 1)
        ctx.charge(tokens=tokens)
        charged[project] += tokens
        world.clock.advance(RUN_S)
        world.rota.find(ctx.agent).enqueue(project=project)
        if world.clock.now() >= START + DAY_S:
            supervisors[0].drain()

    for project, (weight, agents) in projects.items():
        world.rota.project(project, weight=weight)
        for number in range(agents):
            agent = world.rota.agent(f"{project} {number}", project=project)(work)
            agent.enqueue_many([{"project": project}] * 2)  # one runs and one waits: it always has work
    supervisors.append(world.rota.supervisor(1))
    supervisors[0].run()
    world.close()
    return charged


@pytest.mark.parametrize("policy", SHARING)
def test_three_to_one_is_seventy_five_to_twenty_five_over_a_day(policy: str) -> None:
    charged = a_day(policy, {"three": (3, 2), "one": (1, 2)})
    assert charged["three"] / charged.total() == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize("policy", SHARING)
def test_shares_are_of_tokens_not_of_runs(policy: str) -> None:
    charged = a_day(policy, {"expensive": (1, 2), "cheap": (1, 2)})
    assert charged["expensive"] / charged.total() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("policy", SHARING)
def test_a_project_with_a_thousand_agents_gets_no_more_than_one_with_a_single_agent(policy: str) -> None:
    charged = a_day(policy, {"many": (1, 1_000), "alone": (1, 1)})
    assert charged["many"] / charged.total() == pytest.approx(0.5, abs=0.02)

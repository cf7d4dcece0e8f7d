"""Plans: how an agent is run, kept with it, checked when it is made."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rota import Rota
from rota.errors import FleetInvalid
from rota.fleet.agent_settings import PLAN_KEY, RunPlan, plan_of, spec_for
from rota.model.work import Limits, RestartPolicy


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"runner": "command"}, "argv must name the program"),
        ({"runner": ""}, "runner"),
        ({"runner": "command", "argv": ("true",), "usage": "no-such-preset"}, "no preset"),
        ({"runner": "command", "argv": ("true",), "usage": {"tokens": "a +"}}, "usage"),
        ({"stop_grace_s": -1}, "stop_grace_s"),
        ({"env": {"KEY": "1"}}, "env goes with programs"),
        ({"pass_env": ("KEY",)}, "pass_env goes with programs"),
    ],
)
def test_a_plan_that_could_not_run_is_refused_when_it_is_made(said: dict[str, Any], problem: str) -> None:
    with pytest.raises(FleetInvalid, match=problem):
        RunPlan(**said)


def test_a_plan_is_kept_with_its_agent_and_comes_back_as_it_was() -> None:
    plan = RunPlan(runner="command", argv=("echo", "hi"), limits=Limits(tokens=5), draws_on=("acme",))
    with Rota() as rota:
        pid = rota.desk.agents.create("echo", metadata={PLAN_KEY: msgspec.to_builtins(plan)})
        assert plan_of(rota.desk.agents.get(pid)) == plan
        assert plan_of(rota.desk.agents.get(rota.desk.agents.create("plain"))) is None


def test_a_plan_that_was_spoilt_is_told_with_its_agents_name() -> None:
    with Rota() as rota:
        pid = rota.desk.agents.create("odd", metadata={PLAN_KEY: {"runner": 5}})
        with pytest.raises(FleetInvalid, match="odd"):
            plan_of(rota.desk.agents.get(pid))


@pytest.mark.parametrize(
    ("when", "retry_on", "attempts"),
    [
        ("never", (), 1),
        ("on_crash", ("crashed",), 3),
        ("on_failure", ("crashed", "failed"), 3),
        ("always", ("crashed",), 3),
    ],
)
def test_how_an_agent_restarts_is_how_its_entries_are_retried(when: Any, retry_on: Any, attempts: int) -> None:
    with Rota() as rota:
        agent = rota.desk.agents.get(rota.desk.agents.create("agent", priority=4))
        spec = spec_for(agent, RunPlan(restart=RestartPolicy(when=when)), {"n": 1})
    assert (spec.retry_on, spec.max_attempts, spec.priority) == (retry_on, attempts, 4)


def test_a_limit_on_tokens_is_a_ceiling_and_the_lower_of_two_counts() -> None:
    with Rota() as rota:
        agent = rota.desk.agents.get(rota.desk.agents.create("agent"))
        for ceiling, limit, both in ((50, 80, 50), (90, 80, 80)):
            plan = RunPlan(ceiling={"tokens": ceiling, "cost_micro": 7}, limits=Limits(tokens=limit))
            assert spec_for(agent, plan, {}).ceiling == {"tokens": both, "cost_micro": 7}


def test_what_is_said_of_an_entry_wins_over_its_agents_plan() -> None:
    with Rota() as rota:
        agent = rota.desk.agents.get(rota.desk.agents.create("agent", priority=4))
        spec = spec_for(agent, RunPlan(kind="gpu", max_attempts=5), {}, priority=9, kind=None, max_attempts=1)
    assert (spec.priority, spec.kind, spec.max_attempts) == (9, None, 1)

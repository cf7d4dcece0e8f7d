"""Agent settings: how an agent is run, stored with it, checked on creation."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rota import Rota
from rota.errors import FleetInvalid
from rota.fleet.agent_settings import SETTINGS_KEY, AgentSettings, settings_of, spec_for
from rota.model.work import Limits, RestartPolicy


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"runner": "command"}, "argv is required"),
        ({"runner": ""}, "runner"),
        ({"runner": "command", "argv": ("true",), "usage": "no-such-preset"}, "no preset"),
        ({"runner": "command", "argv": ("true",), "usage": {"tokens": "a +"}}, "usage"),
        ({"stop_grace_s": -1}, "stop_grace_s"),
        ({"env": {"KEY": "1"}}, "env is only for programs"),
        ({"pass_env": ("KEY",)}, "pass_env is only for programs"),
        (
            {"runner": "command", "argv": ("/bin/true",), "env": {"A": "nul \0"}},
            r"env must not contain the character U\+0000",
        ),
        ({"runner": "command", "argv": ("/bin/true",), "env": {"A=B": "1"}}, "env has the invalid name"),
        ({"runner": "command", "argv": ("/bin/true",), "cwd": "\0"}, "cwd"),
        ({"runner": "command", "argv": ("x",) * 1_001}, "argv may have at most 1,000"),
        ({"limits": Limits(wall_s=-1)}, "limits.wall_s"),
        ({"limits": Limits(memory_bytes=2**70)}, "limits.memory_bytes"),
        ({"restart": RestartPolicy(quarantine_s=1e300)}, "restart.quarantine_s"),
        ({"ceiling": {"tokens": -1}}, "ceiling"),
        ({"max_attempts": 0}, "max_attempts"),
    ],
)
def test_invalid_settings_are_refused_when_they_are_created(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(FleetInvalid, match=problem):
        AgentSettings(**fields)


def test_settings_are_stored_with_the_agent_and_read_back_unchanged() -> None:
    settings = AgentSettings(runner="command", argv=("echo", "hi"), limits=Limits(tokens=5), draws_on=("acme",))
    with Rota() as rota:
        pid = rota.api.agents.create("echo", metadata={SETTINGS_KEY: msgspec.to_builtins(settings)})
        assert settings_of(rota.api.agents.get(pid)) == settings
        assert settings_of(rota.api.agents.get(rota.api.agents.create("plain"))) is None


def test_invalid_settings_are_refused_when_they_are_stored_and_the_error_names_the_field() -> None:
    with Rota() as rota:
        with pytest.raises(FleetInvalid) as refused:
            rota.api.agents.create("odd", metadata={SETTINGS_KEY: {"runner": 5}})
        assert refused.value.field == "runner"
        pid = rota.api.agents.create("plain")
        with pytest.raises(FleetInvalid) as refused:
            rota.api.agents.update(pid, metadata={SETTINGS_KEY: {"runner": "command", "argv": ["x"], "new": 1}})
        assert refused.value.field == "new"


def test_stored_settings_that_are_invalid_raise_an_error_with_the_agents_name() -> None:
    with Rota() as rota:
        agent = rota.api.agents.get(rota.api.agents.create("odd"))
    with pytest.raises(FleetInvalid, match="odd"):
        settings_of(msgspec.structs.replace(agent, metadata={SETTINGS_KEY: {"runner": 5}}))


@pytest.mark.parametrize(
    ("when", "retry_on", "attempts"),
    [
        ("never", (), 1),
        ("on_crash", ("crashed",), 3),
        ("on_failure", ("crashed", "failed"), 3),
        ("always", ("crashed",), 3),
    ],
)
def test_the_restart_policy_decides_how_entries_are_retried(when: Any, retry_on: Any, attempts: int) -> None:
    with Rota() as rota:
        agent = rota.api.agents.get(rota.api.agents.create("agent", priority=4))
        spec = spec_for(agent, AgentSettings(restart=RestartPolicy(when=when)), {"n": 1})
    assert (spec.retry_on, spec.max_attempts, spec.priority) == (retry_on, attempts, 4)


def test_a_limit_on_tokens_is_a_ceiling_and_the_lower_one_counts() -> None:
    with Rota() as rota:
        agent = rota.api.agents.get(rota.api.agents.create("agent"))
        for ceiling, limit, both in ((50, 80, 50), (90, 80, 80)):
            settings = AgentSettings(ceiling={"tokens": ceiling, "cost_micro": 7}, limits=Limits(tokens=limit))
            assert spec_for(agent, settings, {}).ceiling == {"tokens": both, "cost_micro": 7}


def test_options_of_an_entry_override_its_agents_settings() -> None:
    with Rota() as rota:
        agent = rota.api.agents.get(rota.api.agents.create("agent", priority=4))
        spec = spec_for(agent, AgentSettings(kind="gpu", max_attempts=5), {}, priority=9, kind=None, max_attempts=1)
    assert (spec.priority, spec.kind, spec.max_attempts) == (9, None, 1)

"""CPU settings in Python: of agents and projects, as in the fleet file."""

from __future__ import annotations

import pytest

from rota import Rota
from rota.errors import FleetInvalid
from rota.model import CpuSettings


def test_settings_are_stored_with_the_agent_and_the_project() -> None:
    with Rota() as app:
        app.project("night", cpu={"weight": 0.5})

        @app.agent(project="night", isolation="process", cpu={"quota": "50ms/100ms", "class": "batch"})
        def compress() -> None: ...

        @app.agent(cpu=CpuSettings(lease=1))
        def control() -> None: ...

        agents, _total = app.api.agents.list()
        stored = {agent.name: agent.metadata["run"]["cpu"] for agent in agents}
        assert stored == {"compress": {"quota": "50ms/100ms", "class": "batch"}, "control": {"lease": 1}}
        assert app.api.projects.get("night").metadata == {"cpu": {"weight": 0.5}}
        app.project("night")
        assert app.api.projects.get("night").metadata == {}


def test_a_value_that_cannot_be_kept_is_refused_at_the_door() -> None:
    with Rota() as app:
        with pytest.raises(FleetInvalid, match=r"CpuSettings.weight must be finite, not inf"):
            app.project("p", cpu={"weight": float("inf")})
        with pytest.raises(FleetInvalid, match="cpu must be a mapping of settings, not 3"):
            app.project("p", cpu=3)  # type: ignore[arg-type]  # what is refused
        with pytest.raises(FleetInvalid, match="cpu must be a mapping of settings, not '3'"):
            app.agent(name="a", cpu="3")(lambda: None)  # type: ignore[call-overload]  # what is refused
        with pytest.raises(FleetInvalid, match=r"CpuSettings.quota must have a period"):
            app.agent(name="a", cpu={"quota": "1ms/9s"})(lambda: None)

"""What is refused before anything runs, and what a plan says about a cluster that is not there."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from rota import Rota
from rota.errors import FleetInvalid, InvalidInput, RotaError
from rota.fleet.config.loader import load_fleet
from rota.fleet.config.ray_plan import ray_warnings
from rota.model.agent_settings import AgentSettings
from rota.model.ray import RayCluster, RaySettings
from rota.model.work import ScheduleSpec
from tests.on_ray.conftest import WAIT_S, wait_until, why_not

FLEET = """
[ray]
address = "127.0.0.1:1"

[agents.a]
command = "true"
runner = "ray"
resources = {CPU = 2}
runtime_env = {working_dir = "code"}
"""


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"resources": {"CPU": 1.5}}, "must be a whole number above 1, not 1.5"),
        ({"resources": {"CPU": -1}}, "resources.CPU"),
        ({"resources": {"a=b": 1}}, "must not contain a comma, = or @"),
        ({"resources": {str(n): 1 for n in range(17)}}, "may have at most 16 items"),
        ({"node": "x" * 300}, "node"),
    ],
)
def test_resources_that_ray_would_not_take(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(FleetInvalid, match=problem):
        RaySettings(**settings)


@pytest.mark.parametrize("field", ["kind", "affinity", "workspace"])
def test_what_belongs_to_one_machine_is_refused(field: str) -> None:
    with pytest.raises(FleetInvalid, match=f"{field} is not for runs on Ray"):
        AgentSettings(runner="ray", ray=RaySettings(), **{field: "x"})  # type: ignore[arg-type]
    with pytest.raises(FleetInvalid, match="requires it"):
        AgentSettings(runner="ray")


def test_the_python_door_says_what_is_missing() -> None:
    with Rota(":memory:") as rota:
        with pytest.raises(InvalidInput, match="resources is only for runs on Ray: add runner='ray'"):
            rota.agent("a", resources={"CPU": 1})(print)
        with pytest.raises(InvalidInput, match="runner must be 'ray'"):
            rota.agent("a", runner="command")(print)  # type: ignore[call-overload]
        agent = rota.agent("a", runner="ray", resources={"GPU": 1}, node="big")(print)
        assert agent.enqueue().entry().kind == "ray:CPU=1,GPU=1@big"


def test_an_address_of_a_client_is_refused() -> None:
    with pytest.raises(RotaError, match="must be the head's own address"):
        RayCluster(address="ray://10.0.0.1:10001")


def test_a_fleet_file_and_its_plan(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET)
    fleet = load_fleet(str(path))
    settings = fleet.agents["a"].settings(fleet.folder)
    assert settings.slot_kind == "ray:CPU=2"
    assert settings.ray is not None
    assert settings.ray.runtime_env == {"working_dir": str(tmp_path / "code")}
    (warning,) = ray_warnings(fleet)
    assert warning.startswith("ray.address: the Ray cluster at 127.0.0.1:1 cannot be reached: [Errno 111]")
    path.write_text(FLEET.replace('runner = "ray"\n', ""))
    with pytest.raises(FleetInvalid, match='resources is only valid with runner = "ray"'):
        load_fleet(str(path))


def test_an_entry_may_have_a_kind_of_its_own() -> None:
    with Rota(":memory:") as rota:
        agent = rota.agent("a", runner="ray")(print)
        sched_id = rota.api.queue.enqueue(ScheduleSpec(agent.pid, kind="ray:CPU=4"))
        assert rota.api.queue.get(sched_id).kind == "ray:CPU=4"


def test_a_head_that_cannot_be_reached_is_named_and_other_work_goes_on() -> None:
    with Rota(":memory:") as rota:
        away = rota.agent("away", runner="ray")(print).enqueue()
        here = rota.agent("here")(lambda: "done").enqueue()
        supervisor = rota.supervisor(1, ray=RayCluster(address="127.0.0.1:1"))
        thread = threading.Thread(target=supervisor.run)
        thread.start()
        try:
            assert here.result(WAIT_S) == "done"
            wait_until(lambda: getattr(why_not(rota, away.sched_id), "problem", None) == "cluster_unreachable")
            sentence = why_not(rota, away.sched_id).sentence()
            assert sentence.startswith("the Ray cluster at 127.0.0.1:1 cannot be reached: [Errno 111]")
            assert rota.api.queue.get(away.sched_id).attempt <= 1  # it is not an attempt
        finally:
            supervisor.kill()
            thread.join()

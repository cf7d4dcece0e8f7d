"""`rota cpu status`: what runs were granted of the cores, who was refused, and budgets of CPU time."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rota import store
from rota.cli import app
from rota.errors import LeaseRefused
from rota.kernel import Kernel, ScheduleSpec
from rota.model.core_grants import CoreAsk, CoreHost
from rota.model.cpu import CpuSettings
from rota.service.core_grants import CoreGrants

BOX = CoreHost(key="boot-1", name="box", cores=(0, 1))


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A store in which one run leases a core and another was refused one."""
    kernel = Kernel(store.open(str(tmp_path / "rota.db")))
    ids = [kernel.queue.enqueue(ScheduleSpec(kernel.agents.create(name))) for name in ("build", "test")]
    tokens = [entry.token or 0 for entry in kernel.queue.claim(worker_id="w", max_n=2)]
    cores, ask = CoreGrants(kernel), CoreAsk(cpu=CpuSettings(lease=1))
    cores.grant(ids[0], tokens[0], BOX, ask)
    with pytest.raises(LeaseRefused):
        cores.grant(ids[1], tokens[1], BOX, ask)
    kernel.queue.put_back(ids[1], token=tokens[1], delay_s=60)
    kernel.contexts.create(bound_to="name", bound_id="cpu", budget=500, period_s=60, unit="cpu_ms")
    kernel.store.close()
    return str(tmp_path / "rota.db")


def test_it_shows_leases_refusals_and_budgets_of_cpu_time(path: str) -> None:
    shown = CliRunner().invoke(app, ["cpu", "status", "--store", path], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert "core 1 for itself" in shown.output
    assert "1 core asked of box, 0 free" in shown.output
    assert "500 ms in 60 s" in shown.output


def test_as_json_it_has_every_number(path: str) -> None:
    shown = CliRunner().invoke(app, ["cpu", "status", "--store", path, "--json"])
    status = json.loads(shown.stdout)
    assert status["hosts"][0]["leased"] == {"1": 1}
    assert status["hosts"][0]["grants"][0]["open_cores"] == [0]
    assert [one["held_by"] for one in status["refused"]] == [[1]]
    assert [one["unit"] for one in status["contexts"]] == ["cpu_ms"]


def test_a_grant_of_cores_that_others_may_use_too_says_which(path: str) -> None:
    kernel = Kernel(store.open(path))
    ids = [kernel.queue.enqueue(ScheduleSpec(kernel.agents.create(f"pinned {n}"))) for n in range(2)]
    tokens = [entry.token or 0 for entry in kernel.queue.claim(worker_id="w", max_n=2)]
    for sched_id, token, cores in zip(ids, tokens, ("0", "0-2"), strict=True):
        ask = CoreAsk(cpu=CpuSettings(cores=cores))
        CoreGrants(kernel).grant(sched_id, token, CoreHost(key="boot-2", name="large", cores=(0, 1, 2)), ask)
    kernel.store.close()
    shown = CliRunner().invoke(app, ["cpu", "status", "--store", path], env={"COLUMNS": "200"})
    assert re.search(r"pinned 0 +core 0 ", shown.output)
    assert re.search(r"pinned 1 +one of cores 0-2 ", shown.output)


def test_an_empty_store_says_so(tmp_path: Path) -> None:
    store.open(str(tmp_path / "rota.db")).close()
    shown = CliRunner().invoke(app, ["cpu", "status", "--store", str(tmp_path / "rota.db")])
    assert "no run has leased cores or reserved time" in shown.output

"""Events of a user's own: from a program, from a run and from the command line; and what waits for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota import Rota
from rota.errors import InvalidPayload
from rota.fleet.config.loader import load_fleet
from rota.fleet.fleet_run import FleetRun
from rota.kernel import Kernel
from rota.service.dispatcher import Dispatcher
from rota.store import open as open_store
from tests.cli.shell import Shell, make_shell

FLEET = """
[agents.smoke]
command = ["sh", "-c", "cat > tested"]
triggers = [{event = "deploy.finished", event_as = "deploy"}]
"""


@pytest.fixture
def rota() -> Iterator[Rota]:
    with Rota() as made:
        yield made


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.delenv("ROTA_SCHED_ID", raising=False)
    return make_shell(monkeypatch, capsys)


def announce(ctx: Any, version: int) -> int:
    return int(ctx.emit("deploy.finished", {"version": version}, by="a run"))


def test_a_program_emits_events_about_an_agent_or_about_none(rota: Rota) -> None:
    @rota.agent()
    def deploy() -> None:
        """Nothing."""

    ids = [rota.emit("deploy.finished", {"version": 7}), rota.emit("deploy.finished", agent="deploy")]
    found = [event for event in rota.api.journal.tail() if event.event_id in ids]
    assert [(event.pid, event.payload) for event in found] == [(None, {"version": 7}), (deploy.pid, {})]
    with pytest.raises(InvalidPayload, match="kernel"):
        rota.emit("kernel.sched.completed", {})


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_run_emits_events_about_its_agent(rota: Rota, isolation: Any) -> None:
    handle = rota.agent(isolation=isolation)(announce)
    job = handle.enqueue(version=7)
    rota.run(until_idle=True)
    (event,) = [event for event in rota.api.journal.tail() if event.kind == "deploy.finished"]
    assert (event.event_id, event.pid) == (job.result(), handle.pid)
    assert event.payload == {"version": 7, "by": "a run"}
    assert event.author == f"run:{job.sched_id}"


def test_an_event_of_the_command_line_fires_a_trigger(tmp_path: Path, shell: Shell) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET)
    where = str(tmp_path / "rota.db")
    fleet = FleetRun(Dispatcher(Kernel(open_store(where))), load_fleet(tmp_path / "fleet.toml"))
    told = shell("emit", "deploy.finished", "--payload", '{"version": 7}', "--store", where, "--json").json
    about = shell("emit", "deploy.failed", "--agent", "smoke", "--store", where)
    assert about.code == 0
    assert shell("emit", "kernel.x", "--store", where).code != 0
    fleet.run(until_idle=True)
    fleet.api.close()
    assert f'"event_id":{told["event_id"]}' in (tmp_path / "tested").read_text()
    assert '"payload":{"version":7}' in (tmp_path / "tested").read_text()

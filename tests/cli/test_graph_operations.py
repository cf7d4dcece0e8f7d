"""`rota graph run` of a graph of agents, and `ps`, `show`, `cancel`, `resume`, `forget`: on a file and at a daemon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import Answer, Shell
from tests.daemon.harness import serving
from tests.fleet.test_graphs import FLEET, NODES, REPORT


@pytest.fixture
def door(request: pytest.FixtureRequest, path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The store that the commands use, which has a fleet with a graph; nothing runs it."""
    folder = path.parent
    (folder / "report.yaml").write_text(REPORT)
    (folder / "nodes.py").write_text(NODES)
    (folder / "fleet.toml").write_text(FLEET)
    monkeypatch.chdir(folder)
    if getattr(request, "param", "file") == "file":
        yield str(path)
        return
    with serving(path, http=False) as served:
        monkeypatch.setenv("ROTA_STORE", served.unix)
        yield served.unix


@pytest.fixture
def fleet(rota: Shell, door: str) -> Shell:
    """The fleet is known to the store; `rota run` has found nothing to do."""
    Path("fleet.toml").write_text(f'store = "{door}"\n{FLEET}')
    assert rota("run", "fleet.toml", "--until-idle").code == 0
    return rota


def ok(answer: Answer) -> Answer:
    assert answer.code == 0, answer.err
    return answer


START = ("graph", "run", "report.yaml", "--project", "lab", "--input", "topic=wind", "--run-id", "r1")


@pytest.mark.parametrize("door", ["file", "daemon"], indirect=True)
def test_the_life_of_a_run(fleet: Shell) -> None:
    assert ok(fleet("graph", "ps")).out == "no graph runs: start one with `rota graph run FILE`\n"
    started = ok(fleet(*START, "--detach", "--budget", "tokens=700"))
    assert "run r1 of report: entry 1" in started.out
    assert "rota graph show r1" in started.out
    assert fleet(*START, "--detach", "--json").json["sched_id"] == 1  # the same run
    (listed,) = ok(fleet("graph", "ps", "--json")).json["runs"]
    assert (listed["status"], listed["inputs"], listed["budget"]) == ("running", {"topic": "wind"}, {"tokens": 700})
    shown = ok(fleet("graph", "show", "r1")).out
    assert "run r1 of report in project lab: running" in shown
    assert "coordinator: entry 1 (ready), epoch 1\n    why it is not running: rota why 1" in shown
    ok(fleet("run", "fleet.toml", "--until-idle"))
    shown = ok(fleet("graph", "show", "r1")).out
    assert "run r1 of report in project lab: succeeded" in shown
    assert 'result: {"text":"all about wind"}' in shown
    assert "1 succeeded" in shown
    report = ok(fleet("graph", "show", "r1", "--json")).json
    assert {node["node"]: node["state"] for node in report["nodes"]} == dict.fromkeys(
        ("topic", "found", "text"), "succeeded"
    )
    assert ok(fleet("graph", "run", "report.yaml", *START[3:])).out.endswith(
        '{"text":"all about wind"}\n'
    )  # it has ended
    refused = fleet("graph", "resume", "r1")
    assert (refused.code, "r1 has succeeded" in refused.err) == (1, True), refused.err
    assert ok(fleet("graph", "forget", "r1")).out == "run r1 is forgotten\n"
    gone = fleet("graph", "show", "r1")
    assert gone.code == 3, gone.err
    assert "there is no graph run 'r1'" in gone.err
    assert "rota graph ps" in gone.err
    assert fleet("graph", "forget", "r1").code == 3


def test_a_run_is_cancelled_resumed_and_drawn(fleet: Shell, tmp_path: Path) -> None:
    ok(fleet(*START, "--detach"))
    live = fleet("graph", "forget", "r1")
    assert "r1 is running, so it is not deleted" in live.err
    assert "rota graph forget r1 --cancel" in live.err
    cancelled = ok(fleet("graph", "cancel", "r1", "--by", "ada")).out
    assert "run r1 is cancelled: queued entries cancelled: 1, running entries asked to stop: 0" in cancelled
    assert "rota graph resume r1" in cancelled
    assert "cancelled" in ok(fleet("graph", "ps", "--status", "cancelled")).out
    assert "goes on at epoch 1: entry 2" in ok(fleet("graph", "resume", "r1")).out
    mermaid = ok(fleet("graph", "render", "--run", "r1")).out
    assert "class c0,c1,c2 pending" in mermaid
    ok(fleet("run", "fleet.toml", "--until-idle"))
    mermaid = ok(fleet("graph", "render", "--run", "r1")).out
    assert "class c0,c1,c2 succeeded" in mermaid
    ok(fleet("graph", "render", "--run", "r1", "--format", "svg", "-o", "run.svg"))
    svg = (tmp_path / "run.svg").read_text()
    assert "#bbf7d0" in svg
    assert "found (agent) on fleet: succeeded" in svg


def test_what_is_wrong_is_one_sentence_with_a_hint(fleet: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = fleet("graph", "run", "report.yaml", "--project", "lab", "--input", "tropic=wind", "--detach")
    assert unknown.code == 2, unknown.err
    assert "the graph has no input 'tropic'" in unknown.err
    assert "Its inputs: topic" in unknown.err
    ok(fleet("projects", "create", "desk"))
    walled = fleet("graph", "run", "report.yaml", "--project", "desk", "--input", "topic=wind", "--detach")
    assert "component found: there is no agent named 'researcher'" in walled.err
    malformed = fleet("graph", "run", "report.yaml", "--input", "wind", "--detach")
    assert "input must be NAME=VALUE, not 'wind'" in malformed.err
    assert "there is no graph run 'r9'" in fleet("graph", "cancel", "r9").err
    assert "give a graph file, or a run with --run" in fleet("graph", "render").err
    assert "must be one of running" in fleet("graph", "ps", "--status", "asleep").err
    monkeypatch.delenv("ROTA_STORE")
    storeless = fleet("graph", "run", "report.yaml", "--input", "topic=wind")
    assert "component found is the agent researcher, and no store is given" in storeless.err
    assert "--store rota.db" in storeless.err


def test_a_failed_run_is_an_error_of_the_command(fleet: Shell) -> None:
    Path("fleet.toml").write_text(Path("fleet.toml").read_text() + "[agents.researcher.restart]\nwhen = 'never'\n")
    run = [word.replace("wind", "nothing") for word in START]
    ok(fleet(*run, "--detach"))
    fleet("run", "fleet.toml", "--until-idle")
    failed = fleet(*run)
    assert failed.code == 1, failed.out
    assert "run r1 failed" in failed.err
    assert "no such page" in failed.err
    assert "rota graph resume r1" in failed.err

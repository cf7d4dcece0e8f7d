"""A supervisor's own socket: programs act for their runs without a daemon, and nobody else gets anything there."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rota import Rota
from rota.cli import app
from rota.errors import Forbidden, Unauthenticated
from rota.kernel import ScheduleSpec
from rota.model.work import Limits
from rota.rpc import connect
from rota.rpc.daemon import run_socket
from rota.rpc.daemon.run_socket import FOLDER_PREFIX
from rota.rpc.tokens import AccessTokens
from rota.service import Dispatcher
from rota.store.socket_paths import SOCKET_PATH_BYTES_MAX

ROTA = f"{sys.executable} -m rota"
PATIENCE_S = 30.0
COMMANDS = f"""
set -e
{ROTA} enqueue child --payload '{{"n": 1}}'
{ROTA} progress 40% 'reading'
key=$({ROTA} acquire model requests=1)
{ROTA} settle $key requests=1
{ROTA} cancel $({ROTA} enqueue child --in 1h)
if {ROTA} cancel 2; then exit 9; fi
"""


@pytest.fixture(autouse=True)
def temporary_folder(socket_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where these tests, and nothing else, make sockets."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(socket_folder))
    monkeypatch.chdir(tmp_path)
    return socket_folder


def sockets(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{FOLDER_PREFIX}*"))


def dispatcher(rota: Rota) -> Dispatcher:
    assert isinstance(rota.api, Dispatcher)
    return rota.api


def open_socket(rota: Rota) -> str:
    access = dispatcher(rota).program_access
    assert access is not None
    address = access.address()
    assert address is not None
    return address


def test_commands_in_a_run_act_for_it_without_a_daemon(temporary_folder: Path) -> None:
    with Rota("rota.db") as rota:
        rota.limit("model", requests_per_minute=60)
        rota.command("child", ["true"])
        job = rota.command("parent", ["sh", "-c", COMMANDS]).enqueue()
        rota.command("neighbour", ["true"]).enqueue(delay=timedelta(hours=1))
        assert rota.run(until_idle=True).ok
        result = job.result(PATIENCE_S)
        neighbour, child, spare = (rota.api.queue.get(sched_id) for sched_id in (2, 3, 4))
        events = {event.kind: event for event in rota.api.journal.tail(limit=500)}
        assert (child.parent_id, child.payload, child.exit_kind) == (job.sched_id, {"n": 1}, "completed")
        assert events["kernel.run.progressed"].payload == {
            "sched_id": 1,
            "attempt": 1,
            "fraction": 0.4,
            "text": "reading",
        }
        assert (spare.parent_id, spare.status, neighbour.status) == (job.sched_id, "cancelled", "waiting")
        assert "entry 2 is neither entry 1 nor a child of it" in result["output_tail"]
        (folder,) = sockets(temporary_folder)
        assert folder.stat().st_mode & 0o777 == 0o700
    assert sockets(temporary_folder) == []


@pytest.mark.parametrize("then", ["true", "sleep 60"], ids=["ends", "goes on"])
@pytest.mark.parametrize("exit_kind", ["completed", "failed"])
def test_an_end_by_the_run_itself_is_counted_and_its_supervisor_is_not_told_of_another_run(
    caplog: pytest.LogCaptureFixture, exit_kind: str, then: str
) -> None:
    """The supervisor's own report comes after it, if the program ends, and is none if the program has to be stopped."""
    with Rota("rota.db") as rota:
        program = f"{ROTA} complete {exit_kind} --result 3; {then}"
        job = rota.command("own", ["sh", "-c", program], max_attempts=1, stop_grace_s=0.1).enqueue()
        summary = rota.run(until_idle=True, heartbeat_s=0.1)
        assert (summary.runs, getattr(summary, exit_kind), summary.ok) == (1, 1, exit_kind == "completed")
        assert (job.entry().exit_kind, job.entry().result) == (exit_kind, 3)
    assert "runs again elsewhere" not in caplog.text
    assert "was refused" not in caplog.text


@pytest.mark.parametrize("budget", ["ceiling", "grant"])
def test_a_command_that_charges_more_than_it_may_use_is_stopped(budget: str) -> None:
    """It charges through the socket, past its supervisor, and would go on for ever."""
    greedy = f"while true; do {ROTA} charge tokens=60 >/dev/null; done"
    with Rota("rota.db") as rota:
        settings: dict[str, Any] = (
            {"limits": Limits(tokens=100)} if budget == "ceiling" else {"budget": {"tokens": 100}}
        )
        job = rota.command("greedy", ["sh", "-c", greedy], stop_grace_s=0.1, **settings).enqueue()
        rota.run(until_idle=True)
        entry = job.entry()
        assert (entry.exit_kind, entry.outcome, entry.attempt) == ("failed", "over_budget", 1)
        said = [event.payload for event in rota.api.journal.tail(limit=500) if event.kind == "kernel.run.over_budget"]
        assert said[0] == {
            "sched_id": 1,
            "token": said[0]["token"],
            "level": "run" if budget == "ceiling" else "agent",
            "dim": "tokens",
            "used": 120,
            "limit": 100,
        }
        shown = CliRunner().invoke(app, ["show", "1", "--store", "rota.db"]).output
        assert "over budget: 120 of 100 tokens used" in shown


def test_a_client_without_a_runs_token_gets_nothing() -> None:
    with Rota("rota.db") as rota:
        pid = rota.command("own", ["true"]).agent.pid
        rota.api.queue.enqueue(ScheduleSpec(pid))
        (entry,) = rota.api.claim("worker")
        assert entry.token is not None
        access_token = rota.api.supervision.access_token(entry.sched_id, entry.token)
        operator = AccessTokens(rota.kernel).create("all", "admin")
        address = open_socket(rota)
        for shown in (None, operator.token, f"{access_token[:-1]}{'0' if access_token[-1] != '0' else '1'}"):
            with pytest.raises(Unauthenticated), connect(address, token=shown) as client:
                client.queue.get(entry.sched_id)
        with connect(address, token=access_token) as client:
            assert client.queue.get(entry.sched_id).sched_id == entry.sched_id
            with pytest.raises(Forbidden):
                client.agents.create("another", "command")
            rota.api.queue.complete(entry.sched_id, "completed", token=entry.token)
            with pytest.raises(Unauthenticated, match="has ended"):
                client.queue.get(entry.sched_id)


def test_only_the_owner_may_use_the_socket() -> None:
    before = os.umask(0)
    try:
        with Rota() as rota:
            path = Path(open_socket(rota).removeprefix("unix:"))
            assert [f"{stat.S_IMODE(each.stat().st_mode):o}" for each in (path, path.parent)] == ["600", "700"]
    finally:
        os.umask(before)


def test_a_short_folder_is_preferred_and_a_long_one_works(
    temporary_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * SOCKET_PATH_BYTES_MAX)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    folders = run_socket.temporary_folders()
    assert (folders[0], folders[-1]) == (temporary_folder, long)
    monkeypatch.setattr(run_socket, "temporary_folders", lambda: [long])
    with Rota() as rota, pytest.raises(Unauthenticated), connect(open_socket(rota)) as client:
        client.agents.create("stranger")
    assert sockets(long) == []


def test_functions_start_no_socket(temporary_folder: Path) -> None:
    with Rota("rota.db") as rota:
        job = rota.agent("double")(lambda n: 2 * n).enqueue(n=4)
        rota.run(until_idle=True)
        assert job.result(PATIENCE_S) == 8
        assert sockets(temporary_folder) == []
        assert "rota-run-socket" not in {thread.name for thread in threading.enumerate()}


def test_a_socket_in_memory_and_of_two_programs(temporary_folder: Path) -> None:
    with Rota() as first, Rota("rota.db") as second:
        assert open_socket(first) != open_socket(second)
        assert open_socket(first) == open_socket(first)
        assert len(sockets(temporary_folder)) == 2
    assert sockets(temporary_folder) == []


def test_the_socket_of_a_killed_process_is_removed_by_the_next(temporary_folder: Path) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        rota = Rota("rota.db")
        os.write(writer, open_socket(rota).encode())
        os.kill(os.getpid(), 9)
    address = os.read(reader, 1000).decode()
    os.waitpid(child, 0)
    (left,) = sockets(temporary_folder)
    assert address.startswith(f"unix:{left}")
    with Rota("rota.db") as rota:
        open_socket(rota)
        assert left not in sockets(temporary_folder)
        assert len(sockets(temporary_folder)) == 1
    for end in (reader, writer):
        os.close(end)


def test_a_forked_child_leaves_the_parents_socket_alone(temporary_folder: Path) -> None:
    with Rota("rota.db") as rota:
        address = open_socket(rota)
        child = os.fork()
        if child == 0:
            rota.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert len(sockets(temporary_folder)) == 1
        with pytest.raises(Unauthenticated), connect(address) as client:
            client.queue.get(1)
    assert sockets(temporary_folder) == []

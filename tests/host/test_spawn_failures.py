"""A command that cannot be started raises a typed error with the reason, and the reaper continues."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from rota.errors import CommandInvalid, HostError, LimitExceeded, ReaperLost, SpawnFailed
from rota.host import reaper_client
from rota.host.command import MEMORY_BYTES_MIN, Command, SessionExit
from rota.host.frames import FRAME_FDS_MAX
from rota.host.reaper_client import ReaperClient
from rota.host.session import Session
from rota.host.thread_settings import Scheduling
from rota.model.work import Limits
from tests.host.support import ENV, PATIENCE_S, open_descriptors, output_of, py, sh


def refusal(reaper: ReaperClient, *argv: str, **fields: Any) -> SpawnFailed:
    with pytest.raises(SpawnFailed) as refused:
        reaper.spawn(Command(argv=argv, env=ENV, **fields))
    assert output_of(reaper, sh("echo still here")) == b"still here\n"
    return refused.value


def test_a_program_that_does_not_exist(reaper: ReaperClient) -> None:
    found = refusal(reaper, "no-such-program")
    assert (found.reason, found.errno) == ("not_found", errno.ENOENT)
    assert "'no-such-program' was not started" in str(found)


def test_a_path_that_does_not_exist(reaper: ReaperClient) -> None:
    assert refusal(reaper, "/no/such/program").reason == "not_found"


def test_a_script_whose_interpreter_does_not_exist(reaper: ReaperClient, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    assert refusal(reaper, str(script)).reason == "not_found"


def test_a_file_that_is_not_executable(reaper: ReaperClient, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("#!/bin/sh\n")
    assert refusal(reaper, str(plain)).reason == "not_permitted"


def test_a_folder_is_not_a_program(reaper: ReaperClient, tmp_path: Path) -> None:
    assert refusal(reaper, str(tmp_path)).reason == "not_permitted"


def test_a_text_file_without_an_interpreter_line(reaper: ReaperClient, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("echo no first line\n")
    text.chmod(0o755)
    assert refusal(reaper, str(text)).reason == "not_executable"


@pytest.mark.parametrize("folder", ["/no/such/folder", "/etc/passwd"])
def test_a_working_directory_that_does_not_exist(reaper: ReaperClient, folder: str) -> None:
    found = refusal(reaper, "sh", "-c", "exit", cwd=folder)
    assert found.reason == "bad_cwd"
    assert folder in str(found)


def test_the_current_directory_was_removed(
    reaper: ReaperClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(SpawnFailed) as refused:
        reaper.spawn(sh("exit"))
    assert refused.value.reason == "bad_cwd"


def test_an_argument_longer_than_the_system_accepts(reaper: ReaperClient) -> None:
    assert refusal(reaper, "sh", "-c", "exit", "x" * 200_000).reason == "arguments_too_long"


def test_a_frame_longer_than_its_limit(reaper: ReaperClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper_client, "FRAME_BYTES_MAX", 1_000)
    with pytest.raises(LimitExceeded) as refused:
        reaper.spawn(sh("x" * 1_000))
    assert refused.value.limit == "frame_bytes_max"
    assert not reaper.sessions


def test_the_error_can_be_pickled(reaper: ReaperClient) -> None:
    found = refusal(reaper, "no-such-program")
    again = pickle.loads(pickle.dumps(found))
    assert (again.reason, again.errno, str(again)) == (found.reason, found.errno, str(found))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"argv": ()}, "argv"),
        ({"argv": ("",)}, "argv"),
        ({"argv": ["sh"]}, "argv"),
        ({"argv": ("sh", "a\0b")}, "argv"),
        ({"argv": ("sh", 3)}, "argv"),
        ({"env": {"A=B": "1"}}, "env"),
        ({"env": {"": "1"}}, "env"),
        ({"env": {"A": "\0"}}, "env"),
        ({"cwd": "\0"}, "cwd"),
        ({"limits": Limits(cpu_s=0)}, "limits.cpu_s"),
        ({"limits": Limits(cpu_s=float("nan"))}, "limits.cpu_s"),
        ({"limits": Limits(memory_bytes=MEMORY_BYTES_MIN - 1)}, "limits.memory_bytes"),
        ({"limits": Limits(open_files=0)}, "limits.open_files"),
        ({"limits": Limits(processes=-1)}, "limits.processes"),
    ],
)
def test_an_invalid_command_is_refused_when_it_is_created(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(CommandInvalid) as refused:
        Command(**{"argv": ("sh",), **fields})
    assert refused.value.field == named


@pytest.mark.parametrize(
    "fields",
    [
        {"policy": "bogus"},
        {"nice": 20},
        {"policy": "fifo"},
        {"policy": "other", "priority": 5},
        {"policy": "deadline", "runtime_ns": 5, "deadline_ns": 4, "period_ns": 10},
        {"policy": "fifo", "priority": 1, "runtime_ns": 5},
        {"slice_ns": -1},
    ],
)
def test_an_invalid_scheduling_is_refused_when_it_is_created(fields: dict[str, Any]) -> None:
    with pytest.raises(CommandInvalid):
        Scheduling(**fields)


@pytest.mark.parametrize("cores", [frozenset(), frozenset({4095})])
def test_cores_that_cannot_be_used_are_refused(reaper: ReaperClient, cores: frozenset[int]) -> None:
    with pytest.raises(CommandInvalid):
        reaper.spawn(sh("exit", cores=cores))
    assert not reaper.sessions


def test_a_missing_python_cannot_run_the_reaper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")
    with pytest.raises(HostError, match="the reaper process cannot be started"):
        ReaperClient()


def test_a_closed_client_starts_nothing() -> None:
    reaper = ReaperClient()
    reaper.close()
    reaper.close()  # a second close does nothing
    with pytest.raises(ReaperLost):
        reaper.spawn(sh("exit"))


def test_a_failed_start_leaks_no_descriptor(reaper: ReaperClient) -> None:
    reaper.spawn(sh("exit 0")).wait(PATIENCE_S)
    before = open_descriptors(reaper)
    for _ in range(50):
        with pytest.raises(SpawnFailed):
            reaper.spawn(Command(argv=("/no/such/program",), env=ENV), stdout=1, stderr=2)
    assert open_descriptors(reaper) == before


def test_a_relative_working_directory_is_resolved_from_the_current_one(
    reaper: ReaperClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path)
    assert output_of(reaper, sh("pwd", cwd="inside")) == f"{tmp_path.resolve()}/inside\n".encode()


@pytest.mark.parametrize("fds", [{"stdout": 9_999}, {"more_fds": {7: 9_999}}, {"more_fds": {1: 2}}])
def test_invalid_descriptors_are_refused(reaper: ReaperClient, fds: dict[str, Any]) -> None:
    with pytest.raises(CommandInvalid) as refused:
        reaper.spawn(sh("exit"), **fds)
    assert refused.value.field == "fds"
    assert not reaper.sessions


def test_the_limit_of_descriptors(reaper: ReaperClient) -> None:
    maximum = dict.fromkeys(range(10, 10 + FRAME_FDS_MAX), 2)
    counts = "import os, sys; sys.exit(sum(os.path.exists(f'/proc/self/fd/{n}') for n in range(10, 100)))"
    found = reaper.spawn(py(counts), more_fds=maximum).wait(PATIENCE_S)
    assert found is not None
    assert found.code == FRAME_FDS_MAX
    with pytest.raises(LimitExceeded):
        reaper.spawn(sh("exit"), more_fds={**maximum, 9: 2})


@pytest.mark.parametrize("number", [-1, 999, 3.5])
def test_an_invalid_signal_number_is_refused(reaper: ReaperClient, number: Any) -> None:
    session = reaper.spawn(sh("read go"))
    with pytest.raises(CommandInvalid):
        session.signal(number)
    assert session.wait(PATIENCE_S) is not None


def test_on_exit_cannot_wait_for_a_start() -> None:
    log: list[str] = []

    def spawns(_session: object, _found: object) -> None:
        try:
            reaper.spawn(sh("exit"))
        except HostError as refused:
            log.append(refused.message)

    with ReaperClient(on_exit=spawns) as reaper:
        reaper.spawn(sh("exit")).wait(PATIENCE_S)
    assert log == ["on_exit must not wait for a command to start"]


def test_a_spawn_failure_is_raised_by_spawn_and_passed_to_on_exit_by_start() -> None:
    log: list[str] = []

    def logs(session: Session, found: SessionExit) -> None:
        log.append(f"{session.tag} {found.spawn_error.reason if found.spawn_error else found.code}")

    missing = Command(argv=("/no/such/program",), env=ENV)
    with ReaperClient(on_exit=logs) as reaper:
        with pytest.raises(SpawnFailed):
            reaper.spawn(missing, tag="spawned")
        session = reaper.start(missing, tag="started")
        with pytest.raises(SpawnFailed):
            session.wait_started()
        found = session.wait(PATIENCE_S)
        assert found is not None
        assert found.spawn_error is not None
        assert not found.ok
        assert (session.signal(15), session.pid) == (False, 0)
        reaper.start(sh("exit 3"), tag="runs").wait(PATIENCE_S)
    assert log == ["started not_found", "runs 3"]


def test_a_forked_process_cannot_use_the_reaper_of_its_parent(reaper: ReaperClient) -> None:
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            reaper.spawn(sh("exit"))
        except ReaperLost:
            os.write(theirs, b"refused")
        finally:
            reaper.close()  # closes its own copies of the sockets only
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(ours, 100) == b"refused"
    os.close(ours)
    os.close(theirs)
    assert output_of(reaper, sh("echo still here")) == b"still here\n"

"""What cannot be started is refused with a typed error that says why, and the minder goes on."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from rota.errors import CommandInvalid, HostError, LimitExceeded, MinderLost, SpawnFailed
from rota.host import reaper_client
from rota.host.command import MEMORY_BYTES_MIN, Command, Exit
from rota.host.frames import FRAME_FDS_MAX
from rota.host.realtime import Scheduling
from rota.host.reaper_client import Minder
from rota.host.session import Session
from rota.model.work import Limits
from tests.host.support import ENV, PATIENCE_S, open_descriptors, output_of, py, sh


def refusal(minder: Minder, *argv: str, **fields: Any) -> SpawnFailed:
    with pytest.raises(SpawnFailed) as refused:
        minder.spawn(Command(argv=argv, env=ENV, **fields))
    assert output_of(minder, sh("echo still here")) == b"still here\n"
    return refused.value


def test_a_program_that_is_nowhere(minder: Minder) -> None:
    found = refusal(minder, "no-such-program")
    assert (found.reason, found.errno) == ("not_found", errno.ENOENT)
    assert "'no-such-program' was not started" in str(found)


def test_a_path_that_leads_nowhere(minder: Minder) -> None:
    assert refusal(minder, "/no/such/program").reason == "not_found"


def test_a_script_whose_interpreter_is_nowhere(minder: Minder, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    assert refusal(minder, str(script)).reason == "not_found"


def test_a_file_without_the_right_to_run(minder: Minder, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("#!/bin/sh\n")
    assert refusal(minder, str(plain)).reason == "not_permitted"


def test_a_folder_is_not_a_program(minder: Minder, tmp_path: Path) -> None:
    assert refusal(minder, str(tmp_path)).reason == "not_permitted"


def test_a_file_that_is_no_program(minder: Minder, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("echo no first line\n")
    text.chmod(0o755)
    assert refusal(minder, str(text)).reason == "not_executable"


@pytest.mark.parametrize("folder", ["/no/such/folder", "/etc/passwd"])
def test_a_working_directory_that_is_none(minder: Minder, folder: str) -> None:
    found = refusal(minder, "sh", "-c", "exit", cwd=folder)
    assert found.reason == "bad_cwd"
    assert folder in str(found)


def test_our_own_working_directory_was_removed(minder: Minder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(SpawnFailed) as refused:
        minder.spawn(sh("exit"))
    assert refused.value.reason == "bad_cwd"


def test_an_argument_longer_than_the_system_takes(minder: Minder) -> None:
    assert refusal(minder, "sh", "-c", "exit", "x" * 200_000).reason == "arguments_too_long"


def test_a_frame_longer_than_its_limit(minder: Minder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper_client, "FRAME_BYTES_MAX", 1_000)
    with pytest.raises(LimitExceeded) as refused:
        minder.spawn(sh("x" * 1_000))
    assert refused.value.limit == "frame_bytes_max"
    assert not minder.sessions


def test_the_error_survives_the_way_to_another_process(minder: Minder) -> None:
    found = refusal(minder, "no-such-program")
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
def test_a_command_that_nobody_can_mean_is_refused_when_it_is_made(fields: dict[str, Any], named: str) -> None:
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
def test_a_scheduling_that_nobody_can_mean_is_refused_when_it_is_made(fields: dict[str, Any]) -> None:
    with pytest.raises(CommandInvalid):
        Scheduling(**fields)


@pytest.mark.parametrize("cores", [frozenset(), frozenset({4095})])
def test_cores_that_cannot_be_used_are_refused(minder: Minder, cores: frozenset[int]) -> None:
    with pytest.raises(CommandInvalid):
        minder.spawn(sh("exit", cores=cores))
    assert not minder.sessions


def test_a_python_that_is_not_there_cannot_be_the_minder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")
    with pytest.raises(HostError, match="the minder cannot be started"):
        Minder()


def test_a_closed_minder_starts_nothing() -> None:
    minder = Minder()
    minder.close()
    minder.close()  # twice is once
    with pytest.raises(MinderLost):
        minder.spawn(sh("exit"))


def test_what_failed_to_start_leaves_no_descriptor_behind(minder: Minder) -> None:
    minder.spawn(sh("exit 0")).wait(PATIENCE_S)
    before = open_descriptors(minder)
    for _ in range(50):
        with pytest.raises(SpawnFailed):
            minder.spawn(Command(argv=("/no/such/program",), env=ENV), stdout=1, stderr=2)
    assert open_descriptors(minder) == before


def test_a_relative_folder_is_meant_from_where_we_are(
    minder: Minder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path)
    assert output_of(minder, sh("pwd", cwd="inside")) == f"{tmp_path.resolve()}/inside\n".encode()


@pytest.mark.parametrize("fds", [{"stdout": 9_999}, {"more_fds": {7: 9_999}}, {"more_fds": {1: 2}}])
def test_descriptors_that_cannot_be_given_are_refused(minder: Minder, fds: dict[str, Any]) -> None:
    with pytest.raises(CommandInvalid) as refused:
        minder.spawn(sh("exit"), **fds)
    assert refused.value.field == "fds"
    assert not minder.sessions


def test_as_many_descriptors_as_the_limit_and_not_one_more(minder: Minder) -> None:
    most = dict.fromkeys(range(10, 10 + FRAME_FDS_MAX), 2)
    counts = "import os, sys; sys.exit(sum(os.path.exists(f'/proc/self/fd/{n}') for n in range(10, 100)))"
    found = minder.spawn(py(counts), more_fds=most).wait(PATIENCE_S)
    assert found is not None
    assert found.code == FRAME_FDS_MAX
    with pytest.raises(LimitExceeded):
        minder.spawn(sh("exit"), more_fds={**most, 9: 2})


@pytest.mark.parametrize("number", [-1, 999, 3.5])
def test_a_number_that_is_no_signal_is_refused(minder: Minder, number: Any) -> None:
    session = minder.spawn(sh("read go"))
    with pytest.raises(CommandInvalid):
        session.signal(number)
    assert session.wait(PATIENCE_S) is not None


def test_nobody_can_wait_where_the_answers_are_heard() -> None:
    log: list[str] = []

    def spawns(_session: object, _found: object) -> None:
        try:
            minder.spawn(sh("exit"))
        except HostError as refused:
            log.append(refused.message)

    with Minder(on_exit=spawns) as minder:
        minder.spawn(sh("exit")).wait(PATIENCE_S)
    assert log == ["on_exit may not wait for a command to run"]


def test_a_refusal_is_raised_to_who_waits_and_told_to_who_does_not() -> None:
    log: list[str] = []

    def logs(session: Session, found: Exit) -> None:
        log.append(f"{session.tag} {found.refused.reason if found.refused else found.code}")

    nowhere = Command(argv=("/no/such/program",), env=ENV)
    with Minder(on_exit=logs) as minder:
        with pytest.raises(SpawnFailed):
            minder.spawn(nowhere, tag="spawned")
        session = minder.start(nowhere, tag="started")
        with pytest.raises(SpawnFailed):
            session.started()
        found = session.wait(PATIENCE_S)
        assert found is not None
        assert found.refused is not None
        assert not found.ok
        assert (session.signal(15), session.pid) == (False, 0)
        minder.start(sh("exit 3"), tag="runs").wait(PATIENCE_S)
    assert log == ["started not_found", "runs 3"]


def test_a_fork_of_ours_cannot_use_our_minder(minder: Minder) -> None:
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            minder.spawn(sh("exit"))
        except MinderLost:
            os.write(theirs, b"refused")
        finally:
            minder.close()  # closes its own copy, and nothing else
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(ours, 100) == b"refused"
    os.close(ours)
    os.close(theirs)
    assert output_of(minder, sh("echo still here")) == b"still here\n"

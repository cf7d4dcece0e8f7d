"""Sessions with their own report channel: the thread that started them reads their reports."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rota.errors import CommandInvalid, ReaperLost, SpawnFailed
from rota.host.command import Command, EncodedCommand, SessionExit
from rota.host.reaper_client import ReaperClient
from rota.host.spawning import CACHED_COMMAND_BYTES_MAX, CACHED_COMMANDS_MAX
from rota.model.work import Limits
from tests.host.support import ENV, PATIENCE_S, Pipe, dies, open_descriptors, py, sh, until, watch

WAITING = py("import signal; print('ready', flush=True); signal.pause()")


def followed(reaper: ReaperClient, command: Command | EncodedCommand, fds: dict[int, int] | None = None) -> SessionExit:
    """Start a command and follow it to its end."""
    session = reaper.follow(command, fds or {})
    session.wait_started()
    ended = session.wait()
    assert ended is not None
    return ended


def _open_fds() -> set[str]:
    return {fd.name for fd in Path("/proc/self/fd").iterdir()}


def test_a_short_command_is_reported_with_start_and_exit_together(reaper: ReaperClient) -> None:
    session = reaper.follow(sh("exit 3"), {})
    session.wait_started()
    ended = session.wait()
    assert ended is not None
    assert (ended.code, ended.pid, ended.session_id) == (3, session.pid, session.id)
    assert session.pid > 0
    assert not session.signal(signal.SIGTERM)


def test_a_long_command_is_reported_as_started_while_others_start_and_exit(reaper: ReaperClient) -> None:
    with Pipe() as pipe:
        session = reaper.follow(WAITING, {1: pipe.theirs})
        pipe.close_theirs()
        session.wait_started()
        assert pipe.line() == "ready"
        assert [followed(reaper, sh(f"exit {code}")).code for code in range(20)] == list(range(20))
        with ThreadPoolExecutor(1) as other:  # another thread may wait too, while this one follows
            waits = other.submit(session.wait, PATIENCE_S)
            assert session.signal(signal.SIGTERM)
            ended = session.wait()
            assert waits.result(PATIENCE_S) == ended
    assert ended is not None
    assert ended.signal == signal.SIGTERM


def test_a_spawn_failure_is_raised_in_the_following_thread_and_the_channel_is_reused(reaper: ReaperClient) -> None:
    for _ in range(3):
        with pytest.raises(SpawnFailed) as refused:
            followed(reaper, Command(argv=("/no/such/program",), env=ENV))
        assert refused.value.reason == "not_found"
        assert followed(reaper, sh("exit 0")).ok


def test_many_threads_follow_their_own_sessions_only(reaper: ReaperClient) -> None:
    with ThreadPoolExecutor(8) as threads:
        codes = list(threads.map(lambda code: followed(reaper, sh(f"exit {code}")).code, range(100)))
    assert codes == list(range(100))


def test_channels_are_reused_and_no_descriptor_leaks(reaper: ReaperClient) -> None:
    followed(reaper, sh("exit 0"))
    before = open_descriptors(reaper)
    for _ in range(20):
        followed(reaper, sh("exit 0"))
    assert open_descriptors(reaper) == before


def test_when_the_reaper_is_killed_a_followed_session_is_lost_and_its_command_killed() -> None:
    before = _open_fds()
    with ReaperClient() as reaper, Pipe() as pipe:
        session = reaper.follow(WAITING, {1: pipe.theirs})
        pipe.close_theirs()
        session.wait_started()
        assert pipe.line() == "ready"
        command = watch(session.pid)
        os.kill(reaper.pid, signal.SIGKILL)
        ended = session.wait()
        assert ended is not None
        assert (ended.lost, ended.pid) == (True, session.pid)
        assert dies(command)
        until(lambda: reaper.is_lost)
        with pytest.raises(ReaperLost):
            followed(reaper, sh("exit 0"))
    assert _open_fds() == before


def test_closing_the_client_reports_the_exit_of_a_followed_session() -> None:
    reaper = ReaperClient()
    with Pipe() as pipe:
        session = reaper.follow(WAITING, {1: pipe.theirs})
        pipe.close_theirs()
        session.wait_started()
        assert pipe.line() == "ready"
        reaper.close()
        ended = session.wait()
    assert ended is not None
    assert (ended.signal, ended.lost) == (signal.SIGKILL, False)


def test_a_closed_descriptor_is_named_and_the_reaper_continues(reaper: ReaperClient) -> None:
    with pytest.raises(CommandInvalid, match="descriptor 999, passed as 1, is not open"):
        followed(reaper, sh("exit 0"), {1: 999})
    assert followed(reaper, sh("exit 0")).ok


def test_an_encoded_command_runs_repeatedly_with_other_variables(reaper: ReaperClient) -> None:
    command = EncodedCommand(sh("echo $FIXED $NUMBER; ulimit -n", limits=Limits(open_files=64)))
    output = []
    for number in ("1", "zwei", "\udcff"):
        with Pipe() as pipe:
            session = reaper.follow(command, {1: pipe.theirs}, more_env={"NUMBER": number, "FIXED": "f"})
            pipe.close_theirs()
            output.append(pipe.rest())
            assert session.wait() is not None
    assert output == [b"f 1\n64\n", b"f zwei\n64\n", b"f \xff\n64\n"]


class Text(str):
    """A subclass of str, which cannot be sent to the reaper."""

    __slots__ = ()


@pytest.mark.parametrize("env", [{"A=B": "x"}, {"": "x"}, {"A": "\0"}, {"A\0": "x"}, {"A": 1}, {"A": Text("x")}])
def test_invalid_variables_are_refused(reaper: ReaperClient, env: dict[str, str]) -> None:
    command = EncodedCommand(sh("exit 0"))
    with pytest.raises(CommandInvalid) as refused:
        reaper.follow(command, {}, more_env=env)
    assert refused.value.field == "env"
    assert reaper.sessions == []


def test_an_encoded_command_looks_up_its_program_and_folder_at_each_start(
    reaper: ReaperClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path.resolve() / name for name in ("first", "second")]
    command = EncodedCommand(Command(argv=("tool",), env={"PATH": f"{folders[0]}:{folders[1]}"}, cwd="."))
    output = []
    for folder in reversed(folders):  # the second is found while the first folder is empty
        folder.mkdir()
        (folder / "tool").write_text(f"#!/bin/sh\necho {folder.name}; pwd")
        (folder / "tool").chmod(0o755)
        monkeypatch.chdir(folder)
        with Pipe() as pipe:
            session = reaper.follow(command, {1: pipe.theirs})
            pipe.close_theirs()
            output.append(pipe.rest().decode().split())
            assert session.wait() is not None
    assert output == [["second", str(folders[1])], ["first", str(folders[0])]]
    for folder in folders:
        (folder / "tool").unlink()
    with pytest.raises(SpawnFailed):
        followed(reaper, command)


def test_many_and_long_encoded_commands_are_kept_apart(reaper: ReaperClient) -> None:
    commands = [
        EncodedCommand(sh(f"exit {code} # {'x' * (code % 3) * CACHED_COMMAND_BYTES_MAX}")) for code in range(100)
    ]
    assert len(commands) > CACHED_COMMANDS_MAX
    for _twice in range(2):
        sessions = [reaper.start(command) for command in commands[-3:] + commands[:3]]
        ends = [session.wait(PATIENCE_S) for session in sessions]
        assert [ended.code for ended in ends if ended is not None] == [97, 98, 99, 0, 1, 2]
        for command in commands[3:-3]:
            reaper.start(command, tag="between")
        until(lambda: not reaper.sessions)

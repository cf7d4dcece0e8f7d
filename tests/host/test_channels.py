"""Sessions that are followed: their reports come to the thread that ordered them; else they are like every other."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rota.errors import CommandInvalid, MinderLost, SpawnFailed
from rota.host.command import Command, Exit, Recipe
from rota.host.reaper_client import Minder
from rota.host.spawning import RECIPE_KEPT_BYTES_MAX, RECIPES_MAX
from rota.model.work import Limits
from tests.host.support import ENV, PATIENCE_S, Pipe, dies, open_descriptors, py, sh, until, watch

WAITING = py("import signal; print('ready', flush=True); signal.pause()")


def followed(minder: Minder, command: Command | Recipe, fds: dict[int, int] | None = None) -> Exit:
    """Order a command and follow it to its end."""
    session = minder.follow(command, fds or {})
    session.started()
    ended = session.wait()
    assert ended is not None
    return ended


def _open_here() -> set[str]:
    return {fd.name for fd in Path("/proc/self/fd").iterdir()}


def test_what_is_over_at_once_is_told_with_its_beginning(minder: Minder) -> None:
    session = minder.follow(sh("exit 3"), {})
    session.started()
    ended = session.wait()
    assert ended is not None
    assert (ended.code, ended.pid, ended.session_id) == (3, session.pid, session.id)
    assert session.pid > 0
    assert not session.signal(signal.SIGTERM)


def test_what_goes_on_is_told_to_run_while_others_come_and_go(minder: Minder) -> None:
    with Pipe() as pipe:
        session = minder.follow(WAITING, {1: pipe.theirs})
        pipe.close_theirs()
        session.started()
        assert pipe.line() == "ready"
        assert [followed(minder, sh(f"exit {code}")).code for code in range(20)] == list(range(20))
        with ThreadPoolExecutor(1) as other:  # another thread may wait too, as long as we follow
            waits = other.submit(session.wait, PATIENCE_S)
            assert session.signal(signal.SIGTERM)
            ended = session.wait()
            assert waits.result(PATIENCE_S) == ended
    assert ended is not None
    assert ended.signal == signal.SIGTERM


def test_a_refusal_is_raised_where_it_is_followed_and_the_channel_serves_the_next(minder: Minder) -> None:
    for _ in range(3):
        with pytest.raises(SpawnFailed) as refused:
            followed(minder, Command(argv=("/no/such/program",), env=ENV))
        assert refused.value.reason == "not_found"
        assert followed(minder, sh("exit 0")).ok


def test_many_follow_at_once_and_hear_only_of_their_own(minder: Minder) -> None:
    with ThreadPoolExecutor(8) as crew:
        codes = list(crew.map(lambda code: followed(minder, sh(f"exit {code}")).code, range(100)))
    assert codes == list(range(100))


def test_channels_are_used_again_and_nothing_else_stays_open(minder: Minder) -> None:
    followed(minder, sh("exit 0"))
    before = open_descriptors(minder)
    for _ in range(20):
        followed(minder, sh("exit 0"))
    assert open_descriptors(minder) == before


def test_when_the_minder_is_killed_who_follows_hears_that_the_run_is_lost_and_the_command_dies() -> None:
    before = _open_here()
    with Minder() as minder, Pipe() as pipe:
        session = minder.follow(WAITING, {1: pipe.theirs})
        pipe.close_theirs()
        session.started()
        assert pipe.line() == "ready"
        command = watch(session.pid)
        os.kill(minder.pid, signal.SIGKILL)
        ended = session.wait()
        assert ended is not None
        assert (ended.lost, ended.pid) == (True, session.pid)
        assert dies(command)
        until(lambda: minder.is_lost)
        with pytest.raises(MinderLost):
            followed(minder, sh("exit 0"))
    assert _open_here() == before


def test_closing_the_minder_tells_who_follows_how_the_command_ended() -> None:
    minder = Minder()
    with Pipe() as pipe:
        session = minder.follow(WAITING, {1: pipe.theirs})
        pipe.close_theirs()
        session.started()
        assert pipe.line() == "ready"
        minder.close()
        ended = session.wait()
    assert ended is not None
    assert (ended.signal, ended.lost) == (signal.SIGKILL, False)


def test_a_closed_descriptor_is_named_and_the_minder_goes_on(minder: Minder) -> None:
    with pytest.raises(CommandInvalid, match="descriptor 999, to be 1, is not open"):
        followed(minder, sh("exit 0"), {1: 999})
    assert followed(minder, sh("exit 0")).ok


def test_a_recipe_runs_again_and_again_each_time_with_variables_of_its_own(minder: Minder) -> None:
    recipe = Recipe(sh("echo $FIXED $NUMBER; ulimit -n", limits=Limits(open_files=64)))
    told = []
    for number in ("1", "zwei", "\udcff"):
        with Pipe() as pipe:
            session = minder.follow(recipe, {1: pipe.theirs}, more_env={"NUMBER": number, "FIXED": "f"})
            pipe.close_theirs()
            told.append(pipe.rest())
            assert session.wait() is not None
    assert told == [b"f 1\n64\n", b"f zwei\n64\n", b"f \xff\n64\n"]


class Text(str):
    """Text of a class of its own, which the minder could not be told."""

    __slots__ = ()


@pytest.mark.parametrize("env", [{"A=B": "x"}, {"": "x"}, {"A": "\0"}, {"A\0": "x"}, {"A": 1}, {"A": Text("x")}])
def test_a_run_has_no_variables_that_no_program_could_read(minder: Minder, env: dict[str, str]) -> None:
    recipe = Recipe(sh("exit 0"))
    with pytest.raises(CommandInvalid) as refused:
        minder.follow(recipe, {}, more_env=env)
    assert refused.value.field == "env"
    assert minder.sessions == []


def test_a_recipe_finds_its_program_and_its_folder_anew_each_time(
    minder: Minder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path.resolve() / name for name in ("first", "second")]
    recipe = Recipe(Command(argv=("tool",), env={"PATH": f"{folders[0]}:{folders[1]}"}, cwd="."))
    told = []
    for folder in reversed(folders):  # what the second has is found as long as the first has nothing
        folder.mkdir()
        (folder / "tool").write_text(f"#!/bin/sh\necho {folder.name}; pwd")
        (folder / "tool").chmod(0o755)
        monkeypatch.chdir(folder)
        with Pipe() as pipe:
            session = minder.follow(recipe, {1: pipe.theirs})
            pipe.close_theirs()
            told.append(pipe.rest().decode().split())
            assert session.wait() is not None
    assert told == [["second", str(folders[1])], ["first", str(folders[0])]]
    for folder in folders:
        (folder / "tool").unlink()
    with pytest.raises(SpawnFailed):
        followed(minder, recipe)


def test_recipes_are_told_apart_however_many_there_are_and_however_long(minder: Minder) -> None:
    recipes = [Recipe(sh(f"exit {code} # {'x' * (code % 3) * RECIPE_KEPT_BYTES_MAX}")) for code in range(100)]
    assert len(recipes) > RECIPES_MAX
    for _twice in range(2):
        sessions = [minder.start(recipe) for recipe in recipes[-3:] + recipes[:3]]
        ends = [session.wait(PATIENCE_S) for session in sessions]
        assert [ended.code for ended in ends if ended is not None] == [97, 98, 99, 0, 1, 2]
        for recipe in recipes[3:-3]:
            minder.start(recipe, tag="between")
        until(lambda: not minder.sessions)

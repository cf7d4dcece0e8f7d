"""Damaged files: every error is rota's own, and `rota db check` finds whatever a call would trip over."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rota import store
from rota.errors import RotaError, StoreCorrupt, StoreError
from rota.kernel import Kernel, ScheduleSpec
from tests.adversity.conftest import Rounds
from tests.adversity.damage import DAMAGES, calls, copy_of, flip, populate
from tests.adversity.steps import NeverEnds, limit_steps
from tests.cli.shell import Shell, make_shell


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "rota.db"
    populate(path)
    return path


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return make_shell(monkeypatch, capsys)


def harmed(sound: Path, folder: Path, seed: int, way: Callable[[Path, random.Random], str]) -> tuple[Path, str]:
    """Return a damaged copy, and what was done to it."""
    shutil.rmtree(folder, ignore_errors=True)
    path = copy_of(sound, folder)
    return path, way(path, random.Random(seed))


def test_a_sound_file_has_no_problems(sound: Path, tmp_path: Path) -> None:
    kernel = Kernel(store.open(str(copy_of(sound, tmp_path))))
    assert kernel.check() == []
    for _, call in calls(kernel, tmp_path):
        call()
    assert kernel.check() == []
    kernel.store.close()


@pytest.mark.parametrize("way", DAMAGES)
def test_every_call_ends_every_error_is_ours_and_the_check_finds_its_cause(
    sound: Path,
    tmp_path: Path,
    rounds: Rounds,
    monkeypatch: pytest.MonkeyPatch,
    way: Callable[[Path, random.Random], str],
) -> None:
    steps = limit_steps(monkeypatch)
    for seed in rounds(5):
        path, what = harmed(sound, tmp_path / "work", seed, way)
        try:
            kernel = Kernel(store.open(str(path)))
        except RotaError:
            continue
        with steps.limited():
            problems = kernel.check()
        for name, call in calls(kernel, tmp_path):
            try:
                with steps.limited():
                    call()
            except NeverEnds as error:
                raise AssertionError(f"seed {seed}, {what}: {name} does not end") from error
            except RotaError as error:  # or its own refusal, for example of an entry that is in another state now
                if (isinstance(error, StoreCorrupt) or type(error) is StoreError) and not problems:
                    raise AssertionError(f"{what}: the check did not find the cause of {name}") from error
            except Exception as error:
                raise AssertionError(f"{what}: {name} raised {error!r}") from error
        kernel.store.close()


def test_a_damaged_log_is_cut_where_the_damage_begins(sound: Path, tmp_path: Path, rounds: Rounds) -> None:
    """SQLite's checksums end the log there; what remains is a state that was once committed."""
    for seed in rounds(4):
        source, copy = tmp_path / "source", tmp_path / "copy"
        for folder in (source, copy):
            shutil.rmtree(folder, ignore_errors=True)
        kernel = Kernel(store.open(str(copy_of(sound, source))))
        for _ in range(10):
            kernel.queue.enqueue(ScheduleSpec(1))
        copy.mkdir()
        for suffix in ("", "-wal"):
            shutil.copy(source / f"rota.db{suffix}", copy)
        kernel.store.close()
        flip(copy / "rota.db-wal", random.Random(seed))
        left = Kernel(store.open(str(copy / "rota.db")))
        assert left.check() == []
        assert 63 <= sum(left.queue.counts().values()) <= 73
        left.store.close()


COMMANDS = (
    ("ps",), ("queue",), ("why", "21"), ("events",), ("doctor",), ("projects", "list"), ("limits", "list"),
    ("ledger", "show", "1"), ("agents", "list"), ("db", "check"), ("db", "migrate"), ("enqueue", "agent-1"),
    ("show", "21"), ("show", "3"), ("queue", "--status", "failed,waiting"), ("queue", "--search", "a"),
    ("cancel", "33"), ("db", "prune"),
)  # fmt: skip


def test_every_command_ends_with_a_sentence(sound: Path, tmp_path: Path, rounds: Rounds, shell: Shell) -> None:
    for seed in rounds(2):
        path, what = harmed(sound, tmp_path / "work", seed, DAMAGES[seed % len(DAMAGES)])
        for command in COMMANDS:
            ended = shell(*command, "--store", path)  # an error of another kind fails the test here
            assert ended.code in range(8), f"{what}: {command} ended with {ended.code}"
            if ended.code and command[-1] not in ("check", "doctor"):
                assert ended.err.startswith(("rota: ", "Usage: ")), f"{what}: {command}: {ended.err}"


def test_the_check_command_names_the_row(sound: Path, tmp_path: Path, shell: Shell) -> None:
    path = copy_of(sound, tmp_path)
    kernel = Kernel(store.open(str(path)))
    statement = store.Statement("harm", "", "UPDATE agent_schedule_queue SET payload = '{' WHERE sched_id = 30")
    kernel.store.write(lambda tx: tx.run(statement))
    kernel.store.close()
    ended = shell("db", "check", "--store", path)
    assert ended.code == 1
    assert "agent_schedule_queue row 30 cannot be read: payload" in ended.out


@pytest.mark.parametrize("wrong", [b"\xe1lerts TEXT", b"blerts TEXT"], ids=["not UTF-8", "another name"])
def test_the_check_names_a_column_whose_definition_is_damaged(sound: Path, tmp_path: Path, wrong: bytes) -> None:
    path = copy_of(sound, tmp_path)
    path.write_bytes(path.read_bytes().replace(b"alerts TEXT", wrong))
    kernel = Kernel(store.open(str(path)))
    problems = kernel.check()
    assert any("the table budgets has no column alerts" in problem for problem in problems), problems
    kernel.store.close()


def test_an_error_that_is_not_of_the_file_passes_unchanged(sound: Path, tmp_path: Path) -> None:
    kernel = Kernel(store.open(str(copy_of(sound, tmp_path))))

    def fail(_: object) -> None:
        raise ValueError("a defect")

    for run in (kernel.store.write, kernel.store.read, kernel.store.dry_run):
        with pytest.raises(ValueError, match="a defect"):
            run(fail)
    kernel.store.close()


def test_doctor_says_that_normal_durability_loses_work_at_a_power_cut(tmp_path: Path, shell: Shell) -> None:
    path = tmp_path / "rota.db"
    for durability, said in (("full", False), ("normal", True)):
        store.open(str(path), durability=durability).close()  # type: ignore[arg-type]  # one of two
        assert ("a power cut loses acknowledged work" in shell("doctor", "--store", path).out) is said

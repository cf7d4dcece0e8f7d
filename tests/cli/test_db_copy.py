"""`rota db copy`: what it prints, and what it refuses. The copy itself is tested in tests/kernel/test_copying.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.shell import Shell, make_shell
from tests.stores import database_url, store_kind

__all__ = ["store_kind"]  # it takes the schemas of a test back


@pytest.fixture
def rota(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return make_shell(monkeypatch, capsys)


@pytest.fixture
def source(rota: Shell, tmp_path: Path) -> str:
    path = str(tmp_path / "rota.db")
    rota("agents", "create", "coder", "--store", path)
    rota("enqueue", "coder", "--store", path)
    return path


def test_it_prints_what_was_copied(rota: Shell, source: str, tmp_path: Path) -> None:
    told = rota("db", "copy", source, tmp_path / "new.db")
    assert told.code == 0
    assert "copied and checked: 1 entries, journal up to event 2" in told.out
    assert rota("queue", "--store", tmp_path / "new.db").out == rota("queue", "--store", source).out
    again = rota("db", "copy", source, tmp_path / "third.db", "--json").json
    assert (again["entries"], again["rows"]["agent_schedule_queue"], again["live_claims"]) == (1, 1, 0)


def test_a_database_is_a_target_and_a_source(rota: Shell, source: str, tmp_path: Path) -> None:
    url = database_url(tmp_path / "database")
    assert rota("db", "copy", source, url).code == 0
    assert rota("queue", "--store", url).out == rota("queue", "--store", source).out
    assert rota("db", "copy", url, tmp_path / "back.db").code == 0


def test_a_target_with_data_a_daemon_and_the_source_itself_are_refused(
    rota: Shell, source: str, tmp_path: Path
) -> None:
    rota("agents", "create", "other", "--store", tmp_path / "used.db")
    for target, words in (
        (tmp_path / "used.db", "the target has data already"),
        ("unix:/run/rota.sock", "is not a store but a daemon's address"),
        (source, "the source and the target are the same store"),
    ):
        told = rota("db", "copy", source, target)
        assert told.code != 0
        assert words in told.err


def test_a_source_that_does_not_exist_is_named(rota: Shell, tmp_path: Path) -> None:
    told = rota("db", "copy", tmp_path / "none.db", tmp_path / "new.db")
    assert "there is no store at" in told.err
    assert not (tmp_path / "new.db").exists()

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.shell import Shell, make_shell


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the store is, or will be."""
    made = tmp_path / "rota.db"
    monkeypatch.setenv("ROTA_STORE", str(made))
    monkeypatch.setenv("COLUMNS", "200")
    return made


@pytest.fixture
def rota(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    del path  # it is named by the environment
    return make_shell(monkeypatch, capsys)

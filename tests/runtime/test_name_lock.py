"""A supervisor's name: held while it works, free when it is gone, however it went."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rota.errors import WorkerExists
from rota.fleet.name_lock import held_name

HOLDER = """
import sys
from rota.fleet.name_lock import held_name
with held_name(sys.argv[1], "box/gpu"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_name_is_held_by_one_until_it_lets_go(tmp_path: Path) -> None:
    with held_name(str(tmp_path / "names"), "box"):
        with pytest.raises(WorkerExists, match="called box is at work already, as process"):
            held_name(str(tmp_path / "names"), "box").__enter__()
        with held_name(str(tmp_path / "names"), "other"), held_name(str(tmp_path / "elsewhere"), "box"):
            pass
    with held_name(str(tmp_path / "names"), "box"):
        pass


def test_a_name_is_free_when_its_process_was_killed_and_tells_which_it_was_before(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(WorkerExists, match=f"as process {process.pid}"):
            held_name(str(tmp_path), "box/gpu").__enter__()
        process.kill()
        process.wait()
    with held_name(str(tmp_path), "box/gpu"):
        pass


def test_who_has_no_name_holds_nothing_and_a_folder_that_cannot_be_made_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with held_name(str(tmp_path / "names"), None):
        assert not (tmp_path / "names").exists()
    (tmp_path / "file").touch()
    with held_name(str(tmp_path / "file" / "names"), "box"):
        assert "nobody can be kept from working as box too" in caplog.text

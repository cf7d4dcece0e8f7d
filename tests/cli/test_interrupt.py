"""Ctrl-C during `rota run`: the first one says what is waited for, the second one stops it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

FLEET = """
store = "rota.db"
slots = 2
[agents.coder]
command = ["sleep", "600"]
triggers = [{on = "start"}]
"""
WHICH = r"\((coder )?#1\)"  # it is claimed when the first line says so, and named when it is prepared


def test_the_first_one_names_the_runs_and_the_second_one_stops_them(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET)
    command = [sys.executable, "-m", "rota", "run", "--plain"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as rota:
        assert rota.stderr is not None
        lines: list[str] = []

        def until(text: str) -> None:
            assert rota.stderr is not None
            for line in rota.stderr:
                lines.append(line.rstrip("\n"))
                if text in line:
                    return

        until("coder #1 started")
        os.kill(rota.pid, signal.SIGINT)
        until("Ctrl-C")
        assert re.fullmatch(rf"waiting for 1 run {WHICH}; Ctrl-C again stops it", lines[-1])
        os.kill(rota.pid, signal.SIGINT)
        until("queued again")
        assert re.fullmatch(rf"stopping 1 run {WHICH}; its entry is queued again", lines[-1])
        until("runs ended")
        assert rota.wait(60) == 0

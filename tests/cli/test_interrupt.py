"""Ctrl-C during `rota run`: the first one says what is waited for, the second one stops it."""

from __future__ import annotations

import os
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
        assert lines[-1] == "waiting for 1 run (coder #1); Ctrl-C again stops it"
        os.kill(rota.pid, signal.SIGINT)
        until("queued again")
        assert lines[-1] == "stopping 1 run (coder #1); its entry is queued again"
        until("runs ended")
        assert rota.wait(60) == 0

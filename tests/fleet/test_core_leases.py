"""Leases of cores under `rota run`: runs that ask for the same cores take turns, and all cores are free afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rota.cli import app
from rota.host.thread_settings import allowed_cores

CORES = len(allowed_cores())
FLEET = """
slots = 2
[agents.first]
command = ["sh", "-c", "echo start >> order; sleep 0.2; echo end >> order"]
cwd = "."
cpu = {{ {first} }}
triggers = [{{ on = "start" }}]
[agents.second]
command = ["sh", "-c", "echo start >> order; sleep 0.2; echo end >> order"]
cwd = "."
cpu = {{ {second} }}
triggers = [{{ on = "start" }}]
"""
ALL_BUT_ONE = f"lease = {CORES - 1}"
CORE = max(allowed_cores())


@pytest.mark.skipif(CORES < 2, reason="a lease needs two cores")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (ALL_BUT_ONE, ALL_BUT_ONE),
        (f"cores = '{CORE}'", f"cores = '{CORE}', lease = 1"),  # no lease over a run that may run there only
    ],
)
def test_runs_that_ask_for_the_same_cores_take_turns_and_give_them_back(
    tmp_path: Path, first: str, second: str
) -> None:
    before = allowed_cores()
    (tmp_path / "fleet.toml").write_text(FLEET.format(first=first, second=second))
    done = CliRunner().invoke(app, ["run", str(tmp_path / "fleet.toml"), "--until-idle"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "order").read_text().split() == ["start", "end", "start", "end"]
    assert allowed_cores() == before

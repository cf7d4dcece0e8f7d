"""S1: the README's first example does what the README says, and the commands show it.

The package is imported from a folder outside the checkout; the store is a file in that folder.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stories.processes import PATIENCE_S, run_rota

ROOT = Path(__file__).parents[2]
HELD = """
from rota import Rota

rota = Rota("rota.db")


@rota.agent(project="research", budget={"tokens": 10})
def greedy(ctx):
    ctx.charge(tokens=11)


first, second = greedy.enqueue(), greedy.enqueue(priority=5)
print(first.sched_id, second.sched_id)
"""


def first_example() -> str:
    """The first Python block of the README."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def run_python(code: str, folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def test_the_weights_of_the_readme_have_the_effect_that_it_says(folder: Path) -> None:
    code = first_example()
    printed = run_python(code, folder)
    (said,) = re.findall(r'print\(ran\[:8\]\.count\("research"\)\)  # (\d+)', code)
    assert printed[-1] == said == "6", "three quarters of the first eight runs"
    shown = json.loads(run_rota("policy", "show", "--json", cwd=folder))
    assert (shown["name"], shown["params"], shown["set_by"]) == ("eevdf", {"priority_first": True}, None)
    assert "policy eevdf(priority_first=True), the default" in run_rota("doctor", cwd=folder, check=False)


def test_the_commands_show_the_policy_in_force_and_the_order(folder: Path) -> None:
    first, second = run_python(HELD, folder)[0].split()
    assert "with policy eevdf (the default" in run_rota("why", first, cwd=folder), "also before the first claim"
    found = json.loads(run_rota("why", first, "--json", cwd=folder))
    assert [each["sched_id"] for each in found["ahead"]] == [int(second)], "higher priority first inside a project"
    assert json.loads(run_rota("top", "--json", cwd=folder))["policy"]["share_by"] == "tokens"
    run_rota("policy", "set", "strict", "--by", "ann", cwd=folder)
    assert "with policy strict (set by ann)" in run_rota("why", first, cwd=folder)
    refused = run_rota("policy", "set", "fairshare", cwd=folder, check=False)
    assert "no policy is called 'fairshare'" in refused

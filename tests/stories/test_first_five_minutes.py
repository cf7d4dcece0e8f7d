"""S1: the first five minutes, with the package as it is installed.

The package is built and installed into a fresh environment, and everything happens in a folder outside the checkout:
the README's first example, then the commands that a new user tries, and every command that they suggest.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stories.processes import PATIENCE_S

ROOT = Path(__file__).parents[2]
HELD = """
from rota import Rota

rota = Rota("rota.db")


@rota.agent(project="research", budget={"tokens": 10})
def greedy(ctx):
    ctx.charge(tokens=11)


@rota.agent(project="research", max_attempts=1)
def broken(ctx):
    raise ValueError("no such page")


print(greedy.enqueue().sched_id, greedy.enqueue(priority=5).sched_id, broken.enqueue().sched_id)
"""
RUN = "import held; held.rota.run(slots=1, until_idle=True)"


class Installed:
    """A fresh environment with rota in it, and a folder to work in."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ROTA", "VIRTUAL"))}
        self._env = {**kept, "PATH": f"{programs}:/usr/bin:/bin", "COLUMNS": "200"}

    def run(self, *argv: str, check: bool = True) -> str:
        """Run a program of the environment, and return what it printed."""
        done = subprocess.run(
            argv, cwd=self.folder, env=self._env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert not check or done.returncode == 0, f"{shlex.join(argv)}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the package, install it into a fresh environment, and return the folder of its programs."""
    folder = tmp_path_factory.mktemp("installed")
    venv = folder / "venv"

    def uv(*arguments: str) -> None:
        command = [str(Path(sys.executable).with_name("uv")), *arguments, "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=5 * PATIENCE_S, check=False)
        assert done.returncode == 0, done.stderr

    uv("build", "--wheel", "--out-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("*.whl")
    uv("venv", "--python", sys.executable, str(venv))
    python = str(venv / "bin" / "python")
    uv("pip", "install", "--python", python, "--constraint", str(ROOT / "constraints.txt"), str(wheel))
    return venv / "bin"


@pytest.fixture
def installed(programs: Path, tmp_path: Path) -> Installed:
    return Installed(programs, tmp_path)


def first_example() -> str:
    """The first Python block of the README."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def suggested(printed: str) -> list[list[str]]:
    """The `rota` commands that an output suggests, each on a line of its own or in backticks."""
    found = re.findall(r"^\s*(rota \S.*)$|`(rota [^`]+)`", printed, re.MULTILINE)
    return [shlex.split(line or quoted) for line, quoted in found]


def test_the_weights_of_the_readme_have_the_effect_that_it_says(installed: Installed) -> None:
    code = first_example()
    printed = installed.run("python", "-c", code).splitlines()
    (said,) = re.findall(r'print\(ran\[:8\]\.count\("research"\)\)  # (\d+)', code)
    assert printed[-1] == said == "6", "three quarters of the first eight runs"
    where = installed.run("python", "-c", "import rota; print(rota.__file__)")
    assert str(ROOT) not in where, "no file of the checkout is needed"
    shown = json.loads(installed.run("rota", "policy", "show", "--json"))
    assert (shown["name"], shown["params"], shown["set_by"]) == ("eevdf", {"priority_first": True}, None)
    assert "policy eevdf(priority_first=True), the default" in installed.run("rota", "doctor", check=False)
    succeeded = json.loads(installed.run("rota", "queue", "--status", "succeeded", "--json"))
    assert succeeded["total"] == 24
    one = installed.run("rota", "show", str(succeeded["entries"][1]["sched_id"]))
    for text in ("summarise", "research", "succeeded", "page 0", "1,000"):
        assert text in one, one


def test_the_commands_explain_what_waits_and_what_failed(installed: Installed) -> None:
    (installed.folder / "held.py").write_text(HELD)
    first, second, broken = installed.run("python", "held.py").split()
    before = installed.run("rota", "why", first)
    assert "with policy eevdf (the default" in before, "also before the first claim"
    assert "no worker" in before, "nothing runs, and `why` says so"
    found = json.loads(installed.run("rota", "why", first, "--json"))
    assert int(second) in [each["sched_id"] for each in found["ahead"]], "higher priority first inside a project"
    assert json.loads(installed.run("rota", "top", "--json"))["policy"]["share_by"] == "tokens"

    installed.run("python", "-c", RUN, check=False)
    shown = installed.run("rota", "show", broken)
    for text in ("broken", "failed", "ValueError", "no such page", "held.py"):
        assert text in shown, shown
    assert "failed" in installed.run("rota", "queue", "--status", "failed")
    blocked = installed.run("rota", "why", first)
    assert "budget" in blocked
    commands = suggested(blocked)
    assert commands, blocked
    for command in commands:
        installed.run(*command)
    after = json.loads(installed.run("rota", "why", first, "--json"))
    assert after["blocking"] == [], "what `why` suggested removes what blocked it"

    installed.run("rota", "policy", "set", "strict", "--by", "ann")
    assert "with policy strict (set by ann)" in installed.run("rota", "why", first)
    refused = installed.run("rota", "policy", "set", "fairshare", check=False)
    assert "no policy is called 'fairshare'" in refused

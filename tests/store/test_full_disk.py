"""The disk fills in the midst of a group: a true answer for each, and what was acknowledged is there.

On a real small disk where the system lets us have one (in a mount namespace of the process that uses it, so nothing is
left behind), else and also by a limit on the size of files, which anybody may set.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.store.world import PATIENCE_S

ROOT = Path(__file__).parents[2]
DISK_KIB, LIMIT_BYTES = 4_096, 3_000_000
MOUNT = f'mount -t tmpfs -o size={DISK_KIB}k tmpfs "$0" && exec "$@"'


def small_disk(folder: Path) -> list[str]:
    """The words before a command that give it a small disk in this folder; none where that is not allowed."""
    if not shutil.which("unshare"):
        return []
    rights = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    words = ["unshare", *rights, "--mount", "sh", "-c", MOUNT, str(folder)]
    works = subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0
    return words if works else []


@pytest.fixture(params=["a small disk", "a limit on files"])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Play a scene of tests.store.narrow and return what it says."""
    words = small_disk(tmp_path) if request.param == "a small disk" else []

    def run(scene: str, limit: int = LIMIT_BYTES) -> dict[str, Any]:
        command = [sys.executable, "-m", "tests.store.narrow", scene, str(tmp_path), "0" if words else str(limit)]
        done = subprocess.run(
            [*words, *command], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    return run


def test_each_caller_of_a_group_that_fills_the_disk_gets_a_true_answer(play: Any) -> None:
    said = play("in_a_group")
    told, names = said["told"], said["names"]
    written = {name for name, answer in told.items() if answer == "written"}
    assert written == set(names), "what was acknowledged is there after opening again, and nothing else is"
    assert all(names[name] == said["big"] for name in written if name.startswith("big"))
    bigs = [answer for name, answer in told.items() if name.startswith("big")]
    assert bigs.count("refused") >= 2, "they did not all fit"
    assert bigs.count("written") >= 1, "and those that did were written"
    assert {name for name in told if not name.startswith("big")} <= written, "what is small still fits"
    assert said["problems"] == []


def test_at_the_brim_nothing_is_lost_and_with_new_room_it_goes_on(play: Any) -> None:
    said = play("at_the_brim")
    told = said["told"]
    assert sorted(name for name, answer in told.items() if answer == "written") == said["names"]
    assert list(told.values()).count("refused") == 5
    assert list(told.values()).count("written") > 10
    assert said["later"] == "written"
    assert said["problems"] == []


@pytest.mark.parametrize("scene", ["new_file", "old_file"])
def test_where_there_is_no_room_at_all_the_store_is_unavailable(play: Any, scene: str) -> None:
    assert play(scene, limit=1) == {"error": "StoreUnavailable"}  # and the process lives on to say so

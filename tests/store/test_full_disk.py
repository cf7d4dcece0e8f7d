"""The disk fills up during a batch: each caller gets a true result, and what was acknowledged is in the file.

The tests run on a small tmpfs where the system allows one (in a mount namespace of the child process, so nothing is
left behind), and with a limit on the size of files, which needs no privileges.
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
    """The command prefix that mounts a small disk on this folder; empty where that is not allowed."""
    if not shutil.which("unshare"):
        return []
    rights = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    words = ["unshare", *rights, "--mount", "sh", "-c", MOUNT, str(folder)]
    works = subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0
    return words if works else []


@pytest.fixture(params=["a small disk", "a limit on files"])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Run a scene of tests.store.full_disk_process and return its output."""
    words = small_disk(tmp_path) if request.param == "a small disk" else []

    def run(scene: str, limit: int = LIMIT_BYTES) -> dict[str, Any]:
        command = [
            sys.executable,
            "-m",
            "tests.store.full_disk_process",
            scene,
            str(tmp_path),
            "0" if words else str(limit),
        ]
        done = subprocess.run(
            [*words, *command], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    return run


def test_each_caller_of_a_batch_that_fills_the_disk_gets_its_own_true_result(play: Any) -> None:
    output = play("in_a_group")
    results, names = output["results"], output["names"]
    written = {name for name, answer in results.items() if answer == "written"}
    assert written == set(names), "the reopened file holds exactly what was acknowledged"
    assert all(names[name] == output["big"] for name in written if name.startswith("big"))
    bigs = [answer for name, answer in results.items() if name.startswith("big")]
    assert bigs.count("refused") >= 2, "not all of them fit"
    assert bigs.count("written") >= 1, "those that fit were written"
    assert {name for name in results if not name.startswith("big")} <= written, "small writes still fit"
    assert output["problems"] == []


def test_on_a_full_disk_nothing_is_lost_and_with_more_space_writing_continues(play: Any) -> None:
    output = play("on_a_full_disk")
    results = output["results"]
    assert sorted(name for name, answer in results.items() if answer == "written") == output["names"]
    assert list(results.values()).count("refused") == 5
    assert list(results.values()).count("written") > 10
    assert output["later"] == "written"
    assert output["problems"] == []


def test_after_a_disk_was_full_six_times_the_journal_still_replays_to_the_tables(play: Any) -> None:
    output = play("full_again_and_again")
    assert all(output["laws"])
    assert min(output["refused"]) > 0, "the disk was never full, so the test proves nothing"
    assert output["problems"] == []


@pytest.mark.parametrize("scene", ["new_file", "old_file"])
def test_without_any_free_space_the_store_is_unavailable(play: Any, scene: str) -> None:
    assert play(scene, limit=1) == {"error": "StoreUnavailable"}  # and the process is not killed

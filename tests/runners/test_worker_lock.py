"""The lock on a worker id: held while its supervisor runs, free when the process has ended, however it ended."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rota.errors import WorkerExists
from rota.fleet.worker_lock import hold_worker_id

HOLDER = """
import sys
from rota.fleet.worker_lock import hold_worker_id
with hold_worker_id(sys.argv[1], "box/gpu"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_worker_id_is_locked_until_it_is_released(tmp_path: Path) -> None:
    with hold_worker_id(str(tmp_path / "names"), "box"):
        with pytest.raises(WorkerExists, match="worker id box is in use by the supervisor in process"):
            hold_worker_id(str(tmp_path / "names"), "box").__enter__()
        with hold_worker_id(str(tmp_path / "names"), "other"), hold_worker_id(str(tmp_path / "elsewhere"), "box"):
            pass
    with hold_worker_id(str(tmp_path / "names"), "box"):
        pass


def test_a_worker_id_is_free_after_its_process_was_killed_and_the_error_names_the_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(WorkerExists, match=f"in process {process.pid}"):
            hold_worker_id(str(tmp_path), "box/gpu").__enter__()
        process.kill()
        process.wait()
    with hold_worker_id(str(tmp_path), "box/gpu"):
        pass


def test_no_worker_id_locks_nothing_and_a_folder_that_cannot_be_created_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with hold_worker_id(str(tmp_path / "names"), None):
        assert not (tmp_path / "names").exists()
    (tmp_path / "file").touch()
    with hold_worker_id(str(tmp_path / "file" / "names"), "box"):
        assert "worker id box is not locked" in caplog.text


def test_a_file_system_without_locks_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NFS without its lock service: no other supervisor is there that could be named."""

    def refuse(_descriptor: int, operation: int) -> None:
        if operation != fcntl.LOCK_UN:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with hold_worker_id(str(tmp_path), "box"):
        assert "worker id box is not locked" in caplog.text

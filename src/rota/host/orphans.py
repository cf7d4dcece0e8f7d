"""What a dead minder left: processes are known by their mark, and ended if it says so (see lineage.py)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rota.host.lineage import Mark, all_pids, identity, mark_of

__all__ = ["ROUNDS_MAX", "end_strays", "marked", "send_signal"]

ROUNDS_MAX = 20  # looks for marked processes


def marked() -> Iterator[tuple[int, Mark]]:
    """Every process with a mark that means something to us."""
    ours = _world("self")
    for pid in all_pids():
        mark = mark_of(pid)
        if mark is not None and _world(str(pid)) == ours:
            yield pid, mark


def _world(process: str) -> tuple[int, str] | None:
    """A process's user and pid namespace: in another namespace the minder has another number, and may well live."""
    folder = Path("/proc") / process
    try:
        return folder.stat().st_uid, str((folder / "ns" / "pid").readlink())
    except OSError:
        return None


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def end_strays() -> list[int]:
    """Kill every process that its minder, had it lived, would have killed. Their pids.

    What everything crashing at once left behind. Processes of a minder that lets its sessions go on are left alone.
    """
    ended: list[int] = []
    for _round in range(ROUNDS_MAX):
        strays = [pid for pid, mark in marked() if mark.on_loss == "kill" and not _lives(mark.minder)]
        if not strays:
            break
        for pid in strays:
            send_signal(pid, signal.SIGKILL)
        ended += strays
    return sorted(set(ended))


def _lives(minder: str) -> bool:
    pid = minder.partition(".")[0]
    try:
        return pid.isdigit() and identity(int(pid)) == minder
    except OSError:
        return False

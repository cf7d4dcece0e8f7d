"""systemd: the unit file, and readiness, stop and watchdog notifications.

The watchdog is notified from the event loop, so systemd restarts a daemon whose loop hangs.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rota.fault_log import FaultLog
from rota.store.addresses import host_path, shown_address

__all__ = ["SystemdNotifier", "unit_file"]

WATCHDOG_S = 30

_UNIT = """\
[Unit]
Description=rota scheduler daemon for {store}
After=network.target

[Service]
Type=notify
ExecStart={command}
WorkingDirectory={folder}
Restart=on-failure
WatchdogSec={watchdog_s}
TimeoutStopSec=30
UMask=0077
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths={folder}
PrivateTmp=yes

[Install]
WantedBy=multi-user.target
"""


def unit_file(store: str, options: Sequence[str]) -> str:
    """Return a unit file for a daemon that serves this file with these options."""
    path = shown_address(store)  # without a password: libpq reads it from ~/.pgpass
    words = [sys.executable, "-m", "rota", "serve", "--store", path, *options]
    values = {"store": path, "command": shlex.join(words), "folder": str(Path(host_path(store)).parent)}
    doubled = {name: value.replace("%", "%%") for name, value in values.items()}  # systemd would replace a single one
    return _UNIT.format(**doubled, watchdog_s=WATCHDOG_S)


class SystemdNotifier:
    """Sends notifications to systemd, if it started this process."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._faults = FaultLog("rota.daemon", expected=OSError)
        self._address = environment.get("NOTIFY_SOCKET", "")
        microseconds = environment.get("WATCHDOG_USEC", "")
        mine = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._every_s = int(microseconds) / 2e6 if microseconds.isdecimal() and mine else None

    def ready(self) -> None:
        """Notify that the daemon accepts calls."""
        self._send("READY=1")

    def stopping(self) -> None:
        """Notify that the daemon is stopping."""
        self._send("STOPPING=1")

    def keep_alive(self, loop: asyncio.AbstractEventLoop) -> None:
        """Notify the watchdog at the interval that systemd asked for."""
        if self._every_s is not None:
            self._send("WATCHDOG=1")
            loop.call_later(self._every_s, self.keep_alive, loop)

    def _send(self, text: str) -> None:
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                out.sendto(text.encode(), address)
        except OSError as problem:
            self._faults.failed(f"cannot notify systemd of {text!r}", problem)
        else:
            self._faults.worked()

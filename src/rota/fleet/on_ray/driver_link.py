"""The supervisor's end of a driver process: starts it, sends commands, reads events.

Commands are queued and written by a thread of their own, several to a frame, so that no caller waits for the driver.
`events` is read by one thread, the collector. It ends when the process has ended, or has been silent for too long: a
driver reports the nodes every second while its cluster answers. The collector then releases the connection.

A driver that is asked to end reads its last commands first: the writer shuts down its own direction only, and the
collector goes on reading until the process has ended.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from rota.clock import Clock
from rota.fleet.runners.resources import RunnerResources
from rota.host.command import Command, filter_environment

__all__ = ["CONNECT_S", "SILENT_S", "DriverLink"]

CONNECT_S = 120.0  # from the start of the process until it is connected
SILENT_S = 20.0  # without an event for so long, the cluster counts as lost
LOOK_S = 1.0  # how often the collector looks after its runs while nothing arrives
DRIVER = "rota.fleet.on_ray.driver"
DRIVER_FD = 3
DISCONNECT_S = 10.0
_encode = msgspec.msgpack.Encoder().encode


class DriverLink:
    """One driver process."""

    def __init__(self, resources: RunnerResources, address: str | None, *, linger_s: float = 0.0) -> None:
        self._clock: Clock = resources.clock
        self._is_connected = False  # to the cluster: the driver has reported something
        self._commands: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        ours, theirs = socket.socketpair()
        with theirs, open(os.devnull, "r+b") as null:  # noqa: PTH123  # a device, not a path of the user
            env = {
                **filter_environment(os.environ, allow=("*",)),
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            }
            command = Command(argv=(sys.executable, "-m", DRIVER, str(DRIVER_FD)), env=env)
            self._session = resources.reaper.spawn(
                command, stdout=null.fileno(), stderr=null.fileno(), more_fds={DRIVER_FD: theirs.fileno()}
            )
        self._connection = Connection(ours.detach())
        self._connection.send_bytes(_encode({"address": address, "linger_s": linger_s}))
        self._writer = threading.Thread(target=self._write, name="rota-ray-commands", daemon=True)
        self._writer.start()

    def send(self, *command: Any) -> None:
        """Send a command, without waiting."""
        self._commands.put(list(command))

    def events(self) -> Iterator[list[Any] | None]:
        """Yield the driver's events, and None whenever there was none for `LOOK_S`."""
        heard_at, patience_s = self._clock.monotonic(), CONNECT_S
        with suppress(EOFError, OSError):
            while self._clock.monotonic() - heard_at < patience_s:
                if not self._connection.poll(LOOK_S):
                    yield None
                    continue
                heard_at, patience_s, self._is_connected = self._clock.monotonic(), SILENT_S, True
                yield from msgspec.msgpack.decode(self._connection.recv_bytes())

    def close(self) -> None:
        """End the process: it disconnects by itself, or is killed, as one that may be connecting for a long time."""
        self._commands.put(None)
        if not self._is_connected or self._session.wait(DISCONNECT_S) is None:
            self._session.kill()

    def release(self) -> None:
        """Kill the process if it has not ended, and close the connection: no event is read any more."""
        self._session.kill()
        self._commands.put(None)
        self._writer.join()
        self._connection.close()

    def _write(self) -> None:
        """Write commands until the last one, then nothing more."""
        self._write_commands()
        with suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as ours:
            ours.shutdown(socket.SHUT_WR)

    def _write_commands(self) -> None:
        while (command := self._commands.get()) is not None:
            commands = [command]
            ends = False
            with suppress(queue.Empty):
                while not ends:
                    further = self._commands.get_nowait()
                    ends = further is None
                    if further is not None:
                        commands.append(further)
            try:
                self._connection.send_bytes(_encode(commands))
            except (OSError, ValueError):
                return  # the process has ended: the reader sees it
            if ends:
                return

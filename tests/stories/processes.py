"""The processes of a story: the `rota` command, and a daemon that serves a file."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from rota.rpc.daemon.runtime_dir import DaemonInfo, find_daemon
from tests.daemon.harness import make_token
from tests.postgres_server import own_schema

PATIENCE_S = 60.0
ROTA = (sys.executable, "-m", "rota")


def run_rota(*arguments: str, cwd: Path, env: Mapping[str, str] | None = None, check: bool = True) -> str:
    """Run a command to its end and return what it printed."""
    done = subprocess.run(
        [*ROTA, *arguments],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert not check or done.returncode == 0, f"rota {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@contextlib.contextmanager
def daemon_of(store: Path, *options: str, env: Mapping[str, str] | None = None) -> Iterator[DaemonInfo]:
    """Serve a file over a socket and HTTP, in a process of its own."""
    argv = [*ROTA, "serve", "--store", str(store), "--listen", "127.0.0.1:0", "--log-level", "info", *options]
    environment = {**os.environ, **(env or {})}
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environment) as daemon:
        try:
            yield _wait_until_served(daemon, store)
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.communicate(timeout=PATIENCE_S)


@contextlib.contextmanager
def door(kind: str, store: Path) -> Iterator[dict[str, str]]:
    """The environment of programs that use a store through one of the doors: STORE, and TOKEN over HTTP."""
    if kind == "file":
        yield {"STORE": str(store)}
    elif kind == "postgres":
        with own_schema("story") as url:
            yield {"STORE": url}
    else:
        with daemon_of(store) as daemon:
            address = next(each for each in daemon.addresses if each.startswith(kind))
            yield {"STORE": address, **({"TOKEN": make_token(str(store), "operate")} if kind == "http" else {})}


def _wait_until_served(daemon: subprocess.Popen[str], store: Path) -> DaemonInfo:
    """Read the daemon's log until it says that it serves."""
    assert daemon.stderr is not None
    lines = []
    for line in daemon.stderr:
        lines.append(line)
        if "serving" in line:
            info = find_daemon(str(store))
            assert info is not None
            return info
    raise AssertionError("".join(lines))

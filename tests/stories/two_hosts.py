"""Two hosts and a database server, each in a network namespace of its own, joined by cables that can be pulled.

Run as a module (URL FOLDER WORKER_ID) it is a supervisor on one of the hosts. Its runs write a line when they begin and
when they end, and wait in between until a file named go.WORKER_ID is there. The hosts share their files: only the
network is cut.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rota import Rota
from rota.model.work import Backoff, RestartPolicy

TOKENS = 10  # of one run
CAP = 2  # runs of the project at a time, on both hosts together
CLAIM_S = 3.0
PATIENCE_S = 90.0


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline, pause = time.monotonic() + PATIENCE_S, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        pause.wait(0.05)


class Network:
    """The namespaces: `server`, and one for each host. `cut` and `heal` pull and plug the cable of a host."""

    def __init__(self, hosts: tuple[str, ...]) -> None:
        self.prefix = f"rt{os.getpid() % 100_000}"
        self.server = f"{self.prefix}s"
        self.hosts = hosts
        # one net for each host; the test's own process number keeps two runs on one machine apart
        self._net = 1 + os.getpid() % 200

    def namespace(self, host: str) -> str:
        return f"{self.prefix}{host}"

    def address(self, host: str) -> str:
        """The server's address as this host sees it."""
        return f"10.{200 + self.hosts.index(host)}.{self._net}.1"

    def cut(self, host: str) -> None:
        _ip("-n", self.server, "link", "set", f"s{host}", "down")

    def heal(self, host: str) -> None:
        _ip("-n", self.server, "link", "set", f"s{host}", "up")

    def __enter__(self) -> Network:
        _ip("netns", "add", self.server)
        for host in self.hosts:
            inside, peer = self.namespace(host), self.address(host).removesuffix("1") + "2"
            _ip("netns", "add", inside)
            _ip("-n", self.server, "link", "add", f"s{host}", "type", "veth", "peer", "name", "up0", "netns", inside)
            for space, link, address in ((self.server, f"s{host}", self.address(host)), (inside, "up0", peer)):
                _ip("-n", space, "address", "add", f"{address}/24", "dev", link)
                _ip("-n", space, "link", "set", link, "up")
        return self

    def __exit__(self, *problem: object) -> None:
        for space in (self.server, *map(self.namespace, self.hosts)):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", space)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@contextlib.contextmanager
def supervisor(network: Network, host: str, url: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a supervisor on a host."""
    command = [sys.executable, "-m", "tests.stories.two_hosts", url, str(folder), host]
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / f"state-{host}")}
    with Path(folder, f"{host}.err").open("wb") as errors:
        process = subprocess.Popen(
            ["ip", "netns", "exec", network.namespace(host), *command],
            env=environment, stdout=errors, stderr=errors, cwd=Path(__file__).parents[2],
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def register(rota: Rota, folder: str, worker: str) -> Any:
    """The project with its cap and budget, and its one agent."""

    def step(ctx: Any) -> str:
        _note(folder, f"{ctx.sched_id} {worker} begin")
        until(lambda: Path(folder, f"go.{worker}").exists())
        _note(folder, f"{ctx.sched_id} {worker} released")
        ctx.charge(tokens=TOKENS)
        _note(folder, f"{ctx.sched_id} {worker} end")
        return worker

    again = RestartPolicy(backoff=Backoff(base_s=0.01, cap_s=0.05), quarantine_after=0)
    return rota.agent("step", project="lab", ceiling={"tokens": TOKENS}, restart=again, max_attempts=10)(step)


def _note(folder: str, line: str) -> None:
    with Path(folder, "log").open("a") as log:
        log.write(f"{line}\n")


def main(url: str, folder: str, worker: str) -> None:
    with Rota(url) as rota:
        register(rota, folder, worker)
        rota.run(slots=1, worker_id=worker, claim_timeout_s=CLAIM_S, heartbeat_s=CLAIM_S / 6)


if __name__ == "__main__":
    main(*sys.argv[1:])

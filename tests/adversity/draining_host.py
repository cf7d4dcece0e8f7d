"""Several workers on one host, each a process: they claim, charge and complete until they are killed.

Run as a module (URL NAME COUNT) it starts them, and writes a line when all have opened the store.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from rota import store
from rota.kernel import Completion, Kernel

AT_ONCE = 3  # entries of one claim
TOKENS = 10  # of one run


@contextlib.contextmanager
def draining_host(namespace: str, url: str, name: str, count: int) -> Iterator[None]:
    """Run workers in a network namespace during the block."""
    command = [sys.executable, "-m", "tests.adversity.draining_host", url, name, str(count)]
    process = subprocess.Popen(
        ["ip", "netns", "exec", namespace, *command],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2], process_group=0,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _work(url: str, worker_id: str, opened: int) -> None:
    kernel = Kernel(store.open(url))
    os.write(opened, b"!")
    while True:
        found = kernel.queue.claim(worker_id=worker_id, max_n=AT_ONCE, wait_s=3_600, claim_timeout_s=3_600)
        for entry in found:
            kernel.queue.charge(entry.sched_id, {"tokens": TOKENS}, token=entry.token)
        kernel.queue.complete_many([Completion(entry.sched_id, "completed", entry.token) for entry in found])


def main(url: str, name: str, count: int) -> None:
    told, tells = os.pipe()
    for number in range(count):
        if os.fork() == 0:
            try:
                _work(url, f"{name}{number}", tells)
            finally:
                os._exit(1)
    for _ in range(count):
        os.read(told, 1)
    print("ready", flush=True)
    os.wait()  # none of them ends by itself


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

"""A process on a host of its own (a network namespace), which a test tells what to do.

Run as a module (URL NAME) it opens the store and reads one command a line, as JSON: a verb and its arguments. It
answers each with one line: {"value": …} or {"error": the type, "text": …}.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rota import store
from rota.errors import RotaError
from rota.kernel import Kernel, ScheduleSpec
from rota.service.outages import call_through_outage
from rota.store import Transaction
from rota.store.statements.file import META_GET, META_SET


class RemoteHost:
    """The test's end: `ask` sends a command, `answer` waits for its result; a call does both."""

    def __init__(self, namespace: str, url: str, name: str) -> None:
        self._process = subprocess.Popen(
            ["ip", "netns", "exec", namespace, sys.executable, "-m", "tests.adversity.remote_host", url, name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip

    def ask(self, verb: str, *arguments: Any) -> None:
        assert self._process.stdin is not None
        print(json.dumps([verb, *arguments]), file=self._process.stdin, flush=True)

    def answer(self) -> Any:
        """Return the value, or the name of the error's type."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process has ended"
        found = json.loads(line)
        return found["value"] if "value" in found else found["error"]

    def __call__(self, verb: str, *arguments: Any) -> Any:
        self.ask(verb, *arguments)
        return self.answer()

    def __enter__(self) -> RemoteHost:
        return self

    def __exit__(self, *problem: object) -> None:
        self._process.kill()
        self._process.communicate()


class _Commands:
    """What the process can be told."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self.held = contextlib.ExitStack()
        self.kernel = Kernel(store.open(url))

    def enqueue(self, pid: int) -> int:
        return self.kernel.queue.enqueue(ScheduleSpec(pid, max_attempts=5))

    def claim(self, claim_timeout_s: float, wait_s: float) -> list[Any]:
        """Claim one entry: its id, token and attempt."""
        found = self.kernel.queue.claim(worker_id=self.name, claim_timeout_s=claim_timeout_s, wait_s=wait_s)
        return [[entry.sched_id, entry.token, entry.attempt] for entry in found]

    def complete(self, sched_id: int, token: int) -> str:
        self.kernel.queue.complete(sched_id, "completed", token=token, result=self.name)
        return "completed"

    def complete_when_back(self, sched_id: int, token: int) -> str:
        """As a worker does it: the call is made again while the server cannot be reached."""
        clock = self.kernel.clock
        return call_through_outage(clock, lambda: self.complete(sched_id, token), lambda: False, repeats=True)

    def hold_worker_id(self, worker_id: str) -> str:
        """Hold an id until this process ends."""
        self.held.enter_context(self.kernel.store.hold_worker_id(worker_id))
        return "held"

    def hold_turn(self) -> int:
        """Take the turn, say so, wait for a line, then write; returns how often that had to be begun."""
        runs: list[int] = []

        def work(tx: Transaction) -> int:
            runs.append(1)
            tx.run(META_GET, ("held",))
            if len(runs) == 1:
                _say(value="held")
                sys.stdin.readline()
            tx.run(META_SET, ("held", self.name))
            return len(runs)

        held: Callable[[], int] = lambda: self.kernel.store.write(work)  # noqa: E731
        return call_through_outage(self.kernel.clock, held, lambda: False)


def _say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def main(url: str, name: str) -> None:
    commands = _Commands(url, name)
    for line in iter(sys.stdin.readline, ""):
        verb, *arguments = json.loads(line)
        try:
            _say(value=getattr(commands, verb)(*arguments))
        except RotaError as problem:
            _say(error=type(problem).__name__, text=str(problem))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Components for worker processes. They are imported there, so nothing here may depend on a test having run."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

from rota.graph.components import component
from rota.graph.invocation import GraphContext, Invocation


@component("process.pid")
def pid(value: Any = None) -> int:
    """In which process it runs."""
    return os.getpid()


@component("process.hang")
def hang(value: int) -> int:
    """Hangs for 1, without checking for cancellation."""
    while value == 1:
        pass
    return value


@component("process.crash")
def crash(value: int) -> int:
    """Exits for 1."""
    if value == 1:
        os._exit(42)
    if value == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return value


@component("process.flaky")
def flaky(value: int, invocation: Invocation) -> tuple[int, int]:
    """Exits the first time it receives 0."""
    if value == 0 and invocation.attempt == 1:
        os._exit(7)
    return value, invocation.attempt


@component("process.stuck")
class Stuck:
    """Hangs in deactivate."""

    def execute(self, value: int) -> int:
        return value

    def deactivate(self) -> None:
        while True:
            pass


@component("process.fail")
def fail(value: int) -> int:
    """Raises."""
    raise ValueError(f"no {value}")


@component("process.exit")
def leave(value: int) -> int:
    """Asks the interpreter to exit."""
    raise SystemExit(value)


@component("process.lock")
def give_lock(value: int) -> Any:
    """Publishes what cannot be pickled."""
    return threading.Lock()


@component("process.tally")
class Tally:
    """Has a state that must stay in one process."""

    def __init__(self, *, start: int = 0) -> None:
        self.total = start

    def restore(self, state: int) -> None:
        """Start with this total."""
        self.total = state

    def snapshot(self) -> int:
        """The total."""
        return self.total

    def execute(self, value: int) -> int:
        """Add one."""
        self.total += 1
        return self.total


@component("process.living")
class Living:
    """Writes its lifecycle calls to a file."""

    def __init__(self, *, path: str) -> None:
        self.path = path

    def _note(self, what: str) -> None:
        with Path(self.path).open("a") as file:
            file.write(what + "\n")

    def configure(self) -> None:
        """Record the call."""
        self._note("configure")

    def activate(self) -> None:
        """Record the call."""
        self._note("activate")

    def deactivate(self) -> None:
        """Record the call."""
        self._note("deactivate")

    def execute(self, value: int = 0) -> int:
        """Record the call; exit for 1."""
        self._note(f"execute {value}")
        if value == 1:
            os._exit(1)
        return value


@component("process.broken_start")
class BrokenStart:
    """Cannot be activated."""

    def activate(self) -> None:
        """Fails."""
        raise OSError("no device")

    def execute(self) -> int:
        """Never runs."""
        return 1


@component("process.context", outputs=("out",))
def with_context(value: int, context: GraphContext, invocation: Invocation) -> None:
    """Uses what is available in a worker process."""
    context.publish("out", (value, context.config["mode"], context.epoch_id, context.cancel_requested()))


@component("process.state", outputs=("out",))
def with_state(value: int, context: GraphContext) -> None:
    """Uses what is not available in a worker process."""
    context.publish("out", dict(context.state))


@component("process.wait")
def wait_for_stop(invocation: Invocation, value: int = 0, *, path: str) -> int:
    """Reports that it has started, then works until it is asked to stop."""
    Path(path).touch()
    while not invocation.cancel_requested():
        pass
    return value


@component("process.async")
async def later(value: int) -> int:
    """A coroutine."""
    return value + 1


@component("process.pass")
def pass_on(value: Any = 0, *, start: int = 0) -> Any:
    """Its input, or a number of its own."""
    return value or start


@component("process.until_cancelled")
def until_cancelled(context: GraphContext, value: Any = 0) -> None:
    """Works until it is cancelled."""
    while not context.cancel_requested():
        pass


@component("process.twice", outputs=("out",))
def twice(context: GraphContext, value: Any = 0) -> None:
    """Publishes two messages."""
    context.publish("out", "first")
    context.publish("out", "second")


@component("process.mix")
def mix(*values: int, salt: int) -> int:
    """A number that depends on every input and on their order."""
    for value in values:
        salt = (salt * 31 + value) % 1_000_003
    return salt


@component("process.tick")
def tick(invocation: Invocation, *, salt: int) -> int:
    """A number that depends on the epoch."""
    return invocation.epoch_id * 1_000 + salt

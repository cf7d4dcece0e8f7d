"""How `rota graph` commands stop: which signals drain a run, and what the terminal says while a stop waits."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from rota.cli.terminal_text import say
from rota.graph import StopToken

__all__ = ["NOTICE_AFTER_S", "describe_stop", "stop_on_signals"]

DRAINS = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP
NOTICE_AFTER_S = 1.0  # how long a stop may take before the terminal says what it waits for


@contextlib.contextmanager
def stop_on_signals(token: StopToken) -> Iterator[list[int]]:
    """Make the first signal stop the run at its next stop check; a second one ends the command.

    The list that it yields has the number of the signal once that has arrived.
    """
    numbers = [getattr(signal, name) for name in DRAINS if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    handled = [number for number in numbers if before[number] is not signal.SIG_IGN]  # nohup ignores SIGHUP

    def restore() -> None:
        for number in handled:
            signal.signal(number, before[number])

    stopped_by: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        restore()
        stopped_by.append(number)
        token.request()

    for number in handled:
        signal.signal(number, stop)
    try:
        yield stopped_by
    finally:
        restore()


@contextlib.contextmanager
def describe_stop(
    token: StopToken, executing: Callable[[], Sequence[str]], notice_after_s: float = NOTICE_AFTER_S
) -> Iterator[None]:
    """While a stop waits for components, print which ones, whenever that changes."""
    is_over = threading.Event()

    def watch() -> None:
        described: Sequence[str] = ()
        while not is_over.wait(notice_after_s):
            names = executing() if token.is_set else ()
            if names and names != described:
                described = names
                plural = "s" if len(names) > 1 else ""
                say(f"stopping: waiting for component{plural} {', '.join(names)}; Ctrl-C ends it at once", err=True)

    thread = threading.Thread(target=watch, name="stop-notice", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()

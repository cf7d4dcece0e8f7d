"""Inside a warm worker: take a call, run it, answer, wait for the next.

What a function raises is its answer, SystemExit included; only a crash of the process, or a kill, ends the worker.
While it runs, a function may `note` something to whoever called it (progress, a charge) and ask what it was `told`
(to stop, say). A thread that outlives its call speaks for whichever call runs then, and into the void when none does.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import threading
import traceback
from typing import Any, NoReturn

from rota.host.calls import Kind, Line

__all__ = ["in_worker", "leave", "note", "serve", "told"]


class _Running:
    """The call that runs in this process."""

    def __init__(self) -> None:
        self.line: Line | None = None
        self.number = 0  # of the call; 0 between calls
        self.speaking = threading.Lock()  # a function may have threads that note


_running = _Running()


def in_worker() -> bool:
    """Whether this process is a warm worker."""
    return _running.line is not None


def note(value: Any) -> None:
    """Say something to whoever made the call that runs; outside a worker nobody listens."""
    if _running.line is not None:
        with _running.speaking:
            if _running.number:
                _running.line.send(Kind.NOTE, pickle.dumps((_running.number, value)))


def told() -> list[Any]:
    """What the caller has said to this call since we last asked."""
    values: list[Any] = []
    while _running.line is not None and (message := _running.line.waiting()) is not None:
        number, value = pickle.loads(message[1])  # noqa: S301  # from the process that gave us the function to run
        if number == _running.number:  # else it was for a call that had ended when it came
            values.append(value)
    return values


def serve(sock: socket.socket) -> None:
    """Answer calls until the pool hangs up."""
    _running.line = line = Line(sock)
    while (message := line.receive()) is not None:
        kind, payload = message
        if kind is not Kind.CALL:
            continue  # told too late
        answer = _answer(payload)
        _flush()
        with _running.speaking:
            _running.number = 0
            try:
                line.send(*answer)
            except OSError:
                return  # nobody waits for it any more


def _answer(payload: bytes) -> tuple[Kind, bytes]:
    try:
        _running.number, function, arguments, named = pickle.loads(payload)  # noqa: S301  # from our own pool
    except BaseException as problem:  # whatever an import may raise
        return Kind.UNLOADABLE, pickle.dumps(_story(problem))
    try:
        value = function(*arguments, **named)
    except BaseException as problem:  # the function's own; the worker lives on
        return Kind.RAISED, _raised(problem)
    try:
        return Kind.VALUE, pickle.dumps(value)
    except BaseException as problem:  # a value's own reduce method may raise anything
        return Kind.UNPICKLABLE, pickle.dumps(_story(problem))


def _raised(problem: BaseException) -> bytes:
    """What was raised: as text, which always arrives, and as itself, where that can be sent."""
    try:
        itself = pickle.dumps(problem)
    except BaseException:  # see above
        itself = b""
    return pickle.dumps((*_story(problem), itself))


def _story(problem: BaseException) -> tuple[str, str, str]:
    try:
        text = str(problem)
    except Exception:  # its __str__ is the user's code
        text = "(its message could not be read)"
    lines = traceback.format_exception(type(problem), None, problem.__traceback__)
    return type(problem).__name__, text, "".join(lines[:-1])


def _flush() -> None:
    """What the function printed is out before its answer is."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # nobody reads it, or the function closed it
            continue


def leave() -> NoReturn:
    """End the process without what its parent had planned for its own end."""
    _flush()
    os._exit(0)

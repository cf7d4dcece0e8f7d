"""Inside a warm worker: take a call, run it, answer, wait for the next.

What a function raises is its answer, SystemExit included; only a crash of the process, or a kill, ends the worker.
While it runs, a function may `note` something to whoever called it (progress), `ask` and wait for the answer, and look
what it was `told` (to stop, say). A thread that outlives its call speaks for whichever call runs then, and into the
void when none does.

Several threads of a function may ask at once. One of them reads the line for all and hands out what comes; the others
wait until theirs has come, or until it is their turn to read. When the call ends, whoever still reads is woken and
leaves, for the line then belongs to the loop that waits for the next call.
"""

from __future__ import annotations

import itertools
import os
import pickle
import select
import socket
import sys
import threading
import traceback
from typing import Any, NoReturn

from rota.errors import HostError
from rota.host.worker_messages import Kind, Line

__all__ = ["ask", "fileno", "in_worker", "leave", "note", "serve", "told"]


class _Running:
    """The call that runs in this process."""

    def __init__(self) -> None:
        self.line: Line | None = None
        self.number = 0  # of the call; 0 between calls
        self.speaking = threading.Lock()  # a function may have threads that note
        self.questions = itertools.count(1)
        self.hearing = threading.Condition()  # of all below
        self.is_read = False  # by a thread that waits for an answer
        self.told: list[Any] = []
        self.answers: dict[int, tuple[bool, Any]] = {}
        self.wake = -1  # a descriptor that ends the waiting of whoever reads


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
    """What the caller has said to this call since we last looked."""
    with _running.hearing:
        if _running.line is not None and _running.number and not _running.is_read:
            _sort(_running.line)
        values, _running.told = _running.told, []
    return values


def ask(value: Any) -> Any:
    """Ask whoever made the call that runs, and wait for the answer; what went wrong there is raised here."""
    question, line = next(_running.questions), _running.line
    with _running.speaking:
        number = _running.number
        if line is None or not number:
            raise HostError("no call runs here that could ask", hint="Ask in the function, not after it.")
        line.send(Kind.ASK, pickle.dumps((number, question, value)))
    went_well, answer = _await(line, number, question)
    if not went_well:
        raise answer
    return answer


def fileno() -> int:
    """A descriptor that becomes readable when something was told; for who waits for other things too."""
    return -1 if _running.line is None else _running.line.fileno()


def _await(line: Line, number: int, question: int) -> tuple[bool, Any]:
    with _running.hearing:
        while question not in _running.answers:
            if _running.number != number:
                raise HostError("the call that asked is over", hint="Ask in the function, not after it.")
            if _running.is_read:
                _running.hearing.wait()
            else:
                _read(line, number)
        return _running.answers.pop(question)


def _read(line: Line, number: int) -> None:
    """Wait for what comes, without the lock, and hand it out."""
    _running.is_read = True
    _running.hearing.release()
    try:
        poll = select.poll()
        poll.register(line, select.POLLIN)
        poll.register(_running.wake, select.POLLIN)
        poll.poll()
    finally:
        _running.hearing.acquire()
        _running.is_read = False
        _running.hearing.notify_all()
    if _running.number == number and not _sort(line) and line.is_dead():
        raise HostError("whoever made this call is gone")


def _sort(line: Line) -> int:
    """Hand out what has come: how many messages it was."""
    count = 0
    while (message := line.waiting()) is not None:
        kind, payload = message
        count += 1
        number, *rest = pickle.loads(payload)  # noqa: S301  # from the process that gave us the function to run
        if number != _running.number:
            continue  # it was for a call that had ended when it came
        if kind is Kind.TELL:
            _running.told.append(rest[0])
        elif kind is Kind.ANSWER:
            question, went_well, value = rest
            _running.answers[question] = (went_well, value)
    return count


def _end_call() -> None:
    """From here on the line belongs to the loop: whoever still reads it leaves."""
    with _running.hearing:
        _running.number = 0
        if _running.is_read:
            os.eventfd_write(_running.wake, 1)
            _running.hearing.wait_for(lambda: not _running.is_read)
            os.eventfd_read(_running.wake)
        _running.told.clear()
        _running.answers.clear()
        _running.hearing.notify_all()


def serve(sock: socket.socket) -> None:
    """Answer calls until the pool hangs up."""
    _running.line = line = Line(sock)
    _running.wake = os.eventfd(0)
    while (message := line.receive()) is not None:
        kind, payload = message
        if kind is not Kind.CALL:
            continue  # told too late
        answer = _answer(payload)
        _flush()
        _end_call()
        with _running.speaking:
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

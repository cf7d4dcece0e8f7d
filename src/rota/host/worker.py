"""The code inside a worker process: receive a call, run it, send the result, wait for the next call.

An exception of the function is the result of the call, SystemExit included; only a crash of the process, or a kill,
ends the worker. While it runs, a function may `report` values to the caller (progress), send a `request` and wait for
the response, and read the `notices` that the caller sent (a request to stop, for example). A thread that outlives its
call sends its reports for the call that runs then; they are dropped when none does.

Several threads of a function may wait for responses. One of them reads the connection for all and distributes what
arrives; the others wait until their response has arrived, or until they become the reader. When the call ends, a
thread that still reads is woken and gives up, because the connection then belongs to the loop that waits for the next
call.
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
from rota.host.main_module import load_main
from rota.host.process_cpu import own_cpu_s
from rota.host.worker_messages import MessageKind, WorkerConnection

__all__ = ["exit_process", "fileno", "in_worker", "notices", "report", "request", "serve"]


MAIN = b"__main__"  # in the payload of a call that needs the main module


class _CurrentCall:
    """The call that runs in this process."""

    def __init__(self) -> None:
        self.connection: WorkerConnection | None = None
        self.number = 0  # of the call; 0 between calls
        self.send_lock = threading.Lock()  # several threads of a function may send
        self.request_ids = itertools.count(1)
        self.received = threading.Condition()  # of all below
        self.has_reader = False  # a thread reads the connection while it waits for a response
        self.notices: list[Any] = []
        self.responses: dict[int, tuple[bool, Any]] = {}
        self.wake_fd = -1  # wakes the reading thread


_current = _CurrentCall()


def in_worker() -> bool:
    """Whether this process is a worker."""
    return _current.connection is not None


def report(value: Any) -> None:
    """Send a value to the caller of the running call. Outside a worker this does nothing."""
    if _current.connection is not None:
        with _current.send_lock:
            if _current.number:
                _current.connection.send(MessageKind.REPORT, pickle.dumps((_current.number, value)))


def notices() -> list[Any]:
    """Return the values that the caller has sent to this call since the last look."""
    with _current.received:
        if _current.connection is not None and _current.number and not _current.has_reader:
            _distribute(_current.connection)
        values, _current.notices = _current.notices, []
    return values


def request(value: Any) -> Any:
    """Send a request to the caller of the running call and return the response. An error there is raised here."""
    request_id, connection = next(_current.request_ids), _current.connection
    with _current.send_lock:
        number = _current.number
        if connection is None or not number:
            raise HostError("no call is running", hint="Send requests while the function runs, not after it.")
        connection.send(MessageKind.REQUEST, pickle.dumps((number, request_id, value)))
    succeeded, response = _wait_for_response(connection, number, request_id)
    if not succeeded:
        raise response
    return response


def fileno() -> int:
    """A descriptor that becomes readable when a notice arrives, to poll together with others; -1 outside a worker."""
    return -1 if _current.connection is None else _current.connection.fileno()


def _wait_for_response(connection: WorkerConnection, number: int, request_id: int) -> tuple[bool, Any]:
    with _current.received:
        while request_id not in _current.responses:
            if _current.number != number:
                raise HostError(
                    "the call that sent the request is over",
                    hint="Send requests while the function runs, not after it.",
                )
            if _current.has_reader:
                _current.received.wait()
            else:
                _read(connection, number)
        return _current.responses.pop(request_id)


def _read(connection: WorkerConnection, number: int) -> None:
    """Wait for messages, without the lock, and distribute them."""
    _current.has_reader = True
    _current.received.release()
    try:
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        poll.register(_current.wake_fd, select.POLLIN)
        poll.poll()
    finally:
        _current.received.acquire()
        _current.has_reader = False
        _current.received.notify_all()
    if _current.number == number and not _distribute(connection) and connection.is_closed_by_peer():
        raise HostError("the caller of this call is gone")


def _distribute(connection: WorkerConnection) -> int:
    """Store the messages that have arrived. Return how many they were."""
    count = 0
    while (message := connection.try_receive()) is not None:
        kind, payload = message
        count += 1
        number, *rest = pickle.loads(payload)  # noqa: S301  # from the process that gave us the function to run
        if number != _current.number:
            continue  # for a call that had already ended
        if kind is MessageKind.NOTICE:
            _current.notices.append(rest[0])
        elif kind is MessageKind.RESPONSE:
            request_id, succeeded, value = rest
            _current.responses[request_id] = (succeeded, value)
    return count


def _end_call() -> None:
    """Return the connection to the loop: a thread that still reads it is woken and gives up."""
    with _current.received:
        _current.number = 0
        if _current.has_reader:
            os.eventfd_write(_current.wake_fd, 1)
            _current.received.wait_for(lambda: not _current.has_reader)
            os.eventfd_read(_current.wake_fd)
        _current.notices.clear()
        _current.responses.clear()
        _current.received.notify_all()


def serve(sock: socket.socket) -> None:
    """Run calls until the pool closes the connection."""
    _current.connection = connection = WorkerConnection(sock)
    _current.wake_fd = os.eventfd(0)
    while (message := connection.receive()) is not None:
        kind, payload = message
        if kind is not MessageKind.CALL:
            continue  # a notice for a call that has ended
        before_s = own_cpu_s()
        kind, pickled = _run(payload)
        _flush()
        _end_call()
        cpu_s = own_cpu_s() - before_s
        with _current.send_lock:
            try:
                connection.send_result(kind, cpu_s, pickled)
            except OSError:
                return  # the caller is gone


def _run(payload: bytes) -> tuple[MessageKind, bytes]:
    """Run a call and return its result message."""
    try:
        _current.number, function, arguments, named = _unpickle_call(payload)
    except BaseException as problem:  # whatever an import may raise
        return MessageKind.UNLOADABLE, pickle.dumps(_describe(problem))
    try:
        value = function(*arguments, **named)
    except BaseException as problem:  # raised by the function; the worker continues
        return MessageKind.RAISED, _pickle_error(problem)
    try:
        return MessageKind.VALUE, pickle.dumps(value)
    except BaseException as problem:  # a reduce method may raise anything
        return MessageKind.UNPICKLABLE, pickle.dumps(_describe(problem))


def _unpickle_call(payload: bytes) -> Any:
    try:
        return pickle.loads(payload)  # noqa: S301  # from our own pool
    except AttributeError:
        if MAIN not in payload or not load_main():
            raise
    return pickle.loads(payload)  # noqa: S301


def _pickle_error(problem: BaseException) -> bytes:
    """An exception as text, which can always be sent, and the exception itself if it can be pickled."""
    try:
        itself = pickle.dumps(problem)
    except BaseException:  # see above
        itself = b""
    return pickle.dumps((*_describe(problem), itself))


def _describe(problem: BaseException) -> tuple[str, str, str]:
    """The type, the message and the traceback of an exception."""
    try:
        text = str(problem)
    except Exception:  # its __str__ is code of the user
        text = "(its message could not be read)"
    lines = traceback.format_exception(type(problem), None, problem.__traceback__)
    return type(problem).__name__, text, "".join(lines[:-1])


def _flush() -> None:
    """Write out what the function printed, before its result is sent."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # the reader is gone, or the function closed it
            continue


def exit_process() -> NoReturn:
    """End the process without the exit handlers of its parent."""
    _flush()
    os._exit(0)

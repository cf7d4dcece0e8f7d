"""For agents that are programs: exchange messages with the supervisor that started this process.

    from rota.agent import connect

    with connect() as run:
        for number, page in enumerate(run.payload["pages"]):
            run.raise_if_stopped()
            run.charge(tokens=read(page))
            run.checkpoint(next=number + 1)
        run.result({"pages": len(run.payload["pages"])})

Leaving the block ends the run: as completed, as failed if an exception left the block, or as cancelled if that was
`Stopped`. Standard output carries the protocol (docs/agents.md); inside the block, what the program prints goes to
standard error and so into the run's log. Any thread may use `run`. It has the same names as the context of a Python
function (`ctx`).

This file needs only the standard library: it can be copied to a machine without rota.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from types import TracebackType
from typing import IO, Any

__all__ = ["Acquired", "Child", "NotSupervised", "RefusedError", "Run", "Stopped", "connect"]

SUMMARY_CHARS_MAX = 1_000


class NotSupervised(RuntimeError):
    """No supervisor talks to this process."""


class RefusedError(RuntimeError):
    """The supervisor refused a request; `name` is the name of the error."""

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class Stopped(BaseException):
    """The run was asked to stop. Not an Exception, so that `except Exception` does not catch it."""


class _Yielded(BaseException):
    def __init__(self, after_s: float) -> None:
        super().__init__(after_s)
        self.after_s = after_s


class Child(int):
    """The sched_id of work that this run has enqueued for another agent, with which its result can be waited for."""

    _run: Run

    @property
    def sched_id(self) -> int:
        """The id of its entry."""
        return int(self)

    def result(self, wait_s: float | None = None) -> Any:
        """Wait until the child has ended and return its result; `entry` also says how it ended."""
        return self.entry(wait_s)["result"]

    def entry(self, wait_s: float | None = None) -> dict[str, Any]:
        """Wait until the child has ended; return its sched_id, exit_kind, outcome and result."""
        return self._run.wait([self], wait_s)[0]

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the result without blocking the event loop."""
        awaited: Generator[Any, None, Any] = _to_thread(self.result).__await__()
        return awaited


class Acquired:
    """What a run has acquired from a limit: settle it, or use it as a `with` block.

    What is not settled counts as used as it was asked for, if the run completes. A run that does not complete returns
    it to the limit.
    """

    def __init__(
        self,
        name: str,
        amounts: Mapping[str, int],
        *,
        settle: Callable[[Mapping[str, int]], dict[str, int]],
        throttled: Callable[[float, str], None],
    ) -> None:
        """Created by `acquire`, with what reports to the run's supervisor."""
        self.name = name
        self.amounts = dict(amounts)
        self.is_settled = False
        self._settle = settle
        self._throttled = throttled

    def settle(self, **used: int) -> dict[str, int]:
        """Record what was really used, like `charge`, and return the rest to the limit; return what is left.

        A unit that is not named was used as asked.
        """
        self.is_settled = True
        return self._settle(used)

    def release(self) -> None:
        """Return all of it: nothing was used."""
        self.settle(**dict.fromkeys(self.amounts, 0))

    def throttled(self, retry_after_s: float) -> None:
        """The provider answered with Retry-After: return all of it, and pause the limit for all who use it."""
        self._throttled(retry_after_s, self.name)
        self.release()

    def __enter__(self) -> Acquired:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Settle as asked, unless that was done. If the block was left with an error, it stays as it is."""
        if kind is None and not self.is_settled:
            self.settle()


class Run:
    """The run that this process executes. Created by `connect`."""

    def __init__(self, init: Mapping[str, Any], incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        self.pid: int = init["pid"]
        self.agent: str = init.get("agent", "")
        self.workspace: str | None = init.get("workspace")
        self.sched_id: int = init["sched_id"]
        self.attempt: int = init["attempt"]
        self.token: int | None = init["token"]
        self.deadline: float | None = init.get("deadline")
        self.trigger: str = init.get("trigger", "manual")
        self.payload: dict[str, Any] = init.get("payload") or {}
        self.saved: dict[str, Any] | None = init.get("checkpoint")
        self._remaining: dict[str, int] = init.get("remaining") or {}
        self._incoming = incoming
        self._outgoing = outgoing
        self._write_lock = threading.Lock()
        self._received = threading.Condition()  # guards all below
        self._stop: dict[str, Any] | None = None
        self._replies: dict[int, dict[str, Any]] = {}
        self._last_id = 0
        self._is_disconnected = False
        self._reader = threading.Thread(target=self._read, name="rota-agent", daemon=True)
        self._reader.start()

    @property
    def key(self) -> str:
        """The idempotency key of this attempt: pass it to a service that must not act twice."""
        return f"{self.sched_id}:{self.attempt}:{self.token}"

    @property
    def traceparent(self) -> str | None:
        """The span of this run, for spans of the program's own; None if the run is not traced."""
        return os.environ.get("TRACEPARENT")

    # --- stop requests ---------------------------------------------------------------------------

    @property
    def should_stop(self) -> bool:
        """Whether the run was asked to stop, or its supervisor has gone."""
        return self._stop is not None or self._is_disconnected

    @property
    def cancelled(self) -> bool:
        """The same as `should_stop`."""
        return self.should_stop

    @property
    def stop_reason(self) -> str | None:
        """Why the run should stop; None if it should not."""
        if self._stop is not None:
            return str(self._stop.get("reason"))
        return "the supervisor closed the connection" if self._is_disconnected else None

    def raise_if_stopped(self) -> None:
        """Raise `Stopped`, which leaves the block, if the run was asked to stop."""
        if self.should_stop:
            raise Stopped(self.stop_reason)

    def raise_if_cancelled(self) -> None:
        """Do the same as `raise_if_stopped`."""
        self.raise_if_stopped()

    def wait_for_stop(self, timeout_s: float | None = None) -> bool:
        """Wait until the run is asked to stop or the timeout has passed; return whether it should stop."""
        with self._received:
            return self._received.wait_for(lambda: self.should_stop, timeout_s)

    # --- messages --------------------------------------------------------------------------------

    def log(self, text: object, level: str = "info") -> None:
        """Write a line to the run's log."""
        self._send({"op": "log", "text": str(text), "level": level})

    def progress(self, fraction: float, text: str = "") -> None:
        """Report how far the work is, from 0 to 1, for people who look. At most about one a second is recorded."""
        self._send({"op": "progress", "fraction": fraction, "text": text})

    def checkpoint(self, state: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Save the state of the work, a mapping or names; the next attempt finds it in `saved`."""
        self._send({"op": "checkpoint", "state": {**(state or {}), **more}})

    def emit(self, kind: str, payload: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Append an event of your own to the journal, which triggers and hooks may wait for."""
        self._send({"op": "emit", "kind": kind, "payload": {**(payload or {}), **more}})

    def throttled(self, retry_after_s: float, name: str | None = None) -> None:
        """Pause a named limit for all agents that draw on it. None: every limit that this run draws on."""
        self._send({"op": "throttled", "retry_after_s": retry_after_s, "name": name})

    def heartbeat(self) -> None:
        """Say that the agent is alive. Not required: the supervisor extends the claim itself."""
        self._send({"op": "heartbeat"})

    def result(self, value: Any) -> None:
        """Set what the run returns; the last call counts."""
        self._send({"op": "result", "value": value})

    def yield_back(self, after_s: float = 0.0) -> None:
        """Leave the block, give up the slot and run again after a delay."""
        raise _Yielded(after_s)

    # --- requests --------------------------------------------------------------------------------

    def charge(self, *, model: str | None = None, usd: float | None = None, **amounts: int) -> dict[str, int]:
        """Record usage and return what is left, per dimension. The charge is committed when this returns.

        `usd` is a cost in dollars. With `model`, `input_tokens` and `output_tokens` are enough: the cost is computed
        from the fleet's prices.
        """
        cost = {} if usd is None else {"cost_micro": round(usd * 1_000_000)}  # exact up to the sixth digit
        named = {} if model is None else {"model": model}
        self._remaining = self._request({"op": "charge", "amounts": {**amounts, **cost}, **named})["remaining"]
        return self._remaining

    def remaining(self) -> dict[str, int]:
        """Return what is left of the budgets, per dimension."""
        self._remaining = self._request({"op": "remaining"})["remaining"]
        return self._remaining

    def acquire(self, name: str, /, *, wait_s: float | None = None, **amounts: int) -> Acquired:
        """Wait until a limit has these amounts, `tokens=900, requests=1`; settle what is returned after the call.

        Raises `RefusedError` if the limit never has that much, `TimeoutError` after `wait_s`, and `Stopped` if the run
        is asked to stop meanwhile.
        """
        try:
            reply = self._request({"op": "acquire", "name": name, "amounts": amounts, "wait_s": wait_s})
        except TimeoutError:
            self.raise_if_stopped()
            raise
        settle = functools.partial(self._settle, reply["key"])
        return Acquired(name, amounts, settle=settle, throttled=self.throttled)

    async def aacquire(self, name: str, /, *, wait_s: float | None = None, **amounts: int) -> Acquired:
        """Do the same as `acquire`, without blocking the event loop."""
        acquired: Acquired = await _to_thread(lambda: self.acquire(name, wait_s=wait_s, **amounts))
        return acquired

    def _settle(self, key: str, used: Mapping[str, int]) -> dict[str, int]:
        self._remaining = self._request({"op": "settle", "key": key, "used": dict(used)})["remaining"]
        return self._remaining

    def spawn(
        self, agent: str, /, *, lent: Mapping[str, int] | None = None, priority: int | None = None, **payload: Any
    ) -> Child:
        """Enqueue work for another agent and lend it a part of this run's budget; the unused rest comes back."""
        message = {"op": "spawn", "agent": agent, "payload": payload, "lent": dict(lent or {}), "priority": priority}
        child = Child(self._request(message)["sched_id"])
        child._run = self
        return child

    def wait(self, children: Iterable[int], wait_s: float | None = None) -> list[dict[str, Any]]:
        """Wait until children have ended; return the sched_id, exit_kind, outcome and result of each."""
        reply = self._request({"op": "wait", "children": [int(child) for child in children], "wait_s": wait_s})
        return list(reply["children"])

    async def await_children(self, children: Iterable[int], wait_s: float | None = None) -> list[dict[str, Any]]:
        """Do the same as `wait`, without blocking the event loop."""
        ended: list[dict[str, Any]] = await _to_thread(self.wait, children, wait_s)
        return ended

    # --- the connection --------------------------------------------------------------------------

    def _send(self, message: dict[str, Any]) -> None:
        line = json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        with self._write_lock:
            self._outgoing.write(line)
            self._outgoing.flush()

    def _request(self, message: dict[str, Any]) -> dict[str, Any]:
        with self._received:
            self._last_id += 1
            request_id = self._last_id
        self._send({**message, "id": request_id})
        with self._received:
            self._received.wait_for(lambda: request_id in self._replies or self._is_disconnected)
            reply = self._replies.pop(request_id, None)
        if reply is None:
            raise NotSupervised("the supervisor closed the connection")
        if reply["op"] == "refused":
            kind = TimeoutError if reply.get("name") == "wait_timeout" else None
            raise kind(reply["error"]) if kind else RefusedError(reply["error"], reply.get("name", ""))
        return reply

    def _read(self) -> None:
        for line in iter(self._incoming.readline, b""):
            message = json.loads(line)
            with self._received:
                if message["op"] == "stop":
                    self._stop = message
                elif message.get("id") is not None:
                    self._replies[message["id"]] = message
                self._received.notify_all()
        with self._received:
            self._is_disconnected = True
            self._received.notify_all()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, _traceback: TracebackType | None
    ) -> bool:
        """Send the final message. An error is raised again, so that its traceback is in the log."""
        if isinstance(problem, _Yielded):
            self._send({"op": "yield", "after_s": problem.after_s})
            return True
        if isinstance(problem, Stopped):
            self._send({"op": "exit", "exit_kind": "cancelled", "summary": self.stop_reason})
            return True
        completed = kind is None or (isinstance(problem, SystemExit) and not problem.code)
        if completed:
            self._send({"op": "exit", "exit_kind": "completed"})
        else:
            name = kind.__name__ if kind is not None else ""
            self._send({"op": "exit", "exit_kind": "failed", "summary": f"{name}: {problem}"[:SUMMARY_CHARS_MAX]})
        return False


def _to_thread(function: Any, *arguments: Any) -> Any:
    """Call a function on a thread, from a coroutine. asyncio is loaded then, and takes too long to load for others."""
    return sys.modules["asyncio"].to_thread(function, *arguments)


def connect() -> Run:
    """Answer the supervisor that started this process. Call it once, and before anything slow."""
    incoming, outgoing = _take_over(0, os.O_RDONLY), _take_over(1, os.O_WRONLY)
    line = incoming.readline()
    try:
        init = json.loads(line)
    except ValueError:
        init = None
    if not isinstance(init, dict) or init.get("op") != "init":
        raise NotSupervised("no init message on standard input: start this program with rota's ndjson runner")
    outgoing.write(json.dumps({"op": "ready", "pid": init["pid"]}).encode() + b"\n")
    outgoing.flush()
    return Run(init, incoming, outgoing)


def _take_over(fd: int, flags: int) -> IO[bytes]:
    """Use a standard stream for the protocol. The program's own input is then empty, its output is standard error."""
    sys.stdout.flush()
    stream = os.fdopen(os.dup(fd), "rb" if flags == os.O_RDONLY else "wb")
    if flags == os.O_RDONLY:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, fd)
        os.close(nothing)
    else:
        os.dup2(2, fd)
    return stream

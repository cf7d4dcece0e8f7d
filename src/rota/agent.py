"""For agents that are programs: speak with the supervisor that started this process.

    from rota.agent import connect

    with connect() as run:
        for number, page in enumerate(run.payload["pages"]):
            run.raise_if_stopped()
            run.charge(tokens=read(page))
            run.checkpoint({"next": number + 1})
        run.result({"pages": len(run.payload["pages"])})

Leaving the block ends the run: well, or as failed if an exception left it, or as cancelled if it was `Stopped`.
Inside it, what is printed goes to the standard error, and so into the log: the standard output belongs to the protocol
(docs/agents.md). Any thread may use `run`.

This file needs nothing but the standard library and stands alone: copy it to where rota is not installed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import IO, Any

__all__ = ["NotSupervised", "RefusedError", "Run", "Stopped", "connect"]

SUMMARY_CHARS_MAX = 1_000


class NotSupervised(RuntimeError):
    """This process was not started by a supervisor that speaks with it."""


class RefusedError(RuntimeError):
    """The supervisor did not do what was asked; `name` says which error it was."""

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class Stopped(BaseException):
    """The run was asked to stop. Not an Exception, so that `except Exception` lets it through."""


class _YieldBack(BaseException):
    def __init__(self, after_s: float) -> None:
        super().__init__(after_s)
        self.after_s = after_s


class Run:
    """The run that this process is. Made by `connect`."""

    def __init__(self, init: Mapping[str, Any], incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        self.pid: int = init["pid"]
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
        self._speaking = threading.Lock()
        self._heard = threading.Condition()  # of all below
        self._stop: dict[str, Any] | None = None
        self._answers: dict[int, dict[str, Any]] = {}
        self._questions = 0
        self._gone = False
        self._listener = threading.Thread(target=self._listen, name="rota-agent", daemon=True)
        self._listener.start()

    @property
    def key(self) -> str:
        """The idempotency key of this attempt: give it to whatever must not be done twice."""
        return f"{self.sched_id}:{self.attempt}:{self.token}"

    # --- being told to stop ----------------------------------------------------------------------

    @property
    def should_stop(self) -> bool:
        """Whether the run was asked to stop, or its supervisor is gone."""
        return self._stop is not None or self._gone

    @property
    def stop_reason(self) -> str | None:
        """Why it was asked to stop; None as long as it was not."""
        if self._stop is not None:
            return str(self._stop.get("reason"))
        return "the supervisor is gone" if self._gone else None

    def raise_if_stopped(self) -> None:
        """Leave the block by `Stopped` if the run was asked to stop."""
        if self.should_stop:
            raise Stopped(self.stop_reason)

    def wait_for_stop(self, timeout_s: float | None = None) -> bool:
        """Wait until the run is asked to stop, or until the time has passed; a sleep that can be woken."""
        with self._heard:
            return self._heard.wait_for(lambda: self.should_stop, timeout_s)

    # --- saying ----------------------------------------------------------------------------------

    def log(self, text: object, level: str = "info") -> None:
        """Say something for the log."""
        self._say({"op": "log", "text": str(text), "level": level})

    def checkpoint(self, state: Mapping[str, Any]) -> None:
        """Save where the work stands: the next attempt finds it in `saved`."""
        self._say({"op": "checkpoint", "state": dict(state)})

    def throttled(self, retry_after_s: float, name: str | None = None) -> None:
        """A provider wants a pause: everybody who draws on that limit waits."""
        self._say({"op": "throttled", "retry_after_s": retry_after_s, "name": name})

    def heartbeat(self) -> None:
        """Say that it lives."""
        self._say({"op": "heartbeat"})

    def result(self, value: Any) -> None:
        """What the run returns; the last one counts."""
        self._say({"op": "result", "value": value})

    def yield_back(self, after_s: float = 0.0) -> None:
        """Give the slot back and run again, this much later. Leaves the block."""
        raise _YieldBack(after_s)

    # --- asking ----------------------------------------------------------------------------------

    def charge(self, **amounts: int) -> dict[str, int]:
        """Record usage; what is left, per dimension. It is recorded when this returns."""
        self._remaining = self._ask({"op": "charge", "amounts": amounts})["remaining"]
        return self._remaining

    def remaining(self) -> dict[str, int]:
        """What is left, per dimension."""
        self._remaining = self._ask({"op": "remaining"})["remaining"]
        return self._remaining

    def spawn(
        self, agent: str, /, *, lent: Mapping[str, int] | None = None, priority: int | None = None, **payload: Any
    ) -> int:
        """Let another agent run for this one, with a part of its budget; the child's sched_id."""
        asked = {"op": "spawn", "agent": agent, "payload": payload, "lent": dict(lent or {}), "priority": priority}
        return int(self._ask(asked)["sched_id"])

    def wait(self, children: Iterable[int], wait_s: float | None = None) -> list[dict[str, Any]]:
        """Wait until children have ended: how each did, as sched_id, exit_kind, outcome and result."""
        answer = self._ask({"op": "wait", "children": list(children), "wait_s": wait_s})
        return list(answer["children"])

    # --- by itself -------------------------------------------------------------------------------

    def _say(self, message: dict[str, Any]) -> None:
        line = json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        with self._speaking:
            self._outgoing.write(line)
            self._outgoing.flush()

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        with self._heard:
            self._questions += 1
            number = self._questions
        self._say({**message, "id": number})
        with self._heard:
            self._heard.wait_for(lambda: number in self._answers or self._gone)
            answer = self._answers.pop(number, None)
        if answer is None:
            raise NotSupervised("the supervisor is gone")
        if answer["op"] == "refused":
            kind = TimeoutError if answer.get("name") == "wait_timeout" else None
            raise kind(answer["error"]) if kind else RefusedError(answer["error"], answer.get("name", ""))
        return answer

    def _listen(self) -> None:
        for line in iter(self._incoming.readline, b""):
            message = json.loads(line)
            with self._heard:
                if message["op"] == "stop":
                    self._stop = message
                elif message.get("id") is not None:
                    self._answers[message["id"]] = message
                self._heard.notify_all()
        with self._heard:
            self._gone = True
            self._heard.notify_all()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, _traceback: TracebackType | None
    ) -> bool:
        """Say the last word. What went wrong is raised on, so that its traceback is in the log."""
        if isinstance(problem, _YieldBack):
            self._say({"op": "yield", "after_s": problem.after_s})
            return True
        if isinstance(problem, Stopped):
            self._say({"op": "exit", "exit_kind": "cancelled", "summary": self.stop_reason})
            return True
        well = kind is None or (isinstance(problem, SystemExit) and not problem.code)
        if well:
            self._say({"op": "exit", "exit_kind": "completed"})
        else:
            name = kind.__name__ if kind is not None else ""
            self._say({"op": "exit", "exit_kind": "failed", "summary": f"{name}: {problem}"[:SUMMARY_CHARS_MAX]})
        return False


def connect() -> Run:
    """Answer the supervisor that started this process. Once, and before anything slow."""
    incoming, outgoing = _take_over(0, os.O_RDONLY), _take_over(1, os.O_WRONLY)
    line = incoming.readline()
    try:
        init = json.loads(line)
    except ValueError:
        init = None
    if not isinstance(init, dict) or init.get("op") != "init":
        raise NotSupervised("nobody said init on the standard input: this program is run by rota's ndjson runner")
    outgoing.write(json.dumps({"op": "ready", "pid": init["pid"]}).encode() + b"\n")
    outgoing.flush()
    return Run(init, incoming, outgoing)


def _take_over(fd: int, flags: int) -> IO[bytes]:
    """Take a standard stream for the protocol; in its place, input is empty and output is the standard error."""
    sys.stdout.flush()
    ours = os.fdopen(os.dup(fd), "rb" if flags == os.O_RDONLY else "wb")
    if flags == os.O_RDONLY:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, fd)
        os.close(nothing)
    else:
        os.dup2(2, fd)
    return ours

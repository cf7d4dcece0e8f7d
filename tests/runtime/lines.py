"""A line that records: what a run says, in the order it said it, and somebody on the other end who can answer."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from rota.clock import Clock
from rota.errors import LedgerInvalidAmount, UnknownPid, WaitTimeout
from rota.fleet.agent_settings import RunPlan
from rota.fleet.log import BoundedLog
from rota.fleet.runners.contract import Assignment, Outcome, Runner, Stops
from rota.fleet.runners.resources import Workshop
from rota.model.work import Agent, Limits, ReadyEntry

PATIENCE_S = 60.0  # only ends a test that would hang


class RecordingLine:
    """What a supervisor is to a run, without a store."""

    def __init__(self, *, budget: Mapping[str, int] | None = None, log_bytes: int = 1024 * 1024) -> None:
        self.said: list[Any] = []
        self.output = BoundedLog(log_bytes)
        self.stops: Stops | None = None
        self.os_pid: int | None = None
        self.advisories: tuple[str, ...] = ()
        self.children: dict[int, ReadyEntry] = {}
        self.on_log: Callable[[bytes], None] = lambda _data: None
        self._budget = dict(budget or {})
        self._reason: str | None = None
        self._changed = threading.Condition()

    # --- the contract ----------------------------------------------------------------------------

    @property
    def stop_reason(self) -> str | None:
        return self._reason

    def began(self, stops: Stops, *, os_pid: int | None = None, advisories: Sequence[str] = ()) -> None:
        with self._changed:
            self.stops, self.os_pid, self.advisories = stops, os_pid, tuple(advisories)
            self._changed.notify_all()
        if self._reason is not None:
            stops.ask(self._reason)

    def log(self, data: bytes) -> None:
        with self._changed:
            self.output.write(data)
            self._changed.notify_all()
        self.on_log(data)

    def log_tail(self) -> str:
        return self.output.tail(64 * 1024)

    def charge(self, amounts: Mapping[str, int]) -> dict[str, int]:
        for dim, amount in amounts.items():
            if amount < 0:
                raise LedgerInvalidAmount(f"{dim} cannot be charged {amount}")
        self._note("charge", dict(amounts))
        for dim, amount in amounts.items():
            self._budget[dim] = self._budget.get(dim, 0) - amount
        return dict(self._budget)

    def remaining(self) -> dict[str, int]:
        return dict(self._budget)

    def checkpoint(self, state: Mapping[str, Any]) -> None:
        self._note("checkpoint", dict(state))

    def throttled(self, retry_after_s: float, name: str | None = None) -> None:
        self._note("throttled", retry_after_s, name)

    def spawn(self, agent: str, payload: Mapping[str, Any], lent: Mapping[str, int], **said: Any) -> int:
        if agent == "nobody":
            raise UnknownPid("there is no agent 'nobody'")
        self._note("spawn", agent, dict(payload), dict(lent), said)
        return 1000 + len(self.said)

    def wait_for(self, sched_ids: Sequence[int], wait_s: float | None = None) -> list[ReadyEntry]:
        """Wait until the test says that these have ended; a `wait_s` of 0 does not wait."""
        self._note("wait_for", list(sched_ids), wait_s)
        with self._changed:
            if not self._changed.wait_for(lambda: set(sched_ids) <= self.children.keys(), wait_s or PATIENCE_S):
                raise WaitTimeout("the children have not ended")
            return [self.children[sched_id] for sched_id in sched_ids]

    # --- for the test ----------------------------------------------------------------------------

    @property
    def text(self) -> str:
        """All that was logged."""
        return self.output.kept().decode("utf-8", "replace")

    def ask_to_stop(self, reason: str = "cancelled") -> bool:
        """Climb the first rung, as a supervisor does."""
        self.until(lambda: self.stops is not None)
        assert self.stops is not None
        self._reason = reason
        return self.stops.ask(reason)

    def child_ended(self, sched_id: int, result: Any, exit_kind: str = "completed") -> None:
        with self._changed:
            self.children[sched_id] = msgspec.structs.replace(
                entry(sched_id=sched_id), state="completed", exit_kind=exit_kind, result=result
            )
            self._changed.notify_all()

    def until(self, happened: Callable[[], bool]) -> None:
        """Wait until something that this line is told has happened."""
        with self._changed:
            assert self._changed.wait_for(happened, PATIENCE_S), "it did not happen"

    def until_logged(self, text: str) -> None:
        self.until(lambda: text in self.text)

    def until_said(self, what: str) -> None:
        self.until(lambda: any(said[0] == what for said in self.said))

    def _note(self, *said: Any) -> None:
        with self._changed:
            self.said.append(said)
            self._changed.notify_all()


def entry(*, sched_id: int = 7, payload: Mapping[str, Any] | None = None, **fields: Any) -> ReadyEntry:
    """A claimed entry."""
    plain: dict[str, Any] = {
        "pid": 3, "priority": 0, "runnable_at": 0.0, "deadline": None, "trigger": "manual",
        "state": "dispatched", "worker_id": "w", "created_at": 0.0, "dispatched_at": 0.0,
        "completed_at": None, "exit_kind": None, "attempt": 2, "token": 41,
    }  # fmt: skip
    return ReadyEntry(sched_id=sched_id, payload=dict(payload or {}), **{**plain, **fields})


def agent(name: str = "summarise") -> Agent:
    return Agent(
        pid=3, parent_pid=None, name=name, template="t", state="RUNNING", state_reason=None, created_at=0.0,
        updated_at=0.0, started_at=None, ended_at=None, exit_kind=None, exit_detail={}, metadata={}, last_event_id=None,
    )  # fmt: skip


def work(
    plan: RunPlan,
    payload: Mapping[str, Any] | None = None,
    *,
    name: str = "summarise",
    deadline: float | None = None,
    **fields: Any,
) -> Assignment:
    """One run of a plan."""
    return Assignment(
        entry=entry(payload=payload, deadline=deadline), agent=agent(name), plan=plan, slot="s0", **fields
    )


def python(script: str, *arguments: str, runner: str = "command", **fields: Any) -> RunPlan:
    """A plan that runs a Python script."""
    return RunPlan(runner=runner, argv=(sys.executable, "-c", script, *arguments), **fields)


def shell(script: str, **fields: Any) -> RunPlan:
    """A plan that runs a shell script."""
    return RunPlan(runner="command", argv=("/bin/sh", "-c", script), **fields)


class Running:
    """A run on a thread, as a slot holds it."""

    def __init__(self, runner: Runner, assignment: Assignment, line: RecordingLine) -> None:
        self._outcome: Outcome | None = None
        self._thread = threading.Thread(target=self._run, args=(runner, assignment, line), daemon=True)
        self._thread.start()

    def outcome(self) -> Outcome:
        self._thread.join(PATIENCE_S)
        assert self._outcome is not None, "the run did not end"
        return self._outcome

    def _run(self, runner: Runner, assignment: Assignment, line: RecordingLine) -> None:
        self._outcome = runner.run(assignment, line)


@contextmanager
def workshop(clock: Clock | None = None) -> Iterator[Workshop]:
    """A workshop in which nothing is left when it closes."""
    with Workshop(clock) as shop:
        yield shop
        assert shop._minder is None or not [session for session in shop._minder.sessions if session.tag is None]


LIMITED = Limits(cpu_s=60, memory_bytes=512 * 1024 * 1024, processes=512, open_files=256)

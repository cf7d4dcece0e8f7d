"""A run channel that records its calls in order and lets the test answer them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from rota.errors import LedgerInvalidAmount, UnknownPid, WaitTimeout
from rota.fleet.agent_settings import AgentSettings
from rota.fleet.run_logs import BoundedLog
from rota.fleet.runners.contract import Assignment, Runner, RunOutcome, StopHandle
from rota.model.work import Agent, Limits, ReadyEntry

PATIENCE_S = 60.0  # only ends a test that would hang


class RecordingChannel:
    """A supervisor's side of a run, without a store."""

    def __init__(self, *, budget: Mapping[str, int] | None = None, log_bytes: int = 1024 * 1024) -> None:
        self.calls: list[Any] = []
        self.output = BoundedLog(log_bytes)
        self.stop_handle: StopHandle | None = None
        self.os_pid: int | None = None
        self.advisories: tuple[str, ...] = ()
        self.enforced: tuple[str, ...] = ()
        self.children: dict[int, ReadyEntry] = {}
        self.on_log: Callable[[bytes], None] = lambda _data: None
        self._budget = dict(budget or {})
        self._reason: str | None = None
        self._changed = threading.Condition()

    # --- the contract ----------------------------------------------------------------------------

    @property
    def stop_reason(self) -> str | None:
        return self._reason

    def started(
        self,
        stop_handle: StopHandle,
        *,
        os_pid: int | None = None,
        advisories: Sequence[str] = (),
        enforced: Sequence[str] = (),
    ) -> None:
        with self._changed:
            self.stop_handle, self.os_pid, self.advisories = stop_handle, os_pid, tuple(advisories)
            self.enforced = tuple(enforced)
            self._changed.notify_all()
        if self._reason is not None:
            stop_handle.request_stop(self._reason)

    def settings_changed(self, *, advisories: Sequence[str], enforced: Sequence[str]) -> None:
        self._record("settings_changed", list(advisories), list(enforced))

    def coordinates(self, run_id: str) -> None:
        self._record("coordinates", run_id)

    def log(self, data: bytes) -> None:
        with self._changed:
            self.output.write(data)
            self._changed.notify_all()
        self.on_log(data)

    def log_tail(self) -> str:
        return self.output.tail(64 * 1024)

    def progress(self, fraction: float, text: str = "") -> None:
        self._record("progress", fraction, text)

    def wait_for_stop(self, timeout_s: float | None = None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._reason is not None, timeout_s or PATIENCE_S)

    def charge(
        self,
        amounts: Mapping[str, int],
        model: str | None = None,
        *,
        node: str | None = None,  # noqa: ARG002  # as the protocol has it
    ) -> dict[str, int]:
        for dim, amount in amounts.items():
            if amount < 0:
                raise LedgerInvalidAmount(f"{dim} cannot be charged {amount}")
        self._record("charge", dict(amounts) if model is None else {**amounts, "model": model})
        for dim, amount in amounts.items():
            self._budget[dim] = self._budget.get(dim, 0) - amount
        return dict(self._budget)

    def remaining(self, node: str | None = None) -> dict[str, int]:  # noqa: ARG002
        return dict(self._budget)

    def checkpoint(self, state: Mapping[str, Any]) -> None:
        self._record("checkpoint", dict(state))

    def acquire(self, name: str, amounts: Mapping[str, int], wait_s: float | None = None) -> str:
        if name == "full":
            raise WaitTimeout(f"the limit {name} did not have what was asked within {wait_s} s")
        self._record("acquire", name, dict(amounts), wait_s)
        return "7"

    def settle(
        self,
        key: str,
        used: Mapping[str, int] | None = None,
        *,
        node: str | None = None,  # noqa: ARG002  # as the protocol has it
    ) -> dict[str, int]:
        self._record("settle", key, dict(used or {}))
        return dict(self._budget)

    def emit(self, kind: str, payload: Mapping[str, Any]) -> int:
        self._record("emit", kind, dict(payload))
        return len(self.calls)

    def throttled(self, retry_after_s: float, name: str | None = None) -> None:
        self._record("throttled", retry_after_s, name)

    def spawn(self, agent: str, payload: Mapping[str, Any], lent: Mapping[str, int], **options: Any) -> int:
        if agent == "missing":
            raise UnknownPid("there is no agent 'missing'")
        self._record("spawn", agent, dict(payload), dict(lent), options)
        return 1000 + len(self.calls)

    def wait_for(self, sched_ids: Sequence[int], wait_s: float | None = None) -> list[ReadyEntry]:
        """Wait until the test says that these have ended; a `wait_s` of 0 does not wait."""
        self._record("wait_for", list(sched_ids), wait_s)
        with self._changed:
            if not self._changed.wait_for(lambda: set(sched_ids) <= self.children.keys(), wait_s or PATIENCE_S):
                raise WaitTimeout("the children have not ended")
            return [self.children[sched_id] for sched_id in sched_ids]

    # --- for the test ----------------------------------------------------------------------------

    @property
    def text(self) -> str:
        """The log."""
        return self.output.kept().decode("utf-8", "replace")

    def request_stop(self, reason: str = "cancelled") -> bool:
        """Take the first step of a stop, as a supervisor does."""
        self.until(lambda: self.stop_handle is not None)
        assert self.stop_handle is not None
        with self._changed:
            self._reason = reason
            self._changed.notify_all()
        return self.stop_handle.request_stop(reason)

    def child_ended(self, sched_id: int, result: Any, exit_kind: str = "completed") -> None:
        with self._changed:
            self.children[sched_id] = msgspec.structs.replace(
                entry(sched_id=sched_id), state="completed", exit_kind=exit_kind, result=result
            )
            self._changed.notify_all()

    def until(self, happened: Callable[[], bool]) -> None:
        """Wait until a condition on the recorded calls holds."""
        with self._changed:
            assert self._changed.wait_for(happened, PATIENCE_S), "it did not happen"

    def until_logged(self, text: str) -> None:
        self.until(lambda: text in self.text)

    def _record(self, *call: Any) -> None:
        with self._changed:
            self.calls.append(call)
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


def assignment(
    settings: AgentSettings,
    payload: Mapping[str, Any] | None = None,
    *,
    name: str = "summarise",
    deadline: float | None = None,
    **fields: Any,
) -> Assignment:
    """One run with these settings."""
    return Assignment(
        entry=entry(payload=payload, deadline=deadline), agent=agent(name), settings=settings, slot="s0", **fields
    )


def python(script: str, *arguments: str, runner: str = "command", **fields: Any) -> AgentSettings:
    """Settings that run a Python script."""
    return AgentSettings(runner=runner, argv=(sys.executable, "-c", script, *arguments), **fields)


def shell(script: str, **fields: Any) -> AgentSettings:
    """Settings that run a shell script."""
    return AgentSettings(runner="command", argv=("/bin/sh", "-c", script), **fields)


class Running:
    """A run on a thread, as a slot holds it."""

    def __init__(self, runner: Runner, assignment: Assignment, channel: RecordingChannel) -> None:
        self._outcome: RunOutcome | None = None
        self._thread = threading.Thread(target=self._run, args=(runner, assignment, channel), daemon=True)
        self._thread.start()

    def outcome(self) -> RunOutcome:
        self._thread.join(PATIENCE_S)
        assert self._outcome is not None, "the run did not end"
        return self._outcome

    def _run(self, runner: Runner, assignment: Assignment, channel: RecordingChannel) -> None:
        self._outcome = runner.run(assignment, channel)


LIMITED = Limits(cpu_s=60, memory_bytes=512 * 1024 * 1024, processes=512, open_files=256)

"""The context of a run (`ctx`), as a Python function sees it.

    def summarise(ctx, url):
        text = read(url)
        ctx.charge(tokens=count(text))
        return {"summary": …}

The object is the same whether the function runs on a thread of the supervisor or in a worker process. It uses an
`AgentChannel`. In a worker that is a `WorkerChannel`: each call is a request to the slot's thread, which makes the call
on the real channel and sends back the return value or the error.

`yield_back` and `raise_if_cancelled` raise exceptions that are not `Exception`s, so that a function with
`except Exception` does not catch them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from rota.fleet.runners.contract import AgentChannel, Assignment
from rota.host import worker
from rota.model.work import ReadyEntry

__all__ = [
    "ChildJob",
    "RunCancelled",
    "RunContext",
    "RunFacts",
    "RunYielded",
    "WorkerChannel",
    "answer_request",
    "facts_of",
]


class RunYielded(BaseException):
    """The function gives up its slot. Raised by `RunContext.yield_back`."""

    def __init__(self, after_s: float = 0.0) -> None:
        super().__init__(after_s)
        self.after_s = after_s


class RunCancelled(BaseException):
    """The function stops because the run was asked to. Raised by `RunContext.raise_if_cancelled`."""


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known at the start of a run; it is sent to a worker process."""

    agent: str
    sched_id: int
    attempt: int
    token: int | None
    deadline: float | None
    trigger: str
    payload: dict[str, Any]
    workspace: str | None
    remaining: dict[str, int]
    saved: dict[str, Any] | None


def facts_of(assignment: Assignment) -> RunFacts:
    """Return the facts of an assignment."""
    entry = assignment.entry
    return RunFacts(
        agent=assignment.agent.name,
        sched_id=entry.sched_id,
        attempt=entry.attempt,
        token=entry.token,
        deadline=entry.deadline,
        trigger=entry.trigger,
        payload=entry.payload,
        workspace=assignment.workspace,
        remaining=assignment.remaining,
        saved=assignment.checkpoint,
    )


class ChildJob:
    """Work that this run has enqueued for another agent."""

    def __init__(self, channel: AgentChannel, sched_id: int) -> None:
        self._channel = channel
        self.sched_id = sched_id

    def entry(self, wait_s: float | None = None) -> ReadyEntry:
        """Wait until the child has ended and return its entry; `WaitTimeout` after `wait_s`."""
        return self._channel.wait_for((self.sched_id,), wait_s)[0]

    def result(self, wait_s: float | None = None) -> Any:
        """Wait until the child has ended and return its result; `entry` also says how it ended."""
        return self.entry(wait_s).result


class RunContext:
    """One run, as its function sees it. Any thread of the function may use it while the run lasts."""

    def __init__(self, facts: RunFacts, channel: AgentChannel) -> None:
        self._facts = facts
        self._channel = channel

    # --- facts -----------------------------------------------------------------------------------

    @property
    def payload(self) -> dict[str, Any]:
        """The payload of the entry."""
        return self._facts.payload

    @property
    def agent(self) -> str:
        """The agent's name."""
        return self._facts.agent

    @property
    def sched_id(self) -> int:
        """The id of the entry."""
        return self._facts.sched_id

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._facts.attempt

    @property
    def token(self) -> int | None:
        """The claim token: it grows with every claim."""
        return self._facts.token

    @property
    def key(self) -> str:
        """The idempotency key of this attempt: pass it to a service that must not act twice."""
        return f"{self.sched_id}:{self.attempt}:{self.token}"

    @property
    def deadline(self) -> float | None:
        """The deadline in epoch seconds; None if there is none."""
        return self._facts.deadline

    @property
    def trigger(self) -> str:
        """What enqueued the entry."""
        return self._facts.trigger

    @property
    def workspace(self) -> str | None:
        """The path of the workspace that the run holds; None if it has none."""
        return self._facts.workspace

    @property
    def saved(self) -> dict[str, Any] | None:
        """The checkpoint of the last attempt; None if there is none."""
        return self._facts.saved

    # --- stop requests ---------------------------------------------------------------------------

    @property
    def cancelled(self) -> bool:
        """Whether the run was asked to stop. A long function should check this regularly."""
        return self._channel.stop_reason is not None

    @property
    def stop_reason(self) -> str | None:
        """Why the run was asked to stop; None if it was not."""
        return self._channel.stop_reason

    def raise_if_cancelled(self) -> None:
        """Leave the function if the run was asked to stop; the run then ends as cancelled."""
        reason = self._channel.stop_reason
        if reason is not None:
            raise RunCancelled(reason)

    # --- calls to the supervisor -----------------------------------------------------------------

    def log(self, text: object) -> None:
        """Write a line to the run's log."""
        self._channel.log(f"{text}\n".encode("utf-8", "replace"))

    def charge(self, **amounts: int) -> dict[str, int]:
        """Record usage per dimension and return what is left. The charge is committed when this returns."""
        return self._channel.charge(amounts)

    def remaining(self) -> dict[str, int]:
        """Return what is left of the budgets, per dimension."""
        return self._channel.remaining()

    def checkpoint(self, **state: Any) -> None:
        """Save the state of the work; the next attempt finds it in `saved`."""
        self._channel.checkpoint(state)

    def throttled(self, retry_after_s: float, name: str | None = None) -> None:
        """Pause a named limit for all agents that draw on it. None: every limit that this run draws on."""
        self._channel.throttled(retry_after_s, name)

    def spawn(
        self, agent: str, /, *, lent: Mapping[str, int] | None = None, priority: int | None = None, **payload: Any
    ) -> ChildJob:
        """Enqueue work for another agent and lend it a part of this run's budget; the unused rest comes back."""
        options = {} if priority is None else {"priority": priority}
        return ChildJob(self._channel, self._channel.spawn(agent, payload, dict(lent or {}), **options))

    def wait(self, children: Sequence[ChildJob], wait_s: float | None = None) -> list[ReadyEntry]:
        """Wait until all children have ended and return their entries. The slot is released during the wait."""
        return self._channel.wait_for([child.sched_id for child in children], wait_s)

    def yield_back(self, after_s: float = 0.0) -> NoReturn:
        """Leave the function, give up the slot and run again after a delay. Save a checkpoint first."""
        raise RunYielded(after_s)


# --- in a worker process ---------------------------------------------------------------------------

STOP = "stop"  # the message to a worker, with the reason
_REQUESTS = frozenset({"charge", "remaining", "checkpoint", "throttled", "spawn", "wait_for"})


class WorkerChannel:
    """The channel in a worker process: every call is a request to the slot's thread."""

    def __init__(self) -> None:
        self._stop_reason: str | None = None

    @property
    def stop_reason(self) -> str | None:
        """Why the run was asked to stop. Reads the messages that have arrived."""
        for message in worker.notices():
            if isinstance(message, tuple) and message[0] == STOP:
                self._stop_reason = message[1]
        return self._stop_reason

    def log(self, data: bytes) -> None:
        """Append output to the log, without waiting."""
        worker.report(data)

    def charge(self, amounts: Mapping[str, int]) -> dict[str, int]:
        """Record usage and return what is left."""
        return dict(worker.request(("charge", (dict(amounts),), {})))

    def remaining(self) -> dict[str, int]:
        """Return what is left."""
        return dict(worker.request(("remaining", (), {})))

    def checkpoint(self, state: Mapping[str, Any]) -> None:
        """Save the state of the work."""
        worker.request(("checkpoint", (dict(state),), {}))

    def throttled(self, retry_after_s: float, name: str | None = None) -> None:
        """Pause a named limit."""
        worker.request(("throttled", (retry_after_s, name), {}))

    def spawn(self, agent: str, payload: Mapping[str, Any], lent: Mapping[str, int], **options: Any) -> int:
        """Enqueue a child; return its sched_id."""
        return int(worker.request(("spawn", (agent, dict(payload), dict(lent)), options)))

    def wait_for(self, sched_ids: Sequence[int], wait_s: float | None = None) -> list[ReadyEntry]:
        """Wait until children have ended."""
        return list(worker.request(("wait_for", (list(sched_ids), wait_s), {})))


def answer_request(channel: AgentChannel, request: Any) -> Any:
    """On the slot's thread: make the call that a worker requested on the real channel."""
    method, args, options = request
    if method not in _REQUESTS:
        raise ValueError(f"a worker requested {method!r}, which is not a channel method")
    return getattr(channel, method)(*args, **options)

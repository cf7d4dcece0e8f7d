"""What a Python function is given about its run, and says during it: `ctx`.

    def summarise(ctx, url):
        text = read(url)
        ctx.charge(tokens=count(text))
        return {"summary": …}

It is the same object whether the function runs on a thread of the supervisor or in a worker process: it speaks over
`Talk`, the part of a run's line that a function uses; in a worker that is `WorkerTalk`, whose every call is a question
to the slot's thread, which puts it to the real line and sends back the answer, or the error.

Two things leave a function without being errors: `yield_back` and `raise_if_cancelled` raise exceptions that are not
`Exception`s, so that a function which catches everything it does not know lets them through.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol

import msgspec

from rota.fleet.runners.contract import Assignment, Line
from rota.host import worker
from rota.model.work import ReadyEntry

__all__ = ["Cancelled", "Child", "RunContext", "RunFacts", "Talk", "WorkerTalk", "YieldBack", "answer", "facts_of"]


class YieldBack(BaseException):
    """The function gives its slot back. Raised by `RunContext.yield_back`."""

    def __init__(self, after_s: float = 0.0) -> None:
        super().__init__(after_s)
        self.after_s = after_s


class Cancelled(BaseException):
    """The run was asked to stop, and the function does. Raised by `RunContext.raise_if_cancelled`."""


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known when a run begins; it travels to a worker process."""

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


def facts_of(work: Assignment) -> RunFacts:
    """The facts of an assignment."""
    entry = work.entry
    return RunFacts(
        agent=work.agent.name,
        sched_id=entry.sched_id,
        attempt=entry.attempt,
        token=entry.token,
        deadline=entry.deadline,
        trigger=entry.trigger,
        payload=entry.payload,
        workspace=work.workspace,
        remaining=work.remaining,
        saved=work.checkpoint,
    )


class Talk(Protocol):
    """The part of a run's line that a function uses."""

    @property
    def stop_reason(self) -> str | None:
        """Why the run was asked to stop."""
        ...

    def log(self, data: bytes) -> None:
        """Keep output."""
        ...

    def charge(self, amounts: Mapping[str, int]) -> dict[str, int]:
        """Record usage."""
        ...

    def remaining(self) -> dict[str, int]:
        """What is left."""
        ...

    def checkpoint(self, state: Mapping[str, Any]) -> None:
        """Save where the work stands."""
        ...

    def throttled(self, retry_after_s: float, name: str | None = None) -> None:
        """A provider wants a pause."""
        ...

    def spawn(self, agent: str, payload: Mapping[str, Any], lent: Mapping[str, int], **said: Any) -> int:
        """Enqueue child work."""
        ...

    def wait_for(self, sched_ids: Sequence[int], wait_s: float | None = None) -> list[ReadyEntry]:
        """Wait until children have ended."""
        ...


class Child:
    """Work that this run has given to another agent."""

    def __init__(self, talk: Talk, sched_id: int) -> None:
        self._talk = talk
        self.sched_id = sched_id

    def entry(self, wait_s: float | None = None) -> ReadyEntry:
        """Its entry, once it has ended; `WaitTimeout` if it has not within this time."""
        return self._talk.wait_for((self.sched_id,), wait_s)[0]

    def result(self, wait_s: float | None = None) -> Any:
        """What it returned, once it has ended; `entry` also says how it ended."""
        return self.entry(wait_s).result


class RunContext:
    """One run, as its function sees it. Any thread of the function may use it, as long as the run lasts."""

    def __init__(self, facts: RunFacts, talk: Talk) -> None:
        self._facts = facts
        self._talk = talk

    # --- what is known ---------------------------------------------------------------------------

    @property
    def payload(self) -> dict[str, Any]:
        """What the run was enqueued with."""
        return self._facts.payload

    @property
    def agent(self) -> str:
        """The agent's name."""
        return self._facts.agent

    @property
    def sched_id(self) -> int:
        """The entry."""
        return self._facts.sched_id

    @property
    def attempt(self) -> int:
        """How often the entry has been tried, this time included."""
        return self._facts.attempt

    @property
    def token(self) -> int | None:
        """The claim's token: it grows with every run."""
        return self._facts.token

    @property
    def key(self) -> str:
        """The idempotency key of this attempt: give it to whatever must not be done twice."""
        return f"{self.sched_id}:{self.attempt}:{self.token}"

    @property
    def deadline(self) -> float | None:
        """Epoch seconds; None if there is none."""
        return self._facts.deadline

    @property
    def trigger(self) -> str:
        """What enqueued it."""
        return self._facts.trigger

    @property
    def workspace(self) -> str | None:
        """The folder that is this run's, if it asked for one."""
        return self._facts.workspace

    @property
    def saved(self) -> dict[str, Any] | None:
        """What the last attempt saved by `checkpoint`; None if nothing."""
        return self._facts.saved

    # --- being told to stop ----------------------------------------------------------------------

    @property
    def cancelled(self) -> bool:
        """Whether the run was asked to stop. A function that goes on for long looks now and then."""
        return self._talk.stop_reason is not None

    @property
    def stop_reason(self) -> str | None:
        """Why it was asked to stop; None as long as it was not."""
        return self._talk.stop_reason

    def raise_if_cancelled(self) -> None:
        """Leave the function if the run was asked to stop; it then ends as cancelled."""
        reason = self._talk.stop_reason
        if reason is not None:
            raise Cancelled(reason)

    # --- saying and asking -----------------------------------------------------------------------

    def log(self, text: object) -> None:
        """Say something for the log."""
        self._talk.log(f"{text}\n".encode("utf-8", "replace"))

    def charge(self, **amounts: int) -> dict[str, int]:
        """Record usage, per dimension; what is left. It is durable when this returns."""
        return self._talk.charge(amounts)

    def remaining(self) -> dict[str, int]:
        """What is left, per dimension."""
        return self._talk.remaining()

    def checkpoint(self, **state: Any) -> None:
        """Save where the work stands: the next attempt finds it in `saved`."""
        self._talk.checkpoint(state)

    def throttled(self, retry_after_s: float, name: str | None = None) -> None:
        """A provider wants a pause: everybody who draws on that limit waits. None: every limit this run draws on."""
        self._talk.throttled(retry_after_s, name)

    def spawn(
        self, agent: str, /, *, lent: Mapping[str, int] | None = None, priority: int | None = None, **payload: Any
    ) -> Child:
        """Let another agent run for this one, with a part of its budget; what is left of that comes back."""
        more = {} if priority is None else {"priority": priority}
        return Child(self._talk, self._talk.spawn(agent, payload, dict(lent or {}), **more))

    def wait(self, children: Sequence[Child], wait_s: float | None = None) -> list[ReadyEntry]:
        """Wait until all of these have ended, giving up the slot meanwhile: how each did."""
        return self._talk.wait_for([child.sched_id for child in children], wait_s)

    def yield_back(self, after_s: float = 0.0) -> NoReturn:
        """Leave the function, give the slot back, and run again this much later. Save a checkpoint first."""
        raise YieldBack(after_s)


# --- in a worker process ---------------------------------------------------------------------------

STOP = "stop"  # what a worker is told, with the reason
_ASKED = frozenset({"charge", "remaining", "checkpoint", "throttled", "spawn", "wait_for"})


class WorkerTalk:
    """The line of a run whose function is in a worker process: every call is a question to the slot's thread."""

    def __init__(self) -> None:
        self._stop_reason: str | None = None

    @property
    def stop_reason(self) -> str | None:
        """Why the run was asked to stop: looks for what this process was told."""
        for told in worker.told():
            if isinstance(told, tuple) and told[0] == STOP:
                self._stop_reason = told[1]
        return self._stop_reason

    def log(self, data: bytes) -> None:
        """Keep output. Nobody waits for it."""
        worker.note(data)

    def charge(self, amounts: Mapping[str, int]) -> dict[str, int]:
        """Record usage."""
        return dict(worker.ask(("charge", (dict(amounts),), {})))

    def remaining(self) -> dict[str, int]:
        """What is left."""
        return dict(worker.ask(("remaining", (), {})))

    def checkpoint(self, state: Mapping[str, Any]) -> None:
        """Save where the work stands."""
        worker.ask(("checkpoint", (dict(state),), {}))

    def throttled(self, retry_after_s: float, name: str | None = None) -> None:
        """A provider wants a pause."""
        worker.ask(("throttled", (retry_after_s, name), {}))

    def spawn(self, agent: str, payload: Mapping[str, Any], lent: Mapping[str, int], **said: Any) -> int:
        """Enqueue child work."""
        return int(worker.ask(("spawn", (agent, dict(payload), dict(lent)), said)))

    def wait_for(self, sched_ids: Sequence[int], wait_s: float | None = None) -> list[ReadyEntry]:
        """Wait until children have ended."""
        return list(worker.ask(("wait_for", (list(sched_ids), wait_s), {})))


def answer(line: Line, question: Any) -> Any:
    """On the slot's thread: put a worker's question to the real line."""
    method, args, named = question
    if method not in _ASKED:
        raise ValueError(f"a worker asked for {method!r}")
    return getattr(line, method)(*args, **named)

"""The context of a run (`ctx`), as a Python function sees it.

    def summarise(ctx, url):
        text = read(url)
        ctx.charge(tokens=count(text))
        return {"summary": …}

The object is the same whether the function runs on a thread of the supervisor or in a worker process. It uses an
`AgentChannel`. In a worker that is a `WorkerChannel`: each call is a request to the slot's thread, which makes the call
on the real channel and sends back the return value or the error.

A program has the same names in its `rota.agent.Run`. `yield_back` and `raise_if_stopped` raise exceptions that are not
`Exception`s, so that a function with `except Exception` does not catch them.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import msgspec

from rota.agent import Acquired
from rota.clock import SystemClock
from rota.fleet.runners.contract import AgentChannel, Assignment
from rota.host import worker
from rota.model.caller_context import current_span
from rota.model.money import in_micro
from rota.model.work import ReadyEntry

__all__ = [
    "Acquired",
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
    """The function stops because the run was asked to. Raised by `RunContext.raise_if_stopped`."""


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known at the start of a run; it is sent to a worker process."""

    pid: int
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
    non_retryable: tuple[str, ...] = ()  # names of the errors that end the entry
    trace: dict[str, str] = {}


def facts_of(assignment: Assignment) -> RunFacts:
    """Return the facts of an assignment."""
    entry = assignment.entry
    return RunFacts(
        pid=assignment.agent.pid,
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
        non_retryable=assignment.settings.non_retryable,
        trace=assignment.trace,
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

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the result without blocking the event loop of an async function."""
        return asyncio.to_thread(self.result).__await__()


class RunContext:
    """One run, as its function sees it. Any thread of the function may use it while the run lasts."""

    def __init__(self, facts: RunFacts, channel: AgentChannel) -> None:
        self._facts = facts
        self._channel = channel
        self._result: Any = None

    # --- facts -----------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The agent's pid."""
        return self._facts.pid

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
    def traceparent(self) -> str | None:
        """The span of this run, for spans of the function's own; None if the run is not traced."""
        return self._facts.trace.get("TRACEPARENT")

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
    def should_stop(self) -> bool:
        """Whether the run was asked to stop. A long function should check this regularly."""
        return self._channel.stop_reason is not None

    @property
    def cancelled(self) -> bool:
        """The same as `should_stop`."""
        return self.should_stop

    @property
    def stop_reason(self) -> str | None:
        """Why the run was asked to stop; None if it was not."""
        return self._channel.stop_reason

    def raise_if_stopped(self) -> None:
        """Leave the function if the run was asked to stop; the run then ends as cancelled."""
        reason = self._channel.stop_reason
        if reason is not None:
            raise RunCancelled(reason)

    def raise_if_cancelled(self) -> None:
        """Do the same as `raise_if_stopped`."""
        self.raise_if_stopped()

    def wait_for_stop(self, timeout_s: float | None = None) -> bool:
        """Wait until the run is asked to stop or the timeout has passed; return whether it should stop."""
        return self._channel.wait_for_stop(timeout_s)

    # --- calls to the supervisor -----------------------------------------------------------------

    def log(self, text: object, level: str = "info") -> None:
        """Write a line to the run's log; what the function prints is there, too."""
        label = "" if level == "info" else f"{level}: "
        self._channel.log(f"{label}{text}\n".encode("utf-8", "replace"))

    def progress(self, fraction: float, text: str = "") -> None:
        """Report how far the work is, from 0 to 1, for people who look. At most about one a second is recorded."""
        self._channel.progress(fraction, text)

    def heartbeat(self) -> None:
        """Do nothing: the supervisor extends the claim itself. A program may say that it is alive, too."""

    def result(self, value: Any) -> None:
        """Set what the run returns if the function returns None; the last call counts."""
        self._result = value

    def charge(self, *, model: str | None = None, **amounts: float) -> dict[str, int]:
        """Record usage per dimension and return what is left. The charge is committed when this returns.

        Amounts are whole numbers, except `usd`, in dollars. With `model`, `input_tokens` and `output_tokens` are
        enough: the cost is computed from the fleet's prices.
        """
        return self._channel.charge(in_micro(amounts), model)

    def remaining(self) -> dict[str, int]:
        """Return what is left of the budgets, per dimension."""
        return self._channel.remaining()

    def checkpoint(self, state: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Save the state of the work, a mapping or names; the next attempt finds it in `saved`."""
        self._channel.checkpoint({**(state or {}), **more})

    def emit(self, kind: str, payload: Mapping[str, Any] | None = None, /, **more: Any) -> int:
        """Append an event of your own to the journal, which triggers and hooks may wait for; return its id.

        `ctx.emit("deploy.finished", version=7)`. It is about this run's agent; kinds that begin with kernel. are
        reserved.
        """
        return self._channel.emit(kind, {**(payload or {}), **more})

    def throttled(self, retry_after_s: float, name: str | None = None) -> None:
        """Pause a named limit for all agents that draw on it. None: every limit that this run draws on."""
        self._channel.throttled(retry_after_s, name)

    def acquire(self, name: str, /, *, wait_s: float | None = None, **amounts: int) -> Acquired:
        """Wait until a limit has these amounts, `tokens=900, requests=1`; settle what is returned after the call.

        Raises `AskExceedsLimit` if the limit never has that much, `WaitTimeout` after `wait_s`, and leaves the function
        if the run is asked to stop.
        """
        try:
            key = self._channel.acquire(name, amounts, wait_s)
        except TimeoutError:
            self.raise_if_stopped()
            raise
        settle = partial(self._channel.settle, key)
        return Acquired(name, amounts, settle=settle, throttled=self._channel.throttled)

    async def aacquire(self, name: str, /, *, wait_s: float | None = None, **amounts: int) -> Acquired:
        """Do the same as `acquire`, without blocking the event loop of an async function."""
        return await asyncio.to_thread(partial(self.acquire, name, wait_s=wait_s, **amounts))

    def spawn(
        self, agent: str, /, *, lent: Mapping[str, int] | None = None, priority: int | None = None, **payload: Any
    ) -> ChildJob:
        """Enqueue work for another agent and lend it a part of this run's budget; the unused rest comes back."""
        options = {**current_span(), **({} if priority is None else {"priority": priority})}
        return ChildJob(self._channel, self._channel.spawn(agent, payload, dict(lent or {}), **options))

    def wait(self, children: Sequence[ChildJob | int], wait_s: float | None = None) -> list[ReadyEntry]:
        """Wait until all children have ended and return their entries. The slot is released during the wait."""
        ids = [child if isinstance(child, int) else child.sched_id for child in children]
        return self._channel.wait_for(ids, wait_s)

    async def await_children(self, children: Sequence[ChildJob | int], wait_s: float | None = None) -> list[ReadyEntry]:
        """Do the same as `wait`, without blocking the event loop of an async function."""
        return await asyncio.to_thread(self.wait, children, wait_s)

    def yield_back(self, after_s: float = 0.0) -> NoReturn:
        """Leave the function, give up the slot and run again after a delay. Save a checkpoint first."""
        raise RunYielded(after_s)


# --- in a worker process ---------------------------------------------------------------------------

STOP = "stop"  # the message to a worker, with the reason
STOP_CHECK_S = 0.1  # how late a wait for a stop request notices one that another thread has read
_REQUESTS = frozenset(
    {"progress", "charge", "remaining", "checkpoint", "emit", "throttled", "acquire", "settle", "spawn", "wait_for"}
)


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

    def progress(self, fraction: float, text: str = "") -> None:
        """Report how far the work is."""
        worker.request(("progress", (fraction, text), {}))

    def wait_for_stop(self, timeout_s: float | None = None) -> bool:
        """Wait until the run is asked to stop or the timeout has passed."""
        clock, poll = SystemClock(), select.poll()
        poll.register(worker.fileno(), select.POLLIN)
        give_up_at = None if timeout_s is None else clock.monotonic() + timeout_s
        while self.stop_reason is None:
            left_s = STOP_CHECK_S if give_up_at is None else give_up_at - clock.monotonic()
            if left_s <= 0:
                return False
            poll.poll(1000 * min(left_s, STOP_CHECK_S))
        return True

    def charge(
        self, amounts: Mapping[str, int], model: str | None = None, *, node: str | None = None
    ) -> dict[str, int]:
        """Record usage and return what is left."""
        return dict(worker.request(("charge", (dict(amounts), model), {} if node is None else {"node": node})))

    def remaining(self, node: str | None = None) -> dict[str, int]:
        """Return what is left."""
        return dict(worker.request(("remaining", () if node is None else (node,), {})))

    def checkpoint(self, state: Mapping[str, Any]) -> None:
        """Save the state of the work."""
        worker.request(("checkpoint", (dict(state),), {}))

    def emit(self, kind: str, payload: Mapping[str, Any]) -> int:
        """Append an event of the agent's own."""
        return int(worker.request(("emit", (kind, dict(payload)), {})))

    def throttled(self, retry_after_s: float, name: str | None = None) -> None:
        """Pause a named limit."""
        worker.request(("throttled", (retry_after_s, name), {}))

    def acquire(self, name: str, amounts: Mapping[str, int], wait_s: float | None = None) -> str:
        """Wait until a limit has these amounts."""
        return str(worker.request(("acquire", (name, dict(amounts), wait_s), {})))

    def settle(self, key: str, used: Mapping[str, int] | None = None, *, node: str | None = None) -> dict[str, int]:
        """Say what was used of what was acquired."""
        return dict(worker.request(("settle", (key, dict(used or {})), {} if node is None else {"node": node})))

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

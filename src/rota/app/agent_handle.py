"""Handles on agents: what a program enqueues with.

    job = summarise.enqueue(url="…", priority=5, delay=timedelta(minutes=10))
    jobs = summarise.map(["a page", "another"])

An argument of the function and an option of `enqueue` may have the same name. Then the name is refused: the argument is
given by position, and the option as `options={…}`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, TypeAlias, TypedDict, Unpack, cast

from rota.app.jobs import Job, StoreLink
from rota.app.moments import Duration, Moment, seconds_of, timestamp_of
from rota.errors import InvalidInput, NotFound
from rota.fleet.agent_settings import settings_of, spec_for
from rota.fleet.runners.calling import parameters_of
from rota.model.caller_context import caller_trace
from rota.model.work import Agent, ScheduleSpec

__all__ = ["AgentHandle", "EnqueueOptions"]

Jobs: TypeAlias = Job | int | Iterable[Job | int]


class EnqueueOptions(TypedDict, total=False):
    """How an entry is enqueued."""

    delay: Duration | None  # it starts no earlier than this from now
    at: Moment | None  # it starts no earlier than then
    after: Jobs | None  # it starts when these have completed
    key: str | None  # one entry per key: a second one is the first
    priority: int | None  # higher runs sooner
    deadline: Moment | timedelta | None  # it is dropped if it has not started by then; a timedelta counts from now
    tags: str | Iterable[str] | None
    options: Mapping[str, Any] | None  # further fields of a `ScheduleSpec`


_OPTION_NAMES = frozenset(EnqueueOptions.__annotations__)


class AgentHandle:
    """A handle on an agent, to enqueue entries for it. A function's handle can also be called."""

    def __init__(self, link: StoreLink, agent: Agent, function: Callable[..., Any] | None = None) -> None:
        self._link = link
        self._function = function
        self.bind(agent)
        if function is not None:
            functools.update_wrapper(self, function)  # a worker process finds the function through the handle

    def bind(self, agent: Agent) -> None:
        """Make this the handle of an agent, as it is stored now."""
        self.agent, self._settings = agent, settings_of(agent)  # as of its registration
        self.pid, self.name = agent.pid, agent.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function directly, without the queue."""
        if self._function is None:
            raise NotFound(f"agent {self.name} is not a function in this program", pid=self.pid)
        return self._function(*args, **kwargs)

    @property
    def project(self) -> str | None:
        """The agent's project."""
        return self.agent.project_id

    def parameters(self) -> list[inspect.Parameter] | None:
        """Return the parameters that a payload fills; None if the agent is not a function in this program."""
        return None if self._function is None else parameters_of(self._function)

    # --- enqueueing ------------------------------------------------------------------------------

    def enqueue(
        self,
        *args: Any,
        delay: Duration | None = None,
        at: Moment | None = None,
        after: Jobs | None = None,
        key: str | None = None,
        priority: int | None = None,
        deadline: Moment | timedelta | None = None,
        tags: str | Iterable[str] | None = None,
        options: Mapping[str, Any] | None = None,
        **payload: Any,
    ) -> Job:
        """Enqueue a run of the agent with these arguments.

        `delay` and `at` say when it starts at the earliest, `deadline` by when it has to start; `after` names the jobs
        that must complete first; `key` makes it the only one of that key. `options` are further fields of a
        `ScheduleSpec`.
        """
        given: EnqueueOptions = {
            "delay": delay,
            "at": at,
            "after": after,
            "key": key,
            "priority": priority,
            "deadline": deadline,
            "tags": tags,
            "options": options,
        }
        self._check_names({name for name, value in given.items() if value is not None})
        spec = self._spec({**self._by_position(args), **payload}, given)
        return Job(self._link, self._link.api.queue.enqueue(spec))

    def enqueue_many(self, payloads: Iterable[Mapping[str, Any]], **fields: Any) -> list[Job]:
        """Enqueue an entry for each payload: all or none.

        `fields` are options as `enqueue` has them, or further fields of a `ScheduleSpec`.
        """
        named: dict[str, Any] = {name: fields.pop(name) for name in _OPTION_NAMES & fields.keys()}
        given = cast("EnqueueOptions", named | {"options": {**(named.get("options") or {}), **fields}})
        specs = [self._spec(payload, given) for payload in payloads]
        return [Job(self._link, sched_id) for sched_id in self._link.api.queue.enqueue_many(specs)]

    def map(self, items: Iterable[Any], **enqueue: Unpack[EnqueueOptions]) -> list[Job]:
        """Enqueue an entry for each item: all or none. A mapping is a payload, anything else the first argument."""
        payloads = [item if isinstance(item, Mapping) else self._by_position((item,)) for item in items]
        return self.enqueue_many(payloads, **enqueue)

    async def aenqueue(self, *args: Any, **kwargs: Any) -> Job:
        """Do the same as `enqueue`, for coroutines."""
        return await asyncio.to_thread(self.enqueue, *args, **kwargs)

    async def aenqueue_many(self, payloads: Iterable[Mapping[str, Any]], **fields: Any) -> list[Job]:
        """Do the same as `enqueue_many`, for coroutines."""
        return await asyncio.to_thread(functools.partial(self.enqueue_many, payloads, **fields))

    async def amap(self, items: Iterable[Any], **enqueue: Unpack[EnqueueOptions]) -> list[Job]:
        """Do the same as `map`, for coroutines."""
        return await asyncio.to_thread(functools.partial(self.map, items, **enqueue))

    def _by_position(self, args: tuple[Any, ...]) -> dict[str, Any]:
        """Return the payload for arguments that are given by position."""
        if not args:
            return {}
        if self._function is None:
            text = f"agent {self.name} is not a function in this program: its payload has names"
            raise InvalidInput(text, field="payload", hint="Give each value by name, or a mapping to map().")
        parameters = parameters_of(self._function)
        names = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
        if len(args) > len(names):
            text = f"{self.name} takes {len(names)} arguments by position, not {len(args)}"
            raise InvalidInput(text, field="payload", hint=f"Its arguments: {', '.join(names) or 'none'}.")
        return dict(zip(names, args, strict=False))

    def _check_names(self, given: set[str]) -> None:
        """Refuse an option that has the name of an argument of the function: which of the two is meant?"""
        if self._function is None or not given:
            return
        doubtful = sorted(given & {parameter.name for parameter in parameters_of(self._function)})
        if doubtful:
            name = doubtful[0]
            text = f"{self.name} has an argument {name!r}, which is also an option of enqueue"
            hint = f"Give the argument by position, and the option as options={{{name!r}: …}}."
            raise InvalidInput(text, field=name, hint=hint)

    def _spec(self, payload: Mapping[str, Any], given: EnqueueOptions) -> ScheduleSpec:
        return spec_for(self.agent, self._settings, payload, **self._fields(given))

    def _fields(self, given: EnqueueOptions) -> dict[str, Any]:
        """Return the options as fields of a `ScheduleSpec`."""
        now = self._link.api.clock.now()
        fields = {**caller_trace(os.environ), **(given.get("options") or {})}
        for name in ("key", "priority"):
            if given.get(name) is not None:
                fields[name] = given.get(name)
        if (delay := given.get("delay")) is not None:
            fields["delay_s"] = seconds_of("delay", delay)
        if (at := given.get("at")) is not None:
            fields["runnable_at"] = timestamp_of("at", at, now)
        if (deadline := given.get("deadline")) is not None:
            fields["deadline"] = timestamp_of("deadline", deadline, now)
        if (after := given.get("after")) is not None:
            fields["after"] = _ids(after)
        if (tags := given.get("tags")) is not None:
            fields["tags"] = (tags,) if isinstance(tags, str) else tuple(tags)
        return fields

    # --- pausing ---------------------------------------------------------------------------------

    def pause(self, by: str = "user", reason: str | None = None) -> None:
        """Start no more runs of this agent; runs in progress continue."""
        self._link.api.agents.pause(self.pid, by, reason)

    def resume(self, by: str = "user") -> None:
        """Lift the pause of this agent."""
        self._link.api.agents.resume(self.pid, by)


def _ids(after: Jobs) -> tuple[int, ...]:
    jobs = [after] if isinstance(after, Job | int) else list(after)
    return tuple(job.sched_id if isinstance(job, Job) else job for job in jobs)

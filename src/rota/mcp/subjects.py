"""What a caller means: the agent by a name, its own entry, and the entry that it would enqueue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeAlias

import msgspec

from rota.errors import AmbiguousAgent, InvalidInput, NotFound
from rota.fleet.agent_settings import settings_of, spec_for
from rota.mcp.answers import EntryLine, line_of
from rota.mcp.callers import Caller
from rota.mcp.tool import said
from rota.model.work import Agent, ReadyEntry, ScheduleSpec

__all__ = [
    "Asked",
    "OfAgent",
    "OfProject",
    "SchedId",
    "agent_named",
    "given",
    "lines_of",
    "names_of",
    "own_or_given",
    "spec_of",
]

OfAgent: TypeAlias = Annotated[str | None, said("Only of this agent, by name or pid.")]
OfProject: TypeAlias = Annotated[str | None, said("Only of this project, by id.")]
SchedId: TypeAlias = Annotated[int, said("The id of the entry.")]


class Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of a tool."""


def given(asked: msgspec.Struct, *names: str) -> dict[str, Any]:
    """Return the arguments with these names that were given."""
    return {name: value for name in names if (value := getattr(asked, name)) is not None}


def own_or_given(caller: Caller, sched_id: int | None) -> int:
    """Return the entry that is named; inside a run, by default its own."""
    if sched_id is None and caller.run is None:
        raise InvalidInput("name the entry", field="sched_id", hint="The tool list_work lists entries.")
    return caller.run.sched_id if sched_id is None and caller.run is not None else int(sched_id or 0)


def agent_named(caller: Caller, name: str) -> Agent:
    """Return the agent that a name or a pid means to the caller; to a run, one that its project may reach."""
    if name.isascii() and name.isdecimal():
        return caller.api.agents.get(int(name))
    if caller.run is not None:
        return caller.api.supervision.agent_to_spawn(*caller.run, name)
    found = caller.api.agents.find(name)
    if not found:
        raise NotFound(f"no live agent is named {name!r}", hint="The tool list_agents lists them.", agent=name)
    if len(found) > 1:
        hint = "Give the pid instead of the name; list_agents has it."
        raise AmbiguousAgent(name, {each.pid: each.project_id for each in found}, hint=hint)
    return found[0]


def spec_of(caller: Caller, agent: Agent, payload: Mapping[str, Any], options: Mapping[str, Any]) -> ScheduleSpec:
    """Build an entry with the agent's settings; that of a run is its child, with at least its priority."""
    wanted = dict(options)
    if caller.run is not None:
        own = caller.api.queue.get(caller.run.sched_id)
        wanted.setdefault("priority", max(agent.priority, own.priority))
        wanted.setdefault("correlation_id", own.correlation_id)
        wanted["parent_id"] = own.sched_id
    return spec_for(agent, settings_of(agent), payload, **wanted)


def names_of(caller: Caller, entries: Iterable[ReadyEntry]) -> dict[int, str]:
    """Return the names of the agents of entries."""
    return caller.api.agents.names(sorted({entry.pid for entry in entries}))


def lines_of(caller: Caller, entries: list[ReadyEntry]) -> tuple[EntryLine, ...]:
    """Return entries as lines, with the names of their agents."""
    names = names_of(caller, entries)
    return tuple(line_of(entry, names.get(entry.pid, "")) for entry in entries)

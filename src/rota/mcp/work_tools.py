"""Tools that read work: lists of entries and agents, one entry, its long parts, and waiting for its end."""

from __future__ import annotations

import codecs
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from rota.errors import WaitTimeout
from rota.mcp.answers import AgentLine, EntryDetail, EntryLine, agent_line, detail_of, line_of, short_value
from rota.mcp.callers import Caller
from rota.mcp.subjects import Asked, OfAgent, OfProject, SchedId, agent_named, lines_of, names_of, own_or_given
from rota.mcp.tool import said, tool
from rota.model.entry_status import EntryStatus
from rota.model.work import ReadyEntry

__all__ = ["WORK_TOOLS"]

PAGE_MAX = 100  # lines of one answer
FOUND_MAX = 800  # entries before the last page of a search
PART_CHARS_MAX = 20_000  # of one part of a payload, result or log
WAIT_S_MAX = 50.0  # of one call: clients give up after a minute
AWAITED_MAX = 20  # entries in one wait

Limit: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX, description="How many to return.")]
Wait: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=WAIT_S_MAX, description="How long to wait, in seconds.")]
OfStatus: TypeAlias = Annotated[tuple[EntryStatus, ...] | None, said("Only of these statuses.")]


# --- lists ---------------------------------------------------------------------------------------


class ListWork(Asked, frozen=True, kw_only=True):
    """The arguments of list_work."""

    status: OfStatus = None
    agent: OfAgent = None
    project: OfProject = None
    tag: Annotated[str | None, said("Only with this tag.")] = None
    after: Annotated[int, msgspec.Meta(ge=0, description="Continue after this id: next_after of the last page.")] = 0
    limit: Limit = 20


class WorkPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of entries, by id."""

    entries: tuple[EntryLine, ...]
    total: Annotated[int, said("How many match, on all pages.")]
    next_after: Annotated[int | None, said("Give this as `after` for the next page; null on the last one.")]


@tool(uses=("kernel.sched.list", "kernel.agent.names"))
def list_work(caller: Caller, asked: ListWork) -> WorkPage:
    """List entries (jobs) of the queue by id: waiting, ready, running or ended, of all or of one agent or project."""
    pid = None if asked.agent is None else agent_named(caller, asked.agent).pid
    found, total = caller.api.queue.list(
        status=asked.status, pid=pid, project_id=asked.project, tag=asked.tag, after=asked.after, limit=asked.limit
    )
    is_last = len(found) < asked.limit
    return WorkPage(
        entries=lines_of(caller, found), total=total, next_after=None if is_last or not found else found[-1].sched_id
    )


class FindWork(Asked, frozen=True, kw_only=True):
    """The arguments of find_work."""

    text: Annotated[str, said("A text in the payload, the result or an error.")]
    status: OfStatus = None
    agent: OfAgent = None
    project: OfProject = None
    offset: Annotated[
        int, msgspec.Meta(ge=0, le=FOUND_MAX, description="Continue here: next_offset of the last page.")
    ] = 0
    limit: Limit = 20


class FoundWork(msgspec.Struct, frozen=True, kw_only=True):
    """The entries that hold a text, newest first."""

    entries: tuple[EntryLine, ...]
    next_offset: Annotated[int | None, said("Give this as `offset` for the next page; null on the last one.")]
    is_complete: Annotated[bool, said("False on the last page: older entries were not searched; narrow the search.")]


@tool(uses=("kernel.sched.search", "kernel.agent.names"))
def find_work(caller: Caller, asked: FindWork) -> FoundWork:
    """Find entries by a text in their payload, result or errors, newest first."""
    pid = None if asked.agent is None else agent_named(caller, asked.agent).pid
    end = asked.offset + asked.limit
    found = caller.api.queue.search(
        asked.text, limit=end + 1, pid=pid, project_id=asked.project, status=asked.status
    )  # one more than asked for: is there another page?
    next_offset = end if len(found.entries) > end and end <= FOUND_MAX else None
    entries = lines_of(caller, found.entries[asked.offset : end])
    return FoundWork(entries=entries, next_offset=next_offset, is_complete=found.is_complete)


class ListAgents(Asked, frozen=True, kw_only=True):
    """The arguments of list_agents."""

    project: OfProject = None
    offset: Annotated[int, msgspec.Meta(ge=0, description="Continue here: next_offset of the last page.")] = 0
    limit: Limit = 50


class AgentPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of agents, by pid."""

    agents: tuple[AgentLine, ...]
    total: int
    next_offset: Annotated[int | None, said("Give this as `offset` for the next page; null on the last one.")]


@tool(uses=("kernel.agent.list",))
def list_agents(caller: Caller, asked: ListAgents) -> AgentPage:
    """List the agents, for which work can be enqueued by name."""
    found, total = caller.api.agents.list(project_id=asked.project, limit=asked.limit, offset=asked.offset)
    end = asked.offset + len(found)
    return AgentPage(
        agents=tuple(map(agent_line, found)), total=total, next_offset=end if found and end < total else None
    )


# --- one entry -----------------------------------------------------------------------------------


class ShowWork(Asked, frozen=True, kw_only=True):
    """The arguments of show_work."""

    sched_id: Annotated[int | None, said("The id of the entry. Default inside a run: the run's own entry.")] = None


@tool(uses=("kernel.sched.show",))
def show_work(caller: Caller, asked: ShowWork) -> EntryDetail:
    """Show one entry: its payload, result, attempts, usage, parent, children and history."""
    return detail_of(caller.api.show(own_or_given(caller, asked.sched_id)))


class ReadWork(Asked, frozen=True, kw_only=True):
    """The arguments of read_work."""

    sched_id: SchedId
    part: Annotated[Literal["payload", "result", "log"], said("log: what the run has printed.")]
    attempt: Annotated[int | None, said("Of which attempt the log is. Default: the last one.")] = None
    offset: Annotated[int, said("Where to begin: next_offset of the last part. In a log, -2000 is near its end.")] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=PART_CHARS_MAX, description="How much to return.")] = 8_000


class WorkPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a text."""

    text: str
    next_offset: Annotated[int | None, said("Give this as `offset` for the next part; null at the end.")]
    total: Annotated[int, said("The length of the whole: characters; of a log, bytes.")]
    has_ended: Annotated[bool, said("False: the run still prints.")] = True
    is_on: Annotated[tuple[str, ...], said("Other hosts that have the log, if it is not here.")] = ()


@tool(uses=("kernel.sched.get", "kernel.log.read", "kernel.log.places"))
def read_work(caller: Caller, asked: ReadWork) -> WorkPart:
    """Read a long payload, result or log of an entry in parts."""
    if asked.part == "log":
        part = caller.api.logs.read(asked.sched_id, asked.attempt, offset=asked.offset, limit_bytes=asked.limit)
        text, length = _decoded(part.data, is_last=part.offset + len(part.data) >= part.total_bytes)
        end = part.offset + length
        places = [] if part.total_bytes else caller.api.logs.places(asked.sched_id, part.attempt)
        return WorkPart(
            text=text,
            next_offset=end if end < part.total_bytes else None,
            total=part.total_bytes,
            has_ended=part.ended,
            is_on=tuple(place.host for place in places if not place.is_here),
        )
    entry = caller.api.queue.get(asked.sched_id)
    text = msgspec.json.encode(entry.payload if asked.part == "payload" else entry.result).decode()
    start = max(0, asked.offset if asked.offset >= 0 else len(text) + asked.offset)
    end = start + asked.limit
    return WorkPart(text=text[start:end], next_offset=end if end < len(text) else None, total=len(text))


def _decoded(data: bytes, *, is_last: bool) -> tuple[str, int]:
    """Return a part of a log as text, and its length: a character that goes on in the next part is left to that."""
    text, length = codecs.utf_8_decode(data, "replace", is_last)
    return (text, length) if length else codecs.utf_8_decode(data, "replace", True)


class WaitForWork(Asked, frozen=True, kw_only=True):
    """The arguments of wait_for_work."""

    sched_ids: Annotated[
        tuple[int, ...], msgspec.Meta(min_length=1, max_length=AWAITED_MAX, description="The ids of the entries.")
    ]
    wait_s: Wait = 30.0


class Ended(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What has become of an entry."""

    entry: EntryLine
    has_ended: bool
    result: Any = None
    result_is_long: Annotated[bool, said("True: read the result with read_work.")] = False


class WaitResult(msgspec.Struct, frozen=True, kw_only=True):
    """Each entry, in the given order."""

    entries: tuple[Ended, ...]
    all_have_ended: Annotated[bool, said("False: call again to wait on.")]
    returned: Annotated[dict[str, int], said("Inside a run: what ended children left of the budget lent to them.")] = {}


@tool(uses=("kernel.sched.wait", "kernel.sched.get"))
def wait_for_work(caller: Caller, asked: WaitForWork) -> WaitResult:
    """Wait until entries have ended, or for wait_s, and return their results.

    Inside a run, what children have left of a lent budget returns to the run.
    """
    api, run = caller.api, caller.run if caller.may_write else None
    if run is not None:
        api.supervision.rest(*run, waiting=True, awaits=asked.sched_ids)
    returned: dict[str, int] = {}
    try:
        left = list(asked.sched_ids)

        def wait(slice_s: float) -> bool:
            """Wait for the first that has not ended; the others may end meanwhile."""
            try:
                while left:
                    api.queue.wait(left[0], slice_s)
                    left.pop(0)
            except WaitTimeout:
                pass
            return not left

        caller.wait(asked.wait_s, wait)
    finally:
        if run is not None:
            returned = api.supervision.rest(*run, waiting=False)
    found = [api.queue.get(sched_id) for sched_id in asked.sched_ids]
    names = names_of(caller, found)
    entries = tuple(_ended(entry, names.get(entry.pid, "")) for entry in found)
    return WaitResult(
        entries=entries, all_have_ended=all(entry.has_ended for entry in entries), returned=dict(returned)
    )


def _ended(entry: ReadyEntry, agent: str) -> Ended:
    result, is_long = short_value(entry.result)
    has_ended = entry.status not in ("waiting", "ready", "running")
    return Ended(entry=line_of(entry, agent), has_ended=has_ended, result=result, result_is_long=is_long)


WORK_TOOLS = (list_work, find_work, list_agents, show_work, read_work, wait_for_work)

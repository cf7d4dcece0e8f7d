"""Views: what a caller that is bound to projects sees of a result.

A view is a function of a result and of what the caller owns. What belongs to other projects is absent from what it
returns: not emptied, not counted, not named. Deny by default holds here too: an event or a reason of a kind that no
function below knows is left out, unless it is about an agent of the caller's projects.

- *Events* belong to the project of their agent, or to the project that they name. Most events about entries name no
  agent, because one commit claims or completes entries of many projects; of these, a caller sees its own entries, and
  nothing that was said about all of them together.
- *Explanations* name the entries that run first. Strangers among them are neither named nor counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

import msgspec

from rota.model import events as facts
from rota.model import reasons
from rota.model.core_grants import CoreGrant, CoreStatus, HostStatus
from rota.model.entry_report import EntryReport
from rota.model.events import Event
from rota.model.explanation import EntryAhead, Explanation, ExplanationSummary, StartEstimate
from rota.model.graph_runs import GraphRunReport
from rota.model.reasons import BlockingReason, OrderingReason, WorkerReason

__all__ = ["VIEWS", "Sight", "visible_events"]


class Sight:
    """What a caller owns: its projects, and which agents and entries are theirs."""

    def __init__(
        self,
        projects: frozenset[str | None],
        projects_of_agents: Callable[[Collection[int]], Mapping[int, str | None]],
        projects_of_entries: Callable[[Collection[int]], Mapping[int, str | None]],
    ) -> None:
        self.projects = projects
        self._of_agents = projects_of_agents
        self._of_entries = projects_of_entries

    def own_agents(self, pids: Iterable[int | None]) -> set[int]:
        """Return those of the agents that belong to its projects."""
        return self._own(self._of_agents({pid for pid in pids if pid is not None}))

    def own_entries(self, sched_ids: Iterable[int]) -> set[int]:
        """Return those of the entries that belong to its projects."""
        return self._own(self._of_entries(set(sched_ids)))

    def _own(self, found: Mapping[int, str | None]) -> set[int]:
        return {key for key, project_id in found.items() if project_id in self.projects}


# --- rows ----------------------------------------------------------------------------------------


def _entries(result: Any, sight: Sight) -> Any:
    own = [entry for entry in result.entries if entry.project_id in sight.projects]
    return msgspec.structs.replace(result, entries=own)


def _agents(result: Any, sight: Sight) -> Any:
    own = [agent for agent in result.agents if agent.project_id in sight.projects]
    return msgspec.structs.replace(result, agents=own)


def _workspaces(result: Any, sight: Sight) -> Any:
    own = [workspace for workspace in result.workspaces if workspace.project_id in sight.projects]
    return msgspec.structs.replace(result, workspaces=own)


def _ledger_lines(result: Any, sight: Sight) -> Any:
    own = sight.own_agents(line.pid for line in result.entries)
    return msgspec.structs.replace(result, entries=[line for line in result.entries if line.pid in own])


def _budgets(result: Any, sight: Sight) -> Any:
    own = [line for line in result.budgets if line.level == "project" and line.owner in sight.projects]
    return msgspec.structs.replace(result, budgets=own)


def _graph_budgets(result: Any, sight: Sight) -> Any:
    own = [line for line in result.lines if line.project_id in sight.projects]
    return msgspec.structs.replace(result, lines=own)


# --- events --------------------------------------------------------------------------------------

_LISTS_ENTRIES = frozenset(
    kind.kind
    for kind in (
        facts.EntriesEnqueued, facts.EntriesClaimed, facts.EntriesCompleted, facts.EntriesReturned,
        facts.EntriesReleased, facts.EntriesHeldForWorker, facts.EntriesExpired, facts.EntriesCancelled,
        facts.EntriesChanged, facts.CancelRequested,
    )
)  # fmt: skip
_NAMES_PROJECT = frozenset(
    kind.kind
    for kind in (
        facts.ProjectCreated, facts.ProjectUpdated, facts.ProjectTransitioned, facts.WorkspaceAdded,
        facts.WorkspaceKept,
    )
)  # fmt: skip
_HAS_LEVEL: dict[str, str] = {  # the field that has the project's id, if the level is a project
    facts.BudgetSet.kind: "owner",
    facts.BudgetAlert.kind: "owner",
    facts.FlowReweighted.kind: "key",
    facts.Paused.kind: "key",
    facts.Resumed.kind: "key",
}
_ABOUT_ALL = ("because", "contexts", "reason", "by")  # of several entries together


def visible_events(events: list[Event], sight: Sight) -> list[Event]:
    """Return the caller's part of some events, in order.

    One event may become several with the same id: an event about enqueued entries has a range of ids, and strangers'
    entries may be in the middle of it.
    """
    agents = sight.own_agents(event.pid for event in events)
    shared = [event for event in events if event.pid is None and event.kind in _LISTS_ENTRIES]
    entries = sight.own_entries(sched_id for event in shared for sched_id in _named_entries(event.payload))
    return [part for event in events for part in _own_parts(event, sight.projects, agents, entries)]


def _own_parts(
    event: Event, projects: frozenset[str | None], agents: Collection[int], entries: Collection[int]
) -> Iterator[Event]:
    payload = event.payload
    if event.pid is not None:
        if event.pid in agents and payload.get("level") != "global":
            yield _with(event, payload)
    elif event.kind in _LISTS_ENTRIES:
        for part in _own_entries(payload, entries):
            yield _with(event, part)
    elif event.kind in _NAMES_PROJECT:
        if payload.get("project_id") in projects:
            yield event
    elif (field := _HAS_LEVEL.get(event.kind)) and payload.get("level") == "project" and payload[field] in projects:
        yield event


def _with(event: Event, payload: dict[str, Any]) -> Event:
    """Return an event without the virtual times, which are accounts of the scheduler and name other flows."""
    kept = {name: value for name, value in payload.items() if name != "flows"} if "flows" in payload else payload
    return msgspec.structs.replace(event, payload=kept)


def _named_entries(payload: dict[str, Any]) -> Iterable[int]:
    if "entries" in payload:
        return [each[0] for each in payload["entries"]]
    if "sched_ids" in payload:
        return payload["sched_ids"]  # type: ignore[no-any-return]  # ids
    return range(payload["first_id"], payload["first_id"] + payload.get("count", 1))


def _own_entries(payload: dict[str, Any], own: Collection[int]) -> Iterator[dict[str, Any]]:
    """Yield the parts of an event's payload that are about own entries."""
    named = list(_named_entries(payload))
    mine = [sched_id for sched_id in named if sched_id in own]
    if len(mine) == len(named):
        yield payload
    elif mine and "first_id" in payload:
        for ids in _ranges(mine):
            held = {hold: kept for hold, every in payload.get("held", {}).items() if (kept := _among(every, ids))}
            yield {"first_id": ids[0], "count": len(ids), "held": held}
    elif mine:
        rest = {name: value for name, value in payload.items() if name not in _ABOUT_ALL}
        if "entries" in payload:
            yield {**rest, "entries": [each for each in payload["entries"] if each[0] in own]}
        else:
            yield {**rest, "sched_ids": mine}


def _ranges(ids: list[int]) -> Iterator[list[int]]:
    """Yield consecutive ids together."""
    for _, group in groupby(enumerate(ids), key=lambda each: each[1] - each[0]):
        yield [sched_id for _, sched_id in group]


def _among(ids: Iterable[int], own: Collection[int]) -> tuple[int, ...]:
    return tuple(sched_id for sched_id in ids if sched_id in own)


# --- explanations --------------------------------------------------------------------------------


def _explanation(result: Explanation, sight: Sight) -> Explanation:
    """Return an explanation of an own entry that neither names nor counts entries of other projects."""
    own = sight.own_entries(_ids_in_reasons((*result.blocking, *result.ordering, result.workers), result.ahead))
    result = msgspec.structs.replace(result, workers=_workers(result.workers, own))
    blocking = tuple(_blocking(reason, own) for reason in result.blocking)
    ordering = tuple(_ordering(reason, own) for reason in result.ordering)
    ahead = tuple(each for each in result.ahead if each.sched_id in own)
    if (blocking, ordering, ahead) == (result.blocking, result.ordering, result.ahead):
        return result
    return msgspec.structs.replace(
        result,
        blocking=blocking,
        ordering=ordering,
        position=None,
        ahead=ahead,
        estimate=StartEstimate(None, "it depends on what is not of your projects"),
        changes=(),  # what would change it depends on the others too: their priority, their predecessors
    )


def _ids_in_reasons(
    found: Iterable[BlockingReason | OrderingReason | WorkerReason | None], ahead: Iterable[EntryAhead] = ()
) -> Iterator[int]:
    yield from (each.sched_id for each in ahead)
    for reason in found:
        match reason:
            case (
                reasons.AfterPredecessor(waiting_for=ids)
                | reasons.WorkspaceTaken(held_by=ids)
                | reasons.SlotsBusy(held_by=ids)
                | reasons.CoresRefused(held_by=ids)
            ):
                yield from ids
            case reasons.Outranked(first=ids):
                yield from ids
            case reasons.CrowdedOut(by=ids, then=then):
                yield from ids
                yield from _ids_in_reasons(then)


def _blocking(reason: BlockingReason, own: Collection[int]) -> BlockingReason:
    match reason:
        case reasons.AfterPredecessor(waiting_for=ids):
            return msgspec.structs.replace(reason, waiting_for=_among(ids, own))
        case reasons.WorkspaceTaken(held_by=ids):
            return msgspec.structs.replace(reason, held_by=_among(ids, own))
        case reasons.OverBudget(level="global", dim=dim, frees_at=until):
            return reasons.LimitExhausted(name=f"{dim} of the whole store", until_at=until)
    return reason


def _workers(  # noqa: PLR0911  # one for each reason
    reason: WorkerReason | None, own: Collection[int]
) -> WorkerReason | None:
    """Return a worker reason without names, numbers and files: workers are the operator's."""
    match reason:
        case reasons.NoWorker():
            return reasons.NoWorker()
        case reasons.NoWorkerForKind(kind=kind):
            return reasons.NoWorkerForKind(kind=kind)
        case reasons.NoFunction():
            return reasons.NoFunction()
        case reasons.NoRunner():
            return reason
        case reasons.WorkersDraining():
            return reasons.WorkersDraining()
        case reasons.WorkersSilent():
            return reasons.WorkersSilent()
        case reasons.SlotsBusy(held_by=ids):
            return reasons.SlotsBusy(held_by=_among(ids, own))
        case reasons.CoresRefused(held_by=ids):
            return reasons.CoresRefused(held_by=_among(ids, own))
    return None


def _explanation_summary(result: ExplanationSummary, sight: Sight) -> ExplanationSummary:
    """Return a summary of one own project; what its examples say of others is left out."""
    own = sight.own_entries(_ids_in_reasons(each.reason for each in result.reasons))
    counted = tuple(msgspec.structs.replace(each, reason=_any_reason(each.reason, own)) for each in result.reasons)
    return msgspec.structs.replace(result, reasons=counted)


def _any_reason(
    reason: BlockingReason | WorkerReason | None, own: Collection[int]
) -> BlockingReason | WorkerReason | None:
    return _blocking(reason, own) if isinstance(reason, reasons.BlockingBase) else _workers(reason, own)


def _ordering(reason: OrderingReason, own: Collection[int]) -> OrderingReason:
    match reason:
        case reasons.Outranked(first=ids, ahead=ahead):
            mine = _among(ids, own)
            is_all = len(mine) == ahead
            return reason if is_all else msgspec.structs.replace(reason, ahead=len(mine), first=mine, at_least=True)
        case reasons.CrowdedOut(by=ids, then=then):
            return reasons.CrowdedOut(by=_among(ids, own), then=tuple(_blocking(each, own) for each in then))
        case reasons.NoSlot():
            return msgspec.structs.replace(reason, busy=0)
    return reason


def _entry_report(result: EntryReport, sight: Sight) -> EntryReport:
    """Return a report of an own entry without its relatives in other projects; of a pruned one that is not known."""
    own = sight.projects
    parent = result.parent if result.parent is not None and result.parent.project_id in own else None
    return msgspec.structs.replace(
        result,
        parent=parent,
        children=tuple(each for each in result.children if each.project_id in own),
        after=tuple(each for each in result.after if each.project_id in own),
        after_gone=(),
    )


def _graph_run(result: GraphRunReport, sight: Sight) -> GraphRunReport:
    """Return a report of an own graph run; entries of agents in projects that its own may reach are not named."""
    named = {sched_id for node in result.nodes for sched_id in node.newest} | set(result.waits_for)
    own = sight.own_entries(named)
    nodes = tuple(msgspec.structs.replace(node, newest=_among(node.newest, own)) for node in result.nodes)
    return msgspec.structs.replace(result, nodes=nodes, waits_for=_among(result.waits_for, own))


def _core_status(result: CoreStatus, sight: Sight) -> CoreStatus:
    """Return the grants of its own entries. Hosts, and who else uses their cores, are the operator's."""
    own_grants = [[each for each in host.grants if each.project_id in sight.projects] for host in result.hosts]
    unnamed = {"host_name": "", "reason": "the cores that it asked for are not free", "held_by": ()}
    own = sight.own_entries(refusal.sched_id for refusal in result.refused)
    return msgspec.structs.replace(
        result,
        hosts=[_own_host(grants) for grants in own_grants if grants],
        refused=[msgspec.structs.replace(each, **unnamed) for each in result.refused if each.sched_id in own],
        contexts=[],
    )


def _own_host(grants: list[CoreGrant]) -> HostStatus:
    names = {"host": "", "host_name": ""}
    return HostStatus(
        **names,
        leased={core: each.sched_id for each in grants for core in each.leased},
        reserved_ppm={},
        grants=[msgspec.structs.replace(each, **names, open_cores=(), evidence={}) for each in grants],
    )


VIEWS: Mapping[str, Callable[[Any, Sight], Any]] = {
    "entries": _entries,
    "agents": _agents,
    "workspaces": _workspaces,
    "ledger_lines": _ledger_lines,
    "budgets": _budgets,
    "graph_budgets": _graph_budgets,
    "core_status": _core_status,
    "explanation": _explanation,
    "explanation_summary": _explanation_summary,
    "entry_report": _entry_report,
    "graph_run": _graph_run,
}

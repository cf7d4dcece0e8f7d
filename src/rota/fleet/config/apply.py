"""Apply a fleet file to a store without interrupting runs.

`pending_changes` compares the file with the store and writes nothing. `apply_fleet` applies each difference with a call
of the kernel API. Without a difference nothing is written, so applying a file a second time changes nothing. A change
that fails leaves the changes before it applied; applying the file again applies the rest.

What the file no longer names is not deleted, because entries and usage belong to it. An agent or a project is paused
by `fleet` and resumed when the file names it again; a budget is removed, a limit is revoked. A workspace that a run
holds is removed the next time.

What others created in the same store (the Python API, a fleet with another name) is not touched. Agents and projects
carry the fleet's name in their metadata. Limits and global budgets cannot, so the store has a note that lists those
of this fleet (`LastApplied`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeAlias, TypeVar

import msgspec

from rota.errors import Conflict, FleetInvalid, WorkspaceHeld
from rota.fleet.agent_settings import SETTINGS_KEY
from rota.fleet.config.changes import FleetChange, FleetChanges, PendingChange
from rota.fleet.config.graph_tables import GraphAgent, document_text
from rota.fleet.config.hook_tables import HookAgent
from rota.fleet.config.price_changes import price_changes
from rota.fleet.config.retention_table import retention_changes
from rota.fleet.config.tables import AgentTable, Fleet, ProjectTable, SchedulingTable
from rota.fleet.config.workspaces import workspace_changes
from rota.fleet.config.worktree_tables import WorktreesTable
from rota.fleet.notes import read_note
from rota.kernel.contexts import to_ms_up
from rota.kernel.paging import LIST_MAX
from rota.kernel.usage_windows import ALL_PROJECTS
from rota.model.agent_metadata import FLEET_KEY, hide_values
from rota.model.budgets import ALERTS, BudgetLine, SchedulingContext
from rota.model.checks import INTEGER_MAX
from rota.model.cpu import CPU_KEY
from rota.model.graph_runs import DOCUMENT_KEY
from rota.model.lifecycle import AgentState, ContextState, ProjectStatus
from rota.model.struct_reader import join_key
from rota.model.work import Agent, Project
from rota.model.worktrees import WorktreeSettings
from rota.service.api import KernelApi

__all__ = ["FLEET_KEY", "PAUSED_BY", "UNLIMITED", "all_rows", "apply_fleet", "pending_changes"]

PAUSED_BY = "fleet"  # recorded as the one that paused what the file no longer names
NOT_IN_FILE = "no longer in the fleet file"
UNLIMITED = INTEGER_MAX  # the grant of a removed budget: a ledger line is never deleted, so that its usage stays known
TRIES_MAX = 5  # while another supervisor applies a file at the same time

T = TypeVar("T")
FileAgent: TypeAlias = AgentTable | GraphAgent | HookAgent  # what is an agent in the store
Agents: TypeAlias = dict[tuple[str | None, str], Agent]  # by project and name


def apply_fleet(api: KernelApi, fleet: Fleet) -> FleetChanges:
    """Make the store match the file; return what was changed. The caller records it in the journal."""
    applied: list[FleetChange] = []
    for _ in range(TRIES_MAX):
        outcomes = [_apply(pending) for pending in pending_changes(api, fleet)]
        applied += [each for each in outcomes if isinstance(each, FleetChange)]
        conflict = next((each for each in outcomes if isinstance(each, Conflict)), None)
        if conflict is None:
            _NamedLimits(api, fleet).save_all()
            return FleetChanges(tuple(applied))
    raise conflict or AssertionError("the loop runs at least once")


def _apply(pending: PendingChange) -> FleetChange | Conflict:
    """Apply a change; return it, or the conflict if another supervisor applied it in the meantime."""
    try:
        pending.apply()
    except WorkspaceHeld:
        return msgspec.structs.replace(pending.change, verb="postponed", note="a run holds it")
    except Conflict as conflict:
        return conflict
    return pending.change


def pending_changes(api: KernelApi, fleet: Fleet) -> list[PendingChange]:
    """Return what has to change in the store to match the file. Nothing is written."""
    projects = {each.project_id: each for each in all_rows(api.projects.list)}
    agents = _living_agents(api)
    for agent in agents.values():
        _check_same_project(fleet, agent, agents)
    pending = [
        *_scheduling_changes(api, fleet),
        *retention_changes(api, fleet.retention, fleet.title),
        *price_changes(api, fleet, LastApplied.load(api, fleet).prices),
        *_projects_changes(api, fleet, projects),
        *_NamedLimits(api, fleet).changes(),
        *_agents_changes(api, fleet, agents),
    ]
    # removed workspaces first: a folder may move from one project to another
    return sorted(pending, key=lambda each: (each.change.what, each.change.verb) != ("workspace", "removed"))


def _check_same_project(fleet: Fleet, agent: Agent, known: Agents) -> None:
    """Raise if the file has an agent of this fleet in another project, where it would get a new budget."""
    name, table = agent.name, fleet.triggered.get(agent.name)
    is_ours = agent.metadata.get(FLEET_KEY) == fleet.title
    if is_ours and table is not None and (table.project, name) not in known:
        key = f"{join_key('agents' if name in fleet.agents else 'graphs', name)}.project"
        stored, given = (
            "no project" if project is None else f"project {project!r}" for project in (agent.project_id, table.project)
        )
        raise FleetInvalid(
            f"{key}: agent {name!r} is in {stored} in the store and in {given} in the file",
            field=key,
            hint="An agent cannot change its project, because its usage was charged there: use another agent name.",
        )


def all_rows(listing: Callable[..., tuple[list[T], int]]) -> Iterable[T]:
    """Yield every row of a listing, page by page."""
    offset = 0
    while rows := listing(limit=LIST_MAX, offset=offset)[0]:
        yield from rows
        offset += len(rows)


# --- scheduling ------------------------------------------------------------------------------------


def _scheduling_changes(api: KernelApi, fleet: Fleet) -> Iterator[PendingChange]:
    """The window of `fair_share` and the affinity wait. The window comes before projects, whose usage counts in it."""
    before_s, window_s = api.ledger.share_window(), fleet.scheduling.rolling_window_hours * 3600.0
    if before_s != window_s:
        fields = {"window_s": [before_s, window_s]}
        change = FleetChange(what="scheduling", name="rolling_window_hours", verb="changed", fields=fields)
        yield PendingChange(change, partial(api.ledger.set_share_window, window_s))
    before_s, wait_s = api.queue.affinity_wait(), float(fleet.scheduling.affinity_wait_s)
    if before_s != wait_s:
        fields = {"wait_s": [before_s, wait_s]}
        change = FleetChange(what="scheduling", name="affinity_wait_s", verb="changed", fields=fields)
        yield PendingChange(change, partial(api.queue.set_affinity_wait, wait_s))


# --- projects --------------------------------------------------------------------------------------


def _projects_changes(api: KernelApi, fleet: Fleet, known: dict[str, Project]) -> Iterator[PendingChange]:
    lines: dict[str, dict[str, BudgetLine]] = {}
    for line in api.ledger.budgets():
        lines.setdefault(line.owner, {})[line.dim] = line
    for name, table in fleet.projects.items():
        yield from _project_changes(api, fleet, name, table, known.get(name))
        yield from _budget_changes(api, fleet, name, table, lines.get(name, {}))
        yield from workspace_changes(api, fleet, name, table, exists=name in known)
    yield from _global_budget_changes(api, fleet, lines.get(ALL_PROJECTS, {}))
    for name, project in known.items():
        is_ours = project.metadata.get(FLEET_KEY) == fleet.title
        if is_ours and name not in fleet.projects and project.status == ProjectStatus.ACTIVE:
            change = FleetChange(what="project", name=name, verb="paused", note=NOT_IN_FILE)
            yield PendingChange(change, partial(api.projects.move, name, "pause", by=PAUSED_BY))


def _project_changes(
    api: KernelApi, fleet: Fleet, name: str, table: ProjectTable, known: Project | None
) -> Iterator[PendingChange]:
    wanted: dict[str, Any] = {"weight": table.weight_units, "max_concurrent": table.max_concurrent}
    metadata = {FLEET_KEY: fleet.title, **({} if table.cpu is None else {CPU_KEY: msgspec.to_builtins(table.cpu)})}
    if known is None:
        change = FleetChange(what="project", name=name, verb="created")
        create = partial(api.projects.create, name, **wanted, metadata=metadata)
        yield PendingChange(change, create)
        return
    kept = {key: value for key, value in known.metadata.items() if key != CPU_KEY}
    wanted["metadata"] = {**kept, **metadata}
    differs = {field: value for field, value in wanted.items() if getattr(known, field) != value}
    if differs:
        fields = {field: [getattr(known, field), value] for field, value in differs.items()}
        change = FleetChange(what="project", name=name, verb="changed", fields=fields)
        yield PendingChange(change, partial(api.projects.update, name, **differs))
    if known.status == ProjectStatus.PAUSED and known.paused_by == PAUSED_BY:
        change = FleetChange(what="project", name=name, verb="resumed")
        yield PendingChange(change, partial(api.projects.move, name, "resume", by=PAUSED_BY))


def _budget_changes(
    api: KernelApi,
    fleet: Fleet,
    owner: str,
    table: ProjectTable | SchedulingTable,
    known: dict[str, BudgetLine],
) -> Iterator[PendingChange]:
    level: Any = "global" if owner == ALL_PROJECTS else "project"
    settings: dict[str, Any] = {
        "window_s": fleet.scheduling.rolling_window_hours * 3600.0,
        "alerts": tuple(sorted(set(table.alerts))),
    }
    for dim, limit in table.budget.items():
        line, wanted = known.get(dim), {"limit": limit, **settings}
        differs = [field for field in wanted if line is None or getattr(line, field) != wanted[field]]
        if differs:
            fields = {} if line is None else {field: [getattr(line, field), wanted[field]] for field in differs}
            verb: Any = "created" if line is None else "changed"
            change = FleetChange(what="budget", name=f"{owner} {dim}", verb=verb, fields=fields)
            yield PendingChange(change, partial(api.ledger.set_budget, level, owner, dim, limit, **settings))
    for dim in known.keys() - table.budget.keys():
        change = FleetChange(what="budget", name=f"{owner} {dim}", verb="removed")
        yield PendingChange(change, partial(api.ledger.set_budget, level, owner, dim, None))


def _global_budget_changes(api: KernelApi, fleet: Fleet, known: dict[str, BudgetLine]) -> Iterator[PendingChange]:
    """The budgets of all projects together. A dimension that this fleet never set belongs to another caller."""
    table = fleet.scheduling
    ours = {*table.budget, *LastApplied.load(api, fleet).budget}
    yield from _budget_changes(api, fleet, ALL_PROJECTS, table, {dim: known[dim] for dim in known if dim in ours})


# --- named limits ----------------------------------------------------------------------------------


class LastApplied(msgspec.Struct):
    """The limits and global budgets that this fleet applied last; a note in the store.

    A limit's new numbers take effect at its next refill. Until then the store still shows the old ones, so the file is
    compared with this note.
    """

    limits: dict[str, dict[str, list[int]]] = {}  # by name and unit: budget and period in milliseconds
    budget: list[str] = []  # dimensions of the budget of all projects
    file: str = ""  # the fleet file, on the machine that applied it last
    prices: list[str] = []  # models with a price

    @staticmethod
    def load(api: KernelApi, fleet: Fleet) -> LastApplied:
        """Read the note of this fleet."""
        return read_note(api, f"fleet:{fleet.title}", LastApplied)

    def save(self, api: KernelApi, fleet: Fleet) -> None:
        """Write the note, if it differs from the stored one."""
        if self != read_note(api, f"fleet:{fleet.title}", LastApplied, reports=False):
            api.journal.remember(f"fleet:{fleet.title}", msgspec.to_builtins(self))


class _NamedLimits:
    """The named limits of a fleet: requests and tokens per period, as contexts bound to a name."""

    def __init__(self, api: KernelApi, fleet: Fleet) -> None:
        self._api, self._fleet = api, fleet
        self._last = LastApplied.load(api, fleet)
        self._wanted = {
            name: {unit: [each.budget, to_ms_up(each.period_s)] for unit, each in sorted(table.budgets.items())}
            for name, table in fleet.limits.items()
        }

    def changes(self) -> Iterator[PendingChange]:
        known = {(each.bound_id, str(each.unit)): each.context_id for each in self._existing()}
        for name, units in self._wanted.items():
            for unit, numbers in units.items():
                context_id = known.pop((name, unit), None)
                last = self._last.limits.get(name, {}).get(unit)
                if context_id is None:
                    change = FleetChange(what="limit", name=f"{name} {unit}", verb="created")
                    yield PendingChange(change, partial(self._create, name, unit, numbers))
                elif last != numbers:
                    before: list[int | None] = [*last] if last else [None, None]
                    fields = {
                        field: [old, new]
                        for field, old, new in zip(("budget", "period_ms"), before, numbers, strict=True)
                        if old != new
                    }
                    change = FleetChange(what="limit", name=f"{name} {unit}", verb="changed", fields=fields)
                    yield PendingChange(change, partial(self._adjust, context_id, name, unit, numbers))
        for (name, unit), context_id in known.items():
            if unit in self._last.limits.get(name, {}):  # created by this fleet
                change = FleetChange(what="limit", name=f"{name} {unit}", verb="removed")
                yield PendingChange(change, partial(self._api.contexts.revoke, context_id))

    def _create(self, name: str, unit: str, numbers: list[int]) -> None:
        self._api.contexts.create(
            bound_to="name", bound_id=name, budget=numbers[0], period_s=numbers[1] / 1000, unit=unit
        )
        self._save(name, unit, numbers)

    def _adjust(self, context_id: int, name: str, unit: str, numbers: list[int]) -> None:
        self._api.contexts.adjust(context_id, budget=numbers[0], period_s=numbers[1] / 1000)
        self._save(name, unit, numbers)

    def _save(self, name: str, unit: str, numbers: list[int]) -> None:
        last = LastApplied.load(self._api, self._fleet)
        last.limits.setdefault(name, {})[unit] = numbers
        last.save(self._api, self._fleet)

    def save_all(self) -> None:
        """After all changes: replace the note, without what the file no longer names."""
        fleet = self._fleet
        applied = LastApplied(self._wanted, sorted(fleet.scheduling.budget), fleet.path, sorted(fleet.prices))
        applied.save(self._api, self._fleet)

    def _existing(self) -> Iterator[SchedulingContext]:
        offset = 0
        while page := self._api.contexts.list(limit=LIST_MAX, offset=offset):
            named = [each for each in page if each.bound_to == "name" and each.project_id is None]
            yield from (each for each in named if each.state != ContextState.REVOKED)
            offset += len(page)


# --- agents ----------------------------------------------------------------------------------------


def _living_agents(api: KernelApi) -> Agents:
    """The living agents by project and name; the first one if several have the same (model/agent_names)."""
    known: Agents = {}
    for agent in all_rows(api.agents.list):
        if agent.state != AgentState.DEAD:
            known.setdefault((agent.project_id, agent.name), agent)
    return known


def _agents_changes(api: KernelApi, fleet: Fleet, known: Agents) -> Iterator[PendingChange]:
    wanted: dict[str, FileAgent] = {**fleet.triggered, **fleet.hook_agents}
    for name, table in wanted.items():
        agent = known.get((table.project, name))
        if agent is None:
            change = FleetChange(what="agent", name=name, verb="created")
            yield PendingChange(change, partial(_create_agent, api, fleet, name, table))
        else:
            yield from _agent_changes(api, fleet, table, agent)
            yield from _grant_changes(api, agent.pid, name, table)
    for (_, name), agent in known.items():
        is_ours = agent.metadata.get(FLEET_KEY) == fleet.title
        if is_ours and name not in wanted and agent.paused_by is None:
            change = FleetChange(what="agent", name=name, verb="paused", note=NOT_IN_FILE)
            yield PendingChange(change, partial(api.agents.pause, agent.pid, PAUSED_BY, NOT_IN_FILE))


def _worktree(fleet: Fleet, table: AgentTable) -> WorktreeSettings | None:
    """Return how the worktrees of an agent's runs are made; None if they need nothing of a supervisor."""
    project = fleet.projects.get(table.project or "")
    if table.workspace is None or project is None or not isinstance(project.workspaces, WorktreesTable):
        return None
    return project.workspaces.settings(table.project or "", fleet.resolve)


def _agent_fields(fleet: Fleet, table: FileAgent, metadata: dict[str, Any]) -> dict[str, Any]:
    written = table.settings(fleet.folder)
    if isinstance(table, AgentTable):
        written = msgspec.structs.replace(written, worktree=_worktree(fleet, table))
    settings = msgspec.json.decode(msgspec.json.encode(written))  # as the store returns it
    return {
        "priority": table.priority,
        "weight": table.weight_units,
        "intent": table.intent,
        "max_concurrent": table.max_concurrent,
        "metadata": {**metadata, **_own_metadata(table), FLEET_KEY: fleet.title, SETTINGS_KEY: settings},
    }


def _own_metadata(table: FileAgent) -> dict[str, Any]:
    return {} if isinstance(table, AgentTable) else table.metadata


def _create_agent(api: KernelApi, fleet: Fleet, name: str, table: FileAgent) -> None:
    fields = _agent_fields(fleet, table, {})
    runner = str(fields["metadata"][SETTINGS_KEY].get("runner", "callable"))
    pid = api.agents.create(name, runner, project_id=table.project, unique=True, **fields)
    for pending in _grant_changes(api, pid, name, table):
        pending.apply()


def _agent_changes(api: KernelApi, fleet: Fleet, table: FileAgent, agent: Agent) -> Iterator[PendingChange]:
    wanted = _agent_fields(fleet, table, agent.metadata)
    differs = {field: value for field, value in wanted.items() if getattr(agent, field) != value}
    if differs:
        fields = {field: [getattr(agent, field), value] for field, value in differs.items() if field != "metadata"}
        if "metadata" in differs:
            fields |= _compare(agent.metadata.get(SETTINGS_KEY) or {}, wanted["metadata"][SETTINGS_KEY])
            fields |= _document_change(agent.metadata, wanted["metadata"])
        if "env" in fields:
            fields["env"] = [hide_values(env) for env in fields["env"]]
        change = FleetChange(what="agent", name=agent.name, verb="changed", fields=fields)
        yield PendingChange(change, partial(api.agents.update, agent.pid, **differs))
    if agent.paused_by == PAUSED_BY:
        change = FleetChange(what="agent", name=agent.name, verb="resumed")
        yield PendingChange(change, partial(api.agents.resume, agent.pid, PAUSED_BY))


def _document_change(before: dict[str, Any], after: dict[str, Any]) -> dict[str, list[Any]]:
    known, wanted = before.get(DOCUMENT_KEY), after.get(DOCUMENT_KEY)
    return {} if known == wanted else {"graph": [document_text(known), document_text(wanted)]}


def _compare(before: dict[str, Any], after: dict[str, Any]) -> dict[str, list[Any]]:
    keys = sorted(before.keys() | after.keys())
    return {key: [before.get(key), after.get(key)] for key in keys if before.get(key) != after.get(key)}


def _grant_changes(api: KernelApi, pid: int, name: str, table: FileAgent) -> Iterator[PendingChange]:
    known = {line.dim: line for line in api.ledger.get(pid)}
    alerts = tuple(sorted(set(table.alerts))) if isinstance(table, AgentTable) else ALERTS
    for dim, granted in table.budget.items():
        label, line = f"{name} {dim}", known.get(dim)
        if line is None:
            change = FleetChange(what="grant", name=label, verb="created", fields={"granted": [None, granted]})
            yield PendingChange(change, partial(api.ledger.create, pid, {dim: granted}, alerts=alerts))
            continue
        wanted: dict[str, Any] = {"granted": granted, "alerts": alerts}
        fields = {key: [getattr(line, key), wanted[key]] for key in wanted if getattr(line, key) != wanted[key]}
        if fields:
            change = FleetChange(what="grant", name=label, verb="changed", fields=fields)
            yield PendingChange(change, partial(api.ledger.update_grant, pid, dim, granted, alerts=alerts))
    for dim in known.keys() - table.budget.keys():
        if known[dim].granted != UNLIMITED:
            change = FleetChange(what="grant", name=f"{name} {dim}", verb="removed")
            yield PendingChange(change, partial(api.ledger.update_grant, pid, dim, UNLIMITED))

"""What callers that are bound to projects read: the same pages and counts, of these projects only.

A page of all rows from which strangers' rows are taken out afterwards would be too short, or empty although more pages
follow, and its total would count what the caller may not see. So these filters are part of the statements. The
projects are given as a set; None in it stands for "no project", which is '' in the statements.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

import msgspec

from rota.errors import InvalidPayload, ProjectInvalid, SchedInvalidPayload
from rota.kernel.agent_reads import check_filter, check_pids
from rota.kernel.contexts import contexts_from_rows
from rota.kernel.entry_reads import (
    CountBy,
    EntryFilter,
    SearchResult,
    count_by_state,
    count_by_status,
    list_within,
    search_entries,
    search_patterns,
)
from rota.kernel.environment import KernelEnvironment
from rota.kernel.graph_run_rows import read_runs
from rota.kernel.journal import read_note
from rota.kernel.paging import LIST_MAX, page
from rota.kernel.rows import agent_from_row, project_from_row
from rota.kernel.running_entries import RunningPage, running_entries
from rota.kernel.usage import Usage
from rota.model.budgets import SchedulingContext
from rota.model.checks import ID_CHARS_MAX, Checks
from rota.model.graph_runs import GraphRunInfo
from rota.model.lifecycle import PROJECT
from rota.model.usage import UsageKey, UsageReport
from rota.model.work import Agent, Project, ReadyEntry
from rota.store import Transaction
from rota.store.statements import agents as agent_sql
from rota.store.statements import contexts as context_sql
from rota.store.statements import entry_lists as list_sql
from rota.store.statements import file as file_sql
from rota.store.statements import projects as project_sql
from rota.store.statements import queue as sql

__all__ = ["ProjectReads", "ProjectSet"]

ProjectSet: TypeAlias = frozenset[str | None]
_LIVE_STATES = ("READY", "RUNNING", "WAITING", "SUSPENDED")
_entry = Checks("Queue", SchedInvalidPayload)
_event = Checks("Event", InvalidPayload)
_agent = Checks("Agent", InvalidPayload)
_project = Checks("Project", ProjectInvalid)


class ProjectReads:
    """Each function takes the projects and then the arguments of the method that it stands for."""

    def __init__(self, env: KernelEnvironment) -> None:
        self._env = env

    # --- pages and counts ------------------------------------------------------------------------

    def entries(
        self, within: ProjectSet, *, limit: int = 100, offset: int = 0, after: int = 0, **wanted: Any
    ) -> tuple[list[ReadyEntry], int]:
        """Return a page of entries by id, those after an id, and the number of all matches."""
        given, window = EntryFilter(**wanted), page(limit, offset)
        _entry.whole("after", after, 0)
        names = _names(within, given.project_id)
        return self._env.read(lambda tx: list_within(tx, given, names, window, after))

    def running(
        self,
        within: ProjectSet,
        *,
        project_id: str | None = None,
        pid: int | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> RunningPage:
        """Return a page of the entries that run now, by id."""
        wanted, window = EntryFilter(status="running", pid=pid), page(limit, offset)
        names = _names(within, project_id)

        def work(tx: Transaction) -> RunningPage:
            entries, total = list_within(tx, wanted, names, window)
            return RunningPage(running_entries(tx, entries), total)

        return self._env.read(work)

    def search(self, within: ProjectSet, text: str, *, limit: int = 100, **wanted: Any) -> SearchResult:
        """Return the newest entries that hold a text."""
        given, patterns, count = EntryFilter(**wanted), search_patterns(text), page(limit, 0).limit
        row = given.row_within(_names(within, given.project_id))
        searched = list_sql.SEARCHED_WITHIN
        return self._env.read(lambda tx: search_entries(tx, given, row, patterns, count, searched=searched))

    def counts(self, within: ProjectSet, by: CountBy = "state") -> dict[str, int]:
        """Return the number of entries by status; or by state, and by hold for those that have one."""
        names = (_names(within),)
        if by == "status":
            return count_by_status(self._env.read(lambda tx: tx.run(list_sql.COUNT_BY_STATUS_WITHIN, names)))
        return count_by_state(self._env.read(lambda tx: tx.run(list_sql.COUNT_BY_STATE_WITHIN, names)))

    def agents(
        self,
        within: ProjectSet,
        *,
        state: str | None = None,
        project_id: str | None = None,
        parent_pid: int | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> tuple[list[Agent], int]:
        """Return a page of agents by pid, and the number of matches."""
        check_filter(state, project_id, parent_pid)
        names, at = _names(within, project_id), page(limit, offset)

        def work(tx: Transaction) -> tuple[list[Agent], int]:
            rows = tx.run(agent_sql.LIST_WITHIN, (names, state, parent_pid, at.limit, at.offset))
            counts: dict[str, int] = dict(tx.run(agent_sql.COUNT_BY_STATE_WITHIN, (names, parent_pid)))
            total = sum(counts.values()) if state is None else counts.get(state, 0)
            return [agent_from_row(row) for row in rows], total

        return self._env.read(work)

    def agent_names(self, within: ProjectSet, pids: Sequence[int]) -> dict[int, str]:
        """Return the names of those of the agents that are of the projects."""
        known = self.projects_of_agents(check_pids(pids))
        own = [pid for pid, project_id in known.items() if project_id in within]
        return dict(self._env.read(lambda tx: tx.run_for(agent_sql.NAMES_OF, own))) if own else {}

    def paused(self, within: ProjectSet, by: str, *, limit: int = LIST_MAX, prefix: bool = False) -> list[Agent]:
        """Return the agents paused by this name, or by names that begin with it, by pid."""
        _agent.text("by", by)
        chars = len(by) if _agent.flag("prefix", prefix) else ID_CHARS_MAX
        row = (_names(within), chars, by, page(limit, 0).limit)
        return [agent_from_row(each) for each in self._env.read(lambda tx: tx.run(agent_sql.PAUSED_WITHIN, row))]

    def projects(
        self, within: ProjectSet, *, status: str | None = None, limit: int = 100, offset: int = 0
    ) -> tuple[list[Project], int]:
        """Return a page of the projects by id, and their number. They are few: a token names them."""
        if status is not None:
            _project.one_of("status", status, PROJECT.states)
        at = page(limit, offset)
        ids = sorted(name for name in within if name is not None)
        rows = self._env.read(lambda tx: [row for name in ids for row in tx.run(project_sql.GET, (name,))])
        found = [project for project in map(project_from_row, rows) if status in (None, project.status)]
        return found[at.offset : at.offset + at.limit], len(found)

    def contexts(self, within: ProjectSet, *, limit: int = 100, offset: int = 0) -> list[SchedulingContext]:
        """Return a page of the contexts of the projects and of their agents, by id."""
        row = (_names(within), *page(limit, offset))
        rows = self._env.read(lambda tx: tx.run(context_sql.LIST_WITHIN, row))
        return contexts_from_rows(rows, self._env.now())

    def usage(
        self,
        within: ProjectSet,
        by: tuple[UsageKey, ...] = ("project",),
        since_at: float | None = None,
        until_at: float | None = None,
        *,
        project_id: str | None = None,
        agent: str | None = None,
    ) -> UsageReport:
        """Return what the agents of the projects have used."""
        _project.optional_text("project_id", project_id)
        projects = within if project_id is None else within & {project_id}
        return Usage(self._env).report_within(projects, by, since_at, until_at, agent=agent)

    def graph_runs(
        self,
        within: ProjectSet,
        *,
        status: str | None = None,
        graph: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> tuple[list[GraphRunInfo], int]:
        """Return a page of the graph runs of the projects, newest first, and their number."""
        return read_runs(self._env, status=status, graph=graph, limit=limit, offset=offset, within=_names(within))

    def note(self, within: ProjectSet, name: str, *, project_id: str | None = None) -> dict[str, Any] | None:
        """Return a note of one of the projects, or None. If there is only one, it need not be named.

        The notes without a project are the operator's.
        """
        _event.text("name", name)
        _event.optional_text("project_id", project_id)
        (wanted,) = within if project_id is None and len(within) == 1 else (project_id,)
        if wanted is None or wanted not in within:
            return None
        return self._env.read(lambda tx: read_note(tx, name, wanted))

    def info(self, within: ProjectSet) -> dict[str, Any]:
        """Return the number of agents, and of those in each state; what counts all projects is left out."""

        def work(tx: Transaction) -> dict[str, Any]:
            states: dict[str, int] = dict(tx.run(agent_sql.COUNT_BY_STATE_WITHIN, (_names(within), None)))
            return {
                "schema_version": int(tx.run(file_sql.META_GET, ("schema_version",))[0][0]),
                "agent_count": sum(states.values()),
                "live_states": {state: states.get(state, 0) for state in _LIVE_STATES},
            }

        return self._env.read(work)

    # --- whose it is -----------------------------------------------------------------------------

    def projects_of_agents(self, pids: Collection[int]) -> dict[int, str | None]:
        """Return the projects of agents; those that do not exist are left out."""
        return dict(self._env.read(lambda tx: tx.run_for(agent_sql.PROJECTS_OF, pids))) if pids else {}

    def projects_of_entries(self, sched_ids: Collection[int]) -> dict[int, str | None]:
        """Return the projects of entries; those that do not exist are left out."""
        return dict(self._env.read(lambda tx: tx.run_for(sql.PROJECTS_OF, sched_ids))) if sched_ids else {}


def _names(within: ProjectSet, only: str | None = None) -> str:
    """Return the projects as a parameter of a statement; with `only`, that one if it is among them."""
    names = within if only is None else within & {only}
    return msgspec.json.encode([name or "" for name in names]).decode()

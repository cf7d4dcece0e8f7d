"""Calls of callers that are bound to projects, and of runs with their own token.

The method's declaration says what such a caller may do (`service/api/declaration.py`); `authorize` has refused the
rest. Here its parameters are checked, then the function is called or one that reads its projects only, then a view
takes out of the result what is not the caller's. The id of another project's row is answered exactly like one that was
never used: with the same error, or the same empty result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rota.errors import Forbidden, RotaError, SchedInvalidPayload, SchedUnknownId, UnknownPid
from rota.kernel import EntryFilter, Kernel
from rota.kernel.contexts import unknown_context
from rota.kernel.enqueue import with_index
from rota.kernel.graph_run_rows import unknown_run
from rota.kernel.lookups import unknown_project
from rota.kernel.paging import READ_MAX
from rota.kernel.workspaces import unknown_workspace
from rota.model.budgets import SchedulingContext
from rota.rpc.authorization import Principal, RunIdentity, for_own_run
from rota.rpc.methods import Method
from rota.rpc.project_views import VIEWS, Sight, visible_events
from rota.rpc.results import EventsResult

__all__ = ["SCANNED_PARTS_MAX", "BoundCalls"]

SCANNED_PARTS_MAX = 40  # parts of the journal that one call reads in search of an event that its caller may see
PIDS_MAX = 100_000  # whose projects are kept in memory; at the limit they are forgotten

Projects = frozenset[str | None]
Arguments = Callable[[Method, Any], tuple[tuple[Any, ...], dict[str, Any]]]


class BoundCalls:
    """Executes authorized calls within the projects of their caller."""

    def __init__(self, kernel: Kernel, arguments: Arguments) -> None:
        self._kernel = kernel
        self._arguments = arguments  # of a method's function
        self._projects_of_agents: dict[int, str | None] = {}  # an agent's project never changes
        self._checks: dict[str, Callable[[Any, Projects], None]] = {
            "sched_id": self._check_entry,
            "pid": self._check_agent,
            "project_id": self._check_project,
            "workspace_id": self._check_workspace,
            "context_id": self._check_context,
            "handle": lambda handle, projects: self._check_context(handle.slot, projects),
            "spec": lambda spec, projects: self._check_specs([spec], projects),
            "specs": lambda specs, projects: self._check_specs(specs, projects, indexed=True),
            "wanted": self._check_filter,
            "run_id": self._check_graph_run,
        }

    def execute(self, method: Method, params: Any, principal: Principal, function: Callable[..., Any]) -> Any:
        """Execute a call and return its result as on the wire."""
        rule, projects = method.bound, principal.projects
        assert rule is not None  # noqa: S101  # it was authorized
        assert projects is not None  # noqa: S101  # else it is not bound
        if principal.run is not None:
            params = for_own_run(principal.run, method, params)
            if method.run == "own_or_child":
                self._check_own_or_child(params.sched_id, principal.run)
        for name in rule.owned:
            self._checks[name](params if method.takes_struct else getattr(params, name), projects)
        if rule.reads == "events":
            return self._read_events(params, projects)
        args, kwargs = self._arguments(method, params)
        if rule.reads:
            read = getattr(self._kernel.project_reads, rule.reads)
            return method.codec.pack(params, read(projects, *args, **kwargs))
        result = method.codec.pack(params, function(*args, **kwargs))
        return VIEWS[rule.view](result, self._sight(projects)) if rule.view else result

    # --- parameters ------------------------------------------------------------------------------

    def _check_entry(self, sched_id: int, projects: Projects) -> None:
        if self._kernel.queue.get(sched_id).project_id not in projects:
            raise SchedUnknownId(sched_id)

    def _check_own_or_child(self, sched_id: int, run: RunIdentity) -> None:
        """Check that an entry is a run's own, or its child; others of its project it can see, but not touch."""
        entry = self._kernel.queue.get(sched_id)
        if entry.project_id == run.project_id and run.sched_id not in (sched_id, entry.parent_id):
            text = f"entry {sched_id} is neither entry {run.sched_id} nor a child of it"
            raise Forbidden(text, hint="A run may cancel itself and what it has enqueued.")

    def _check_agent(self, pid: int, projects: Projects) -> None:
        if self._kernel.agents.get(pid).project_id not in projects:
            raise UnknownPid(pid)

    def _check_project(self, project_id: str, projects: Projects) -> None:
        if project_id not in projects:
            self._kernel.projects.get(project_id)  # raises, if it does not exist or cannot
            raise unknown_project(project_id)

    def _check_filter(self, wanted: EntryFilter, projects: Projects) -> None:
        if wanted.project_id is None:
            names = ", ".join(sorted(name for name in projects if name is not None))
            text = "the filter of a caller that is bound to projects must name one of them"
            raise SchedInvalidPayload(text, field="project_id", hint=f"Add --project with one of: {names}.")
        self._check_project(wanted.project_id, projects)

    def _check_workspace(self, workspace_id: str, projects: Projects) -> None:
        if self._kernel.projects.workspace(workspace_id).project_id not in projects:
            raise unknown_workspace(workspace_id)

    def _check_graph_run(self, run_id: str, projects: Projects) -> None:
        if self._kernel.graphs.get(run_id).project_id not in projects:
            raise unknown_run(run_id)

    def _check_context(self, context_id: int, projects: Projects) -> None:
        if not self._owns_context(self._kernel.contexts.get(context_id), projects):
            raise unknown_context(context_id)

    def _owns_context(self, context: SchedulingContext, projects: Projects) -> bool:
        if context.bound_to == "agent":
            return self._kernel.agents.get(int(context.bound_id)).project_id in projects
        if context.bound_to == "name":  # a limit without a project is the operator's, and counts what all have used
            return context.project_id is not None and context.project_id in projects
        return context.bound_to == "project" and context.bound_id in projects

    def _check_specs(self, specs: list[Any], projects: Projects, *, indexed: bool = False) -> None:
        """Check the agents; the kernel checks what else the entries refer to. No cache: this may be rolled back."""
        found = self._kernel.project_reads.projects_of_agents({spec.pid for spec in specs})
        for index, spec in enumerate(specs):
            if spec.pid not in found or found[spec.pid] not in projects:
                error: RotaError = UnknownPid(spec.pid)
                raise with_index(error, index) if indexed else error

    # --- results ---------------------------------------------------------------------------------

    def _sight(self, projects: Projects) -> Sight:
        return Sight(projects, self._of_agents, self._kernel.project_reads.projects_of_entries)

    def _of_agents(self, pids: Any) -> dict[int, str | None]:
        known = self._projects_of_agents
        if missing := [pid for pid in pids if pid not in known]:
            if len(known) + len(missing) > PIDS_MAX:
                known.clear()
            known.update(self._kernel.project_reads.projects_of_agents(missing))
        return {pid: known[pid] for pid in pids if pid in known}

    def _read_events(self, params: Any, projects: Projects) -> EventsResult:
        """Return the caller's events after a cursor, and the cursor behind all that were read for it.

        If the cursor moved and there are no events, more of the journal is left to read: the caller's next events may
        be behind many of others, and no call reads them all at once.
        """
        sight, cursor, count = self._sight(projects), params.since, max(params.limit, READ_MAX)
        for _ in range(SCANNED_PARTS_MAX):
            read = self._kernel.journal.tail(cursor, count, pid=params.pid, kinds=params.kinds)
            if not read:
                break
            cursor = read[-1].event_id
            if found := visible_events(read, sight):
                if len(found) > max(params.limit, 1):
                    cursor = found[max(params.limit, 1) - 1].event_id
                    found = [event for event in found if event.event_id <= cursor]
                return EventsResult(found, cursor)
        return EventsResult([], cursor)

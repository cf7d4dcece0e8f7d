"""Whether an entry may run, computed in the simplest way from the kernel's public methods, one entry at a time.

Nothing here shares code with the kernel's own admission. It is told which runs are under way (`live`), so it can
be asked what would be so if some more had just been handed out.
"""

from __future__ import annotations

from rota.kernel import ReadyEntry
from rota.model.budgets import SchedulingContext
from rota.model.work import ScheduleSpec
from tests.kernel_proof.stores import Built


def ask_of(spec: ScheduleSpec, dim: str, least: int) -> int:
    """What a run asks for: its ceiling, else what it expects, but at least so much."""
    return max(least, spec.ceiling.get(dim, spec.expected.get(dim, 0)))


def reserve_of(spec: ScheduleSpec, dim: str, least: int) -> int:
    """What is kept for a run: its ceiling, else what it expects; so much only if it says neither."""
    return spec.ceiling.get(dim, spec.expected.get(dim, least))


class Rules:
    """The rules, over a store as it stands."""

    def __init__(self, made: Built) -> None:
        self.made = made
        kernel = made.kernel
        self.now = made.clock.now()
        self.entries = {entry.sched_id: entry for entry in kernel.queue.list(limit=10_000)[0]}
        self.agents = {agent.pid: agent for agent in kernel.agents.list(limit=10_000)[0]}
        self.projects = {project.project_id: project for project in kernel.projects.list()[0]}
        self.workspaces = {name: kernel.projects.workspaces(name) for name in self.projects}
        self.budgets = kernel.ledger.budgets()
        self.contexts = kernel.contexts.list()
        self.taken: list[ReadyEntry] = []  # in this pass
        self.held = {
            workspace.workspace_id: [self._mode(sched_id) for sched_id in workspace.held_by]
            for workspaces in self.workspaces.values()
            for workspace in workspaces
        }

    @property
    def live(self) -> list[ReadyEntry]:
        return [entry for entry in self.entries.values() if entry.state == "dispatched"] + self.taken

    def spec(self, entry: ReadyEntry) -> ScheduleSpec:
        return self.made.specs[entry.sched_id]

    def in_strict_order(self) -> list[ReadyEntry]:
        return sorted(self.entries.values(), key=lambda one: (-one.priority, one.runnable_at, one.sched_id))

    def take(self, entry: ReadyEntry) -> None:
        """Count an entry as running from here on."""
        self.taken.append(entry)
        workspace = self._workspace_for(entry)
        if workspace is not None:
            self.held[workspace].append(self._mode(entry.sched_id))

    # --- the rules -------------------------------------------------------------------------------

    def blocked(self, entry: ReadyEntry) -> set[str]:
        """Return the code of every reason that blocks an entry."""
        found = {
            "past_deadline": entry.deadline is not None and entry.deadline <= self.now,
            "after_predecessor": entry.hold == "after",
            "not_yet_runnable": entry.runnable_at > self.now and entry.hold != "backoff",
            "backing_off": entry.runnable_at > self.now and entry.hold == "backoff",
        }
        if entry.state != "queued":
            found = {"not_queued": True}
        found["paused"] = self._is_paused(entry)
        found["cap_reached"] = self._is_capped(entry)
        found["over_budget"] = self._is_over_budget(entry)
        found["limit_exhausted"] = any(self._is_short(context, entry) for context in self._names_of(entry))
        found["context_depleted"] = any(self._is_short(context, entry) for context in self._authority_of(entry))
        found["workspace_taken"] = self._mode(entry.sched_id) is not None and self._workspace_for(entry) is None
        if entry.project_id is not None:
            project = self.projects[entry.project_id]
            found["project_inactive"] = project.status != "ACTIVE" and project.paused_by is None
        return {code for code, is_so in found.items() if is_so}

    def _is_paused(self, entry: ReadyEntry) -> bool:
        paused = [self.made.fleet_paused, self.agents[entry.pid].paused_by is not None]
        if entry.project_id is not None:
            project = self.projects[entry.project_id]
            paused += [project.paused_by is not None, project.constraint.pause_scheduling]
        return any(paused)

    def _is_capped(self, entry: ReadyEntry) -> bool:
        running = [(self.agents[entry.pid].max_concurrent, [one for one in self.live if one.pid == entry.pid])]
        if entry.project_id is not None:
            project = self.projects[entry.project_id]
            siblings = [one for one in self.live if one.project_id == entry.project_id]
            running.append((project.max_concurrent, siblings))
            running.append((1 if project.constraint.exclusive else None, siblings))
            of_kind = [one for one in siblings if one.kind == entry.kind and entry.kind is not None]
            running.append((project.constraint.max_by_kind.get(entry.kind or ""), of_kind))
        return any(cap is not None and len(runs) >= cap for cap, runs in running)

    # --- budgets ---------------------------------------------------------------------------------

    def _is_over_budget(self, entry: ReadyEntry) -> bool:
        spec = self.spec(entry)
        for line in self.made.kernel.ledger.get(entry.pid):
            mine = [one for one in self.live if one.pid == entry.pid]
            if line.used + self._reserved(mine, line.dim, 0) + ask_of(spec, line.dim, 0) > line.hard_limit:
                return True
        for budget in self.budgets:
            if budget.owner not in ("*", entry.project_id):
                continue
            runs = [one for one in self.live if budget.owner in ("*", one.project_id)]
            if budget.used + self._reserved(runs, budget.dim, 1) + ask_of(spec, budget.dim, 1) > budget.limit:
                return True
        return False

    def _reserved(self, runs: list[ReadyEntry], dim: str, least: int) -> int:
        """What runs asked for and have not used yet; a run that asked for nothing may use nothing."""
        return sum(max(0, reserve_of(self.spec(run), dim, least) - self._spent(run, dim)) for run in runs)

    def _spent(self, run: ReadyEntry, dim: str) -> int:
        spent = self.made.spent.get(run.sched_id)
        return spent[dim] if spent is not None else 0

    # --- contexts --------------------------------------------------------------------------------

    def _names_of(self, entry: ReadyEntry) -> list[SchedulingContext]:
        names = self.spec(entry).draws_on
        return [context for context in self.contexts if context.bound_to == "name" and context.bound_id in names]

    def _authority_of(self, entry: ReadyEntry) -> list[SchedulingContext]:
        """Return the one other context that pays: the agent's own, else its project's."""
        for bound_to, bound_id in (("agent", str(entry.pid)), ("project", entry.project_id)):
            found = [each for each in self.contexts if (each.bound_to, each.bound_id) == (bound_to, bound_id)]
            if found:
                return found
        return []

    def _is_short(self, context: SchedulingContext, entry: ReadyEntry) -> bool:
        available = context.budget - sum(refill.amount for refill in context.refills)
        if context.unit == "requests":  # used when a run begins, so those of earlier runs are used already
            ask, runs = 1, self.taken
            reserved = sum(self._draws(context, run) for run in runs)
        else:
            ask, runs = ask_of(self.spec(entry), "tokens", 1), self.live
            reserved = self._reserved([run for run in runs if self._draws(context, run)], "tokens", 1)
        return self._is_throttled(context) or available - reserved < min(ask, context.budget)

    def _draws(self, context: SchedulingContext, run: ReadyEntry) -> bool:
        return context in self._names_of(run) or context in self._authority_of(run)

    def _is_throttled(self, context: SchedulingContext) -> bool:
        return context.bound_to == "name" and context.bound_id == self.made.throttled

    # --- workspaces ------------------------------------------------------------------------------

    def _mode(self, sched_id: int) -> str | None:
        return self.made.specs[sched_id].workspace_mode

    def _workspace_for(self, entry: ReadyEntry) -> str | None:
        """The first it can use: empty for an exclusive run, without an exclusive holder for a shared one."""
        wanted = self.spec(entry).workspace
        for workspace in self.workspaces.get(entry.project_id or "", []):
            modes = self.held[workspace.workspace_id]
            fits = not modes or (self._mode(entry.sched_id) == "shared" and "exclusive" not in modes)
            if fits and wanted in (None, workspace.workspace_id) and self._mode(entry.sched_id) is not None:
                return workspace.workspace_id
        return None

"""Admission: gathers what decides whether an entry may run, and keeps count while a pass hands entries out.

The rules are in policy/eligibility; this file only fetches, from rows as they stand in the transaction and from the
roster, which knows who runs what. Within a pass each entry that is taken counts at once for those after it, so one
claim of a hundred cannot pass a cap of ten.

Most entries need no looking up at all: no project, no needs, and nobody has a ledger, a cap or a context. The
`Pulse`, one row read at the start of every pass, tells.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from rota.kernel import contexts, usage_windows
from rota.kernel.contexts import Ration
from rota.kernel.due_summary import Pulse
from rota.kernel.ledger import SHARED_DIM
from rota.kernel.occupancy import NO_CONSTRAINT, OwnerOnRoster, Roster
from rota.kernel.projects import holders
from rota.kernel.rows import (
    ATTEMPT,
    DEADLINE,
    KIND,
    NEEDS,
    PID,
    PROJECT,
    RUNNABLE_AT,
    Needs,
    needs_of,
    spent_of,
    state_and_hold,
)
from rota.model.reasons import Blocking
from rota.policy import replenishment
from rota.policy.eligibility import (
    AgentFacts,
    Allowed,
    EntryFacts,
    Facts,
    ProjectFacts,
    Rationed,
    WorkspaceFacts,
    blocking,
)
from rota.store import Row, Transaction
from rota.store.statements import projects as project_sql
from rota.store.statements import queue as queue_sql

__all__ = ["Admission", "Subject"]


class Subject(NamedTuple):
    """An entry as admission sees it."""

    sched_id: int
    pid: int
    project_id: str | None
    kind: str | None
    needs_text: str | None
    facts: EntryFacts

    @property
    def needs(self) -> Needs:
        """What it asks for besides its agent's leave."""
        return needs_of(self.needs_text)

    @classmethod
    def of(cls, row: Row) -> Subject:
        """The subject in a row of `statements.queue.ENTRY`, or of `READY_COLUMNS`."""
        state, hold = state_and_hold(row)
        facts = EntryFacts(
            state=state, hold=hold, runnable_at=row[RUNNABLE_AT], deadline=row[DEADLINE], attempt=row[ATTEMPT]
        )
        return cls(row[0], row[PID], row[PROJECT], row[KIND], row[NEEDS], facts)


class Admission:
    """Whether entries may run, asked of one transaction, with what this pass has already taken."""

    def __init__(self, tx: Transaction, now: float, beat: Pulse, *, budgets_count: bool = True) -> None:
        self._tx = tx
        self._now = now
        self._pulse = beat
        self._budgets_count = budgets_count
        self._roster = Roster(tx, beat)
        self._rations: dict[tuple[int, str | None], list[Ration]] = {}  # by pid and needs
        self._payers: dict[tuple[int, str | None], frozenset[int]] = {}  # contexts of live claims, by pid and needs
        self._drawn: defaultdict[int, int] = defaultdict(int)  # by context, what live claims asked for
        self._held: dict[str, dict[str, list[tuple[int, str, float]]]] = {}  # by project and workspace

    # --- asking ----------------------------------------------------------------------------------

    def first_reason(self, subject: Subject) -> Blocking | None:
        """What stands in the way of an entry, if anything does."""
        if self._is_clear(subject):
            return None
        return next(blocking(self.facts(subject)), None)

    def _is_clear(self, subject: Subject) -> bool:
        """Whether an entry without needs plainly may run: the rules of eligibility, for the usual case, in short.

        False says nothing. A test holds that this is never True where there is a reason.
        """
        if subject.needs_text is not None or subject.kind is not None or self._pulse.any_context:
            return False
        entry, now = subject.facts, self._now
        waits = entry.state != "queued" or entry.hold is not None or entry.runnable_at > now
        if waits or (entry.deadline is not None and entry.deadline <= now):
            return False
        agent = self._roster.agent(subject.pid)
        held_back = agent.paused_by is not None or (agent.cap is not None and agent.running >= agent.cap)
        if held_back or self._pulse.fleet_paused_by is not None:
            return False
        if self._budgets_count and any(used + agent.reserved[dim] > limit for dim, used, limit in agent.lines):
            return False
        owners = [subject.project_id] if subject.project_id is not None else []
        if self._pulse.any_global_budget:
            owners.append(usage_windows.EVERYBODY)
        return all(self._is_open(self._roster.owner(owner)) for owner in owners)

    def _is_open(self, owner: OwnerOnRoster) -> bool:
        """Whether a project, or everybody, plainly has room for one more run that asks for nothing."""
        if owner.status != "ACTIVE" or owner.paused_by is not None or owner.constraint != NO_CONSTRAINT:
            return False
        if owner.cap is not None and owner.running >= owner.cap:
            return False
        if not self._budgets_count:
            return True
        return all(used + owner.reserved[dim] < limit for dim, limit, used, _ in owner.budgets)

    def reasons(self, subject: Subject) -> list[Blocking]:
        """Everything that stands in the way of an entry."""
        return list(blocking(self.facts(subject)))

    def facts(self, subject: Subject) -> Facts:
        """All that decides about an entry."""
        needs = subject.needs
        agent = self._roster.agent(subject.pid)
        entry = subject.facts
        if entry.hold == "after":
            entry = msgspec.structs.replace(entry, waiting_for=self._waiting_for(subject.sched_id))
        return Facts(
            now=self._now,
            entry=entry,
            agent=AgentFacts(pid=agent.pid, paused_by=agent.paused_by, running=agent.running, max_concurrent=agent.cap),
            project=None if subject.project_id is None else self._project_facts(subject.project_id, subject.kind),
            fleet_paused_by=self._pulse.fleet_paused_by,
            budgets=self._budget_facts(subject, needs) if self._budgets_count else (),
            rations=self._ration_facts(subject, needs) if self._budgets_count and self._pulse.any_context else (),
            no_workspace=None if needs.mode is None else self._lack_of_workspace(subject, needs),
        )

    # --- taking ----------------------------------------------------------------------------------

    def take(self, subject: Subject) -> str | None:
        """Count an entry as running from here on; the answer is the workspace it is given."""
        needs = subject.needs
        self._roster.take(subject.pid, subject.project_id, subject.kind, needs)
        for ration in self._rations_for(subject, needs):
            self._drawn[ration.context_id] += _ask_of(ration, needs)
        if needs.mode is None or subject.project_id is None:
            return None
        workspace = self._free_workspace(subject.project_id, needs)
        if workspace is not None:
            held = self._holders(subject.project_id)
            held.setdefault(workspace, []).append((subject.sched_id, needs.mode, self._now))
        return workspace

    def requests_of(self, subject: Subject) -> list[Ration]:
        """The contexts in which beginning a run is itself a use."""
        if not self._pulse.any_context:
            return []
        return [ration for ration in self._rations_for(subject, subject.needs) if ration.unit == "requests"]

    def load_projects(self, project_ids: Iterable[str]) -> None:
        """Look up many projects at once."""
        self._roster.load_owners(project_id for project_id in project_ids if project_id)

    def prefetch(self, rows: Iterable[Row]) -> None:
        """Look up the owners of many entries at once."""
        self._roster.load_agents(row[PID] for row in rows)
        self._roster.load_owners(row[PROJECT] for row in rows if row[PROJECT] is not None)

    # --- projects --------------------------------------------------------------------------------

    def _project_facts(self, project_id: str, kind: str | None) -> ProjectFacts:
        owner = self._roster.owner(project_id)
        cap = owner.cap
        if owner.constraint.exclusive:
            cap = 1 if cap is None else min(cap, 1)
        return ProjectFacts(
            project_id=project_id,
            status=owner.status,
            paused_by=owner.paused_by,
            scheduling_paused=owner.constraint.pause_scheduling,
            running=owner.running,
            max_concurrent=cap,
            running_of_kind=owner.running_of[kind] if kind is not None else 0,
            max_of_kind=owner.constraint.max_by_kind.get(kind) if kind is not None else None,
        )

    # --- budgets ---------------------------------------------------------------------------------

    def _budget_facts(self, subject: Subject, needs: Needs) -> tuple[Allowed, ...]:
        agent = self._roster.agent(subject.pid)
        found = [
            Allowed(
                level="agent",
                owner=str(agent.pid),
                dim=dim,
                used=used,
                reserved=agent.reserved[dim],
                ask=needs.ask(dim, 0),
                limit=limit,
            )
            for dim, used, limit in agent.lines
        ]
        if subject.project_id is not None:
            found += self._owner_budgets(self._roster.owner(subject.project_id), needs)
        if self._pulse.any_global_budget:
            found += self._owner_budgets(self._roster.owner(usage_windows.EVERYBODY), needs)
        return tuple(sorted(found, key=_room)) if len(found) > 1 else tuple(found)

    def _owner_budgets(self, owner: OwnerOnRoster, needs: Needs) -> list[Allowed]:
        return [
            Allowed(
                level="global" if owner.project_id == usage_windows.EVERYBODY else "project",
                owner=owner.project_id,
                dim=dim,
                used=used,
                reserved=owner.reserved[dim],
                ask=max(1, needs.ask(dim, 1)),
                limit=limit,
                frees_at=frees_at,
            )
            for dim, limit, used, frees_at in owner.budgets
        ]

    # --- contexts --------------------------------------------------------------------------------

    def _rations_for(self, subject: Subject, needs: Needs) -> list[Ration]:
        if not self._pulse.any_context:
            return []
        key = subject.pid, subject.needs_text
        if key not in self._rations:
            found = contexts.rations_of(self._tx, needs, subject.pid, subject.project_id)
            self._rations[key] = found
            for ration in found:
                if ration.context_id not in self._drawn:
                    self._drawn[ration.context_id] = self._drawn_by_live(ration)
        return self._rations[key]

    def _drawn_by_live(self, ration: Ration) -> int:
        """What live claims may still use of a context. A request was used when its run began."""
        if ration.unit == "requests":
            return 0
        return sum(
            count * needs_of(needs_text).reserved(SHARED_DIM, 1, spent_of(spent_text))
            for pid, project_id, _, needs_text, spent_text, count in self._roster.live_claims()
            if ration.context_id in self._paid_by(pid, project_id, needs_text)
        )

    def _paid_by(self, pid: int, project_id: str | None, needs_text: str | None) -> frozenset[int]:
        """The contexts a live claim draws on: exactly one authority pays, as for an entry that asks."""
        key = pid, needs_text
        if key not in self._payers:
            found = contexts.rations_of(self._tx, needs_of(needs_text), pid, project_id)
            self._payers[key] = frozenset(ration.context_id for ration in found)
        return self._payers[key]

    def _ration_facts(self, subject: Subject, needs: Needs) -> tuple[Rationed, ...]:
        at_ms = contexts.in_ms(self._now)
        found = []
        for ration in self._rations_for(subject, needs):
            allowance = replenishment.refilled(ration.allowance, at_ms)
            ask = _ask_of(ration, needs)
            reserved = self._drawn[ration.context_id]
            covered_ms = replenishment.covered_at(allowance, min(ask + reserved, allowance.budget))
            found.append(
                Rationed(
                    context_id=ration.context_id,
                    name=ration.name,
                    available=replenishment.available(allowance, at_ms),
                    reserved=reserved,
                    ask=ask,
                    budget=allowance.budget,
                    covered_at=None if covered_ms is None else covered_ms / 1000,
                    throttled_until=ration.throttled_until,
                )
            )
        return tuple(found)

    # --- workspaces ------------------------------------------------------------------------------

    def _holders(self, project_id: str) -> dict[str, list[tuple[int, str, float]]]:
        if project_id not in self._held:
            self._held[project_id] = holders(self._tx, project_id)
        return self._held[project_id]

    def _workspaces(self, project_id: str, needs: Needs) -> list[str]:
        names = [row[0] for row in self._tx.run(project_sql.WORKSPACES_OF, (project_id,))]
        return names if needs.workspace is None else [name for name in names if name == needs.workspace]

    def _free_workspace(self, project_id: str, needs: Needs) -> str | None:
        """One it can use: an exclusive run needs it empty, a shared one only free of exclusive holders."""
        held = self._holders(project_id)
        for name in self._workspaces(project_id, needs):
            modes = {mode for _, mode, _ in held.get(name, [])}
            if not modes or (needs.mode == "shared" and modes == {"shared"}):
                return name
        return None

    def _lack_of_workspace(self, subject: Subject, needs: Needs) -> WorkspaceFacts | None:
        if subject.project_id is None:
            return WorkspaceFacts(workspace=needs.workspace)
        if self._free_workspace(subject.project_id, needs) is not None:
            return None
        held = self._holders(subject.project_id)
        claims = [claim for name in self._workspaces(subject.project_id, needs) for claim in held.get(name, [])]
        return WorkspaceFacts(
            workspace=needs.workspace,
            held_by=tuple(sorted(sched_id for sched_id, _, _ in claims)),
            since_at=min((since for _, _, since in claims), default=None),
        )

    # --- predecessors ----------------------------------------------------------------------------

    def _waiting_for(self, sched_id: int) -> tuple[int, ...]:
        rows = self._tx.run(queue_sql.PREDECESSORS, (sched_id,))
        return tuple(other for other, state, exit_kind in rows if (state, exit_kind) != ("completed", "completed"))


def _room(budget: Allowed) -> int:
    """What a budget leaves once an ask is granted: the least room is the strictest, and is named first."""
    return budget.limit - budget.used - budget.reserved - budget.ask


def _ask_of(ration: Ration, needs: Needs) -> int:
    return 1 if ration.unit == "requests" else max(1, needs.ask(SHARED_DIM, 1))

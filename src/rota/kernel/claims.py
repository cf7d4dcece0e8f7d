"""Handing out: a pass proposes, this file verifies, reserves and writes.

Whoever chooses the order (strict order here, a policy in the service) offers entries one by one. An offer is
checked against everything that could stand in its way, counting what the same pass has taken before, and is
either taken or refused with the reason; a refusal also says who else need not be offered any more. `seal` then
writes all that was taken: one fact, whose event id is the token of every claim in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import msgspec

from rota.kernel import contexts, flows
from rota.kernel.claim_checks import Admission, Subject
from rota.kernel.contexts import Ration
from rota.kernel.core import READ_MAX
from rota.kernel.due_summary import Pulse
from rota.kernel.flows import NO_PROJECT, Served
from rota.kernel.journal import append
from rota.kernel.rows import (
    ATTEMPT,
    DEADLINE,
    KIND,
    NEEDS,
    PID,
    PROJECT,
    READY_WIDTH,
    RUNNABLE_AT,
    entry_of,
    needs_of,
    size_of,
)
from rota.model import reasons
from rota.model.events import ClaimedEntry, EntriesClaimed
from rota.model.lifecycle import EntryState
from rota.model.reasons import Blocking
from rota.model.work import ReadyEntry, Worker
from rota.store import Row, Transaction
from rota.store.statements import claims as sql
from rota.store.statements import projects as project_sql

__all__ = ["CLAIM_BYTES_MAX", "CLAIM_MAX", "CLAIM_TIMEOUT_S", "ClaimPass", "Taken", "Terms"]

CLAIM_MAX = 1_000  # entries in one claim
CLAIM_BYTES_MAX = 16 * 1024 * 1024  # of payloads: a claim that has so much takes no more, or no answer could hold it
CLAIM_TIMEOUT_S = 3600.0  # where the caller names none

_encode = msgspec.json.Encoder().encode
_sched_id = itemgetter(-1)
_NONE = "[]"
_NOBODY = Served()
_DISPATCHED = str(EntryState.DISPATCHED)


class Terms(NamedTuple):
    """What a claim asks for."""

    worker: Worker
    most: int
    now: float
    timeout_s: float = CLAIM_TIMEOUT_S
    kinds: tuple[str, ...] = ()  # of slot
    budgets_count: bool = True


class Taken(NamedTuple):
    """An entry that a pass has taken."""

    row: Row
    workspace: str | None
    estimate: int
    because: str

    @property
    def pid(self) -> int:
        """Whose it is."""
        return self.row[PID]  # type: ignore[no-any-return]  # a row is untyped

    @property
    def project_id(self) -> str | None:
        """Who pays for it."""
        return self.row[PROJECT]  # type: ignore[no-any-return]  # a row is untyped


class ClaimPass:
    """One round of handing out, inside one transaction."""

    def __init__(self, tx: Transaction, terms: Terms, beat: Pulse) -> None:
        self.tx = tx
        self.terms = terms
        self._beat = beat
        self._checks: Admission | None = None  # made when there is something to look up
        self.taken: list[Taken] = []
        self.taken_of: dict[int, list[Taken]] = {}  # by agent, of those that were offered
        self.refused: dict[str, int] = {}  # how many, by reason
        self._odd: set[int | str] = set()  # agents and projects with something in front that this claim does not take
        self._bytes = 0  # of what was taken
        self.everybody_out = False  # a reason that concerns all
        self.pids: set[int] = set()  # owners that need not be offered any more
        self.projects: set[str] = set()
        self.needs: set[str] = set()  # what nobody can have now
        self.alike: set[str] = set()  # pid, kind and needs together

    @property
    def room(self) -> int:
        """How many more this claim can take."""
        return 0 if self.everybody_out or self._bytes >= CLAIM_BYTES_MAX else self.terms.most - len(self.taken)

    @property
    def is_full(self) -> bool:
        """Whether it has taken all that it can."""
        return len(self.taken) >= self.terms.most or self._bytes >= CLAIM_BYTES_MAX

    @property
    def _kinds_json(self) -> str:
        return _json(self.terms.kinds) if self.terms.kinds else _NONE

    @property
    def _admission(self) -> Admission:
        if self._checks is None:
            self._checks = Admission(self.tx, self.terms.now, self._beat, budgets_count=self.terms.budgets_count)
        return self._checks

    # --- offering --------------------------------------------------------------------------------

    def offer(self, row: Row, *, estimate: int = 0, because: str = "") -> Blocking | None:
        """Take an entry, or say what stands in its way."""
        if self._beat.is_plain and row[PROJECT] is None and row[NEEDS] is None:  # nothing but its own row decides
            self._take(Taken(row, None, estimate, because))
            return None
        subject = Subject.of(row)
        reason = self._admission.first_reason(subject)
        if reason is not None:
            code = type(reason).__name__
            self.refused[code] = self.refused.get(code, 0) + 1
            self._exclude(subject, reason)
            return reason
        self._take(Taken(row, self._admission.take(subject), estimate, because))
        return None

    def _take(self, taken: Taken) -> None:
        row = taken.row
        self.taken.append(taken)
        self.taken_of.setdefault(row[PID], []).append(taken)
        self._bytes += size_of(row)

    def _take_all(self, rows: list[Row]) -> None:
        """Take entries of which nothing but their own rows decides, while there is room."""
        for row in rows:
            if self._bytes >= CLAIM_BYTES_MAX:
                return
            self.taken.append(Taken(row, None, 0, ""))
            self._bytes += size_of(row)

    def reasons(self, row: Row) -> list[Blocking]:
        """Everything that stands in an entry's way."""
        return self._admission.reasons(Subject.of(row))

    def prefetch_projects(self, project_ids: Iterable[str]) -> None:
        """Look up many projects at once, before their entries are offered."""
        self._admission.load_projects(project_ids)

    def prefetch(self, rows: list[Row]) -> None:
        """Look up the owners of many entries at once, before they are offered."""
        if not self._beat.is_plain or any(row[PROJECT] is not None for row in rows):
            self._admission.prefetch(rows)

    def _exclude(self, subject: Subject, reason: Blocking) -> None:
        """Note who else would be refused for the same reason."""
        self.alike.add(f"{subject.pid}|{subject.kind or ''}|{subject.needs_text or ''}")
        self._odd.add(subject.project_id or NO_PROJECT)
        match reason:
            case reasons.PausedBy(level="fleet"):
                self.everybody_out = True
            case reasons.PausedBy(level="agent") | reasons.CapReached(level="agent"):
                self.pids.add(subject.pid)
            case reasons.OverBudget(level="agent", ask=0):
                self.pids.add(subject.pid)
            case reasons.OverBudget(level="global") if _nothing_left(reason):
                self.everybody_out = True
            case reasons.OverBudget(level="project") if _nothing_left(reason):
                self._exclude_project(subject)
            case reasons.ProjectInactive() | reasons.PausedBy(level="project") | reasons.CapReached(level="project"):
                self._exclude_project(subject)
            case reasons.LimitExhausted() if subject.needs_text is not None:
                self.needs.add(subject.needs_text)

    def _exclude_project(self, subject: Subject) -> None:
        if subject.project_id is not None:
            self.projects.add(subject.project_id)

    # --- finding ---------------------------------------------------------------------------------

    def strict(self) -> None:
        """Take what is first in strict order, and go on behind whatever is refused."""
        if self._beat.fleet_paused_by is not None:
            return
        if self._beat.any_capped:
            self.pids.update(row[0] for row in self.tx.run(sql.CAPPED_OUT))
        while (room := self.room) > 0:
            rows = self.ready(most=min(room, READ_MAX))
            refused = self._offer_all(rows)
            if not refused and len(rows) < READ_MAX:
                return

    def _offer_all(self, rows: list[Row]) -> bool:
        """Offer entries one after the other while there is room; the answer is whether any was refused."""
        if self._beat.is_plain and not any(row[PROJECT] is not None or row[NEEDS] is not None for row in rows):
            self._take_all(rows)
            return False
        self.prefetch(rows)
        refused = False
        for row in rows:
            if self._bytes >= CLAIM_BYTES_MAX:
                break
            refused = self.offer(row) is not None or refused
        return refused

    def blocked_agents(self) -> set[int]:
        """Agents that would be refused whatever they offer: paused, at their cap, or over their grant."""
        found: set[int] = set(self.pids)
        if self._beat.any_stopped:
            found.update(row[0] for row in self.tx.run(sql.STOPPED))
        if self._beat.any_capped:
            found.update(row[0] for row in self.tx.run(sql.CAPPED_OUT))
        if self._beat.any_ledger and self.terms.budgets_count:
            found.update(row[0] for row in self.tx.run(sql.BREACHED))
        return found

    def has_more(self, pid: int, but: int | None = None) -> bool:
        """Whether an agent has ready entries besides those taken, for this claim or only for others."""
        taken = len(self.taken_of.get(pid, ())) if but is None else but
        return bool(len(self.tx.run(sql.READY_IDS, (pid, taken + 1))) > taken)

    def ready(self, project_id: str | None = None, *, most: int | None = None) -> list[Row]:
        """The next entries in strict order, of everybody or of a project, that may yet be taken."""
        limit = self.room if most is None else most
        blocked = self._beat.any_stopped or self._beat.any_ledger or self.taken or self.alike or self.pids
        if project_id is None and not blocked:
            return self.tx.run(sql.READY, (self.terms.now, self._kinds_json, limit))
        sets = (self.pids, self.projects, self.needs, self.alike, [each.row[0] for each in self.taken])
        found = tuple(_json(each) if each else _NONE for each in sets)
        row = (self.terms.now, self._kinds_json, limit, self.terms.budgets_count, *found)
        if project_id is None:
            return self.tx.run(sql.READY_OPEN, row)
        return self.tx.run(sql.READY_OF_PROJECT, (*row, project_id or None))

    def nearest_deadlines(self, most: int) -> list[Row]:
        """The next entries by deadline that may yet be taken."""
        sets = (self.pids, self.projects, self.needs, self.alike, [each.row[0] for each in self.taken])
        found = tuple(_json(each) if each else _NONE for each in sets)
        row = (self.terms.now, self._kinds_json, most, self.terms.budgets_count, *found)
        return self.tx.run(sql.READY_BY_DEADLINE, row)

    def keep_order(self, by: Literal["agent", "project", "deadline"]) -> None:
        """See to it that entries can be found agent by agent, project by project, or by deadline."""
        made = {"agent": sql.INDEX_BY_AGENT, "project": sql.INDEX_BY_PROJECT, "deadline": sql.INDEX_BY_DEADLINE}
        self.tx.run(made[by])

    def heads_of(self, pid: int) -> tuple[Row | None, bool]:
        """An agent's next entry that may yet be taken, and whether it has more that is ready, for anybody."""
        taken = len(self.taken_of.get(pid, ()))
        if pid not in self._odd and not self.alike and not self.needs:  # nothing in front, so those taken stand first
            rows = self.tx.run(sql.HEADS_OF_AGENT, (pid, 2, taken))
            if not rows:
                return None, False
            if self._fits(rows[0]):
                return rows[0], len(rows) > 1
            self._odd.add(pid)
        rows = self.ready_of(pid, 1)
        return (rows[0], self.has_more(pid, taken + 1)) if rows else (None, self.has_more(pid, taken))

    def _fits(self, row: Row) -> bool:
        """Whether an entry that is not held is for this claim at this time."""
        now, kind, deadline = self.terms.now, row[KIND], row[DEADLINE]
        return (
            (kind is None or kind in self.terms.kinds)
            and row[RUNNABLE_AT] <= now
            and (deadline is None or deadline > now)
        )

    def ready_of(self, pid: int, most: int) -> list[Row]:
        """An agent's next entries in strict order that may yet be taken."""
        mine = [each.row[0] for each in self.taken_of.get(pid, ())]
        prefix = f"{pid}|"
        refused = {each.removeprefix(prefix) for each in self.alike if each.startswith(prefix)}
        sets = tuple(_json(each) if each else _NONE for each in (refused, mine, self.needs))
        return self.tx.run(sql.READY_OF_AGENT, (self.terms.now, self._kinds_json, most, pid, *sets))

    def heads_in(self, project_id: str, most: int, offered: int) -> list[Row]:
        """The next entries of a project, or of none, that may yet be taken, when so many have been offered."""
        if project_id not in self._odd:  # nothing in front is for others, so those that were offered stand first
            rows = self.tx.run(sql.HEADS_OF_PROJECT, (project_id or None, most, offered))
            if all(self.is_for(row) for row in rows):
                return rows
            self._odd.add(project_id)
        return self.ready(project_id, most=most)

    def first_of_each_project(self) -> list[tuple[str, int, Row]]:
        """Every project with entries that are not held, with its weight and the first of them."""
        return [(row[-2], row[-1], row[:-2]) for row in self.tx.run(sql.FIRST_OF_PROJECTS)]

    def is_for(self, row: Row) -> bool:
        """Whether an entry that is not held may yet be taken by this claim, as far as this pass knows."""
        return self._fits(row) and row[PID] not in self.pids

    def leave_out_blocked(self) -> None:
        """Have nothing offered of agents that would be refused whatever it is."""
        self.pids |= self.blocked_agents()

    # --- writing ---------------------------------------------------------------------------------

    def seal(
        self,
        *,
        policy: str = "strict",
        served: Served = _NOBODY,
        forced_by: str | None = None,
    ) -> list[ReadyEntry]:
        """Write down all that was taken."""
        if not self.taken:
            return []
        terms, worker = self.terms, self.terms.worker
        fact = EntriesClaimed(
            worker_id=worker.worker_id,
            incarnation=worker.incarnation,
            entries=[_claimed(each) for each in self.taken],
            policy=policy,
            because=[each.because for each in self.taken if each.because],
            flows=list(served.moves),
            contexts=self._use_requests() if self._beat.any_context else {},
            forced_by=forced_by,
            admission_skipped=not terms.budgets_count,
        )
        token = append(self.tx, fact, now=terms.now)
        expires_at = terms.now + terms.timeout_s
        head = (worker.worker_id, worker.incarnation, terms.now, terms.now, terms.timeout_s, expires_at, token)
        # by id, one by one: neighbours share pages, and an UPDATE of many rows at once would have to find each twice
        rows = [(*head, each.workspace, each.estimate, each.row[0]) for each in self.taken]
        if len(rows) == 1:
            self.tx.run(sql.CLAIM, rows[0])
        else:
            self.tx.run_many(sql.CLAIM, sorted(rows, key=_sched_id))
        held = [(token, each.workspace) for each in self.taken if each.workspace is not None]
        if held:
            self.tx.run_many(project_sql.WORKSPACE_FENCE, held)
        if served.moves:
            flows.save(self.tx, served.moves, event_id=token, served_at=terms.now)
        if served.agents:
            flows.serve(self.tx, served.agents, event_id=token, served_at=terms.now)
        # as in statements.queue.ENTRY, from state on
        tail = (_DISPATCHED, worker.worker_id, terms.now, None, None, None, token, expires_at, 0)
        return [_dispatched(each, tail) for each in self.taken]

    def _use_requests(self) -> dict[str, int]:
        """A request is used when its run begins."""
        used: dict[int, tuple[Ration, int]] = {}
        for each in self.taken:
            for ration in self._admission.requests_of(Subject.of(each.row)):
                used[ration.context_id] = ration, used.get(ration.context_id, (ration, 0))[1] + 1
        moved: dict[str, int] = {}
        for ration, count in used.values():
            moved |= contexts.charge(self.tx, [ration], {"requests": count}, self.terms.now)
        return moved


def _nothing_left(reason: reasons.OverBudget) -> bool:
    """Whether not even the smallest ask would fit."""
    return reason.used + reason.reserved >= reason.limit


def _claimed(each: Taken) -> ClaimedEntry:
    row = each.row
    if row[NEEDS] is None:
        return ClaimedEntry(row[0], row[PID], row[ATTEMPT] + 1)
    needs = needs_of(row[NEEDS])
    return ClaimedEntry(
        row[0], row[PID], row[ATTEMPT] + 1, {dim: needs.ask(dim, 0) for dim in needs.dims}, each.workspace
    )


def _dispatched(each: Taken, tail: tuple[Any, ...]) -> ReadyEntry:
    """The entry as the worker gets it, without reading it again."""
    row = each.row
    return entry_of((*row[:ATTEMPT], row[ATTEMPT] + 1, *row[ATTEMPT + 1 : READY_WIDTH], *tail, each.workspace))


def _json(values: Iterable[int | str]) -> str:
    return _encode(list(values)).decode()

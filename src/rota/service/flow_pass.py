"""Passes of the policies that share by virtual time: walk the flows, projects first, then agents in them.

Each project's agents compete on a level of their own, and the projects on one above (see policy/level). A pick
goes down: the project that is due, its agent that is due, that agent's first ready entry by index. What the entry
is expected to use is charged to both, and where they stand is written with the claim. So a pick costs the same
with ten agents and with ten thousand, and spreading oneself over many agents gains nothing.

An agent whose entries are refused steps aside for the rest of the pass. It was not ready, so it comes back like
anybody else who was not: with its debt, without credit.
"""

from __future__ import annotations

from itertools import islice

from rota.kernel.claims import ClaimPass
from rota.kernel.flows import Served
from rota.kernel.ledger import SHARED_DIM
from rota.kernel.rows import NEEDS, needs_of
from rota.model.events import FlowMove
from rota.model.snapshot import Account, Key
from rota.policy.level import Level
from rota.policy.virtual_time import charged
from rota.service.policy_guard import Leash
from rota.service.ready_owners import Group, Moved, Owner, Roster
from rota.store import Row, Transaction
from rota.store.statements import flows as flow_sql

__all__ = ["PROJECTS_MAX", "FlowWalk", "expected_cost"]

PROJECTS_MAX = 1_000  # looked up at once, at the start of a pass


def expected_cost(row: Row) -> int:
    """What an entry's run is expected to use of what is shared; 1 where nothing is said."""
    if row[NEEDS] is None:
        return 1
    needs = needs_of(row[NEEDS])
    return max(1, needs.expected.get(SHARED_DIM, needs.ceiling.get(SHARED_DIM, 1)))


class FlowWalk:
    """The flows of everybody who may have ready entries, and passes over them."""

    def __init__(self, *, eligibility: bool) -> None:
        self._eligibility = eligibility
        self.forget()

    def forget(self) -> None:
        """What was read did not become durable: read it again next time."""
        self._begun = False
        self._looked = False  # at who competed before this memory began
        self._unsaved: dict[int, tuple[str, int]] = {}  # agents that joined elsewhere than their rows say
        self._unsaved_groups: dict[str, int] = {}
        self._in_line: dict[int, str | None] = {}  # who began to compete, with its project, or (None) ceased to
        self._roster = Roster()
        self._root = Level(eligibility=self._eligibility)
        self._levels: dict[str, Level] = {}  # by project

    def twin(self, _: Leash) -> FlowWalk:
        """The same memory once more."""
        made = FlowWalk(eligibility=self._eligibility)
        made._begun, made._looked = self._begun, self._looked
        made._unsaved, made._unsaved_groups = self._unsaved.copy(), self._unsaved_groups.copy()
        made._in_line = self._in_line.copy()
        made._roster, made._root = self._roster.twin(), self._root.twin()
        made._levels = {project_id: level.twin() for project_id, level in self._levels.items()}
        return made

    def propose(self, claim: ClaimPass) -> Served:
        """Take what is due, one by one; the answer is where the flows stand after it."""
        claim.tx.notes.undone.append(self.forget)
        if not self._begun:
            claim.keep_order("agent")
            self._begun = True
        self._sync(claim)
        turn = _Turn(claim.blocked_agents())
        claim.prefetch_projects(islice(self._levels, PROJECTS_MAX))
        while claim.room > 0 and len(self._root):
            group = self._root.pick()
            assert isinstance(group, str)  # noqa: S101  # projects are named
            self._serve(claim, group, turn)
        moves = self._moves(turn)
        self._let_back_in(turn)
        if claim.taken:
            self._write_line(claim.tx)
        return Served(moves)

    def wrote(self, stamp: int) -> None:
        """The moves of a pass were written with this stamp."""
        self._roster.wrote(stamp)
        self._unsaved.clear()
        self._unsaved_groups.clear()

    # --- who competes ----------------------------------------------------------------------------

    def _sync(self, claim: ClaimPass) -> None:
        owners, groups = self._roster.sync(claim.tx)
        for group in groups:
            if group.now.project_id in self._root:
                _follow(self._root, group.now.project_id, group)
        fresh: dict[str, dict[int, Owner]] = {}  # by project and pid
        for owner in owners:
            if owner.now.pid in self._level(owner.now.project_id):
                _follow(self._levels[owner.now.project_id], owner.now.pid, owner)
            else:
                fresh.setdefault(owner.now.project_id, {})[owner.now.pid] = owner.now
        self._take_up(fresh)
        self._let_in(fresh)

    def _take_up(self, fresh: dict[str, dict[int, Owner]]) -> None:
        """Whoever competed when somebody last looked stands where its row says, be that debt or credit."""
        for project_id, members in fresh.items():
            known = [member for member in members.values() if member.in_line]
            if known and not self._looked:
                self._levels[project_id].add_all([(member.pid, _account(member)) for member in known], as_told=True)
                self._enter(project_id, as_told=True)
        self._looked = True

    def _let_in(self, fresh: dict[str, dict[int, Owner]]) -> None:
        """Everybody else comes by the joining rule; that they compete, and where, is written with the next claim."""
        for project_id, members in fresh.items():
            level = self._levels[project_id]
            joining = [member for member in members.values() if member.pid not in level]
            if joining:
                level.add_all([(member.pid, _account(member)) for member in joining])
                self._enter(project_id)
            for member in joining:
                self._in_line[member.pid] = project_id
                if level.stands_at(member.pid) != member.virtual_time:
                    self._unsaved[member.pid] = project_id, level.stands_at(member.pid)

    def _join(self, owner: Owner) -> None:
        self._level(owner.project_id).add(owner.pid, _account(owner))
        self._enter(owner.project_id)

    def _enter(self, group: str, *, as_told: bool = False) -> None:
        """A project with agents that compete competes itself."""
        if group not in self._root:
            known = self._roster.groups.get(group) or Group(group)
            self._root.add(group, _account(known), as_told=as_told)
            if self._root.stands_at(group) != known.virtual_time:
                self._unsaved_groups[group] = self._root.stands_at(group)

    def _level(self, group: str) -> Level:
        if group not in self._levels:
            known = self._roster.groups.get(group)
            self._levels[group] = Level(eligibility=self._eligibility, clock=known.clock if known else 0)
        return self._levels[group]

    # --- one turn --------------------------------------------------------------------------------

    def _serve(self, claim: ClaimPass, group: str, turn: _Turn) -> None:
        """Give the agent that is due in a project its turn, or let it step aside."""
        level = self._levels[group]
        pid = level.pick()
        assert isinstance(pid, int)  # noqa: S101  # agents are numbered
        cost, more = (0, True) if pid in turn.blocked else self._take(claim, pid, group)
        if cost:
            turn.stands[pid] = group, charged(level.stands_at(pid), cost, level.weight_of(pid))
            self._root.charge(group, cost)
            turn.groups[group] = self._root.stands_at(group)
        if cost and more and group not in claim.projects:
            level.charge(pid, cost)
            return
        level.retire(pid, cost)
        (turn.aside if more else turn.empty).append(pid)
        if not len(level):
            self._root.remove(group)
        elif group in claim.projects:
            self._step_aside(group, turn)

    def _take(self, claim: ClaimPass, pid: int, group: str) -> tuple[int, bool]:
        """Take an agent's first entry that may run: its cost (0 if none) and whether it has more that is ready."""
        while not (pid in claim.pids or group in claim.projects or claim.everybody_out):
            row, more = claim.heads_of(pid)
            if row is None:
                return 0, more
            cost = expected_cost(row)
            if claim.offer(row, estimate=cost, because=f"project {group or '–'} and agent {pid} are due") is None:
                return cost, more
        return 0, True

    def _step_aside(self, group: str, turn: _Turn) -> None:
        """A whole project is refused: its agents sit out the rest of the pass together."""
        self._root.remove(group)
        turn.out.append(group)

    # --- afterwards ------------------------------------------------------------------------------

    def _moves(self, turn: _Turn) -> list[FlowMove]:
        stands = {**self._unsaved, **turn.stands}
        groups = {**self._unsaved_groups, **turn.groups}
        moves = [FlowMove("agent", str(pid), time, 0, group) for pid, (group, time) in stands.items()]
        return moves + [
            FlowMove("project", group, time, self._levels[group].time.whole) for group, time in groups.items()
        ]

    def _write_line(self, tx: Transaction) -> None:
        """Write down who competes and who does not any more: with a claim, since one in vain leaves no trace."""
        entered = [(pid, project_id, 0) for pid, project_id in self._in_line.items() if project_id is not None]
        left = [(pid,) for pid, project_id in self._in_line.items() if project_id is None]
        if entered:
            tx.run_many(flow_sql.AGENT_IN_LINE, entered)
        if left:
            tx.run_many(flow_sql.AGENT_OUT, left)
        self._in_line.clear()

    def _let_back_in(self, turn: _Turn) -> None:
        """Who only stepped aside competes again in the next pass."""
        for group, virtual_time in {**self._unsaved_groups, **turn.groups}.items():
            known = self._roster.groups.get(group) or Group(group)
            self._roster.groups[group] = known._replace(virtual_time=virtual_time, clock=self._levels[group].time.whole)
        for pid, (_, virtual_time) in {**self._unsaved, **turn.stands}.items():
            self._roster.owners[pid] = self._roster.owners[pid]._replace(virtual_time=virtual_time)
        for pid in turn.empty:
            self._roster.drop(pid)
            self._unsaved.pop(pid, None)
            self._in_line[pid] = None
        for pid in turn.aside:
            owner = self._roster.owners.get(pid)
            if owner is not None:
                self._join(owner)
        for group in turn.out:
            if len(self._levels[group]) and group not in self._root:
                self._root.add(group, _account(self._roster.groups.get(group) or Group(group)))


class _Turn:
    """What happened in one pass."""

    __slots__ = ("aside", "blocked", "empty", "groups", "out", "stands")

    def __init__(self, blocked: set[int]) -> None:
        self.blocked = blocked
        self.stands: dict[int, tuple[str, int]] = {}  # agents that were served: their project, where they stand
        self.groups: dict[str, int] = {}  # projects that were served, and where they stand
        self.aside: list[int] = []  # agents that left and have more
        self.empty: list[int] = []  # agents that left and have nothing ready
        self.out: list[str] = []  # projects that left whole


def _follow(level: Level, key: Key, moved: Moved[Owner] | Moved[Group]) -> None:
    """Let one who competes move by as much as its row did: a run settled, or its weight was changed.

    By as much, not to where the row says: it may have joined at a later time than its row knows.
    """
    by = 0 if moved.before is None else moved.now.virtual_time - moved.before.virtual_time
    if moved.now.weight != level.weight_of(key):
        level.reweigh(key, moved.now.weight)
    if by:
        account = Account(weight=moved.now.weight, virtual_time=level.stands_at(key) + by)
        level.tell(key, account)


def _account(who: Owner | Group) -> Account:
    return Account(weight=who.weight, virtual_time=who.virtual_time)

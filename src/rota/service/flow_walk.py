"""Passes of the policies that share by virtual time: walk the flows, projects first, then agents in them.

Each project's agents compete on a level of their own, and the projects on one above (see policy/level). A pick
goes down: the project that is due, its agent that is due, that agent's first ready entry by index. What the entry
is expected to use is charged to both, and where they stand is written with the claim. So a pick costs the same
with ten agents and with ten thousand, and spreading oneself over many agents gains nothing.

An agent whose entries are refused steps aside for the rest of the pass. It was not ready, so it comes back like
anybody else who was not: with its debt, without credit.
"""

from __future__ import annotations

from rota.kernel.claims import ClaimPass
from rota.kernel.ledger import SHARED_DIM
from rota.kernel.rows import needs_of
from rota.model.events import FlowMove
from rota.model.snapshot import Account, Key
from rota.policy.level import Level
from rota.service.roster import Group, Moved, Owner, Roster
from rota.store import Row

__all__ = ["HEADS_MAX", "FlowWalk", "expected_cost"]

HEADS_MAX = 8  # of an agent's entries that are tried in one turn, if the ones before are refused


def expected_cost(row: Row) -> int:
    """What an entry's run is expected to use of what is shared; 1 where nothing is said."""
    needs = needs_of(row[25])
    return max(1, needs.expected.get(SHARED_DIM, needs.ceiling.get(SHARED_DIM, 1)))


class FlowWalk:
    """The flows of everybody who may have ready entries, and passes over them."""

    def __init__(self, *, eligibility: bool) -> None:
        self._eligibility = eligibility
        self.forget()

    def forget(self) -> None:
        """What was read did not become durable: read it again next time."""
        self._roster = Roster()
        self._root = Level(eligibility=self._eligibility)
        self._levels: dict[str, Level] = {}  # by project

    def propose(self, claim: ClaimPass) -> list[FlowMove]:
        """Take what is due, one by one; the answer is where the flows stand after it."""
        claim.tx.notes.undone.append(self.forget)
        self._sync(claim)
        turn = _Turn(claim.blocked_agents())
        while claim.room > 0 and len(self._root):
            group = self._root.pick()
            assert isinstance(group, str)  # noqa: S101  # projects are named
            self._serve(claim, group, turn)
        moves = self._moves(turn)
        self._let_back_in(turn)
        return moves

    def wrote(self, stamp: int) -> None:
        """The moves of a pass were written with this stamp."""
        self._roster.wrote(stamp)

    # --- who competes ----------------------------------------------------------------------------

    def _sync(self, claim: ClaimPass) -> None:
        owners, groups = self._roster.sync(claim.tx)
        for group in groups:
            if group.now.project_id in self._root:
                _follow(self._root, group.now.project_id, group)
        for owner in owners:
            level = self._level(owner.now.project_id)
            if owner.now.pid in level:
                _follow(level, owner.now.pid, owner)
            else:
                self._join(owner.now)

    def _join(self, owner: Owner) -> None:
        level = self._level(owner.project_id)
        level.add(owner.pid, _account(owner))
        if owner.project_id not in self._root:
            self._root.add(
                owner.project_id, _account(self._roster.groups.get(owner.project_id) or Group(owner.project_id))
            )

    def _leave(self, pid: int, group: str) -> None:
        level = self._levels[group]
        level.remove(pid)
        if not len(level):
            self._root.remove(group)

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
            level.charge(pid, cost)
            self._root.charge(group, cost)
            turn.stands[pid] = group, level.stands_at(pid)
            turn.groups[group] = self._root.stands_at(group)
        if group in claim.projects:
            self._step_aside(group, turn)
        elif not cost or not more:
            turn.aside.append(pid)
            self._leave(pid, group)
            if not more:
                turn.empty.add(pid)

    def _take(self, claim: ClaimPass, pid: int, group: str) -> tuple[int, bool]:
        """Take an agent's first entry that may run: its cost (0 if none) and whether it has more that is ready."""
        for _ in range(HEADS_MAX):
            rows = claim.ready_of(pid, 2)
            if not rows:
                return 0, claim.has_more(pid)
            cost = expected_cost(rows[0])
            because = f"project {group or '–'} and agent {pid} are due"
            if claim.offer(rows[0], estimate=cost, because=because) is None:
                return cost, len(rows) > 1 or claim.has_more(pid)
            if pid in claim.pids or group in claim.projects or claim.everybody_out:
                return 0, True
        return 0, True

    def _step_aside(self, group: str, turn: _Turn) -> None:
        """A whole project is refused: its agents sit out the rest of the pass together."""
        self._root.remove(group)
        turn.out.append(group)

    # --- afterwards ------------------------------------------------------------------------------

    def _moves(self, turn: _Turn) -> list[FlowMove]:
        moves = [
            FlowMove("agent", str(pid), virtual_time, 0, group) for pid, (group, virtual_time) in turn.stands.items()
        ]
        for group, virtual_time in turn.groups.items():
            moves.append(FlowMove("project", group, virtual_time, self._levels[group].time.whole))
        return moves

    def _let_back_in(self, turn: _Turn) -> None:
        """Who only stepped aside competes again in the next pass."""
        for group, virtual_time in turn.groups.items():
            known = self._roster.groups.get(group) or Group(group)
            self._roster.groups[group] = known._replace(virtual_time=virtual_time, clock=self._levels[group].time.whole)
        for pid, (_, virtual_time) in turn.stands.items():
            self._roster.owners[pid] = self._roster.owners[pid]._replace(virtual_time=virtual_time)
        for pid in turn.empty:
            self._roster.drop(pid)
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
        self.aside: list[int] = []  # agents that left
        self.empty: set[int] = set()  # of those, who has nothing ready
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

"""A pass for policies that share by virtual time: it goes down the flows, first projects, then the agents in them.

The agents of each project compete on a level of their own, and the projects on a level above (see policy/level.py). A
pick goes down: the project that is due, its agent that is due, the first ready entry of that agent by index. The
expected cost of the entry is charged to both, and their virtual times are written with the claim. So a pick costs the
same with ten agents and with ten thousand, and splitting work over many agents does not increase the share.

With `priority_first` the agents of a project are in bands by the priority of their first entries (see
policy/priority_level.py). The first priorities of agents with new entries are read at the start of a pass, all in one
statement. An agent whose next entry has a lower priority than its band is moved when it is picked.

An agent whose entries are refused is left out for the rest of the pass. It returns like any agent that was not ready:
with its debt, without credit. A project whose entries need another kind of slot than this worker has is ready: other
workers serve it. It keeps its credit, up to `CREDIT_RUNS_MAX` of the largest runs, or workers with nothing for it would
wipe out, whenever they look for work, what it is owed where it can run. Why there is a maximum: perhaps no worker has
slots of that kind.
"""

from __future__ import annotations

from msgspec.structs import replace

from rota.kernel.claim_pass import ClaimPass
from rota.kernel.flows import ServedFlows, expected_cost, mark_competing
from rota.kernel.ready_owners import FlowChange, ProjectFlow, ReadyAgent, ReadyOwners, first_priorities
from rota.kernel.rows import PRIORITY
from rota.model.events import FlowMove
from rota.model.snapshot import Account, Key
from rota.policy.level import Level
from rota.policy.priority_level import PriorityLevel
from rota.policy.virtual_time import SCALE, charged
from rota.service.policy_guard import PolicyGuard
from rota.store import Transaction

__all__ = ["FlowPass"]


AHEAD_MAX = 16  # entries of an agent that are read together
CREDIT_RUNS_MAX = 64  # of the largest runs so far: the credit of a project while only other workers can serve it
_OTHER_BAND = -1  # instead of a cost: nothing was claimed, and the agent competes in another band


class FlowPass:
    """Claims entries by virtual time. It keeps the flows in memory between passes."""

    def __init__(self, *, eligibility: bool, priority_first: bool = False) -> None:
        self._eligibility = eligibility
        self._priority_first = priority_first
        self.forget()

    def forget(self) -> None:
        """Forget everything, after a rollback: the next pass reads it again."""
        self._has_index = False
        self._restored = False  # the agents that competed before this process started
        self._unsaved: dict[int, tuple[str, int]] = {}  # agents whose virtual time differs from their row
        self._unsaved_projects: dict[str, int] = {}
        self._competing: dict[int, str | None] = {}  # agents that began to compete, with their project; None: ceased
        self._ready = ReadyOwners()
        self._root = Level(eligibility=self._eligibility)
        self._largest_run = SCALE  # in virtual time at weight one thousandth
        self._levels: dict[str, Level | PriorityLevel] = {}  # by project
        self._priorities: dict[int, int] = {}  # of the first entry of each agent, as last read
        self._served: set[int] = set()  # agents whose first entry the last pass has claimed

    def copy(self, _: PolicyGuard) -> FlowPass:
        """Return an independent copy."""
        copied = FlowPass(eligibility=self._eligibility, priority_first=self._priority_first)
        copied._priorities, copied._served = self._priorities.copy(), self._served.copy()
        copied._has_index, copied._restored = self._has_index, self._restored
        copied._unsaved, copied._unsaved_projects = self._unsaved.copy(), self._unsaved_projects.copy()
        copied._competing = self._competing.copy()
        copied._ready, copied._root = self._ready.copy(), self._root.copy()
        copied._largest_run = self._largest_run
        copied._levels = {project_id: level.copy() for project_id, level in self._levels.items()}
        return copied

    def propose(self, claim: ClaimPass) -> ServedFlows:
        """Claim entries one by one, and return the new virtual times of the flows."""
        claim.tx.effects.on_rollback.append(self.forget)
        if not self._has_index:
            claim.ensure_index("agent")
            self._has_index = True
        self._sync(claim)
        state = _PassState(claim.blocked_agents())
        if claim.remaining > 1:
            self._read_ahead(claim, state.blocked)
        while claim.remaining > 0 and len(self._root):
            project_id = self._root.pick()
            assert isinstance(project_id, str)  # noqa: S101  # project ids are text
            self._serve(claim, project_id, state)
        moves = self._moves(state)
        self._finish(state)
        if claim.claimed and self._competing:
            self._write_competing(claim.tx)
        return ServedFlows(moves)

    def on_written(self, stamp: int) -> None:
        """The virtual times of a pass were written with this stamp."""
        self._ready.on_written(stamp)
        self._unsaved.clear()
        self._unsaved_projects.clear()

    # --- which agents compete --------------------------------------------------------------------

    def _sync(self, claim: ClaimPass) -> None:
        cache = claim.env.cache
        projects = self._ready.sync_projects(claim.tx, cache)
        agents = self._ready.sync_agents(claim.tx, cache)
        for project in projects:
            if project.now.project_id in self._root:
                _apply_change(self._root, project.now.project_id, project)
                if project.before is not None:
                    moved = abs(project.now.virtual_time - project.before.virtual_time)
                    self._largest_run = max(self._largest_run, moved * project.now.weight)
        new: dict[str, dict[int, ReadyAgent]] = {}  # by project and pid
        for agent in agents:
            if agent.now.pid in self._level(agent.now.project_id):
                self._apply_agent_change(agent)
            else:
                new.setdefault(agent.now.project_id, {})[agent.now.pid] = agent.now
        if self._priority_first:
            self._read_priorities(claim.tx)
        self._restore(new)
        self._add_new(new)

    def _apply_agent_change(self, change: FlowChange[ReadyAgent]) -> None:
        """Change the account of a competing agent as its row has changed."""
        level, before, now = self._levels[change.now.project_id], change.before, change.now
        if isinstance(level, PriorityLevel) and before is not None and before.last_run_at != now.last_run_at:
            # another process has served it: its clock of the project is stored with the claim
            project = self._ready.projects.get(now.project_id) or ProjectFlow(now.project_id)
            virtual_time = level.time.whole + now.virtual_time - project.clock
            level.set_account(now.pid, Account(weight=now.weight, virtual_time=virtual_time))
        else:
            _apply_change(level, now.pid, change)

    def _read_priorities(self, tx: Transaction) -> None:
        """Read the first priorities of agents that have new entries, or fewer, and move them to their bands."""
        found = first_priorities(tx, self._ready.with_new_entries | self._served)
        self._served = set()
        self._priorities.update(found)
        for pid, priority in found.items():
            agent = self._ready.agents.get(pid)
            level = None if agent is None else self._levels.get(agent.project_id)
            if isinstance(level, PriorityLevel) and pid in level:
                level.set_priority(pid, priority)

    def _restore(self, new: dict[str, dict[int, ReadyAgent]]) -> None:
        """Add the agents that competed before, with the debt or credit that their rows say.

        In bands of priority only debt is kept: the level times of bands are not stored (see policy/priority_level.py).
        """
        for project_id, agents in new.items():
            known = [agent for agent in agents.values() if agent.competed]
            if not known or self._restored:
                continue
            level = self._levels[project_id]
            if isinstance(level, PriorityLevel):
                self._add_agents(project_id, known)
            else:
                level.add_all([(agent.pid, _account(agent)) for agent in known], keep_credit=True)
            self._add_project(project_id, keep_credit=True)
        self._restored = True

    def _add_new(self, new: dict[str, dict[int, ReadyAgent]]) -> None:
        """Add the other agents by the joining rule. That they compete is written with the next claim."""
        for project_id, agents in new.items():
            level = self._levels[project_id]
            joining = [agent for agent in agents.values() if agent.pid not in level]
            if joining:
                self._add_agents(project_id, joining)
                self._add_project(project_id)
            for agent in joining:
                self._competing[agent.pid] = project_id
                if level.virtual_time_of(agent.pid) != agent.virtual_time:
                    self._unsaved[agent.pid] = project_id, level.virtual_time_of(agent.pid)

    def _add_agents(self, project_id: str, agents: list[ReadyAgent]) -> None:
        level = self._level(project_id)
        if isinstance(level, PriorityLevel):
            level.add_all([(agent.pid, _account(agent), self._priorities.get(agent.pid, 0)) for agent in agents])
        else:
            level.add_all([(agent.pid, _account(agent)) for agent in agents])

    def _join(self, agent: ReadyAgent) -> None:
        self._add_agents(agent.project_id, [agent])
        self._add_project(agent.project_id)

    def _add_project(self, project_id: str, *, keep_credit: bool = False) -> None:
        """Add a project that has competing agents to the level of projects."""
        if project_id not in self._root:
            known = self._ready.projects.get(project_id) or ProjectFlow(project_id)
            self._root.add(project_id, _account(known), keep_credit=keep_credit)
            if self._root.virtual_time_of(project_id) != known.virtual_time:
                self._unsaved_projects[project_id] = self._root.virtual_time_of(project_id)

    def _level(self, project_id: str) -> Level | PriorityLevel:
        if project_id not in self._levels:
            known = self._ready.projects.get(project_id)
            make = PriorityLevel if self._priority_first else Level
            self._levels[project_id] = make(eligibility=self._eligibility, clock=known.clock if known else 0)
        return self._levels[project_id]

    def _read_ahead(self, claim: ClaimPass, blocked: set[int]) -> None:
        """Read the entries that will probably be picked together: one statement for all, not one for each."""
        root, count = self._root, claim.remaining
        projects = root.upcoming(count)
        weight = sum(root.weight_of(project_id) for project_id in projects)
        pids: list[int] = []
        depth = 1
        for project_id in projects:
            share = -(-count * root.weight_of(project_id) // weight)  # of the picks, rounded up
            likely = [pid for pid in self._levels[str(project_id)].upcoming(share) if pid not in blocked]
            pids += [pid for pid in likely if isinstance(pid, int)]
            depth = max(depth, -(-share // len(likely)) if likely else 1)
        if pids:
            claim.read_ahead(pids, min(AHEAD_MAX, depth))

    # --- one pick --------------------------------------------------------------------------------

    def _serve(self, claim: ClaimPass, project_id: str, state: _PassState) -> None:
        """Claim an entry of the agent that is due in a project, or leave the agent out of the pass."""
        level = self._levels[project_id]
        pid = level.pick()
        assert isinstance(pid, int)  # noqa: S101  # agents are numbered
        cost, more = (0, True) if pid in state.blocked else self._claim_next(claim, pid, project_id)
        if cost == _OTHER_BAND:
            return
        if cost:
            state.agent_times[pid] = project_id, charged(level.virtual_time_of(pid), cost, level.weight_of(pid))
            self._root.charge(project_id, cost)
            state.project_times[project_id] = self._root.virtual_time_of(project_id)
        if cost and more and project_id not in claim.blocked_projects:
            level.charge(pid, cost)
            return
        level.charge_and_remove(pid, cost)
        (state.left_out if more else state.drained).append(pid)
        if not cost and pid in claim.agents_elsewhere:
            state.elsewhere.add(project_id)
        if not len(level):
            if project_id in state.elsewhere:
                weight, time = self._root.weight_of(project_id), self._root.virtual_time_of(project_id)
                state.kept[project_id] = Account(weight=weight, virtual_time=time)
            self._root.remove(project_id)
        elif project_id in claim.blocked_projects:
            self._root.remove(project_id)  # its other agents stay on its level for the next pass
            state.left_out_projects.append(project_id)

    def _claim_next(self, claim: ClaimPass, pid: int, project_id: str) -> tuple[int, bool]:
        """Claim the first entry of an agent that may run. Return its cost (0: none) and whether more are ready."""
        while not (pid in claim.blocked_pids or project_id in claim.blocked_projects or claim.all_blocked):
            row, more = claim.head_of_agent(pid)
            if row is None:
                return 0, more
            if self._priority_first and self._changes_band(pid, project_id, row[PRIORITY]):
                return _OTHER_BAND, more
            cost = expected_cost(row, claim.share_dim)
            reason = f"project {project_id or '–'} and in it this agent are due"
            if claim.try_claim(row, estimate=cost, reason=reason) is None:
                return cost, more
        return 0, True

    def _changes_band(self, pid: int, project_id: str, priority: int) -> bool:
        """Move an agent whose next entry has another priority than its band. Return whether it has moved."""
        level = self._levels[project_id]
        self._priorities[pid] = priority
        self._served.add(pid)
        if not isinstance(level, PriorityLevel) or level.priority == priority:
            return False
        level.set_priority(pid, priority)
        return True

    # --- after the picks -------------------------------------------------------------------------

    def _moves(self, state: _PassState) -> list[FlowMove]:
        agent_times = {**self._unsaved, **state.agent_times}
        project_times = {**self._unsaved_projects, **state.project_times}
        moves = [FlowMove("agent", str(pid), time, 0, project_id) for pid, (project_id, time) in agent_times.items()]
        return moves + [
            FlowMove("project", project_id, time, self._levels[project_id].time.whole)
            for project_id, time in project_times.items()
        ]

    def _write_competing(self, tx: Transaction) -> None:
        """Write which agents began and ceased to compete: only with a claim, since an empty claim writes nothing."""
        entered = [(pid, project_id) for pid, project_id in self._competing.items() if project_id is not None]
        left = [pid for pid, project_id in self._competing.items() if project_id is None]
        mark_competing(tx, entered, left)
        self._competing.clear()

    def _finish(self, state: _PassState) -> None:
        """Record the new virtual times, and let agents that were left out compete again in the next pass."""
        projects, agents = self._ready.projects, self._ready.agents
        for project_id, virtual_time in {**self._unsaved_projects, **state.project_times}.items():
            known = projects.get(project_id) or ProjectFlow(project_id)
            clock = self._levels[project_id].time.whole
            projects[project_id] = replace(known, virtual_time=virtual_time, clock=clock)
        for pid, (_, virtual_time) in {**self._unsaved, **state.agent_times}.items():
            agents[pid] = replace(agents[pid], virtual_time=virtual_time)
        for pid in state.drained:
            self._ready.drop(pid)
            self._unsaved.pop(pid, None)
            self._priorities.pop(pid, None)
            self._competing[pid] = None
        returning = {agents[pid].project_id for pid in state.left_out if pid in agents}
        for project_id, account in state.kept.items():
            if project_id not in returning:
                continue
            earliest = self._root.time.whole - CREDIT_RUNS_MAX * self._largest_run // account.weight
            kept = replace(account, virtual_time=max(account.virtual_time, earliest))
            self._root.add(project_id, kept, keep_credit=True)
        for pid in state.left_out:
            agent = agents.get(pid)
            if agent is not None:
                self._join(agent)
        for project_id in state.left_out_projects:
            if len(self._levels[project_id]) and project_id not in self._root:
                self._root.add(project_id, _account(projects.get(project_id) or ProjectFlow(project_id)))


class _PassState:
    """What happened in one pass."""

    __slots__ = (
        "agent_times",
        "blocked",
        "drained",
        "elsewhere",
        "kept",
        "left_out",
        "left_out_projects",
        "project_times",
    )

    def __init__(self, blocked: set[int]) -> None:
        self.blocked = blocked
        self.agent_times: dict[int, tuple[str, int]] = {}  # served agents: their project and new virtual time
        self.project_times: dict[str, int] = {}  # served projects: their new virtual time
        self.left_out: list[int] = []  # agents that were removed and have more ready entries
        self.drained: list[int] = []  # agents that were removed and have no ready entries
        self.left_out_projects: list[str] = []  # projects that were removed with all their agents
        self.elsewhere: set[str] = set()  # projects with agents that need slots of another kind
        self.kept: dict[str, Account] = {}  # of them, those that were removed, with what they had


def _apply_change(
    level: Level | PriorityLevel, key: Key, change: FlowChange[ReadyAgent] | FlowChange[ProjectFlow]
) -> None:
    """Change the account of a competitor as its row has changed: a run was settled, or its weight was set.

    The difference is applied, not the value of the row: it may have joined at a later time than its row says.
    """
    difference = 0 if change.before is None else change.now.virtual_time - change.before.virtual_time
    if change.now.weight != level.weight_of(key):
        level.reweigh(key, change.now.weight)
    if difference:
        account = Account(weight=change.now.weight, virtual_time=level.virtual_time_of(key) + difference)
        level.set_account(key, account)


def _account(flow: ReadyAgent | ProjectFlow) -> Account:
    return Account(weight=flow.weight, virtual_time=flow.virtual_time)

"""Stores of every sort: agents and projects with caps, pauses, budgets, limits, workspaces, and runs under way.

A `StorePlan` is drawn by hypothesis and says what there is; `built` makes it, through public verbs only and always
in the same way, so a plan can be made twice to compare two answers. Numbers are small on purpose: limits are met
exactly, by one less and by one more all the time. What comes first is allowed and what restricts it comes later, so
there are also agents that run more than they may by now, and budgets that are overdrawn.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any, Literal

from hypothesis import strategies as st

from rota import store
from rota.clock import ManualClock
from rota.errors import SchedAdmissionDenied
from rota.kernel import Kernel
from rota.model.work import ProjectConstraint, ScheduleSpec

START_AT = 1_000.0
WAIT_S = 10.0  # how long everything waits before it is asked about
DIMS = ("tokens", "cost_micro")
NAMES = ("openai", "local")
PLENTY = 10**9

Amounts = dict[str, int]


@dataclass(frozen=True)
class ContextPlan:
    unit: Literal["tokens", "requests"]
    budget: int
    used: int


@dataclass(frozen=True)
class ProjectPlan:
    weight: int
    cap: int | None
    move: Literal["pause", "archive"] | None
    constraint: ProjectConstraint
    budgets: Amounts
    used: Amounts
    workspaces: int
    context: ContextPlan | None


@dataclass(frozen=True)
class AgentPlan:
    project: int | None
    cap: int | None
    paused: bool
    grants: Amounts
    used: Amounts
    context: ContextPlan | None


@dataclass(frozen=True)
class EntryPlan:
    agent: int
    priority: int
    delay_s: float
    lasts_s: float | None
    kind: str | None
    affinity: str | None
    expected: Amounts
    ceiling: Amounts
    draws_on: tuple[str, ...]
    workspace_mode: Literal["exclusive", "shared"] | None
    workspace: int | None  # which of its project's it wants
    after: int | None  # how many entries back
    lives: bool  # it is claimed before anything is restricted
    spent: Amounts  # by that run so far


@dataclass(frozen=True)
class StorePlan:
    projects: tuple[ProjectPlan, ...]
    agents: tuple[AgentPlan, ...]
    entries: tuple[EntryPlan, ...]
    names: dict[str, ContextPlan]
    throttled: str | None
    global_budgets: Amounts
    fleet_paused: bool


# --- drawing -------------------------------------------------------------------------------------


class Dice(random.Random):
    """What a project, an agent or an entry is like, from one number.

    Drawn field by field a store would cost more to draw than to make. So hypothesis draws one number for each thing
    there is, and can still take things away until only what matters is left.
    """

    def rarely(self, *values: Any) -> Any:
        """One of these, or nothing, seven times out of eight: where all is restricted there is nothing to see."""
        return self.choice(values) if self.randrange(8) == 0 else None

    def amounts(self, least: int, most: int) -> Amounts:
        dims = self.choice([(), (), (), (), ("tokens",), ("tokens",), ("cost_micro",), DIMS])
        return {dim: self.randint(least, most) for dim in dims}

    def context(self) -> ContextPlan:
        unit: Literal["tokens", "requests"] = "tokens" if self.randrange(2) else "requests"
        return ContextPlan(unit, self.randint(2, 15), self.randint(0, 9))

    def project(self) -> ProjectPlan:
        return ProjectPlan(
            weight=self.choice([1_000, 3_000]),
            cap=self.choice([None, None, None, None, 0, 2, 3, 4, 5, 6]),
            move=self.rarely("pause", "archive"),
            constraint=ProjectConstraint(
                exclusive=self.randrange(16) == 0,
                max_by_kind={"gpu": self.randrange(3)} if self.randrange(3) == 0 else {},
                pause_scheduling=self.randrange(16) == 0,
            ),
            budgets=self.amounts(0, 30),
            used=self.amounts(0, 12),
            workspaces=self.choice([0, 1, 2, 3]),
            context=self.rarely(self.context()),
        )

    def agent(self, projects: int) -> AgentPlan:
        return AgentPlan(
            project=self.choice([None, *range(projects)]),
            cap=self.choice([None, None, None, None, None, 0, 1, 2, 3, 4]),
            paused=self.randrange(12) == 0,
            grants=self.amounts(1, 20),
            used=self.amounts(0, 11),
            context=self.rarely(self.context()),
        )

    def entry(self, agents: int) -> EntryPlan:
        lives = self.randrange(6) == 0
        return EntryPlan(
            agent=self.randrange(agents),
            priority=self.randrange(3),
            delay_s=self.choice([0.0, 0.0, 0.0, 0.0, 0.0, 5.0, 5.0, 20.0]),
            lasts_s=self.choice([None, None, None, None, None, 5.0, WAIT_S, 30.0, 40.0]),
            kind=self.choice([None, None, "gpu", "cpu"]),
            affinity=self.choice([None, None, None, "w", "earlier", "unknown"]),
            expected=self.amounts(0, 6),
            ceiling=self.amounts(0, 6),
            draws_on=self.choice([(), (), (), ("openai",), ("local",), NAMES]),
            workspace_mode=self.choice([None, None, None, None, None, None, "exclusive", "shared"]),
            workspace=self.rarely(0, 1),
            after=self.rarely(1, 2, 3),
            lives=lives,
            spent=self.amounts(0, 8) if lives else {},
        )

    def rest(self) -> dict[str, Any]:
        """Limits and budgets of all projects."""
        return {
            "names": {name: self.context() for name in NAMES if self.randrange(3) == 0},
            "throttled": self.rarely(*NAMES),
            "global_budgets": self.choice([{}, self.amounts(0, 40)]),
            "fleet_paused": self.randrange(40) == 0,
        }


numbers = st.integers(0, 2**32 - 1)


@st.composite
def plans(draw: st.DrawFn) -> StorePlan:
    projects = [Dice(number).project() for number in draw(st.lists(numbers, max_size=3))]
    agents = [Dice(number).agent(len(projects)) for number in draw(st.lists(numbers, min_size=1, max_size=4))]
    entries = [Dice(number).entry(len(agents)) for number in draw(st.lists(numbers, min_size=1, max_size=20))]
    return StorePlan(tuple(projects), tuple(agents), tuple(entries), **Dice(draw(numbers)).rest())


# --- making --------------------------------------------------------------------------------------


@dataclass
class Built:
    """A store that was made from a plan, and what a row does not say about it."""

    kernel: Kernel
    clock: ManualClock
    specs: dict[int, ScheduleSpec] = field(default_factory=dict)
    spent: dict[int, Counter[str]] = field(default_factory=dict)  # by live run
    contexts: list[int] = field(default_factory=list)
    fleet_paused: bool = False
    throttled: str | None = None

    def close(self) -> None:
        self.kernel.store.close()


def built(plan: StorePlan, about: tuple[str, ...] = ()) -> Built:
    """Build the store of a plan; entries are held for the workers in `about`."""
    clock = ManualClock(START_AT)
    made = Built(Kernel(store.open(":memory:", clock=clock)), clock, fleet_paused=plan.fleet_paused)
    made.throttled = plan.throttled if plan.throttled in plan.names else None
    payers = [_project(made, f"p{at}", project) for at, project in enumerate(plan.projects)]
    pids = [_agent(made, f"a{at}", agent) for at, agent in enumerate(plan.agents)]
    for name, context in plan.names.items():
        _context(made, "name", name, context)
    for dim in plan.global_budgets:
        made.kernel.ledger.set_budget("global", "*", dim, PLENTY)
    for worker_id in about:
        made.kernel.queue.claim(worker_id=worker_id)
    names = [f"p{at}" for at in range(len(plan.projects))]
    for from_project, to_project in permutations((None, *names), 2):  # entries wait for those of any project
        made.kernel.projects.grant(from_project, to_project)
    _enqueue(made, plan, pids)
    _begin_runs(made, plan)
    _use_up(made, plan, payers, pids)
    _restrict(made, plan, pids)
    clock.advance(WAIT_S)
    made.kernel.queue.upkeep()
    return made


def _project(made: Built, name: str, plan: ProjectPlan) -> int:
    """A project, and an agent of it through which its usage is charged."""
    made.kernel.projects.create(name, weight=plan.weight)
    for at in range(plan.workspaces):
        made.kernel.projects.add_workspace(f"{name}-w{at}", name, f"/srv/{name}/{at}")
    for dim in plan.budgets:
        made.kernel.ledger.set_budget("project", name, dim, PLENTY)
    _context(made, "project", name, plan.context)
    payer = made.kernel.agents.create(f"{name}-payer", project_id=name)
    made.kernel.ledger.create(payer, dict.fromkeys(DIMS, PLENTY))
    return payer


def _agent(made: Built, name: str, plan: AgentPlan) -> int:
    pid = made.kernel.agents.create(name, project_id=None if plan.project is None else f"p{plan.project}")
    if plan.grants:
        made.kernel.ledger.create(pid, dict.fromkeys(plan.grants, PLENTY))
    _context(made, "agent", str(pid), plan.context)
    return pid


def _context(made: Built, bound_to: str, bound_id: str, plan: ContextPlan | None) -> None:
    if plan is None:
        return
    context = made.kernel.contexts.create(
        bound_to=bound_to, bound_id=bound_id, budget=plan.budget, period_s=3_600, unit=plan.unit
    )
    made.contexts.append(context.context_id)


def _enqueue(made: Built, plan: StorePlan, pids: list[int]) -> None:
    ids: list[int] = []
    for entry in plan.entries:
        runnable_at = START_AT + entry.delay_s if entry.delay_s else 0.0
        project = plan.agents[entry.agent].project
        spec = ScheduleSpec(
            pids[entry.agent],
            entry.priority,
            runnable_at,
            None if entry.lasts_s is None else max(runnable_at, START_AT) + entry.lasts_s,
            kind=entry.kind,
            affinity=entry.affinity,
            expected=entry.expected,
            ceiling=entry.ceiling,
            draws_on=tuple(name for name in entry.draws_on if name in plan.names),  # others are refused
            workspace_mode=entry.workspace_mode,
            workspace=None if entry.workspace is None else f"p{project}-w{entry.workspace}",
            after=(ids[-entry.after],) if entry.after is not None and entry.after <= len(ids) else (),
        )
        ids.append(made.kernel.queue.enqueue(spec))
        made.specs[ids[-1]] = spec


def _begin_runs(made: Built, plan: StorePlan) -> None:
    for sched_id, entry in zip(made.specs, plan.entries, strict=True):
        if not entry.lives:
            continue
        try:
            made.kernel.queue.force_claim(sched_id, worker_id="earlier")
        except SchedAdmissionDenied:
            continue
        made.spent[sched_id] = Counter(entry.spent)
        if entry.spent:
            made.kernel.queue.charge(sched_id, entry.spent)


def _use_up(made: Built, plan: StorePlan, payers: list[int], pids: list[int]) -> None:
    for payer, project in zip(payers, plan.projects, strict=True):
        for dim, amount in project.used.items():
            made.kernel.ledger.charge(payer, dim, amount)
    for pid, agent in zip(pids, plan.agents, strict=True):
        for dim in agent.grants.keys() & agent.used.keys():
            made.kernel.ledger.charge(pid, dim, agent.used[dim])
    of_projects = [project.context for project in plan.projects if project.context is not None]
    of_agents = [agent.context for agent in plan.agents if agent.context is not None]
    in_order = [*of_projects, *of_agents, *plan.names.values()]
    for context_id, context in zip(made.contexts, in_order, strict=True):
        made.kernel.contexts.charge(context_id, context.used)


def _restrict(made: Built, plan: StorePlan, pids: list[int]) -> None:
    kernel = made.kernel
    for at, project in enumerate(plan.projects):
        kernel.projects.update(f"p{at}", max_concurrent=project.cap)
        kernel.projects.constrain(f"p{at}", project.constraint)
        for dim, limit in project.budgets.items():
            kernel.ledger.set_budget("project", f"p{at}", dim, limit)
        if project.move is not None:
            kernel.projects.move(f"p{at}", project.move)
    for pid, agent in zip(pids, plan.agents, strict=True):
        kernel.agents.update(pid, max_concurrent=agent.cap)
        for dim, grant in agent.grants.items():
            kernel.ledger.update_grant(pid, dim, grant)
        if agent.paused:
            kernel.agents.pause(pid, "operator")
    for dim, limit in plan.global_budgets.items():
        kernel.ledger.set_budget("global", "*", dim, limit)
    if made.throttled is not None:
        kernel.contexts.throttle(made.throttled, 60.0)
    if plan.fleet_paused:
        kernel.projects.pause_fleet("operator")

"""The walk over projects hands out what the plain function picks when it is shown everything that may run.

`rank` is the oracle: it sees every ready entry of every project at once. The dispatcher sees the first of each
project and goes on from there, so that a pass costs the same however many entries wait.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from rota import store
from rota.clock import ManualClock
from rota.kernel import Completion, Kernel, ReadyEntry, ScheduleSpec
from rota.model.snapshot import Account, Candidate, Key, Slot, Snapshot
from rota.policy.fair_share import fair_share
from rota.service.dispatcher import Dispatcher

START_AT = 1_000.0
AGENTS = 2  # of each project


class Project(NamedTuple):
    """A project, the priorities and costs of its entries, and how many of them one of its agents may not run."""

    weight: int
    entries: list[tuple[int, int]]
    paused: bool


PROJECTS = st.lists(
    st.builds(
        Project,
        st.sampled_from([1_000, 1_000, 2_000, 5_000]),
        st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=7),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


class Fleet:
    """A kernel in memory with these projects; what has no project is the last of them."""

    def __init__(self, projects: list[Project]) -> None:
        self.kernel = Kernel(store.open(":memory:", clock=ManualClock(START_AT)))
        self.projects = projects
        self.open: dict[int, tuple[str, int, int]] = {}  # by entry that may run: its project, priority and cost
        self.used: dict[str, int] = {}
        self.ended: dict[str, int] = {}
        self.live: dict[int, tuple[str, int]] = {}  # by entry: its project and cost
        for number, project in enumerate(projects):
            self._fill(self._name(number), project)

    def _name(self, number: int) -> str:
        return f"p{number}" if number < len(self.projects) - 1 else ""

    def _fill(self, name: str, project: Project) -> None:
        if name:
            self.kernel.projects.create(name, weight=project.weight)
        pids = [self.kernel.agents.create("a", project_id=name or None) for _ in range(AGENTS)]
        if project.paused:
            self.kernel.agents.pause(pids[0], by="test")
        for at, (priority, cost) in enumerate(project.entries):
            spec = ScheduleSpec(pids[at % AGENTS], priority, expected={"tokens": cost})
            sched_id = self.kernel.queue.enqueue(spec)
            if not (project.paused and at % AGENTS == 0):
                self.open[sched_id] = name, priority, cost

    def snapshot(self, slots: int) -> Snapshot:
        """Everything that may run, and where every project stands."""
        accounts: dict[Key, Account] = {}
        for number, project in enumerate(self.projects):
            name = self._name(number)
            mine = [cost for owner, cost in self.live.values() if owner == name]
            accounts[name] = Account(
                weight=project.weight if name else 1_000,
                usage=self.used.get(name, 0),
                reserved=sum(mine),
                live=len(mine),
                ended=self.ended.get(name, 0),
            )
        return Snapshot(
            now=START_AT,
            slots=tuple(Slot(number) for number in range(slots)),
            candidates=tuple(
                Candidate(sched_id, 0, name, priority=priority, cost=cost)
                for sched_id, (name, priority, cost) in self.open.items()
            ),
            groups=accounts,
        )

    def took(self, entries: list[ReadyEntry]) -> None:
        for entry in entries:
            name, _, cost = self.open.pop(entry.sched_id)
            self.live[entry.sched_id] = name, cost

    def end(self, entries: list[ReadyEntry]) -> None:
        self.kernel.queue.complete_many([Completion(entry.sched_id, token=entry.token) for entry in entries])
        for entry in entries:
            name, cost = self.live.pop(entry.sched_id)
            if name:  # what has no project is in no window: a run of it counts while it is under way
                self.used[name] = self.used.get(name, 0) + cost  # it was charged nothing: its expected cost counts
                self.ended[name] = self.ended.get(name, 0) + 1


@settings(max_examples=60, deadline=None)
@given(
    projects=PROJECTS,
    passes=st.lists(st.tuples(st.integers(1, 8), st.booleans()), min_size=1, max_size=6),
    guarantee=st.booleans(),
)
def test_a_share_pass_claims_what_rank_picks_in_the_same_order_with_the_same_reasons(
    projects: list[Project], passes: list[tuple[int, bool]], guarantee: bool
) -> None:
    policy = fair_share(min_guarantee=guarantee)
    fleet = Fleet(projects)
    api = Dispatcher(fleet.kernel, policy)
    for slots, ends in passes:
        expected = policy.rank(fleet.snapshot(slots))
        entries = api.claim("w", slots)
        assert [entry.sched_id for entry in entries] == [decision.candidate_id for decision in expected]
        if entries:
            claimed = fleet.kernel.journal.tail(limit=10_000)[-1]
            assert claimed.payload["because"] == [decision.reason.words for decision in expected]
        fleet.took(entries)
        if ends:
            fleet.end(entries)
    fleet.kernel.store.close()


def test_a_project_that_turns_out_to_be_closed_does_not_dilute_the_targets_of_the_others() -> None:
    fleet = Fleet([Project(1_000, [(0, 1)] * 4, False), Project(3_000, [(0, 1)] * 4, False), Project(1_000, [], False)])
    fleet.kernel.projects.move("p1", "pause")
    entries = Dispatcher(fleet.kernel, "fair_share").claim("w", 3)
    assert [entry.project_id for entry in entries] == ["p0", "p0", "p0"]
    because = fleet.kernel.journal.tail(limit=10_000)[-1].payload["because"]
    assert because[1:] == ["its group used 100.0% of a target of 100.0%"] * 2
    fleet.kernel.store.close()


def test_an_entry_that_is_refused_costs_its_project_nothing_and_hides_nothing() -> None:
    """The first of two agents may run one at a time; what it may not have stands in front of what the other may."""
    fleet = Fleet([Project(1_000, [(9, 1), (8, 1), (9, 1), (1, 1)], False), Project(1_000, [(0, 1), (0, 1)], False)])
    first = fleet.kernel.queue.get(1).pid
    fleet.kernel.agents.update(first, max_concurrent=1)
    entries = Dispatcher(fleet.kernel, "fair_share").claim("w", 9)
    assert sorted(entry.sched_id for entry in entries) == [1, 2, 4, 5, 6]
    fleet.kernel.store.close()

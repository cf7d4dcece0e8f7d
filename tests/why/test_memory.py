"""An explanation uses the flow state that a dispatcher keeps in memory, and does not change it."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rota import store
from rota.clock import ManualClock
from rota.kernel import Completion, Kernel, ScheduleSpec
from rota.model.reasons import PickReason
from rota.model.snapshot import Decision, Decisions, Snapshot
from rota.model.work import ReadyEntry
from rota.policy import registry
from rota.policy.contract import Policy
from rota.service.dispatcher import Dispatcher
from rota.service.explanation import explain

AGENTS = 6


class ServedAgents:
    """Six agents in two projects or none, and a dispatcher that serves them."""

    def __init__(self, policy: str) -> None:
        self.clock = ManualClock(1_000.0)
        self.kernel = Kernel(store.open(":memory:", clock=self.clock))
        for number in range(2):
            self.kernel.projects.create(f"p{number}", weight=1_000 * (number + 1))
        owners = [None, "p0", "p1"]
        self.pids = [self.kernel.agents.create(f"a{at}", project_id=owners[at % 3]) for at in range(AGENTS)]
        self.api = Dispatcher(self.kernel, policy)
        self.runs: list[ReadyEntry] = []

    def do(self, operation: tuple[str, int, int]) -> None:
        """Run one operation."""
        verb, which, amount = operation
        pid = self.pids[which % AGENTS]
        match verb:
            case "enqueue":
                kind = "gpu" if amount % 4 == 0 else None
                self.kernel.queue.enqueue(ScheduleSpec(pid, which % 2, expected={"tokens": amount}, kind=kind))
            case "claim":
                self.runs += self.api.claim("w", 1 + amount % 2, kinds=("gpu",) if which % 2 else ())
            case "end" if self.runs:
                run = self.runs.pop(which % len(self.runs))
                self.kernel.queue.charge(run.sched_id, {"tokens": amount * 10})
                self.kernel.queue.complete_many([Completion(run.sched_id, token=run.token)])
            case "pause":
                self.kernel.agents.pause(pid, "operator")
            case "resume":
                self.kernel.agents.resume(pid, "operator")
        self.clock.advance(1.0)


VERBS = ["enqueue", "enqueue", "enqueue", "claim", "claim", "end", "pause", "resume"]
# the virtual times of the two served agents are in memory and not yet in their rows
ONLY_IN_MEMORY = [
    ("enqueue", 10, 18),
    ("enqueue", 6, 13),
    ("claim", 6, 7),
    ("enqueue", 6, 3),
    ("enqueue", 9, 6),
    ("enqueue", 7, 19),
]
operations = st.tuples(st.sampled_from(VERBS), st.integers(0, 11), st.integers(1, 20))


@pytest.mark.long_on_postgres
@pytest.mark.parametrize("policy", registry.names())
@settings(max_examples=settings().max_examples // 3)
@example(history=ONLY_IN_MEMORY, looks=[1])
@given(
    history=st.lists(operations, min_size=10, max_size=40), looks=st.lists(st.integers(1, 40), min_size=1, max_size=3)
)
def test_the_next_claim_is_predicted_and_explaining_changes_nothing(
    policy: str, history: list[tuple[str, int, int]], looks: list[int]
) -> None:
    """The same operations with and without explanations lead to the same claims."""
    explained, plain = ServedAgents(policy), ServedAgents(policy)
    for operation in history:
        explained.do(operation)
        plain.do(operation)
        (waiting, _) = explained.kernel.queue.list(state="queued")
        for look in looks:
            if waiting and operation[0] == "claim":
                explain(explained.api, waiting[look % len(waiting)].sched_id)
    (waiting, _) = explained.kernel.queue.list(state="queued")
    explanation = [each.sched_id for each in waiting if explain(explained.api, each.sched_id, max_n=2).starts]
    claims = [sorted(entry.sched_id for entry in served.api.claim("any-worker", 2)) for served in (explained, plain)]
    for served in (explained, plain):
        served.kernel.store.close()
    assert claims == [explanation, explanation]


def raises(_: Snapshot) -> Decisions:
    raise ZeroDivisionError("no candidates left to divide")


def picks_none(_: Snapshot) -> Decisions:
    return ()


def last_first(snapshot: Snapshot) -> Decisions:
    order = sorted(snapshot.candidates, key=lambda candidate: -candidate.id)
    slots = zip(order, snapshot.slots, strict=False)
    return tuple(Decision(each.id, slot.id, PickReason("mine", "last in, first out")) for each, slot in slots)


def test_a_policy_that_fails_in_a_dry_run_is_not_suspended() -> None:
    served = ServedAgents("strict")
    first, second = (served.kernel.queue.enqueue(ScheduleSpec(served.pids[0])) for _ in range(2))
    behaviours = iter([raises, last_first, last_first])

    def rank(snapshot: Snapshot) -> Decisions:
        return next(behaviours)(snapshot)

    mine = Policy(name="mine", rank=rank, sentence="As the test decides.")
    explanation = explain(served.api, first, policy=mine)
    assert (explanation.starts, explanation.policy) == (True, "strict")  # strict order would replace it
    assert explain(served.api, second, policy=mine).starts
    assert [entry.sched_id for entry in served.api.claim("w", policy=mine)] == [second]
    served.kernel.store.close()


def test_a_policy_that_picks_no_entry_is_named() -> None:
    served = ServedAgents("strict")
    sched_id = served.kernel.queue.enqueue(ScheduleSpec(served.pids[0]))
    explanation = explain(
        served.api, sched_id, policy=Policy(name="lazy", rank=picks_none, sentence="Picks no entry.", holds_back=True)
    )
    assert [reason.sentence() for reason in explanation.ordering] == ["lazy saw it and did not pick it"]
    assert explanation.changes[0].verb == "queue.force_claim"
    served.kernel.store.close()

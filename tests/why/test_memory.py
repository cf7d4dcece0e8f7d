"""A dispatcher at work remembers who is owed what; an explanation goes by that memory and leaves it alone."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rota import store
from rota.clock import ManualClock
from rota.kernel import Completion, Kernel, ScheduleSpec
from rota.model.reasons import Because
from rota.model.snapshot import Decision, Decisions, Snapshot
from rota.model.work import ReadyEntry
from rota.policy import registry
from rota.policy.contract import Policy
from rota.service.dispatcher import Dispatcher
from rota.service.explain import explain

AGENTS = 6


class Shop:
    """Six agents of three projects, and a dispatcher that serves them."""

    def __init__(self, policy: str) -> None:
        self.clock = ManualClock(1_000.0)
        self.kernel = Kernel(store.open(":memory:", clock=self.clock))
        for number in range(2):
            self.kernel.projects.create(f"p{number}", weight=1_000 * (number + 1))
        owners = [None, "p0", "p1"]
        self.pids = [self.kernel.agents.create(f"a{at}", project_id=owners[at % 3]) for at in range(AGENTS)]
        self.desk = Dispatcher(self.kernel, policy)
        self.runs: list[ReadyEntry] = []

    def do(self, deed: tuple[str, int, int]) -> None:
        """One thing that happens in a day."""
        verb, which, amount = deed
        pid = self.pids[which % AGENTS]
        match verb:
            case "enqueue":
                kind = "gpu" if amount % 4 == 0 else None
                self.kernel.queue.enqueue(ScheduleSpec(pid, which % 2, expected={"tokens": amount}, kind=kind))
            case "claim":
                self.runs += self.desk.claim("w", 1 + amount % 2, kinds=("gpu",) if which % 2 else ())
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
# the two agents that were served meet the third as their memory has it, which their rows do not say yet
ONLY_MEMORY_KNOWS = [
    ("enqueue", 10, 18),
    ("enqueue", 6, 13),
    ("claim", 6, 7),
    ("enqueue", 6, 3),
    ("enqueue", 9, 6),
    ("enqueue", 7, 19),
]
deeds = st.tuples(st.sampled_from(VERBS), st.integers(0, 11), st.integers(1, 20))


@pytest.mark.parametrize("policy", registry.names())
@settings(max_examples=settings().max_examples // 3)
@example(day=ONLY_MEMORY_KNOWS, looks=[1])
@given(day=st.lists(deeds, min_size=10, max_size=40), looks=st.lists(st.integers(1, 40), min_size=1, max_size=3))
def test_after_any_day_the_next_claim_is_foretold_and_looking_changes_nothing(
    policy: str, day: list[tuple[str, int, int]], looks: list[int]
) -> None:
    """The same day twice, looked at and not looked at: the same claims."""
    watched, alone = Shop(policy), Shop(policy)
    for deed in day:
        watched.do(deed)
        alone.do(deed)
        (waiting, _) = watched.kernel.queue.list(state="queued")
        for look in looks:
            if waiting and deed[0] == "claim":
                explain(watched.desk, waiting[look % len(waiting)].sched_id)
    (waiting, _) = watched.kernel.queue.list(state="queued")
    told = [each.sched_id for each in waiting if explain(watched.desk, each.sched_id, max_n=2).starts]
    claims = [sorted(entry.sched_id for entry in shop.desk.claim("anybody", 2)) for shop in (watched, alone)]
    for shop in (watched, alone):
        shop.kernel.store.close()
    assert claims == [told, told]


def raises(_: Snapshot) -> Decisions:
    raise ZeroDivisionError("no candidates left to divide")


def nobody(_: Snapshot) -> Decisions:
    return ()


def last_first(snapshot: Snapshot) -> Decisions:
    order = sorted(snapshot.candidates, key=lambda candidate: -candidate.id)
    slots = zip(order, snapshot.slots, strict=False)
    return tuple(Decision(each.id, slot.id, Because("mine", "last in, first out")) for each, slot in slots)


def test_a_policy_that_fails_in_a_rehearsal_is_not_benched_for_it() -> None:
    shop = Shop("strict")
    first, second = (shop.kernel.queue.enqueue(ScheduleSpec(shop.pids[0])) for _ in range(2))
    moods = iter([raises, last_first, last_first])

    def rank(snapshot: Snapshot) -> Decisions:
        return next(moods)(snapshot)

    mine = Policy(name="mine", rank=rank, sentence="As it is told.")
    told = explain(shop.desk, first, policy=mine)
    assert (told.starts, told.policy) == (True, "strict")  # strict order would take its place
    assert explain(shop.desk, second, policy=mine).starts
    assert [entry.sched_id for entry in shop.desk.claim("w", policy=mine)] == [second]
    shop.kernel.store.close()


def test_a_policy_that_leaves_a_slot_empty_is_named() -> None:
    shop = Shop("strict")
    sched_id = shop.kernel.queue.enqueue(ScheduleSpec(shop.pids[0]))
    told = explain(shop.desk, sched_id, policy=Policy(name="lazy", rank=nobody, sentence="Never anybody."))
    assert [reason.sentence() for reason in told.ordering] == ["lazy was shown it and did not pick it"]
    assert told.changes[0].verb == "queue.force_claim"
    shop.kernel.store.close()

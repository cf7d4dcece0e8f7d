"""The two laws of an explanation, on generated stores and for every policy, with no write in between.

No reason at all ⇔ that claim returns it. No blocking reason ⇔ `force_claim` succeeds. The dispatcher that is asked has
claimed before, so it has a memory of its own, and time has passed since anybody did what is due.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.errors import SchedAdmissionDenied
from rota.kernel import Completion
from rota.model import reasons
from rota.model.explanation import Explanation
from rota.model.work import ProjectConstraint
from rota.policy import registry
from rota.service.dispatcher import Dispatcher
from rota.service.explain import explain
from tests.kernel_proof.stores import Built, StorePlan, built, plans

POLICIES = registry.names()
kinds_of_slots = st.sampled_from([(), ("gpu",), ("cpu", "gpu"), ("cpu", "gpu")])
before = st.lists(st.tuples(st.integers(1, 4), kinds_of_slots), max_size=3)  # claims that were made earlier
passed_s = st.sampled_from([0.0, 0.0, 15.0, 4_000.0])  # since what is due was last done
times = st.tuples(passed_s, st.booleans())  # and whether the caller brings its own time
Claims = list[tuple[int, tuple[str, ...]]]


@contextmanager
def desk_over(plan: StorePlan, policy: str, claims: Claims) -> Iterator[tuple[Built, Dispatcher]]:
    made = built(plan, about=("w", "earlier"))
    try:
        desk = Dispatcher(made.kernel, policy)
        for most, kinds in claims:
            runs = desk.claim("earlier", most, kinds=kinds)
            ended = [Completion(run.sched_id, token=run.token) for run in runs[::2]]
            made.kernel.queue.complete_many(ended)
        yield made, desk
    finally:
        made.close()


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=settings().max_examples // 3)
@given(plan=plans(), claims=before, most=st.integers(1, 6), kinds=kinds_of_slots, time=times)
def test_exactly_what_has_no_reason_is_what_the_claim_returns(
    policy: str, *, plan: StorePlan, claims: Claims, most: int, kinds: tuple[str, ...], time: tuple[float, bool]
) -> None:
    later_s, own = time
    with desk_over(plan, policy, claims) as (made, desk):
        made.clock.advance(later_s)
        now = made.clock.now() + 1.0 if own else None
        cursor = made.kernel.journal.cursor()
        told = {
            sched_id: explain(desk, sched_id, worker_id="w", max_n=most, kinds=kinds, now=now)
            for sched_id in made.specs
        }
        assert {each.cursor for each in told.values()} == {made.kernel.journal.cursor()} == {cursor}
        claimed = [entry.sched_id for entry in desk.claim("w", most, kinds=kinds, now=now)]
        positions = {sched_id: each.position for sched_id, each in told.items() if each.starts}
        assert positions == {sched_id: at + 1 for at, sched_id in enumerate(claimed)}


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=settings().max_examples // 3)
@given(plan=plans(), claims=before, which=st.integers(0, 19), later_s=passed_s)
def test_exactly_what_is_not_blocked_can_be_forced(
    policy: str, plan: StorePlan, claims: Claims, which: int, later_s: float
) -> None:
    with desk_over(plan, policy, claims) as (made, desk):
        made.clock.advance(later_s)
        sched_id = list(made.specs)[which % len(made.specs)]
        told = explain(desk, sched_id)
        try:
            made.kernel.queue.force_claim(sched_id, worker_id="operator")
            denied = []
        except SchedAdmissionDenied as problem:
            denied = problem.data["reasons"]
        codes = [str(type(reason).__struct_config__.tag) for reason in told.blocking]
        assert [reason["code"] for reason in denied][: len(codes)] == codes
        assert bool(denied) == bool(codes)
        assert len(denied) == len(codes) or codes == ["not_queued"]  # of one that ran or runs, no more is of interest


# --- what would change it -------------------------------------------------------------------------


def apply(made: Built, told: Explanation) -> bool:
    """Make every change that is proposed; False if one of them is for people, or for time to bring."""
    for change in told.changes:
        if change.verb is None:
            return False
        part, verb = change.verb.split(".")
        arguments = dict(change.arguments)
        if "constraint" in arguments:
            arguments["constraint"] = ProjectConstraint(**arguments["constraint"])
        getattr(getattr(made.kernel, part), verb)(**arguments)
    return True


@settings(max_examples=settings().max_examples * 2)
@given(plan=plans(), claims=before, which=st.integers(0, 19), most=st.integers(1, 3))
def test_with_all_the_changes_made_the_entry_starts(plan: StorePlan, claims: Claims, which: int, most: int) -> None:
    """In strict order, where a change for its place in the order can be proposed; else it is unblocked at least."""
    with desk_over(plan, "strict", claims) as (made, desk):
        sched_id = list(made.specs)[which % len(made.specs)]
        told = explain(desk, sched_id, max_n=most, kinds=("cpu", "gpu"))
        if told.state != "queued" or not told.changes or not apply(made, told):
            return
        again = explain(desk, sched_id, max_n=most, kinds=("cpu", "gpu"))
        assert again.blocking == ()
        if any(isinstance(reason, reasons.WaitsForWorker) for reason in told.ordering):  # it only joins the others
            assert not any(isinstance(reason, reasons.WaitsForWorker) for reason in again.ordering)
        elif told.ordering:
            assert again.starts


@given(plan=plans(), which=st.integers(0, 19))
def test_every_reason_comes_with_a_change_and_every_change_with_words(plan: StorePlan, which: int) -> None:
    with desk_over(plan, "strict", []) as (made, desk):
        told = explain(desk, list(made.specs)[which % len(made.specs)], kinds=("cpu", "gpu"))
        expected = {"queued": not told.starts, "dispatched": False}  # one that runs needs nothing
        assert bool(told.changes) == expected.get(told.state, True)
        assert all(change.words for change in told.changes)
        assert all(reason.sentence() for reason in (*told.blocking, *told.ordering))

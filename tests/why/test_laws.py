"""The two laws of an explanation, on generated stores and for every policy, with no write in between.

No reason at all ⇔ that claim returns it. No blocking reason ⇔ `force_claim` succeeds. The dispatcher has claimed
before, so it has flow state in memory, and time has passed since the last maintenance.
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
from rota.service.explanation import explain
from tests.kernel_proof.stores import Built, StorePlan, built, plans

POLICIES = registry.names()
kinds_of_slots = st.sampled_from([(), ("gpu",), ("cpu", "gpu"), ("cpu", "gpu")])
before = st.lists(st.tuples(st.integers(1, 4), kinds_of_slots), max_size=3)  # earlier claims
passed_s = st.sampled_from([0.0, 0.0, 15.0, 4_000.0])  # since the last maintenance
times = st.tuples(passed_s, st.booleans())  # and whether the caller passes its own time
Claims = list[tuple[int, tuple[str, ...]]]


@contextmanager
def api_over(plan: StorePlan, policy: str, claims: Claims) -> Iterator[tuple[Built, Dispatcher]]:
    made = built(plan, about=("w", "earlier"))
    try:
        api = Dispatcher(made.kernel, policy)
        for max_n, kinds in claims:
            runs = api.claim("earlier", max_n, kinds=kinds)
            ended = [Completion(run.sched_id, token=run.token) for run in runs[::2]]
            made.kernel.queue.complete_many(ended)
        yield made, api
    finally:
        made.close()


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=settings().max_examples // 3)
@given(plan=plans(), claims=before, max_n=st.integers(1, 6), kinds=kinds_of_slots, time=times)
def test_the_claim_returns_exactly_the_entries_without_a_reason(
    policy: str, *, plan: StorePlan, claims: Claims, max_n: int, kinds: tuple[str, ...], time: tuple[float, bool]
) -> None:
    later_s, own = time
    with api_over(plan, policy, claims) as (made, api):
        made.clock.advance(later_s)
        now = made.clock.now() + 1.0 if own else None
        cursor = made.kernel.journal.cursor()
        explanation = {
            sched_id: explain(api, sched_id, worker_id="w", max_n=max_n, kinds=kinds, now=now)
            for sched_id in made.specs
        }
        assert {each.cursor for each in explanation.values()} == {made.kernel.journal.cursor()} == {cursor}
        claimed = [entry.sched_id for entry in api.claim("w", max_n, kinds=kinds, now=now)]
        positions = {sched_id: each.position for sched_id, each in explanation.items() if each.starts}
        assert positions == {sched_id: at + 1 for at, sched_id in enumerate(claimed)}


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=settings().max_examples // 3)
@given(plan=plans(), claims=before, which=st.integers(0, 19), later_s=passed_s)
def test_exactly_the_entries_that_are_not_blocked_can_be_forced(
    policy: str, plan: StorePlan, claims: Claims, which: int, later_s: float
) -> None:
    with api_over(plan, policy, claims) as (made, api):
        made.clock.advance(later_s)
        sched_id = list(made.specs)[which % len(made.specs)]
        explanation = explain(api, sched_id)
        try:
            made.kernel.queue.force_claim(sched_id, worker_id="operator")
            denied = []
        except SchedAdmissionDenied as problem:
            denied = problem.data["reasons"]
        codes = [str(type(reason).__struct_config__.tag) for reason in explanation.blocking]
        assert [reason["code"] for reason in denied][: len(codes)] == codes
        assert bool(denied) == bool(codes)
        assert len(denied) == len(codes) or codes == [
            "not_queued"
        ]  # for an entry that runs or has ended, one reason is enough


# --- suggestions ----------------------------------------------------------------------------------


def apply(made: Built, explanation: Explanation) -> bool:
    """Apply every suggestion; False if one of them is not a method call."""
    for change in explanation.changes:
        if change.verb is None:
            return False
        part, verb = change.verb.split(".")
        arguments = dict(change.arguments)
        if "constraint" in arguments:
            arguments["constraint"] = ProjectConstraint(**arguments["constraint"])
        getattr(getattr(made.kernel, part), verb)(**arguments)
    return True


@settings(max_examples=settings().max_examples * 2)
@given(plan=plans(), claims=before, which=st.integers(0, 19), max_n=st.integers(1, 3))
def test_after_all_suggested_changes_the_entry_starts(plan: StorePlan, claims: Claims, which: int, max_n: int) -> None:
    """In strict order, where a change of its priority can be suggested; otherwise it is at least unblocked."""
    with api_over(plan, "strict", claims) as (made, api):
        sched_id = list(made.specs)[which % len(made.specs)]
        explanation = explain(api, sched_id, max_n=max_n, kinds=("cpu", "gpu"))
        if explanation.state != "queued" or not explanation.changes or not apply(made, explanation):
            return
        again = explain(api, sched_id, max_n=max_n, kinds=("cpu", "gpu"))
        assert again.blocking == ()
        if any(isinstance(reason, reasons.WaitsForWorker) for reason in explanation.ordering):  # it only becomes ready
            assert not any(isinstance(reason, reasons.WaitsForWorker) for reason in again.ordering)
        elif explanation.ordering:
            assert again.starts


@given(plan=plans(), which=st.integers(0, 19))
def test_every_reason_has_a_suggestion_and_every_suggestion_a_text(plan: StorePlan, which: int) -> None:
    with api_over(plan, "strict", []) as (made, api):
        explanation = explain(api, list(made.specs)[which % len(made.specs)], kinds=("cpu", "gpu"))
        expected = {"queued": not explanation.starts, "dispatched": False}  # a running entry needs no change
        assert bool(explanation.changes) == expected.get(explanation.state, True)
        assert all(change.words for change in explanation.changes)
        assert all(reason.sentence() for reason in (*explanation.blocking, *explanation.ordering))

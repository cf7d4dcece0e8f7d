"""Who may run: what a claim hands out, what `policy/eligibility` says, and what plain counting says are one answer.

Three ways to find it, on generated stores. A claim finds it with SQL filters that exclude what they can. The brute
force asks the kernel's admission about every row there is, in order. The plain rules (plain_rules.py) share no code
with either. All three must agree, for every policy: what is handed out was allowed, and what is left was not.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota import store
from rota.clock import ManualClock
from rota.errors import SchedAdmissionDenied
from rota.kernel import Kernel, ReadyEntry, ScheduleSpec
from rota.kernel.claim_checks import CheckedEntry, ClaimChecks
from rota.kernel.claim_pass import begin_claim
from rota.kernel.environment import KernelCache, read_due_summary
from rota.kernel.turn import make_turn_request
from rota.model.events import PolicyFellBack
from rota.model.work import ProjectConstraint
from rota.policy import registry
from rota.service.dispatcher import Dispatcher
from rota.store import Transaction
from rota.store.statements import queue as queue_sql
from tests.kernel_proof.reference_rules import Rules
from tests.kernel_proof.stores import START_AT, Built, StorePlan, built, plans

EVERYTHING = 1_000
POLICIES = registry.names()
kinds_of_slots = st.sampled_from([(), ("gpu",), ("cpu",), ("cpu", "gpu")])


@contextmanager
def made_from(plan: StorePlan) -> Iterator[Built]:
    made = built(plan)
    try:
        yield made
    finally:
        made.close()


def fits(entry: ReadyEntry, kinds: tuple[str, ...]) -> bool:
    """Whether a worker with these slots may claim it; entries held for other workers are not."""
    return entry.hold != "worker" and (entry.kind is None or entry.kind in kinds)


def ids_of(entries: list[ReadyEntry]) -> list[int]:
    return [entry.sched_id for entry in entries]


def codes(tx: Transaction, admission: ClaimChecks, sched_id: int) -> set[str]:
    """What the kernel's admission says about an entry, as codes."""
    row = tx.run(queue_sql.GET, (sched_id,))[0]
    return {
        str(type(reason).__struct_config__.tag) for reason in admission.blocking_reasons(CheckedEntry.from_row(row))
    }


def by_claim_checks(made: Built, most: int, kinds: tuple[str, ...]) -> list[int]:
    """The first that nothing blocks, asking about every row in strict order, each counting for those after it."""
    order = [entry.sched_id for entry in Rules(made).in_strict_order() if fits(entry, kinds)]

    def work(tx: Transaction) -> list[int]:
        admission = ClaimChecks(tx, KernelCache(), made.clock.now(), read_due_summary(tx))
        taken: list[int] = []
        for sched_id in order:
            if len(taken) < most and not codes(tx, admission, sched_id):
                admission.add_claim(CheckedEntry.from_row(tx.run(queue_sql.GET, (sched_id,))[0]))
                taken.append(sched_id)
        return taken

    return made.kernel.store.read(work)


def by_plain_rules(made: Built, most: int, kinds: tuple[str, ...]) -> list[int]:
    rules = Rules(made)
    for entry in rules.in_strict_order():
        if len(rules.taken) < most and fits(entry, kinds) and not rules.blocked(entry):
            rules.take(entry)
    return ids_of(rules.taken)


# --- strict order --------------------------------------------------------------------------------


@given(plans(), st.integers(1, 20), kinds_of_slots)
def test_a_claim_takes_what_a_look_at_every_row_would_take(plan: StorePlan, most: int, kinds: tuple[str, ...]) -> None:
    with made_from(plan) as made:
        expected = by_claim_checks(made, most, kinds)
        assert expected == by_plain_rules(made, most, kinds)
        assert ids_of(made.kernel.queue.claim(worker_id="w", max_n=most, kinds=kinds)) == expected


@given(plans(), kinds_of_slots)
def test_many_claims_of_one_take_what_one_claim_of_many_takes(plan: StorePlan, kinds: tuple[str, ...]) -> None:
    with made_from(plan) as one_by_one, made_from(plan) as together:
        taken: list[int] = []
        while entries := one_by_one.kernel.queue.claim(worker_id="w", kinds=kinds):
            taken += ids_of(entries)
        assert taken == ids_of(together.kernel.queue.claim(worker_id="w", max_n=EVERYTHING, kinds=kinds))


@given(plans())
def test_without_admission_check_only_budgets_are_passed_over(plan: StorePlan) -> None:
    with made_from(plan) as made:
        rules = Rules(made)
        budgets = {"over_budget", "limit_exhausted", "context_depleted"}
        for entry in rules.in_strict_order():
            if fits(entry, ("cpu", "gpu")) and not rules.blocked(entry) - budgets:
                rules.take(entry)
        claimed = made.kernel.queue.claim(worker_id="w", max_n=EVERYTHING, kinds=("cpu", "gpu"), admission_check=False)
        assert ids_of(claimed) == ids_of(rules.taken)


# --- one entry -----------------------------------------------------------------------------------


@given(plans(), st.randoms())
def test_an_entry_can_be_forced_exactly_when_nothing_blocks_it(plan: StorePlan, rng: random.Random) -> None:
    with made_from(plan) as made:
        order = list(made.specs)
        rng.shuffle(order)
        for sched_id in order:
            rules = Rules(made)
            expected = rules.blocked(rules.entries[sched_id])

            def work(tx: Transaction, sched_id: int = sched_id) -> set[str]:
                return codes(tx, ClaimChecks(tx, KernelCache(), made.clock.now(), read_due_summary(tx)), sched_id)

            assert made.kernel.store.read(work) == expected
            assert forced(made, sched_id) == expected


def forced(made: Built, sched_id: int) -> set[str]:
    """Why an entry could not be forced; nothing if it could."""
    before = made.kernel.journal.cursor()
    try:
        entry = made.kernel.queue.force_claim(sched_id, worker_id="operator")
    except SchedAdmissionDenied as denied:
        assert made.kernel.journal.cursor() == before
        return {reason["code"] for reason in denied.data["reasons"]}
    assert (entry.state, entry.worker_id) == ("dispatched", "operator")
    return set()


# --- every policy --------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=settings().max_examples // 2)
@given(plan=plans(), claims=st.lists(st.tuples(st.integers(1, 5), kinds_of_slots), max_size=3), kinds=kinds_of_slots)
def test_every_policy_claims_only_eligible_entries_and_a_large_claim_leaves_none(
    policy: str, plan: StorePlan, claims: list[tuple[int, tuple[str, ...]]], kinds: tuple[str, ...]
) -> None:
    """One dispatcher serves workers with different slots: one that cannot take an entry hides it from no other."""
    with made_from(plan) as made:
        dispatcher = Dispatcher(made.kernel, policy)
        for most, slots in (*claims, (EVERYTHING, kinds), (EVERYTHING, ("cpu", "gpu"))):
            rules = Rules(made)
            claimed = dispatcher.claim("w", most, kinds=slots)
            assert len(claimed) <= most
            check_each_was_allowed(rules, claimed, slots)
            if most == EVERYTHING:
                assert what_may_run(made, slots) == []
        check_workspaces(Rules(made))
        assert fell_back(made) == []


def check_each_was_allowed(rules: Rules, claimed: list[ReadyEntry], kinds: tuple[str, ...]) -> None:
    """Nothing blocked an entry at the moment it was taken, after those that were taken before it; none came twice."""
    assert len(set(ids_of(claimed))) == len(claimed)
    for entry in claimed:
        assert fits(entry, kinds)
        assert rules.blocked(rules.entries[entry.sched_id]) == set()
        rules.take(rules.entries[entry.sched_id])


def what_may_run(made: Built, kinds: tuple[str, ...]) -> list[int]:
    rules = Rules(made)
    return [entry.sched_id for entry in rules.entries.values() if fits(entry, kinds) and not rules.blocked(entry)]


def check_workspaces(rules: Rules) -> None:
    """A workspace is held by the live runs that were given it: one that wants it alone, or some that share."""
    for workspaces in rules.workspaces.values():
        for workspace in workspaces:
            given = [entry for entry in rules.live if entry.workspace == workspace.workspace_id]
            modes = {entry.sched_id: rules.spec(entry).workspace_mode for entry in given}
            held = {sched_id: mode for sched_id, mode in modes.items() if mode is not None}
            assert workspace.held_by == tuple(held)
            assert len(held) <= 1 or set(held.values()) == {"shared"}


def fell_back(made: Built) -> list[str]:
    """Policies that strict order had to stand in for: ours never fail."""
    events = made.kernel.journal.tail(limit=10_000)
    return [event.payload["policy"] for event in events if event.kind == PolicyFellBack.kind]


# --- stories that the generated stores told --------------------------------------------------------


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    made = Kernel(store.open(":memory:", clock=ManualClock(START_AT)))
    made.projects.create("p")
    yield made
    made.store.close()


@pytest.mark.parametrize("policy", POLICIES)
def test_an_entry_whose_kind_is_at_its_cap_hides_nothing_behind_it(kernel: Kernel, policy: str) -> None:
    kernel.projects.constrain("p", ProjectConstraint(max_by_kind={"gpu": 0}))
    pid = kernel.agents.create("a", project_id="p")
    for _ in range(20):
        kernel.queue.enqueue(ScheduleSpec(pid, 9, kind="gpu"))
    plain = kernel.queue.enqueue(ScheduleSpec(pid))
    assert ids_of(Dispatcher(kernel, policy).claim("w", 1, kinds=("gpu",))) == [plain]


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_refused_for_its_kind_is_not_refused_for_its_needs(kernel: Kernel, policy: str) -> None:
    kernel.projects.constrain("p", ProjectConstraint(max_by_kind={"gpu": 0}))
    pid = kernel.agents.create("a", project_id="p")
    kernel.queue.enqueue(ScheduleSpec(pid, 9, kind="gpu", expected={"tokens": 5}))
    same_needs = kernel.queue.enqueue(ScheduleSpec(pid, expected={"tokens": 5}))
    assert ids_of(Dispatcher(kernel, policy).claim("w", 1, kinds=("gpu",))) == [same_needs]


@pytest.mark.parametrize("policy", POLICIES)
def test_however_many_are_refused_for_reasons_of_their_own_the_one_behind_them_is_found(
    kernel: Kernel, policy: str
) -> None:
    kernel.ledger.set_budget("project", "p", "tokens", 100)
    pid = kernel.agents.create("a", project_id="p")
    for number in range(30):
        kernel.queue.enqueue(ScheduleSpec(pid, 9, expected={"tokens": 101 + number}))
    modest = kernel.queue.enqueue(ScheduleSpec(pid, expected={"tokens": 100}))
    assert ids_of(Dispatcher(kernel, policy).claim("w", 1)) == [modest]


@pytest.mark.parametrize("policy", POLICIES)
def test_one_that_does_not_fit_does_not_make_another_be_taken_twice(kernel: Kernel, policy: str) -> None:
    pid = kernel.agents.create("a", project_id="p")
    kernel.queue.enqueue(ScheduleSpec(pid, 9, kind="gpu"))
    ids = [kernel.queue.enqueue(ScheduleSpec(pid)) for _ in range(3)]
    assert sorted(ids_of(Dispatcher(kernel, policy).claim("w", 9))) == ids
    assert all(kernel.queue.get(sched_id).attempt == 1 for sched_id in ids)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_agent_that_was_refused_is_served_once_nothing_stands_in_its_way(kernel: Kernel, policy: str) -> None:
    """Each time by the same dispatcher, which has to notice."""
    api = Dispatcher(kernel, policy)
    capped = kernel.agents.create("a", project_id="p", max_concurrent=0)
    first, second = (kernel.queue.enqueue(ScheduleSpec(capped)) for _ in range(2))
    assert api.claim("w", 9) == []
    kernel.agents.update(capped, max_concurrent=1)
    (run,) = api.claim("w", 9)
    assert (run.sched_id, api.claim("w", 9)) == (first, [])
    kernel.queue.complete(first, "completed", token=run.token)
    kernel.projects.move("p", "pause")
    assert api.claim("w", 9) == []
    kernel.projects.move("p", "resume")
    assert ids_of(api.claim("w", 9)) == [second]


def test_what_an_agents_own_context_pays_for_is_not_held_against_its_projects(kernel: Kernel) -> None:
    """Exactly one authority pays: the nearer one."""
    rich, poor = (kernel.agents.create(name, project_id="p") for name in ("rich", "poor"))
    kernel.contexts.create(bound_to="project", bound_id="p", budget=10, period_s=60)
    kernel.contexts.create(bound_to="agent", bound_id=rich, budget=10, period_s=60)
    first, second = (kernel.queue.enqueue(ScheduleSpec(pid, expected={"tokens": 10})) for pid in (rich, poor))
    assert ids_of(kernel.queue.claim(worker_id="w")) == [first]
    assert ids_of(kernel.queue.claim(worker_id="w")) == [second]


def test_a_pass_that_proposes_an_entry_twice_claims_it_once() -> None:
    kernel = Kernel(store.open(":memory:"))
    kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("a")))

    def work(tx: Transaction) -> tuple[list[str | None], int]:
        claim = begin_claim(tx, kernel.env, kernel.queue.maintenance, make_turn_request(worker_id="w", max_n=3))
        (row,) = claim.ready_entries()
        refused = [claim.try_claim(row), claim.try_claim(row)]
        return [None if each is None else each.sentence() for each in refused], len(claim.write())

    (first, second), claimed = kernel.store.write(work)
    assert first is None
    assert second is not None
    assert claimed == 1
    kernel.store.close()

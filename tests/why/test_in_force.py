"""Asked from outside, an explanation goes by the policy that is really in force on the store, and says how it knows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota import store
from rota.clock import ManualClock
from rota.fleet.config.file import load
from rota.fleet.fleet_run import FleetRun
from rota.kernel import Kernel, ScheduleSpec
from rota.model.explanation import Explanation
from rota.model.reasons import Because
from rota.model.snapshot import Decision, Decisions, Snapshot
from rota.policy import registry
from rota.policy.contract import Policy
from rota.service.dispatcher import Dispatcher
from rota.service.explain import explain
from rota.service.policy_in_force import announce
from tests.daemon.web import call
from tests.daemon.world import make_token, serving
from tests.kernel_proof.stores import StorePlan, built, plans


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    made = Kernel(store.open(":memory:", clock=ManualClock(1_000.0)))
    yield made
    made.store.close()


def busy(kernel: Kernel) -> int:
    """Two projects, of which one has been served, and entries of both; the one that a fair policy takes next."""
    pids = []
    for name in ("greedy", "modest"):
        kernel.projects.create(name)
        pids.append(kernel.agents.create(name, project_id=name))
    for _ in range(6):
        kernel.queue.enqueue(ScheduleSpec(pids[0], priority=9, expected={"tokens": 100}))
    return kernel.queue.enqueue(ScheduleSpec(pids[1], expected={"tokens": 100}))


def ask(kernel: Kernel, sched_id: int, **how: str) -> Explanation:
    """Ask as the command line does: with a desk that never claims, and has no policy of anybody's choosing."""
    return explain(Dispatcher(kernel), sched_id, from_outside=True, **how)  # type: ignore[arg-type]


# --- how it is known -----------------------------------------------------------------------------


def test_the_newest_claim_says_which_policy_is_in_force(kernel: Kernel) -> None:
    modest = busy(kernel)
    (claimed,) = Dispatcher(kernel, "eevdf").claim("worker")
    told = ask(kernel, modest)
    assert (told.starts, told.policy) == (True, "eevdf"), "in strict order five would go first"
    assert told.policy_source == f"the newest claim, event {claimed.token}, went by it"
    strict = ask(kernel, modest, policy="strict")
    assert (strict.starts, strict.policy, strict.policy_source) == (False, "strict", "it was asked for")


def test_a_later_claim_by_another_policy_is_believed(kernel: Kernel) -> None:
    modest = busy(kernel)
    Dispatcher(kernel, "eevdf").claim("worker")
    Dispatcher(kernel, "round_robin").claim("worker")
    assert ask(kernel, modest).policy == "round_robin"
    Dispatcher(kernel).claim("worker")
    assert ask(kernel, modest).policy == "strict"


def test_forcing_an_entry_changes_nobodys_policy(kernel: Kernel) -> None:
    busy(kernel)
    Dispatcher(kernel, "eevdf").claim("worker")
    kernel.queue.force_claim(3, worker_id="operator")
    assert ask(kernel, 4).policy == "eevdf"


def test_where_nothing_was_claimed_it_is_the_default(kernel: Kernel) -> None:
    told = ask(kernel, busy(kernel))
    assert (told.policy, told.policy_source) == ("strict", "nothing was claimed yet, so it is the default")


def test_a_note_says_it_before_anything_is_claimed_and_knows_the_parameters() -> None:
    clock = ManualClock(1_000.0)
    kernel = Kernel(store.open(":memory:", clock=clock))
    old = kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("patient")))
    clock.advance(100.0)
    kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("important"), priority=9))
    announce(kernel.journal, "weighted_priority", by="fleet research")
    told = ask(kernel, old)
    assert (told.policy, told.policy_source) == ("weighted_priority", "fleet research goes by it")
    assert told.starts, "it has waited long enough"
    announce(kernel.journal, "weighted_priority", by="fleet research", params={"starvation_boost": 0.0})
    assert not ask(kernel, old).starts, "and that is worth nothing here"
    kernel.store.close()


def test_a_claim_that_does_not_agree_with_the_note_is_newer(kernel: Kernel) -> None:
    modest = busy(kernel)
    announce(kernel.journal, "fair_share", by="fleet research")
    Dispatcher(kernel, "eevdf").claim("worker")
    assert ask(kernel, modest).policy == "eevdf"
    Dispatcher(kernel, "fair_share").claim("worker")
    assert ask(kernel, modest).policy_source == "fleet research goes by it"


def fails(_: Snapshot) -> Decisions:
    raise ZeroDivisionError


def backwards(snapshot: Snapshot) -> Decisions:
    order = sorted(snapshot.candidates, key=lambda candidate: -candidate.id)
    slots = zip(order, snapshot.slots, strict=False)
    return tuple(Decision(each.id, slot.id, Because("mine", "last in, first out")) for each, slot in slots)


def test_a_policy_that_failed_is_still_the_one_in_force(kernel: Kernel) -> None:
    modest = busy(kernel)
    announce(kernel.journal, "edf", by="fleet research")
    failing = Policy(name="edf", rank=fails, sentence="Never well.")
    (claimed,) = Dispatcher(kernel, failing).claim("worker")
    assert claimed.priority == 9, "strict order took its place"
    assert ask(kernel, modest).policy == "edf"


def test_a_policy_that_only_another_program_knows_is_named_and_the_default_taken(kernel: Kernel) -> None:
    modest = busy(kernel)
    mine = Policy(name="mine", rank=backwards, sentence="Last in, first out.")
    (claimed,) = Dispatcher(kernel, mine).claim("worker")
    told = ask(kernel, 1)
    assert claimed.sched_id == modest
    assert told.policy == "strict"
    assert told.policy_source == (
        f"the newest claim, event {claimed.token}, went by mine, which is not known here: this is the default"
    )


def test_only_the_policy_is_named_in_that_sentence_whatever_the_fleet_is_called(kernel: Kernel) -> None:
    announce(kernel.journal, "mine", by="fleet do it items")
    source = ask(kernel, busy(kernel)).policy_source
    assert source == "fleet do it items goes by mine, which is not known here: this is the default"


def test_a_note_of_somebody_else_under_that_name_is_passed_over(kernel: Kernel) -> None:
    kernel.journal.remember("policy", {"of": "the house"})
    assert ask(kernel, busy(kernel)).policy == "strict"


def test_a_desk_that_is_asked_about_its_own_claims_goes_by_its_own_policy(kernel: Kernel) -> None:
    modest = busy(kernel)
    Dispatcher(kernel, "eevdf").claim("worker")
    told = explain(Dispatcher(kernel, "edf"), modest)
    assert (told.policy, told.policy_source) == ("edf", "it is this desk's own")


# --- the law -------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", registry.names())
@settings(max_examples=settings().max_examples // 5)
@given(plan=plans(), earlier=st.integers(1, 4), most=st.integers(1, 5))
def test_asked_from_outside_what_has_no_reason_is_what_a_claim_by_that_policy_returns(
    policy: str, plan: StorePlan, earlier: int, most: int
) -> None:
    made = built(plan)
    try:
        claimed = Dispatcher(made.kernel, policy).claim("earlier", earlier)
        desk = Dispatcher(made.kernel)
        told = [explain(desk, sched_id, max_n=most, from_outside=True) for sched_id in made.specs]
        assert {each.policy for each in told} <= ({policy} if claimed else {"strict"})
        starting = {each.sched_id for each in told if each.starts}
        assert starting == {entry.sched_id for entry in desk.claim("w", most, policy=told[0].policy)}
    finally:
        made.close()


# --- who leaves notes ----------------------------------------------------------------------------


def test_a_daemon_says_by_which_policy_it_goes(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db", policy="eevdf") as served, served.client() as client:
        modest = busy(served.daemon.office.kernel)
        told = client.explain(modest)
        assert (told.policy, told.policy_source) == ("eevdf", "the daemon goes by it")
        over_http = call(served.url, make_token(served.path, "read"), "kernel.sched.explain", {"sched_id": modest})
        assert over_http["result"]["policy_source"] == "the daemon goes by it"
        client.claim("worker", policy="round_robin")
        assert client.explain(modest).policy == "round_robin"
        (entry,) = client.claim("worker")
        assert client.explain(modest if entry.sched_id != modest else 1).policy == "eevdf"


def test_a_fleet_says_by_which_policy_it_goes_and_says_it_again_when_that_changes(tmp_path: Path) -> None:
    file = tmp_path / "research.toml"
    text = '[agents.reader]\ncommand = ["true"]\n'
    file.write_text('policy = "fair_share"\n' + text)
    fleet = load(file)
    kernel = Kernel(store.open(fleet.store_path))
    running = FleetRun(Dispatcher(kernel, registry.make(fleet.policy_name, **fleet.policy_params)), fleet)
    sched_id = kernel.queue.enqueue(ScheduleSpec(1))
    told = ask(kernel, sched_id)
    assert (told.policy, told.policy_source) == ("fair_share", "fleet research goes by it")
    file.write_text('policy = "eevdf"\n' + text)
    assert running.reload() is not None
    assert ask(kernel, sched_id).policy == "eevdf"
    kernel.store.close()

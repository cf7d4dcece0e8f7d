"""For a caller that does not claim, an explanation uses the policy in force on the store and says how it is known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota import store
from rota.clock import ManualClock
from rota.fleet.config.loader import load_fleet
from rota.fleet.fleet_run import FleetRun
from rota.kernel import Kernel, ScheduleSpec
from rota.model.explanation import Explanation
from rota.model.reasons import PickReason
from rota.model.snapshot import Decision, Decisions, Snapshot
from rota.policy import registry
from rota.policy.contract import Policy
from rota.service.dispatcher import Dispatcher
from rota.service.explanation import explain
from rota.service.policy_in_force import record_policy
from tests.daemon.harness import make_token, serving
from tests.daemon.http_client import call
from tests.kernel_proof.stores import StorePlan, built, plans


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    made = Kernel(store.open(":memory:", clock=ManualClock(1_000.0)))
    yield made
    made.store.close()


def busy(kernel: Kernel) -> int:
    """Create two projects with entries, one favoured by priority. Return the entry that a fair policy takes next."""
    pids = []
    for name in ("greedy", "modest"):
        kernel.projects.create(name)
        pids.append(kernel.agents.create(name, project_id=name))
    for _ in range(6):
        kernel.queue.enqueue(ScheduleSpec(pids[0], priority=9, expected={"tokens": 100}))
    return kernel.queue.enqueue(ScheduleSpec(pids[1], expected={"tokens": 100}))


def ask(kernel: Kernel, sched_id: int, **options: str) -> Explanation:
    """Ask as the command line does: with a dispatcher that never claims and has the default policy."""
    return explain(Dispatcher(kernel), sched_id, policy_from_store=True, **options)  # type: ignore[arg-type]


# --- how it is known -----------------------------------------------------------------------------


def test_the_newest_claim_tells_the_policy_in_force(kernel: Kernel) -> None:
    modest = busy(kernel)
    (claimed,) = Dispatcher(kernel, "eevdf").claim("worker")
    explanation = ask(kernel, modest)
    assert (explanation.starts, explanation.policy) == (True, "eevdf"), "in strict order five would go first"
    assert explanation.policy_source == f"used by the newest claim, event {claimed.token}"
    strict = ask(kernel, modest, policy="strict")
    assert (strict.starts, strict.policy, strict.policy_source) == (False, "strict", "named in the request")


def test_a_later_claim_by_another_policy_decides(kernel: Kernel) -> None:
    modest = busy(kernel)
    Dispatcher(kernel, "eevdf").claim("worker")
    Dispatcher(kernel, "round_robin").claim("worker")
    assert ask(kernel, modest).policy == "round_robin"
    Dispatcher(kernel).claim("worker")
    assert ask(kernel, modest).policy == "strict"


def test_a_forced_claim_does_not_change_the_policy_in_force(kernel: Kernel) -> None:
    busy(kernel)
    Dispatcher(kernel, "eevdf").claim("worker")
    kernel.queue.force_claim(3, worker_id="operator")
    assert ask(kernel, 4).policy == "eevdf"


def test_without_claims_it_is_the_default(kernel: Kernel) -> None:
    explanation = ask(kernel, busy(kernel))
    assert (explanation.policy, explanation.policy_source) == ("strict", "the default: no claim was made yet")


def test_a_recorded_policy_applies_before_any_claim_with_its_parameters() -> None:
    clock = ManualClock(1_000.0)
    kernel = Kernel(store.open(":memory:", clock=clock))
    old = kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("patient")))
    clock.advance(100.0)
    kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("important"), priority=9))
    record_policy(kernel.journal, "weighted_priority", by="fleet research")
    explanation = ask(kernel, old)
    assert (explanation.policy, explanation.policy_source) == ("weighted_priority", "used by fleet research")
    assert explanation.starts, "its waiting time outweighs the priority"
    record_policy(kernel.journal, "weighted_priority", by="fleet research", params={"starvation_boost": 0.0})
    assert not ask(kernel, old).starts, "without the boost waiting does not count"
    kernel.store.close()


def test_a_claim_by_another_policy_than_the_recorded_one_decides(kernel: Kernel) -> None:
    modest = busy(kernel)
    record_policy(kernel.journal, "fair_share", by="fleet research")
    Dispatcher(kernel, "eevdf").claim("worker")
    assert ask(kernel, modest).policy == "eevdf"
    Dispatcher(kernel, "fair_share").claim("worker")
    assert ask(kernel, modest).policy_source == "used by fleet research"


def fails(_: Snapshot) -> Decisions:
    raise ZeroDivisionError


def backwards(snapshot: Snapshot) -> Decisions:
    order = sorted(snapshot.candidates, key=lambda candidate: -candidate.id)
    slots = zip(order, snapshot.slots, strict=False)
    return tuple(Decision(each.id, slot.id, PickReason("mine", "last in, first out")) for each, slot in slots)


def test_a_failed_policy_is_still_in_force(kernel: Kernel) -> None:
    modest = busy(kernel)
    record_policy(kernel.journal, "edf", by="fleet research")
    failing = Policy(name="edf", rank=fails, sentence="Always fails.")
    (claimed,) = Dispatcher(kernel, failing).claim("worker")
    assert claimed.priority == 9, "strict order replaced it"
    assert ask(kernel, modest).policy == "edf"


def test_a_policy_that_is_not_installed_is_named_and_the_default_used(kernel: Kernel) -> None:
    modest = busy(kernel)
    mine = Policy(name="mine", rank=backwards, sentence="Last in, first out.")
    (claimed,) = Dispatcher(kernel, mine).claim("worker")
    explanation = ask(kernel, 1)
    assert claimed.sched_id == modest
    assert explanation.policy == "strict"
    assert explanation.policy_source == (
        f"the default: the newest claim, event {claimed.token} uses mine, which is not installed here"
    )


def test_the_name_of_the_fleet_is_quoted_as_it_is(kernel: Kernel) -> None:
    record_policy(kernel.journal, "mine", by="fleet do it items")
    source = ask(kernel, busy(kernel)).policy_source
    assert source == "the default: fleet do it items uses mine, which is not installed here"


def test_a_note_in_another_format_is_ignored(kernel: Kernel) -> None:
    kernel.journal.remember("policy", {"of": "the house"})
    assert ask(kernel, busy(kernel)).policy == "strict"


def test_explain_uses_the_policy_of_the_dispatcher_it_is_given(kernel: Kernel) -> None:
    modest = busy(kernel)
    Dispatcher(kernel, "eevdf").claim("worker")
    explanation = explain(Dispatcher(kernel, "edf"), modest)
    assert (explanation.policy, explanation.policy_source) == ("edf", "the policy of this dispatcher")


# --- the law -------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", registry.names())
@settings(max_examples=settings().max_examples // 5)
@given(plan=plans(), earlier=st.integers(1, 4), max_n=st.integers(1, 5))
def test_entries_without_a_reason_are_those_that_a_claim_by_the_policy_in_force_returns(
    policy: str, plan: StorePlan, earlier: int, max_n: int
) -> None:
    made = built(plan)
    try:
        claimed = Dispatcher(made.kernel, policy).claim("earlier", earlier)
        api = Dispatcher(made.kernel)
        explanation = [explain(api, sched_id, max_n=max_n, policy_from_store=True) for sched_id in made.specs]
        assert {each.policy for each in explanation} <= ({policy} if claimed else {"strict"})
        starting = {each.sched_id for each in explanation if each.starts}
        assert starting == {entry.sched_id for entry in api.claim("w", max_n, policy=explanation[0].policy)}
    finally:
        made.close()


# --- recording the policy ------------------------------------------------------------------------


def test_a_daemon_records_its_policy(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db", policy="eevdf") as served, served.client() as client:
        modest = busy(served.daemon.handlers.kernel)
        explanation = client.explain(modest)
        assert (explanation.policy, explanation.policy_source) == ("eevdf", "used by the daemon")
        over_http = call(served.url, make_token(served.path, "read"), "kernel.sched.explain", {"sched_id": modest})
        assert over_http["result"]["policy_source"] == "used by the daemon"
        client.claim("worker", policy="round_robin")
        assert client.explain(modest).policy == "round_robin"
        (entry,) = client.claim("worker")
        assert client.explain(modest if entry.sched_id != modest else 1).policy == "eevdf"


def test_a_fleet_records_its_policy_and_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "research.toml"
    text = '[agents.reader]\ncommand = ["true"]\n'
    file.write_text('policy = "fair_share"\n' + text)
    fleet = load_fleet(file)
    kernel = Kernel(store.open(fleet.store_path))
    running = FleetRun(Dispatcher(kernel, registry.make(fleet.policy_name, **fleet.policy_params)), fleet)
    sched_id = kernel.queue.enqueue(ScheduleSpec(1))
    explanation = ask(kernel, sched_id)
    assert (explanation.policy, explanation.policy_source) == ("fair_share", "used by fleet research")
    file.write_text('policy = "eevdf"\n' + text)
    assert running.reload() is not None
    assert ask(kernel, sched_id).policy == "eevdf"
    kernel.store.close()

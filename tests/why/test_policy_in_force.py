"""For a caller that does not claim, an explanation uses the policy in force on the store and says how it is known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota import store
from rota.clock import ManualClock
from rota.errors import PolicyDiffers
from rota.fleet.config.loader import load_fleet
from rota.fleet.fleet_run import FleetRun
from rota.kernel import Kernel, ScheduleSpec
from rota.kernel.settings import write_setting
from rota.model.explanation import Explanation
from rota.model.policy_setting import PolicySetting
from rota.model.reasons import PickReason
from rota.model.snapshot import Decision, Decisions, Snapshot
from rota.policy import registry
from rota.policy.contract import Policy
from rota.service.dispatcher import Dispatcher
from rota.service.explanation import explain
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


def set_policy(kernel: Kernel, name: str, **params: object) -> None:
    """Make a policy the store's, as a fleet does."""
    Dispatcher(kernel).policies.set(name, params, by="fleet research")


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
    assert (explanation.policy, explanation.policy_source) == ("eevdf", "the default: no claim was made yet")


def test_a_recorded_policy_applies_before_any_claim_with_its_parameters() -> None:
    clock = ManualClock(1_000.0)
    kernel = Kernel(store.open(":memory:", clock=clock))
    old = kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("patient")))
    clock.advance(100.0)
    kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("important"), priority=9))
    set_policy(kernel, "weighted_priority")
    explanation = ask(kernel, old)
    assert (explanation.policy, explanation.policy_source) == ("weighted_priority", "set by fleet research")
    assert explanation.starts, "its waiting time outweighs the priority"
    set_policy(kernel, "weighted_priority", starvation_boost=0.0)
    assert not ask(kernel, old).starts, "without the boost waiting does not count"
    kernel.store.close()


def test_a_claim_cannot_name_another_policy_than_the_store_has(kernel: Kernel) -> None:
    busy(kernel)
    set_policy(kernel, "fair_share")
    with pytest.raises(PolicyDiffers, match=r"fair_share\(min_guarantee=True\), set by fleet research"):
        Dispatcher(kernel).claim("worker", policy="eevdf")
    assert kernel.queue.counts() == {"queued": 7}
    Dispatcher(kernel).claim("worker", policy="fair_share")


def fails(_: Snapshot) -> Decisions:
    raise ZeroDivisionError


def backwards(snapshot: Snapshot) -> Decisions:
    order = sorted(snapshot.candidates, key=lambda candidate: -candidate.id)
    slots = zip(order, snapshot.slots, strict=False)
    return tuple(Decision(each.id, slot.id, PickReason("mine", "last in, first out")) for each, slot in slots)


def test_a_failed_policy_is_still_in_force(kernel: Kernel) -> None:
    modest = busy(kernel)
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
    assert explanation.policy == "eevdf"
    assert explanation.policy_source == (
        f"the default: the newest claim, event {claimed.token} uses mine, which is not installed here"
    )


def test_a_policy_of_the_store_that_is_not_installed_is_named(kernel: Kernel) -> None:
    kernel.policies.set(PolicySetting(name="mine", by="fleet do it items"), by="fleet do it items", replace=False)
    explanation = ask(kernel, busy(kernel))
    assert explanation.policy == "strict"
    assert explanation.policy_source == (
        "mine, set by fleet do it items, and not installed here: strict order replaces it"
    )


def test_a_setting_in_another_format_is_ignored(kernel: Kernel) -> None:
    kernel.store.write(lambda tx: write_setting(tx, "policy", '{"of": "the house"}'))
    assert ask(kernel, busy(kernel)).policy == "eevdf"


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
        # that of a plain claim is told by its name alone, and by this name the default is meant
        chosen = registry.default_policy() if policy == registry.DEFAULT_NAME else registry.make(policy)
        claimed = Dispatcher(made.kernel, chosen).claim("earlier", earlier)
        api = Dispatcher(made.kernel)
        explanation = [explain(api, sched_id, max_n=max_n, policy_from_store=True) for sched_id in made.specs]
        assert {each.policy for each in explanation} <= ({policy} if claimed else {registry.DEFAULT_NAME})
        starting = {each.sched_id for each in explanation if each.starts}
        used = chosen if claimed else registry.default_policy()
        assert starting == {entry.sched_id for entry in api.claim("w", max_n, policy=used)}
    finally:
        made.close()


# --- recording the policy ------------------------------------------------------------------------


def test_a_daemon_records_a_policy_that_it_is_given(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db", policy="fair_share") as served, served.client() as client:
        modest = busy(served.daemon.handlers.kernel)
        explanation = client.explain(modest)
        assert (explanation.policy, explanation.policy_source) == ("fair_share", "set by rota serve --policy")
        over_http = call(served.url, make_token(served.path, "read"), "kernel.sched.explain", {"sched_id": modest})
        assert over_http["result"]["policy_source"] == "set by rota serve --policy"
        with pytest.raises(PolicyDiffers):
            client.claim("worker", policy="round_robin")
        client.policies.set("round_robin", by="ann")
        assert client.explain(modest).policy_source == "set by ann"
    with serving(tmp_path / "rota.db") as served, served.client() as client:
        assert client.policies.get().name == "round_robin", "a daemon without an opinion keeps what the store has"


def test_a_default_records_nothing(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db") as served, served.client() as client:
        busy(served.daemon.handlers.kernel)
        client.turn([], "worker")
        assert client.policies.get().set_by is None
        assert [event for event in client.journal.tail() if event.kind == "kernel.policy.chosen"] == []


def test_a_fleet_records_its_policy_and_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "research.toml"
    text = '[agents.reader]\ncommand = ["true"]\n'
    file.write_text('policy = "fair_share"\n' + text)
    fleet = load_fleet(file)
    kernel = Kernel(store.open(fleet.store_path))
    running = FleetRun(Dispatcher(kernel), fleet)
    sched_id = kernel.queue.enqueue(ScheduleSpec(1))
    explanation = ask(kernel, sched_id)
    assert (explanation.policy, explanation.policy_source) == ("fair_share", "set by fleet research")
    file.write_text('policy = "fair_share"\n' + text + "[scheduling]\nmin_task_guarantee = false\n")
    assert running.reload() is not None
    assert kernel.policies.get().setting == PolicySetting(
        name="fair_share", params={"min_guarantee": False}, by="fleet research"
    ), "a changed parameter is applied"
    file.write_text('policy = {name = "wfq", isolation = "process"}\n' + text)
    assert running.reload() is not None
    assert kernel.policies.get().setting == PolicySetting(
        name="wfq", params={"priority_first": False}, isolation="process", by="fleet research"
    )
    file.write_text(text)
    assert running.reload() is not None
    assert kernel.policies.get().setting is None, "the file takes back what it said"
    kernel.store.close()


def test_a_second_opinion_is_refused_and_names_the_first(tmp_path: Path) -> None:
    for name, policy in (("first", "fair_share"), ("second", "eevdf")):
        (tmp_path / f"{name}.toml").write_text(f'policy = "{policy}"\n[agents.{name}]\ncommand = ["true"]\n')
    first, second = load_fleet(tmp_path / "first.toml"), load_fleet(tmp_path / "second.toml")
    kernel = Kernel(store.open(first.store_path))
    FleetRun(Dispatcher(kernel), first)
    with pytest.raises(PolicyDiffers, match="set by fleet first, and fleet second asks for eevdf"):
        FleetRun(Dispatcher(kernel), second)
    assert kernel.agents.find("second") == [], "it is refused before it changes anything"
    Dispatcher(kernel).policies.set("eevdf", by="ann")
    FleetRun(Dispatcher(kernel), second)
    kernel.store.close()


def test_the_kernels_own_claim_obeys_the_store(tmp_path: Path) -> None:
    path = str(tmp_path / "rota.db")
    with_policy = Kernel(store.open(path))
    modest = busy(with_policy)
    assert [entry.priority for entry in with_policy.queue.claim(worker_id="w", max_n=2)] == [9, 9], "strict order"
    Dispatcher(with_policy).policies.set("eevdf", by="ann")
    with_policy.store.close()
    bare = Kernel(store.open(path))  # no dispatcher was made with it
    assert modest in [entry.sched_id for entry in bare.queue.claim(worker_id="w", max_n=2)]
    bare.store.close()

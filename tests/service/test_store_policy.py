"""The policy of a store and what sharing counts: recorded, obeyed, replayed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from rota import store
from rota.clock import ManualClock
from rota.errors import LimitExceeded, PolicyDiffers, PolicyInvalid, UnknownPolicy
from rota.kernel import Kernel, RunReport, ScheduleSpec
from rota.kernel.replay import KernelState
from rota.model.policy_setting import PolicySetting, ShareBy
from rota.service.dispatcher import Dispatcher

START_AT = 1_000.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_AT)


@pytest.fixture
def kernel(clock: ManualClock) -> Iterator[Kernel]:
    made = Kernel(store.open(":memory:", clock=clock))
    yield made
    made.store.close()


def check_replay(kernel: Kernel) -> None:
    now = kernel.clock.now()
    tables, journal = kernel.store.read(lambda tx: (KernelState.from_tables(tx), KernelState.from_journal(tx)))
    assert tables.at(now) == journal.at(now)


def projects(kernel: Kernel, **weights: int) -> dict[str, int]:
    """Create projects with one agent each; return the agents."""
    for name, weight in weights.items():
        kernel.projects.create(name, weight=weight * 1000)
    return {name: kernel.agents.create(name, project_id=name) for name in weights}


def run_one(api: Dispatcher, clock: ManualClock, *, usage: dict[str, int], lasts_s: float) -> str:
    """Claim one entry by a supervisor's turn, run it, and return its project."""
    (entry,) = api.turn([], "w").entries
    clock.advance(lasts_s)
    report = RunReport(sched_id=entry.sched_id, token=entry.token or 0, exit_kind="completed", usage=usage)
    api.turn([report], "w", 0)
    return entry.project_id or ""


# --- the fact ------------------------------------------------------------------------------------


def test_it_is_recorded_with_its_defaults_and_replayed(kernel: Kernel) -> None:
    api = Dispatcher(kernel)
    assert (api.policies.get().name, api.policies.get().set_by) == ("eevdf", None)
    api.policies.set("fair_share", by="fleet a", replace=False)
    check_replay(kernel)
    kernel.retention.checkpoint()
    check_replay(kernel)
    api.policies.set("fair_share", {"min_guarantee": True}, by="fleet b", replace=False)
    assert kernel.policies.get().setting == PolicySetting(
        name="fair_share", params={"min_guarantee": True}, by="fleet a"
    ), "the same opinion, written in another way"
    with pytest.raises(PolicyDiffers, match=r"fair_share\(min_guarantee=True\), set by fleet a, and fleet b asks for"):
        api.policies.set("fair_share", {"min_guarantee": False}, by="fleet b", replace=False)
    api.policies.set("strict", by="ann")
    api.policies.set(share_by="seconds", by="ann")
    check_replay(kernel)
    kernel.retention.prune(events_older_than_s=0.0, entries_older_than_s=0.0)
    check_replay(kernel)
    assert kernel.policies.get().setting == PolicySetting(name="strict", by="ann")
    api.policies.set("default", by="ann")
    check_replay(kernel)
    assert api.policies.get().set_by is None


def test_what_cannot_be_made_is_refused(kernel: Kernel) -> None:
    api = Dispatcher(kernel)
    with pytest.raises(UnknownPolicy):
        api.policies.set("fairshare")
    with pytest.raises(PolicyInvalid, match="priority_first"):
        api.policies.set("eevdf", {"priority_first": "yes"})
    with pytest.raises(PolicyInvalid, match="share_by"):
        api.policies.set(share_by="money")  # type: ignore[arg-type]
    assert kernel.journal.tail() == []


def test_every_dispatcher_obeys_it_from_the_next_claim_on(kernel: Kernel) -> None:
    agents = projects(kernel, gold=1, iron=1)
    for _ in range(4):
        kernel.queue.enqueue(ScheduleSpec(agents["gold"], priority=9, expected={"tokens": 10}))
        kernel.queue.enqueue(ScheduleSpec(agents["iron"], expected={"tokens": 10}))
    one, other = Dispatcher(kernel), Dispatcher(kernel)
    assert one.claim("w")[0].project_id == "gold"
    other.policies.set("eevdf", by="ann")
    assert {entry.project_id for entry in one.claim("w", 2)} == {"gold", "iron"}
    other.policies.set("strict", by="ann")
    assert [entry.priority for entry in one.turn([], "w", 2).entries] == [9, 9]


def test_a_policy_that_cannot_be_made_here_is_replaced_by_strict_order_with_a_reason(kernel: Kernel) -> None:
    kernel.policies.set(PolicySetting(name="elsewhere", by="fleet a"), by="fleet a", replace=False)
    agents = projects(kernel, a=1, b=1)
    kernel.queue.enqueue(ScheduleSpec(agents["a"]))
    kernel.queue.enqueue(ScheduleSpec(agents["b"], priority=5))
    api = Dispatcher(kernel)
    assert api.turn([], "w").entries[0].priority == 5
    fallen = [event for event in kernel.journal.tail() if event.kind == "kernel.policy.fell_back"]
    assert [event.payload["policy"] for event in fallen] == ["elsewhere"]


# --- the default ---------------------------------------------------------------------------------


def test_supervisors_share_by_weight_and_a_priority_counts_inside_its_project(
    kernel: Kernel, clock: ManualClock
) -> None:
    agents = projects(kernel, gold=3, iron=1)
    second = kernel.agents.create("second", project_id="iron")
    for _ in range(30):
        for pid in agents.values():
            kernel.queue.enqueue(ScheduleSpec(pid, expected={"tokens": 10}))
    urgent = kernel.queue.enqueue(ScheduleSpec(second, priority=99, expected={"tokens": 10}))
    api = Dispatcher(kernel)
    ran = [run_one(api, clock, usage={"tokens": 10}, lasts_s=1.0) for _ in range(16)]
    assert Counter(ran) == {"gold": 12, "iron": 4}
    first_of_iron = next(
        entry[0]
        for event in kernel.journal.tail(limit=1_000)
        if event.kind == "kernel.sched.claimed"
        for entry in event.payload["entries"]
        if entry[1] in (agents["iron"], second)
    )
    assert first_of_iron == urgent
    check_replay(kernel)


# --- what sharing counts -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share_by", "usage", "lasts_s"),
    [
        ("tokens", {"tokens": 10}, 1.0),
        ("cost", {"cost_micro": 10}, 1.0),
        ("cpu", {"cpu_s": 10}, 20.0),
        ("seconds", {"wall_s": 10}, 10.0),
    ],
)
@pytest.mark.parametrize("policy", ["eevdf", "fair_share"])
def test_shares_are_of_what_share_by_names(  # noqa: PLR0917  # fixtures and cases
    kernel: Kernel, clock: ManualClock, policy: str, share_by: ShareBy, usage: dict[str, int], lasts_s: float
) -> None:
    """The runs of one project use twice as much of the counted dimension, so it gets half as many."""
    agents = projects(kernel, small=1, large=1)
    for _ in range(60):
        for pid in agents.values():
            kernel.queue.enqueue(ScheduleSpec(pid))
    api = Dispatcher(kernel)
    api.policies.set(policy, share_by=share_by)
    ran: Counter[str] = Counter()
    for _ in range(60):
        (entry,) = api.turn([], "w").entries
        size = 2 if entry.project_id == "large" else 1
        clock.advance(lasts_s * size)
        used = {dim: amount * size for dim, amount in usage.items()} | {"fs_w_bytes": 1_000 // size}
        api.turn(
            [RunReport(sched_id=entry.sched_id, token=entry.token or 0, exit_kind="completed", usage=used)], "w", 0
        )
        ran[entry.project_id or ""] += 1
    assert abs(ran["small"] - 40) <= 2, ran
    check_replay(kernel)


def test_a_run_that_charged_nothing_counts_its_expected_cost_else_its_seconds(
    kernel: Kernel, clock: ManualClock
) -> None:
    agents = projects(kernel, told=1, untold=1)
    for _ in range(50):
        kernel.queue.enqueue(ScheduleSpec(agents["told"], expected={"tokens": 30}))
        kernel.queue.enqueue(ScheduleSpec(agents["untold"]))
    api = Dispatcher(kernel)
    ran = Counter(run_one(api, clock, usage={}, lasts_s=10.0) for _ in range(40))
    assert abs(ran["untold"] - 30) <= 2, "10 for its seconds, against 30 expected"


def test_a_new_dimension_restarts_the_shares(kernel: Kernel, clock: ManualClock) -> None:
    agents = projects(kernel, a=1, b=1)
    for _ in range(40):
        kernel.queue.enqueue(ScheduleSpec(agents["a"]))
    api = Dispatcher(kernel)
    for _ in range(10):
        run_one(api, clock, usage={"tokens": 1_000_000}, lasts_s=1.0)
    for _ in range(20):
        kernel.queue.enqueue(ScheduleSpec(agents["b"]))
    (live,) = api.turn([], "w").entries
    api.policies.set(share_by="seconds")
    check_replay(kernel)
    clock.advance(1.0)
    api.turn(
        [RunReport(sched_id=live.sched_id, token=live.token or 0, exit_kind="completed", usage={"tokens": 1_000_000})],
        "w",
        0,
    )
    ran = Counter(run_one(api, clock, usage={}, lasts_s=1.0) for _ in range(20))
    assert abs(ran["a"] - ran["b"]) <= 2, "a million tokens are no seconds"
    check_replay(kernel)


# --- a blocked project ---------------------------------------------------------------------------


def test_a_project_at_its_cap_does_not_distort_the_others(kernel: Kernel, clock: ManualClock) -> None:
    agents = projects(kernel, a=6, b=2, c=1)
    kernel.projects.update("a", max_concurrent=1)
    for _ in range(400):
        for pid in agents.values():
            kernel.queue.enqueue(ScheduleSpec(pid, expected={"tokens": 100}))
    api = Dispatcher(kernel, "fair_share")
    live = [entry for _ in range(3) for entry in api.claim("w")]
    ran: Counter[str] = Counter()
    for _ in range(300):
        entry = live.pop(0)
        ran[entry.project_id or ""] += 1
        clock.advance(1.0)
        kernel.queue.complete(entry.sched_id, "completed", token=entry.token)
        live += api.claim("w")
    assert ran["a"] == 100, "one slot of three"
    assert abs(ran["b"] / ran["c"] - 2) < 0.1


def test_parameters_have_a_bound(kernel: Kernel) -> None:
    with pytest.raises(LimitExceeded, match="PARAMS_BYTES_MAX"):
        Dispatcher(kernel).policies.set("fair_share", {"min_guarantee": "x" * 20_000})

"""Admission: who may be promised how much, where it goes, and a record of every decision."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rota.cores import Capacity, CpuIsolationLease, IslandPlan, Machine, RealtimeIsland, SchedulingContext
from rota.cores.events import ReleaseLease, StopIsland
from rota.errors import ContextRefused, IslandRefused, LeaseRefused, PolicyInvalid
from rota.model.events import CpuContextMoved, Fact, IslandMoved, LeaseMoved
from rota.service.admission import Admission, OwnerLimit

MS = 1_000_000


def context(number: int, budget_ms: int, period_ms: int, **options: Any) -> SchedulingContext:
    fields: dict[str, Any] = {"criticality": "high"}
    return SchedulingContext(context_id=number, budget=budget_ms * MS, period=period_ms * MS, **{**fields, **options})


def desk(cores: int = 2, **options: Any) -> tuple[Machine, Admission, list[Fact]]:
    record: list[Fact] = []
    machine = Machine(cores=cores, capacity=Capacity(slots=2))
    fields: dict[str, Any] = {"default": OwnerLimit(reserved_ppm=2_000_000, criticality="critical", leased_cores=1)}
    return machine, Admission(machine, record.append, **{**fields, **options}), record


def test_contexts_are_spread_over_the_cores_where_they_fit() -> None:
    machine, admission, record = desk()
    for number in range(1, 5):
        admission.admit("studio", context(number, 40, 100))
    masks = [machine.context(number).core_mask for number in range(1, 5)]
    assert masks == [0b01, 0b01, 0b10, 0b10]
    assert [fact.verb for fact in record if isinstance(fact, CpuContextMoved)] == ["admit"] * 4


def test_a_context_goes_only_where_it_says() -> None:
    machine, admission, _ = desk()
    admission.admit("studio", context(1, 40, 100, core_mask=0b10))
    assert machine.context(1).core_mask == 0b10


def test_what_fits_nowhere_is_refused_with_every_shortfall() -> None:
    _, admission, _ = desk()
    admission.admit("studio", context(1, 60, 100))
    admission.admit("studio", context(2, 60, 100))
    with pytest.raises(ContextRefused) as refused:
        admission.admit("studio", context(3, 60, 100))
    assert refused.value.data["missing"] == [
        "utilisation of core 0 in ppm: 1,200,000 needed, 950,000 available",
        "utilisation of core 1 in ppm: 1,200,000 needed, 950,000 available",
    ]


def test_a_cap_is_only_a_limit_and_needs_no_place() -> None:
    machine, admission, _ = desk()
    admission.admit("studio", context(1, 90, 100, criticality="normal"))
    assert machine.context(1).core_mask == 0


def test_an_owner_is_promised_no_more_than_it_may_have() -> None:
    _, admission, _ = desk(limits={"guest": OwnerLimit(reserved_ppm=300_000)})
    handle = admission.admit("guest", context(1, 20, 100))
    with pytest.raises(ContextRefused, match="200,000 ppm asked, 200,000 held, 300,000 allowed"):
        admission.admit("guest", context(2, 20, 100))
    admission.revoke("guest", handle, 1, 0)
    admission.admit("guest", context(2, 20, 100))
    admission.admit("studio", context(3, 60, 100))  # another owner's limit is its own


def test_an_adjustment_counts_in_place_of_what_was_promised_before() -> None:
    machine, admission, _ = desk(limits={"guest": OwnerLimit(reserved_ppm=300_000)})
    handle = admission.admit("guest", context(1, 20, 100))
    with pytest.raises(ContextRefused, match="310,000 ppm asked, 0 held, 300,000 allowed"):
        admission.adjust("guest", handle, 1, budget=31 * MS, period=100 * MS)
    assert machine.context(1).budget == 20 * MS
    admission.adjust("guest", handle, 1, budget=30 * MS, period=100 * MS)
    assert machine.context(1).budget == 30 * MS  # nothing was pending, so it is in force
    with pytest.raises(ContextRefused, match="10,000 ppm asked, 300,000 held"):
        admission.admit("guest", context(2, 1, 100))


def test_every_decision_about_a_context_is_recorded() -> None:
    _, admission, record = desk(limits={"guest": OwnerLimit(reserved_ppm=300_000)})
    handle = admission.admit("guest", context(1, 20, 100))
    with pytest.raises(ContextRefused):
        admission.admit("guest", context(2, 20, 100))
    admission.adjust("guest", handle, 1, budget=10 * MS, period=100 * MS)
    admission.revoke("guest", handle, 1, 0)
    moves = [fact for fact in record if isinstance(fact, CpuContextMoved)]
    assert [(fact.context_id, fact.verb, fact.budget_ns // MS) for fact in moves] == [
        (1, "admit", 20),
        (2, "refuse", 20),
        (1, "adjust", 10),
        (1, "revoke", 10),
    ]
    assert moves[1].reason is not None
    assert "promised too much" in moves[1].reason


def test_an_owner_is_no_more_critical_than_it_may_be() -> None:
    _, admission, _ = desk(limits={"guest": OwnerLimit(criticality="high")})
    with pytest.raises(ContextRefused, match="guest may not be critical"):
        admission.admit("guest", context(1, 1, 100, criticality="critical"))


def island(number: int, *contexts: SchedulingContext, slots: int = 0) -> IslandPlan:
    noun = RealtimeIsland(
        island_id=number, name=f"island {number}", contexts=tuple(one.context_id for one in contexts), slots=slots
    )
    return IslandPlan(island=noun, contexts=contexts)


def test_an_island_is_placed_whole_and_its_evidence_is_recorded() -> None:
    machine, admission, record = desk()
    handles, _ = admission.admit_island("studio", island(1, context(1, 60, 100), context(2, 60, 100), slots=1))
    assert set(handles) == {1, 2}
    assert {machine.context(number).core_mask for number in (1, 2)} == {0b01, 0b10}
    (moved,) = (fact for fact in record if isinstance(fact, IslandMoved))
    assert (moved.verb, moved.state) == ("admit", "admitted")
    assert moved.evidence["core 0 utilisation ppm"] == 600_000


def test_an_island_that_does_not_fit_is_refused_whole_and_that_is_recorded() -> None:
    machine, admission, record = desk()
    for proposed in (
        island(1, context(1, 60, 100), context(2, 60, 100), context(3, 60, 100)),
        island(2, context(1, 10, 100), slots=9),
    ):
        with pytest.raises(IslandRefused):
            admission.admit_island("studio", proposed)
        moved = record[-1]
        assert isinstance(moved, IslandMoved)
        assert moved.verb == "refuse"
    for number in (1, 2, 3):
        assert number not in {one.context_id for one in machine._contexts}
    admission.admit("studio", context(1, 90, 100))  # nothing was held back


def test_an_island_that_stops_frees_what_its_owner_was_promised() -> None:
    machine, admission, record = desk(limits={"guest": OwnerLimit(reserved_ppm=600_000)})
    admission.admit_island("guest", island(1, context(1, 60, 100)))
    machine.start_island(1)
    with pytest.raises(ContextRefused):
        admission.admit("guest", context(2, 60, 100))
    admission.heard(machine.step(StopIsland(1), 0))
    admission.admit("guest", context(2, 60, 100))
    assert [fact.verb for fact in record if isinstance(fact, IslandMoved)] == ["admit", "stop"]


def test_an_owner_does_not_get_around_its_limit_of_leases_by_an_island() -> None:
    machine, admission, record = desk(cores=3)
    machine.add_group("studio")
    leases = tuple(
        CpuIsolationLease(
            lease_id=core, owner="studio", cores=(core,), accounting_target=1, revocation_latency_max=5 * MS
        )
        for core in (1, 2)
    )
    plan = msgspec.structs.replace(island(1, context(1, 10, 100, core_mask=0b10)), leases=leases)
    with pytest.raises(IslandRefused, match="may lease 1 cores, holds 0 and asks for 2"):
        admission.admit_island("studio", plan)
    admission.admit_island("studio", msgspec.structs.replace(plan, leases=leases[:1]))
    assert [fact.verb for fact in record if isinstance(fact, LeaseMoved)] == ["grant"]


def test_leases_are_granted_up_to_the_owners_limit_and_recorded() -> None:
    machine, admission, record = desk(cores=4)
    machine.add_group("studio")
    machine.admit(context(1, 10, 100, criticality="normal"))

    def lease(number: int) -> CpuIsolationLease:
        return CpuIsolationLease(
            lease_id=number, owner="studio", cores=(number,), accounting_target=1, revocation_latency_max=5 * MS
        )

    handle, _ = admission.lease(lease(1))
    with pytest.raises(LeaseRefused, match="may lease 1 cores, holds 1 and asks for 1"):
        admission.lease(lease(2))
    admission.heard(machine.step(ReleaseLease(handle), 0))
    admission.lease(lease(2))
    verbs = [fact.verb for fact in record if isinstance(fact, LeaseMoved)]
    assert verbs == ["grant", "refuse", "release", "grant"]


def test_a_lease_that_the_engine_refuses_is_recorded_with_its_reason() -> None:
    machine, admission, record = desk(cores=1)
    machine.add_group("studio")
    with pytest.raises(LeaseRefused):
        admission.lease(CpuIsolationLease(lease_id=1, owner="studio", cores=(0,)))
    (moved,) = record
    assert isinstance(moved, LeaseMoved)
    assert moved.reason is not None
    assert "no core would be left" in moved.reason


@pytest.mark.parametrize("fields", [{"reserved_ppm": -1}, {"criticality": "huge"}, {"leased_cores": True}])
def test_a_limit_that_cannot_be_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(PolicyInvalid):
        OwnerLimit(**fields)

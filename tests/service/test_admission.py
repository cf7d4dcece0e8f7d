"""Admission: limits per owner, placement on cores, and a record of every decision."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rota.cores import Capacity, CoresEngine, CpuIsolationLease, IslandPlan, RealtimeIsland, SchedulingContext
from rota.cores.events import ReleaseLease, StopIsland
from rota.errors import ContextRefused, IslandRefused, LeaseRefused, PolicyInvalid
from rota.model.events import CpuContextChanged, EventData, IslandChanged, LeaseChanged
from rota.service.admission import Admission, OwnerLimit

MS = 1_000_000


def context(number: int, budget_ms: int, period_ms: int, **options: Any) -> SchedulingContext:
    fields: dict[str, Any] = {"criticality": "high"}
    return SchedulingContext(context_id=number, budget=budget_ms * MS, period=period_ms * MS, **{**fields, **options})


def setup(cores: int = 2, **options: Any) -> tuple[CoresEngine, Admission, list[EventData]]:
    record: list[EventData] = []
    engine = CoresEngine(cores=cores, capacity=Capacity(slots=2))
    fields: dict[str, Any] = {"default": OwnerLimit(reserved_ppm=2_000_000, criticality="critical", leased_cores=1)}
    return engine, Admission(engine, record.append, **{**fields, **options}), record


def test_contexts_are_spread_over_the_cores_where_they_fit() -> None:
    engine, admission, record = setup()
    for number in range(1, 5):
        admission.admit("studio", context(number, 40, 100))
    masks = [engine.context(number).core_mask for number in range(1, 5)]
    assert masks == [0b01, 0b01, 0b10, 0b10]
    assert [fact.verb for fact in record if isinstance(fact, CpuContextChanged)] == ["admit"] * 4


def test_a_context_is_placed_only_on_its_cores() -> None:
    engine, admission, _ = setup()
    admission.admit("studio", context(1, 40, 100, core_mask=0b10))
    assert engine.context(1).core_mask == 0b10


def test_a_context_that_fits_nowhere_is_refused_with_every_shortage() -> None:
    _, admission, _ = setup()
    admission.admit("studio", context(1, 60, 100))
    admission.admit("studio", context(2, 60, 100))
    with pytest.raises(ContextRefused) as refused:
        admission.admit("studio", context(3, 60, 100))
    assert refused.value.data["missing"] == [
        "utilisation of core 0 in ppm: 1,200,000 needed, 950,000 available",
        "utilisation of core 1 in ppm: 1,200,000 needed, 950,000 available",
    ]


def test_a_cap_is_only_a_limit_and_is_not_placed() -> None:
    engine, admission, _ = setup()
    admission.admit("studio", context(1, 90, 100, criticality="normal"))
    assert engine.context(1).core_mask == 0


def test_an_owner_reserves_no_more_than_its_limit() -> None:
    _, admission, _ = setup(limits={"guest": OwnerLimit(reserved_ppm=300_000)})
    handle = admission.admit("guest", context(1, 20, 100))
    with pytest.raises(ContextRefused, match="200,000 ppm asked, 200,000 held, 300,000 allowed"):
        admission.admit("guest", context(2, 20, 100))
    admission.revoke("guest", handle, 1, 0)
    admission.admit("guest", context(2, 20, 100))
    admission.admit("studio", context(3, 60, 100))  # another owner's limit is its own


def test_an_adjustment_replaces_the_previous_reservation() -> None:
    engine, admission, _ = setup(limits={"guest": OwnerLimit(reserved_ppm=300_000)})
    handle = admission.admit("guest", context(1, 20, 100))
    with pytest.raises(ContextRefused, match="310,000 ppm asked, 0 held, 300,000 allowed"):
        admission.adjust("guest", handle, 1, budget=31 * MS, period=100 * MS)
    assert engine.context(1).budget == 20 * MS
    admission.adjust("guest", handle, 1, budget=30 * MS, period=100 * MS)
    assert engine.context(1).budget == 30 * MS  # nothing was pending, so it applies
    with pytest.raises(ContextRefused, match="10,000 ppm asked, 300,000 held"):
        admission.admit("guest", context(2, 1, 100))


def test_every_decision_about_a_context_is_recorded() -> None:
    _, admission, record = setup(limits={"guest": OwnerLimit(reserved_ppm=300_000)})
    handle = admission.admit("guest", context(1, 20, 100))
    with pytest.raises(ContextRefused):
        admission.admit("guest", context(2, 20, 100))
    admission.adjust("guest", handle, 1, budget=10 * MS, period=100 * MS)
    admission.revoke("guest", handle, 1, 0)
    moves = [fact for fact in record if isinstance(fact, CpuContextChanged)]
    assert [(fact.context_id, fact.verb, fact.budget_ns // MS) for fact in moves] == [
        (1, "admit", 20),
        (2, "refuse", 20),
        (1, "adjust", 10),
        (1, "revoke", 10),
    ]
    assert moves[1].reason is not None
    assert "reserve too much" in moves[1].reason


def test_the_criticality_of_an_owner_is_limited() -> None:
    _, admission, _ = setup(limits={"guest": OwnerLimit(criticality="high")})
    with pytest.raises(ContextRefused, match="guest may not be critical"):
        admission.admit("guest", context(1, 1, 100, criticality="critical"))


def island(number: int, *contexts: SchedulingContext, slots: int = 0) -> IslandPlan:
    noun = RealtimeIsland(
        island_id=number, name=f"island {number}", contexts=tuple(one.context_id for one in contexts), slots=slots
    )
    return IslandPlan(island=noun, contexts=contexts)


def test_an_island_is_placed_whole_and_its_evidence_is_recorded() -> None:
    engine, admission, record = setup()
    handles, _ = admission.admit_island("studio", island(1, context(1, 60, 100), context(2, 60, 100), slots=1))
    assert set(handles) == {1, 2}
    assert {engine.context(number).core_mask for number in (1, 2)} == {0b01, 0b10}
    (moved,) = (fact for fact in record if isinstance(fact, IslandChanged))
    assert (moved.verb, moved.state) == ("admit", "admitted")
    assert moved.evidence["core 0 utilisation ppm"] == 600_000


def test_an_island_that_does_not_fit_is_refused_whole_and_that_is_recorded() -> None:
    engine, admission, record = setup()
    for proposed in (
        island(1, context(1, 60, 100), context(2, 60, 100), context(3, 60, 100)),
        island(2, context(1, 10, 100), slots=9),
    ):
        with pytest.raises(IslandRefused):
            admission.admit_island("studio", proposed)
        moved = record[-1]
        assert isinstance(moved, IslandChanged)
        assert moved.verb == "refuse"
    for number in (1, 2, 3):
        assert number not in {one.context_id for one in engine._contexts}
    admission.admit("studio", context(1, 90, 100))  # nothing is still reserved


def test_an_island_that_stops_frees_its_owners_reservations() -> None:
    engine, admission, record = setup(limits={"guest": OwnerLimit(reserved_ppm=600_000)})
    admission.admit_island("guest", island(1, context(1, 60, 100)))
    engine.start_island(1)
    with pytest.raises(ContextRefused):
        admission.admit("guest", context(2, 60, 100))
    admission.apply_decisions(engine.step(StopIsland(1), 0))
    admission.admit("guest", context(2, 60, 100))
    assert [fact.verb for fact in record if isinstance(fact, IslandChanged)] == ["admit", "stop"]


def test_the_leases_of_an_island_count_against_the_owners_limit() -> None:
    engine, admission, record = setup(cores=3)
    engine.add_group("studio")
    leases = tuple(
        CpuIsolationLease(
            lease_id=core, owner="studio", cores=(core,), accounting_target=1, revocation_latency_max=5 * MS
        )
        for core in (1, 2)
    )
    plan = msgspec.structs.replace(island(1, context(1, 10, 100, core_mask=0b10)), leases=leases)
    with pytest.raises(IslandRefused, match="may lease 1 cores, holds 0 and requests 2"):
        admission.admit_island("studio", plan)
    admission.admit_island("studio", msgspec.structs.replace(plan, leases=leases[:1]))
    assert [fact.verb for fact in record if isinstance(fact, LeaseChanged)] == ["grant"]


def test_leases_are_granted_up_to_the_owners_limit_and_recorded() -> None:
    engine, admission, record = setup(cores=4)
    engine.add_group("studio")
    engine.admit(context(1, 10, 100, criticality="normal"))

    def lease(number: int) -> CpuIsolationLease:
        return CpuIsolationLease(
            lease_id=number, owner="studio", cores=(number,), accounting_target=1, revocation_latency_max=5 * MS
        )

    handle, _ = admission.lease(lease(1))
    with pytest.raises(LeaseRefused, match="may lease 1 cores, holds 1 and requests 1"):
        admission.lease(lease(2))
    admission.apply_decisions(engine.step(ReleaseLease(handle), 0))
    admission.lease(lease(2))
    verbs = [fact.verb for fact in record if isinstance(fact, LeaseChanged)]
    assert verbs == ["grant", "refuse", "release", "grant"]


def test_a_lease_that_the_engine_refuses_is_recorded_with_its_reason() -> None:
    engine, admission, record = setup(cores=1)
    engine.add_group("studio")
    with pytest.raises(LeaseRefused):
        admission.lease(CpuIsolationLease(lease_id=1, owner="studio", cores=(0,)))
    (moved,) = record
    assert isinstance(moved, LeaseChanged)
    assert moved.reason is not None
    assert "no core would be left" in moved.reason


@pytest.mark.parametrize("fields", [{"reserved_ppm": -1}, {"criticality": "huge"}, {"leased_cores": True}])
def test_an_invalid_limit_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(PolicyInvalid):
        OwnerLimit(**fields)

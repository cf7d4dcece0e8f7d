"""Isolation leases: five proofs, revocation within its bound, and a core that always stays with everybody else."""

from __future__ import annotations

from typing import Any

import pytest

from rota.cores import CpuIsolationLease, Handle
from rota.cores.events import (
    CloseSession,
    CoreOffline,
    Exit,
    ExitGroup,
    LeaseEnded,
    PostRevoke,
    Preempt,
    ReleaseLease,
    RevokeLease,
    ServiceLost,
    Wake,
)
from rota.cores.leases import REVOCATION_BOUND_NS
from rota.errors import (
    ContextExists,
    ContextInvalid,
    EntityUnknown,
    LeaseIllegalTransition,
    LeaseRefused,
    StaleHandle,
)
from tests.cpu.stage import MS, Stage


def leased_stage(cores: int = 3) -> Stage:
    """Cores, a group "owner" with two threads, one stranger per core, and a context to pay."""
    stage = Stage(cores=cores)
    stage.machine.add_group("owner")
    stage.context(90, 100)
    return stage


def lease(cores: tuple[int, ...] = (2,), **options: Any) -> CpuIsolationLease:
    fields: dict[str, Any] = {
        "lease_id": 1,
        "owner": "owner",
        "cores": cores,
        "accounting_target": 1,
        "revocation_latency_max": 5 * MS,
        "revoke_endpoint": 9,
    }
    return CpuIsolationLease(**{**fields, **options})


def grant(stage: Stage, wanted: CpuIsolationLease) -> Handle:
    handle, decisions = stage.machine.grant_lease(wanted)
    stage.obey(decisions)
    return handle


def proofs(stage: Stage, wanted: CpuIsolationLease) -> list[str]:
    with pytest.raises(LeaseRefused) as refused:
        stage.machine.grant_lease(wanted)
    found = refused.value.data["proofs"]
    assert isinstance(found, list)
    return found


# --- what it does --------------------------------------------------------------------------------


@pytest.mark.parametrize("strangers", [2, 5, 30])
@pytest.mark.parametrize("granted_ms", [1, 2, 4, 5, 10])
def test_the_owner_goes_to_its_core_at_once_or_when_the_turn_it_has_elsewhere_ends(
    strangers: int, granted_ms: int
) -> None:
    """If it runs elsewhere when the lease is granted, its core finds nobody to take over: it is sent there later."""
    stage = leased_stage(cores=2)
    owner = stage.one(group="owner")
    stage.spawn(strangers)
    stage.until(granted_ms * MS)
    grant(stage, lease((1,)))
    stage.until(stage.now + 3 * MS)
    had = stage.runtime(owner)
    stage.until(stage.now + 50 * MS)
    assert stage.machine.entity(owner).core == 1
    assert stage.runtime(owner) - had == 50 * MS


def test_a_lease_empties_its_core_of_everybody_else() -> None:
    stage = leased_stage()
    strangers = stage.spawn(9)
    owner = stage.one(group="owner", awake=False)
    stage.until(10 * MS)
    handle = grant(stage, lease())
    stage.until(30 * MS)
    assert stage.running()[2] is None
    assert {stage.machine.entity(one).core for one in strangers} <= {0, 1}
    stage.tell(Wake(owner))
    assert stage.running()[2] == owner
    stage.until(130 * MS)
    assert stage.running()[2] == owner
    assert stage.machine.lease(handle).state == "active"


def test_a_lease_grants_placement_and_no_budget() -> None:
    stage = leased_stage()
    owner = stage.one(group="owner", awake=False)
    limited = stage.context(5, 100)
    stage.bind(limited, owner)
    grant(stage, lease())
    stage.tell(Wake(owner))
    stage.until(90 * MS)
    assert stage.runtime(owner) == 5 * MS


def test_whoever_wakes_later_stays_off_a_leased_core_however_idle_it_is() -> None:
    stage = leased_stage(cores=2)
    grant(stage, lease(cores=(1,)))
    strangers = stage.spawn(5)
    stage.until(50 * MS)
    assert stage.running()[1] is None
    assert all(stage.runtime(one) > 5 * MS for one in strangers)


# --- the five proofs -----------------------------------------------------------------------------


def test_refused_when_no_core_would_be_left_for_everybody_else() -> None:
    stage = leased_stage(cores=2)
    assert proofs(stage, lease(cores=(0, 1))) == ["no_housekeeping_core"]
    grant(stage, lease(cores=(1,)))
    assert proofs(stage, lease(cores=(0,), lease_id=2)) == ["no_housekeeping_core"]
    assert proofs(stage, lease(cores=(1,), lease_id=3)) == ["no_housekeeping_core"]  # it is taken


def test_refused_when_a_core_named_as_housekeeping_would_not_be_left() -> None:
    stage = leased_stage()
    assert proofs(stage, lease(cores=(1,), housekeeping=(1,))) == ["no_housekeeping_core"]
    grant(stage, lease(cores=(1,), housekeeping=(0, 2)))


def test_refused_when_unrelated_work_can_run_nowhere_else() -> None:
    stage = leased_stage()
    pinned = stage.one(core_mask=0b100)
    assert proofs(stage, lease()) == ["unrelated_work_pinned"]
    stage.tell(Exit(pinned))
    stage.one(group="owner", core_mask=0b100)  # the owner's own may be pinned there
    grant(stage, lease())


@pytest.mark.parametrize("work", ["timer wheel", "network polling", "watchdog", "deferred cleanup"])
def test_refused_when_the_driver_has_work_of_its_own_there(work: str) -> None:
    stage = leased_stage()
    stage.machine.pin_work(2, work)
    assert proofs(stage, lease()) == ["unrelated_work_pinned"]
    stage.machine.unpin_work(2, work)
    grant(stage, lease())


def test_refused_when_a_pollers_ring_has_not_exactly_one_consumer_of_the_owners() -> None:
    stage = leased_stage()
    mine, also_mine = stage.spawn(2, group="owner", awake=False)
    stranger = stage.one(awake=False)
    for consumers in ((), (mine, also_mine), (stranger,), (99,)):
        assert proofs(stage, lease(mode="poller", consumers=consumers)) == ["consumer_not_single"]
    grant(stage, lease(mode="poller", consumers=(mine,)))


def test_refused_when_nothing_valid_pays() -> None:
    stage = leased_stage()
    for target in (None, 42):
        assert proofs(stage, lease(accounting_target=target)) == ["accounting_target_invalid"]
    stage.context(10, 100, core_mask=0b001)
    assert proofs(stage, lease(accounting_target=2)) == ["accounting_target_invalid"]
    grant(stage, lease())


def test_refused_when_it_cannot_be_revoked_in_time() -> None:
    stage = leased_stage()
    assert proofs(stage, lease(revocation_latency_max=REVOCATION_BOUND_NS - 1)) == ["revocation_too_slow"]
    grant(stage, lease(revocation_latency_max=REVOCATION_BOUND_NS))


def test_a_refusal_names_everything_that_stands_in_the_way_and_changes_nothing() -> None:
    stage = leased_stage(cores=1)
    stage.machine.pin_work(0, "timer wheel")
    wanted = lease(cores=(0,), mode="poller", accounting_target=None, revocation_latency_max=0)
    assert proofs(stage, wanted) == [
        "no_housekeeping_core",
        "unrelated_work_pinned",
        "consumer_not_single",
        "accounting_target_invalid",
        "revocation_too_slow",
    ]
    worker = stage.one()
    assert stage.running() == [worker]


def test_what_is_no_lease_at_all_is_refused_as_such() -> None:
    stage = leased_stage()
    with pytest.raises(EntityUnknown, match="no core 9"):
        stage.machine.grant_lease(lease(cores=(9,)))
    with pytest.raises(ContextInvalid, match="cores"):
        lease(cores=())
    grant(stage, lease())
    with pytest.raises(ContextExists, match="lease 1"):
        stage.machine.grant_lease(lease(cores=(1,)))


# --- ending --------------------------------------------------------------------------------------


def test_a_revoked_owner_is_told_and_gives_its_core_back() -> None:
    stage = leased_stage()
    owner = stage.one(group="owner")
    handle = grant(stage, lease())
    stage.until(1 * MS)
    stage.tell(RevokeLease(handle))
    assert stage.said(PostRevoke) == [PostRevoke(9, 1, 6 * MS)]
    assert stage.machine.lease(handle).state == "revoking"
    stage.until(2 * MS)
    stage.tell(ReleaseLease(handle))
    assert stage.said(LeaseEnded) == [LeaseEnded(1, (2,))]
    with pytest.raises(StaleHandle):
        stage.tell(ReleaseLease(handle))
    assert stage.machine.entity(owner).state in ("running", "ready")


def test_an_owner_that_does_not_give_it_back_loses_it_within_the_bound() -> None:
    stage = leased_stage()
    owner = stage.one(group="owner", core_mask=0b100)
    handle = grant(stage, lease())
    crowd = stage.spawn(6)
    stage.until(10 * MS)
    stage.tell(RevokeLease(handle))
    stage.until(15 * MS)  # the five milliseconds that it allowed
    ended = [at for at, decision in stage.log if isinstance(decision, LeaseEnded)]
    assert ended == [15 * MS - REVOCATION_BOUND_NS]
    stage.until(25 * MS)
    assert any(stage.machine.entity(one).core == 2 for one in crowd)
    assert stage.machine.entity(owner).core == 2


def test_a_lease_is_revoked_once() -> None:
    stage = leased_stage()
    handle = grant(stage, lease())
    stage.tell(RevokeLease(handle))
    with pytest.raises(LeaseIllegalTransition, match="is revoking and cannot revoke"):
        stage.tell(RevokeLease(handle))


@pytest.mark.parametrize("way", ["last entity exits", "group exits", "session closes"])
def test_a_lease_ends_with_its_owner(way: str) -> None:
    stage = leased_stage()
    members = stage.spawn(2, group="owner")
    grant(stage, lease())
    if way == "session closes":
        stage.tell(CloseSession("owner"))
    elif way == "group exits":
        stage.tell(ExitGroup("owner"))
    else:
        stage.tell(Exit(members[0]))
        assert not stage.said(LeaseEnded)
        stage.tell(Exit(members[1]))
    assert stage.said(LeaseEnded) == [LeaseEnded(1, (2,))]
    crowd = stage.spawn(3)
    stage.until(stage.now + 5 * MS)
    assert any(one in crowd for one in stage.running()[2:])


def test_a_housekeeping_core_is_found_when_the_last_one_goes_away() -> None:
    stage = leased_stage(cores=3)
    stage.machine.add_group("second")
    worker = stage.one()
    grant(stage, lease(cores=(1,), lease_id=1))
    grant(stage, lease(cores=(2,), lease_id=2, owner="second"))
    stage.tell(CoreOffline(0))
    assert stage.said(LeaseEnded) == [LeaseEnded(2, (2,))]  # the younger of the two
    stage.until(10 * MS)
    assert stage.running() == [None, None, worker]
    assert any(isinstance(decision, Preempt) for _, decision in stage.log)


@pytest.mark.parametrize(("on_loss", "ends"), [("keep", False), ("revoke", True)])
def test_when_the_policy_service_is_lost_a_lease_does_what_it_says(on_loss: str, ends: bool) -> None:
    stage = leased_stage()
    handle = grant(stage, lease(on_service_loss=on_loss))
    stage.tell(ServiceLost("raised"))
    stage.until(20 * MS)
    assert bool(stage.said(LeaseEnded)) is ends
    if not ends:
        assert stage.machine.lease(handle).state == "active"

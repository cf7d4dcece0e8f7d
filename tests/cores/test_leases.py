"""Isolation leases: five checks, revocation within its bound, and a core that always stays open."""

from __future__ import annotations

from typing import Any

import pytest

from rota.cores import CpuIsolationLease, Handle
from rota.cores.events import (
    CloseSession,
    CoreOffline,
    ExitEntity,
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
from tests.cores.harness import MS, EngineHarness


def leased_harness(cores: int = 3) -> EngineHarness:
    """Cores, a group "owner" with two threads, one other thread per core, and a paying context."""
    harness = EngineHarness(cores=cores)
    harness.engine.add_group("owner")
    harness.context(90, 100)
    return harness


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


def grant(harness: EngineHarness, wanted: CpuIsolationLease) -> Handle:
    handle, decisions = harness.engine.grant_lease(wanted)
    harness.apply(decisions)
    return handle


def proofs(harness: EngineHarness, wanted: CpuIsolationLease) -> list[str]:
    with pytest.raises(LeaseRefused) as refused:
        harness.engine.grant_lease(wanted)
    found = refused.value.data["proofs"]
    assert isinstance(found, list)
    return found


# --- what it does --------------------------------------------------------------------------------


@pytest.mark.parametrize("strangers", [2, 5, 30])
@pytest.mark.parametrize("granted_ms", [1, 2, 4, 5, 10])
def test_the_owner_moves_to_its_core_immediately_or_after_its_slice_elsewhere(strangers: int, granted_ms: int) -> None:
    """If it runs elsewhere when the lease is granted, its core finds nothing to run: it is sent there later."""
    harness = leased_harness(cores=2)
    owner = harness.one(group="owner")
    harness.spawn(strangers)
    harness.until(granted_ms * MS)
    grant(harness, lease((1,)))
    harness.until(harness.now + 3 * MS)
    had = harness.runtime(owner)
    harness.until(harness.now + 50 * MS)
    assert harness.engine.entity(owner).core == 1
    assert harness.runtime(owner) - had == 50 * MS


def test_a_lease_moves_other_entities_off_its_core() -> None:
    harness = leased_harness()
    strangers = harness.spawn(9)
    owner = harness.one(group="owner", awake=False)
    harness.until(10 * MS)
    handle = grant(harness, lease())
    harness.until(30 * MS)
    assert harness.running()[2] is None
    assert {harness.engine.entity(one).core for one in strangers} <= {0, 1}
    harness.send(Wake(owner))
    assert harness.running()[2] == owner
    harness.until(130 * MS)
    assert harness.running()[2] == owner
    assert harness.engine.lease(handle).state == "active"


def test_a_lease_grants_placement_and_no_budget() -> None:
    harness = leased_harness()
    owner = harness.one(group="owner", awake=False)
    limited = harness.context(5, 100)
    harness.bind(limited, owner)
    grant(harness, lease())
    harness.send(Wake(owner))
    harness.until(90 * MS)
    assert harness.runtime(owner) == 5 * MS


def test_an_entity_that_wakes_later_stays_off_an_idle_leased_core() -> None:
    harness = leased_harness(cores=2)
    grant(harness, lease(cores=(1,)))
    strangers = harness.spawn(5)
    harness.until(50 * MS)
    assert harness.running()[1] is None
    assert all(harness.runtime(one) > 5 * MS for one in strangers)


# --- the five proofs -----------------------------------------------------------------------------


def test_refused_when_no_core_would_be_left_for_other_entities() -> None:
    harness = leased_harness(cores=2)
    assert proofs(harness, lease(cores=(0, 1))) == ["no_housekeeping_core"]
    grant(harness, lease(cores=(1,)))
    assert proofs(harness, lease(cores=(0,), lease_id=2)) == ["no_housekeeping_core"]
    assert proofs(harness, lease(cores=(1,), lease_id=3)) == ["no_housekeeping_core"]  # it is taken


def test_refused_when_a_core_named_as_housekeeping_would_not_be_left() -> None:
    harness = leased_harness()
    assert proofs(harness, lease(cores=(1,), housekeeping=(1,))) == ["no_housekeeping_core"]
    grant(harness, lease(cores=(1,), housekeeping=(0, 2)))


def test_refused_when_it_would_take_a_core_that_another_lease_keeps_for_housekeeping() -> None:
    harness = leased_harness(cores=4)
    kept = grant(harness, lease(cores=(1,), housekeeping=(2,)))
    assert proofs(harness, lease(cores=(2,), lease_id=2)) == ["no_housekeeping_core"]
    grant(harness, lease(cores=(3,), lease_id=3))
    harness.send(ReleaseLease(kept))
    grant(harness, lease(cores=(2,), lease_id=2))


def test_refused_when_unrelated_work_can_run_nowhere_else() -> None:
    harness = leased_harness()
    pinned = harness.one(core_mask=0b100)
    assert proofs(harness, lease()) == ["unrelated_work_pinned"]
    harness.send(ExitEntity(pinned))
    harness.one(group="owner", core_mask=0b100)  # the owner's own entities may be pinned there
    grant(harness, lease())


@pytest.mark.parametrize("work", ["timer wheel", "network polling", "watchdog", "deferred cleanup"])
def test_refused_when_the_driver_has_work_of_its_own_there(work: str) -> None:
    harness = leased_harness()
    harness.engine.pin_work(2, work)
    assert proofs(harness, lease()) == ["unrelated_work_pinned"]
    harness.engine.unpin_work(2, work)
    grant(harness, lease())


def test_refused_when_a_pollers_ring_has_not_exactly_one_consumer_of_the_owners() -> None:
    harness = leased_harness()
    mine, also_mine = harness.spawn(2, group="owner", awake=False)
    stranger = harness.one(awake=False)
    for consumers in ((), (mine, also_mine), (stranger,), (99,)):
        assert proofs(harness, lease(mode="poller", consumers=consumers)) == ["consumer_not_single"]
    grant(harness, lease(mode="poller", consumers=(mine,)))


def test_refused_when_nothing_valid_pays() -> None:
    harness = leased_harness()
    for target in (None, 42):
        assert proofs(harness, lease(accounting_target=target)) == ["accounting_target_invalid"]
    harness.context(10, 100, core_mask=0b001)
    assert proofs(harness, lease(accounting_target=2)) == ["accounting_target_invalid"]
    grant(harness, lease())


def test_refused_when_it_cannot_be_revoked_in_time() -> None:
    harness = leased_harness()
    assert proofs(harness, lease(revocation_latency_max=REVOCATION_BOUND_NS - 1)) == ["revocation_too_slow"]
    grant(harness, lease(revocation_latency_max=REVOCATION_BOUND_NS))


def test_a_refusal_names_every_failed_check_and_changes_nothing() -> None:
    harness = leased_harness(cores=1)
    harness.engine.pin_work(0, "timer wheel")
    wanted = lease(cores=(0,), mode="poller", accounting_target=None, revocation_latency_max=0)
    assert proofs(harness, wanted) == [
        "no_housekeeping_core",
        "unrelated_work_pinned",
        "consumer_not_single",
        "accounting_target_invalid",
        "revocation_too_slow",
    ]
    worker = harness.one()
    assert harness.running() == [worker]


def test_an_invalid_lease_is_refused() -> None:
    harness = leased_harness()
    with pytest.raises(EntityUnknown, match="core 9 does not exist"):
        harness.engine.grant_lease(lease(cores=(9,)))
    with pytest.raises(ContextInvalid, match="cores"):
        lease(cores=())
    grant(harness, lease())
    with pytest.raises(ContextExists, match="lease 1"):
        harness.engine.grant_lease(lease(cores=(1,)))


# --- ending --------------------------------------------------------------------------------------


def test_a_revoked_owner_is_notified_and_releases_its_core() -> None:
    harness = leased_harness()
    owner = harness.one(group="owner")
    handle = grant(harness, lease())
    harness.until(1 * MS)
    harness.send(RevokeLease(handle))
    assert harness.decided(PostRevoke) == [PostRevoke(9, 1, 6 * MS)]
    assert harness.engine.lease(handle).state == "revoking"
    harness.until(2 * MS)
    harness.send(ReleaseLease(handle))
    assert harness.decided(LeaseEnded) == [LeaseEnded(1, (2,))]
    with pytest.raises(StaleHandle):
        harness.send(ReleaseLease(handle))
    assert harness.engine.entity(owner).state in ("running", "ready")


def test_an_owner_that_does_not_release_its_core_loses_it_within_the_bound() -> None:
    harness = leased_harness()
    owner = harness.one(group="owner", core_mask=0b100)
    handle = grant(harness, lease())
    crowd = harness.spawn(6)
    harness.until(10 * MS)
    harness.send(RevokeLease(handle))
    harness.until(15 * MS)  # the five milliseconds that the lease allows
    ended = [at for at, decision in harness.log if isinstance(decision, LeaseEnded)]
    assert ended == [15 * MS - REVOCATION_BOUND_NS]
    harness.until(25 * MS)
    assert any(harness.engine.entity(one).core == 2 for one in crowd)
    assert harness.engine.entity(owner).core == 2


def test_a_lease_is_revoked_once() -> None:
    harness = leased_harness()
    handle = grant(harness, lease())
    harness.send(RevokeLease(handle))
    with pytest.raises(LeaseIllegalTransition, match="is revoking and cannot revoke"):
        harness.send(RevokeLease(handle))


@pytest.mark.parametrize("way", ["last entity exits", "group exits", "session closes"])
def test_a_lease_ends_with_its_owner(way: str) -> None:
    harness = leased_harness()
    members = harness.spawn(2, group="owner")
    grant(harness, lease())
    if way == "session closes":
        harness.send(CloseSession("owner"))
    elif way == "group exits":
        harness.send(ExitGroup("owner"))
    else:
        harness.send(ExitEntity(members[0]))
        assert not harness.decided(LeaseEnded)
        harness.send(ExitEntity(members[1]))
    assert harness.decided(LeaseEnded) == [LeaseEnded(1, (2,))]
    crowd = harness.spawn(3)
    harness.until(harness.now + 5 * MS)
    assert any(one in crowd for one in harness.running()[2:])


def test_a_lease_ends_when_the_last_housekeeping_core_goes_offline() -> None:
    harness = leased_harness(cores=3)
    harness.engine.add_group("second")
    worker = harness.one()
    grant(harness, lease(cores=(1,), lease_id=1))
    grant(harness, lease(cores=(2,), lease_id=2, owner="second"))
    harness.send(CoreOffline(0))
    assert harness.decided(LeaseEnded) == [LeaseEnded(2, (2,))]  # the newer of the two
    harness.until(10 * MS)
    assert harness.running() == [None, None, worker]
    assert any(isinstance(decision, Preempt) for _, decision in harness.log)


@pytest.mark.parametrize(("on_loss", "ends"), [("keep", False), ("revoke", True)])
def test_when_the_policy_service_is_lost_a_lease_follows_its_setting(on_loss: str, ends: bool) -> None:
    harness = leased_harness()
    handle = grant(harness, lease(on_service_loss=on_loss))
    harness.send(ServiceLost("raised"))
    harness.until(20 * MS)
    assert bool(harness.decided(LeaseEnded)) is ends
    if not ends:
        assert harness.engine.lease(handle).state == "active"

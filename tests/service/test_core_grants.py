"""The one admission for the cores of hosts: leases as rows of claims, refusals with numbers, and the gates of both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rota import store
from rota.errors import ContextInvalid, ContextRefused, IslandRefused, LeaseRefused, StaleClaim
from rota.host.confinement import Confinement
from rota.host.thread_settings import allowed_cores
from rota.kernel import Kernel, KernelState
from rota.model import reasons
from rota.model.core_grants import CoreAsk, CoreGrant, CoreHost, CoreStatus, ReservedTime
from rota.model.cpu import CpuSettings
from rota.model.events import CoresGranted, CoresRefused, CoresReturned, LeaseChanged, ProfileMapped
from rota.model.workers import SlotPool
from rota.service import core_refusals
from rota.service.core_grants import WOKEN_S, CoreGrants, needs_grant, open_cores, refused_delay_s, this_host
from rota.service.dispatcher import Dispatcher
from rota.service.explanation import explain
from rota.service.explanation_summary import explain_many
from tests.kernel.world import World

MS = 1_000_000
BOX = CoreHost(key="boot-1", name="box", cores=(0, 1), memory_bytes=1_000, slots=2)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def claimed(world: World, name: str = "build", **claim: Any) -> tuple[int, int]:
    """An entry of an agent that a worker has claimed: its id and its token."""
    world.put(world.agent(name))
    entry = world.take_one(**claim)
    assert entry.token is not None
    return entry.sched_id, entry.token


def lease(world: World, claim: tuple[int, int], cores: int = 1, host: CoreHost = BOX, **cpu: Any) -> CoreGrant:
    return CoreGrants(world.kernel).grant(*claim, host, CoreAsk(cpu=CpuSettings(lease=cores, **cpu)))


def leased(world: World, host: CoreHost = BOX) -> dict[int, int]:
    return CoreGrants(world.kernel).leased(host.key)


def check_replay(world: World) -> None:
    """What the journal says equals what the tables say."""
    tables, journal = world.store.read(lambda tx: (KernelState.from_tables(tx), KernelState.from_journal(tx)))
    assert journal.at(world.now) == tables.at(world.now)


def test_an_entry_that_was_refused_is_tried_again_ever_more_seldom_but_never_later_than_after_ten_seconds() -> None:
    assert [refused_delay_s(waited_s) for waited_s in (-3.0, 0.0, 10.0, 25.0, 60.0, 86_400.0)] == [1, 1, 1, 2.5, 6, 10]


# --- leases --------------------------------------------------------------------------------------


def test_a_lease_is_a_row_of_its_claim_and_leaves_a_core_open(world: World) -> None:
    claim = claimed(world)
    grant = lease(world, claim)
    assert (grant.leased, grant.open_cores, grant.owner) == ((1,), (0,), "build")
    assert leased(world) == {1: claim[0]}
    assert open_cores(world.dispatcher, BOX) == (0,)
    assert open_cores(world.dispatcher, msgspec.structs.replace(BOX, cores=(1,))) == ()
    granted = [fact for fact in world.facts() if isinstance(fact, CoresGranted)]
    assert [(one.sched_id, one.host_name, one.leased) for one in granted] == [(claim[0], "box", (1,))]
    check_replay(world)


def test_two_supervisors_cannot_lease_one_core(world: World) -> None:
    """Each has its own connection and sees the host under the same key."""
    first, second = claimed(world, "build"), claimed(world, "test")
    lease(world, first)
    with pytest.raises(LeaseRefused) as refused:
        CoreGrants(Kernel(world.store)).grant(*second, BOX, CoreAsk(cpu=CpuSettings(lease=1)))
    assert refused.value.message == (
        f"1 core asked of box, 0 free: core 0 is kept for everything else, core 1 is leased by entry {first[0]} (build)"
    )
    assert refused.value.data["proofs"] == ["no_housekeeping_core"]
    (recorded,) = (fact for fact in world.facts() if isinstance(fact, CoresRefused))
    assert (recorded.sched_id, recorded.held_by) == (second[0], (first[0],))
    lease(world, second, host=CoreHost(key="boot-2", name="other", cores=(0, 1)))
    check_replay(world)


@pytest.mark.parametrize("end", ["complete", "retry", "put back", "claim expires"])
def test_lease_owner_exits(world: World, end: str) -> None:
    """However a claim ends, its lease does, without anything being written for it."""
    claim = claimed(world, claim_timeout_s=30)
    lease(world, claim)
    if end == "complete":
        world.queue.complete(claim[0], "completed", token=claim[1])
    elif end == "retry":
        world.queue.complete(claim[0], "crashed", token=claim[1])
    elif end == "put back":
        world.queue.put_back(claim[0], token=claim[1])
    else:
        world.clock.advance(31)
        world.queue.upkeep()
    assert leased(world) == {}
    other = claimed_again(world) if end in ("retry", "put back", "claim expires") else claimed(world, "test")
    assert lease(world, other).leased == (1,)
    assert any(isinstance(fact, CoresReturned) and fact.reason == "claim_ended" for fact in world.facts())
    check_replay(world)


def test_the_grant_of_a_claim_that_has_expired_does_not_count_before_a_worker_takes_it_back(world: World) -> None:
    killed, asker = claimed(world, claim_timeout_s=30), claimed(world, "test")
    lease(world, killed)
    world.clock.advance(31)
    assert CoreGrants(world.kernel).status().hosts == []
    assert lease(world, asker).leased == (1,)
    assert world.state(killed[0]) == "queued:backoff"  # whoever has the claim has lost it
    with pytest.raises(StaleClaim):
        lease(world, killed)
    check_replay(world)


def test_a_run_that_is_late_is_granted_cores_and_others_that_are_late_keep_theirs(world: World) -> None:
    """The machine was suspended: all claims have expired, and the first run asks before any heartbeat is sent."""
    leasing, asker = claimed(world, claim_timeout_s=30), claimed(world, "test", claim_timeout_s=30)
    lease(world, leasing)
    world.clock.advance(31)
    with pytest.raises(LeaseRefused):
        lease(world, asker)
    world.queue.heartbeat(*asker)
    with pytest.raises(LeaseRefused):
        lease(world, asker)
    world.queue.heartbeat(*leasing)
    assert [world.state(each) for each, _ in (leasing, asker)] == ["dispatched", "dispatched"]
    assert lease(world, leasing).leased == (1,)
    check_replay(world)


def claimed_again(world: World) -> tuple[int, int]:
    world.clock.advance(600)
    entry = world.take_one()
    assert entry.token is not None
    return entry.sched_id, entry.token


def test_lease_session_closes(world: World) -> None:
    """A supervisor ends the lease of a run that has ended, before the claim does."""
    claim = claimed(world)
    lease(world, claim)
    cores = CoreGrants(world.kernel)
    assert cores.release(*claim) is True
    assert cores.release(*claim) is False
    assert leased(world) == {}
    check_replay(world)


def test_stale_claim_after_revocation(world: World) -> None:
    claim = claimed(world)
    lease(world, claim)
    world.queue.put_back(claim[0], token=claim[1])
    with pytest.raises(StaleClaim):
        lease(world, claim)
    lease(world, claimed_again(world))
    assert CoreGrants(world.kernel).release(*claim) is False  # the token of the earlier claim
    assert leased(world) == {1: claim[0]}


def test_lease_housekeeping_fallback(world: World) -> None:
    with pytest.raises(LeaseRefused, match="2 cores asked of box, 1 free: core 0 is kept for everything else"):
        lease(world, claimed(world), cores=2)
    one_core = CoreHost(key="tiny", name="tiny", cores=(3,))
    with pytest.raises(LeaseRefused, match="1 core asked of tiny, 0 free: core 3 is kept"):
        lease(world, claimed(world, "second"), host=one_core)


def test_a_lease_takes_only_allowed_cores_and_none_that_others_need(world: World) -> None:
    four = CoreHost(key="four", name="four", cores=(0, 1, 2, 3))
    first = CoreGrants(world.kernel).grant(
        *claimed(world, "a"), four, CoreAsk(cpu=CpuSettings(cores="3", quota="5/10"))
    )
    assert first.allowed == (3,)
    second = CoreGrants(world.kernel).grant(*claimed(world, "b"), four, CoreAsk(cpu=CpuSettings(cores="2-3", lease=1)))
    assert second.leased == (2,)  # core 3 is the only one that the first may use
    with pytest.raises(LeaseRefused, match=r"core 3 is the last open one of entry \d+ \(a\)"):
        CoreGrants(world.kernel).grant(*claimed(world, "c"), four, CoreAsk(cpu=CpuSettings(cores="3", lease=1)))
    with pytest.raises(LeaseRefused, match="cores 7 are asked of four, which has 0-3"):
        CoreGrants(world.kernel).grant(*claimed(world, "d"), four, CoreAsk(cpu=CpuSettings(cores="7", quota="1/10")))


FOUR = CoreHost(key="four", name="four", cores=(0, 1, 2, 3))


def ask_four(world: World, claim: tuple[int, int], **cpu: Any) -> CoreGrant:
    return CoreGrants(world.kernel).grant(*claim, FOUR, CoreAsk(cpu=CpuSettings(**cpu)))


def test_leases_leave_a_run_that_names_its_cores_one_of_them(world: World) -> None:
    """Neither one lease of several cores nor several leases take the last one."""
    pinned = claimed(world, "pinned")
    assert ask_four(world, pinned, cores="2-3").allowed == (2, 3)
    first = claimed(world, "first")
    assert ask_four(world, first, lease=2).leased == (1, 3)  # not both of its cores
    with pytest.raises(LeaseRefused) as refused:
        ask_four(world, claimed(world, "second"), cores="2-3", lease=2)
    assert refused.value.message == (
        f"2 cores asked of four, 0 free: core 2 is the last open one of entry {pinned[0]} (pinned), "
        f"core 3 is leased by entry {first[0]} (first)"
    )
    check_replay(world)


def test_a_lease_prefers_cores_that_no_run_names(world: World) -> None:
    ask_four(world, claimed(world, "pinned"), cores="2-3")
    assert ask_four(world, claimed(world, "first"), lease=1).leased == (1,)


def test_a_run_that_names_its_cores_waits_while_all_of_them_are_leased(world: World) -> None:
    owner, pinned = claimed(world, "owner"), claimed(world, "pinned")
    ask_four(world, owner, cores="3", lease=1)
    with pytest.raises(LeaseRefused) as refused:
        ask_four(world, pinned, cores="3")
    assert refused.value.message == f"cores 3 are asked of four: core 3 is leased by entry {owner[0]} (owner)"
    assert ask_four(world, pinned, cores="2-3").allowed == (2, 3)
    world.queue.complete(owner[0], "completed", token=owner[1])
    assert ask_four(world, pinned, cores="3").allowed == (3,)


def test_the_same_claim_may_ask_again(world: World) -> None:
    claim = claimed(world)
    lease(world, claim)
    assert lease(world, claim).leased == (1,)
    assert leased(world) == {1: claim[0]}
    check_replay(world)


# --- entries that wait ----------------------------------------------------------------------------


def refused(world: World, claim: tuple[int, int], delay_s: float = 10.0, **cpu: Any) -> int:
    """A claim that is refused the cores of a host with four, and goes back to the queue for a time; its entry."""
    with pytest.raises((LeaseRefused, ContextRefused)):
        ask_four(world, claim, **cpu)
    world.queue.put_back(claim[0], token=claim[1], delay_s=delay_s)
    return claim[0]


def claims(world: World, *settings: dict[str, Any]) -> list[tuple[int, int]]:
    """Claims of new entries, each of an agent of its own."""
    for number, spec in enumerate(settings):
        world.put(world.agent(f"agent {number}"), **spec)
    return [(entry.sched_id, entry.token or 0) for entry in sorted(world.take(9), key=lambda entry: entry.sched_id)]


def test_when_a_grant_ends_the_first_that_wait_for_it_are_woken_in_claim_order(world: World) -> None:
    owner = claimed(world, "owner")
    ask_four(world, owner, lease=3)
    first, low, high, wide = claims(world, {}, {}, {"priority": 5}, {"priority": 9})
    waiting = [refused(world, claim, lease=1) for claim in (first, low, high)]
    refused(world, wide, cores="3", lease=1)
    assert world.take_ids() == []
    assert CoreGrants(world.kernel).release(*owner)
    assert world.take_ids() == [wide[0], high[0], first[0]]  # there are three cores, and they came in this order
    assert world.state(low[0]) == "queued:time"
    assert waiting == [first[0], low[0], high[0]]
    check_replay(world)


def test_an_entry_that_asks_for_more_than_has_become_free_does_not_keep_the_cores_idle(world: World) -> None:
    owner, other = claimed(world, "owner"), claimed(world, "other")
    ask_four(world, owner, lease=1)
    ask_four(world, other, lease=2)
    wide, narrow = claims(world, {"priority": 5}, {})
    refused(world, wide, lease=2)
    refused(world, narrow, lease=1)
    CoreGrants(world.kernel).release(*owner)
    assert world.take_ids() == [narrow[0]]


def test_what_was_woken_a_moment_ago_is_not_overtaken(world: World) -> None:
    owner, other = claimed(world, "owner"), claimed(world, "other")
    ask_four(world, owner, lease=3)
    ask_four(world, other, cores="0")
    first, second = claims(world, {}, {})
    refused(world, first, cores="3", lease=1)
    refused(world, second, cores="3", lease=1)
    cores = CoreGrants(world.kernel)
    cores.release(*owner)
    cores.release(*other)
    assert [world.state(claim[0]) for claim in (first, second)] == ["queued", "queued:time"]
    world.clock.advance(WOKEN_S)  # nothing claims it
    assert cores.release(*other) is False
    ask_four(world, other, cores="0")
    cores.release(*other)
    assert world.state(second[0]) == "queued"


def test_who_asks_first_after_a_claim_has_expired_does_not_come_before_those_that_wait(world: World) -> None:
    owner = claimed(world, "owner", claim_timeout_s=30)
    ask_four(world, owner, lease=3)
    low, high = claims(world, {}, {"priority": 5})
    refused(world, high, delay_s=100, cores="3", lease=1)
    world.clock.advance(31)
    with pytest.raises(LeaseRefused, match=rf"core 3 is leased by entry {high[0]} \(agent 1\)"):
        ask_four(world, low, cores="3", lease=1)
    assert world.state(high[0]) == "queued"
    check_replay(world)


def test_an_entry_past_its_deadline_is_not_woken(world: World) -> None:
    owner = claimed(world, "owner")
    ask_four(world, owner, lease=3)
    (late,) = claims(world, {"deadline": world.now + 5})
    refused(world, late, delay_s=1, lease=1)
    world.clock.advance(6)
    assert CoreGrants(world.kernel).release(*owner)
    assert world.take_ids() == []


# --- reservations and islands ---------------------------------------------------------------------


def reserve(world: World, claim: tuple[int, int], budget_ms: int, host: CoreHost = BOX) -> CoreGrant:
    settings = CpuSettings(realtime=f"deadline:{budget_ms}/100")
    return CoreGrants(world.kernel).grant(*claim, host, CoreAsk(cpu=settings))


def test_reservations_are_placed_where_they_fit_and_refused_with_the_shortage(world: World) -> None:
    grants = [reserve(world, claimed(world, name), 60) for name in ("a", "b")]
    assert [one.core for grant in grants for one in grant.reserved] == [0, 1]
    with pytest.raises(ContextRefused) as refused:
        reserve(world, claimed(world, "c"), 60)
    assert refused.value.data["missing"] == [
        "utilisation of core 0 in ppm: 1,200,000 needed, 950,000 available",
        "utilisation of core 1 in ppm: 1,200,000 needed, 950,000 available",
    ]
    with pytest.raises(LeaseRefused, match=r"time of core 0 is reserved by entry \d+ \(a\)"):
        lease(world, claimed(world, "d"))


def test_a_reservation_keeps_off_leased_cores(world: World) -> None:
    first = claimed(world, "a")
    lease(world, first)
    assert [one.core for one in reserve(world, claimed(world, "b"), 90).reserved] == [0]
    with pytest.raises(ContextRefused, match="core 0 in ppm: 1,800,000 needed"):
        reserve(world, claimed(world, "c"), 90)


def test_a_refusal_says_whether_any_host_could_grant_it(world: World) -> None:
    """An ask that only this host cannot serve may be served by another one."""
    with pytest.raises(ContextRefused, match="1,000,000 needed, 950,000 available") as refused:
        reserve(world, claimed(world, "a"), 100)
    assert refused.value.data["never"] is True
    asks: list[dict[str, Any]] = [{"lease": 2}, {"lease": 4000}, {"cores": "7", "lease": 1}]
    for number, ask in enumerate(asks):
        with pytest.raises(LeaseRefused) as only_here:
            CoreGrants(world.kernel).grant(*claimed(world, f"b{number}"), BOX, CoreAsk(cpu=CpuSettings(**ask)))
        assert "never" not in only_here.value.data
    crowded = island(cpu=CpuSettings(lease=1), reserved=(ReservedTime(name="x", budget_ns=8, period_ns=10),) * 2)
    with pytest.raises(IslandRefused) as refused_island:
        CoreGrants(world.kernel).grant(*claimed(world, "c"), BOX, crowded)
    assert refused_island.value.data["never"] is True


def island(**fields: Any) -> CoreAsk:
    steps = (
        ReservedTime(name="mix", budget_ns=3 * MS, period_ns=10 * MS, criticality="critical"),
        ReservedTime(name="play", budget_ns=2 * MS, period_ns=10 * MS, criticality="critical"),
    )
    return CoreAsk(**{"island": "voice", "reserved": steps, **fields})


def test_an_island_is_granted_whole_with_its_evidence_or_refused_with_every_shortage(world: World) -> None:
    cores = CoreGrants(world.kernel)
    granted = cores.grant(*claimed(world, "a"), BOX, island(memory_bytes=600, slots=1))
    assert [(one.name, one.core) for one in granted.reserved] == [("mix", 0), ("play", 0)]
    assert granted.evidence["core 0 utilisation ppm"] == 500_000
    with pytest.raises(IslandRefused) as refused:
        cores.grant(*claimed(world, "b"), BOX, island(memory_bytes=600, slots=2))
    assert refused.value.data["missing"] == [
        "memory in bytes: 600 needed, 400 available",
        "slots: 2 needed, 1 available",
    ]
    (recorded,) = (fact for fact in world.facts() if isinstance(fact, CoresRefused))
    assert recorded.island == "voice"


def test_an_island_may_lease_its_cores(world: World) -> None:
    granted = CoreGrants(world.kernel).grant(*claimed(world), BOX, island(cpu=CpuSettings(lease=1)))
    assert granted.leased == (1,)
    assert {one.core for one in granted.reserved} == {1}
    assert any(isinstance(fact, LeaseChanged) and fact.verb == "grant" for fact in world.facts())


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: CoreHost(key="k", name="n", cores=(1, 1)), "CoreHost.cores must name at least one core, each once"),
        (lambda: CoreHost(key="k", name="n", cores=()), "CoreHost.cores must name at least one core"),
        (lambda: CoreHost(key="k", name="n", cores=(-1,)), "CoreHost.cores must lie from 0"),
        (lambda: CoreHost(key="k", name="n", cores=(0,), memory_bytes=-1), "CoreHost.memory_bytes must lie from 0"),
        (lambda: island(memory_bytes=-1), "CoreAsk.memory_bytes must lie from 0"),
        (lambda: CoreAsk(memory_bytes=5), "CoreAsk.island must be named to reserve memory"),
        (lambda: CoreAsk(island="empty"), "CoreAsk.reserved must have at least one"),
        (lambda: ReservedTime(name="x", budget_ns=11, period_ns=10), "ReservedTime.budget_ns must lie from 1 to 10"),
        (lambda: ReservedTime(name="x", budget_ns=1, period_ns=10, core=-1), "ReservedTime.core must lie from 0"),
    ],
)
def test_every_field_is_validated_at_the_door(make: Any, sentence: str) -> None:
    with pytest.raises(ContextInvalid) as refused:
        make()
    assert refused.value.message.startswith(sentence)


# --- profiles, status, why -----------------------------------------------------------------------


def test_a_class_is_mapped_by_its_profile_and_recorded(world: World) -> None:
    granted = CoreGrants(world.kernel).grant(*claimed(world), BOX, CoreAsk(cpu=CpuSettings(class_="sensitive")))
    assert granted.latency_class == "sensitive"
    (mapped,) = (fact for fact in world.facts() if isinstance(fact, ProfileMapped))
    assert (mapped.subject, mapped.hint) == ("build", "latency_sensitive")


def test_only_what_promises_or_takes_something_needs_a_grant() -> None:
    assert not needs_grant(None)
    assert not needs_grant(CpuSettings(weight=3))
    for settings in (
        {"lease": 1},
        {"cores": "0"},
        {"quota": "1/10"},
        {"realtime": "deadline:1/10"},
        {"class_": "batch"},
    ):
        assert needs_grant(CpuSettings(**settings)), settings
    assert not needs_grant(CpuSettings(realtime="fifo:3"))


def test_the_status_shows_grants_by_host_and_refused_entries(world: World) -> None:
    first, second = claimed(world, "build"), claimed(world, "test")
    lease(world, first)
    with pytest.raises(LeaseRefused):
        lease(world, second)
    cores = CoreGrants(world.kernel)
    assert cores.status().refused == []  # its claim is live: it may still be granted
    world.queue.put_back(second[0], token=second[1], delay_s=1)
    status = cores.status()
    assert [(host.host_name, host.leased) for host in status.hosts] == [("box", {1: first[0]})]
    assert [one.sched_id for one in status.refused] == [second[0]]
    assert cores.status(BOX.key) == status
    assert cores.status("elsewhere") == CoreStatus()


def test_the_status_of_a_host_has_what_that_host_refused(world: World) -> None:
    """An entry may have been refused by several."""
    owner, asker = claimed(world, "owner"), claimed(world, "asker")
    lease(world, owner)
    other = msgspec.structs.replace(BOX, key="boot-2", name="other", cores=(0,))
    for host in (BOX, other):
        with pytest.raises(LeaseRefused):
            lease(world, asker, host=host)
    world.queue.put_back(asker[0], token=asker[1], delay_s=1)
    cores = CoreGrants(world.kernel)
    found = {key: [one.host_name for one in cores.status(key).refused] for key in (None, BOX.key, "boot-2", "boot-3")}
    assert found == {None: ["other"], BOX.key: ["box"], "boot-2": ["other"], "boot-3": []}


def test_a_refusal_is_told_as_it_would_be_now(world: World) -> None:
    """A grant ends without a write, and the entry that was refused is tried again some seconds later."""
    world.kernel.workers.register("w", "i", kind="supervisor", host="four", os_pid=1, pools=[SlotPool("w", 4)])
    first, second, third = claims(world, {}, {}, {})
    for claim in (first, second):
        ask_four(world, claim, lease=1)
    refused(world, third, lease=3)

    def told() -> list[tuple[str, tuple[int, ...]]]:
        """What `rota why`, `why` of all entries and `rota cpu status` say."""
        dispatcher = Dispatcher(world.kernel)
        found = [explain(dispatcher, third[0]).workers, *(each.reason for each in explain_many(dispatcher).reasons)]
        said = [(each.refusal, each.held_by) for each in found if isinstance(each, reasons.CoresRefused)]
        return said + [(each.reason, each.held_by) for each in CoreGrants(world.kernel).status().refused]

    kept, by_first = "core 0 is kept for everything else", f"core 3 is leased by entry {first[0]} (agent 0)"
    by_second = f"core 2 is leased by entry {second[0]} (agent 1)"
    before = (f"3 cores asked of four, 1 free: {kept}, {by_second}, {by_first}", (first[0], second[0]))
    assert told() == [before] * 3
    world.queue.complete(second[0], "completed", token=second[1])
    assert told() == [(f"3 cores asked of four, 2 free: {kept}, {by_first}", (first[0],))] * 3
    world.queue.complete(first[0], "completed", token=first[1])
    assert told() == []
    assert [type(each) for each in explain(Dispatcher(world.kernel), third[0]).blocking] == [reasons.NotYetRunnable]


def test_very_many_refusals_are_told_as_they_were_recorded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_refusals, "DECIDED_MAX", 1)
    first, second, third = claims(world, {}, {}, {})
    ask_four(world, first, lease=3)
    refused(world, second, lease=1)
    refused(world, third, lease=2)
    world.queue.complete(first[0], "completed", token=first[1])
    assert [each.sched_id for each in CoreGrants(world.kernel).status().refused] == [second[0]]


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        ({"lease": 4}, "4 cores asked of four, 3 free: core 0 is kept for everything else"),
        ({"cores": "7", "lease": 1}, "cores 7 are asked of four, which has 0-3"),
        ({"lease": 2, "cores": "3-4"}, "2 cores asked of four, 1 free: it may use only cores 3 there"),
    ],
)
def test_what_a_host_can_never_grant_is_told_as_such_whatever_runs_there(
    world: World, ask: dict[str, Any], why: str
) -> None:
    """It was told which entries had the cores, and to wait for them."""
    world.kernel.workers.register("w", "i", kind="supervisor", host="four", os_pid=1, pools=[SlotPool("w", 4)])
    owner, asker = claims(world, {}, {})
    ask_four(world, owner, lease=2)
    refused(world, asker, **ask)
    found = explain(Dispatcher(world.kernel), asker[0])
    assert isinstance(found.workers, reasons.CoresRefused)
    assert (found.workers.held_by, found.workers.never) == ((), True)
    assert found.workers.refusal.startswith(f"four can never grant it: {why}")
    assert found.changes[0].words == "start a worker on a host that has the cores, or ask for less"
    assert (found.start.starts_at, found.start.basis) == (None, found.workers.sentence())
    (recorded,) = (fact for fact in world.facts() if isinstance(fact, CoresRefused))
    assert recorded.reason == found.workers.refusal
    (counted,) = CoreGrants(world.kernel).status().refused
    assert (counted.reason, counted.never) == (found.workers.refusal, True)


def test_why_does_not_tell_the_refusal_of_a_host_if_workers_run_only_on_others(world: World) -> None:
    sched_id = refused(world, claimed(world), lease=4)
    for name, told in (("other", type(None)), ("four", reasons.CoresRefused)):
        world.kernel.workers.register(name, "i", kind="supervisor", host=name, os_pid=1, pools=[SlotPool(name, 4)])
        assert type(explain(Dispatcher(world.kernel), sched_id).workers) is told


def test_why_says_that_the_cores_were_refused_and_who_has_them(world: World) -> None:
    world.kernel.workers.register("w", "i", kind="supervisor", host="box", os_pid=1, pools=[SlotPool("w", 4)])
    first, second = claimed(world, "build"), claimed(world, "test")
    lease(world, first)
    with pytest.raises(LeaseRefused):
        lease(world, second)
    world.queue.put_back(second[0], token=second[1], delay_s=1)
    found = explain(Dispatcher(world.kernel), second[0])
    assert isinstance(found.workers, reasons.CoresRefused)
    assert found.workers.held_by == (first[0],)
    assert "1 core asked of box, 0 free" in found.workers.sentence()
    assert found.start.starts_at is None  # its time is that of the next attempt
    assert "refused the cores that it asked for" in [step.words for step in found.story]
    assert [change.words for change in found.changes] == [
        "wait for a lease to end, or ask for less",  # being runnable earlier alone would not start it
        "make it runnable now",
    ]


def test_why_without_a_worker_says_that_the_host_would_refuse_the_cores(world: World) -> None:
    """As long as it would: without a worker there is no lease either."""
    first, greedy, second = claims(world, {}, {}, {})
    lease(world, first)
    for claim, cores in ((greedy, 2), (second, 1)):
        with pytest.raises(LeaseRefused):
            lease(world, claim, cores)
        world.queue.put_back(claim[0], token=claim[1], delay_s=60)
    world.queue.complete(first[0], "completed", token=first[1])
    found = explain(Dispatcher(world.kernel), greedy[0]).workers
    assert isinstance(found, reasons.NoWorker)
    assert found.sentence().startswith("no worker is running: start one with `rota run fleet.toml`; the last one ")
    never = "box can never grant it: 2 cores asked of box, 1 free: core 0 is kept for everything else"
    assert found.sentence().endswith(f"was refused the cores that it asks for: {never}")
    counted = explain_many(Dispatcher(world.kernel), pid=2).reasons  # not the time of the next attempt besides
    assert [each.reason for each in counted] == [found]
    assert explain(Dispatcher(world.kernel), second[0]).workers == reasons.NoWorker(start="rota run fleet.toml")


def test_why_of_many_entries_counts_refused_cores_in_place_of_the_time_of_the_next_attempt(world: World) -> None:
    world.kernel.workers.register("w", "i", kind="supervisor", host="box", os_pid=1, pools=[SlotPool("w", 4)])
    owner = claimed(world, "owner")
    lease(world, owner)
    waiting = [claimed(world, name) for name in ("a", "b")]
    for claim in waiting:
        with pytest.raises(LeaseRefused):
            lease(world, claim)
        world.queue.put_back(claim[0], token=claim[1], delay_s=10)
    (found,) = explain_many(Dispatcher(world.kernel)).reasons
    assert isinstance(found.reason, reasons.CoresRefused)
    assert (found.count, found.sched_id) == (2, waiting[0][0])
    assert f"1 core asked of box, 0 free: core 0 is kept for everything else, core 1 is leased by entry {owner[0]}" in (
        found.reason.sentence()
    )


def test_this_host_has_this_process_cores() -> None:
    host = this_host()
    assert host.cores
    assert host == this_host()
    assert host.memory_bytes > 2**20
    assert host.slots >= len(host.cores)


@pytest.mark.skipif(len(allowed_cores()) < 2, reason="a lease needs two cores")
def test_this_host_has_the_cores_that_this_process_keeps_off_while_they_are_leased() -> None:
    """A graph that is an island asks while other runs have leases."""
    host, confinement = this_host(), Confinement()
    confinement.set_open(host.cores[:1])
    try:
        assert this_host() == host
    finally:
        confinement.set_open(host.cores)


def test_grants_survive_a_checkpoint_and_an_old_file_gets_the_tables(tmp_path: Path) -> None:
    world = World(str(tmp_path / "store.db"))
    claim = claimed(world)
    lease(world, claim)
    world.kernel.retention.checkpoint()
    check_replay(world)
    world.close()
    again = Kernel(store.open(str(tmp_path / "store.db")))
    assert CoreGrants(again).leased(BOX.key) == {1: claim[0]}
    again.store.close()

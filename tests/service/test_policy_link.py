"""The policy service: requests at slow boundaries only, checked responses, and a fallback when it fails."""

from __future__ import annotations

import msgspec
import pytest

from rota.cores import CoresEngine, CpuIsolationLease, SchedulingContext
from rota.cores.events import Block, CoreTick, ExitEntity, LeaseEnded, Reweigh, TimerDue, Wake
from rota.errors import Refused
from rota.model.events import CpuContextChanged, EventData, PolicyFellBack, PolicyReloaded, ProfileMapped
from rota.service.admission import Admission, OwnerLimit
from rota.service.policy_link import (
    REQUESTS_MAX,
    STALE_MAX,
    STRIKES_MAX,
    PolicyLink,
    ProfileResponse,
    answer_from_profiles,
)
from rota.service.profiles import Hint, Profile, ProfileLimit

MS = 1_000_000
WITHIN = 2 * MS  # a response is overdue after that


class Setup:
    """An engine, its policy link, and a service that responds on demand."""

    def __init__(self, cores: int = 1) -> None:
        self.record: list[EventData] = []
        self.engine = CoresEngine(cores=cores)
        admission = Admission(self.engine, self.record.append, default=OwnerLimit(criticality="high"))
        limit = ProfileLimit(criticality_max="high", weight_min=1, budget_ppm_max=1_000_000)
        self.link = PolicyLink(self.engine, admission, self.record.append, limit=limit, answer_within_ns=WITHIN)
        self.now = 0

    def spawn(self, hint: Hint = "agent", subject: str = "subject") -> int:
        entity = self.engine.spawn()
        self.link.entity_created(entity, subject, hint, self.now)
        return entity

    def answer_all(self) -> int:
        """Answer every request from the profile table."""
        answered = 0
        while self.link.outbox:
            request = self.link.outbox.popleft()
            self.link.receive(msgspec.json.encode(answer_from_profiles(self.link.profiles, request)), self.now)
            answered += 1
        return answered

    def run(self, until_ns: int) -> None:
        """Run the slices of every core up to an instant."""
        while self.now < until_ns:
            for core in range(self.engine.core_count):
                self.engine.step(CoreTick(core), self.now)
            self.now += MS
            while (at := self.engine.timers.next_at) is not None and at <= self.now:
                self.engine.step(TimerDue(), self.now)

    def runtime(self, entity: int) -> int:
        return self.engine.account(entity, self.now).runtime_ns


def fell_back(setup: Setup) -> list[str]:
    return [fact.failure for fact in setup.record if isinstance(fact, PolicyFellBack)]


# --- the usual way --------------------------------------------------------------------------------


def test_a_hint_grants_nothing_until_the_service_responds_and_then_it_is_recorded() -> None:
    setup = Setup()
    entity = setup.spawn("latency_sensitive", "editor")
    assert setup.engine.entity(entity).weight == 1000
    setup.answer_all()
    view = setup.engine.entity(entity)
    assert (view.weight, view.latency_class) == (2000, "sensitive")
    (mapped,) = setup.record
    assert isinstance(mapped, ProfileMapped)
    assert (mapped.subject, mapped.hint, mapped.epoch) == ("editor", "latency_sensitive", 1)
    assert mapped.granted["weight"] == 2000


def test_a_profile_with_a_budget_gives_a_context() -> None:
    setup = Setup()
    poller = setup.spawn("poller")
    setup.answer_all()
    paying = setup.engine.entity(poller).paying
    assert paying is not None
    assert setup.engine.context(paying).budget == 50 * MS


def contexts(setup: Setup) -> int:
    return len(list(setup.engine._contexts))


def test_a_new_budget_changes_the_context_that_the_old_one_gave() -> None:
    setup = Setup()
    poller = setup.spawn("poller")
    setup.answer_all()
    paying = setup.engine.entity(poller).paying
    for budget_ms in (20, 30, 40):
        setup.link.reload({"poller": {"budget_ns": budget_ms * MS}}, setup.now)
        setup.answer_all()
        assert contexts(setup) == 1
    assert setup.engine.entity(poller).paying == paying
    assert setup.engine.context(paying or 0).budget == 40 * MS


def test_a_profile_of_another_kind_gives_another_context_and_revokes_the_old_one() -> None:
    setup = Setup()
    poller = setup.spawn("poller")
    setup.answer_all()
    paying = setup.engine.entity(poller).paying
    setup.link.reload({"poller": {"budget_ns": 20 * MS, "criticality": "high"}}, setup.now)
    setup.answer_all()
    assert contexts(setup) == 1
    assert setup.engine.entity(poller).paying not in (None, paying)
    setup.link.reload({"poller": {}}, setup.now)
    setup.answer_all()
    assert (contexts(setup), setup.engine.entity(poller).paying) == (0, None)


def test_the_context_of_a_profile_is_revoked_when_its_entity_ends() -> None:
    setup = Setup()
    poller = setup.spawn("poller")
    setup.answer_all()
    setup.engine.step(ExitEntity(poller), setup.now)
    setup.link.entity_ended(poller, setup.now)
    assert contexts(setup) == 0
    assert [fact.verb for fact in setup.record if isinstance(fact, CpuContextChanged)] == ["admit", "revoke"]


def test_a_profile_that_does_not_fit_changes_nothing_and_is_a_strike() -> None:
    setup = Setup()
    poller = setup.spawn("poller")
    setup.answer_all()
    setup.link.reload({"poller": {"budget_ns": 99 * MS, "criticality": "high", "weight": 7}}, setup.now)
    setup.answer_all()
    assert setup.engine.context(setup.engine.entity(poller).paying or 0).budget == 50 * MS
    assert setup.engine.entity(poller).weight == 1000
    assert setup.link.diagnostics().strikes == 1


def test_a_reload_requests_every_profile_again_in_a_new_epoch() -> None:
    setup = Setup()
    entities = [setup.spawn("batch") for _ in range(3)]
    setup.answer_all()
    setup.link.reload({"batch": {"weight": 100, "latency_class": "batch"}}, setup.now)
    assert setup.answer_all() == 3
    assert [setup.engine.entity(one).weight for one in entities] == [100] * 3
    assert setup.link.diagnostics().epoch == 2
    assert any(isinstance(fact, PolicyReloaded) for fact in setup.record)


def test_a_response_of_an_older_epoch_is_dropped_and_counted() -> None:
    setup = Setup()
    entity = setup.spawn("batch")
    late = msgspec.json.encode(answer_from_profiles(setup.link.profiles, setup.link.outbox.popleft()))
    setup.link.reload({}, setup.now)
    setup.link.receive(late, setup.now)
    assert setup.engine.entity(entity).weight == 1000
    assert setup.engine.counters.stale_orders == 1
    assert setup.link.diagnostics().dropped == 1


def test_an_update_of_an_older_epoch_is_dropped_by_the_engine_itself() -> None:
    setup = Setup()
    entity = setup.spawn()
    setup.answer_all()
    setup.link.reload({}, setup.now)
    setup.engine.step(Reweigh(entity, 9000, "normal", 1), setup.now)
    assert setup.engine.entity(entity).weight == 1000
    assert setup.engine.counters.stale_orders == 1
    setup.engine.step(Reweigh(entity, 9000, "normal", 2), setup.now)
    assert setup.engine.entity(entity).weight == 9000


def test_a_response_about_an_ended_entity_is_not_a_strike() -> None:
    setup = Setup()
    entity = setup.spawn()
    setup.engine.step(ExitEntity(entity), setup.now)
    setup.link.entity_ended(entity, setup.now)
    setup.answer_all()
    found = setup.link.diagnostics()
    assert (found.strikes, found.dropped) == (0, 1)


def test_the_service_gets_no_request_during_a_hundred_thousand_picks() -> None:
    setup = Setup()
    entities = [setup.spawn() for _ in range(10)]
    setup.answer_all()
    asked = setup.link.diagnostics().asked
    engine = setup.engine
    for entity in entities:
        engine.step(Wake(entity), 0)
    engine.step(CoreTick(0), 0)
    now = 0
    while engine.counters.picks < 100_000:
        now += MS
        running = engine.running(0)
        assert running is not None
        engine.step(Block(running), now)
        engine.step(Wake(running), now)
    assert setup.link.diagnostics().asked == asked
    assert not setup.link.outbox


def test_a_depleted_context_makes_a_request() -> None:
    setup = Setup()
    poller = setup.spawn("poller")
    setup.answer_all()
    setup.link.context_depleted(poller, setup.now)
    assert [request.why for request in setup.link.outbox] == ["depleted"]
    setup.link.context_depleted(999, setup.now)  # an unknown entity
    assert len(setup.link.outbox) == 1


# --- killed in each way --------------------------------------------------------------------------------


def kill_dead(setup: Setup) -> None:
    setup.link.connection_lost("the wire is closed", setup.now)


def kill_blocked(setup: Setup) -> None:
    setup.spawn()
    setup.now += WITHIN
    setup.link.check_timeout(setup.now)
    assert setup.link.diagnostics().trusted  # exactly in time
    setup.now += 1
    setup.link.check_timeout(setup.now)


def kill_stale(setup: Setup) -> None:
    for _ in range(STALE_MAX):
        assert setup.link.diagnostics().trusted
        old = ProfileResponse(number=1, epoch=setup.link.profiles.epoch - 1, profile=Profile())
        setup.link.receive(msgspec.json.encode(old), setup.now)


def kill_malicious(setup: Setup) -> None:
    setup.spawn()
    setup.link.outbox.popleft()
    unasked = ProfileResponse(number=10**6, epoch=setup.link.profiles.epoch, profile=Profile())
    nonsense = [
        b"not even JSON",
        msgspec.json.encode({"number": 1, "epoch": 1, "profile": {"weight": -5}}),
        msgspec.json.encode(unasked),
    ]
    assert len(nonsense) == STRIKES_MAX
    for message in nonsense:
        assert setup.link.diagnostics().trusted
        setup.link.receive(message, setup.now)


KILLS = {"raised": kill_dead, "stalled": kill_blocked, "stale": kill_stale, "nonsense": kill_malicious}


@pytest.mark.parametrize("failure", KILLS)
def test_known_weights_stay_during_an_outage_and_nobody_starves_afterwards(failure: str) -> None:
    setup = Setup()
    heavy, light = setup.spawn("driver"), setup.spawn("batch")
    setup.answer_all()
    for entity in (heavy, light):
        setup.engine.step(Wake(entity), setup.now)
    setup.run(200 * MS)
    assert setup.runtime(heavy) > 4 * setup.runtime(light)  # weights 8 to 1
    KILLS[failure](setup)
    assert not setup.link.diagnostics().trusted
    assert fell_back(setup) == [failure]
    assert setup.engine.counters.fallbacks == 1
    outage = shares_in_windows(setup, heavy, light, windows=10)
    setup.link.restore(setup.now)
    setup.answer_all()
    afterwards = shares_in_windows(setup, heavy, light, windows=10)
    for share in (*outage, *afterwards):
        assert share == pytest.approx(8 / 9, abs=2 * 12 / 200)  # within two slices of the lighter one
    setup.engine.check_invariants()


def shares_in_windows(setup: Setup, heavy: int, light: int, *, windows: int) -> list[float]:
    """The heavy entity's part of the time in each of some windows of 200 ms."""
    shares = []
    for _ in range(windows):
        before = [setup.runtime(one) for one in (heavy, light)]
        setup.run(setup.now + 200 * MS)
        ran = [setup.runtime(one) - was for one, was in zip((heavy, light), before, strict=True)]
        shares.append(ran[0] / sum(ran))
    return shares


@pytest.mark.parametrize("failure", KILLS)
def test_budgets_masks_and_leases_apply_without_the_service(failure: str) -> None:
    setup = Setup(cores=3)
    setup.engine.add_group("owner")
    handle = setup.engine.admit(SchedulingContext(context_id=1, budget=10 * MS, period=100 * MS))
    capped = setup.engine.spawn()
    setup.engine.bind(handle, capped)
    for number, (core, on_loss) in enumerate(((1, "keep"), (2, "revoke")), 1):
        setup.engine.grant_lease(
            CpuIsolationLease(
                lease_id=number,
                owner="owner",
                cores=(core,),
                accounting_target=1,
                revocation_latency_max=5 * MS,
                on_service_loss=on_loss,  # type: ignore[arg-type]  # one of two words
            )
        )
    setup.engine.step(Wake(capped), 0)
    KILLS[failure](setup)
    ended = []
    while setup.now < 400 * MS:
        for core in range(3):
            setup.engine.step(CoreTick(core), setup.now)
        setup.now += MS
        while (at := setup.engine.timers.next_at) is not None and at <= setup.now:
            ended += [one for one in setup.engine.step(TimerDue(), setup.now) if isinstance(one, LeaseEnded)]
    assert ended == [LeaseEnded(2, (2,))]
    assert setup.engine.account(capped, setup.now).runtime_ns == 40 * MS


@pytest.mark.parametrize("failure", KILLS)
def test_a_lost_service_gets_no_request_and_its_responses_are_dropped_until_it_is_restored(failure: str) -> None:
    setup = Setup()
    entity = setup.spawn("driver")
    setup.answer_all()
    KILLS[failure](setup)
    newcomer = setup.spawn("driver")
    assert not setup.link.outbox
    answer = ProfileResponse(number=1, epoch=setup.link.profiles.epoch, profile=Profile(weight=5))
    setup.link.receive(msgspec.json.encode(answer), setup.now)
    assert setup.engine.entity(newcomer).weight == 1000
    setup.link.connection_lost("again", setup.now)
    assert len(fell_back(setup)) == 1  # it fell back once
    setup.link.restore(setup.now)
    assert setup.link.diagnostics().trusted
    setup.answer_all()
    assert setup.engine.entity(newcomer).weight == setup.engine.entity(entity).weight == 4000


def test_many_new_entities_and_a_reload_are_sent_in_batches_and_are_no_stall() -> None:
    setup = Setup()
    entities = [setup.spawn("batch") for _ in range(REQUESTS_MAX + 76)]
    found = setup.link.diagnostics()
    assert (found.trusted, found.waiting, found.unsent) == (True, REQUESTS_MAX, 76)
    assert len(setup.link.outbox) == REQUESTS_MAX
    assert setup.answer_all() == len(entities)
    setup.link.reload({"batch": {"weight": 700}}, setup.now)
    assert setup.answer_all() == len(entities)
    assert {setup.engine.entity(one).weight for one in entities} == {700}
    assert fell_back(setup) == []


def test_an_entity_that_ends_before_its_request_was_sent_is_forgotten() -> None:
    setup = Setup()
    entities = [setup.spawn() for _ in range(REQUESTS_MAX + 1)]
    setup.link.entity_ended(entities[-1], setup.now)
    assert setup.link.diagnostics().unsent == 0
    assert setup.answer_all() == REQUESTS_MAX


HOSTILE: dict[str, tuple[Profile, Profile]] = {
    "a weight that starves": (Profile(weight=1), Profile(weight=100)),
    "a weight that takes all": (Profile(weight=1_000_000), Profile(weight=10_000)),
    "a reservation of a core": (
        Profile(budget_ns=100 * MS, period_ns=100 * MS, criticality="critical"),
        Profile(budget_ns=90 * MS, period_ns=100 * MS),
    ),
    "the background": (Profile(criticality="background"), Profile()),
    "a nanosecond an hour": (
        Profile(budget_ns=1, period_ns=3_600_000 * MS),
        Profile(budget_ns=10 * MS, period_ns=1_000 * MS),
    ),
    "a nanosecond every nanosecond": (
        Profile(budget_ns=1, period_ns=1),
        Profile(budget_ns=900_000, period_ns=MS),
    ),
    "a kill": (Profile(budget_ns=50 * MS, overrun="kill"), Profile(budget_ns=50 * MS, overrun="throttle")),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_well_formed_hostile_response_is_moved_into_the_operators_limits(case: str) -> None:
    asked, granted = HOSTILE[case]
    record: list[EventData] = []
    engine = CoresEngine(cores=1)
    link = PolicyLink(engine, Admission(engine, record.append), record.append)
    entity = engine.spawn()
    link.entity_created(entity, "victim", "agent", 0)
    response = ProfileResponse(number=link.outbox.popleft().number, epoch=1, profile=asked)
    link.receive(msgspec.json.encode(response), 0)
    (mapped,) = (fact for fact in record if isinstance(fact, ProfileMapped))
    assert mapped.granted == granted.granted()
    assert engine.entity(entity).weight == granted.weight
    found = link.diagnostics()
    assert (found.trusted, found.clamped, found.strikes) == (True, 1, 0)


def test_a_response_without_a_request_is_a_strike() -> None:
    setup = Setup()
    answer = ProfileResponse(number=77, epoch=setup.link.profiles.epoch, profile=Profile(weight=5))
    for _ in range(STRIKES_MAX):
        setup.link.receive(msgspec.json.encode(answer), setup.now)
    assert fell_back(setup) == ["nonsense"]
    found = setup.link.diagnostics()
    assert (found.refused, found.taken, found.failure) == (3, 0, "nonsense")


def test_a_service_that_is_not_lost_cannot_be_restored() -> None:
    setup = Setup()
    with pytest.raises(Refused, match="is not lost"):
        setup.link.restore(setup.now)

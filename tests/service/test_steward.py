"""The policy service: asked at slow boundaries only, believed in nothing, and done without when it fails."""

from __future__ import annotations

import msgspec
import pytest

from rota.cores import CpuIsolationLease, Machine, SchedulingContext
from rota.cores.events import Block, Exit, LeaseEnded, Reweigh, Tick, Timer, Wake
from rota.errors import Refused
from rota.model.events import CpuContextMoved, Fact, PolicyFellBack, PolicyReloaded, ProfileMapped
from rota.service.admission import Admission, OwnerLimit
from rota.service.policy_link import QUESTIONS_MAX, STALE_MAX, STRIKES_MAX, Answer, Steward, by_the_book
from rota.service.profiles import Hint, Profile

MS = 1_000_000
WITHIN = 2 * MS  # an answer is overdue after that


class Desk:
    """An engine, its steward, and a service that answers when it is let."""

    def __init__(self, cores: int = 1) -> None:
        self.record: list[Fact] = []
        self.machine = Machine(cores=cores)
        admission = Admission(self.machine, self.record.append, default=OwnerLimit(criticality="high"))
        self.steward = Steward(self.machine, admission, self.record.append, answer_within_ns=WITHIN)
        self.now = 0

    def spawn(self, hint: Hint = "agent", subject: str = "somebody") -> int:
        entity = self.machine.spawn()
        self.steward.created(entity, subject, hint, self.now)
        return entity

    def answer_all(self) -> int:
        """The plain service: whatever the book says."""
        answered = 0
        while self.steward.outbox:
            question = self.steward.outbox.popleft()
            self.steward.hear(msgspec.json.encode(by_the_book(self.steward.book, question)), self.now)
            answered += 1
        return answered

    def run(self, until_ns: int) -> None:
        """Let every core run its turns; who runs goes on until its turn ends."""
        while self.now < until_ns:
            for core in range(self.machine.core_count):
                self.machine.step(Tick(core), self.now)
            self.now += MS
            while (at := self.machine.next_timer_at) is not None and at <= self.now:
                self.machine.step(Timer(), self.now)

    def runtime(self, entity: int) -> int:
        return self.machine.account(entity, self.now).runtime_ns


def fell_back(desk: Desk) -> list[str]:
    return [fact.failure for fact in desk.record if isinstance(fact, PolicyFellBack)]


# --- the usual way --------------------------------------------------------------------------------


def test_a_hint_is_worth_nothing_until_the_service_has_answered_and_then_it_is_recorded() -> None:
    desk = Desk()
    entity = desk.spawn("latency_sensitive", "editor")
    assert desk.machine.entity(entity).weight == 1000
    desk.answer_all()
    picture = desk.machine.entity(entity)
    assert (picture.weight, picture.latency_class) == (2000, "sensitive")
    (mapped,) = desk.record
    assert isinstance(mapped, ProfileMapped)
    assert (mapped.subject, mapped.hint, mapped.epoch) == ("editor", "latency_sensitive", 1)
    assert mapped.granted["weight"] == 2000


def test_a_profile_with_a_budget_gives_a_context() -> None:
    desk = Desk()
    poller = desk.spawn("poller")
    desk.answer_all()
    paying = desk.machine.entity(poller).paying
    assert paying is not None
    assert desk.machine.context(paying).budget == 50 * MS


def contexts(desk: Desk) -> int:
    return len(list(desk.machine._contexts))


def test_a_new_budget_changes_the_context_that_the_old_one_gave() -> None:
    desk = Desk()
    poller = desk.spawn("poller")
    desk.answer_all()
    paying = desk.machine.entity(poller).paying
    for budget_ms in (20, 30, 40):
        desk.steward.reload({"poller": {"budget_ns": budget_ms * MS}}, desk.now)
        desk.answer_all()
        assert contexts(desk) == 1
    assert desk.machine.entity(poller).paying == paying
    assert desk.machine.context(paying or 0).budget == 40 * MS


def test_a_profile_of_another_kind_gives_another_context_and_takes_the_old_one_back() -> None:
    desk = Desk()
    poller = desk.spawn("poller")
    desk.answer_all()
    paying = desk.machine.entity(poller).paying
    desk.steward.reload({"poller": {"budget_ns": 20 * MS, "criticality": "high"}}, desk.now)
    desk.answer_all()
    assert contexts(desk) == 1
    assert desk.machine.entity(poller).paying not in (None, paying)
    desk.steward.reload({"poller": {}}, desk.now)
    desk.answer_all()
    assert (contexts(desk), desk.machine.entity(poller).paying) == (0, None)


def test_what_a_profile_gave_is_taken_back_when_its_entity_ends() -> None:
    desk = Desk()
    poller = desk.spawn("poller")
    desk.answer_all()
    desk.machine.step(Exit(poller), desk.now)
    desk.steward.ended(poller, desk.now)
    assert contexts(desk) == 0
    assert [fact.verb for fact in desk.record if isinstance(fact, CpuContextMoved)] == ["admit", "revoke"]


def test_a_profile_that_does_not_fit_changes_nothing_and_is_a_strike() -> None:
    desk = Desk()
    poller = desk.spawn("poller")
    desk.answer_all()
    desk.steward.reload({"poller": {"budget_ns": 99 * MS, "criticality": "high", "weight": 7}}, desk.now)
    desk.answer_all()
    assert desk.machine.context(desk.machine.entity(poller).paying or 0).budget == 50 * MS
    assert desk.machine.entity(poller).weight == 1000
    assert desk.steward.diagnostics().strikes == 1


def test_a_reload_asks_about_everybody_again_under_a_new_epoch() -> None:
    desk = Desk()
    entities = [desk.spawn("batch") for _ in range(3)]
    desk.answer_all()
    desk.steward.reload({"batch": {"weight": 100, "latency_class": "batch"}}, desk.now)
    assert desk.answer_all() == 3
    assert [desk.machine.entity(one).weight for one in entities] == [100] * 3
    assert desk.steward.diagnostics().epoch == 2
    assert any(isinstance(fact, PolicyReloaded) for fact in desk.record)


def test_an_answer_of_an_older_epoch_is_dropped_and_counted() -> None:
    desk = Desk()
    entity = desk.spawn("batch")
    late = msgspec.json.encode(by_the_book(desk.steward.book, desk.steward.outbox.popleft()))
    desk.steward.reload({}, desk.now)
    desk.steward.hear(late, desk.now)
    assert desk.machine.entity(entity).weight == 1000
    assert desk.machine.evidence.stale_orders == 1
    assert desk.steward.diagnostics().dropped == 1


def test_an_order_of_an_older_epoch_is_dropped_by_the_engine_itself() -> None:
    desk = Desk()
    entity = desk.spawn()
    desk.answer_all()
    desk.steward.reload({}, desk.now)
    desk.machine.step(Reweigh(entity, 9000, "normal", 1), desk.now)
    assert desk.machine.entity(entity).weight == 1000
    assert desk.machine.evidence.stale_orders == 1
    desk.machine.step(Reweigh(entity, 9000, "normal", 2), desk.now)
    assert desk.machine.entity(entity).weight == 9000


def test_an_answer_about_somebody_who_has_ended_meanwhile_is_nobodys_fault() -> None:
    desk = Desk()
    entity = desk.spawn()
    desk.machine.step(Exit(entity), desk.now)
    desk.steward.ended(entity, desk.now)
    desk.answer_all()
    found = desk.steward.diagnostics()
    assert (found.strikes, found.dropped) == (0, 1)


def test_the_service_is_not_asked_once_over_a_hundred_thousand_picks() -> None:
    desk = Desk()
    entities = [desk.spawn() for _ in range(10)]
    desk.answer_all()
    asked = desk.steward.diagnostics().asked
    machine = desk.machine
    for entity in entities:
        machine.step(Wake(entity), 0)
    machine.step(Tick(0), 0)
    now = 0
    while machine.evidence.picks < 100_000:
        now += MS
        running = machine.running(0)
        assert running is not None
        machine.step(Block(running), now)
        machine.step(Wake(running), now)
    assert desk.steward.diagnostics().asked == asked
    assert not desk.steward.outbox


def test_a_depleted_context_is_a_boundary_at_which_it_is_asked() -> None:
    desk = Desk()
    poller = desk.spawn("poller")
    desk.answer_all()
    desk.steward.depleted(poller, desk.now)
    assert [question.why for question in desk.steward.outbox] == ["depleted"]
    desk.steward.depleted(999, desk.now)  # nobody it knows
    assert len(desk.steward.outbox) == 1


# --- killed in each way --------------------------------------------------------------------------------


def kill_dead(desk: Desk) -> None:
    desk.steward.gone("the wire is closed", desk.now)


def kill_blocked(desk: Desk) -> None:
    desk.spawn()
    desk.now += WITHIN
    desk.steward.look(desk.now)
    assert desk.steward.diagnostics().trusted  # exactly in time
    desk.now += 1
    desk.steward.look(desk.now)


def kill_stale(desk: Desk) -> None:
    for _ in range(STALE_MAX):
        assert desk.steward.diagnostics().trusted
        old = Answer(number=1, epoch=desk.steward.book.epoch - 1, profile=Profile())
        desk.steward.hear(msgspec.json.encode(old), desk.now)


def kill_malicious(desk: Desk) -> None:
    desk.spawn()
    question = desk.steward.outbox.popleft()
    greedy = Answer(
        number=question.number,
        epoch=desk.steward.book.epoch,
        profile=Profile(budget_ns=10**9, period_ns=10**9, criticality="critical"),
    )
    nonsense = [
        b"not even JSON",
        msgspec.json.encode({"number": 1, "epoch": 1, "profile": {"weight": -5}}),
        msgspec.json.encode(greedy),
    ]
    assert len(nonsense) == STRIKES_MAX
    for said in nonsense:
        assert desk.steward.diagnostics().trusted
        desk.steward.hear(said, desk.now)


KILLS = {"raised": kill_dead, "stalled": kill_blocked, "stale": kill_stale, "nonsense": kill_malicious}


@pytest.mark.parametrize("failure", KILLS)
def test_however_the_service_dies_the_engine_goes_on_by_round_robin(failure: str) -> None:
    desk = Desk()
    heavy, light = desk.spawn("driver"), desk.spawn("batch")
    desk.answer_all()
    for entity in (heavy, light):
        desk.machine.step(Wake(entity), desk.now)
    desk.run(200 * MS)
    assert desk.runtime(heavy) > 4 * desk.runtime(light)  # weights 8 to 1
    KILLS[failure](desk)
    assert not desk.steward.diagnostics().trusted
    assert fell_back(desk) == [failure]
    assert desk.machine.evidence.fallbacks == 1
    base = [desk.runtime(one) for one in (heavy, light)]
    start = desk.now
    desk.run(start + 900 * MS)
    gained = [desk.runtime(one) - was for one, was in zip((heavy, light), base, strict=True)]
    # the heavy one has short turns and the light one long ones, and they take them one after the other
    turns = [desk.machine.account(one).preemptions for one in (heavy, light)]
    assert all(gain > 30 * MS for gain in gained)
    assert turns[1] > 0
    desk.machine.audit()


@pytest.mark.parametrize("failure", KILLS)
def test_budgets_masks_and_leases_hold_without_the_service(failure: str) -> None:
    desk = Desk(cores=3)
    desk.machine.add_group("owner")
    handle = desk.machine.admit(SchedulingContext(context_id=1, budget=10 * MS, period=100 * MS))
    capped = desk.machine.spawn()
    desk.machine.bind(handle, capped)
    for number, (core, on_loss) in enumerate(((1, "keep"), (2, "revoke")), 1):
        desk.machine.grant_lease(
            CpuIsolationLease(
                lease_id=number,
                owner="owner",
                cores=(core,),
                accounting_target=1,
                revocation_latency_max=5 * MS,
                on_service_loss=on_loss,  # type: ignore[arg-type]  # one of two words
            )
        )
    desk.machine.step(Wake(capped), 0)
    KILLS[failure](desk)
    ended = []
    while desk.now < 400 * MS:
        for core in range(3):
            desk.machine.step(Tick(core), desk.now)
        desk.now += MS
        while (at := desk.machine.next_timer_at) is not None and at <= desk.now:
            ended += [one for one in desk.machine.step(Timer(), desk.now) if isinstance(one, LeaseEnded)]
    assert ended == [LeaseEnded(2, (2,))]
    assert desk.machine.account(capped, desk.now).runtime_ns == 40 * MS


@pytest.mark.parametrize("failure", KILLS)
def test_a_lost_service_is_not_asked_and_not_heard_until_it_is_restored(failure: str) -> None:
    desk = Desk()
    entity = desk.spawn("driver")
    desk.answer_all()
    KILLS[failure](desk)
    newcomer = desk.spawn("driver")
    assert not desk.steward.outbox
    answer = Answer(number=1, epoch=desk.steward.book.epoch, profile=Profile(weight=5))
    desk.steward.hear(msgspec.json.encode(answer), desk.now)
    assert desk.machine.entity(newcomer).weight == 1000
    desk.steward.gone("again", desk.now)
    assert len(fell_back(desk)) == 1  # it fell back once
    desk.steward.restore(desk.now)
    assert desk.steward.diagnostics().trusted
    desk.answer_all()
    assert desk.machine.entity(newcomer).weight == desk.machine.entity(entity).weight == 4000


def test_an_outbox_that_nobody_empties_means_that_the_service_is_blocked() -> None:
    desk = Desk()
    for _ in range(QUESTIONS_MAX):
        desk.spawn()
    assert desk.steward.diagnostics().trusted
    desk.spawn()
    assert fell_back(desk) == ["stalled"]


def test_a_service_that_makes_up_answers_to_questions_nobody_asked_is_struck() -> None:
    desk = Desk()
    answer = Answer(number=77, epoch=desk.steward.book.epoch, profile=Profile(weight=5))
    for _ in range(STRIKES_MAX):
        desk.steward.hear(msgspec.json.encode(answer), desk.now)
    assert fell_back(desk) == ["nonsense"]
    found = desk.steward.diagnostics()
    assert (found.refused, found.taken, found.failure) == (3, 0, "nonsense")


def test_what_is_not_lost_need_not_be_restored() -> None:
    desk = Desk()
    with pytest.raises(Refused, match="is not lost"):
        desk.steward.restore(desk.now)

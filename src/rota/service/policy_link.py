"""The steward: asks the policy service, and believes nothing.

The policy service is somebody else's program. It may be dead, blocked, behind the times or hostile, and the
engine must go on regardless. So nothing waits for it and nothing it says is taken on trust:

    questions   are put into a bounded outbox and carried to the service by whoever has a wire to it. They are asked
                at slow boundaries only: somebody was created, a context ran out, the operator changed something.
                Never at a pick.
    answers     come back whenever they do. One of an older epoch is dropped and counted. One that names what does not
                exist, asks for what is not allowed or is not an answer at all is refused and counted as a strike.
    time        an answer that is overdue is the service's failure, not the engine's.

Four failures, and what tells them apart:

    raised      the wire is gone, or the service raised                  (dead)
    stalled     a question is older than `answer_within_ns`, or the outbox is full   (blocked)
    stale       `STALE_MAX` answers in a row came from an older epoch    (behind)
    nonsense    `STRIKES_MAX` answers could not be what was asked for    (hostile)

On each of them the engine is told that the service is lost: it goes on by round robin and revokes the leases
that say so. The failure is recorded. When somebody vouches for the service again, `restore` begins a new epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from rota.cores import Handle, Machine, SchedulingContext
from rota.cores.events import Decision, Reweigh, ServiceBack, ServiceLost
from rota.errors import EntityUnknown, Refused, RotaError
from rota.model.events import Fact, PolicyFellBack, PolicyReloaded, ProfileMapped
from rota.service.admission import Admission
from rota.service.profiles import Hint, Profile, ProfileBook

__all__ = ["QUESTIONS_MAX", "STALE_MAX", "STRIKES_MAX", "Answer", "Diagnostics", "Question", "Steward", "by_the_book"]

QUESTIONS_MAX = 1_024  # asked and not answered
STALE_MAX = 8  # answers of an older epoch in a row
STRIKES_MAX = 3  # answers that make no sense, ever, until the service is restored
ANSWER_WITHIN_NS = 1_000_000_000
PROFILE_CONTEXTS = 1 << 32  # contexts that profiles make are numbered from here on

Failure = Literal["raised", "stalled", "nonsense", "stale"]


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What the service is asked: what is this entity to be given?"""

    number: int
    epoch: int
    why: Literal["created", "depleted", "profile_changed", "operator"]
    entity: int
    subject: str
    hint: Hint


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the service says."""

    number: int
    epoch: int
    profile: Profile


class Diagnostics(msgspec.Struct, frozen=True, kw_only=True):
    """How things stand with the service, for operators."""

    epoch: int
    trusted: bool
    failure: str | None  # the last one
    asked: int
    taken: int
    dropped: int  # of an older epoch, unknown, or after the service was lost
    refused: int
    strikes: int
    waiting: int


def by_the_book(book: ProfileBook, question: Question) -> Answer:
    """The plain policy service: whatever the book says."""
    return Answer(number=question.number, epoch=book.epoch, profile=book.find(question.hint, question.subject))


class _Fund(NamedTuple):
    """The context that somebody's profile gave it."""

    owner: str
    context_id: int
    handle: Handle
    profile: Profile


class Steward:
    """Stands between one engine and its policy service."""

    def __init__(
        self,
        machine: Machine,
        admission: Admission,
        record: Callable[[Fact], None],
        *,
        book: ProfileBook | None = None,
        answer_within_ns: int = ANSWER_WITHIN_NS,
    ) -> None:
        self._machine = machine
        self._admission = admission
        self._record = record
        self._answer_within_ns = answer_within_ns
        self.book = book or ProfileBook()
        self.outbox: deque[Question] = deque()
        self._asked: dict[int, tuple[Question, int]] = {}  # by number: the question, and when
        self._subjects: dict[int, tuple[str, Hint]] = {}  # by entity
        self._counts = {"asked": 0, "taken": 0, "dropped": 0, "refused": 0}
        self._strikes = 0
        self._stale = 0
        self._failure: Failure | None = None
        self._is_lost = False
        self._next_context = PROFILE_CONTEXTS
        self._funds: dict[int, _Fund] = {}  # by entity: the context that its profile gave it
        machine.orders.begin_epoch(self.book.epoch)

    # --- asking ----------------------------------------------------------------------------------

    def created(self, entity: int, subject: str, hint: Hint, now: int) -> Sequence[Decision]:
        """An entity was made, with a hint: ask what it is to be given. Until then it has the defaults."""
        self._subjects[entity] = subject, hint
        return self._ask("created", entity, now)

    def depleted(self, entity: int, now: int) -> Sequence[Decision]:
        """The context of an entity ran out: ask whether it is to be given another profile."""
        return self._ask("depleted", entity, now) if entity in self._subjects else ()

    def ended(self, entity: int, now: int) -> Sequence[Decision]:
        """An entity is gone: nothing is asked about it any more, and what its profile gave it is taken back."""
        self._subjects.pop(entity, None)
        return self._take_back(self._funds.pop(entity, None), now)

    def reload(self, changes: dict[str, Any], now: int) -> Sequence[Decision]:
        """Read the profiles anew, under the next epoch, and ask again about everybody."""
        self.book = self.book.reload(changes)
        self._record(PolicyReloaded(epoch=self.book.epoch, changes=changes))
        self._asked.clear()
        self.outbox.clear()
        if not self._is_lost:
            self._machine.orders.begin_epoch(self.book.epoch)
        out: list[Decision] = []
        for entity in list(self._subjects):
            out.extend(self._ask("profile_changed", entity, now))
        return out

    def _ask(
        self, why: Literal["created", "depleted", "profile_changed", "operator"], entity: int, now: int
    ) -> Sequence[Decision]:
        if self._is_lost:
            return ()
        if len(self._asked) >= QUESTIONS_MAX:
            return self._lose("stalled", f"{QUESTIONS_MAX:,} questions are not answered", now)
        self._counts["asked"] += 1
        subject, hint = self._subjects[entity]
        question = Question(
            number=self._counts["asked"],
            epoch=self.book.epoch,
            why=why,
            entity=entity,
            subject=subject,
            hint=hint,
        )
        self._asked[question.number] = question, now
        self.outbox.append(question)
        return ()

    # --- hearing ---------------------------------------------------------------------------------

    def hear(self, said: bytes, now: int) -> Sequence[Decision]:
        """Something came over the wire from the service."""
        try:
            answer = _decoder.decode(said)
        except (msgspec.DecodeError, RotaError) as problem:
            return self._strike(f"not an answer: {problem}", now)
        if self._is_lost:
            return self._drop()
        if answer.epoch != self.book.epoch:
            self._stale += 1
            self._drop()
            if self._stale >= STALE_MAX:
                return self._lose("stale", f"{self._stale} answers in a row of epoch {answer.epoch} and older", now)
            return ()
        self._stale = 0
        asked = self._asked.pop(answer.number, None)
        if asked is None:
            return self._strike(f"answer {answer.number} to no question", now)
        return self._take(asked[0], answer.profile, now)

    def gone(self, detail: str, now: int) -> Sequence[Decision]:
        """The wire to the service is gone, or the service raised."""
        return self._lose("raised", detail, now)

    def failed(self, failure: Failure, detail: str, now: int) -> Sequence[Decision]:
        """A part of the service failed, as whoever asked it found out."""
        return self._lose(failure, detail, now)

    def look(self, now: int) -> Sequence[Decision]:
        """Time has passed: an answer that is overdue means that the service is blocked."""
        for question, asked_at in self._asked.values():
            if now - asked_at > self._answer_within_ns:
                return self._lose("stalled", f"question {question.number} is {now - asked_at:,} ns old", now)
            break  # they are in the order in which they were asked
        return ()

    def restore(self, now: int) -> Sequence[Decision]:
        """Somebody vouches for the service again: a new epoch begins, and everybody is asked about."""
        if not self._is_lost:
            raise Refused("the policy service is not lost", hint="Nothing needs to be restored.")
        self._is_lost, self._strikes, self._stale = False, 0, 0
        self.book = self.book.reload({})
        self._record(PolicyReloaded(epoch=self.book.epoch))
        out = list(self._machine.step(ServiceBack(self.book.epoch), now))
        for entity in list(self._subjects):
            out.extend(self._ask("operator", entity, now))
        return out

    def diagnostics(self) -> Diagnostics:
        """How things stand."""
        return Diagnostics(
            epoch=self.book.epoch,
            trusted=not self._is_lost,
            failure=self._failure,
            strikes=self._strikes,
            waiting=len(self._asked),
            **self._counts,
        )

    # --- inside ----------------------------------------------------------------------------------

    def _take(self, question: Question, profile: Profile, now: int) -> Sequence[Decision]:
        """Carry out an answer, as far as the engine allows it."""
        out: list[Decision] = []
        order = Reweigh(question.entity, profile.weight, profile.latency_class, self.book.epoch)
        try:
            self._machine.entity(question.entity)
            out.extend(self._fund(question, profile, now))
            out.extend(self._machine.step(order, now))
        except EntityUnknown:  # it ended while the question was under way: nobody's fault
            return self._drop()
        except RotaError as refusal:
            return self._strike(f"profile for entity {question.entity}: {refusal.message}", now)
        self._counts["taken"] += 1
        granted = profile.granted()
        self._record(
            ProfileMapped(subject=question.subject, hint=question.hint, granted=granted, epoch=self.book.epoch)
        )
        return out

    def _fund(self, question: Question, profile: Profile, now: int) -> Sequence[Decision]:
        """Give an entity the context that its profile says, in place of the one that an earlier profile gave it."""
        entity, before = question.entity, self._funds.get(question.entity)
        if profile.budget_ns is None:
            return self._take_back(self._funds.pop(entity, None), now)
        if before is not None and _is_alike(before.profile, profile):
            budget, period = profile.budget_ns, profile.period_ns
            self._admission.adjust(before.owner, before.handle, before.context_id, budget=budget, period=period)
            self._funds[entity] = before._replace(profile=profile)
            return ()
        fund = self._new_fund(question, profile, profile.budget_ns)
        decisions = [*self._machine.bind(fund.handle, entity)]
        self._funds[entity] = fund
        return [*decisions, *self._take_back(before, now)]

    def _new_fund(self, question: Question, profile: Profile, budget_ns: int) -> _Fund:
        self._next_context += 1
        context = SchedulingContext(
            context_id=self._next_context,
            budget=budget_ns,
            period=profile.period_ns,
            criticality=profile.criticality,
            overrun=profile.overrun,
            bound_id=str(question.entity),
        )
        handle = self._admission.admit(question.subject, context)
        return _Fund(question.subject, context.context_id, handle, profile)

    def _take_back(self, fund: _Fund | None, now: int) -> Sequence[Decision]:
        return () if fund is None else self._admission.revoke(fund.owner, fund.handle, fund.context_id, now)

    def _strike(self, detail: str, now: int) -> Sequence[Decision]:
        self._counts["refused"] += 1
        self._strikes += 1
        if self._strikes >= STRIKES_MAX:
            return self._lose("nonsense", detail, now)
        return ()

    def _drop(self) -> Sequence[Decision]:
        self._counts["dropped"] += 1
        self._machine.evidence.stale_orders += 1
        return ()

    def _lose(self, failure: Failure, detail: str, now: int) -> Sequence[Decision]:
        """Do without the service from now on."""
        if self._is_lost:
            return ()
        self._is_lost, self._failure = True, failure
        self._asked.clear()
        self.outbox.clear()
        self._record(PolicyFellBack(policy="profiles", failure=failure, detail=detail))
        return self._machine.step(ServiceLost(failure), now)


def _is_alike(before: Profile, profile: Profile) -> bool:
    """Whether two profiles ask for the same kind of context, so that only its numbers need to change."""
    return (before.criticality, before.overrun) == (profile.criticality, profile.overrun)


_decoder = msgspec.json.Decoder(Answer)

"""The link to the policy service of the cores engine: it sends requests and checks every response.

The policy service is an external program. It may be dead, blocked, out of date or malicious, and the engine must
continue. So the engine never waits for it, and every response is checked:

    requests    go into a bounded outbox; the owner of the connection carries them to the service. They are made at slow
                boundaries only: an entity was created, a context ran out, the operator changed something. Never at a
                pick. A thousand entities at once, or a reload, are sent in batches: the next when responses arrive.
    responses   arrive at any time. One of an older epoch is dropped and counted. One that names something unknown,
                requests something not allowed, or cannot be decoded is refused and counts as a strike. One that is
                valid and grants too much or too little is moved into the operator's limits (`ProfileLimit`).
    time        an overdue response is a failure of the service.

There are four failures:

    raised      the connection is lost, or the service raised                        (dead)
    stalled     a request is older than `answer_within_ns`                           (blocked)
    stale       `STALE_MAX` responses in a row came from an older epoch              (out of date)
    nonsense    `STRIKES_MAX` responses were invalid                                 (malicious)

On each of them the engine is told that the service is lost: it continues with the weights it knows and revokes the
leases that ask for it. The failure is recorded. `restore` accepts the service again and begins a new epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from rota.cores import CoresEngine, Handle, SchedulingContext
from rota.cores.events import Decision, Reweigh, ServiceBack, ServiceLost
from rota.decoding import json_decoder
from rota.errors import EntityUnknown, Refused, RotaError
from rota.model.events import EventData, PolicyFellBack, PolicyReloaded, ProfileMapped
from rota.service.admission import Admission
from rota.service.profiles import Hint, Profile, ProfileLimit, ProfileTable

__all__ = [
    "REQUESTS_MAX",
    "STALE_MAX",
    "STRIKES_MAX",
    "Diagnostics",
    "PolicyLink",
    "ProfileRequest",
    "ProfileResponse",
    "answer_from_profiles",
]

REQUESTS_MAX = 1_024  # unanswered requests; further ones wait until responses arrive
STALE_MAX = 8  # responses of an older epoch in a row
STRIKES_MAX = 3  # invalid responses, until the service is restored
ANSWER_WITHIN_NS = 1_000_000_000
PROFILE_CONTEXTS = 1 << 32  # first id of the contexts made for profiles

Failure = Literal["raised", "stalled", "nonsense", "stale"]
RequestReason = Literal["created", "depleted", "profile_changed", "operator"]


class ProfileRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the service: which profile does this entity get?"""

    number: int
    epoch: int
    why: RequestReason
    entity: int
    subject: str
    hint: Hint


class ProfileResponse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The response of the service."""

    number: int
    epoch: int
    profile: Profile


class Diagnostics(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the link, for operators."""

    epoch: int
    trusted: bool
    failure: str | None  # the last failure
    asked: int
    taken: int
    dropped: int  # of an older epoch, for an ended entity, or after the service was lost
    refused: int
    clamped: int  # of the taken ones: moved into the operator's limits
    strikes: int
    waiting: int  # sent and not answered
    unsent: int  # entities whose request waits for a place in the outbox


def answer_from_profiles(profiles: ProfileTable, request: ProfileRequest) -> ProfileResponse:
    """Answer a request from the profile table. This is the built-in policy service."""
    return ProfileResponse(
        number=request.number, epoch=profiles.epoch, profile=profiles.find(request.hint, request.subject)
    )


class _ProfileContext(NamedTuple):
    """The context that a profile gave to an entity."""

    owner: str
    context_id: int
    handle: Handle
    profile: Profile


class PolicyLink:
    """Connects one engine with its policy service."""

    def __init__(
        self,
        engine: CoresEngine,
        admission: Admission,
        record: Callable[[EventData], None],
        *,
        profiles: ProfileTable | None = None,
        limit: ProfileLimit | None = None,
        answer_within_ns: int = ANSWER_WITHIN_NS,
    ) -> None:
        self._engine = engine
        self._admission = admission
        self._record = record
        self._answer_within_ns = answer_within_ns
        self._limit = limit or ProfileLimit()
        self.profiles = profiles or ProfileTable()
        self.outbox: deque[ProfileRequest] = deque()
        self._pending: dict[int, tuple[ProfileRequest, int]] = {}  # by number: the request, and when it was made
        self._subjects: dict[int, tuple[str, Hint]] = {}  # by entity
        self._unsent: dict[int, RequestReason] = {}  # by entity, in order: requests that wait for a place
        self._counts = {"asked": 0, "taken": 0, "dropped": 0, "refused": 0, "clamped": 0}
        self._strikes = 0
        self._stale = 0
        self._failure: Failure | None = None
        self._is_lost = False
        self._next_context = PROFILE_CONTEXTS
        self._contexts: dict[int, _ProfileContext] = {}  # by entity: the context that its profile gave it
        engine.policy_updates.begin_epoch(self.profiles.epoch)

    # --- requests --------------------------------------------------------------------------------

    def entity_created(self, entity: int, subject: str, hint: Hint, now: int) -> Sequence[Decision]:
        """Request a profile for a new entity with a hint. Until the response it has the defaults."""
        self._subjects[entity] = subject, hint
        return self._ask("created", entity, now)

    def context_depleted(self, entity: int, now: int) -> Sequence[Decision]:
        """The context of an entity ran out: request its profile again."""
        return self._ask("depleted", entity, now) if entity in self._subjects else ()

    def entity_ended(self, entity: int, now: int) -> Sequence[Decision]:
        """An entity ended: forget it and revoke the context that its profile gave it."""
        self._subjects.pop(entity, None)
        self._unsent.pop(entity, None)
        return self._revoke(self._contexts.pop(entity, None), now)

    def reload(self, changes: dict[str, Any], now: int) -> Sequence[Decision]:
        """Change profiles, begin the next epoch, and request the profile of every entity again."""
        self.profiles = self.profiles.reload(changes)
        self._record(PolicyReloaded(epoch=self.profiles.epoch, changes=changes))
        self._forget_requests()
        if not self._is_lost:
            self._engine.policy_updates.begin_epoch(self.profiles.epoch)
        out: list[Decision] = []
        for entity in list(self._subjects):
            out.extend(self._ask("profile_changed", entity, now))
        return out

    def _ask(self, why: RequestReason, entity: int, now: int) -> Sequence[Decision]:
        if not self._is_lost:
            self._unsent.setdefault(entity, why)  # one request per entity: its response is the current profile
            self._send(now)
        return ()

    def _send(self, now: int) -> None:
        """Move requests into the outbox, as many as have a place."""
        while self._unsent and len(self._pending) < REQUESTS_MAX:
            entity = next(iter(self._unsent))
            why, (subject, hint) = self._unsent.pop(entity), self._subjects[entity]
            self._counts["asked"] += 1
            request = ProfileRequest(
                number=self._counts["asked"],
                epoch=self.profiles.epoch,
                why=why,
                entity=entity,
                subject=subject,
                hint=hint,
            )
            self._pending[request.number] = request, now
            self.outbox.append(request)

    def _forget_requests(self) -> None:
        self._pending.clear()
        self._unsent.clear()
        self.outbox.clear()

    # --- responses -------------------------------------------------------------------------------

    def receive(self, message: bytes, now: int) -> Sequence[Decision]:
        """Process a message from the service."""
        try:
            response = _decoder.decode(message)
        except (msgspec.DecodeError, RotaError) as problem:
            return self._strike(f"not a response: {problem}", now)
        if self._is_lost:
            return self._drop()
        if response.epoch != self.profiles.epoch:
            self._stale += 1
            self._drop()
            if self._stale >= STALE_MAX:
                return self._lose("stale", f"{self._stale} responses in a row of epoch {response.epoch} or older", now)
            return ()
        self._stale = 0
        pending = self._pending.pop(response.number, None)
        if pending is None:
            return self._strike(f"response {response.number} matches no request", now)
        self._send(now)
        return self._apply(pending[0], response.profile, now)

    def connection_lost(self, detail: str, now: int) -> Sequence[Decision]:
        """The connection to the service is lost, or the service raised."""
        return self._lose("raised", detail, now)

    def service_failed(self, failure: Failure, detail: str, now: int) -> Sequence[Decision]:
        """A caller of the service found a failure."""
        return self._lose(failure, detail, now)

    def check_timeout(self, now: int) -> Sequence[Decision]:
        """Report the service as stalled if its oldest response is overdue."""
        for request, asked_at in self._pending.values():
            if now - asked_at > self._answer_within_ns:
                return self._lose("stalled", f"request {request.number} is {now - asked_at:,} ns old", now)
            break  # requests are in order: the first is the oldest
        return ()

    def restore(self, now: int) -> Sequence[Decision]:
        """Accept the service again: begin a new epoch and request the profile of every entity."""
        if not self._is_lost:
            raise Refused("the policy service is not lost", hint="There is nothing to restore.")
        self._is_lost, self._strikes, self._stale = False, 0, 0
        self.profiles = self.profiles.reload({})
        self._record(PolicyReloaded(epoch=self.profiles.epoch))
        out = list(self._engine.step(ServiceBack(self.profiles.epoch), now))
        for entity in list(self._subjects):
            out.extend(self._ask("operator", entity, now))
        return out

    def diagnostics(self) -> Diagnostics:
        """The state of the link."""
        return Diagnostics(
            epoch=self.profiles.epoch,
            trusted=not self._is_lost,
            failure=self._failure,
            strikes=self._strikes,
            waiting=len(self._pending),
            unsent=len(self._unsent),
            **self._counts,
        )

    # --- internals -------------------------------------------------------------------------------

    def _apply(self, request: ProfileRequest, asked: Profile, now: int) -> Sequence[Decision]:
        """Apply a response, as far as the operator's limits and the engine allow it."""
        out: list[Decision] = []
        profile = self._limit.clamp(asked)
        update = Reweigh(request.entity, profile.weight, profile.latency_class, self.profiles.epoch)
        try:
            self._engine.entity(request.entity)
            out.extend(self._apply_budget(request, profile, now))
            out.extend(self._engine.step(update, now))
        except EntityUnknown:  # it ended before the response arrived
            return self._drop()
        except RotaError as refusal:
            return self._strike(f"profile for entity {request.entity}: {refusal.message}", now)
        self._counts["taken"] += 1
        self._counts["clamped"] += profile != asked
        granted = profile.granted()
        self._record(
            ProfileMapped(subject=request.subject, hint=request.hint, granted=granted, epoch=self.profiles.epoch)
        )
        return out

    def _apply_budget(self, request: ProfileRequest, profile: Profile, now: int) -> Sequence[Decision]:
        """Give an entity the context of its profile, replacing the one of its previous profile."""
        entity, before = request.entity, self._contexts.get(request.entity)
        if profile.budget_ns is None:
            return self._revoke(self._contexts.pop(entity, None), now)
        if before is not None and _same_kind(before.profile, profile):
            budget, period = profile.budget_ns, profile.period_ns
            self._admission.adjust(before.owner, before.handle, before.context_id, budget=budget, period=period)
            self._contexts[entity] = before._replace(profile=profile)
            return ()
        profile_context = self._new_context(request, profile, profile.budget_ns)
        decisions = [*self._engine.bind(profile_context.handle, entity)]
        self._contexts[entity] = profile_context
        return [*decisions, *self._revoke(before, now)]

    def _new_context(self, request: ProfileRequest, profile: Profile, budget_ns: int) -> _ProfileContext:
        self._next_context += 1
        context = SchedulingContext(
            context_id=self._next_context,
            budget=budget_ns,
            period=profile.period_ns,
            criticality=profile.criticality,
            overrun=profile.overrun,
            bound_id=str(request.entity),
        )
        handle = self._admission.admit(request.subject, context)
        return _ProfileContext(request.subject, context.context_id, handle, profile)

    def _revoke(self, given: _ProfileContext | None, now: int) -> Sequence[Decision]:
        return () if given is None else self._admission.revoke(given.owner, given.handle, given.context_id, now)

    def _strike(self, detail: str, now: int) -> Sequence[Decision]:
        self._counts["refused"] += 1
        self._strikes += 1
        if self._strikes >= STRIKES_MAX:
            return self._lose("nonsense", detail, now)
        return ()

    def _drop(self) -> Sequence[Decision]:
        self._counts["dropped"] += 1
        self._engine.counters.stale_orders += 1
        return ()

    def _lose(self, failure: Failure, detail: str, now: int) -> Sequence[Decision]:
        """Continue without the service."""
        if self._is_lost:
            return ()
        self._is_lost, self._failure = True, failure
        self._forget_requests()
        self._record(PolicyFellBack(policy="profiles", failure=failure, detail=detail))
        return self._engine.step(ServiceLost(failure), now)


def _same_kind(before: Profile, profile: Profile) -> bool:
    """Whether two profiles need the same kind of context, so that only its numbers change."""
    return (before.criticality, before.overrun) == (profile.criticality, profile.overrun)


_decoder = json_decoder(ProfileResponse)

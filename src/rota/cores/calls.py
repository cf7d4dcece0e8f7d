"""Calls: an entity calls another one, waits for the reply, and donates its share to the callee meanwhile.

A share is what an entity competes with: weight, virtual time and context. A waiting caller does not use its share, so
the callee runs on it. The slice continues on the same core until it would have ended anyway, charged to the caller's
weight and budget. The reply returns the share:

    A calls B             A waits, B runs on A's share until A's slice ends
    B calls C             B waits, C runs on A's share
    A's slice ends        A's share waits in the queue; when it is picked, C runs
    C replies             B continues on A's share
    B replies             A continues

The caller pays for the request and its answer, through any number of entities. Calling does not gain time, being called
does not lose any, and a server needs no share of its own for requests. A server's runtime is still counted as its own;
only the *payment* is the caller's.

An entity waits for at most one reply, so waiting entities form chains; a call that would close a cycle is refused. A
busy callee queues its callers; their shares are unused meanwhile. The caller of the highest band is served first, and
first come, first served within a band. A caller of a band above normal also *urges* the call in progress: until the
reply, the callee runs in the waiting caller's band and by its deadline, on the core of its reservation, still paid by
the caller that it serves. What it uses there is also taken from the waiting caller's reservation, so other reservations
lose nothing, and it ends with that. So a critical caller waits for one request of another caller, and not for other
entities that compete with that caller.

If the callee ends, its callers continue with an error. If the caller ends, its share ends too: the callee continues on
its own share, and its reply goes nowhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from rota.cores.core_scheduler import CoreScheduler
from rota.cores.events import CallEntity, CallFailed, Decision, Reply, RunEntity
from rota.cores.placement import Placement
from rota.cores.queues import Queues
from rota.cores.records import NORMAL, CallRecord, CoreRecord, Entity
from rota.cores.runqueue import RunQueue
from rota.cores.time_slices import TimeSlices, add_runtime, slice_start_ns
from rota.errors import DonationCycle, LimitExceeded
from rota.model.lifecycle import EntityState

__all__ = ["CALLERS_MAX", "CALL_DEPTH_MAX", "Calls"]

CALLERS_MAX = 256  # callers that wait for one callee
CALL_DEPTH_MAX = 64  # length of a call chain

_SLEEPING, _RUNNING, _CALLING = EntityState.SLEEPING, EntityState.RUNNING, EntityState.CALLING
_WANT_A_CORE = (EntityState.READY, EntityState.RUNNING, EntityState.THROTTLED)


class Calls:
    """Every call in progress."""

    def __init__(self, queues: Queues, placement: Placement, slices: TimeSlices, scheduler: CoreScheduler) -> None:
        self._queues = queues
        self._placement = placement
        self._slices = slices
        self._scheduler = scheduler
        scheduler.serve_next = self._serve_next

    def call(self, event: CallEntity, now: int) -> Sequence[Decision]:
        """The running entity calls another one and waits."""
        caller, callee = self._queues.entity(event.caller), self._queues.entity(event.callee)
        if caller.state is not _RUNNING:
            raise self._scheduler.error_for(caller.key, "call")
        record = self._record(caller, callee)
        donor, core = caller.details.donor, caller.details.donor.core
        caller.details.awaiting = record
        caller.voluntary_blocks += 1
        if callee.state is _SLEEPING and callee.details.serving is None:
            callee.details.serving = record
            caller.state = _CALLING
            return self._transfer(donor, caller, callee, now)
        self._scheduler.pause(donor, now)
        caller.state = _CALLING
        _waiting_calls(callee).append(record)
        callee.on_fast_path = False  # when it blocks, it takes the call
        out: list[Decision] = []
        self._urge(callee, now, out)
        out.extend(self._scheduler.dispatch(core, None, now))
        return out

    def reply(self, event: Reply, now: int) -> Sequence[Decision]:
        """The running entity replies to its caller, then takes the next call or waits for one."""
        callee = self._queues.entity(event.callee)
        record = callee.details.serving
        if callee.state is not _RUNNING or record is None:
            raise self._scheduler.error_for(callee.key, "reply")
        callee.voluntary_blocks += 1
        callee.details.serving = None
        donor, caller = callee.details.donor, record.caller
        out: list[Decision] = []
        if caller is None:  # it has ended, and the callee runs on its own share
            core = donor.core
            self._scheduler.pause(donor, now)
            donor.details.urged_by = None
            self._queues.choose_payer(donor)
            callee.state = _SLEEPING
            out.extend(self._scheduler.dispatch(core, None, now))
        else:
            caller.details.awaiting = None
            callee.state = _SLEEPING
            urged_by = self._urged_by(donor)
            if urged_by is not donor.details.urged_by:
                self._slices.urge(donor, urged_by, now)
                donor.details.payer_changed = True  # another band applies
            out.extend(self._transfer(donor, callee, caller, now))
            self._end_donation(callee)
        self._serve_next(callee, now, out)
        return out

    def end(self, entity: Entity, now: int, out: list[Decision]) -> None:
        """Prepare an entity for removal: afterwards it runs on its own share and no entity waits for it."""
        if entity.details.awaiting is not None:
            self._detach_caller(entity, entity.details.awaiting, now, out)
        if entity.details.serving is not None:
            self._fail_served(entity, entity.details.serving.caller, now, out)
        for record in entity.details.callers or ():
            if record.caller is not None:
                self._fail(record.caller, entity, now, out)
        entity.details.callers = None

    # --- donating shares ---------------------------------------------------------------------------

    def _record(self, caller: Entity, callee: Entity) -> CallRecord:
        """Record a call, or refuse it: it closes a cycle, the chain is too long, or the callee has too many callers."""
        waits_for: Entity | None = callee
        while waits_for is not None:
            if waits_for is caller:
                raise DonationCycle(
                    f"entity {caller.key} cannot call entity {callee.key}, which waits for it",
                    caller=caller.key,
                    callee=callee.key,
                )
            waits_for = waits_for.details.awaiting.callee if waits_for.details.awaiting is not None else None
        depth = 1 if caller.details.serving is None else caller.details.serving.depth + 1
        if depth > CALL_DEPTH_MAX:
            raise LimitExceeded("call_depth_max", CALL_DEPTH_MAX, depth)
        if len(callee.details.callers or ()) >= CALLERS_MAX:
            raise LimitExceeded("callers_max", CALLERS_MAX, CALLERS_MAX + 1)
        return CallRecord(caller, callee, depth)

    def _transfer(self, donor: Entity, previous: Entity, following: Entity, now: int) -> Sequence[Decision]:
        """Continue the slice of a share with another delegate; if it cannot stay on this core, requeue the share."""
        core, details = donor.core, donor.details
        if details.slice_began_ns is None:
            details.slice_began_ns = donor.last_start_ns
        add_runtime(previous, now)
        following.last_start_ns = now
        details.delegate, following.details.donor = following, donor
        donor.on_fast_path = previous.on_fast_path = following.on_fast_path = False
        if self._queues.keeps_payer(donor) and self._placement.cores_for(donor) & core.bit:
            following.state = _RUNNING
            return (RunEntity(core.core_id, following.key, slice_start_ns(donor) + donor.granted_ns),)
        out: list[Decision] = []
        left = self._scheduler.pause(donor, now)
        self._requeue(donor, core, now, out, left)
        return out

    def _requeue(self, donor: Entity, core: CoreRecord, now: int, out: list[Decision], left: RunQueue | None) -> None:
        """Requeue a share with its current delegate, and let the core choose again."""
        self._queues.choose_payer(donor)
        core.reschedule_pending = True  # it chooses below
        self._scheduler.make_ready(donor, now, out, left=left)
        out.extend(self._scheduler.dispatch(core, None, now))

    def _end_donation(self, entity: Entity) -> None:
        """An entity has replied and runs on its own share again."""
        entity.details.donor = entity
        self._queues.choose_payer(entity)

    def _serve_next(self, callee: Entity, now: int, out: list[Decision]) -> None:
        """A free callee takes the call of the highest band; of several, the one that has waited longest."""
        waiting = callee.details.callers
        while waiting:
            record = max(waiting, key=_band_of)  # the first of several
            waiting.remove(record)
            if record.caller is not None:
                donor = record.caller.details.donor
                callee.details.serving, callee.details.donor, donor.details.delegate = record, donor, callee
                callee.on_fast_path, callee.details.urged_by = False, None
                self._queues.choose_payer(donor)
                self._scheduler.make_ready(donor, now, out)
                return

    def _urge(self, callee: Entity | None, now: int, out: list[Decision]) -> None:
        """Let a busy callee run in the band of the most critical caller that waits for it, and so along the chain."""
        for _ in range(CALL_DEPTH_MAX):
            if callee is None:
                return
            donor = callee.details.donor
            urged_by = self._urged_by(donor)
            if urged_by is not donor.details.urged_by:
                self._slices.urge(donor, urged_by, now)
                self._scheduler.update_payer(donor, now, out)
            awaited = donor.details.delegate.details.awaiting  # set if what runs on the share is itself queued
            callee = None if awaited is None else awaited.callee

    @staticmethod
    def _urged_by(donor: Entity) -> Entity | None:
        """The most critical share that waits for an entity on a share; None if none is above the normal band."""
        most, found = NORMAL, None
        for member in _chain(donor):
            for record in member.details.callers or ():
                share = None if record.caller is None else record.caller.details.donor
                for one in (share, None if share is None else share.details.urged_by):
                    if one is not None and one.payer is not None and one.payer.band > most:
                        most, found = one.payer.band, one
        return found

    # --- removal -----------------------------------------------------------------------------------

    def _detach_caller(self, entity: Entity, record: CallRecord, now: int, out: list[Decision]) -> None:
        """A caller ends: its callee continues on its own share, together with the entities that it called itself."""
        entity.details.awaiting = record.caller = None
        callee, donor = record.callee, entity.details.donor
        if callee.details.serving is not record:
            self._urge(callee, now, out)  # the call was only queued
            return
        core, delegate = donor.core, donor.details.delegate
        ran, wants_core = delegate.state is _RUNNING, delegate.state in _WANT_A_CORE
        self._scheduler.withdraw(donor, now)
        donor.details.delegate, callee.details.delegate = entity, delegate
        for member in _chain(callee):
            member.details.donor = callee
        callee.woken_at_ns = now
        donor.details.urged_by = None
        self._queues.choose_payer(callee)
        at = len(out)
        if ran:
            self._requeue(callee, core, now, out, None)  # another share, which waited for no core
            if core.current is not callee:
                self._scheduler.record_preemption(core, delegate, out, at)
        elif wants_core:
            self._scheduler.make_ready(callee, now, out)
        self._urge(callee, now, out)

    def _fail_served(self, callee: Entity, caller: Entity | None, now: int, out: list[Decision]) -> None:
        """A callee ends: the caller that it serves gets its share back and continues with an error."""
        callee.details.serving = None
        donor = callee.details.donor
        if caller is None:
            return  # its caller has ended, and it runs on its own share
        core, ran = donor.core, callee.state is _RUNNING
        left = self._scheduler.withdraw(donor, now)
        callee.state = _SLEEPING
        donor.details.delegate, callee.details.donor = caller, callee
        donor.details.urged_by = self._urged_by(donor)
        self._fail(caller, callee, now, out, left=left)
        if ran:
            out.extend(self._scheduler.dispatch(core, None, now))

    def _fail(
        self, caller: Entity, callee: Entity, now: int, out: list[Decision], *, left: RunQueue | None = None
    ) -> None:
        """A callee has ended: its caller continues with an error. Its share may have left a queue in this step."""
        caller.details.awaiting = None
        out.append(CallFailed(caller.key, callee.key))
        self._queues.choose_payer(caller.details.donor)
        self._scheduler.make_ready(caller.details.donor, now, out, left=left)


def _band_of(record: CallRecord) -> int:
    """The band of the share that a call would be served on; of a caller that has ended, none."""
    return -1 if record.caller is None else record.caller.details.donor.band


def _waiting_calls(callee: Entity) -> deque[CallRecord]:
    if callee.details.callers is None:
        callee.details.callers = deque()
    return callee.details.callers


def _chain(entity: Entity) -> Iterator[Entity]:
    """An entity, its callee, that one's callee and so on, as far as the calls are being served."""
    while True:
        yield entity
        record = entity.details.awaiting
        if record is None or record.callee.details.serving is not record:
            return
        entity = record.callee

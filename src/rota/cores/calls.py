"""Calls: one entity asks another, waits for the reply, and lends it its place meanwhile.

A place is what an entity competes with: its weight, its virtual time, its context. A caller that waits has no
use for it, so the callee acts in it. The turn goes on, on the same core, to the instant at which it would have
ended anyway, charged to the caller's share and budget. The reply gives the place back:

    A calls B           A waits, B runs in A's place until A's turn ends
    B calls C           B waits, C runs in A's place
    A's turn ends       A's place waits in the queue; when it is picked, C runs
    C replies           B goes on in A's place
    B replies           A goes on

So a question and its answer cost the one who asked, however many entities they pass through. Nobody gains time
by calling, nobody loses any by being asked, and a server needs no share of its own for the work of others. A
server's runtime is counted as its own all the same; only who *pays* is the caller.

Each entity waits for one reply at most, so waiting makes chains; a call that would close a chain to a circle is
refused. A callee that is busy keeps its callers in a line, first come first; while they stand there their
places are empty.

If the callee ends, its callers go on with an error. If the caller ends, its place ends with it: the callee goes
on in its own, and nobody waits for its reply.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from rota.cores.cores import Cores
from rota.cores.events import Call, CallFailed, Decision, Reply, Run
from rota.cores.placement import Placement
from rota.cores.queues import Queues
from rota.cores.records import CallRecord, Core, Entity
from rota.cores.turns import count_stretch, turn_began
from rota.errors import DonationCycle, LimitExceeded
from rota.model.lifecycle import EntityState

__all__ = ["CALLERS_MAX", "CALL_DEPTH_MAX", "Calls"]

CALLERS_MAX = 256  # who wait for one callee
CALL_DEPTH_MAX = 64  # how far a place is lent on

_SLEEPING, _RUNNING, _CALLING = EntityState.SLEEPING, EntityState.RUNNING, EntityState.CALLING


class Calls:
    """Every call under way."""

    def __init__(self, queues: Queues, placement: Placement, cores: Cores) -> None:
        self._queues = queues
        self._placement = placement
        self._cores = cores

    def call(self, event: Call, now: int) -> Sequence[Decision]:
        """Whoever runs asks another one and waits."""
        caller, callee = self._queues.entity(event.caller), self._queues.entity(event.callee)
        if caller.state is not _RUNNING:
            raise self._cores.cannot(caller.key, "call")
        record = self._record(caller, callee)
        place, core = caller.ties.place, caller.ties.place.core
        caller.ties.awaiting = record
        caller.voluntary_blocks += 1
        if callee.state is _SLEEPING and callee.ties.serving is None:
            callee.ties.serving = record
            caller.state = _CALLING
            return self._hand_over(place, caller, callee, now)
        self._cores.pause(place, now)
        caller.state = _CALLING
        _line_of(callee).append(record)
        return self._cores.dispatch(core, None, now)

    def reply(self, event: Reply, now: int) -> Sequence[Decision]:
        """Whoever runs answers its caller, and takes up the next call or waits for one."""
        callee = self._queues.entity(event.callee)
        record = callee.ties.serving
        if callee.state is not _RUNNING or record is None:
            raise self._cores.cannot(callee.key, "reply")
        callee.voluntary_blocks += 1
        callee.ties.serving = None
        place, caller = callee.ties.place, record.caller
        out: list[Decision] = []
        if caller is None:  # it has ended, and the callee acts in its own place
            core = place.core
            self._cores.pause(place, now)
            callee.state = _SLEEPING
            out.extend(self._cores.dispatch(core, None, now))
        else:
            caller.ties.awaiting = None
            callee.state = _SLEEPING
            out.extend(self._hand_over(place, callee, caller, now))
            self._go_home(callee)
        self._take_up_next(callee, now, out)
        return out

    def end(self, entity: Entity, now: int, out: list[Decision]) -> None:
        """An entity is about to be gone: afterwards it acts in its own place, alone, and nobody waits for it."""
        if entity.ties.awaiting is not None:
            self._cut_off(entity, entity.ties.awaiting, now, out)
        if entity.ties.serving is not None:
            self._fail_served(entity, entity.ties.serving.caller, now, out)
        for record in entity.ties.callers or ():
            if record.caller is not None:
                self._fail(record.caller, entity, now, out)
        entity.ties.callers = None

    # --- places changing hands ---------------------------------------------------------------------

    def _record(self, caller: Entity, callee: Entity) -> CallRecord:
        """A call that may be made: it closes no circle, is not too deep, and the line is not too long."""
        waits_for: Entity | None = callee
        while waits_for is not None:
            if waits_for is caller:
                raise DonationCycle(
                    f"entity {caller.key} cannot call {callee.key}, which waits for it",
                    caller=caller.key,
                    callee=callee.key,
                )
            waits_for = waits_for.ties.awaiting.callee if waits_for.ties.awaiting is not None else None
        depth = 1 if caller.ties.serving is None else caller.ties.serving.depth + 1
        if depth > CALL_DEPTH_MAX:
            raise LimitExceeded("call_depth_max", CALL_DEPTH_MAX, depth)
        if len(callee.ties.callers or ()) >= CALLERS_MAX:
            raise LimitExceeded("callers_max", CALLERS_MAX, CALLERS_MAX + 1)
        return CallRecord(caller, callee, depth)

    def _hand_over(self, place: Entity, giver: Entity, taker: Entity, now: int) -> Sequence[Decision]:
        """A turn goes on with somebody else in the same place; if it cannot go on here, the place waits for another."""
        core, ties = place.core, place.ties
        if ties.turn_at_ns is None:
            ties.turn_at_ns = place.last_start_ns
        count_stretch(giver, now)
        taker.last_start_ns = now
        ties.actor, taker.ties.place = taker, place
        place.is_plain = giver.is_plain = taker.is_plain = False
        if self._queues.keeps_payer(place) and self._placement.cores_for(place) & core.bit:
            taker.state = _RUNNING
            return (Run(core.core_id, taker.key, turn_began(place) + place.granted_ns),)
        out: list[Decision] = []
        self._cores.pause(place, now)
        self._move_on(place, core, now, out)
        return out

    def _move_on(self, place: Entity, core: Core, now: int, out: list[Decision]) -> None:
        """A place that was taken off a core waits anew, with whoever acts in it now, and the core chooses anew."""
        self._queues.choose_payer(place)
        core.is_asked = True  # it is about to look
        self._cores.make_ready(place, now, out)
        out.extend(self._cores.dispatch(core, None, now))

    def _go_home(self, entity: Entity) -> None:
        """Somebody has answered and acts in its own place again."""
        entity.ties.place = entity
        self._queues.choose_payer(entity)

    def _take_up_next(self, callee: Entity, now: int, out: list[Decision]) -> None:
        """A callee that is free takes up the call of whoever has waited longest."""
        line = callee.ties.callers
        while line:
            record = line.popleft()
            if record.caller is not None:
                place = record.caller.ties.place
                callee.ties.serving, callee.ties.place, place.ties.actor = record, place, callee
                callee.is_plain = False
                self._queues.choose_payer(place)
                self._cores.make_ready(place, now, out)
                return

    # --- ends --------------------------------------------------------------------------------------

    def _cut_off(self, entity: Entity, record: CallRecord, now: int, out: list[Decision]) -> None:
        """A caller is going: whoever serves it goes on in a place of its own, with those it has called itself."""
        entity.ties.awaiting = record.caller = None
        callee, place = record.callee, entity.ties.place
        if callee.ties.serving is not record:
            return  # it only stood in line
        core, actor = place.core, place.ties.actor
        ran = actor.state is _RUNNING
        wanted = self._cores.withdraw(place, now)
        place.ties.actor, callee.ties.actor = entity, actor
        for member in _chain(callee):
            member.ties.place = callee
        callee.woken_at_ns = now
        self._queues.choose_payer(callee)
        at = len(out)
        if ran:
            self._move_on(callee, core, now, out)
            if core.current is not callee:
                self._cores.note_preempted(core, actor, out, at)
        elif wanted:
            self._cores.make_ready(callee, now, out)

    def _fail_served(self, callee: Entity, caller: Entity | None, now: int, out: list[Decision]) -> None:
        """A callee is going: whom it serves goes on with an error, in the place that it gets back."""
        callee.ties.serving = None
        place = callee.ties.place
        if caller is None:
            return  # nobody waits for its reply, and it acts in its own place
        core, ran = place.core, callee.state is _RUNNING
        self._cores.withdraw(place, now)
        callee.state = _SLEEPING
        place.ties.actor, callee.ties.place = caller, callee
        self._fail(caller, callee, now, out)
        if ran:
            out.extend(self._cores.dispatch(core, None, now))

    def _fail(self, caller: Entity, callee: Entity, now: int, out: list[Decision]) -> None:
        """Whom a caller asked is gone; it goes on with an error."""
        caller.ties.awaiting = None
        out.append(CallFailed(caller.key, callee.key))
        self._queues.choose_payer(caller.ties.place)
        self._cores.make_ready(caller.ties.place, now, out)


def _line_of(callee: Entity) -> deque[CallRecord]:
    if callee.ties.callers is None:
        callee.ties.callers = deque()
    return callee.ties.callers


def _chain(entity: Entity) -> Iterator[Entity]:
    """An entity, whom it called, whom that one called, and so on, as far as they are being served."""
    while True:
        yield entity
        record = entity.ties.awaiting
        if record is None or record.callee.ties.serving is not record:
            return
        entity = record.callee

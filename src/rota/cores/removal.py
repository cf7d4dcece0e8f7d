"""Removal of entities, groups, sessions and cores.

What is removed gives back its place in a queue, its calls, its context and its leases. Each step does a bounded amount
of work: a large group ends in several steps, and `More` asks the driver to send the event again. A core that goes
offline picks nothing from the first step on; the entities that wait there are moved in several steps, by timers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from rota.cores.calls import Calls
from rota.cores.core_scheduler import CoreScheduler
from rota.cores.events import CloseSession, CoreOffline, CoreOnline, Decision, ExitEntity, ExitGroup, More
from rota.cores.islands import Islands
from rota.cores.leases import Leases
from rota.cores.placement import Placement
from rota.cores.queues import Queues
from rota.cores.records import CoreRecord, Entity
from rota.errors import Refused

__all__ = ["EXITS_MAX", "Removal"]

EXITS_MAX = 64  # members of a group that end in one step


class Removal:
    """Handles the events that remove entities, groups, sessions and cores."""

    def __init__(
        self,
        queues: Queues,
        placement: Placement,
        scheduler: CoreScheduler,
        *,
        calls: Calls,
        leases: Leases,
        islands: Islands,
    ) -> None:
        self._queues = queues
        self._placement = placement
        self._scheduler = scheduler
        self._calls = calls
        self._leases = leases
        self._islands = islands

    def exit(self, event: ExitEntity, now: int) -> Sequence[Decision]:
        """An entity ends, in any state."""
        out: list[Decision] = []
        self._end(self._queues.entity(event.entity), now, out)
        return out

    def exit_group(self, event: ExitGroup, now: int) -> Sequence[Decision]:
        """A group ends, a bounded number of members per step."""
        group = self._queues.group(event.group)
        out: list[Decision] = []
        for entity in list(islice(group.members.values(), EXITS_MAX)):
            self._end(entity, now, out)
        if group.members:
            out.append(More(event))
        else:
            self._queues.forget_group(group)
        return out

    def close_session(self, event: CloseSession, now: int) -> Sequence[Decision]:
        """An owner's session is closed: its leases end."""
        out: list[Decision] = []
        self._leases.owner_gone(event.owner, now, out)
        return out

    def core_offline(self, event: CoreOffline, now: int) -> Sequence[Decision]:
        """A core goes offline: its entities move to other cores, and islands with a reservation on it stop."""
        core = self._queues.core(event.core)
        if not core.is_online:
            return ()
        if self._placement.online == core.bit:
            raise Refused("the last core cannot go offline", hint="Bring another core online first.", core=core.core_id)
        out: list[Decision] = []
        core.is_online = False
        self._placement.online &= ~core.bit
        self._placement.idle &= ~core.bit
        self._placement.set_open(self._placement.open & ~core.bit)
        self._leases.keep_housekeeping(now, out)
        self._islands.core_lost(core.bit, now, out)
        self._clear(core, now, out)
        return out

    def core_online(self, event: CoreOnline, now: int) -> Sequence[Decision]:
        """A core comes back online and requests a reschedule."""
        core = self._queues.core(event.core)
        if core.is_online:
            return ()
        core.is_online = True
        core.reschedule_pending = False  # while it was offline, no tick could answer a request
        self._placement.online |= core.bit
        if core.lease_id is None:
            self._placement.set_open(self._placement.open | core.bit)
        core.idle_since_ns = now
        out = list(self._scheduler.request_reschedule(core))
        self._placement.return_displaced(now, out)
        return out

    def _end(self, entity: Entity, now: int, out: list[Decision]) -> None:
        group = entity.details.group
        self._calls.end(entity, now, out)
        self._scheduler.end(entity, now, out)
        if group is not None and not group.members:
            self._leases.owner_gone(group.name, now, out)

    def _clear(self, core: CoreRecord, now: int, out: list[Decision]) -> None:
        """Move every entity off a core that went offline."""
        donor = core.current
        if donor is not None:
            left = self._scheduler.pause(donor, now)
            self._scheduler.record_preemption(core, donor.details.delegate, out, len(out))
            self._scheduler.make_ready(donor, now, out, left=left)
        if core.idle_since_ns is not None:
            core.idle_ns += now - core.idle_since_ns
            core.idle_since_ns = None
        self._placement.evacuate(core, now, out)

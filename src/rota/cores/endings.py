"""How things end: an entity, a group, a session, a core.

Whatever ends gives back what it had: its place in a queue, its calls, its context, its leases. Each step does a
bounded amount of work. A group of thousands ends a few at a time: `More` asks the driver to send the event
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from rota.cores.calls import Calls
from rota.cores.cores import Cores
from rota.cores.events import CloseSession, CoreOffline, CoreOnline, Decision, Exit, ExitGroup, More
from rota.cores.islands import Islands
from rota.cores.leases import Leases
from rota.cores.placement import Placement
from rota.cores.queues import Queues
from rota.cores.records import Core, Entity
from rota.errors import Refused

__all__ = ["EXITS_MAX", "Endings"]

EXITS_MAX = 64  # members of a group that end in one step


class Endings:
    """What happens when something is gone."""

    def __init__(
        self, queues: Queues, placement: Placement, cores: Cores, *, calls: Calls, leases: Leases, islands: Islands
    ) -> None:
        self._queues = queues
        self._placement = placement
        self._cores = cores
        self._calls = calls
        self._leases = leases
        self._islands = islands

    def exit(self, event: Exit, now: int) -> Sequence[Decision]:
        """An entity ends, whatever it is doing."""
        out: list[Decision] = []
        self._end(self._queues.entity(event.entity), now, out)
        return out

    def exit_group(self, event: ExitGroup, now: int) -> Sequence[Decision]:
        """A group ends, a bounded number of its members at a time."""
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
        """An owner is gone: what it leased goes back."""
        out: list[Decision] = []
        self._leases.owner_gone(event.owner, now, out)
        return out

    def core_offline(self, event: CoreOffline, now: int) -> Sequence[Decision]:
        """A core goes away: whoever is on it goes elsewhere, and islands that counted on it fail closed."""
        core = self._queues.core(event.core)
        if not core.is_online:
            return ()
        if self._placement.online == core.bit:
            raise Refused("the last core cannot go away", hint="Bring another one online first.", core=core.core_id)
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
        """A core comes back, and looks for something to do."""
        core = self._queues.core(event.core)
        if core.is_online:
            return ()
        core.is_online = True
        self._placement.online |= core.bit
        if core.lease_id is None:
            self._placement.set_open(self._placement.open | core.bit)
        core.idle_since_ns = now
        out = list(self._cores.ask(core))
        self._placement.bring_home(now, out)
        return out

    def _end(self, entity: Entity, now: int, out: list[Decision]) -> None:
        group = entity.ties.group
        self._calls.end(entity, now, out)
        self._cores.end(entity, now, out)
        if group is not None and not group.members:
            self._leases.owner_gone(group.name, now, out)

    def _clear(self, core: Core, now: int, out: list[Decision]) -> None:
        """Move everybody off a core that is gone."""
        place = core.current
        if place is not None:
            self._cores.pause(place, now)
            self._cores.note_preempted(core, place.ties.actor, out, len(out))
            self._cores.make_ready(place, now, out)
        if core.idle_since_ns is not None:
            core.idle_ns += now - core.idle_since_ns
            core.idle_since_ns = None
        self._placement.evacuate(core, now, out)

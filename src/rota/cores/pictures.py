"""What everybody may see of the engine's living records: pictures, taken at an instant, that never change."""

from __future__ import annotations

from itertools import islice

from rota.cores.accounts import SchedEntity, ThreadCpuAccount
from rota.cores.queues import Queues
from rota.cores.records import NORMAL, Core, Entity
from rota.model.lifecycle import EntityState

__all__ = ["account_of", "idle_ns_of", "picture_of", "waiting_on"]


def account_of(entity: Entity, now: int) -> ThreadCpuAccount:
    """What an entity has used up to an instant, the turn under way counted in."""
    runs = entity.state is EntityState.RUNNING
    stops = entity.voluntary_blocks + entity.preemptions
    return ThreadCpuAccount(
        runtime_ns=entity.runtime_ns + (now - entity.last_start_ns if runs else 0),
        last_start_ns=entity.last_start_ns if stops or runs else None,
        virtual_runtime=entity.virtual_time,
        context_switches=stops + runs,
        preemptions=entity.preemptions,
        voluntary_blocks=entity.voluntary_blocks,
        migrations=entity.ties.migrations,
    )


def picture_of(entity: Entity, queues: Queues, now: int) -> SchedEntity:
    """Where an entity stands at an instant."""
    ties, place = entity.ties, entity.ties.place
    payer = place.payer
    return SchedEntity(
        entity=entity.key,
        state=str(entity.state),
        weight=entity.weight,
        latency_class=ties.latency_class,
        slice_ns=entity.slice_ns,
        eligible=entity.virtual_time,
        virtual_deadline=entity.virtual_time + entity.span,
        lag_ns=queues.lag_ns(entity, now),
        core=place.core.core_id,
        core_mask=ties.core_mask,
        group=None if ties.group is None else ties.group.name,
        paying=None if payer is None else payer.context_id,
        woken_at_ns=place.woken_at_ns,
        deadline_at_ns=None if payer is None else place.woken_at_ns + payer.deadline_ns,
    )


def waiting_on(core: Core, queues: Queues, most: int) -> list[int]:
    """Who waits in the fair queue of a core, or behind its group there; no more than so many, by number."""
    fair = (place.ties.actor.key for place in queues.waiting(core) if place.band == NORMAL)
    return sorted(islice(fair, most))


def idle_ns_of(core: Core, now: int) -> int:
    """For how long a core has had nothing to do, up to an instant."""
    since = core.idle_since_ns
    return core.idle_ns + (0 if since is None else now - since)

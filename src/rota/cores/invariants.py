"""Invariants that hold between two steps of an engine. For tests, and for a simulation that checks itself.

The check inspects every record, so it costs far more than a step. The engine itself never calls it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rota.cores.contexts import SchedulingContexts
from rota.cores.core_scheduler import CoreScheduler
from rota.cores.placement import Placement
from rota.cores.queues import Queues
from rota.cores.records import ContextRecord, CoreRecord, Entity, GroupNode, GroupRecord
from rota.cores.runqueue import RunQueue
from rota.cores.time_slices import TimeSlices, slice_start_ns
from rota.model.lifecycle import ContextState, EntityState
from rota.policy.replenishment import checked

__all__ = ["check_invariants"]


def check_invariants(
    queues: Queues, placement: Placement, contexts: SchedulingContexts, slices: TimeSlices, scheduler: CoreScheduler
) -> None:
    """Raise AssertionError with the broken invariant, if there is one."""
    _check_owners(queues)
    _check_payments(queues, contexts, slices, scheduler)
    for core in queues.cores:
        _check_masks(core, placement)
        for queue in _queues_of(core, queues):
            _check_sums(queue)
    for group in queues.groups.values():
        _check_members(group)
    for context in contexts:
        _check_budget(context)
        _check_grants(context, queues)
    _check_placement(queues, placement)


def _must(holds: bool, text: str, *values: object) -> None:
    """Raise unless the condition holds. Format the text only then: a check after every step is mostly this call."""
    if not holds:
        raise AssertionError(text.format(*values))


def _check_owners(queues: Queues) -> None:
    owners: Counter[int] = Counter()
    for core in queues.cores:
        for donor in queues.waiting(core):
            owners[donor.key] += 1
            state = donor.details.delegate.state
            _must(donor.core is core, "entity {} waits on core {} but is recorded on another", donor.key, core.core_id)
            _must(state is EntityState.READY, "the delegate of entity {} waits in a queue and is {}", donor.key, state)
        if core.current is not None:
            owners[core.current.key] += 1
            is_running = core.current.details.delegate.state is EntityState.RUNNING
            _must(is_running, "the current entity of core {} is not running", core.core_id)
    for entity in queues.entities.values():
        donor = entity.details.donor
        if entity.state in (EntityState.READY, EntityState.RUNNING):
            _must(donor.details.delegate is entity, "entity {} runs on a share that another entity uses", entity.key)
        delegate = donor.details.delegate
        runnable = delegate.state in (EntityState.READY, EntityState.RUNNING)
        _must(
            owners[donor.key] == runnable, "share {} ({}) has {} owners", donor.key, delegate.state, owners[donor.key]
        )
        urged_by = entity.details.urged_by
        waits = urged_by is None or urged_by.details.delegate.state is EntityState.CALLING
        _must(waits, "share {} is urged by one that does not wait", entity.key)


def _check_payments(queues: Queues, contexts: SchedulingContexts, slices: TimeSlices, scheduler: CoreScheduler) -> None:
    ran_ns = scheduler.exited_ns + sum(entity.runtime_ns for entity in queues.entities.values())
    paid_ns = slices.best_effort_ns + contexts.revoked_ns + sum(context.used for context in contexts)
    for core in queues.cores:
        if core.current is not None:  # of a slice that changed hands, a part is counted and not yet paid
            paid_ns += core.current.details.delegate.last_start_ns - slice_start_ns(core.current)
    _must(ran_ns == paid_ns, "{:,} ns were run and {:,} ns were paid", ran_ns, paid_ns)


def _queues_of(core: CoreRecord, queues: Queues) -> Iterable[RunQueue]:
    nodes = (group.nodes.get(core.core_id) for group in queues.groups.values())
    return [core.fair, core.background, *(node.inside for node in nodes if node is not None)]


def _check_members(group: GroupRecord) -> None:
    runnable = sum(len(node.inside) + (node.inside.current is not None) for node in group.nodes.values())
    _must(group.runnable == runnable, "group {} counts {} members, not {}", group.name, group.runnable, runnable)


def _check_sums(queue: RunQueue) -> None:
    runnable = list(queue.queued())
    _must(len(runnable) == len(queue), "a queue counts {} waiting, and {} are", len(queue), len(runnable))
    if queue.current is not None:
        runnable.append(queue.current)
    weight = sum(one.weight for one in runnable)
    weighted = sum(one.weight * one.virtual_time for one in runnable)
    _must(queue.weight == weight, "a queue's weight is {}, not {}", queue.weight, weight)
    _must(queue.weighted == weighted, "a queue's weighted sum is {}, not {}", queue.weighted, weighted)


def _check_masks(core: CoreRecord, placement: Placement) -> None:
    is_idle = core.is_online and core.current is None
    _must(is_idle or not placement.idle & core.bit, "core {} runs an entity and counts as idle", core.core_id)
    _must(
        core.is_open == bool(placement.open & core.bit), "core {} disagrees with the mask of open cores", core.core_id
    )
    ordinary = core.is_open and not len(core.reserved) and not core.front
    _must(ordinary or not core.is_ordinary, "core {} has more than its fair queue and is ordinary", core.core_id)
    running = core.fair.current
    waiting = len(core.fair) > 0 or (isinstance(running, GroupNode) and len(running.inside) > 0)
    _must(core.is_stealable or not waiting, "core {} has an entity to steal and is not marked stealable", core.core_id)


def _check_budget(context: ContextRecord) -> None:
    checked(context.allowance())
    _must(context.state is not ContextState.REVOKED, "context {} is revoked and still listed", context.context_id)


def _check_grants(context: ContextRecord, queues: Queues) -> None:
    running = [core.current for core in queues.cores if core.current is not None and core.current.payer is context]
    granted = sum(entity.granted_ns for entity in running) if context.is_shared else 0
    _must(granted == context.granted, "context {} granted {}, not {}", context.context_id, context.granted, granted)
    _must(context.is_shared == (len(context.payees) > 1), "context {} has a wrong is_shared", context.context_id)
    for entity in context.throttled.values():
        state = entity.details.delegate.state
        _must(state is EntityState.THROTTLED, "{} entity {} waits for budget", state, entity.key)
        _must(entity.payer is context, "entity {} waits for a context that does not pay for it", entity.key)
    for key, entity in context.payees.items():
        _must(queues.entities.get(key) is entity, "entity {} is paid for and has ended", key)
        _must(entity.payer is context, "entity {} has another payer", key)


def _check_placement(queues: Queues, placement: Placement) -> None:
    for core in queues.cores:
        if core.is_open or not placement.is_being_cleared(core):
            for entity in queues.waiting(core):
                _may_be_on(entity, core, placement)


def _may_be_on(entity: Entity, core: CoreRecord, placement: Placement) -> None:
    allowed = placement.cores_for(entity)
    _must(bool(allowed & core.bit), "entity {} waits on core {}, where it may not run", entity.key, core.core_id)

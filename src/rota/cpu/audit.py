"""What must be true of an engine at any moment between two steps. For tests, and for a simulation that checks itself.

An audit looks at everything, so it costs far more than a step; the engine itself never calls it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rota.cpu.contexts import Contexts
from rota.cpu.cores import Cores, turn_began
from rota.cpu.placement import Placement
from rota.cpu.queues import Queues
from rota.cpu.records import Context, Core, Entity, GroupNode
from rota.cpu.runqueue import RunQueue
from rota.model.lifecycle import ContextState, EntityState
from rota.policy.replenishment import lawful

__all__ = ["audit"]


def audit(queues: Queues, placement: Placement, contexts: Contexts, cores: Cores) -> None:
    """Raise an AssertionError that says what is wrong, if anything is."""
    _every_runnable_has_one_owner(queues)
    _every_ns_was_paid_once(queues, contexts, cores)
    for core in queues.cores:
        _masks_say_what_is(core, placement)
        for queue in _queues_of(core, queues):
            _sums_are_right(queue)
    for context in contexts:
        _budget_is_whole(context)
        _grants_are_those_of_who_runs(context, queues)
    _nobody_is_where_it_may_not_be(queues, placement)


def _must(true: bool, what: str) -> None:
    if not true:
        raise AssertionError(what)


def _every_runnable_has_one_owner(queues: Queues) -> None:
    owners: Counter[int] = Counter()
    for core in queues.cores:
        for place in queues.waiting(core):
            owners[place.key] += 1
            state = place.ties.actor.state
            _must(place.core is core, f"entity {place.key} waits on core {core.core_id} and thinks it does elsewhere")
            _must(state is EntityState.READY, f"who acts for entity {place.key} waits in a queue and is {state}")
        if core.current is not None:
            owners[core.current.key] += 1
            runs = core.current.ties.actor.state is EntityState.RUNNING
            _must(runs, f"who runs on core {core.core_id} is not running")
    for entity in queues.entities.values():
        place = entity.ties.place
        if entity.state in (EntityState.READY, EntityState.RUNNING):
            _must(place.ties.actor is entity, f"entity {entity.key} runs in a place where another acts")
        acts = place.ties.actor
        runnable = acts.state in (EntityState.READY, EntityState.RUNNING)
        _must(owners[place.key] == runnable, f"place {place.key} ({acts.state}) has {owners[place.key]} owners")


def _every_ns_was_paid_once(queues: Queues, contexts: Contexts, cores: Cores) -> None:
    ran_ns = cores.ended_ns + sum(entity.runtime_ns for entity in queues.entities.values())
    paid_ns = cores.best_effort_ns + contexts.revoked_ns + sum(context.used for context in contexts)
    for core in queues.cores:
        if core.current is not None:  # of a turn that changed hands, a part has been counted and not yet paid
            paid_ns += core.current.ties.actor.last_start_ns - turn_began(core.current)
    _must(ran_ns == paid_ns, f"{ran_ns:,} ns were run and {paid_ns:,} were paid")


def _queues_of(core: Core, queues: Queues) -> Iterable[RunQueue]:
    nodes = (group.nodes.get(core.core_id) for group in queues.groups.values())
    return [core.fair, core.background, *(node.inside for node in nodes if node is not None)]


def _sums_are_right(queue: RunQueue) -> None:
    runnable = list(queue.queued())
    _must(len(runnable) == len(queue), f"a queue counts {len(queue)} who wait, and {len(runnable)} do")
    if queue.current is not None:
        runnable.append(queue.current)
    weight = sum(one.weight for one in runnable)
    weighted = sum(one.weight * one.virtual_time for one in runnable)
    _must(queue.weight == weight, f"a queue's weight is {queue.weight}, not {weight}")
    _must(queue.weighted == weighted, f"a queue's sum is {queue.weighted}, not {weighted}")


def _masks_say_what_is(core: Core, placement: Placement) -> None:
    is_idle = core.is_online and core.current is None
    _must(is_idle or not placement.idle & core.bit, f"core {core.core_id} runs somebody and counts as idle")
    _must(core.is_open == bool(placement.open & core.bit), f"core {core.core_id} is not as open as it says")
    _must(core.has_urgent or not len(core.reserved), f"core {core.core_id} hides its reserved line")
    waiting = any(isinstance(core.fair.current, GroupNode) and len(core.fair.current.inside) for _ in (0,))
    waiting = waiting or len(core.fair) > 0
    _must(core.is_listed or not waiting, f"core {core.core_id} has somebody to steal and is not listed")


def _budget_is_whole(context: Context) -> None:
    lawful(context.allowance())
    _must(context.state is not ContextState.REVOKED, f"context {context.context_id} is revoked and still there")


def _grants_are_those_of_who_runs(context: Context, queues: Queues) -> None:
    running = [core.current for core in queues.cores if core.current is not None and core.current.payer is context]
    granted = sum(entity.granted_ns for entity in running) if context.is_shared else 0
    _must(granted == context.granted, f"context {context.context_id} granted {context.granted}, not {granted}")
    _must(context.is_shared == (len(context.payees) > 1), f"context {context.context_id} miscounts who draws on it")
    for entity in context.throttled.values():
        state = entity.ties.actor.state
        _must(state is EntityState.THROTTLED, f"{state} entity {entity.key} waits for budget")
        _must(entity.payer is context, f"entity {entity.key} waits for a budget that is not its own")
    for key, entity in context.payees.items():
        _must(queues.entities.get(key) is entity, f"entity {key} is paid for and gone")
        _must(entity.payer is context, f"entity {key} is paid for by another")


def _nobody_is_where_it_may_not_be(queues: Queues, placement: Placement) -> None:
    for core in queues.cores:
        for entity in queues.waiting(core):
            _may_be_on(entity, core, placement)


def _may_be_on(entity: Entity, core: Core, placement: Placement) -> None:
    allowed = placement.cores_for(entity)
    _must(bool(allowed & core.bit), f"entity {entity.key} waits on core {core.core_id}, where it may not run")

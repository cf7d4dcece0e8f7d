"""What must be true of an engine at any moment between two steps. For tests, and for a simulation that checks itself.

An audit looks at everything, so it costs far more than a step; the engine itself never calls it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rota.cores.contexts import Contexts
from rota.cores.cores import Cores
from rota.cores.placement import Placement
from rota.cores.queues import Queues
from rota.cores.records import Context, Core, Entity, GroupNode
from rota.cores.runqueue import RunQueue
from rota.cores.turns import Turns, turn_began
from rota.model.lifecycle import ContextState, EntityState
from rota.policy.replenishment import lawful

__all__ = ["audit"]


def audit(queues: Queues, placement: Placement, contexts: Contexts, turns: Turns, cores: Cores) -> None:
    """Raise an AssertionError that says what is wrong, if anything is."""
    _every_runnable_has_one_owner(queues)
    _every_ns_was_paid_once(queues, contexts, turns, cores)
    for core in queues.cores:
        _masks_say_what_is(core, placement)
        for queue in _queues_of(core, queues):
            _sums_are_right(queue)
    for context in contexts:
        _budget_is_whole(context)
        _grants_are_those_of_who_runs(context, queues)
    _nobody_is_where_it_may_not_be(queues, placement)


def _must(true: bool, what: str, *named: object) -> None:
    """The words are put together only if it is not true: an audit after every step is mostly this."""
    if not true:
        raise AssertionError(what.format(*named))


def _every_runnable_has_one_owner(queues: Queues) -> None:
    owners: Counter[int] = Counter()
    for core in queues.cores:
        for place in queues.waiting(core):
            owners[place.key] += 1
            state = place.ties.actor.state
            _must(
                place.core is core, "entity {} waits on core {} and thinks it does elsewhere", place.key, core.core_id
            )
            _must(state is EntityState.READY, "who acts for entity {} waits in a queue and is {}", place.key, state)
        if core.current is not None:
            owners[core.current.key] += 1
            runs = core.current.ties.actor.state is EntityState.RUNNING
            _must(runs, "who runs on core {} is not running", core.core_id)
    for entity in queues.entities.values():
        place = entity.ties.place
        if entity.state in (EntityState.READY, EntityState.RUNNING):
            _must(place.ties.actor is entity, "entity {} runs in a place where another acts", entity.key)
        acts = place.ties.actor
        runnable = acts.state in (EntityState.READY, EntityState.RUNNING)
        _must(owners[place.key] == runnable, "place {} ({}) has {} owners", place.key, acts.state, owners[place.key])


def _every_ns_was_paid_once(queues: Queues, contexts: Contexts, turns: Turns, cores: Cores) -> None:
    ran_ns = cores.ended_ns + sum(entity.runtime_ns for entity in queues.entities.values())
    paid_ns = turns.best_effort_ns + contexts.revoked_ns + sum(context.used for context in contexts)
    for core in queues.cores:
        if core.current is not None:  # of a turn that changed hands, a part has been counted and not yet paid
            paid_ns += core.current.ties.actor.last_start_ns - turn_began(core.current)
    _must(ran_ns == paid_ns, "{:,} ns were run and {:,} were paid", ran_ns, paid_ns)


def _queues_of(core: Core, queues: Queues) -> Iterable[RunQueue]:
    nodes = (group.nodes.get(core.core_id) for group in queues.groups.values())
    return [core.fair, core.background, *(node.inside for node in nodes if node is not None)]


def _sums_are_right(queue: RunQueue) -> None:
    runnable = list(queue.queued())
    _must(len(runnable) == len(queue), "a queue counts {} who wait, and {} do", len(queue), len(runnable))
    if queue.current is not None:
        runnable.append(queue.current)
    weight = sum(one.weight for one in runnable)
    weighted = sum(one.weight * one.virtual_time for one in runnable)
    _must(queue.weight == weight, "a queue's weight is {}, not {}", queue.weight, weight)
    _must(queue.weighted == weighted, "a queue's sum is {}, not {}", queue.weighted, weighted)


def _masks_say_what_is(core: Core, placement: Placement) -> None:
    is_idle = core.is_online and core.current is None
    _must(is_idle or not placement.idle & core.bit, "core {} runs somebody and counts as idle", core.core_id)
    _must(core.is_open == bool(placement.open & core.bit), "core {} is not as open as it says", core.core_id)
    _must(core.has_urgent or not len(core.reserved), "core {} hides its reserved line", core.core_id)
    waiting = any(isinstance(core.fair.current, GroupNode) and len(core.fair.current.inside) for _ in (0,))
    waiting = waiting or len(core.fair) > 0
    _must(core.is_listed or not waiting, "core {} has somebody to steal and is not listed", core.core_id)


def _budget_is_whole(context: Context) -> None:
    lawful(context.allowance())
    _must(context.state is not ContextState.REVOKED, "context {} is revoked and still there", context.context_id)


def _grants_are_those_of_who_runs(context: Context, queues: Queues) -> None:
    running = [core.current for core in queues.cores if core.current is not None and core.current.payer is context]
    granted = sum(entity.granted_ns for entity in running) if context.is_shared else 0
    _must(granted == context.granted, "context {} granted {}, not {}", context.context_id, context.granted, granted)
    _must(context.is_shared == (len(context.payees) > 1), "context {} miscounts who draws on it", context.context_id)
    for entity in context.throttled.values():
        state = entity.ties.actor.state
        _must(state is EntityState.THROTTLED, "{} entity {} waits for budget", state, entity.key)
        _must(entity.payer is context, "entity {} waits for a budget that is not its own", entity.key)
    for key, entity in context.payees.items():
        _must(queues.entities.get(key) is entity, "entity {} is paid for and gone", key)
        _must(entity.payer is context, "entity {} is paid for by another", key)


def _nobody_is_where_it_may_not_be(queues: Queues, placement: Placement) -> None:
    for core in queues.cores:
        for entity in queues.waiting(core):
            _may_be_on(entity, core, placement)


def _may_be_on(entity: Entity, core: Core, placement: Placement) -> None:
    allowed = placement.cores_for(entity)
    _must(bool(allowed & core.bit), "entity {} waits on core {}, where it may not run", entity.key, core.core_id)

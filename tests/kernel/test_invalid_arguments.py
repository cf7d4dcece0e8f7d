"""Invalid values in any parameter of any method of the kernel.

The call raises only errors of rota, a refused call has written nothing, and what was accepted can be read, claimed and
replayed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from rota.errors import RotaError
from rota.kernel import Completion, EntryFilter, RunReport, ScheduleSpec
from rota.model.budgets import Handle
from rota.model.events import FleetReloaded, TriggerFired
from rota.model.prices import ModelPrice
from rota.model.work import Backoff, ProjectConstraint
from rota.model.workers import SlotPool
from tests.kernel.populated_world import (
    AFTER,
    BACKED_OFF,
    DONE,
    INF,
    NAN,
    PID,
    QUEUED,
    RUNNING,
    SURROGATE,
    PopulatedWorld,
)
from tests.kernel.world import START


@pytest.fixture
def populated() -> Iterator[PopulatedWorld]:
    made = PopulatedWorld()
    yield made
    made.close()


INVALID: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    2**63,
    2**200,
    1.5,
    -0.5,
    NAN,
    INF,
    "",
    "x",
    "kernel.x",
    SURROGATE,
    "x" * 5_000,
    b"x",
    (),
    ("x",),
    (None,),
    [],
    [1],
    {},
    {"x": 1},
    {"tokens": -1},
    {"f": object()},
    {1: 2},
    object(),
    Backoff(),
]

VERBS: dict[str, tuple[Callable[[PopulatedWorld], Callable[..., object]], dict[str, Any]]] = {
    "queue.enqueue": (lambda world: lambda **made: world.queue.enqueue(ScheduleSpec(**made)), {"pid": PID}),
    "queue.enqueue_many": (lambda world: world.queue.enqueue_many, {"specs": [ScheduleSpec(PID)]}),
    "queue.enqueue_unique": (
        lambda world: world.queue.enqueue_unique,
        {"spec": ScheduleSpec(PID, trigger="new"), "dedupe_by": ("pid", "trigger")},
    ),
    "queue.enqueue_unique, by key": (
        lambda world: world.queue.enqueue_unique,
        {"spec": ScheduleSpec(PID, key="new"), "dedupe_by": ("key",)},
    ),
    "queue.get": (lambda world: world.queue.get, {"sched_id": QUEUED}),
    "queue.list": (
        lambda world: world.queue.list,
        dict.fromkeys(("state", "pid", "limit", "offset", "project_id", "trigger", "exit_kind", "tag")),
    ),
    "queue.search": (
        lambda world: world.queue.search,
        {"text": "x", **dict.fromkeys(("limit", "state", "status", "pid", "project_id", "tag"))},
    ),
    "queue.running": (lambda world: world.queue.running, dict.fromkeys(("project_id", "pid", "limit", "offset"))),
    "queue.wait": (lambda world: world.queue.wait, {"sched_id": DONE, "wait_s": 0.0}),
    "queue.change": (
        lambda world: world.queue.change,
        {"sched_id": QUEUED, "priority": 5, "runnable_at": 0.0, "deadline": START + 9, "tags": ("new",)},
    ),
    "queue.bulk": (
        lambda world: world.queue.bulk,
        {
            "wanted": EntryFilter(),
            "verb": "change",
            "priority": 5,
            "runnable_at": 0.0,
            "deadline": START + 9,
            "tags": ("new",),
            "stop": False,
            "created_before": START + 9,
            "sched_ids": [QUEUED],
            "by": "anna",
            "dry_run": False,
        },
    ),
    "queue.cancel": (lambda world: world.queue.cancel, {"sched_id": QUEUED}),
    "queue.request_cancel": (lambda world: world.queue.request_cancel, {"sched_id": RUNNING, "by": "anna"}),
    "queue.cancel_where": (lambda world: world.queue.cancel_where, {"wanted": EntryFilter(), "reason": "because"}),
    "queue.release": (lambda world: world.queue.release, {"sched_id": AFTER}),
    "queue.retry": (lambda world: world.queue.retry, {"sched_id": BACKED_OFF}),
    "queue.retry_where": (lambda world: world.queue.retry_where, {"wanted": EntryFilter()}),
    "queue.claim": (
        lambda world: world.queue.claim,
        {
            "worker_id": "w",
            "max_n": 1,
            "now": START,
            "admission_check": True,
            "claim_timeout_s": 60.0,
            "incarnation": "i",
            "kinds": ("gpu",),
            "wait_s": 0.0,
        },
    ),
    "queue.force_claim": (
        lambda world: world.queue.force_claim,
        {
            "sched_id": QUEUED,
            "worker_id": "w",
            "by": "anna",
            "admission_check": True,
            "claim_timeout_s": 60.0,
            "incarnation": "i",
            "now": START,
        },
    ),
    "queue.heartbeat": (lambda world: world.queue.heartbeat, {"sched_id": RUNNING, "token": 0, "now": START}),
    "queue.heartbeat_many": (lambda world: world.queue.heartbeat_many, {"claims": [(RUNNING, 1)], "now": START}),
    "queue.charge": (lambda world: world.queue.charge, {"sched_id": RUNNING, "amounts": {"tokens": 1}, "token": None}),
    "queue.complete": (
        lambda world: world.queue.complete,
        {"sched_id": RUNNING, "exit_kind": "failed", "token": None, "result": {}, "outcome": "odd"},
    ),
    "queue.complete_many": (lambda world: world.queue.complete_many, {"completions": [Completion(RUNNING)]}),
    "dispatcher.complete_and_claim": (
        lambda world: world.dispatcher.complete_and_claim,
        {"completions": [Completion(RUNNING)], "worker_id": "w", "max_n": 1, "claim_timeout_s": 60.0, "wait_s": 0.0},
    ),
    "queue.put_back": (
        lambda world: world.queue.put_back,
        {"sched_id": RUNNING, "token": 0, "verb": "yield", "runnable_at": START},
    ),
    "queue.gc_expired": (lambda world: world.queue.gc_expired, {"now": START}),
    "queue.gc_dispatched": (lambda world: world.queue.gc_dispatched, {"stale_seconds": 5.0, "now": START}),
    "queue.take_over": (lambda world: world.queue.take_over, {"worker_id": "worker", "incarnation": "i"}),
    "queue.upkeep": (lambda world: world.queue.upkeep, {"now": START}),
    "agents.create": (
        lambda world: world.agents.create,
        {
            "name": "a",
            "template": "t",
            "parent_pid": PID,
            "metadata": {},
            "project_id": "lab",
            "priority": 0,
            "weight": 1,
            "intent": "NEUTRAL",
            "rerunnable": True,
            "max_concurrent": 1,
            "unique": False,
        },
    ),
    "agents.get": (lambda world: world.agents.get, {"pid": PID}),
    "agents.names": (lambda world: world.agents.names, {"pids": [PID]}),
    "agents.find": (lambda world: world.agents.find, {"name": "agent"}),
    "agents.list": (
        lambda world: world.agents.list,
        dict.fromkeys(("state", "project_id", "limit", "offset")),
    ),
    "agents.transition": (
        lambda world: world.agents.transition,
        {"pid": PID, "state": "RUNNING", "reason": "r", "expect": "READY"},
    ),
    "agents.update": (
        lambda world: world.agents.update,
        {"pid": PID, "priority": 1, "weight": 1, "intent": "PROTECT", "max_concurrent": 1, "metadata": {}},
    ),
    "agents.pause": (lambda world: world.agents.pause, {"pid": PID, "by": "anna", "reason": "r"}),
    "agents.resume": (lambda world: world.agents.resume, {"pid": PID, "by": "anna"}),
    "agents.recover": (lambda world: world.agents.recover, {"policy": "mark-dead", "reason": "r"}),
    "terminate": (
        lambda world: world.kernel.terminate,
        {"pid": PID, "exit_kind": "failed", "detail": {}, "queued": "keep"},
    ),
    "journal.append": (
        lambda world: world.journal.append,
        {"pid": PID, "kind": "mine", "payload": {}, "causation_id": "c", "correlation_id": "c"},
    ),
    "journal.record": (lambda world: world.journal.record, {"fact": FleetReloaded(), "pid": PID}),
    "journal.record, its fact": (
        lambda world: lambda **made: world.journal.record(TriggerFired(**made)),
        {"trigger": "t", "sched_id": 1, "created": True},
    ),
    "journal.remember": (lambda world: world.journal.remember, {"name": "n", "note": {}, "project_id": "lab"}),
    "journal.recall": (lambda world: world.journal.recall, {"name": "n", "project_id": "lab"}),
    "journal.tail": (lambda world: world.journal.tail, {"since": 0, "limit": 10, "pid": PID}),
    "queue.watch": (lambda world: lambda sched_id: world.queue.watch(sched_id, lambda: None)(), {"sched_id": 1}),
    "journal.follow": (lambda world: lambda since: list(world.journal.follow(since, wait_s=0.0)), {"since": 0}),
    "ledger.create": (lambda world: world.ledger.create, {"pid": PID, "grants": {"cpu_s": 1}, "warn_at": 0.5}),
    "ledger.create, its alerts": (
        lambda world: lambda alerts: world.ledger.create(PID, {"cpu_s": 1}, alerts=alerts),
        {"alerts": (0.5,)},
    ),
    "ledger.get": (lambda world: world.ledger.get, {"pid": PID}),
    "ledger.charge": (lambda world: world.ledger.charge, {"pid": PID, "dim": "tokens", "amount": 1}),
    "ledger.check": (lambda world: world.ledger.check, {"pid": PID, "dim": "tokens", "amount": 1}),
    "ledger.refund": (lambda world: world.ledger.refund, {"pid": PID, "dim": "tokens", "amount": 1}),
    "ledger.update_grant": (lambda world: world.ledger.update_grant, {"pid": PID, "dim": "tokens", "granted": 1}),
    "usage.report": (
        lambda world: world.kernel.usage.report,
        {"by": ("day",), "since_at": 0.0, "until_at": 9.0, "project_id": "lab", "agent": "bob"},
    ),
    "usage.set_prices": (
        lambda world: world.kernel.usage.set_prices,
        {"prices": {"m": ModelPrice(input_micro=1, output_micro=1)}},
    ),
    "ledger.set_budget": (
        lambda world: world.ledger.set_budget,
        {"level": "project", "owner": "lab", "dim": "tokens", "limit": 5, "window_s": 60.0},
    ),
    "ledger.graph_budgets": (lambda world: world.ledger.graph_budgets, {"run_id": "r1"}),
    "ledger.open_graph_budgets": (
        lambda world: world.ledger.open_graph_budgets,
        {"run_id": "r1", "budgets": {"": {"tokens": 1}}},
    ),
    "ledger.set_graph_budget": (
        lambda world: world.ledger.set_graph_budget,
        {"run_id": "r1", "dim": "tokens", "limit": 1, "node": "a"},
    ),
    "ledger.charge_graph": (
        lambda world: world.ledger.charge_graph,
        {"run_id": "r1", "amounts": {"tokens": 1}, "node": "a", "model": "small", "key": "k"},
    ),
    "ledger.set_share_window": (lambda world: world.ledger.set_share_window, {"window_s": 60.0}),
    "queue.set_affinity_wait": (lambda world: world.queue.set_affinity_wait, {"wait_s": 60.0}),
    "projects.create": (
        lambda world: world.projects.create,
        {"project_id": "p", "name": "n", "weight": 1, "max_concurrent": 1, "metadata": {}},
    ),
    "projects.get": (lambda world: world.projects.get, {"project_id": "lab"}),
    "projects.list": (lambda world: world.projects.list, dict.fromkeys(("status", "limit", "offset"))),
    "projects.update": (
        lambda world: world.projects.update,
        {"project_id": "lab", "name": "n", "weight": 1, "max_concurrent": 1, "metadata": {}},
    ),
    "projects.constrain": (
        lambda world: world.projects.constrain,
        {"project_id": "lab", "constraint": ProjectConstraint()},
    ),
    "projects.constrain, its constraint": (
        lambda world: lambda **made: world.projects.constrain("lab", ProjectConstraint(**made)),
        {"exclusive": True, "max_by_kind": {}, "pause_scheduling": False},
    ),
    "projects.move": (lambda world: world.projects.move, {"project_id": "lab", "verb": "pause", "by": "anna"}),
    "projects.pause_fleet": (lambda world: world.projects.pause_fleet, {"by": "anna", "reason": "r"}),
    "projects.resume_fleet": (lambda world: world.projects.resume_fleet, {"by": "anna"}),
    "projects.add_workspace": (
        lambda world: world.projects.add_workspace,
        {"workspace_id": "w", "project_id": "lab", "path": "/w", "source": "folder"},
    ),
    "projects.remove_workspace": (
        lambda world: world.projects.remove_workspace,
        {"workspace_id": "desk", "reason": "empty"},
    ),
    "projects.keep_workspace": (
        lambda world: world.projects.keep_workspace,
        {"workspace_id": "desk", "reason": "it has a draft"},
    ),
    "projects.workspace": (lambda world: world.projects.workspace, {"workspace_id": "desk"}),
    "projects.workspaces": (lambda world: world.projects.workspaces, {"project_id": "lab"}),
    "contexts.create": (
        lambda world: world.contexts.create,
        {"bound_to": "name", "bound_id": "new", "budget": 5, "period_s": 5.0, "unit": "tokens"},
    ),
    "contexts.get": (lambda world: world.contexts.get, {"context_id": 1}),
    "contexts.resolve": (lambda world: world.contexts.resolve, {"handle": Handle(1, 0)}),
    "contexts.list": (lambda world: world.contexts.list, dict.fromkeys(("limit", "offset"))),
    "contexts.adjust": (lambda world: world.contexts.adjust, {"context_id": 1, "budget": 5, "period_s": 5.0}),
    "contexts.revoke": (lambda world: world.contexts.revoke, {"context_id": 1}),
    "contexts.charge": (lambda world: world.contexts.charge, {"context_id": 1, "amount": 1, "now": START}),
    "contexts.throttle": (lambda world: world.contexts.throttle, {"name": "api", "retry_after_s": 5.0, "by": 1}),
}
for field in ScheduleSpec.__struct_fields__[1:]:
    VERBS["queue.enqueue"][1][field] = getattr(ScheduleSpec(PID), field)

# Methods without arguments, or with arguments that another method has checked.
VERBS |= {
    "agents.paused": (lambda world: world.agents.paused, {"by": "anna", "limit": 10}),
    "journal.wait": (lambda world: world.journal.wait, {"since": 0, "wait_s": 0.0}),
    "queue.peek": (lambda world: world.queue.peek, {"max_n": 1, "kinds": ("gpu",), "worker_id": "w"}),
    "queue.nudge": (lambda world: world.queue.nudge, {"worker_id": "w", "incarnation": "i"}),
    "dispatcher.turn": (
        lambda world: world.dispatcher.turn,
        {"reports": [RunReport(sched_id=RUNNING, token=0)], "worker_id": "w", "max_n": 1, "wait_s": 0.0},
    ),
    "dispatcher.turn of one report": (
        lambda world: lambda **made: world.dispatcher.turn([RunReport(**made)], worker_id="w", max_n=0),
        {
            "sched_id": RUNNING,
            "token": 0,
            "exit_kind": "failed",
            "outcome": "timed_out",
            "result": {},
            "usage": {},
            "wall_ms": 5,
            "stopped_by": "TERM",
            "back": "yield",
            "back_at": START,
        },
    ),
    "supervision.began": (
        lambda world: world.kernel.supervision.began,
        {"sched_id": RUNNING, "token": 0, "slot": "s", "runner": "command", "os_pid": 7},
    ),
    "supervision.settings_changed": (
        lambda world: world.kernel.supervision.settings_changed,
        {"sched_id": RUNNING, "token": 0},
    ),
    "supervision.checkpoint": (
        lambda world: world.kernel.supervision.checkpoint,
        {"sched_id": RUNNING, "token": 0, "state": {}},
    ),
    "supervision.progress": (
        lambda world: world.kernel.supervision.progress,
        {"sched_id": RUNNING, "token": 0, "fraction": 0.5, "text": "half"},
    ),
    "supervision.access_token": (
        lambda world: world.kernel.supervision.access_token,
        {"sched_id": RUNNING, "token": 0},
    ),
    "supervision.rest": (
        lambda world: world.kernel.supervision.rest,
        {"sched_id": RUNNING, "token": 0, "waiting": True, "awaits": [QUEUED]},
    ),
    "supervision.agent_to_spawn": (
        lambda world: world.kernel.supervision.agent_to_spawn,
        {"sched_id": RUNNING, "token": 0, "name": "agent"},
    ),
    "supervision.throttle": (
        lambda world: world.kernel.supervision.throttle,
        {"sched_id": RUNNING, "token": 0, "retry_after_s": 5.0, "name": "model"},
    ),
    "projects.grant": (
        lambda world: world.projects.grant,
        {"from_project": None, "to_project": "lab"},
    ),
    "projects.revoke_grant": (
        lambda world: world.projects.revoke_grant,
        {"from_project": None, "to_project": "lab"},
    ),
    "contexts.resume": (lambda world: world.contexts.resume, {"name": "model"}),
    "queue.unfinished": (lambda world: world.queue.unfinished, {"limit": 10}),
    "supervision.acquire": (
        lambda world: world.kernel.supervision.acquire,
        {"sched_id": RUNNING, "token": 0, "name": "api", "amounts": {"tokens": 5}, "key": "k", "wait_s": 0.0},
    ),
    "supervision.settle": (
        lambda world: world.kernel.supervision.settle,
        {"sched_id": RUNNING, "token": 0, "key": "k", "used": {}},
    ),
    "supervision.spawn": (
        lambda world: world.kernel.supervision.spawn,
        {"spec": ScheduleSpec(PID, parent_id=RUNNING), "token": 0, "lent": {}},
    ),
    "supervision.quarantine": (
        lambda world: world.kernel.supervision.quarantine,
        {"pid": PID, "failures": 3, "until_at": START + 9},
    ),
    "workers.register": (
        lambda world: world.kernel.workers.register,
        {
            "worker_id": "w",
            "incarnation": "i",
            "kind": "supervisor",
            "host": "h",
            "os_pid": 1,
            "pools": [SlotPool("w", 1, ("gpu",))],
            "version": "1",
            "draining": False,
            "replaces": False,
        },
    ),
    "workers.leave": (lambda world: world.kernel.workers.leave, {"worker_id": "w", "incarnation": "i"}),
    "workers.list": (lambda world: world.kernel.workers.list, {"lost": True}),
    "supervision.moved": (
        lambda world: world.kernel.supervision.moved,
        {"worker_id": "w", "incarnation": "i", "verb": "started"},
    ),
}

WITHOUT_INPUT = {
    "agents.check_exit",
    "agents.interrupted",
    "agents.recover_idle",  # only the daemon calls it, with what `interrupted` returned
    "agents.set_pause_in",
    "agents.terminate_in",
    "agents.update_in",
    "queue.enqueue_in",  # inside the caller's transaction, as the others with this ending
    "queue.run_due",  # only the daemon calls it
    "queue.wake_in",
    "journal.cursor",
    "journal.ends",
    "journal.notify_followers",
    "ledger.budgets",
    "ledger.list_breached",
    "ledger.share_window",
    "queue.affinity_wait",
    "usage.fold",
    "usage.prices",
    "usage.report_within",  # its arguments are those of `report`, and checked there
    "projects.fleet_paused_by",
    "supervision.run_tokens",
    "workers.remove_lost",
    "projects.grants",
    "supervision.recover",
    "queue.counts",
    # inside a transaction, for other parts of the kernel: their arguments are already checked
    "agents.create_in",
    "queue.cancel_batch_in",
    "queue.checked_batch",
    "queue.begin_graph_run",  # set by the kernel, called inside its transactions
    "queue.enqueue_batch_in",
    "queue.enqueue_each_in",
    "queue.entry_with_key",
    "queue.spawn_in",
    "queue.live_run",
    "queue.maintenance",
    "supervision.settle_agents",
    "queue.park",
    "queue.claim_by_policy",
}


def test_every_method_of_the_kernel_is_covered(populated: PopulatedWorld) -> None:
    public = {
        f"{part}.{name}"
        for part in ("agents", "contexts", "journal", "ledger", "projects", "queue", "supervision", "usage", "workers")
        for name in dir(getattr(populated.kernel, part))
        if not name.startswith("_")
    }
    assert public - WITHOUT_INPUT - VERBS.keys() == set()


# where a store may differ from another: types, ranges and characters; a test with all of them takes minutes there
HARDEST: list[Any] = [None, True, -1, 2**63, NAN, SURROGATE]


@pytest.mark.parametrize("verb", VERBS)
def test_an_invalid_value_in_any_parameter_is_refused_without_a_trace_or_does_no_harm(
    verb: str, store_kind: str
) -> None:
    bind, good = VERBS[verb]
    world = PopulatedWorld()
    before = world.image()
    wrong = []
    for parameter, value in itertools.product(good, INVALID if store_kind == "memory" else HARDEST):
        problem = _problem(world, before, lambda changed: bind(world)(**(good | changed)), {parameter: value})
        if problem is not None:
            wrong.append(f"{parameter}={value!r:.30}: {problem}")
        if world.image() != before:
            before = world.restore(before)
    world.close()
    assert wrong == []


def _problem(
    world: PopulatedWorld, before: object, call: Callable[[dict[str, Any]], object], changed: dict[str, Any]
) -> str | None:
    """Return what is wrong with the outcome of a call, or None."""
    try:
        call(changed)
    except RotaError as error:
        if not _can_be_sent(error):
            return f"{error!r} cannot be sent over the wire"
        return None if world.image() == before else "refused, but something was written"
    except Exception as error:
        return repr(error)
    return None if world.image() == before else _disorder(world)


def _can_be_sent(error: RotaError) -> bool:
    try:
        msgspec.json.encode([str(error), error.to_rpc_data()], enc_hook=repr)
    except UnicodeEncodeError:
        return False
    return True


def _disorder(world: PopulatedWorld) -> str | None:
    """Return what is wrong after an invalid value was accepted: everything must be readable and entries must run."""
    try:
        world.facts()
        world.queue.list(limit=1_000)
        world.agents.list()
        world.projects.list()
        world.projects.workspaces("lab")
        world.contexts.list()
        world.ledger.budgets()
        world.ledger.get(PID)
        free = world.put(world.agent())
        world.projects.resume_fleet("the test")
        taken = world.take_ids(now=START + 10**7)
    except Exception as error:
        return f"accepted, but then: {error!r}"
    return None if free in taken else "accepted, but no entry runs afterwards"

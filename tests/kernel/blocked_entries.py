"""Set-ups in which an entry is blocked, each with the one change or instant that unblocks it."""

from __future__ import annotations

from collections.abc import Callable

from rota.kernel import EntryFilter
from rota.model.work import ProjectConstraint
from tests.kernel.world import START, World

# --- lifted by a change ---------------------------------------------------------------------------

Change = Callable[[World], Callable[[], object]]  # makes the set-up and returns the change that unblocks


def _enqueue(world: World) -> Callable[[], object]:
    pid = world.agent()
    return lambda: world.put(pid)


def _retry(world: World) -> Callable[[], object]:
    world.put(world.agent())
    world.queue.complete(1, "crashed", token=world.take_one().token)
    return lambda: world.queue.retry_where(EntryFilter())


def _change(world: World) -> Callable[[], object]:
    world.put(world.agent(), runnable_at=START + 10**6)
    return lambda: world.queue.change(1, runnable_at=0.0)


def _put_back(world: World) -> Callable[[], object]:
    world.put(world.agent())
    token = world.take_one().token or 0
    return lambda: world.queue.put_back(1, token=token)


def _agent_cap(world: World) -> Callable[[], object]:
    pid = world.agent(max_concurrent=1)
    running, _ = world.put(pid), world.put(pid)
    world.take(1)
    return lambda: world.queue.complete(running, "completed")


def _agent_cap_raised(world: World) -> Callable[[], object]:
    pid = world.agent(max_concurrent=0)
    world.put(pid)
    return lambda: world.agents.update(pid, max_concurrent=1)


def _project_cap(world: World) -> Callable[[], object]:
    world.projects.create("lab", max_concurrent=1)
    running, _ = world.put(world.agent(project_id="lab")), world.put(world.agent(project_id="lab"))
    world.take(1)
    return lambda: world.queue.complete(running, "failed")


def _project_cap_raised(world: World) -> Callable[[], object]:
    world.projects.create("lab", max_concurrent=0)
    world.put(world.agent(project_id="lab"))
    return lambda: world.projects.update("lab", max_concurrent=1)


def _kind_cap(world: World) -> Callable[[], object]:
    world.projects.create("lab")
    world.projects.constrain("lab", ProjectConstraint(max_by_kind={"gpu": 1}))
    pid = world.agent(project_id="lab")
    running, _ = world.put(pid, kind="gpu"), world.put(pid, kind="gpu")
    world.take(1, kinds=("gpu",))
    return lambda: world.queue.complete(running, "completed")


def _workspace(world: World) -> Callable[[], object]:
    world.projects.create("lab")
    world.projects.add_workspace("desk", "lab", "/desk")
    one, two = world.agent(project_id="lab"), world.agent(project_id="lab")
    running, _ = world.put(one, workspace_mode="exclusive"), world.put(two, workspace_mode="exclusive")
    world.take(1)
    return lambda: world.queue.complete(running, "completed")


def _workspace_added(world: World) -> Callable[[], object]:
    world.projects.create("lab")
    world.put(world.agent(project_id="lab"), workspace_mode="shared")
    return lambda: world.projects.add_workspace("desk", "lab", "/desk")


def _reservation(world: World) -> Callable[[], object]:
    pid = world.agent()
    world.ledger.create(pid, {"tokens": 100})
    running, _ = world.put(pid, ceiling={"tokens": 60}), world.put(pid, ceiling={"tokens": 60})
    world.take(1)
    return lambda: world.queue.complete(running, "completed")


def _broke(world: World) -> int:
    """An agent over its grant."""
    pid = world.agent()
    world.ledger.create(pid, {"tokens": 10})
    world.ledger.charge(pid, "tokens", 11)
    world.put(pid)
    return pid


def _grant(world: World) -> Callable[[], object]:
    pid = _broke(world)
    return lambda: world.ledger.update_grant(pid, "tokens", 11)


def _refund(world: World) -> Callable[[], object]:
    pid = _broke(world)
    return lambda: world.ledger.refund(pid, "tokens", 1)


def _project_budget(world: World) -> Callable[[], object]:
    world.projects.create("lab")
    world.ledger.set_budget("project", "lab", "tokens", 0)
    world.put(world.agent(project_id="lab"))
    return lambda: world.ledger.set_budget("project", "lab", "tokens", 5)


def _global_budget(world: World) -> Callable[[], object]:
    world.ledger.set_budget("global", "*", "tokens", 0)
    world.put(world.agent())
    return lambda: world.ledger.set_budget("global", "*", "tokens", None)


def _limit_adjusted(world: World) -> Callable[[], object]:
    context_id = world.contexts.create(bound_to="name", bound_id="api", budget=10, period_s=10**6).context_id
    world.put(world.agent(), draws_on=("api",), ceiling={"tokens": 8})
    world.put(world.agent(), draws_on=("api",), ceiling={"tokens": 8})
    world.take(1)
    return lambda: world.contexts.adjust(context_id, budget=20, period_s=60)


def _limit_revoked(world: World) -> Callable[[], object]:
    context_id = world.contexts.create(bound_to="name", bound_id="api", budget=10, period_s=10**6).context_id
    world.contexts.charge(context_id, 10)
    world.put(world.agent(), draws_on=("api",))
    return lambda: world.contexts.revoke(context_id)


def _unpause_agent(world: World) -> Callable[[], object]:
    pid = world.agent()
    world.put(pid)
    world.agents.pause(pid, "anna")
    return lambda: world.agents.resume(pid, "anna")


def _unpause_project(world: World) -> Callable[[], object]:
    world.projects.create("lab")
    world.put(world.agent(project_id="lab"))
    world.projects.move("lab", "pause")
    return lambda: world.projects.move("lab", "resume")


def _unpause_constraint(world: World) -> Callable[[], object]:
    world.projects.create("lab")
    world.projects.constrain("lab", ProjectConstraint(pause_scheduling=True))
    world.put(world.agent(project_id="lab"))
    return lambda: world.projects.constrain("lab", ProjectConstraint())


def _unpause_fleet(world: World) -> Callable[[], object]:
    world.put(world.agent())
    world.projects.pause_fleet("anna")
    return lambda: world.projects.resume_fleet("anna")


def _predecessor(world: World) -> Callable[[], object]:
    pid = world.agent()
    first = world.put(pid)
    world.put(world.agent(), after=(first,))
    world.take(1)
    return lambda: world.queue.complete(first, "completed")


def _predecessor_cancelled(world: World) -> Callable[[], object]:
    first = world.put(world.agent(), runnable_at=START + 10**6)
    world.put(world.agent(), after=(first,), on_failed="run")
    return lambda: world.queue.cancel(first)


def _taken_over(world: World) -> Callable[[], object]:
    world.rng.share = 0.0
    world.put(world.agent())
    world.take_one(worker_id="sup", incarnation="first")
    return lambda: world.queue.take_over("sup", "second")


def _gc_dispatched(world: World) -> Callable[[], object]:
    world.rng.share = 0.0
    world.put(world.agent())
    world.take_one()
    world.clock.advance(10)
    return lambda: world.queue.gc_dispatched(5)


def _terminated(world: World) -> Callable[[], object]:
    """The cancelled entry of a dead agent releases its dependent."""
    pid = world.agent()
    first = world.put(pid, runnable_at=START + 10**6)
    world.put(world.agent(), after=(first,), on_failed="run")
    return lambda: world.kernel.terminate(pid, "failed")


CHANGES: dict[str, Change] = {
    "enqueue": _enqueue,
    "retry": _retry,
    "change": _change,
    "put back": _put_back,
    "agent cap": _agent_cap,
    "agent cap raised": _agent_cap_raised,
    "project cap": _project_cap,
    "project cap raised": _project_cap_raised,
    "kind cap": _kind_cap,
    "workspace": _workspace,
    "workspace added": _workspace_added,
    "reservation": _reservation,
    "grant": _grant,
    "refund": _refund,
    "project budget": _project_budget,
    "global budget": _global_budget,
    "limit adjusted": _limit_adjusted,
    "limit revoked": _limit_revoked,
    "unpause agent": _unpause_agent,
    "unpause project": _unpause_project,
    "unpause constraint": _unpause_constraint,
    "unpause fleet": _unpause_fleet,
    "predecessor": _predecessor,
    "predecessor cancelled": _predecessor_cancelled,
    "taken over": _taken_over,
    "gc dispatched": _gc_dispatched,
    "terminated": _terminated,
}


# --- lifted by time -------------------------------------------------------------------------------


def _due(world: World) -> float:
    world.put(world.agent(), runnable_at=START + 50)
    return 50


def _backed_off(world: World) -> float:
    world.put(world.agent())
    world.queue.complete(1, "crashed", token=world.take_one().token)
    return 1


def _expiry(world: World) -> float:
    world.rng.share = 0.0
    world.put(world.agent())
    world.take_one(claim_timeout_s=50)
    return 50


def _expiry_frees_cap(world: World) -> float:
    pid = world.agent(max_concurrent=1)
    world.put(pid, max_attempts=1)
    world.put(pid)
    world.take(1, claim_timeout_s=50)
    return 50


def _window_edge(world: World) -> float:
    world.projects.create("lab")
    pid = world.agent(project_id="lab")
    world.ledger.create(pid, {"tokens": 1_000})
    world.ledger.set_budget("project", "lab", "tokens", 10, window_s=288.0)
    world.ledger.charge(pid, "tokens", 10)
    world.put(pid)
    return 289


def _global_window_edge(world: World) -> float:
    pid = world.agent()
    world.ledger.create(pid, {"tokens": 1_000})
    world.ledger.set_budget("global", "*", "tokens", 10, window_s=288.0)
    world.ledger.charge(pid, "tokens", 10)
    world.put(pid)
    return 289


def _refill(world: World) -> float:
    context_id = world.contexts.create(bound_to="name", bound_id="api", budget=10, period_s=60).context_id
    world.contexts.charge(context_id, 10)
    world.put(world.agent(), draws_on=("api",))
    return 60


def _refill_of_requests(world: World) -> float:
    world.contexts.create(bound_to="name", bound_id="api", budget=1, period_s=60, unit="requests")
    pid = world.agent()
    world.put(pid, draws_on=("api",))
    world.put(pid, draws_on=("api",))
    world.take(1)
    return 60


def _throttle_ends(world: World) -> float:
    world.contexts.create(bound_to="name", bound_id="api", budget=10, period_s=60)
    world.contexts.throttle("api", 30.0)
    world.put(world.agent(), draws_on=("api",))
    return 30


TIMES: dict[str, Callable[[World], float]] = {
    "due": _due,
    "back-off": _backed_off,
    "claim expiry": _expiry,
    "claim expiry frees a cap": _expiry_frees_cap,
    "window edge": _window_edge,
    "global window edge": _global_window_edge,
    "refill": _refill,
    "refill of requests": _refill_of_requests,
    "throttle": _throttle_ends,
}

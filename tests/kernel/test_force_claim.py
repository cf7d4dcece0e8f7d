"""force_claim: an operator claims an entry regardless of order, or gets every reason that blocks it."""

from __future__ import annotations

import pytest

from rota.errors import RotaError, SchedUnknownId
from rota.kernel.maintenance import PROMOTE_MAX
from rota.model.events import EntriesClaimed
from rota.model.reasons import (
    AfterPredecessor,
    BackingOff,
    CapReached,
    ContextExhausted,
    LimitExhausted,
    NotQueued,
    NotYetRunnable,
    OverBudget,
    PastDeadline,
    PausedByOperator,
    ProjectInactive,
    WorkspaceTaken,
)
from rota.model.work import ProjectConstraint, ScheduleSpec
from tests.kernel.world import START, World


def test_force_claim_ignores_the_order_and_is_recorded(world: World, pid: int) -> None:
    world.put(pid, priority=9)
    sched_id = world.put(pid, kind="gpu")
    entry = world.queue.force_claim(sched_id, worker_id="console", by="anna", claim_timeout_s=5.0, incarnation="i")
    assert entry == world.queue.get(sched_id)
    assert (entry.state, entry.worker_id, entry.claim_expires_at) == ("dispatched", "console", START + 5)
    fact = world.facts()[-1]
    assert isinstance(fact, EntriesClaimed)
    assert (fact.policy, fact.forced_by, fact.incarnation) == ("forced", "anna", "i")
    assert fact.because == ["forced by anna"]


def test_force_claim_of_a_due_entry_that_was_not_released_yet(world: World, pid: int) -> None:
    """A transaction releases a bounded number of held entries, the highest priorities first."""
    world.queue.enqueue_many([ScheduleSpec(pid, 1, START + 1) for _ in range(PROMOTE_MAX)])
    last = world.queue.enqueue(ScheduleSpec(pid, 0, START + 1))
    world.clock.advance(2)
    world.queue.force_claim(last, worker_id="w")
    assert world.rows(f"SELECT state, hold FROM agent_schedule_queue WHERE sched_id = {last}") == [("dispatched", None)]


def test_force_claim_keeps_all_checks_but_can_skip_budgets(world: World, pid: int) -> None:
    world.ledger.create(pid, {"tokens": 10})
    world.ledger.charge(pid, "tokens", 11)
    sched_id = world.put(pid)
    before = world.everything()
    assert world.reasons_against(sched_id) == [
        OverBudget(level="agent", owner=str(pid), dim="tokens", used=11, reserved=0, ask=0, limit=10)
    ]
    assert world.everything() == before
    assert world.queue.force_claim(sched_id, worker_id="w", admission_check=False).state == "dispatched"
    world.agents.pause(pid, "anna")
    other = world.put(pid)
    with pytest.raises(RotaError, match="paused by anna"):
        world.queue.force_claim(other, worker_id="w", admission_check=False)


@pytest.mark.parametrize("state", ["dispatched", "completed", "cancelled", "expired"])
def test_force_claim_requires_a_queued_entry(world: World, pid: int, state: str) -> None:
    sched_id = world.put(pid, deadline=START + 50)
    if state in ("dispatched", "completed"):
        world.take_one()
    if state == "completed":
        world.queue.complete(sched_id, "completed")
    if state == "cancelled":
        world.queue.cancel(sched_id)
    if state == "expired":
        world.queue.gc_expired(now=START + 51)
    assert world.reasons_against(sched_id) == [NotQueued(state=state)]


def test_force_claim_of_an_unknown_entry_is_refused(world: World) -> None:
    with pytest.raises(SchedUnknownId):
        world.queue.force_claim(99, worker_id="w")


def test_each_reason_of_the_entry_itself_is_reported(world: World, pid: int) -> None:
    later = world.put(pid, runnable_at=START + 5)
    first = world.put(pid)
    behind = world.put(pid, after=(first,), runnable_at=START + 5)
    due = world.put(pid, deadline=START)
    crashed = world.put(pid, priority=9)
    world.queue.complete(crashed, "crashed", token=world.take(1)[0].token)
    assert world.reasons_against(later) == [NotYetRunnable(runnable_at=START + 5)]
    assert world.reasons_against(behind) == [
        AfterPredecessor(waiting_for=(first,)),
        NotYetRunnable(runnable_at=START + 5),
    ]
    assert world.reasons_against(due) == [PastDeadline(deadline=START)]
    assert world.reasons_against(crashed) == [BackingOff(until_at=START + 1, attempt=1)]


def test_force_claim_reports_every_reason(world: World) -> None:
    """An entry that every kind of reason blocks."""
    world.projects.create("lab", max_concurrent=1)
    world.projects.add_workspace("desk", "lab", "/desk")
    pid = world.agent(project_id="lab", max_concurrent=1)
    world.ledger.create(pid, {"tokens": 100})
    limit = world.contexts.create(bound_to="name", bound_id="api", budget=10, period_s=60).context_id
    own = world.contexts.create(bound_to="agent", bound_id=pid, budget=10, period_s=60).context_id
    holder = world.put(pid, workspace_mode="exclusive", kind="gpu")
    world.queue.force_claim(holder, worker_id="w")
    blocked = world.put(
        pid,
        workspace_mode="exclusive",
        kind="gpu",
        draws_on=("api",),
        ceiling={"tokens": 50},
        after=(holder,),
        runnable_at=START + 5,
        deadline=START + 5,
    )
    world.ledger.set_budget("project", "lab", "tokens", 60)
    world.ledger.set_budget("global", "*", "tokens", 55)
    world.ledger.charge(pid, "tokens", 55)
    world.contexts.charge(limit, 10)
    world.agents.pause(pid, "anna")
    world.projects.move("lab", "archive")
    world.projects.constrain("lab", ProjectConstraint(pause_scheduling=True, max_by_kind={"gpu": 1}))
    world.projects.pause_fleet("bert")
    reasons = world.reasons_against(blocked)
    assert {type(reason) for reason in reasons} == {
        AfterPredecessor,
        NotYetRunnable,
        PausedByOperator,
        CapReached,
        ProjectInactive,
        OverBudget,
        LimitExhausted,
        ContextExhausted,
        WorkspaceTaken,
    }
    assert [(reason.level, reason.by) for reason in reasons if isinstance(reason, PausedByOperator)] == [
        ("agent", "anna"),
        ("project", "constraint"),
        ("fleet", "bert"),
    ]
    assert [reason.level for reason in reasons if isinstance(reason, CapReached)] == ["agent", "project", "kind"]
    over = [reason for reason in reasons if isinstance(reason, OverBudget)]
    assert {reason.level for reason in over} == {"agent", "project", "global"}
    room = [reason.limit - reason.used - reason.reserved - reason.ask for reason in over]
    assert room == sorted(room)  # the strictest first
    assert [reason.context_id for reason in reasons if isinstance(reason, ContextExhausted)] == [own]
    assert all(reason.sentence() for reason in reasons)
    assert world.state(blocked) == "queued:after"


def test_a_forced_claim_without_heartbeats_is_taken_back_by_the_next_claim(world: World, pid: int) -> None:
    """The due summary was cached before the claim; the claim must update its expiry."""
    forced = world.put(pid)
    world.queue.force_claim(forced, worker_id="operator", claim_timeout_s=10)
    world.clock.advance(10)
    assert world.take_ids() == []
    assert world.state(forced) == "queued:backoff"

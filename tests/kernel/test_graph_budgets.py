"""Budgets of graph runs and of their nodes: counted once, whatever ends or is killed, and checked by every claim."""

from __future__ import annotations

from typing import Any

import pytest

from rota.errors import LedgerInvalidAmount, LimitExceeded, SchedInvalidPayload
from rota.kernel.replay import KernelState
from rota.kernel.run_reports import RunReport
from rota.model.events import GraphBudgetSet, LedgerBreached
from rota.model.graph_budgets import NESTED_MAX, GraphAccount, GraphPlace, left_of, used_up
from rota.model.graph_runs import BUDGETS_KEY, DOCUMENT_KEY, TEMPLATE
from rota.model.reasons import OverBudget
from rota.model.work import ScheduleSpec
from tests.kernel.world import World

RUN = "report-1"


@pytest.fixture
def graph(world: World) -> World:
    """A run of a graph with 100 tokens, of which its node `writer` may use 40."""
    world.kernel.graphs.take(RUN, "report", world.agent("report"))
    world.ledger.open_graph_budgets(RUN, {"": {"tokens": 100}, "writer": {"tokens": 40}})
    return world


def put(world: World, pid: int, node: str, **spec: Any) -> int:
    return world.put(pid, account=GraphAccount(RUN, node), **spec)


def used(world: World) -> dict[str, int]:
    """What was used, by node."""
    return {line.node: line.used for line in world.ledger.graph_budgets(RUN)}


def check_replay(world: World) -> None:
    """The journal rebuilds the lines."""
    tables = world.store.read(KernelState.from_tables).at(world.now)
    assert world.store.read(KernelState.from_journal).at(world.now) == tables


def test_a_charge_counts_for_the_node_and_for_the_run(graph: World, pid: int) -> None:
    put(graph, pid, "writer")
    entry = graph.take_one()
    graph.queue.charge(entry.sched_id, {"tokens": 25, "tool_calls": 3}, token=entry.token)
    assert used(graph) == {"": 25, "writer": 25}
    other = graph.put(pid, account=GraphAccount(RUN, "reader"))
    claimed = graph.take_one()
    assert claimed.sched_id == other
    assert claimed.account == GraphAccount(RUN, "reader")
    graph.queue.charge(other, {"tokens": 10}, token=claimed.token)
    assert used(graph) == {"": 35, "writer": 25}
    check_replay(graph)


def test_a_charge_of_a_run_that_has_no_claim_counts_once_per_key(graph: World) -> None:
    """Of a run that its own process executes; the process that takes it next has keys of its own."""
    charge = graph.ledger.charge_graph
    assert [line.used for line in charge(RUN, {"tokens": 5}, node="writer", key="1")] == [5, 5]
    assert [line.used for line in charge(RUN, {"tokens": 5}, node="writer", key="1")] == [5, 5]
    charge(RUN, {"tokens": 5}, node="writer", key="2")
    assert used(graph) == {"": 10, "writer": 10}
    assert len(graph.rows("SELECT * FROM charge_keys")) == 2
    graph.kernel.graphs.take(RUN, "report", 1)
    assert graph.rows("SELECT * FROM charge_keys") == []
    charge(RUN, {"tokens": 1}, key="1")
    assert used(graph) == {"": 11, "writer": 10}
    check_replay(graph)
    graph.kernel.graphs.cancel(RUN)
    charge(RUN, {"tokens": 1}, key="3")
    graph.kernel.graphs.forget(RUN)
    assert graph.rows("SELECT * FROM charge_keys") == []


@pytest.mark.parametrize("on_over", ["fail", "wait"])
def test_what_a_nested_run_uses_is_held_to_the_budgets_around_it(graph: World, pid: int, on_over: Any) -> None:
    """A node is another graph: its coordinator is claimed beyond the budget, unless the node waits for it."""
    graphs = graph.kernel.graphs
    inner = graph.agents.create("inner", TEMPLATE, metadata={DOCUMENT_KEY: {}, BUDGETS_KEY: {"": {"tokens": 500}}})
    coordinator = graph.put(inner, account=GraphAccount(RUN, "writer", on_over))
    claimed = graph.take_one()
    assert claimed.token is not None
    run = graphs.take_entry(coordinator, claimed.token)
    graphs.enqueue(run.run_id, run.fence, [ScheduleSpec(pid, account=GraphAccount(run.run_id, "a")), ScheduleSpec(pid)])
    for entry in graph.take(2):
        assert entry.account is not None
        assert GraphPlace(RUN, "writer", on_over) in entry.account.places
        graph.queue.charge(entry.sched_id, {"tokens": 30}, token=entry.token)
    assert used(graph) == {"": 60, "writer": 60}
    assert [line.used for line in graph.ledger.graph_budgets(run.run_id)] == [30]
    check_replay(graph)
    (waiting,) = graphs.enqueue(run.run_id, run.fence, [ScheduleSpec(pid)])
    assert graph.take(1) == []
    (reason,) = graph.reasons_against(waiting)
    assert isinstance(reason, OverBudget)
    assert (reason.owner, reason.node, reason.used, reason.limit) == (RUN, "writer", 60, 40)
    graph.queue.put_back(coordinator, token=claimed.token)
    assert [entry.sched_id for entry in graph.take(1)] == ([] if on_over == "wait" else [coordinator])


def test_the_accounts_around_one_are_filled_in_by_the_store(graph: World, pid: int) -> None:
    """A caller cannot charge a run that its project may not reach by naming it as an outer one."""
    inside = GraphAccount(RUN, "writer").inside(GraphAccount("other", "part"))
    with pytest.raises(SchedInvalidPayload, match="outer"):
        graph.put(pid, account=inside)
    deepest = GraphAccount("r0", "node")
    for number in range(NESTED_MAX):
        deepest = GraphAccount(f"r{number + 1}", "node").inside(deepest)
    with pytest.raises(LimitExceeded, match="NESTED_MAX"):
        GraphAccount("one more", "node").inside(deepest)


def test_an_entry_that_was_taken_back_has_counted_once(graph: World, pid: int) -> None:
    """As after kill -9 of its worker: the claim expires, another attempt charges what it uses itself."""
    sched_id = put(graph, pid, "writer")
    for attempt in (1, 2):
        entry = graph.take_one(claim_timeout_s=5)
        assert (entry.sched_id, entry.attempt) == (sched_id, attempt)
        graph.queue.charge(sched_id, {"tokens": 7}, token=entry.token)
        graph.clock.advance(6)
        graph.queue.upkeep()  # takes it back; its back-off begins
        graph.clock.advance(400)
    charged = sum(
        event.payload["amounts"]["tokens"] for event in graph.events() if event.kind == "kernel.ledger.charged"
    )
    assert used(graph) == {"": charged, "writer": charged} == {"": 14, "writer": 14}
    check_replay(graph)


def test_a_node_whose_budget_is_used_up_starts_nothing_until_it_is_raised(graph: World, pid: int) -> None:
    first, second = put(graph, pid, "writer"), put(graph, pid, "writer")
    entry = graph.take(1)[0]
    graph.queue.charge(first, {"tokens": 40}, token=entry.token)
    graph.queue.complete(first, "completed", token=entry.token)
    assert graph.take_ids() == []
    (reason,) = graph.reasons_against(second)
    assert reason == OverBudget(
        level="graph", owner=RUN, node="writer", dim="tokens", used=40, reserved=0, ask=1, limit=40
    )
    assert reason.sentence() == (
        "tokens of node writer of graph run report-1: 40 used + 0 reserved + 1 asked is over 40"
    )
    waiting = graph.waiter()
    graph.ledger.set_graph_budget(RUN, "tokens", 60, node="writer")
    assert waiting.outcome() == [second]
    check_replay(graph)


def test_live_claims_reserve_what_they_may_use(graph: World, pid: int) -> None:
    first, second = (put(graph, pid, "writer", ceiling={"tokens": 30}) for _ in range(2))
    reader = put(graph, pid, "reader", ceiling={"tokens": 70})
    assert graph.take_ids() == [first, reader]  # the second does not fit beside the first, not even in one pass
    lines = {line.node: line.reserved for line in graph.ledger.graph_budgets(RUN)}
    assert lines == {"": 100, "writer": 30}
    graph.queue.complete(first, "completed")
    assert graph.take_ids() == [second]


def test_a_coordinator_is_claimed_although_the_run_is_over_budget(graph: World, pid: int) -> None:
    coordinator = graph.put(pid, account=GraphAccount(RUN))
    entry = graph.take_one()
    graph.queue.charge(coordinator, {"tokens": 120}, token=entry.token, node="writer")
    assert used(graph) == {"": 120, "writer": 120}
    breached = [(fact.level, fact.owner) for fact in graph.facts() if isinstance(fact, LedgerBreached)]
    assert breached == [("graph", RUN), ("graph", f"{RUN}/writer")]
    graph.queue.put_back(coordinator, token=entry.token or 0)
    put(graph, pid, "reader")
    assert graph.take_ids() == [coordinator]
    lines = graph.ledger.graph_budgets(RUN)
    assert left_of(lines) == {"tokens": -80}
    over = used_up(lines)
    assert over is not None
    assert over.sentence() == "tokens of node writer: 120 of 40 used"


def test_measured_time_is_charged_where_the_run_has_a_budget_of_it(graph: World, pid: int) -> None:
    graph.ledger.set_graph_budget(RUN, "wall_s", 10)
    sched_id = put(graph, pid, "reader")
    entry = graph.take_one()
    report = RunReport(sched_id=sched_id, token=entry.token or 0, usage={"wall_s": 3})
    graph.dispatcher.turn([report], "worker", 0)
    assert {(line.node, line.dim): line.used for line in graph.ledger.graph_budgets(RUN)}["", "wall_s"] == 3


def test_what_an_entry_spawns_counts_in_its_run(graph: World, pid: int) -> None:
    parent = put(graph, pid, "writer")
    entry = graph.take_one()
    child = graph.kernel.supervision.spawn(ScheduleSpec(pid, parent_id=parent), entry.token or 0)
    claimed = graph.take_one()
    assert (claimed.sched_id, claimed.account) == (child, GraphAccount(RUN, "writer"))
    graph.queue.charge(child, {"tokens": 5}, token=claimed.token)
    assert used(graph) == {"": 5, "writer": 5}


def test_budgets_are_opened_once_and_keep_what_was_raised(graph: World) -> None:
    graph.ledger.set_graph_budget(RUN, "tokens", 500)
    graph.ledger.open_graph_budgets(RUN, {"": {"tokens": 100}, "writer": {"tokens": 40}})
    assert {line.node: line.limit for line in graph.ledger.graph_budgets(RUN)} == {"": 500, "writer": 40}
    assert sum(isinstance(fact, GraphBudgetSet) for fact in graph.facts()) == 3
    graph.kernel.graphs.forget(RUN)
    assert graph.ledger.graph_budgets(RUN) == []
    check_replay(graph)


def test_a_budget_survives_a_pruned_journal(graph: World, pid: int) -> None:
    put(graph, pid, "writer")
    entry = graph.take_one()
    graph.queue.charge(entry.sched_id, {"tokens": 25}, token=entry.token)
    graph.clock.advance(1_000)
    graph.kernel.retention.prune(events_older_than_s=0, entries_older_than_s=10**6)
    check_replay(graph)
    assert used(graph) == {"": 25, "writer": 25}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"limit": -1}, "limit"),
        ({"limit": 1.5}, "limit"),
        ({"limit": True}, "limit"),
        ({"dim": ""}, "dim"),
        ({"run_id": "other"}, "no graph run"),
        ({"node": 7}, "node"),
    ],
)
def test_a_budget_that_is_none_is_refused(graph: World, change: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"run_id": RUN, "dim": "tokens", "limit": 5, **change}
    before = graph.everything()
    with pytest.raises(LedgerInvalidAmount, match=words):
        graph.ledger.set_graph_budget(**given)
    assert graph.everything() == before


def test_an_account_must_be_one_that_the_run_may_use(graph: World) -> None:
    with pytest.raises(SchedInvalidPayload, match="account"):
        graph.put(1, account="report-1")
    with pytest.raises(SchedInvalidPayload, match="on_over"):
        graph.put(1, account=GraphAccount(RUN, "a", "explode"))  # type: ignore[arg-type]
    graph.projects.create("wall")
    stranger = graph.agent("stranger", project_id="wall")
    with pytest.raises(LedgerInvalidAmount, match="may not use this agent"):
        put(graph, stranger, "writer")

"""Agents: creating, moving, terminating, pausing and recovering them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.errors import IllegalTransition, InvalidPayload, ProjectUnknown, RotaError, UnknownPid
from rota.kernel import ScheduleSpec
from rota.kernel.entries import BATCH_MAX
from rota.model.events import ProcessRecovered, ProcessTerminated, ProcessTransitioned, ProcessUpdated
from rota.model.work import Agent, Intent
from rota.store import Statement
from tests.kernel.world import START, World
from tests.store.world import Caller

STATES = ("READY", "RUNNING", "WAITING", "SUSPENDED", "DEAD")
LEGAL = {
    "READY": {"RUNNING", "DEAD"},
    "RUNNING": {"WAITING", "SUSPENDED", "DEAD"},
    "WAITING": {"RUNNING", "SUSPENDED", "DEAD"},
    "SUSPENDED": {"READY", "DEAD"},
    "DEAD": set(),
}
WAY_TO = {
    "READY": [],
    "RUNNING": ["RUNNING"],
    "WAITING": ["RUNNING", "WAITING"],
    "SUSPENDED": ["RUNNING", "SUSPENDED"],
    "DEAD": ["DEAD"],
}


def agent_in(world: World, state: str) -> int:
    pid = world.agent()
    for step in WAY_TO[state]:
        world.agents.transition(pid, step)
    return pid


# --- creating ------------------------------------------------------------------------------------


def test_an_agent_has_the_fourteen_fields_of_a_process_first() -> None:
    assert Agent.__struct_fields__[:14] == (
        "pid",
        "parent_pid",
        "name",
        "template",
        "state",
        "state_reason",
        "created_at",
        "updated_at",
        "started_at",
        "ended_at",
        "exit_kind",
        "exit_detail",
        "metadata",
        "last_event_id",
    )


def test_a_new_agent_is_ready_and_its_making_is_on_record(world: World) -> None:
    parent = world.agent("parent")
    pid = world.agents.create("child", "research", parent_pid=parent, metadata={"team": ["a", 1, None]})
    agent = world.agents.get(pid)
    assert (agent.pid, agent.parent_pid, agent.name, agent.template) == (pid, parent, "child", "research")
    assert (agent.state, agent.created_at, agent.started_at, agent.ended_at) == ("READY", START, None, None)
    assert (agent.metadata, agent.exit_kind, agent.exit_detail) == ({"team": ["a", 1, None]}, None, {})
    event = world.events()[-1]
    assert (event.kind, event.pid, event.event_id) == ("kernel.process.created", pid, agent.last_event_id)
    assert event.payload == {"name": "child", "template": "research", "parent_pid": parent}


def test_names_need_not_be_unique_and_finding_one_gives_the_living_youngest_first(world: World) -> None:
    first, second, third = (world.agent("twin") for _ in range(3))
    world.agent("other")
    world.kernel.terminate(second, "failed")
    assert [agent.pid for agent in world.agents.find("twin")] == [third, first]
    assert world.agents.find("unknown") == []


def test_a_unique_name_is_given_to_one_living_agent(world: World) -> None:
    first = world.agents.create("reader", unique=True, priority=3)
    cursor = world.journal.cursor()
    assert world.agents.create("reader", unique=True, priority=9) == first
    assert (world.agents.get(first).priority, world.journal.cursor()) == (3, cursor)
    world.kernel.terminate(first, "completed")
    assert world.agents.create("reader", unique=True) > first


def test_an_unknown_parent_or_project_makes_no_agent(world: World) -> None:
    before = world.everything()
    with pytest.raises(UnknownPid):
        world.agent(parent_pid=7)
    with pytest.raises(ProjectUnknown):
        world.agent(project_id="nowhere")
    assert world.everything() == before


def test_an_agent_has_the_settings_it_was_given(world: World) -> None:
    world.projects.create("lab")
    pid = world.agent(project_id="lab", priority=-3, weight=2_500, intent="PROTECT", rerunnable=False, max_concurrent=0)
    agent = world.agents.get(pid)
    assert (agent.project_id, agent.priority, agent.weight, agent.intent) == ("lab", -3, 2_500, Intent.PROTECT)
    assert (agent.rerunnable, agent.max_concurrent, agent.paused_by) == (False, 0, None)


@pytest.mark.only_on("file", reason="on PostgreSQL no agent's row is ever deleted")
def test_a_pid_is_never_given_twice_also_after_the_file_was_opened_again(tmp_path: Path) -> None:
    world = World(str(tmp_path / "rota.db"))
    pids = [world.agent() for _ in range(3)]
    purge = Statement("test", "As a purge would.", f"DELETE FROM agent_processes WHERE pid = {pids[-1]}")
    world.store.write(lambda tx: tx.run(purge))
    world.close()
    again = World(str(tmp_path / "rota.db"))
    assert again.agent() == pids[-1] + 1
    assert again.kernel.info()["next_pid"] == pids[-1] + 2
    again.close()


# --- moving --------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", STATES)
@pytest.mark.parametrize("target", STATES)
def test_every_pair_of_states_is_an_arrow_or_is_refused_without_a_trace(world: World, source: str, target: str) -> None:
    pid = agent_in(world, source)
    before = world.everything()
    if target in LEGAL[source]:
        assert world.agents.transition(pid, target, reason="because").state == target
        fact = world.facts()[-1]
        assert fact == ProcessTransitioned(prev_state=source, new_state=target, reason="because")
        return
    with pytest.raises(IllegalTransition) as caught:
        world.agents.transition(pid, target)
    assert caught.value.code == -32103
    assert (caught.value.state, set(caught.value.legal)) == (source, LEGAL[source])
    assert world.everything() == before


@given(st.lists(st.sampled_from(STATES), max_size=12))
def test_an_agent_only_makes_legal_transitions(targets: list[str]) -> None:
    world = World()
    pid, state = world.agent(), "READY"
    for wish in targets:
        if wish in LEGAL[state]:
            world.agents.transition(pid, wish)
            state = wish
        else:
            with pytest.raises(IllegalTransition):
                world.agents.transition(pid, wish)
        assert world.agents.get(pid).state == state
    moves = [fact for fact in world.facts() if isinstance(fact, ProcessTransitioned)]
    assert [move.prev_state for move in moves[1:]] == [move.new_state for move in moves[:-1]]
    world.close()


def test_started_at_is_the_first_run_and_ended_at_the_end(world: World) -> None:
    pid = world.agent()
    for state in ("RUNNING", "SUSPENDED", "READY", "RUNNING"):
        world.clock.advance(10)
        world.agents.transition(pid, state)
    agent = world.agents.get(pid)
    assert (agent.started_at, agent.ended_at, agent.updated_at) == (START + 10, None, START + 40)
    world.clock.advance(10)
    world.agents.transition(pid, "DEAD", reason="retired")
    agent = world.agents.get(pid)
    assert (agent.ended_at, agent.exit_kind, agent.state_reason) == (START + 50, None, "retired")


def test_a_transition_may_name_the_state_it_expects(world: World) -> None:
    pid = world.agent()
    before = world.everything()
    with pytest.raises(IllegalTransition) as caught:
        world.agents.transition(pid, "RUNNING", expect="SUSPENDED")
    assert caught.value.state == "READY"
    assert world.everything() == before
    assert world.agents.transition(pid, "RUNNING", expect="READY").state == "RUNNING"


def test_a_rerunnable_agent_runs_again_and_again_under_one_pid(world: World) -> None:
    pid = world.agent()
    for n in range(3):
        sched_id = world.put(pid, payload={"n": n})
        entry = world.take_one()
        world.agents.transition(pid, "RUNNING")
        world.queue.complete(sched_id, "completed", token=entry.token)
        world.agents.transition(pid, "SUSPENDED")
        world.agents.transition(pid, "READY")
    assert world.agents.get(pid).state == "READY"
    assert world.queue.list(state="completed", pid=pid)[1] == 3


def test_of_many_concurrent_moves_of_one_agent_exactly_one_succeeds(world: World, pid: int) -> None:
    together = threading.Barrier(8)

    def move() -> bool:
        together.wait(60)
        try:
            world.agents.transition(pid, "RUNNING", expect="READY")
        except IllegalTransition:
            return False
        return True

    callers = [Caller(move) for _ in range(8)]
    assert sum(caller.outcome() for caller in callers) == 1
    assert sum(isinstance(fact, ProcessTransitioned) for fact in world.facts()) == 1


# --- terminating ---------------------------------------------------------------------------------


@pytest.mark.parametrize("exit_kind", ["completed", "cancelled", "failed", "crashed"])
@pytest.mark.parametrize("state", STATES[:4])
def test_a_living_agent_can_be_terminated_once(world: World, state: str, exit_kind: str) -> None:
    pid = agent_in(world, state)
    agent = world.kernel.terminate(pid, exit_kind, {"code": 1})
    assert (agent.state, agent.exit_kind, agent.exit_detail, agent.ended_at) == ("DEAD", exit_kind, {"code": 1}, START)
    assert ProcessTerminated(prev_state=state, exit_kind=exit_kind, detail={"code": 1}) in world.facts()
    before = world.everything()
    with pytest.raises(IllegalTransition):
        world.kernel.terminate(pid, exit_kind)
    assert world.everything() == before


def test_terminating_cancels_what_waits_and_leaves_what_runs(world: World) -> None:
    pid, other = world.agent(), world.agent()
    running = world.put(pid, priority=9)
    world.take(1)
    waiting = [world.put(pid), world.put(pid, runnable_at=START + 50), world.put(pid, after=(running,))]
    foreign = world.put(other)
    world.kernel.terminate(pid, "cancelled")
    assert [world.state(each) for each in waiting] == ["cancelled"] * 3
    assert (world.state(running), world.state(foreign)) == ("dispatched", "queued")
    assert world.queue.get(waiting[0]).outcome == "owner_terminated"
    assert world.queue.complete(running, "cancelled") == ("dispatched", "completed")


def test_terminating_may_keep_what_waits(world: World) -> None:
    pid = world.agent()
    waiting = world.put(pid)
    world.kernel.terminate(pid, "completed", queued="keep")
    assert world.state(waiting) == "queued"


@pytest.mark.parametrize(
    "call",
    [
        lambda world, pid: world.kernel.terminate(pid, "exploded"),
        lambda world, pid: world.kernel.terminate(pid, "failed", {"not": object()}),
        lambda world, pid: world.kernel.terminate(pid, "failed", queued="perhaps"),
    ],
)
def test_an_invalid_exit_terminates_nothing(world: World, call: Callable[[World, int], object]) -> None:
    pid = world.agent()
    world.put(pid)
    before = world.everything()
    with pytest.raises(InvalidPayload):
        call(world, pid)
    assert world.everything() == before


# --- settings and pauses -------------------------------------------------------------------------


def test_settings_can_be_changed_and_the_change_is_on_record(world: World) -> None:
    pid = world.agent(metadata={"a": 1})
    agent = world.agents.update(pid, weight=3_000, priority=4, max_concurrent=2, intent=Intent.DISCOVER)
    assert (agent.weight, agent.priority, agent.max_concurrent, agent.intent) == (3_000, 4, 2, Intent.DISCOVER)
    assert (agent.metadata, agent.name) == ({"a": 1}, "agent")
    fact = world.facts()[-1]
    assert isinstance(fact, ProcessUpdated)
    assert fact.changes == {"weight": 3_000, "priority": 4, "max_concurrent": 2, "intent": "DISCOVER"}
    assert world.agents.update(pid, max_concurrent=None, metadata={}).max_concurrent is None


def test_a_setting_that_is_not_one_or_is_wrong_changes_nothing(world: World) -> None:
    pid = world.agent()
    before = world.everything()
    for changes in ({"name": "x"}, {"state": "DEAD"}, {"weight": 0}, {"intent": "EAT"}, {"max_concurrent": -1}):
        with pytest.raises(InvalidPayload):
            world.agents.update(pid, **changes)
    assert world.everything() == before


def test_a_paused_agent_keeps_its_state_and_its_runs_and_gets_no_new_ones(world: World) -> None:
    pid, other = world.agent(), world.agent()
    running, waiting = world.put(pid, priority=9), world.put(pid, priority=5)
    foreign = world.put(other)
    token = world.take(1)[0].token
    world.agents.pause(pid, "anna", "too loud")
    agent = world.agents.get(pid)
    assert (agent.state, agent.paused_by) == ("READY", "anna")
    assert world.take_ids() == [foreign]
    assert token is not None
    world.queue.heartbeat(running, token)
    assert world.queue.complete(running, "completed", token=token) == ("dispatched", "completed")
    world.agents.resume(pid, "bert")
    assert world.agents.get(pid).paused_by is None
    assert world.take_ids() == [waiting]
    kinds = [event.kind for event in world.events() if event.kind.startswith("kernel.pause")]
    assert kinds == ["kernel.pause.set", "kernel.pause.lifted"]


# --- recovery ------------------------------------------------------------------------------------


def _one_in_each_state(world: World) -> dict[str, int]:
    return {state: agent_in(world, state) for state in STATES}


@pytest.mark.parametrize(
    ("policy", "state", "exit_kind"), [("mark-suspended", "SUSPENDED", None), ("mark-dead", "DEAD", "crashed")]
)
def test_recovery_moves_only_running_and_waiting_agents(
    world: World, policy: Any, state: str, exit_kind: str | None
) -> None:
    pids = _one_in_each_state(world)
    cursor = world.journal.cursor()
    others = [world.agents.get(pids[each]) for each in ("READY", "SUSPENDED", "DEAD")]
    assert world.agents.recover(policy) == [pids["RUNNING"], pids["WAITING"]]
    for was in ("RUNNING", "WAITING"):
        agent = world.agents.get(pids[was])
        assert (agent.state, agent.exit_kind, agent.state_reason) == (state, exit_kind, "daemon_restart")
    assert [world.agents.get(pids[each]) for each in ("READY", "SUSPENDED", "DEAD")] == others
    assert world.facts(cursor) == [
        ProcessRecovered(prev_state=was, new_state=state, policy=policy, reason="daemon_restart")
        for was in ("RUNNING", "WAITING")
    ]


def test_recovery_is_idempotent_and_the_default_suspends(world: World) -> None:
    pids = _one_in_each_state(world)
    assert len(world.agents.recover()) == 2
    assert world.agents.get(pids["RUNNING"]).state == "SUSPENDED"
    before = world.everything()
    assert world.agents.recover() == []
    assert world.everything() == before


def test_an_unknown_recovery_is_refused(world: World) -> None:
    pids = _one_in_each_state(world)
    with pytest.raises(InvalidPayload):
        world.agents.recover("forget")  # type: ignore[arg-type]
    assert world.agents.get(pids["RUNNING"]).state == "RUNNING"


# --- looking -------------------------------------------------------------------------------------


def test_listing_gives_a_page_and_how_many_there_are(world: World) -> None:
    world.projects.create("lab")
    pids = [world.agent(project_id="lab" if n % 2 else None) for n in range(6)]
    world.kernel.terminate(pids[0], "completed")
    page, total = world.agents.list(limit=2, offset=1)
    assert ([agent.pid for agent in page], total) == (pids[1:3], 6)
    dead, total = world.agents.list(state="DEAD")
    assert ([agent.pid for agent in dead], total) == (pids[:1], 1)
    lab, total = world.agents.list(project_id="lab", state="READY")
    assert ([agent.pid for agent in lab], total) == (pids[1::2], 3)


@pytest.mark.parametrize(("limit", "count"), [(0, 100), (-5, 100), ("x", 100), (True, 100), (None, 100), (120, 103)])
def test_a_bad_page_is_the_default_page(world: World, limit: Any, count: int) -> None:
    for _ in range(103):
        world.agent()
    page, total = world.agents.list(limit=limit, offset=-1)
    assert (len(page), total) == (count, 103)


def test_info_counts(world: World) -> None:
    _one_in_each_state(world)
    info = world.kernel.info()
    assert info["agent_count"] == 5
    assert info["live_states"] == {"READY": 1, "RUNNING": 1, "WAITING": 1, "SUSPENDED": 1}
    assert info["next_pid"] == 6
    assert (info["event_count"], info["next_event_id"]) == (len(world.events()), world.journal.cursor() + 1)


def test_the_last_event_of_an_agent_is_the_one_its_row_names(world: World) -> None:
    pid = world.agent()
    verbs: list[Callable[[], object]] = [
        lambda: world.agents.transition(pid, "RUNNING"),
        lambda: world.agents.update(pid, weight=5),
        lambda: world.agents.pause(pid, "anna"),
        lambda: world.agents.resume(pid, "anna"),
        lambda: world.journal.append(pid, "mine.note"),
        world.agents.recover,
        lambda: world.kernel.terminate(pid, "completed"),
    ]
    for verb in verbs:
        world.clock.advance(1)
        verb()
        agent = world.agents.get(pid)
        last = world.journal.tail(0, 1_000, pid=pid)[-1]
        assert (agent.last_event_id, agent.updated_at) == (last.event_id, world.now), last.kind


def test_priority_of_an_agent_is_its_own_and_entries_keep_theirs(world: World) -> None:
    loud, quiet = world.agent(priority=9), world.agent()
    first, second = world.put(quiet, priority=1), world.put(loud)
    assert world.take_ids() == [first, second]  # strict order goes by the entry


# --- queued entries of an agent that ends --------------------------------------------------------

ENDS: dict[str, Callable[..., object]] = {
    "terminate": lambda world, pid, **how: world.kernel.terminate(pid, "completed", **how),
    "transition": lambda world, pid, **how: world.agents.transition(pid, "DEAD", **how),
}


@pytest.mark.parametrize("verb", ENDS)
def test_an_agent_that_ends_by_any_verb_has_its_queued_entries_cancelled(world: World, verb: str) -> None:
    pid, other = world.agent(), world.agent("other")
    running, waits = world.put(pid), world.put(other)
    world.take(1)
    queued = world.queue.enqueue_many([ScheduleSpec(pid)] * (BATCH_MAX + 5))  # more than one batch
    after = world.put(other, after=(queued[0],))
    ENDS[verb](world, pid)
    assert world.agents.get(pid).state == "DEAD"
    assert {world.state(sched_id) for sched_id in queued} == {"cancelled"}
    assert (world.state(running), world.state(waits), world.state(after)) == ("dispatched", "queued", "cancelled")
    cancelled = [event for event in world.events() if event.kind == "kernel.sched.cancelled"]
    assert cancelled[0].payload["reason"] == "owner_terminated"


@pytest.mark.parametrize("verb", ENDS)
def test_an_agent_that_ends_by_any_verb_may_keep_its_queued_entries(world: World, verb: str) -> None:
    pid = world.agent()
    queued = world.put(pid)
    ENDS[verb](world, pid, queued="keep")
    assert world.state(queued) == "queued"
    assert world.take_ids() == [queued]  # as in the first kernel
    with pytest.raises(RotaError, match="queued must be"):
        ENDS[verb](world, world.agent(), queued="burn")


def test_agents_that_a_recovery_marks_dead_have_their_queued_entries_cancelled(world: World) -> None:
    dead, other = world.agent(), world.agent("other")
    world.agents.transition(dead, "RUNNING")
    ids = world.put(dead), world.put(other)
    assert world.agents.recover("mark-dead") == [dead]
    assert [world.state(sched_id) for sched_id in ids] == ["cancelled", "queued"]


def test_agents_are_listed_by_their_parent(world: World) -> None:
    root = world.agent("root")
    children = [world.agent("child", parent_pid=root) for _ in range(3)]
    grandchild = world.agent("grandchild", parent_pid=children[0])
    world.agents.transition(children[1], "RUNNING")
    found, total = world.agents.list(parent_pid=root, limit=2)
    assert ([agent.pid for agent in found], total) == (children[:2], 3)
    assert [agent.pid for agent in world.agents.list(parent_pid=root, state="RUNNING")[0]] == [children[1]]
    assert [agent.pid for agent in world.agents.list(parent_pid=children[0])[0]] == [grandchild]
    assert world.agents.list(parent_pid=grandchild) == ([], 0)
    with pytest.raises(InvalidPayload, match="parent_pid"):
        world.agents.list(parent_pid="1")  # type: ignore[arg-type]

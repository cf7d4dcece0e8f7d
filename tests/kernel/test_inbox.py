"""The inbox: rows that programs added in transactions of their own become entries with the next claim, each once."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from rota.errors import SchedAdmissionDenied, SchedInvalidPayload, StoreCorrupt
from rota.kernel import KernelState, ReadyEntry
from rota.kernel.inbox import INBOX, TAKE_MAX, UNDONE_MAX
from rota.model.agent_metadata import SETTINGS_KEY
from rota.model.agent_settings import AgentSettings
from rota.service.dispatcher import Dispatcher
from rota.store import Statement
from tests.kernel.world import World

ADD = Statement(
    "test_inbox_add",
    "A row, as the schema's function adds it.",
    "INSERT INTO enqueue_inbox (agent, payload, options, author, created_at) VALUES (?, ?, ?, ?, ?)",
)


def add(world: World, *agents: str, payload: Any = None, author: str = "role:shop", **options: Any) -> None:
    """Add rows to the inbox."""
    body = payload if isinstance(payload, str) else json.dumps(payload or {})
    rows = [(agent, body, json.dumps(options), author, world.now) for agent in agents]
    world.store.write(lambda tx: tx.run_many(ADD, rows))
    world.kernel.env.cache.invalidate()  # as after a commit of another process, which the program is


def left(world: World) -> int:
    return int(world.rows("SELECT count(*) FROM enqueue_inbox")[0][0])


def entries(world: World) -> list[ReadyEntry]:
    return sorted(world.queue.list(limit=1_000)[0], key=lambda entry: entry.sched_id)


def journal_gives_tables(world: World) -> bool:
    return world.store.read(lambda tx: KernelState.from_tables(tx) == KernelState.from_journal(tx))


def test_a_row_becomes_an_entry_of_the_next_claim_by_any_policy(api: Dispatcher, world: World) -> None:
    world.agent("reader")
    add(world, "reader", payload={"page": 7}, priority=5, tags=["night"], max_attempts=2)
    (entry,) = api.claim("worker")
    assert (entry.payload, entry.priority, entry.tags, entry.max_attempts) == ({"page": 7}, 5, ("night",), 2)
    assert entry.trigger == INBOX
    assert left(world) == 0
    assert api.claim("worker") == []
    assert journal_gives_tables(world)


@pytest.mark.parametrize("first", ["nobody", "writer"])
def test_a_claim_looks_behind_what_one_transaction_takes_in(api: Dispatcher, world: World, first: str) -> None:
    """The rows in front become entries that failed, or that this worker does not run."""
    world.agent("reader")
    writer = world.agent("writer")
    add(world, *[first] * (TAKE_MAX + 50), "reader")
    (entry,) = api.claim("worker", except_agents=(writer,))
    assert entry.trigger == INBOX
    assert left(world) == 0
    add(world, *[first] * (TAKE_MAX + 50), "reader")
    assert len(api.turn([], "worker", except_agents=(writer,)).entries) == 1
    assert journal_gives_tables(world)


def test_a_row_names_its_agent_by_name_or_pid_and_by_project_where_names_repeat(world: World) -> None:
    world.projects.create("docs")
    pids = [world.agent("reader"), world.agent("reader", project_id="docs")]
    add(world, str(pids[0]))
    add(world, "reader", project="docs")
    assert [entry.pid for entry in world.take(10)] == pids
    add(world, "reader")
    world.take()
    assert "2 agents are named 'reader'" in entries(world)[-1].result["error"]


def test_the_author_is_the_role_that_called(world: World) -> None:
    world.agent("reader")
    add(world, "reader", "reader", author="role:shop")
    add(world, "reader", author="role:mail")
    since = world.journal.cursor()
    world.take(10)
    found = [(event.author, event.payload.get("count", 1)) for event in world.events(since) if "enqueued" in event.kind]
    assert found == [("role:shop", 2), ("role:mail", 1)]


def test_what_the_agents_settings_say_holds(world: World) -> None:
    settings = AgentSettings(function="m:f", payload={"tone": "calm"}, max_attempts=7)
    world.agent("reader", metadata={SETTINGS_KEY: msgspec.to_builtins(settings)}, priority=3)
    add(world, "reader", payload={"page": 1})
    entry = world.take_one()
    assert (entry.priority, entry.max_attempts, entry.payload) == (3, 7, {"tone": "calm", "page": 1})


def test_a_key_makes_one_entry_of_several_rows_and_calls(world: World) -> None:
    pid = world.agent("reader")
    first = world.put(pid, key="order-1")
    add(world, "reader", key="order-1")
    add(world, "reader", "reader", key="order-2")
    assert len(world.take(10)) == 2
    assert [entry.key for entry in entries(world)] == ["order-1", "order-2"]
    assert entries(world)[0].sched_id == first


def test_a_delay_counts_from_the_call(world: World) -> None:
    world.agent("reader")
    add(world, "reader", delay_s=60)
    world.clock.advance(50)
    assert world.take() == []
    world.clock.advance(11)
    assert len(world.take()) == 1


def test_caps_and_budgets_hold_for_it(world: World) -> None:
    world.agent("reader", max_concurrent=2)
    add(world, *["reader"] * 5)
    assert len(world.take(10)) == 2


# each is refused at another place
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"payload": "[1]"}, "payload must be a JSON object"),
    ({"payload": '{"a": "' + "x" * 300_000 + '"}'}, "payload"),
    ({"prio": 1}, "prio"),
    ({"priority": "high"}, "priority"),
    ({"pid": 1}, "must not have pid"),
    ({"account": {"run_id": "r"}}, "must not have account"),
    ({"after": [99]}, "99"),
    ({"draws_on": ["nothing"]}, "nothing"),
    ({"parent_id": 99}, "99"),
    ({"deadline": 5.0, "runnable_at": 6.0}, "deadline"),
    ({"key": ""}, "key"),
    ({"project": 5}, "project"),
    ({"project": "other"}, "no live agent is named 'reader' in project 'other'"),
]


def test_what_is_refused_is_a_failed_entry_with_its_reason(world: World) -> None:
    world.agent("reader")
    for number, (row, reason) in enumerate(REFUSED):
        add(world, "reader", **row)
        assert world.take() == []
        entry = entries(world)[number]
        assert (entry.status, entry.outcome) == ("failed", "refused"), row
        assert reason in entry.result["error"]
        assert SchedInvalidPayload.hint not in entry.result["error"], "nobody can call again"
    assert left(world) == 0
    assert journal_gives_tables(world)


def test_a_refused_row_belongs_to_its_agent_or_to_the_inbox(world: World) -> None:
    pid, dead = world.agent("reader"), world.agent("gone")
    world.kernel.terminate(dead, "completed")
    add(world, "reader", prio=1)
    add(world, "nobody", str(dead), "9" * 400)
    world.take()
    inbox = world.agents.find(INBOX)[0].pid
    assert [entry.pid for entry in entries(world)] == [pid, inbox, inbox, inbox]
    assert {entry.status for entry in entries(world)} == {"failed"}
    assert journal_gives_tables(world)


def test_a_wall_holds_for_what_an_entry_names(world: World) -> None:
    world.projects.create("lab")
    world.projects.create("shop")
    secret = world.put(world.agent("coder", project_id="lab"))
    world.agent("reader", project_id="shop")
    add(world, "reader", after=[secret])
    add(world, "reader", parent_id=secret)
    assert [entry.sched_id for entry in world.take(10)] == [secret]
    assert [entry.outcome for entry in entries(world)] == [None, "refused", "refused"]


def test_good_rows_beside_refused_ones_are_enqueued(world: World) -> None:
    world.agent("reader")
    for number in range(6):
        add(world, "reader" if number % 2 else "nobody", payload={"number": number})
    assert sorted(entry.payload["number"] for entry in world.take(10)) == [1, 3, 5]
    assert len(entries(world)) == 6


def test_one_claim_takes_in_a_bounded_number_and_the_next_ones_the_others(world: World) -> None:
    world.agent("reader")
    add(world, *["reader"] * (TAKE_MAX + 1))
    assert len(world.take(1)) == 1
    assert left(world) == 1
    assert len(world.take(1_000)) == TAKE_MAX
    assert left(world) == 0


def test_a_waiting_claim_is_served_by_the_call_that_sees_the_row(world: World) -> None:
    world.agent("reader")
    waiter = world.waiter()
    add(world, "reader")
    world.queue.upkeep()
    assert len(waiter.outcome()) == 1


def test_a_row_that_cannot_be_written_fails_a_bounded_number_of_claims(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a fault in rota itself would be: the claims that meet it fail, then it is refused and the others go on."""
    world.agent("reader")
    breaker = world.agent("breaker")
    add(world, *["reader"] * 9, "breaker", *["reader"] * 9)
    enqueue = world.queue.enqueue_each_in

    def failing(tx: Any, specs: Any, now: float) -> Any:
        if any(spec.pid == breaker for spec in specs):
            raise StoreCorrupt("as a fault would be")
        return enqueue(tx, specs, now)

    monkeypatch.setattr(world.queue, "enqueue_each_in", failing)
    failed, claimed = 0, 0
    while left(world):
        try:
            claimed += len(world.take(100))
        except StoreCorrupt:
            failed += 1
        assert failed < UNDONE_MAX * 6
    assert claimed == 18
    assert [entry.outcome for entry in entries(world) if entry.outcome] == ["refused"]


def test_heartbeats_extend_claims_while_what_is_due_cannot_be_done(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pid = world.agent("reader")
    run = world.put(pid)
    token = world.take_one(claim_timeout_s=60).token or 0
    add(world, "reader")

    def failing(*_: object) -> None:
        raise StoreCorrupt("as a fault would be")

    with monkeypatch.context() as patched:
        patched.setattr(world.queue, "enqueue_each_in", failing)
        for _ in range(3):
            world.clock.advance(50)
            assert world.queue.heartbeat(run, token).claim_expires_at == world.now + 60
    assert (world.state(run), left(world)) == ("dispatched", 1)
    assert caplog.text.count("as a fault would be") == 1
    world.queue.heartbeat(run, token)
    assert left(world) == 0


def test_claims_by_force_that_are_denied_leave_the_rows_to_the_next_claim(world: World) -> None:
    """Their transactions are undone, and not because of a row."""
    pid = world.agent("reader")
    held = world.put(pid, delay_s=60)
    add(world, "reader")
    for _ in range(UNDONE_MAX + 1):
        with pytest.raises(SchedAdmissionDenied):
            world.queue.force_claim(held, worker_id="operator")
    assert [entry.trigger for entry in world.take(10)] == [INBOX]


def test_rows_are_removed_in_the_transaction_that_enqueues_them(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.agent("reader")
    add(world, "reader")

    class Stopped(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stopped

    with monkeypatch.context() as patched:
        patched.setattr("rota.kernel.claim_pass.ClaimPass.write", stop)
        with pytest.raises(Stopped):
            world.take()
    assert (left(world), entries(world)) == (1, [])
    assert len(world.take()) == 1
    assert left(world) == 0

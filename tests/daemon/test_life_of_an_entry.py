"""The life of an entry through a daemon, over both transports."""

from __future__ import annotations

import threading

import pytest

from rota.errors import (
    LedgerUnknownDim,
    ProjectExists,
    SchedAdmissionDenied,
    SchedIllegalTransition,
    SchedInvalidPayload,
    SchedInvalidStateFilter,
    SchedUnknownId,
    StaleClaim,
    UnknownPid,
    WaitTimeout,
)
from rota.kernel import Completion, EntryFilter, ScheduleSpec
from rota.rpc import Client
from tests.daemon.harness import Served


def test_an_entry_goes_all_the_way(client: Client) -> None:
    pid = client.create_agent("reader", "callable")
    sched_id = client.enqueue(ScheduleSpec(pid, 5, payload={"url": "x"}))
    (entry,) = client.claim("worker", wait_s=1.0)
    assert (entry.sched_id, entry.pid, entry.priority, entry.payload) == (sched_id, pid, 5, {"url": "x"})
    assert entry.state == "dispatched"
    assert entry.worker_id == "worker"
    assert entry.token is not None
    assert not client.heartbeat(sched_id, entry.token).cancel_requested
    assert client.complete(sched_id, "completed", token=entry.token, result={"n": 1}) == ("dispatched", "completed")
    ended = client.wait(sched_id, 1.0)
    assert (ended.state, ended.exit_kind, ended.result) == ("completed", "completed", {"n": 1})


def test_cancelled_and_expired_entries(client: Client) -> None:
    pid = client.create_agent("agent", "callable")
    waits = client.enqueue(ScheduleSpec(pid))
    assert client.queue.cancel(waits) == ("queued", "cancelled")
    late = client.enqueue(ScheduleSpec(pid, deadline=1.0))
    assert client.queue.gc_expired() == 1
    assert client.get(late).state == "expired"
    runs = client.enqueue(ScheduleSpec(pid))
    (entry,) = client.claim("worker")
    assert client.queue.request_cancel(runs) == "dispatched"
    assert entry.token is not None
    assert client.heartbeat(runs, entry.token).cancel_requested
    client.queue.put_back(runs, token=entry.token)
    assert client.get(runs).exit_kind == "cancelled"


def test_complete_and_claim_in_one_call(client: Client) -> None:
    pid = client.create_agent("agent", "callable")
    first, second = client.enqueue_many([ScheduleSpec(pid), ScheduleSpec(pid)])
    (entry,) = client.claim("worker")
    turnover = client.complete_and_claim([Completion(first, "completed", entry.token)], "worker")
    assert turnover.answers == [("dispatched", "completed")]
    assert [entry.sched_id for entry in turnover.entries] == [second]
    lost = client.complete_many([Completion(second, "completed", 1), Completion(99, "completed")])
    assert [type(answer) for answer in lost] == [StaleClaim, SchedUnknownId]


def test_agents_budgets_projects_and_events(client: Client) -> None:
    client.projects.create("alpha", weight=2_000)
    pid = client.agents.create("agent", project_id="alpha")
    assert client.agents.transition(pid, "RUNNING", reason="test").state == "RUNNING"
    assert [agent.pid for agent in client.agents.find("agent")] == [pid]
    client.ledger.create(pid, {"tokens": 100})
    assert client.ledger.charge(pid, "tokens", 120).first_breach
    assert client.ledger.check(pid, "tokens", 1).would_exceed
    client.ledger.set_budget("project", "alpha", "tokens", 1_000)
    assert [line.owner for line in client.ledger.budgets()] == ["alpha"]
    context = client.contexts.create(bound_to="name", bound_id="provider", budget=10, period_s=60)
    assert client.contexts.throttle("provider", 5.0) > 0
    assert client.contexts.get(context.context_id).bound_id == "provider"
    event_id = client.journal.append(pid, "note", {"a": 1})
    assert client.journal.tail(event_id - 1)[0].payload == {"a": 1}
    assert client.projects.list()[0][0].weight == 2_000
    client.agents.pause(pid, "me", reason="test")
    assert client.agents.get(pid).paused_by == "me"
    assert client.terminate(pid, "completed").state == "DEAD"
    assert client.info()["agent_count"] == 1


def test_errors_are_those_of_the_embedded_kernel(client: Client) -> None:
    pid = client.create_agent("agent", "callable")
    sched_id = client.enqueue(ScheduleSpec(pid))
    with pytest.raises(UnknownPid) as unknown:
        client.enqueue(ScheduleSpec(99))
    assert unknown.value.data == {"pid": 99}
    assert str(unknown.value) == str(UnknownPid(99))
    with pytest.raises(SchedUnknownId):
        client.get(99)
    with pytest.raises(SchedIllegalTransition) as illegal:
        client.complete(sched_id, "completed")
    assert (illegal.value.prev_state, illegal.value.op) == ("queued", "complete")
    with pytest.raises(SchedInvalidStateFilter):
        client.queue.list(state="bogus")
    with pytest.raises(SchedInvalidPayload):
        client.claim("", 1)
    with pytest.raises(LedgerUnknownDim):
        client.ledger.charge(pid, "tokens", 1)
    client.projects.create("alpha")
    with pytest.raises(ProjectExists):
        client.projects.create("alpha")
    with pytest.raises(WaitTimeout, match=f"entry {sched_id} is still ready after 0.01 s"):
        client.wait(sched_id, 0.01)
    client.agents.pause(pid, "me")
    with pytest.raises(SchedAdmissionDenied) as denied:
        client.queue.force_claim(sched_id, worker_id="operator")
    assert denied.value.data["reasons"]


def test_cancel_where_and_retry_where(client: Client) -> None:
    pid = client.create_agent("agent", "callable")
    client.enqueue_many([ScheduleSpec(pid, trigger="cron")] * 3)
    assert client.queue.cancel_where(EntryFilter(trigger="cron")) == 3
    again = client.queue.retry_where(EntryFilter(state="cancelled"))
    assert sorted(again) == [1, 2, 3]
    entries, total = client.queue.list(state="queued")
    assert sorted(entry.sched_id for entry in entries) == sorted(again.values())
    assert total == 3
    assert client.queue.counts() == {"queued": 3, "cancelled": 3}
    assert client.queue.change(4, priority=9).priority == 9


def test_a_waiting_claim_returns_with_the_commit_that_enqueues(client: Client, served: Served) -> None:
    pid = client.create_agent("agent", "callable")
    got: list[int] = []
    with served.client() as other:
        waiter = threading.Thread(target=lambda: got.extend(e.sched_id for e in client.claim("worker", wait_s=60.0)))
        waiter.start()
        served.until_parked(1)
        sched_id = other.enqueue(ScheduleSpec(pid))
        waiter.join(30.0)
    assert got == [sched_id]


def test_a_claim_that_times_out_returns_nothing(client: Client) -> None:
    assert client.claim("worker", wait_s=0.05) == []
    turnover = client.complete_and_claim([], "worker", wait_s=0.05)
    assert turnover.entries == []


def test_completions_are_durable_before_the_claim_waits(client: Client, served: Served) -> None:
    pid = client.create_agent("agent", "callable")
    first = client.enqueue(ScheduleSpec(pid))
    (entry,) = client.claim("worker")
    got: list[int] = []

    def turn_over() -> None:
        turnover = client.complete_and_claim([Completion(first, "completed", entry.token)], "worker", wait_s=60.0)
        assert turnover.answers == [("dispatched", "completed")]
        got.extend(each.sched_id for each in turnover.entries)

    with served.client() as other:
        waiter = threading.Thread(target=turn_over)
        waiter.start()
        assert other.wait(first, 30.0).state == "completed"
        served.until_parked(1)
        second = other.enqueue(ScheduleSpec(pid))
        waiter.join(30.0)
    assert got == [second]


def test_wait_returns_when_the_entry_ends(client: Client, served: Served) -> None:
    pid = client.create_agent("agent", "callable")
    sched_id = client.enqueue(ScheduleSpec(pid))
    (entry,) = client.claim("worker")
    got: list[str] = []
    waiter = threading.Thread(target=lambda: got.append(client.wait(sched_id, 60.0).state))
    waiter.start()
    served.until_watched(sched_id)
    with served.client() as other:
        other.complete(sched_id, "completed", token=entry.token)
    waiter.join(30.0)
    assert got == ["completed"]


def test_the_journal_can_be_followed(client: Client) -> None:
    pid = client.create_agent("agent", "callable")
    since = client.journal.cursor()
    follower = client.journal.follow(since, wait_s=30.0)
    client.journal.append(pid, "one")
    assert next(follower).kind == "one"
    later = threading.Timer(0.0, lambda: client.journal.append(pid, "two"))
    later.start()
    assert next(follower).kind == "two"
    later.join()
    assert list(client.journal.follow(client.journal.cursor(), wait_s=0.01)) == []

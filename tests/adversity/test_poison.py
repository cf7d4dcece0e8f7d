"""One bad row never stops a fleet: what cannot be read or stored harms its own entry or agent, and the rest goes on."""

from __future__ import annotations

import contextlib
import json
import math
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rota import Rota, store
from rota.clock import ManualClock
from rota.errors import FleetInvalid, RotaError, SchedInvalidPayload, StoreCorrupt, StoreUnavailable
from rota.fleet import slot_loop
from rota.kernel import Kernel, RunReport, ScheduleSpec
from rota.model.checks import RESULT_BYTES_MAX
from rota.model.events import AgentQuarantined, RowUnreadable
from rota.model.work import ProjectConstraint, RestartPolicy
from rota.policy.registry import names
from rota.rpc import Client, connect
from rota.service import outages
from rota.service.dispatcher import Dispatcher
from rota.service.explanation import explain
from tests.adversity import poison_functions
from tests.adversity.conftest import Rounds
from tests.adversity.poison_world import PATIENCE_S, Background, damage, until
from tests.daemon.harness import Served, make_token, serving
from tests.fleet.support import FleetHarness
from tests.graph.test_fleet_lane import FleetWorld, chain, research

POLICIES = ("strict", "eevdf", "fair_share", "edf")
COMMAND = {"runner": "command", "argv": ["/bin/true"]}


@pytest.fixture
def rota() -> Iterator[Rota]:
    with Rota() as made:
        yield made


def events(rota: Rota, kind: str) -> list[dict[str, Any]]:
    return [event.payload for event in rota.api.journal.tail(kinds=(kind,))]


# --- plans -------------------------------------------------------------------------------------------

PLANS = {
    "not JSON": "{nonsense",
    "not an object": "[1, 2]",
    "not text": 7,
    "wrong type": json.dumps({"run": {"runner": 5}}),
    "settings are a list": json.dumps({"run": [1]}),
    "field of a newer version": json.dumps({"run": {**COMMAND, "gpu": 1}}),
    "no program": json.dumps({"run": {"runner": "command"}}),
    "limit out of range": json.dumps({"run": {**COMMAND, "limits": {"memory_bytes": 10**30}}}),
    "invalid environment": json.dumps({"run": {**COMMAND, "env": {"A": "\0"}}}),
    "deeply nested": '{"run":' + '{"payload":' * 2_000 + "1" + "}" * 2_001,
}


def test_agents_whose_plans_cannot_be_read_are_quarantined_and_the_fleet_goes_on(rota: Rota) -> None:
    @rota.agent()
    def good(number: int) -> int:
        return number

    bad = {name: rota.command(name, ["/bin/true"]) for name in PLANS}
    first = {name: agent.enqueue(priority=9) for name, agent in bad.items()}
    for name, plan in PLANS.items():
        damage(rota.kernel, "UPDATE agent_processes SET metadata = ? WHERE pid = ?", plan, bad[name].pid)
    jobs = good.enqueue_many([{"number": number} for number in range(3)])
    for _ in range(2):  # a restart of the supervisor changes nothing
        rota.run(until_idle=True)
    assert [job.result() for job in jobs] == [0, 1, 2]
    for name, job in first.items():
        assert (job.entry().state, job.entry().attempt) == ("queued", 0), name
        assert str(rota.api.agents.get(bad[name].pid).paused_by).startswith("quarantine: "), name
        why = explain(rota.api, job.sched_id)  # type: ignore[arg-type]  # embedded: a Dispatcher
        assert any("quarantine: " in reason.sentence() for reason in why.blocking), name
        assert any("settings" in each.words for each in why.changes), name
    alerts = rota.api.journal.tail(kinds=(AgentQuarantined.kind,))
    assert sorted(alert.pid or 0 for alert in alerts) == sorted(agent.pid for agent in bad.values())
    assert all(alert.payload["reason"] for alert in alerts)

    for name in PLANS:
        rota.command(name, ["/bin/true"])  # the program that registers it writes its plan again
    assert [rota.api.agents.get(agent.pid).paused_by for agent in bad.values()] == [None] * len(PLANS)
    damage(rota.kernel, "UPDATE agent_schedule_queue SET runnable_at = 0, hold = NULL WHERE state = 'queued'")
    rota.run(until_idle=True)
    assert {job.entry().exit_kind for job in first.values()} == {"completed"}


def test_a_plan_that_an_upgrade_makes_readable_runs_after_the_next_start(rota: Rota) -> None:
    bad = rota.command("bad", ["/bin/true"])
    bad.enqueue()
    damage(rota.kernel, "UPDATE agent_processes SET metadata = ?", json.dumps({"run": {**COMMAND, "gpu": 1}}))
    rota.run(until_idle=True)
    damage(rota.kernel, "UPDATE agent_processes SET metadata = ?", json.dumps({"run": COMMAND}))
    assert rota.api.agents.get(bad.pid).paused_by is not None
    rota.run(until_idle=True)
    assert rota.api.agents.get(bad.pid).paused_by is None


def test_a_change_of_another_field_does_not_replace_metadata_that_cannot_be_read(rota: Rota) -> None:
    bad = rota.command("bad", ["/bin/true"])
    damage(rota.kernel, "UPDATE agent_processes SET metadata = '{'")
    with pytest.raises(StoreCorrupt, match="metadata"):
        rota.api.agents.update(bad.pid, priority=3)
    assert damage(rota.kernel, "SELECT metadata FROM agent_processes") == [("{",)]


@pytest.mark.parametrize("transport", ["unix", "http"])
def test_plans_are_checked_when_they_are_written_over_the_wire(tmp_path: Path, transport: str) -> None:
    path = str(tmp_path / "rota.db")
    token = make_token(path, "operate")
    wrong = {"runner": {"runner": 5}, "gpu": {**COMMAND, "gpu": 1}, "argv": {"runner": "ndjson"}}
    with serving(path) as served, _client(served, transport, token) as client:
        for number, (field, settings) in enumerate(wrong.items()):
            with pytest.raises(FleetInvalid) as refused:
                client.agents.create("bad", metadata={"run": settings})
            assert refused.value.field == field
            pid = client.agents.create(f"fine {number}", metadata={"run": COMMAND})
            with pytest.raises(FleetInvalid) as refused:
                client.agents.update(pid, metadata={"run": settings})
            assert refused.value.field == field


def _client(served: Served, transport: str, token: str) -> Client:
    return served.client() if transport == "unix" else connect(served.url, token=token)


def test_an_end_of_a_quarantine_that_is_no_time_does_not_end_the_supervisor(rota: Rota) -> None:
    @rota.agent()
    def good() -> None: ...

    pid = rota.api.agents.create("held", metadata={"quarantined_until": "tomorrow"})
    rota.api.agents.pause(pid, "quarantine")
    job = good.enqueue()
    rota.run(until_idle=True)
    assert job.entry().exit_kind == "completed"


# --- notes -------------------------------------------------------------------------------------------

FLEET = "[agents.reader]\ncommand = 'ls'\ntriggers = [{every = '1m'}, {event = 'news.*'}]"


@pytest.mark.parametrize(
    "note",
    ["{", "[]", '{"heard": "x"}', '{"marks": 5}', '{"marks": {"reader:0": ["interval 60.0"]}}',
     '{"heard": 1000000000000}', '{"marks": {"reader:1": ["event news.*", 1e15]}}'],
)  # fmt: skip
def test_a_trigger_note_that_cannot_be_read_is_ignored_with_an_alert(tmp_path: Path, note: str) -> None:
    harness = FleetHarness(tmp_path)
    try:
        fleet = harness.fleet(FLEET)
        damage(harness.api, "INSERT INTO kernel_meta VALUES (?, ?)", f"note:triggers:{fleet.title}", note)
        triggers = harness.triggers(FLEET)
        (alert,) = [each for each in harness.kernel_events() if isinstance(each, RowUnreadable)]
        assert alert.key == f"note:triggers:{fleet.title}"
        harness.api.journal.append(None, "news.today")
        while more := harness.api.journal.tail(triggers.cursor):
            triggers.fire_for(more)
        assert [entry.trigger for entry in harness.entries("reader")] == ["event"]
        triggers.reload(fleet)  # the note was written again
        assert len([each for each in harness.kernel_events() if isinstance(each, RowUnreadable)]) == 1
    finally:
        harness.close()


# --- reports -----------------------------------------------------------------------------------------


def _yields(after_s: Any) -> Callable[[Any], Any]:
    return lambda ctx: ctx.yield_back(after_s)


def _fails_with_checkpoint(ctx: Any) -> None:
    ctx.checkpoint(text="x" * (RESULT_BYTES_MAX - 100))
    raise RuntimeError("y" * 10_000)


def _charges(**amounts: Any) -> Callable[[Any], Any]:
    return lambda ctx: ctx.charge(**amounts)


def _raises(problem: BaseException) -> Callable[[Any], Any]:
    def fail(_ctx: Any) -> None:
        raise problem

    return fail


ODD_RUNS: dict[str, Callable[[Any], Any]] = {
    "yield nan": _yields(math.nan),
    "yield inf": _yields(math.inf),
    "yield 1e300": _yields(1e300),
    "yield text": _yields("soon"),
    "checkpoint and error together too large": _fails_with_checkpoint,
    "result too large": lambda _ctx: "x" * (RESULT_BYTES_MAX + 1),
    "result not JSON": lambda _ctx: {"it": object()},
    "result with a lone surrogate": lambda _ctx: {"it": "\ud800"},
    "error with a lone surrogate": _raises(RuntimeError("\ud800\0")),
    "charge negative": _charges(tokens=-1),
    "charge fractional": _charges(tokens=1.5),
    "charge huge": _charges(tokens=10**30),
    "charge of many dimensions": _charges(**{f"dim{number}": 1 for number in range(2_000)}),
    "checkpoint not JSON": lambda ctx: ctx.checkpoint(it=object()),
    "log of anything": lambda ctx: ctx.log("\ud800\0\x1b[31m"),
    "exit": _raises(SystemExit(3)),
}


def _run_odd_and_even(rota: Rota) -> dict[str, Any]:
    """Run every odd function among ordinary ones in one supervisor; return the entries of the odd ones by name."""
    odd = {
        name: rota.agent(f"odd {number}", restart=RestartPolicy(when="never", quarantine_after=0))(function).enqueue()
        for number, (name, function) in enumerate(ODD_RUNS.items())
    }

    @rota.agent()
    def even(number: int) -> int:
        return number

    jobs = even.enqueue_many([{"number": number} for number in range(20)])
    rota.run(slots=4, until_idle=True)
    assert [job.result() for job in jobs] == list(range(20))
    return {name: job.entry() for name, job in odd.items()}


def _check_odd(ended: dict[str, Any]) -> None:
    fine = {"log of anything"}
    assert {name: entry.state for name, entry in ended.items()} == dict.fromkeys(ODD_RUNS, "completed")
    assert {name for name, entry in ended.items() if entry.exit_kind == "completed"} == fine
    assert ended["yield nan"].outcome == ended["yield 1e300"].outcome == "invalid_report"
    assert ended["result too large"].outcome == "result_too_large"
    kept = ended["checkpoint and error together too large"].result
    assert kept["type"] == "RuntimeError"
    assert kept["omitted"] == {"partial": RESULT_BYTES_MAX - 100 + len('{"text":""}')}


def test_each_report_of_a_function_stands_for_itself(rota: Rota) -> None:
    _check_odd(_run_odd_and_even(rota))


@pytest.mark.parametrize("transport", ["unix", "http"])
def test_each_report_stands_for_itself_at_a_daemon(tmp_path: Path, transport: str) -> None:
    path = str(tmp_path / "rota.db")
    token = make_token(path, "operate")
    with serving(path) as served:
        address = served.unix if transport == "unix" else served.url
        with Rota(address, token=token if transport == "http" else None) as remote:
            _check_odd(_run_odd_and_even(remote))


PROGRAMS = {
    "control characters": "import sys; sys.stdout.write('{\"text\": \"' + '\\\\u0001' * 40000 + '\", "
    "\"error\": \"' + '\\\\u0002' * 40000 + '\"}\\n' + '\\x01' * 9000)",
    "usage that is no amount": 'print(\'{"tokens": -5, "usage": {"total_tokens": 1e300}}\')',
    "not UTF-8": "import sys; sys.stdout.buffer.write(bytes(range(256)) * 100)",
}
MESSAGES = {
    "yield 1e300": [{"op": "ready"}, {"op": "yield", "after_s": 1e300}],
    "yield less than nothing": [{"op": "ready"}, {"op": "yield", "after_s": -1}, {"op": "exit"}],
    "result and checkpoint": [
        {"op": "ready"},
        {"op": "checkpoint", "state": {"text": "x" * 200_000}},
        {"op": "result", "value": "y" * 120_000},
        {"op": "exit", "exit_kind": "failed", "summary": "\x01" * 5_000},
    ],
    "charge": [{"op": "ready"}, {"op": "charge", "dim": "tokens", "amount": -3}, {"op": "exit"}],
    "garbage": ["\ud800", 5],
}


def test_what_a_program_prints_harms_only_its_own_run(rota: Rota, tmp_path: Path) -> None:
    once = RestartPolicy(when="never")
    jobs = []
    for name, code in PROGRAMS.items():
        argv = ["python3", "-c", code]
        jobs.append(rota.command(name, argv, usage="generic", restart=once).enqueue())
    for number, (name, messages) in enumerate(MESSAGES.items()):
        script = tmp_path / f"{number}.txt"
        script.write_text("".join(json.dumps(message) + "\n" for message in messages))
        argv = ["sh", "-c", f"read init; cat {script}; sleep 0.05"]
        jobs.append(rota.command(name, argv, ndjson=True, restart=once).enqueue())

    @rota.agent()
    def even(number: int) -> int:
        return number

    others = even.enqueue_many([{"number": number} for number in range(10)])
    running = Background(rota.supervisor(4))
    until(lambda: all(job.entry().state == "completed" for job in others))
    odd = {job.sched_id: job for job in jobs}
    yielding = jobs[len(PROGRAMS) + 1]  # it returns to the queue at once, again and again
    until(lambda: all(job.entry().state == "completed" for job in odd.values() if job is not yielding))
    yielding.cancel()
    running.stop()
    assert jobs[0].entry().exit_kind == "failed"
    assert jobs[len(PROGRAMS)].entry().outcome == "invalid_report"


def test_garbage_on_the_connection_of_a_worker_process_crashes_only_its_own_call(rota: Rota) -> None:
    once = RestartPolicy(when="never")
    odd = [
        rota.agent(isolation="process", restart=once)(function).enqueue()
        for function in (poison_functions.write_garbage, poison_functions.write_unpicklable)
    ]
    jobs = rota.agent(isolation="process")(poison_functions.even).enqueue_many([{"number": each} for each in range(6)])
    rota.run(slots=2, until_idle=True)
    assert [job.result() for job in jobs] == list(range(6))
    assert {job.entry().exit_kind for job in odd} == {"crashed"}


def test_a_report_that_is_refused_does_not_keep_the_others_of_its_turn_from_ending(rota: Rota) -> None:
    pid = rota.api.agents.create("agent")
    ids = [rota.api.queue.enqueue(ScheduleSpec(pid=pid, payload={})) for _ in range(6)]
    token = rota.api.claim("worker", 6)[0].token
    assert token is not None
    fields: list[dict[str, Any]] = [
        {}, {"back": "yield", "back_after_s": math.nan}, {"result": object()}, {"usage": {"tokens": 0.5, "calls": 2}},
        {"outcome": "x" * 999, "exit_kind": "failed"}, {"exit_kind": "odd"},
    ]  # fmt: skip
    reports = [RunReport(sched_id=each, token=token, **more) for each, more in zip(ids, fields, strict=True)]
    strangers: list[Any] = [RunReport(sched_id="x", token=token), "report"]  # type: ignore[arg-type]
    answers, _ = rota.api.turn([*reports, *strangers], "worker", 0)
    assert [isinstance(answer, SchedInvalidPayload) for answer in answers] == [False] * 6 + [True] * 2
    entries = [rota.api.queue.get(each) for each in ids]
    assert {entry.state for entry in entries} == {"completed"}
    assert [entry.exit_kind for entry in entries] == ["completed", "failed", "failed", "completed", "failed", "failed"]
    assert entries[2].outcome == "result_not_json"


def test_reports_that_are_too_large_for_one_request_are_sent_one_by_one(tmp_path: Path) -> None:
    with serving(str(tmp_path / "rota.db"), http=False) as served, Rota(served.unix) as remote:
        started: list[int] = []

        @remote.agent()
        def large(number: int) -> str:
            started.append(number)
            until(lambda: len(started) >= 24)  # so that all end together: 24 × 250 kB is more than a request may have
            return "x" * 250_000

        jobs = large.enqueue_many([{"number": number} for number in range(24)])
        assert remote.run(slots=24, until_idle=True).runs == 24
        assert {len(job.result()) for job in jobs} == {250_000}


# --- rows --------------------------------------------------------------------------------------------


UNREADABLE = (
    ("payload", "{"), ("payload", "[]"), ("payload", ""), ("payload", 7), ("payload", b"\xff\xfe"),
    ("needs", "{"), ("needs", "[]"), ("needs", '{"ceiling": 5}'), ("needs", b"\xff"),
    ("options", "{"), ("options", '{"tags": 5}'), ("options", '{"backoff": {"factor": 0}}'),
    ("result", "{"), ("result", ""),
)  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("column", "value"), UNREADABLE)
def test_a_claim_ends_an_entry_that_cannot_be_read_and_returns_the_next(policy: str, column: str, value: Any) -> None:
    with Rota(policy=policy) as rota:
        pid = rota.api.agents.create("agent")
        bad, fine = (rota.api.queue.enqueue(ScheduleSpec(pid=pid, priority=9 - each)) for each in range(2))
        child = rota.api.queue.enqueue(ScheduleSpec(pid=pid, after=(bad,), on_failed="run"))
        sql = f"UPDATE agent_schedule_queue SET {column} = CAST(? AS TEXT) WHERE sched_id = ?"
        damage(rota.kernel, sql, value, bad)
        assert [entry.sched_id for entry in rota.api.queue.peek(5)] == [fine]
        why = explain(rota.api, bad)  # type: ignore[arg-type]  # embedded: a Dispatcher
        assert [reason.sentence() for reason in why.blocking if column in reason.sentence()]
        assert [entry.sched_id for entry in rota.api.claim("worker")] == [fine]
        ended = rota.api.queue.get(bad)
        assert (ended.state, ended.exit_kind, ended.outcome) == ("completed", "failed", "unreadable")
        assert column in str(ended.unreadable if column != "result" else ended.result)
        assert [entry.sched_id for entry in rota.api.claim("worker")] == [child]
        assert rota.api.queue.list(pid=pid)[1] == 3


def test_a_plain_claim_of_the_queue_passes_over_many_entries_that_cannot_be_read(rota: Rota) -> None:
    pid = rota.api.agents.create("agent")
    ids = [rota.api.queue.enqueue(ScheduleSpec(pid=pid)) for _ in range(10)]
    damage(rota.kernel, "UPDATE agent_schedule_queue SET payload = '{' WHERE sched_id < ?", ids[-1])
    assert [entry.sched_id for entry in rota.api.queue.claim(worker_id="worker", max_n=3)] == [ids[-1]]
    assert rota.api.queue.claim(worker_id="worker") == []


def test_a_live_run_whose_row_became_unreadable_still_ends(rota: Rota) -> None:
    pid = rota.api.agents.create("agent", max_concurrent=2)
    rota.api.ledger.create(pid, {"tokens": 100})
    spec = ScheduleSpec(pid=pid, ceiling={"tokens": 10}, tags=("a",))
    first, second = (rota.api.queue.enqueue(spec) for _ in range(2))
    (entry,) = rota.api.claim("worker")
    sql = "UPDATE agent_schedule_queue SET needs = '{', options = '[', spent = 'x' WHERE sched_id = ?"
    damage(rota.kernel, sql, first)
    rota.api.queue.charge(first, {"tokens": 5}, token=entry.token)
    assert [each.sched_id for each in rota.api.claim("worker")] == [second]
    rota.api.queue.complete(first, "completed", token=entry.token)
    assert rota.api.queue.get(first).exit_kind == "completed"


def test_a_project_whose_constraint_cannot_be_read_starts_nothing_until_it_is_written_again(rota: Rota) -> None:
    for name in ("damaged", "other"):
        rota.api.projects.create(name)
    agents = {name: rota.api.agents.create(name, project_id=name) for name in ("damaged", "other")}
    ids = {name: rota.api.queue.enqueue(ScheduleSpec(pid=pid)) for name, pid in agents.items()}
    damage(rota.kernel, "UPDATE projects SET restraint = '{' WHERE project_id = 'damaged'")
    assert [entry.sched_id for entry in rota.api.claim("worker", 5)] == [ids["other"]]
    (reason,) = explain(rota.api, ids["damaged"]).blocking  # type: ignore[arg-type]  # embedded: a Dispatcher
    assert "project damaged" in reason.sentence()
    assert [project.unreadable is None for project in rota.api.projects.list()[0]] == [False, True]
    with pytest.raises(StoreCorrupt, match="constraint"):
        rota.api.projects.update("damaged", weight=2_000)
    rota.api.projects.constrain("damaged", ProjectConstraint())
    assert [entry.sched_id for entry in rota.api.claim("worker", 5)] == [ids["damaged"]]


def test_an_event_whose_time_is_not_a_number_hides_no_other(rota: Rota) -> None:
    ids = [rota.api.journal.append(None, "user.note", {"number": number}) for number in range(3)]
    damage(rota.kernel, "UPDATE agent_events SET ts = 'noon' WHERE event_id = ?", ids[1])
    read = {event.event_id: event for event in rota.api.journal.tail(limit=100)}
    assert [read[each].kind for each in ids] == ["user.note", RowUnreadable.kind, "user.note"]
    assert "its time is not a number" in read[ids[1]].payload["problem"]
    assert read[ids[1]].ts == 0.0


@pytest.mark.parametrize(
    ("column", "value"), [("name", "\0"), ("name", ""), ("name", b"\xff"), ("weight", -1), ("max_concurrent", -2)]
)
def test_a_project_with_an_invalid_field_is_listed_and_says_so(rota: Rota, column: str, value: object) -> None:
    for name in ("damaged", "other"):
        rota.api.projects.create(name)
    damage(rota.kernel, "PRAGMA ignore_check_constraints = ON")
    damage(rota.kernel, f"UPDATE projects SET {column} = ? WHERE project_id = 'damaged'", value)
    damaged, other = rota.api.projects.list()[0]
    assert str(damaged.unreadable).startswith(f"{column}: ")
    assert (damaged.project_id, damaged.name) == ("damaged", "damaged")
    assert other.unreadable is None


@pytest.mark.parametrize("column", ["inputs", "budget", "document"])
def test_a_graph_run_whose_row_cannot_be_read_fails_alone_and_can_be_deleted(column: str) -> None:
    world = FleetWorld({"researcher": research})
    for name in ("damaged", "other"):
        world.api.graphs.start(chain(), {"topic": name}, run_id=name)
    damage(world.kernel, f"UPDATE graph_runs SET {column} = '{{' WHERE run_id = 'damaged'")
    listed = {run.run_id: run.unreadable is None for run in world.api.graphs.list()[0]}
    assert listed == {"damaged": column == "document", "other": True}  # a list has no documents
    assert str(world.api.graphs.get("damaged").unreadable).startswith(f"{column}: ")
    world.supervise()
    assert world.api.graphs.get("other").result == {"result": "other:2"}
    assert world.api.graphs.get("damaged").status == "failed"
    with pytest.raises(StoreCorrupt, match="graph run damaged cannot be read"):
        world.api.graphs.resume("damaged")
    assert any(f"graph_runs row damaged: {column}" in problem for problem in world.kernel.check())
    assert world.api.graphs.forget("damaged", cancel=True)
    assert world.kernel.check() == []


def test_a_limit_whose_allowance_cannot_be_read_holds_only_what_draws_on_it(rota: Rota) -> None:
    pid = rota.api.agents.create("agent")
    for name in ("damaged", "other"):
        rota.api.contexts.create(bound_to="name", bound_id=name, unit="requests", budget=5, period_s=60)
    specs = {name: ScheduleSpec(pid=pid, draws_on=(name,)) for name in ("damaged", "other")}
    ids = {name: rota.api.queue.enqueue(spec) for name, spec in specs.items()}
    damage(rota.kernel, "UPDATE contexts SET standing = '[1', refill_at = 1 WHERE bound_id = 'damaged'")
    assert [entry.sched_id for entry in rota.api.claim("worker", 5)] == [ids["other"]]
    assert [event["table"] for event in events(rota, RowUnreadable.kind)] == ["contexts"]
    (reason,) = explain(rota.api, ids["damaged"]).blocking  # type: ignore[arg-type]  # embedded: a Dispatcher
    assert "context damaged" in reason.sentence()
    (context,) = [each for each in rota.api.contexts.list() if each.bound_id == "damaged"]
    rota.api.contexts.adjust(context.context_id, budget=5, period_s=60)
    assert [entry.sched_id for entry in rota.api.claim("worker", 5)] == [ids["damaged"]]


def test_a_damaged_event_does_not_hide_the_others_from_their_readers(rota: Rota) -> None:
    @rota.agent()
    def good(number: int) -> int:
        return number

    jobs = good.enqueue_many([{"number": number} for number in range(3)])
    rota.run(until_idle=True)
    for sql in ("payload = '{'", "payload = '[]'", "payload = 'null'", 'payload = \'{"v": "x"}\''):
        damage(rota.kernel, f"UPDATE agent_events SET {sql} WHERE kind LIKE 'kernel.sched.%'")
        told = rota.api.journal.tail(limit=10_000)
        assert len(told) == rota.api.journal.cursor()
        if "v" not in sql:
            assert RowUnreadable.kind in {event.kind for event in told}
        again = good.enqueue(number=7)
        explain(rota.api, again.sched_id, policy_from_store=True)  # type: ignore[arg-type]
        running = Background(rota.supervisor(2))
        until(lambda job=again: job.entry().state == "completed")  # type: ignore[misc]
        running.stop()
        assert again.result() == 7
    assert [job.result() for job in jobs] == [0, 1, 2]


def test_a_damaged_access_token_does_not_lock_out_the_others(tmp_path: Path) -> None:
    path = str(tmp_path / "rota.db")
    bad, good = make_token(path, "operate"), make_token(path, "operate")
    kernel = Kernel(store.open(path))
    damage(kernel, "UPDATE kernel_meta SET value = '{' WHERE key = ?", f"token:{bad.split('_')[1]}")
    kernel.store.close()
    with serving(path) as served:
        with connect(served.url, token=good) as client:
            assert client.queue.counts() == {}
        with connect(served.url, token=bad) as client, pytest.raises(RotaError, match="unknown"):
            client.queue.counts()


# --- outages -----------------------------------------------------------------------------------------


class Interrupted:
    """A daemon that goes away when its client makes a chosen call for the first time, and comes back a little later."""

    def __init__(self, path: str) -> None:
        self.served = Served(path, http=False)
        self.client: Client = connect(self.served.unix, timeout_s=5.0, retry_s=0.0)
        self.is_back = threading.Event()
        self._first = threading.Lock()

    def interrupt(self, part: str, verb: str) -> None:
        target = getattr(self.client, part) if part else self.client
        call = getattr(target, verb)

        def interrupted(*args: Any, **kwargs: Any) -> Any:
            if self._first.acquire(blocking=False):
                self.served.stop()
                threading.Timer(AWAY_S, self._come_back).start()
            return call(*args, **kwargs)

        setattr(target, verb, interrupted)

    def _come_back(self) -> None:
        self.served = Served(self.served.path, http=False)
        self.is_back.set()

    def close(self) -> None:
        self.client.close()
        self.served.stop()


AWAY_S = 0.1  # many times as long as the client and the supervisor of these tests wait between two attempts


@pytest.mark.parametrize(
    "call",
    ["agents.get", "supervision.began", "queue.charge", "supervision.checkpoint", "ledger.get", ".turn",
     "queue.heartbeat_many", "journal.tail", "journal.cursor"],
)  # fmt: skip
def test_a_daemon_that_is_away_for_a_while_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    for module in (outages, slot_loop):
        monkeypatch.setattr(module, "RETRY_S", 0.01)
    world = Interrupted(str(tmp_path / "rota.db"))
    with Rota() as rota:
        own = rota.api
        rota._link.use(world.client)

        @rota.agent(budget={"tokens": 1_000})
        def thinker(ctx: Any, number: int) -> int:
            ctx.charge(tokens=3)
            ctx.checkpoint(number=number)
            until(lambda: call != "queue.heartbeat_many" or world.is_back.is_set())
            return number

        program = rota.command("program", ["/bin/sh", "-c", "sleep 0.02; echo done"])
        jobs = thinker.enqueue_many([{"number": number} for number in range(4)])
        jobs += program.enqueue_many([{} for _ in range(3)])
        supervisor = rota.supervisor(2, heartbeat_s=0.02)
        world.interrupt(*call.split("."))
        running = Background(supervisor)
        assert world.is_back.wait(PATIENCE_S)
        until(lambda: _have_ended(world.served, jobs))
        assert running.is_running
        running.stop()
        ended = [job.entry() for job in jobs]
        assert {(entry.exit_kind, entry.attempt) for entry in ended} == {("completed", 1)}
        (line,) = world.client.ledger.get(thinker.pid)
        assert line.used == 12
        world.close()
        rota._link.use(own)


def _have_ended(served: Served, jobs: list[Any]) -> bool:
    try:
        return served.daemon.handlers.kernel.queue.counts() == {"completed": len(jobs)}
    except StoreUnavailable:  # it is being stopped
        return False


def test_a_charge_whose_response_was_lost_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outages, "RETRY_S", 0.01)
    with serving(str(tmp_path / "rota.db"), http=False) as served, Rota(served.unix) as remote:
        charge = remote.api.queue.charge
        lost: list[str] = []

        def lose(*args: Any, **kwargs: Any) -> Any:
            if len(lost) % 3 == 0:  # executed, and the response is lost
                charge(*args, **kwargs)
            lost.append("charge")
            if len(lost) % 3:  # not executed, or executed above
                raise StoreUnavailable("the response was lost", may_be_executed=True)
            return charge(*args, **kwargs)

        monkeypatch.setattr(remote.api.queue, "charge", lose)

        @remote.agent(budget={"tokens": 1_000})
        def thinker(ctx: Any) -> None:
            for _ in range(5):
                ctx.charge(tokens=7)

        job = thinker.enqueue()
        remote.run(until_idle=True)
        assert job.entry().exit_kind == "completed"
        assert remote.api.ledger.get(thinker.pid)[0].used == 35


def test_a_claim_that_expired_during_an_outage_is_given_up_and_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (outages, slot_loop):
        monkeypatch.setattr(module, "RETRY_S", 0.01)
    path = str(tmp_path / "rota.db")
    served = Served(path, http=False)
    attempts: list[int] = []
    gate = [False]
    with Rota() as rota, connect(served.unix, timeout_s=5.0, retry_s=0.0) as client:
        own = rota.api
        rota._link.use(client)

        @rota.agent(restart=RestartPolicy(when="on_crash"))
        def slow(ctx: Any) -> str:
            attempts.append(ctx.attempt)
            if len(attempts) == 1:
                until(lambda: gate[0] and ctx.cancelled)  # its claim is another run's by then
            return f"attempt {ctx.attempt}"

        job = slow.enqueue()
        running = Background(rota.supervisor(2, heartbeat_s=0.02, claim_timeout_s=0.3))
        until(lambda: bool(attempts))
        served.stop()
        kernel = Kernel(store.open(path))  # while the daemon is away, the claim expires
        damage(kernel, "UPDATE agent_schedule_queue SET claim_expires_at = 1 WHERE state = 'dispatched'")
        kernel.queue.upkeep()
        damage(kernel, "UPDATE agent_schedule_queue SET runnable_at = 0, hold = NULL WHERE state = 'queued'")
        kernel.store.close()
        served = Served(path, http=False)
        gate[0] = True
        until(lambda: served.daemon.handlers.kernel.queue.get(job.sched_id).state == "completed")
        running.stop()
        assert served.daemon.handlers.kernel.queue.get(job.sched_id).result == "attempt 2"
        rota._link.use(own)
    served.stop()


# --- at random ---------------------------------------------------------------------------------------

GARBAGE: tuple[Any, ...] = ("", "{", "[]", "null", "7", '{"a": ' * 2_000, "\x00", "é" * 300, b"\xff", '{"v": []}', 7)
KEYS = {  # the tables that are damaged, and what identifies a row
    "agent_processes": "pid",
    "agent_schedule_queue": "sched_id",
    "agent_events": "event_id",
    "projects": "project_id",
    "contexts": "context_id",
    "entry_loans": "sched_id",
    "workspaces": "workspace_id",
    "kernel_meta": "key",
    "share_notes": "event_id",
}
# what identifies the file; an operator who damages that has lost the store, not a row of it
IDENTITY = ("schema_version", "store_id", "generation", "file:")


def _texts(kernel: Kernel) -> list[tuple[str, str, str]]:
    """Return every text column of these tables: (table, key, column)."""
    return [
        (table, key, column)
        for table, key in KEYS.items()
        for _, column, kind, _, _, _ in damage(kernel, f"SELECT * FROM pragma_table_info('{table}')")
        if kind == "TEXT" and column != key
    ]


@pytest.mark.parametrize("policy", names())
def test_a_damaged_row_hides_no_other_entry_from_any_policy(policy: str, rounds: Rounds) -> None:
    for seed in rounds(1):
        rng = random.Random(seed)
        for table, key, column in _texts(Kernel(store.open(":memory:"))):
            if table in ("agent_processes", "agent_schedule_queue", "projects"):
                value, as_text = rng.choice(GARBAGE), rng.random() < 0.5
                taken = _claimed_beside(policy, table, key, column, value, as_text=as_text)
                assert 2 in taken, f"seed {seed}: {table}.{column} = {value!r}"


def _claimed_beside(policy: str, table: str, key: str, column: str, value: Any, *, as_text: bool) -> list[int]:
    """Claim with two agents in two projects that have an entry each; of the first everything may be damaged."""
    kernel = Kernel(store.open(":memory:"))
    for name in ("one", "two"):
        kernel.projects.create(name)
        kernel.queue.enqueue(ScheduleSpec(kernel.agents.create(name, project_id=name)))
    dispatcher = Dispatcher(kernel, policy)
    target = "CAST(? AS TEXT)" if as_text else "?"
    with contextlib.suppress(RotaError):  # the schema refuses it
        row = "one" if table == "projects" else 1
        damage(kernel, f"UPDATE {table} SET {column} = {target} WHERE {key} = ?", value, row)
    taken = [entry.sched_id for _ in range(2) for entry in dispatcher.claim("worker", 10)]
    kernel.store.close()
    return taken


SETTINGS = (
    "policy", "share_by", "share_window_s", "affinity_wait_s", "clock_offset", "clock_seen_at", "retention",
    "retention_turn", "finished_cursor", "usage_cursor", "model_prices", "journal_checkpoint",
)  # fmt: skip


@pytest.mark.parametrize("key", SETTINGS)
def test_a_setting_that_cannot_be_read_stops_no_claim_and_no_maintenance(key: str) -> None:
    clock = ManualClock(1_000.0)
    kernel = Kernel(store.open(":memory:", clock=clock))
    kernel.projects.create("one")
    pid = kernel.agents.create("agent", project_id="one")
    dispatcher = Dispatcher(kernel)
    for value in GARBAGE:
        for target in ("?", "CAST(? AS TEXT)"):
            sched_id = kernel.queue.enqueue(ScheduleSpec(pid))
            damage(kernel, f"INSERT OR REPLACE INTO kernel_meta (key, value) VALUES ('{key}', {target})", value)
            clock.advance(3_600.0)
            kernel.queue.upkeep()
            (entry,) = dispatcher.claim("worker", 1)
            assert entry.sched_id == sched_id
            kernel.queue.complete(sched_id, "completed", token=entry.token)
            assert not explain(dispatcher, kernel.queue.enqueue(ScheduleSpec(pid))).blocking
            (entry,) = dispatcher.claim("worker", 1)
            kernel.queue.complete(entry.sched_id, "completed", token=entry.token)
    kernel.store.close()


def test_a_damaged_row_of_a_run_keeps_no_other_from_ending_and_no_claim_from_maintenance(rounds: Rounds) -> None:
    for seed in rounds(2):
        rng = random.Random(seed)
        for table, key, column in _texts(Kernel(store.open(":memory:"))):
            if table == "agent_schedule_queue" and column != "state":
                clock, value = ManualClock(1_000.0), rng.choice(GARBAGE)
                kernel = Kernel(store.open(":memory:", clock=clock))
                pid = kernel.agents.create("agent")
                kernel.queue.enqueue_many([ScheduleSpec(pid)] * 2)
                _, other = kernel.queue.claim(worker_id="worker/1", max_n=2)
                target = "CAST(? AS TEXT)" if rng.random() < 0.5 else "?"
                with contextlib.suppress(RotaError):  # the schema refuses it
                    damage(kernel, f"UPDATE {table} SET {column} = {target} WHERE {key} = 1", value)
                where = f"seed {seed}: {column} = {value!r}"
                kernel.queue.complete(other.sched_id, "completed", token=other.token)
                assert kernel.queue.get(other.sched_id).state == "completed", where
                late = kernel.queue.enqueue(ScheduleSpec(pid, priority=9))
                clock.advance(10_000.0)  # the claim of the damaged run expires
                assert late in [entry.sched_id for entry in kernel.queue.claim(worker_id="worker/2", max_n=9)], where
                kernel.store.close()


def test_random_damage_under_a_running_fleet_harms_only_its_own_rows(rounds: Rounds) -> None:
    for seed in rounds(12):
        _damage_at_random(seed)


def _damage_at_random(seed: int) -> None:
    rng = random.Random(seed)
    with Rota(policy=rng.choice(POLICIES)) as rota:
        rota.api.contexts.create(bound_to="name", bound_id="shared", unit="requests", budget=1_000, period_s=60)
        functions = []
        for number in range(4):
            rota.api.projects.create(f"project {number}")

            @rota.agent(f"agent {number}", project=f"project {number}", budget={"tokens": 10_000})
            def work(ctx: Any, number: int) -> int:
                ctx.charge(tokens=1)
                ctx.checkpoint(number=number)
                return number

            functions.append(work)
        damaged_projects: set[str] = set()
        damaged_agents: set[int] = set()
        damaged_entries: set[int] = set()
        damaged_limit = False
        jobs: dict[int, tuple[int, str]] = {}
        running = Background(rota.supervisor(3))
        for _ in range(4):
            for number, function in enumerate(functions):
                draws = number == 0 and not damaged_limit  # a name that no limit has is refused
                options = {"draws_on": ("shared",)} if draws else {"tags": ("a",), "expected": {"tokens": 1}}
                for job in function.enqueue_many([{"number": each} for each in range(3)], **options):
                    jobs[job.sched_id] = number, f"project {number}"
            for _ in range(3):
                table, key, column = rng.choice(_texts(rota.kernel))
                keys = [row[0] for row in damage(rota.kernel, f"SELECT {key} FROM {table}")]
                keys = [each for each in keys if not str(each).startswith(IDENTITY)]
                if not keys:
                    continue
                chosen = rng.choice(keys)
                try:
                    value = "CAST(? AS TEXT)" if rng.random() < 0.5 else "?"  # bytes become text that is not UTF-8
                    sql = f"UPDATE {table} SET {column} = {value} WHERE {key} = ?"
                    damage(rota.kernel, sql, rng.choice(GARBAGE), chosen)
                except RotaError:
                    continue  # the schema refuses it
                if table == "agent_processes":
                    damaged_agents.add(chosen)
                elif table == "agent_schedule_queue":
                    damaged_entries.add(chosen)
                elif table == "projects":
                    damaged_projects.add(chosen)
                elif table == "contexts":
                    damaged_limit = True
        pids = [function.pid for function in functions]
        expected = {
            sched_id
            for sched_id, (number, project) in jobs.items()
            if sched_id not in damaged_entries
            and pids[number] not in damaged_agents
            and project not in damaged_projects
            and not (damaged_limit and number == 0)
        }
        until(lambda: all(rota.api.queue.get(each).state == "completed" for each in expected))
        assert running.is_running, seed
        running.stop()
        kinds = {rota.api.queue.get(each).exit_kind for each in expected}
        assert kinds <= {"completed"}, (seed, kinds)
        for sched_id in jobs:
            explain(rota.api, sched_id)  # type: ignore[arg-type]  # embedded: a Dispatcher
        rota.api.agents.list()
        rota.api.projects.list()
        rota.api.queue.list(limit=1_000)
        rota.api.contexts.list()
        rota.api.journal.tail(limit=10_000)

"""Hooks: which events they are about, what they tell, and how a delivery is retried, bounded and delivered."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme

from rota import store
from rota.errors import FleetInvalid, RotaError
from rota.fleet.config.loader import load_fleet
from rota.fleet.fleet_run import FleetRun
from rota.fleet.hook_deliveries import HOOK_WAITING_MAX
from rota.fleet.hook_loop import HookLoop
from rota.fleet.idle import IdleRule
from rota.fleet.triggers import Triggers
from rota.kernel import Completion, Kernel, ScheduleSpec
from rota.kernel.journal import append
from rota.model.agent_metadata import hide_env
from rota.model.events import BudgetAlert, HookDropped, WorkerLost
from rota.rpc import connect
from rota.service.dispatcher import Dispatcher
from tests.daemon.harness import serving
from tests.fleet.receiver import Receiver, receiving
from tests.fleet.support import FleetHarness
from tests.host.support import PATIENCE_S, until
from tests.stores import address_of

FLEET = """
[projects.lab]
[projects.shop]
[agents.coder]
project = "lab"
command = "false"
restart = {attempts = 1}
[agents.seller]
project = "shop"
command = "true"
[hooks.pager]
on = ["failed", "quarantined", "budget_alert", "drained", "worker_lost", "deploy.*"]
post = "https://alerts.example.com/secret-path"
headers = {authorization = "Bearer secret-token"}
"""


def read_events(harness: FleetHarness, triggers: Triggers) -> list[str]:
    fired = []
    while events := harness.api.journal.tail(triggers.cursor):
        fired += triggers.fire_for(events)
    return [each.key for each in fired]


def notices(harness: FleetHarness, hook: str = "hook:pager") -> list[dict[str, Any]]:
    return [entry.payload for entry in harness.entries(hook)]


def enqueue(harness: FleetHarness, name: str, count: int = 1) -> list[int]:
    pid = harness.agent(name).pid
    return harness.api.queue.enqueue_many([ScheduleSpec(pid=pid, max_attempts=1) for _ in range(count)])


# --- which events ---------------------------------------------------------------------------------


def test_each_entry_that_failed_for_good_is_a_delivery(harness: FleetHarness) -> None:
    triggers = harness.triggers(FLEET)
    first, second, third = enqueue(harness, "coder", 3)
    for sched_id in (first, second, third):
        harness.api.queue.force_claim(sched_id, worker_id="w")
    harness.api.queue.complete_many(
        [
            Completion(first, "failed", result={"error": "no more disk\nat line 3"}),
            Completion(second, "completed"),
            Completion(third, "crashed"),
        ]
    )
    event_id = harness.cursor
    assert read_events(harness, triggers) == [f"trigger:hook:pager:1:{event_id}.{each}" for each in (first, third)]
    told, other = notices(harness)
    payload = told.pop("payload")
    assert payload["entries"][0][:2] == [first, "failed"]
    assert told == {
        "id": f"pager:1:{event_id}.{first}",
        "hook": "pager",
        "event": "failed",
        "kind": "kernel.sched.completed",
        "event_id": event_id,
        "at": harness.clock.now(),
        "store": "",
        "agent": {"pid": harness.agent("coder").pid, "name": "coder"},
        "project": "lab",
        "entry": first,
        "status": "failed",
        "error": "no more disk\nat line 3",
        "summary": f"coder #{first} failed after attempt 1 of 1: no more disk",
        "hint": f"rota show {first}",
    }
    assert (other["entry"], other["error"]) == (third, "crashed")


def test_a_failure_that_is_retried_is_no_news(harness: FleetHarness) -> None:
    triggers = harness.triggers(FLEET)
    spec = ScheduleSpec(pid=harness.agent("coder").pid, max_attempts=2, retry_on=("failed",))
    sched_id = harness.api.queue.enqueue(spec)
    for expected in ([], [sched_id]):
        token = harness.api.queue.force_claim(sched_id, worker_id="w").token
        harness.api.queue.complete(sched_id, "failed", token=token)
        read_events(harness, triggers)
        assert [each["entry"] for each in notices(harness)] == expected
        harness.clock.advance(1_000)


def test_quarantines_alerts_lost_workers_drains_and_own_events_are_told(harness: FleetHarness) -> None:
    triggers = harness.triggers(FLEET)
    api, pid = harness.api, harness.agent("coder").pid
    api.supervision.quarantine(pid, 5, for_s=60.0)
    api.supervision.moved("box", "1", "draining")
    api.supervision.moved("box", "1", "drained")
    alert = BudgetAlert(level="project", owner="lab", dim="tokens", share=0.8, used=81_000, limit=100_000)
    lost = WorkerLost(worker_id="box", host="rack-1", entries=2)
    for data in (alert, lost):
        api.store.write(lambda tx, data=data: append_to(tx, harness, data))  # type: ignore[misc]  # mypy knows no such lambda
    api.journal.append(None, "deploy.finished", {"version": 7})
    read_events(harness, triggers)
    assert [(each["event"], each["project"], each["summary"]) for each in notices(harness)] == [
        ("quarantined", "lab", "coder is quarantined: 5 failures in a row"),
        ("drained", None, "worker box has drained: all of its runs have ended"),
        ("budget_alert", "lab", "lab: 80% of the tokens budget is used, 81,000 of 100,000"),
        ("worker_lost", None, "worker box on rack-1 is lost with 2 runs, which are tried again if attempts are left"),
        ("deploy.*", None, "deploy.finished"),
    ]
    assert notices(harness)[-1]["payload"] == {"version": 7}


def append_to(tx: Any, harness: FleetHarness, data: Any) -> int:
    return append(tx, data, now=harness.clock.now())


def test_a_hook_hears_of_one_project_or_agent_if_it_says_so(harness: FleetHarness) -> None:
    text = FLEET.replace("[hooks.pager]", '[hooks.pager]\nproject = "lab"')
    text += '[hooks.sales]\non = ["failed"]\nagent = "seller"\ncommand = "cat"\n'
    triggers = harness.triggers(text)
    for name in ("coder", "seller"):
        (sched_id,) = enqueue(harness, name)
        harness.run(sched_id, "failed")
    harness.api.journal.append(harness.agent("seller").pid, "deploy.finished", {})
    harness.api.journal.append(harness.agent("coder").pid, "deploy.finished", {})
    read_events(harness, triggers)
    assert [(each["event"], each["agent"]["name"]) for each in notices(harness)] == [
        ("failed", "coder"),
        ("deploy.*", "coder"),
    ]
    assert [each["agent"]["name"] for each in notices(harness, "hook:sales")] == ["seller"]


def test_a_hook_that_fails_causes_no_further_delivery(harness: FleetHarness) -> None:
    text = FLEET.replace(
        '"deploy.*"]', '"kernel.sched.completed", "kernel.run.*", "kernel.process.*", "kernel.hook.*"]'
    )
    triggers = harness.triggers(text)
    (sched_id,) = enqueue(harness, "coder")
    harness.run(sched_id, "failed")
    assert len(read_events(harness, triggers)) == 2  # as `failed`, and by its kind
    for entry in harness.entries("hook:pager"):
        harness.run(entry.sched_id, "failed")
    hook = harness.agent("hook:pager")
    harness.api.supervision.quarantine(hook.pid, 5, for_s=60.0)
    harness.api.journal.record(HookDropped(hook="hook:pager", count=1), pid=hook.pid)
    assert read_events(harness, triggers) == []


def test_only_the_kinds_that_hooks_name_are_read_unless_one_is_a_prefix(harness: FleetHarness) -> None:
    named = FLEET.replace('"budget_alert", "drained", "worker_lost", "deploy.*"', '"deploy.finished"')
    triggers = harness.triggers(named)
    kinds = ("deploy.finished", "hook.test", "kernel.run.quarantined", "kernel.sched.completed")
    assert triggers.kinds == kinds
    assert harness.triggers(FLEET).kinds == ()
    triggers.skip_to(harness.cursor)
    harness.api.journal.append(None, "deploy.finished", {})
    assert len(triggers.fire_for(harness.api.journal.tail(triggers.cursor, kinds=kinds))) == 1


# --- bounds and restarts ----------------------------------------------------------------------------


def test_the_oldest_deliveries_are_dropped_and_counted_if_too_many_wait(harness: FleetHarness) -> None:
    triggers = harness.triggers(FLEET)
    for _ in range(HOOK_WAITING_MAX + 2):
        harness.api.journal.append(None, "deploy.finished", {})
    read_events(harness, triggers)
    entries = harness.entries("hook:pager")
    assert [entry.state for entry in entries] == ["cancelled"] * 2 + ["queued"] * HOOK_WAITING_MAX
    dropped = [data for data in harness.kernel_events() if isinstance(data, HookDropped)]
    assert [(data.count, data.sched_ids) for data in dropped] == [(1, [entry.sched_id]) for entry in entries[:2]]


def test_of_one_event_about_very_many_entries_only_the_last_are_enqueued(harness: FleetHarness) -> None:
    triggers = harness.triggers(FLEET)
    ids = enqueue(harness, "coder", HOOK_WAITING_MAX + 5)
    for sched_id in ids:
        harness.api.queue.force_claim(sched_id, worker_id="w")
    harness.api.queue.complete_many([Completion(sched_id, "failed") for sched_id in ids])
    read_events(harness, triggers)
    assert [each["entry"] for each in notices(harness)] == ids[5:]
    (dropped,) = [data for data in harness.kernel_events() if isinstance(data, HookDropped)]
    assert (dropped.count, dropped.sched_ids) == (5, [])


def test_a_restart_between_event_and_delivery_neither_loses_nor_doubles(harness: FleetHarness) -> None:
    triggers = harness.triggers(FLEET)
    harness.api.journal.append(None, "deploy.finished", {})
    harness.api.journal.append(None, "deploy.failed", {})
    events = harness.api.journal.tail(triggers.cursor)
    triggers._save_progress = lambda: None  # type: ignore[method-assign]  # it is killed before it saves how far it is
    triggers.fire_for(events[:1])
    again = Triggers(harness.api, harness.clock, harness.fleet(FLEET))
    read_events(harness, again)
    assert [each["kind"] for each in notices(harness)] == ["deploy.finished", "deploy.failed"]


# --- the file ------------------------------------------------------------------------------------------


def test_addresses_and_headers_are_shown_to_no_reader(harness: FleetHarness) -> None:
    messages = harness.apply_messages(FLEET)
    assert "agent hook:pager created" in messages
    changed = harness.apply_messages(FLEET.replace("secret-path", "secret-way"))
    agent = harness.agent("hook:pager")
    assert agent.metadata["run"]["env"]["url"].endswith("secret-way")
    shown = json.dumps(
        [changed, hide_env(agent.metadata), [each.payload for each in harness.api.journal.tail(0, 10_000)]]
    )
    assert "(hidden)" in shown
    assert "secret" not in shown


def test_a_hook_that_left_the_file_is_paused(harness: FleetHarness) -> None:
    harness.apply(FLEET)
    assert harness.apply_messages(FLEET.partition("[hooks")[0]) == [
        "agent hook:pager paused: no longer in the fleet file"
    ]


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ('on = ["faild"]\npost = "https://x.org"', "hooks.a.on[0]: unknown name 'faild'; did you mean 'failed'?"),
        ('on = ["failed"]', "hooks.a: expected exactly one of post, command, found none of them"),
        (
            'on = ["failed"]\npost = "https://x.org"\ncommand = "ls"',
            "expected exactly one of post, command, found both",
        ),
        ('on = ["kernel.*"]\ncommand = "ls"', "which every firing of this trigger writes: it would fire forever"),
        ('on = ["failed"]\npost = "ftp://secret.org"', "expected an address that begins with https:// or http://"),
        ('on = ["failed"]\npost = "https://anna:secret@x.org"', "expected an address without a user"),
        ('on = ["failed"]\npost = "https://x.org"\nheaders = {host = "a"}', "a header that rota does not set itself"),
        ('on = ["failed"]\npost = "https://x.org"\nheaders = {a = "b\\nc"}', "a value of printable ASCII characters"),
        ('on = ["failed"]\npost = "https://x.org"\nproject = "b"', "hooks.a.project: unknown project 'b'"),
        ('on = ["failed"]\npost = "https://x.org"\nagent = "b"', "hooks.a.agent: unknown agent 'b'"),
        ('on = ["failed"]\npost = "https://x.org"\nenv = {A = "1"}', "env and pass_env are only valid with command"),
        ('on = ["failed"]\ncommand = "ls"\nheaders = {a = "1"}', "headers is only valid with post"),
        ('on = ["failed"]\ncommand = "echo \'"', "hooks.a.command: expected a program and its arguments"),
        ('on = ["failed"]\ncommand = "ls"\ntimeout_s = 0', "hooks.a.timeout_s: expected more than 0"),
        ('on = ["failed"]\ncommand = "ls"\n[agents."hook:b"]\ncommand = "ls"', "the names of hooks begin with 'hook:'"),
        ('on = ["failed"]\ncommand = "ls"\n[agents.b]\ncommand = "ls"\nkind = "rota.hook"', "is reserved for hooks"),
        ('on = ["failed"]\ncommand = "ls"\n[slots]\n"rota.hook" = 1', "is reserved: every supervisor has such slots"),
    ],
)
def test_a_hook_that_could_never_work_is_refused(harness: FleetHarness, table: str, problem: str) -> None:
    with pytest.raises(FleetInvalid) as refusal:
        harness.fleet(f"[hooks.a]\n{table}\n")
    assert problem in refusal.value.message
    assert "secret" not in refusal.value.message


# --- deliveries, with a real receiver -----------------------------------------------------------------------


REAL = """
slots = 1
[agents.broken]
command = ["sh", "-c", "echo why >&2; exit 3"]
restart = {attempts = 1}
[agents.slow]
command = "sleep 600"
stop_grace_s = 0.1
[hooks.pager]
on = ["failed", "drained", "deploy.finished"]
post = "URL/x?key=${ROTA_TEST_KEY}"
headers = {authorization = "Bearer ${ROTA_TEST_KEY}"}
"""


@contextmanager
def fleet_in(folder: Path, text: str) -> Iterator[FleetRun]:
    path = folder / "fleet.toml"
    path.write_text(text)
    kernel = Kernel(store.open(str(folder / "rota.db")))
    yield FleetRun(Dispatcher(kernel, "eevdf"), load_fleet(path))
    kernel.store.close()


@contextmanager
def running(fleet: FleetRun) -> Iterator[None]:
    thread = threading.Thread(target=fleet.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        fleet.supervisor.kill()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def deliveries(fleet: FleetRun) -> list[Any]:
    (hook,) = fleet.api.agents.find("hook:pager")
    return fleet.api.queue.list(pid=hook.pid)[0]


def hurry(fleet: FleetRun) -> None:
    """End the back-off of the deliveries that failed."""
    for entry in deliveries(fleet):
        if entry.hold is not None:
            with suppress(RotaError):  # it was due at this moment
                fleet.api.queue.retry(entry.sched_id)
    fleet._hook_loop.nudge()


def until_received(fleet: FleetRun, receiver: Receiver, count: int) -> None:
    def is_received() -> bool:
        hurry(fleet)
        return len(receiver.requests) >= count

    until(is_received)


def start(fleet: FleetRun, name: str) -> int:
    (agent,) = fleet.api.agents.find(name)
    return fleet.api.queue.enqueue(ScheduleSpec(pid=agent.pid, max_attempts=1))


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_TEST_KEY", "sesame")


def test_a_failed_entry_and_the_end_of_the_supervisor_are_posted(tmp_path: Path) -> None:
    with receiving() as receiver, fleet_in(tmp_path, REAL.replace("URL", receiver.url)) as fleet:
        sched_id = start(fleet, "broken")
        summary = fleet.run(until_idle=True)
        assert (summary.runs, summary.failed) == (1, 1)
        failed, drained = receiver.requests
        assert (failed.path, failed.headers["authorization"]) == ("/x?key=sesame", "Bearer sesame")
        assert (failed.body["event"], failed.body["entry"]) == ("failed", sched_id)
        assert failed.body["store"] == str(tmp_path / "rota.db")
        assert failed.headers["rota-delivery-id"] == failed.body["id"]
        assert (failed.headers["rota-event"], failed.headers["rota-attempt"]) == ("failed", "1")
        assert drained.body["event"] == "drained"
        assert [(each.exit_kind, each.result) for each in deliveries(fleet)] == [("completed", {"status": 200})] * 2


def test_a_receiver_that_fails_twice_gets_the_delivery_three_times_under_one_id(tmp_path: Path) -> None:
    with receiving(500, 503) as receiver, fleet_in(tmp_path, REAL.replace("URL", receiver.url)) as fleet:
        with running(fleet):
            fleet.api.journal.append(None, "deploy.finished", {})
            until_received(fleet, receiver, 3)
            until(lambda: deliveries(fleet)[0].exit_kind == "completed")
        assert {each.headers["rota-delivery-id"] for each in receiver.requests} == {receiver.bodies[0]["id"]}
        assert [each.headers["rota-attempt"] for each in receiver.requests] == ["1", "2", "3"]
        errors = [each.error for each in deliveries(fleet)[0].errors]
        assert errors == [f"{receiver.url} answered 500: not now", f"{receiver.url} answered 503: not now"]


def test_a_supervisor_that_is_killed_begins_no_delivery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing runs, so it has drained before `kill` goes on; what that would tell is left to the next supervisor."""
    with receiving() as receiver, fleet_in(tmp_path, REAL.replace("URL", receiver.url)) as fleet:
        drain, thread = fleet.supervisor.drain, threading.Thread(target=fleet.run, daemon=True)

        def drain_to_the_end(**options: Any) -> None:
            drain(**options)
            thread.join(PATIENCE_S)

        monkeypatch.setattr(fleet.supervisor, "drain", drain_to_the_end)
        thread.start()
        fleet.api.journal.append(None, "deploy.finished", {})
        until(lambda: bool(deliveries(fleet)) and deliveries(fleet)[0].state == "completed")
        fleet.supervisor.kill()
        assert not thread.is_alive()
        assert [each.body["event"] for each in receiver.requests] == ["deploy.finished"]
        assert [each.state for each in deliveries(fleet)] == ["completed", "queued"]


def test_a_delivery_that_is_claimed_while_the_supervisor_is_killed_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving() as receiver, fleet_in(tmp_path, REAL.replace("URL", receiver.url)) as fleet:
        drain, thread = fleet.supervisor.drain, threading.Thread(target=fleet.run, daemon=True)
        turn, is_claiming = HookLoop._turn, threading.Event()

        def late_turn(loop: HookLoop, reports: Any, wanted: int, wait_s: float) -> Any:
            if wanted and not reports and is_first_told(fleet):
                is_claiming.set()
                until(lambda: len(deliveries(fleet)) == 2)  # what the end of the others would tell
            return turn(loop, reports, wanted, wait_s)

        def drain_and_tell(**options: Any) -> None:
            drain(**options)
            until(lambda: len(deliveries(fleet)) == 2)

        monkeypatch.setattr(HookLoop, "_turn", late_turn)
        monkeypatch.setattr(fleet.supervisor, "drain", drain_and_tell)
        thread.start()
        fleet.api.journal.append(None, "deploy.finished", {})
        assert is_claiming.wait(PATIENCE_S)
        fleet.supervisor.kill()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert [each.body["event"] for each in receiver.requests] == ["deploy.finished"]
        assert [each.state for each in deliveries(fleet)] == ["completed", "queued"]


def is_first_told(fleet: FleetRun) -> bool:
    return [each.state for each in deliveries(fleet)][:1] == ["completed"]


@pytest.mark.parametrize(("status", "is_retried"), [(404, False), (408, True), (429, True), (302, True)])
def test_a_receiver_that_refuses_is_not_asked_again_and_no_redirect_is_followed(
    tmp_path: Path, status: int, is_retried: bool
) -> None:
    with receiving(status) as receiver, fleet_in(tmp_path, REAL.replace("URL", receiver.url)) as fleet:
        with running(fleet):
            fleet.api.journal.append(None, "deploy.finished", {})
            if is_retried:
                until_received(fleet, receiver, 2)
            until(lambda: bool(deliveries(fleet)) and deliveries(fleet)[0].state == "completed")
            entry = deliveries(fleet)[0]
        assert {each.path for each in receiver.requests} == {"/x?key=sesame"}
        if is_retried:
            assert (entry.exit_kind, entry.attempt) == ("completed", 2)
        else:
            assert (entry.outcome, entry.attempt, entry.result["status"]) == ("hook_refused", 1, status)


def test_a_receiver_that_hangs_delays_neither_other_work_nor_the_end(tmp_path: Path) -> None:
    text = REAL + 'timeout_s = 0.2\nmax_attempts = 1\n[agents.quick]\ncommand = "true"\n'
    with receiving(0) as receiver, fleet_in(tmp_path, text.replace("URL", receiver.url)) as fleet:
        with running(fleet):
            fleet.api.journal.append(None, "deploy.finished", {})
            until(lambda: bool(receiver.requests))
            quick = start(fleet, "quick")
            until(lambda: fleet.api.queue.get(quick).exit_kind == "completed")
            until(lambda: deliveries(fleet)[0].exit_kind == "failed")
        assert deliveries(fleet)[0].outcome == "timed_out"


def test_no_receiver_and_a_missing_variable_are_failures_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving() as receiver:
        url = receiver.url
    text = REAL.replace("URL", url) + "max_attempts = 1\n"
    with fleet_in(tmp_path, text) as fleet:
        with running(fleet):
            fleet.api.journal.append(None, "deploy.finished", {})
            until(lambda: bool(deliveries(fleet)) and deliveries(fleet)[0].exit_kind == "failed")
            monkeypatch.delenv("ROTA_TEST_KEY")
            fleet.api.journal.append(None, "deploy.finished", {})
            until(lambda: len(deliveries(fleet)) > 1 and deliveries(fleet)[1].exit_kind == "failed")
        refused, unnamed = (each.result["error"] for each in deliveries(fleet)[:2])
        assert refused == f"{url}: Connection refused"
        assert unnamed == "the supervisor has no variable ROTA_TEST_KEY, which the hook's settings name"


def test_a_certificate_that_is_not_trusted_gets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with receiving(tls=tls) as receiver:
        text = REAL.replace("URL", receiver.url) + "max_attempts = 1\n"
        with fleet_in(tmp_path, text) as fleet, running(fleet):
            fleet.api.journal.append(None, "deploy.finished", {})
            until(lambda: bool(deliveries(fleet)) and deliveries(fleet)[0].exit_kind == "failed")
            assert "certificate" in deliveries(fleet)[0].result["error"]
            assert receiver.requests == []
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
            fleet.api.journal.append(None, "deploy.finished", {})
            until(lambda: len(receiver.requests) == 1)


def test_a_command_gets_the_event_on_stdin_and_in_a_variable(tmp_path: Path) -> None:
    text = """
        [hooks.pager]
        on = ["deploy.finished"]
        command = ["sh", "-c", 'cat > told; printf %s "$ROTA_EVENT" > variable; printf %s "$KEY" > key']
        env = {KEY = "k"}
    """
    with fleet_in(tmp_path, text) as fleet:
        fleet.api.journal.append(None, "deploy.finished", {"version": 7})
        fleet.run(until_idle=True)
        assert [each.exit_kind for each in deliveries(fleet)] == ["completed"]
    told = json.loads((tmp_path / "told").read_text())
    assert (told["event"], told["payload"]) == ("deploy.finished", {"version": 7})
    assert json.loads((tmp_path / "variable").read_text()) == told
    assert (tmp_path / "key").read_text() == "k"


def test_deliveries_need_no_slot_and_no_budget_of_other_work(tmp_path: Path) -> None:
    text = REAL + "[scheduling]\nbudget = {tokens = 1}\n"
    with receiving() as receiver, fleet_in(tmp_path, text.replace("URL", receiver.url)) as fleet, running(fleet):
        sleeping = start(fleet, "slow")
        until(lambda: fleet.api.queue.get(sleeping).state == "dispatched")  # the only slot
        fleet.api.queue.charge(sleeping, {"tokens": 5})  # and all of the budget
        fleet.api.journal.append(None, "deploy.finished", {})
        until(lambda: len(receiver.requests) == 1)
        assert fleet.api.queue.get(sleeping).state == "dispatched"


def test_a_store_that_is_idle_until_a_hooks_retry_does_not_wait_for_it(tmp_path: Path) -> None:
    with receiving(500) as receiver, fleet_in(tmp_path, REAL.replace("URL", receiver.url)) as fleet:
        fleet.api.journal.append(None, "deploy.finished", {})
        summary = fleet.run(until_idle=IdleRule(horizon_s=0.0))
        assert [(each.agent, each.kind) for each in summary.waiting] in ([], [("hook:pager", "retry")])


def test_a_supervisor_at_a_daemon_delivers_too(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    with receiving() as receiver, serving(str(tmp_path / "rota.db")) as served, connect(served.unix) as api:
        path.write_text(f'store = "{served.unix}"\n' + REAL.replace("URL", receiver.url))
        fleet = FleetRun(api, load_fleet(path))
        start(fleet, "broken")
        fleet.run(until_idle=True)
        assert [each["event"] for each in receiver.bodies] == ["failed", "drained"]
        assert receiver.bodies[0]["store"] == served.unix


def test_a_killed_supervisor_delivers_after_its_restart_under_the_same_id(tmp_path: Path) -> None:
    with receiving(0) as receiver:
        text = f'worker_id = "box"\nstore = "{address_of(tmp_path / "rota.db")}"\n' + REAL.replace("URL", receiver.url)
        (tmp_path / "fleet.toml").write_text(text)
        kernel = Kernel(store.open(str(tmp_path / "rota.db")))
        argv = [sys.executable, "-m", "rota", "run", "--plain", str(tmp_path / "fleet.toml")]
        first = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until(
                lambda: any(
                    each.payload["verb"] == "started"
                    for each in kernel.journal.tail(kinds=("kernel.supervisor.moved",))
                )
            )
            kernel.journal.append(None, "deploy.finished", {})
            until(lambda: len(receiver.requests) == 1)  # it waits for the answer
            os.kill(first.pid, signal.SIGKILL)
        finally:
            first.kill()
            first.wait()
        second = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until(lambda: len(receiver.requests) == 2)
        finally:
            second.terminate()
            second.wait()
            kernel.store.close()
        assert len({each.headers["rota-delivery-id"] for each in receiver.requests[:2]}) == 1

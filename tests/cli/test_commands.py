"""What each command does, seen through its JSON and once as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from rota import store
from rota.fleet.config.apply import apply_fleet
from rota.fleet.config.loader import load_fleet
from rota.kernel import Kernel
from rota.model import SlotPool
from rota.service.dispatcher import Dispatcher
from rota.store.migrations import LATEST
from tests.cli.shell import Shell


@pytest.fixture
def pid(rota: Shell) -> int:
    """An agent called bob."""
    return int(rota("agents", "create", "bob").out)


def working(path: Path) -> Kernel:
    """A kernel of another process's, so to say."""
    return Kernel(store.open(str(path)))


# --- entries -------------------------------------------------------------------------------------


def test_the_whole_life_of_an_entry(rota: Shell, path: Path, pid: int) -> None:
    assert rota("enqueue", "bob", "--payload", '{"url": "x"}', "--priority", 5, "--tag", "nightly").out == "1\n"
    waiting = rota("queue", "--json").json
    assert (waiting["total"], waiting["counts"], waiting["agents"]) == (1, {"ready": 1}, {"1": "bob"})
    assert waiting["entries"][0]["payload"] == {"url": "x"}
    assert waiting["entries"][0]["tags"] == ["nightly"]
    kernel = working(path)
    (run,) = kernel.queue.claim(worker_id="w")
    (running,) = rota("ps", "--json").json["entries"]
    assert (running["sched_id"], running["worker_id"], running["pid"]) == (1, "w", pid)
    assert rota("cancel", 1).code == 4
    assert rota("cancel", 1, "--stop").out == "entry 1 was asked to stop\n"
    assert "stopping" in rota("ps").out
    kernel.queue.complete(1, "cancelled", token=run.token)
    kernel.store.close()
    assert rota("ps").out == "nothing is running\n"
    assert rota("retry", 1, "--json").json == {"retried": {"1": 2}, "refused": {}}
    assert rota("retry", 2).code == 4  # it waits
    assert rota("cancel", "--tag", "nightly", "--json").json["count"] == 1
    assert [entry["state"] for entry in rota("queue", "--state", "all", "--json").json["entries"]] == [
        "completed",
        "cancelled",
    ]


@pytest.mark.usefixtures("pid")
def test_what_is_held_for_a_failed_entry_is_released(rota: Shell, path: Path) -> None:
    rota("enqueue", "bob")
    rota("enqueue", "bob", "--after", 1, "--on-failed", "hold")
    kernel = working(path)
    (run,) = kernel.queue.claim(worker_id="w")
    kernel.queue.complete(1, "failed", token=run.token)
    kernel.store.close()
    assert "run it although 1 failed" in rota("why", 2).out
    assert rota("release", 2, "--json").json == {"released": {"2": None}, "refused": {}}
    assert rota("release", 2).code == 4  # it waits for nobody any more


def test_everything_that_can_be_said_of_an_entry_is_kept(rota: Shell, path: Path, pid: int) -> None:
    rota("agents", "create", "amy")
    rota("limits", "create", "name", "openai", "--budget", 100)
    said = ("--in", "5m", "--within", "1h", "--key", "k", "--kind", "gpu", "--expect", "tokens=5", "--ceiling")
    assert rota("enqueue", pid, *said, "tokens=9", "--draws-on", "openai", "--max-attempts", 7).code == 0
    assert rota("enqueue", pid, *said, "tokens=9").out == "1\n"  # the same key makes one entry
    rota("enqueue", "amy", "--at", "2030-01-31T12:00:00+00:00", "--after", 1, "--on-failed", "run", "--trigger", "cron")
    kernel = working(path)
    first, second = kernel.queue.get(1), kernel.queue.get(2)
    kernel.store.close()
    assert (first.kind, first.key, first.expected, first.ceiling) == ("gpu", "k", {"tokens": 5}, {"tokens": 9})
    assert (first.draws_on, first.max_attempts, first.hold) == (("openai",), 7, "time")
    assert first.deadline == pytest.approx(first.runnable_at + 3_600)
    assert (second.runnable_at, second.hold, second.trigger) == (1_896_091_200.0, "after", "cron")


def test_what_is_not_said_of_an_entry_is_as_its_agents_plan_has_it(rota: Shell, path: Path, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(
        "slots = {gpu = 1}\n[limits.openai]\nrequests_per_minute = 5\n[agents.reader]\ncommand = 'true'\npriority = 4\n"
        "kind = 'gpu'\nceiling = {tokens = 9}\ndraws_on = ['openai']\npayload = {depth = 2, short = true}\n"
        "restart = {attempts = 2}\n"
    )
    kernel = working(path)
    apply_fleet(Dispatcher(kernel), load_fleet(fleet))
    kernel.store.close()
    rota("enqueue", "reader", "--payload", '{"short": false}')
    rota("enqueue", "reader", "--priority", 0, "--ceiling", "tokens=1", "--max-attempts", 5)
    kernel = working(path)
    usual, other = kernel.queue.get(1), kernel.queue.get(2)
    kernel.store.close()
    assert (usual.priority, usual.kind, usual.ceiling, usual.draws_on) == (4, "gpu", {"tokens": 9}, ("openai",))
    assert (usual.payload, usual.max_attempts) == ({"depth": 2, "short": False}, 2)
    assert (other.priority, other.ceiling, other.max_attempts) == (0, {"tokens": 1}, 5)


def test_waiting_for_an_entry_prints_what_it_returned(rota: Shell, path: Path, pid: int) -> None:
    kernel = working(path)
    rota("enqueue", pid, "--key", "same")
    (run,) = kernel.queue.claim(worker_id="w")
    kernel.queue.complete(run.sched_id, "completed", token=run.token, result={"answer": 42})
    kernel.store.close()
    ended = rota("enqueue", pid, "--key", "same", "--wait", "5s")
    assert (ended.code, ended.out, ended.err) == (0, '{"answer":42}\n', "entry 1\n")
    assert rota("enqueue", pid, "--wait", 0).code == 7


def test_why_says_it_in_words_and_in_json(rota: Shell, pid: int) -> None:
    rota("enqueue", pid, "--priority", 9)
    rota("enqueue", pid)
    told = rota("why", 2, "--json").json
    assert (told["position"], told["ordering"][0]["code"], told["ordering"][0]["first"]) == (2, "outranked", [1])
    words = rota("why", 2).out
    assert "outranked: 1 goes first by eevdf: 1" in words
    assert "rota change 2 --priority 10\n" in words
    assert "entry 2 of bob (pid 1) is ready" in words
    assert "eligible, but no worker is running" in rota("why", 1, "--policy", "eevdf").out
    assert rota("why", 1, "--policy", "best").code == 3


def test_why_names_the_kind_of_slot_and_the_number_that_are_asked_about(rota: Shell, pid: int) -> None:
    rota("enqueue", pid, "--kind", "gpu")
    rota("enqueue", pid)
    assert "no_slot: no free slot of kind gpu (0 busy)" in rota("why", 1, "--kind", "cpu").out
    assert rota("why", 1, "--json").json["ordering"] == []
    assert rota("why", 2, "--kind", "gpu", "--max-n", 2, "--json").json["ordering"] == []


# --- pauses --------------------------------------------------------------------------------------


def test_pauses_of_agents_projects_and_the_fleet(rota: Shell, pid: int) -> None:
    rota("projects", "create", "acme")
    rota("agents", "create", "amy", "--project", "acme")
    rota("enqueue", "amy")
    for words in (("fleet",), ("project", "acme"), ("agent", "amy")):
        assert rota("pause", *words, "--by", "ann", "--json").json["done"] == "paused"
    blocked = rota("why", 1, "--json").json["blocking"]
    assert [(reason["level"], reason["by"]) for reason in blocked] == [
        ("agent", "ann"),
        ("project", "ann"),
        ("fleet", "ann"),
    ]
    for words in (("fleet",), ("project", "acme"), ("agent", "amy")):
        assert rota("resume", *words).out == f"resumed: {' '.join(words).replace('amy', str(pid + 1))}\n"
    assert rota("why", 1, "--json").json["blocking"] == []
    assert (rota("pause", "fleet", "bob").code, rota("pause", "agent").code) == (2, 2)


# --- agents and projects -------------------------------------------------------------------------


def test_agents_are_made_changed_listed_and_ended(rota: Shell, pid: int) -> None:
    rota("enqueue", pid)
    assert rota("agents", "set", "bob", "--weight", 2_000, "--max-concurrent", 3, "--json").json["weight"] == 2_000
    assert rota("agents", "set", "bob", "--unlimited", "--json").json["max_concurrent"] is None
    assert [agent["name"] for agent in rota("agents", "--json").json["agents"]] == ["bob"]
    assert rota("agents", "list", "--limit", 1, "--json").json["total"] == 1
    assert "bob" in rota("agents", "show", "bob").out
    assert rota("agents", "end", "bob", "--json").json["state"] == "DEAD"
    assert rota("queue", "--state", "cancelled", "--json").json["total"] == 1
    assert rota("agents", "show", "bob").code == 3
    assert rota("enqueue", pid).code == 2


def test_a_name_that_two_agents_have_is_not_enough(rota: Shell, pid: int) -> None:
    rota("agents", "create", "bob")
    refused = rota("enqueue", "bob")
    which = f"2 agents are named 'bob': {pid} in no project, {pid + 1} in no project"
    assert (refused.code, refused.err) == (2, f"rota: {which}. Give the pid instead of the name.\n")


def test_projects_and_their_workspaces(rota: Shell) -> None:
    assert rota("projects", "create", "acme", "--weight", 3_000, "--json").json["weight"] == 3_000
    assert rota("projects", "create", "acme").code == 4
    assert rota("projects", "set", "acme", "--max-concurrent", 2, "--json").json["max_concurrent"] == 2
    constraint = rota("projects", "constrain", "acme", "--kind", "gpu=1", "--exclusive", "--json").json["constraint"]
    assert constraint == {"exclusive": True, "max_by_kind": {"gpu": 1}, "pause_scheduling": False}
    assert rota("projects", "workspaces", "add", "acme", "main", "/srv/acme", "--json").json["path"] == "/srv/acme"
    (workspace,) = rota("projects", "workspaces", "list", "acme", "--json").json["workspaces"]
    assert workspace["workspace_id"] == "main"
    assert rota("projects", "workspaces", "remove", "main").out == "removed main\n"
    assert rota("projects", "archive", "acme", "--json").json["status"] == "ARCHIVED"
    assert rota("projects", "restore", "acme", "--json").json["status"] == "PAUSED"
    assert "acme" in rota("projects").out


# --- budgets and limits --------------------------------------------------------------------------


def test_ledgers_and_budgets(rota: Shell, pid: int) -> None:
    rota("projects", "create", "acme")
    assert rota("ledger", "grant", "bob", "tokens", 100).code == 0
    assert rota("ledger", "charge", "bob", "tokens", 120, "--json").json["lines"][0]["used"] == 120
    assert [line["pid"] for line in rota("ledger", "breached", "--json").json["lines"]] == [pid]
    assert rota("ledger", "refund", "bob", "tokens", 30, "--json").json["lines"][0]["used"] == 90
    assert rota("ledger", "grant", "bob", "tokens", 200, "--json").json["lines"][0]["granted"] == 200
    assert rota("ledger", "show", "bob", "--json").json["total"] == 1
    rota("ledger", "budget", "project", "tokens", 50, "--project", "acme", "--window", "1h")
    rota("ledger", "budget", "global", "tokens", 99)
    budgets = rota("ledger", "budgets", "--json").json["budgets"]
    assert [(line["owner"], line["limit"], line["window_s"]) for line in budgets] == [
        ("*", 99, 86_400.0),
        ("acme", 50, 3_600.0),
    ]
    assert rota("ledger", "budget", "global", "tokens").out == "tokens of global *: no budget\n"
    assert rota("ledger", "budget", "project", "tokens", 5).code == 2


def test_limits(rota: Shell, pid: int) -> None:
    (made,) = rota("limits", "create", "name", "openai", "--budget", 10, "--json").json["limits"]
    assert (made["bound_id"], made["budget"], made["period"]) == ("openai", 10, 60_000)
    rota("limits", "create", "agent", "bob", "--budget", 5, "--period", "1h", "--unit", "requests")
    assert [each["bound_id"] for each in rota("limits", "--json").json["limits"]] == ["openai", str(pid)]
    assert rota("limits", "set", made["context_id"], "--budget", 20, "--period", "60s").code == 0
    assert rota("limits", "throttle", "openai", "30s", "--json").json["until_at"] > 0
    assert rota("limits", "revoke", made["context_id"], "--json").json["limits"][0]["state"] == "revoked"
    assert rota("limits", "throttle", "nobody", "30s").code == 3


# --- the file ------------------------------------------------------------------------------------


def test_a_backup_is_a_store_of_its_own(rota: Shell, tmp_path: Path, pid: int) -> None:
    copy = tmp_path / "copy.db"
    assert rota("db", "backup", copy, "--json").json["bytes"] == copy.stat().st_size
    assert rota("db", "backup", copy).code == 2
    assert rota("db", "backup", copy, "--force").code == 0
    assert rota("agents", "--store", copy, "--json").json["agents"][0]["pid"] == pid


def test_pruning_says_what_went(rota: Shell, pid: int) -> None:
    rota("enqueue", pid)
    rota("cancel", 1)
    rota("enqueue", pid)
    pruned = rota("db", "prune", "--events-older-than", 0, "--entries-older-than", 0, "--json").json
    assert pruned["entries"] == 1
    assert pruned["events"] > 0
    assert rota("db", "prune", "--vacuum", "--json").json["free_bytes"] == 0
    assert rota("queue", "--state", "all", "--json").json["total"] == 1


def test_a_file_that_is_up_to_date_stays_as_it_is(rota: Shell, pid: int) -> None:
    assert rota("db", "migrate", "--json").json == {"schema_version": LATEST, "migrated": False}
    assert rota("db", "check").out == "no damage found\n"
    assert pid == 1


# --- workers -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("pid")
def test_workers_are_listed_and_the_doctor_counts_them(rota: Shell, path: Path) -> None:
    assert rota("workers").out == "no worker is running; start one: rota run fleet.toml\n"
    assert "no worker is running: nothing starts" in rota("doctor").out
    kernel = working(path)
    pools = [SlotPool("box", 3), SlotPool("box/gpu", 1, ("gpu",))]
    kernel.workers.register("box", "i", kind="supervisor", host="rack", os_pid=7, pools=pools, draining=True)
    rota("enqueue", "bob")
    kernel.queue.claim(worker_id="plain")
    kernel.store.close()
    header, box, plain = rota("workers").out.splitlines()
    assert " ".join(header.split()) == "worker kind host os pid slots running since last seen state"
    assert box.split()[:8] == ["box", "supervisor", "rack", "7", "4", "(1", "gpu)", "0"]
    assert box.split()[8].isdigit()  # since so many seconds
    assert box.split()[-1] == "draining"
    assert plain.split()[:6] == ["plain", "unregistered", "–", "–", "–", "1"]
    shown = rota("workers", "--json").json["workers"]
    assert [(each["worker_id"], each["slots"], each["kinds"], each["running"]) for each in shown] == [
        ("box", 4, ["gpu"], 0),
        ("plain", 0, [], 1),
    ]
    assert "workers: box, plain; 1 of 4 slots in use" in rota("doctor").out

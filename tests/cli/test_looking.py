"""Events and the doctor: what happened, and whether all is well."""

from __future__ import annotations

import contextlib
import re
import time
import tomllib
from importlib import metadata
from pathlib import Path

import apsw
import pytest

from rota import store
from rota.clock import ManualClock
from rota.kernel import Kernel, ScheduleSpec
from rota.model.workers import WORKER_SILENT_S, SlotPool
from tests.cli.shell import Shell

ROOT = Path(__file__).parents[2]


@pytest.fixture
def pid(rota: Shell) -> int:
    return int(rota("agents", "create", "bob").out)


# --- events --------------------------------------------------------------------------------------


def test_events_are_printed_from_a_cursor_and_by_kind(rota: Shell, pid: int) -> None:
    rota("enqueue", pid)
    rota("cancel", 1)
    lines = rota("events").out.splitlines()
    assert [line.split()[2] for line in lines] == [
        "kernel.process.created",
        "kernel.sched.enqueued",
        "kernel.sched.cancelled",
    ]
    assert rota("events", "--since", 2).out.split()[2] == "kernel.sched.cancelled"
    assert len(rota("events", "--kind", "kernel.sched.*").out.splitlines()) == 2
    assert len(rota("events", "--agent", "bob").out.splitlines()) == 1
    assert '"kind":"kernel.process.created"' in rota("events", "-n", 1, "--json").out


def test_following_ends_when_nothing_came_for_so_long(rota: Shell, pid: int) -> None:
    followed = rota("events", "--follow", "--idle", 0)
    assert (followed.code, followed.out.split()[2]) == (0, "kernel.process.created")
    assert rota("events", "--follow", "--agent", pid).code == 2


# --- the doctor ----------------------------------------------------------------------------------


def findings(rota: Shell) -> dict[str, list[str]]:
    """What the doctor says, by verdict."""
    found: dict[str, list[str]] = {"good": [], "note": [], "bad": []}
    for each in rota("doctor", "--json").json["findings"]:
        assert bool(each["fix"]) or each["verdict"] == "good" or each["part"] == "platform"
        found[each["verdict"]].append(each["words"])
    return found


def test_a_healthy_store_has_nothing_bad(rota: Shell, path: Path, pid: int) -> None:
    path.chmod(0o600)
    rota("enqueue", pid)
    found = findings(rota)
    assert found["bad"] == []
    assert found["note"] == ["no worker is running: nothing starts"]
    assert "1 queued" in found["good"]
    assert "no damage" in rota("doctor").out


def test_the_extras_that_can_be_installed_are_named_and_those_that_are_missing(
    rota: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert f"extras: {', '.join(sorted(declared))}" in findings(rota)["good"]  # the tests need all of them

    found = metadata.distribution

    def without(name: str) -> metadata.Distribution:
        if name in ("mcp", "opentelemetry-sdk"):
            raise metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(metadata, "distribution", without)
    there = ", ".join(name for name in sorted(declared) if name not in ("mcp", "otel"))
    assert f"extras: {there}; not installed: mcp, otel" in findings(rota)["good"]


def test_no_store_yet_is_only_noted(rota: Shell, path: Path) -> None:
    assert findings(rota)["note"] == [f"{path} does not exist"]
    assert rota("doctor").code == 0


def test_what_keeps_work_from_being_done_is_noted_with_what_to_do(rota: Shell, path: Path, pid: int) -> None:
    path.chmod(0o644)
    rota("pause", "fleet", "--by", "ann")
    rota("ledger", "grant", pid, "tokens", 1)
    rota("ledger", "charge", pid, "tokens", 2)
    long_ago = Kernel(store.open(str(path), clock=ManualClock(1_000.0)))
    long_ago.projects.resume_fleet("ann")
    long_ago.queue.enqueue(ScheduleSpec(long_ago.agents.create("amy")))
    long_ago.queue.claim(worker_id="gone")
    long_ago.projects.pause_fleet("ann")
    long_ago.store.close()
    rights, *notes = findings(rota)["note"]
    assert "no worker is running: nothing starts" in notes
    paused, over, lost = [note for note in notes if not note.startswith("no worker")]
    assert rights == f"other users may read {path} (644), including payloads"
    assert paused == "the fleet was paused by ann"
    assert over == f"agents over their grants: {pid}"
    assert lost.startswith("1 claim has expired")
    assert rota("doctor").code == 0


def test_a_file_that_others_may_write_is_bad(rota: Shell, path: Path, pid: int) -> None:
    path.chmod(0o666)
    assert findings(rota)["bad"] == [f"other users may write to {path} (666)"]
    assert (rota("doctor").code, pid) == (1, 1)


@pytest.mark.usefixtures("pid")
def test_the_doctor_does_not_migrate_a_file_that_processes_of_an_older_version_use(rota: Shell, path: Path) -> None:
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        connection.execute("DROP TABLE share_notes; UPDATE kernel_meta SET value = '120' WHERE key = 'schema_version'")
        assert any("older schema (120; this rota has" in words for words in findings(rota)["bad"])
        found = connection.execute("SELECT value FROM kernel_meta WHERE key = 'schema_version'").fetchall()
        assert found == [("120",)]


def test_damage_is_found_by_the_doctor_and_by_check(rota: Shell, path: Path, pid: int) -> None:
    kernel = Kernel(store.open(str(path)))
    for number in range(200):
        kernel.journal.append(pid, "mine.note", {"number": number, "text": "x" * 200})
    kernel.store.close()
    body = bytearray(path.read_bytes())
    middle = len(body) // 2
    body[middle : middle + 4_096] = b"\xff" * 4_096
    path.write_bytes(body)
    assert rota("db", "check").code in {1, 5}
    answer = rota("doctor")
    assert answer.code == 1
    assert "✗" in answer.out


def test_top_looks_once_as_json(rota: Shell, pid: int) -> None:
    rota("enqueue", pid)
    seen = rota("top", "--json").json
    assert seen["counts"] == {"queued": 1}
    assert (seen["running"], seen["paused_by"]) == ([], None)


@pytest.mark.usefixtures("pid")
def test_the_doctor_says_what_the_machine_lets_us_do(rota: Shell) -> None:
    findings = rota("doctor", "--json").json["findings"]
    controls = [finding["words"] for finding in findings if finding["part"] == "controls"]
    assert any("reaper" in words for words in controls)
    assert any("control groups" in words for words in controls)


def test_a_worker_that_is_silent_is_named_wherever_it_matters(rota: Shell, path: Path, pid: int) -> None:
    """As when its process is stopped (SIGSTOP): its claims have not expired yet."""
    clock = ManualClock(time.time() - WORKER_SILENT_S - 5)
    stopped = Kernel(store.open(str(path), clock=clock))
    running, ready = stopped.queue.enqueue_many([ScheduleSpec(pid)] * 2)
    stopped.workers.register(
        "box", "i", kind="supervisor", host="rack", os_pid=4711, pools=[SlotPool("box", 2), SlotPool("box/gpu", 1)]
    )
    assert [entry.sched_id for entry in stopped.queue.claim(worker_id="box", incarnation="i")] == [running]
    stopped.store.close()
    assert re.search(r"box \(silent for \d\d s", rota("ps").out)
    assert re.search(r"1 of 3 slots busy  silent for \d\d s", rota("top").out)
    assert " silent" in rota("workers").out
    for sched_id in (running, ready):
        assert re.search(r"worker box has been silent for \d\d", rota("why", sched_id).out)
    (note,) = [note for note in findings(rota)["note"] if "silent" in note]
    assert re.match(r"worker box on rack is silent: last seen \d\d s", note)
    assert "kill -CONT 4711" in rota("doctor").out

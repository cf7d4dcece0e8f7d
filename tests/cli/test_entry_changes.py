"""Commands that change entries, by id and by filter: what is done, what is refused, what is only counted."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from rota import store
from rota.cli import entry_changes
from rota.kernel import Kernel, ScheduleSpec
from rota.rpc import connect
from tests.cli.shell import Shell, make_shell
from tests.daemon.harness import make_token, serving


@pytest.fixture
def pid(rota: Shell) -> int:
    """An agent called bob."""
    return int(rota("agents", "create", "bob").out)


@pytest.fixture
def kernel(path: Path, pid: int) -> Kernel:
    """The store, as another process has it open."""
    del pid  # it creates the store
    return Kernel(store.open(str(path)))


# --- change --------------------------------------------------------------------------------------


def test_a_queued_entry_is_changed(rota: Shell, kernel: Kernel, pid: int) -> None:
    kernel.queue.enqueue(ScheduleSpec(pid, tags=("old",)))
    done = rota("change", 1, "--priority", 7, "--at", "+10m", "--deadline", "1h", "--tags", "a, b")
    assert done.out == (
        "entry 1 is changed: priority 7, start in 10.0 min, deadline in 1.0 h, tags a, b; it is waiting\n"
    )
    entry = kernel.queue.get(1)
    assert (entry.priority, entry.tags, entry.hold) == (7, ("a", "b"), "time")
    assert entry.deadline == pytest.approx(entry.runnable_at + 3_000, abs=5)
    again = rota("change", 1, "--at", "now", "--no-deadline", "--tags", "")
    assert again.out == "entry 1 is changed: start now, no deadline, no tags; it is ready\n"
    assert (kernel.queue.get(1).deadline, kernel.queue.get(1).tags) == (None, ())


def test_a_local_time_is_meant_in_this_machines_zone(rota: Shell, kernel: Kernel, pid: int) -> None:
    kernel.queue.enqueue(ScheduleSpec(pid))
    rota("change", 1, "--at", "2030-01-31T12:00:00+01:00")
    assert kernel.queue.get(1).runnable_at == 1_896_087_600.0
    rota("change", 1, "--at", "2030-01-31T12:00")
    local = kernel.queue.get(1).runnable_at
    assert abs(local - 1_896_091_200.0) <= 14 * 3_600  # whatever the zone is
    assert rota("change", 1, "--at", "soon").code == 2


@pytest.mark.usefixtures("kernel")
def test_a_change_of_nothing_or_of_both_is_refused(rota: Shell) -> None:
    assert "nothing to change was given" in rota("change", 1).err
    assert "exclude each other" in rota("change", 1, "--deadline", "1h", "--no-deadline").err
    assert rota("change", "--priority", 3).code == 2  # of which entries?
    assert rota("change", 1, "--tag", "x", "--priority", 3).code == 2  # by id and by filter


# --- cancel --------------------------------------------------------------------------------------


def test_a_running_entry_is_refused_with_the_command_that_stops_it(rota: Shell, kernel: Kernel, pid: int) -> None:
    kernel.queue.enqueue(ScheduleSpec(pid))
    (run,) = kernel.queue.claim(worker_id="w")
    refused = rota("cancel", 1)
    assert refused.code == 4
    assert refused.err.endswith("It is running: `rota cancel 1 --stop` asks it to stop.\n")
    assert rota("cancel", 1, "--stop", "--wait", "0s").code == 7
    assert kernel.queue.get(1).cancel_requested
    ender = threading.Thread(target=kernel.queue.complete, args=(1, "cancelled"), kwargs={"token": run.token})
    ender.start()
    ended = rota("cancel", 1, "--stop", "--wait", "60s")
    assert (ended.code, ended.out) in ((0, "entry 1 is cancelled\n"), (4, ""))  # it may have ended before it was asked
    ender.join()


def test_each_of_several_ids_is_answered_on_its_own(rota: Shell, kernel: Kernel, pid: int) -> None:
    kernel.queue.enqueue_many([ScheduleSpec(pid, priority=number) for number in range(3)])
    kernel.queue.claim(worker_id="w")
    done = rota("cancel", 1, 99, 3, 2, 1)
    assert (done.code, done.out) == (3, "entry 1 is cancelled\nentry 2 is cancelled\n")
    assert done.err.count("\n") == 2
    assert "sched_id 99" in done.err
    assert "rota cancel 3 --stop" in done.err
    again = rota("cancel", 1, 3, "--json")
    assert (again.code, again.json["states"], sorted(again.json["refused"])) == (4, {}, ["1", "3"])
    assert "hint" in again.json["refused"]["3"]


# --- by filter -----------------------------------------------------------------------------------


def test_a_dry_run_counts_and_changes_nothing(rota: Shell, kernel: Kernel, pid: int) -> None:
    kernel.queue.enqueue_many([ScheduleSpec(pid, tags=("x",)) for _ in range(25)])
    kernel.queue.claim(worker_id="w")
    tried = rota("cancel", "--tag", "x", "--dry-run")
    first = ", ".join(map(str, range(2, 22)))
    assert tried.out.splitlines() == [
        f"24 entries would be cancelled (24 ready): {first} and 4 more",
        "refused 1: it is running",
        "the first that were refused: 1",
    ]
    assert kernel.queue.counts(by="status") == {"ready": 24, "running": 1}
    assert rota("cancel", 2, 99, "--dry-run", "--json").json["refused"] == {"it does not exist": 1}
    assert rota("cancel", "--tag", "x", "--stop", "--json").json["statuses"] == {"running": 1, "ready": 24}


def test_filters_are_those_of_the_queue(rota: Shell, kernel: Kernel, pid: int) -> None:
    kernel.queue.enqueue_many([ScheduleSpec(pid, payload={"page": number}) for number in range(4)])
    (first,) = kernel.queue.claim(worker_id="w")
    kernel.queue.complete(first.sched_id, "failed", token=first.token)
    assert rota("retry", "--status", "failed", "--agent", "bob").out == "1 entry retried (1 failed): 1\n"
    assert rota("retry", "--exit-kind", "failed", "--json").json["copies"] == {"1": 6}
    assert rota("cancel", "--search", '"page":3', "--dry-run", "--json").json["first"] == [4]
    assert rota("cancel", "--state", "queued", "--older-than", "1d").out == "0 entries cancelled\n"
    assert rota("change", "--state", "queued", "--priority", 2, "--json").json["count"] == 5
    assert rota("release", "--agent", "bob").out == "0 entries released\n"
    assert rota("cancel", "--status", "bogus").code == 2


class Terminal:
    """A standard input that is a terminal and answers a question."""

    def __init__(self, answer: str) -> None:
        self.answer = answer

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        return f"{self.answer}\n"


@pytest.mark.parametrize(("answer", "left"), [("y", {"cancelled": 3}), ("n", {"ready": 3})])
def test_on_a_terminal_a_change_of_many_asks_first(
    rota: Shell, kernel: Kernel, pid: int, monkeypatch: pytest.MonkeyPatch, *, answer: str, left: dict[str, int]
) -> None:
    kernel.queue.enqueue_many([ScheduleSpec(pid)] * 3)
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr(entry_changes, "CONFIRM_ABOVE", 2)
    done = rota("cancel", "--agent", "bob")
    assert "3 entries would be cancelled" in done.err
    assert (done.code, kernel.queue.counts(by="status")) == (0 if answer == "y" else 1, left)


@pytest.mark.parametrize("above", [2, 3])
def test_it_does_not_ask_with_yes_or_at_the_number(
    rota: Shell, kernel: Kernel, pid: int, monkeypatch: pytest.MonkeyPatch, above: int
) -> None:
    kernel.queue.enqueue_many([ScheduleSpec(pid)] * 3)
    monkeypatch.setattr("sys.stdin", Terminal("n"))
    monkeypatch.setattr(entry_changes, "CONFIRM_ABOVE", above)
    assert rota("cancel", "--agent", "bob", *(["--yes"] if above == 2 else [])).out.startswith("3 entries cancelled")


# --- through a daemon ----------------------------------------------------------------------------


def test_bulk_verbs_work_through_a_daemon_within_the_callers_projects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rota = make_shell(monkeypatch, capsys)
    with serving(str(tmp_path / "rota.db")) as served:
        with served.client() as client:
            for name in ("acme", "other"):
                client.projects.create(name)
                pid = client.agents.create(f"agent-{name}", project_id=name)
                client.queue.enqueue_many([ScheduleSpec(pid, tags=("x",))] * 2)
        monkeypatch.setenv("ROTA_STORE", served.unix)
        assert rota("change", "--tag", "x", "--priority", 4).out == "4 entries changed (4 ready): 1, 2, 3, 4\n"
        assert rota("change", 1, "--deadline", "+1h").code == 0
        assert rota("change", 1, "--no-deadline", "--tags", "x,y").code == 0
        monkeypatch.setenv("ROTA_STORE", served.url)
        monkeypatch.setenv("ROTA_ACCESS_TOKEN", make_token(served.path, "enqueue", projects=("acme",)))
        unnamed = rota("cancel", "--tag", "x")
        assert (unnamed.code, "Add --project with one of: acme." in unnamed.err) == (2, True)
        assert rota("cancel", "--tag", "x", "--project", "other").code == 3
        assert rota("change", "--tag", "x", "--project", "acme", "--priority", 9).code == 6  # needs scope operate
        assert rota("cancel", "--tag", "x", "--project", "acme").out == "2 entries cancelled (2 ready): 1, 2\n"
        with connect(served.unix) as client:
            left = client.queue.list(tag="x", status="ready")[0]
            assert [(entry.project_id, entry.deadline) for entry in left] == [("other", None)] * 2

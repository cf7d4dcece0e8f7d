"""Why many entries wait: counts and reasons, in one dry run, within projects, on the wire and as text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota import store
from rota.clock import ManualClock
from rota.errors import RotaError
from rota.kernel import Kernel, ScheduleSpec
from rota.model import reasons
from rota.model.workers import SlotPool
from rota.rpc import connect
from rota.service import explanation_summary
from rota.service.dispatcher import Dispatcher
from rota.service.explanation_summary import explain_many
from tests.cli.shell import make_shell
from tests.daemon.harness import make_token, serving
from tests.stores import address_of

NOW = 1_000.0


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    made = Kernel(store.open(":memory:", clock=ManualClock(NOW)))
    made.projects.create("lab")
    made.projects.create("shop")
    yield made
    made.store.close()


def summary(kernel: Kernel, **which: object) -> list[tuple[str, int, int, str]]:
    found = explain_many(Dispatcher(kernel), **which)  # type: ignore[arg-type]  # by name
    return [(code(each.reason), each.count, each.sched_id, each.agent) for each in found.reasons]


def code(reason: Any) -> str:
    return "eligible" if reason is None else str(type(reason).__struct_config__.tag)


def test_reasons_are_counted_most_frequent_first_with_an_example(kernel: Kernel) -> None:
    kernel.workers.register("w", "i", kind="supervisor", host="h", os_pid=1, pools=[SlotPool("w", 9)])
    coder, writer = kernel.agents.create("coder", project_id="lab"), kernel.agents.create("writer", project_id="shop")
    kernel.queue.enqueue(ScheduleSpec(coder, 9))
    kernel.queue.claim(worker_id="w", incarnation="i")
    kernel.agents.update(coder, max_concurrent=1)
    kernel.queue.enqueue_many([ScheduleSpec(coder)] * 3)
    kernel.queue.enqueue_many([ScheduleSpec(writer, runnable_at=NOW + 9), ScheduleSpec(writer)])
    kernel.queue.enqueue_many([ScheduleSpec(writer, kind="gpu")] * 2)
    found = explain_many(Dispatcher(kernel))
    assert (found.waiting, found.ready, found.running, found.examined, found.is_whole) == (1, 6, 1, 7, True)
    assert summary(kernel) == [
        ("cap_reached", 3, 2, "coder"),
        ("no_worker_for_kind", 2, 7, "writer"),
        ("not_yet_runnable", 1, 5, "writer"),
        ("eligible", 1, 6, "writer"),
    ]
    assert summary(kernel, pid=coder) == [("cap_reached", 3, 2, "coder")]
    assert [each[0] for each in summary(kernel, project_id="shop")] == [
        "no_worker_for_kind",
        "not_yet_runnable",
        "eligible",
    ]
    assert summary(kernel, pid=coder, project_id="shop") == []


def test_an_entry_with_several_reasons_counts_for_each_and_a_missing_worker_for_all(kernel: Kernel) -> None:
    coder = kernel.agents.create("coder")
    kernel.agents.pause(coder, "ann")
    kernel.queue.enqueue_many([ScheduleSpec(coder, runnable_at=NOW + 9), ScheduleSpec(coder)])
    assert [each[:2] for each in summary(kernel)] == [("paused", 2), ("no_worker", 2), ("not_yet_runnable", 1)]


def test_reasons_about_different_things_are_counted_apart(kernel: Kernel) -> None:
    for name in ("a", "b"):
        pid = kernel.agents.create(name)
        kernel.agents.pause(pid, "ann")
        kernel.queue.enqueue(ScheduleSpec(pid))
    assert [each for each in summary(kernel) if each[0] == "paused"] == [("paused", 1, 1, "a"), ("paused", 1, 2, "b")]


def test_the_work_is_bounded_and_it_says_so(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explanation_summary, "EXAMINED_MAX", 3)
    pid = kernel.agents.create("coder")
    kernel.queue.enqueue_many([ScheduleSpec(pid)] * 3)
    assert explain_many(Dispatcher(kernel)).is_whole
    kernel.queue.enqueue(ScheduleSpec(pid))
    found = explain_many(Dispatcher(kernel))
    assert (found.examined, found.ready, found.is_whole, found.reasons[0].count) == (3, 4, False, 3)


def test_it_changes_nothing(kernel: Kernel) -> None:
    pid = kernel.agents.create("coder")
    kernel.queue.enqueue_many([ScheduleSpec(pid, runnable_at=NOW + 5), ScheduleSpec(pid, deadline=NOW + 1)])
    assert isinstance(kernel.clock, ManualClock)
    kernel.clock.advance(10)
    cursor, states = kernel.journal.cursor(), kernel.queue.counts()
    explain_many(Dispatcher(kernel))
    assert (kernel.journal.cursor(), kernel.queue.counts()) == (cursor, states)


# --- walls, the wire, the command line -----------------------------------------------------------


def test_a_bound_caller_sees_one_of_its_projects_and_no_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(str(tmp_path / "rota.db")) as served, served.client() as local:
        local.projects.create("lab")
        local.projects.create("shop")
        mine, other = (local.agents.create(name, project_id=name) for name in ("lab", "shop"))
        local.workers.register("box", "i", kind="supervisor", host="h", os_pid=1, pools=[SlotPool("box", 1)])
        theirs = local.enqueue(ScheduleSpec(other, 99))
        local.claim("box", incarnation="i")
        own = local.enqueue(ScheduleSpec(mine))
        assert local.explain(own).workers == reasons.SlotsBusy(slots=1, held_by=(theirs,))
        with connect(served.url, token=make_token(served.path, "read", projects=("lab",))) as bound:
            found = bound.explain_many(project_id="lab")
            assert (found.ready, found.running) == (1, 0)
            assert [each.reason for each in found.reasons] == [reasons.SlotsBusy()]
            assert bound.explain(own).workers == reasons.SlotsBusy()
            assert bound.explain_many(pid=other, project_id="lab").reasons == ()
            hint = "rota why --project NAME"
            monkeypatch.setenv("ROTA_ACCESS_TOKEN", make_token(served.path, "read", projects=("lab",)))
            refused = make_shell(monkeypatch, capsys)("why", "--store", served.url)
            assert (refused.code, hint in refused.err) == (2, True)
            for project_id in ("shop", None):
                with pytest.raises(RotaError):
                    bound.explain_many(project_id=project_id)
        local.workers.leave("box", "i")
        local.complete(theirs, "completed")
        with connect(served.url, token=make_token(served.path, "read", projects=("lab",))) as bound:
            assert bound.explain(own).workers == reasons.NoWorker()  # without a file of the operator


def test_the_command_line_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROTA_STORE", address_of(tmp_path / "rota.db"))
    monkeypatch.setenv("COLUMNS", "200")
    rota = make_shell(monkeypatch, capsys)
    rota("projects", "create", "lab")
    rota("agents", "create", "coder", "--project", "lab")
    rota("agents", "create", "idle")
    for _ in range(2):
        rota("enqueue", "coder")
    rota("enqueue", "coder", "--in", "1h")
    for words in ((), ("--agent", "coder"), ("--project", "lab")):
        told = rota("why", *words).out
        assert "1 waiting, 2 ready, 0 running" in told
        assert "3        no_worker" in told
        assert "1        not_yet_runnable" in told
    assert rota("why", "--agent", "idle").out == "idle: 0 waiting, 0 ready, 0 running\n"
    shown = rota("why", "--agent", "coder", "--json").json
    assert [(each["reason"]["code"], each["count"]) for each in shown["reasons"]] == [
        ("no_worker", 3),
        ("not_yet_runnable", 1),
    ]
    assert rota("why", 1, "--agent", "coder").code == 2
    assert rota("why", "--agent", "ghost").code == 3
    monkeypatch.setattr(explanation_summary, "EXAMINED_MAX", 1)
    assert "only the first 1 of 3 queued entries were examined" in rota("why").out

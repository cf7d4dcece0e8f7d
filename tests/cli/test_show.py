"""`rota show`, `queue --status`, `queue --search` and `ps`, on runs that really failed: at a file and at a daemon."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rota import Rota, store
from rota.cli.run import print_summary
from rota.errors import Forbidden, RunFailed, SchedUnknownId
from rota.fleet import RunSummary
from rota.kernel import Kernel, ScheduleSpec
from rota.model import Backoff, RestartPolicy
from rota.model.checks import SECONDS_MAX
from rota.rpc import connect
from tests.cli.shell import Answer, Shell, make_shell
from tests.daemon.harness import Served, make_token, serving

SOON = RestartPolicy(backoff=Backoff(base_s=0.001))


class Story(NamedTuple):
    """A store in which much has happened, and what."""

    served: Served
    raises: int
    breaks: int
    parent: int
    child: int
    expired: int
    cancelled: int
    secret: int


def inner(number: int) -> int:
    return 1 // number


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    path = tmp_path_factory.mktemp("show") / "rota.db"
    rota = Rota(path)

    @rota.agent(project="lab", restart=SOON, max_attempts=2)
    def divider(ctx: Any, number: int) -> int:
        print(f"dividing by {number}, attempt {ctx.attempt}")
        ctx.charge(tokens=100 * ctx.attempt, cost_micro=250_000)
        return inner(number)

    @rota.agent(project="lab")
    def parent(ctx: Any) -> int:
        return int(ctx.spawn("divider", number=1).sched_id)

    shell = ["sh", "-c", "echo working; echo needle in the output >&2; exit 3"]
    breaker = rota.command("breaker", shell, project="lab", max_attempts=1)
    raises, breaks, top = divider.enqueue(number=0), breaker.enqueue(url="https://example.org"), parent.enqueue()
    summary = rota.run(until_idle=True)
    assert summary.last_failed in (raises.sched_id, breaks.sched_id)
    with pytest.raises(RunFailed) as failed:
        raises.result()
    assert f"rota show {raises.sched_id}" in (failed.value.hint or "")
    kernel = rota.kernel
    expired = kernel.queue.enqueue(ScheduleSpec(divider.pid, runnable_at=1.0, deadline=2.0))
    kernel.queue.gc_expired()
    cancelled = divider.enqueue(number=2, tags="x")
    cancelled.cancel()
    secret = _in_other_project(kernel)
    child = int(top.result())
    rota.close()
    with serving(path) as served:
        yield Story(
            served=served,
            raises=raises.sched_id,
            breaks=breaks.sched_id,
            parent=top.sched_id,
            child=child,
            expired=expired,
            cancelled=cancelled.sched_id,
            secret=secret,
        )


def _in_other_project(kernel: Kernel) -> int:
    kernel.projects.create("vault")
    pid = kernel.agents.create("keeper", project_id="vault")
    sched_id = kernel.queue.enqueue(ScheduleSpec(pid, payload={"said": "needle of the vault"}))
    kernel.queue.force_claim(sched_id, worker_id="w")
    kernel.queue.complete(sched_id, "failed", result={"error": "the vault is broken"})
    return sched_id


@pytest.fixture(params=["file", "unix"])
def rota(
    request: pytest.FixtureRequest, story: Story, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    monkeypatch.setenv("ROTA_STORE", story.served.path if request.param == "file" else story.served.unix)
    monkeypatch.setenv("COLUMNS", "200")
    return make_shell(monkeypatch, capsys)


def lines_after(answer: Answer, heading: str) -> list[str]:
    """The lines of a section."""
    assert answer.code == 0, answer.err
    return [line.strip() for line in answer.out.partition(f"\n{heading}\n")[2].partition("\n\n")[0].splitlines()]


# --- show ------------------------------------------------------------------------------------------


def test_a_function_that_raised_has_the_traceback_output_and_cost_of_both_attempts(rota: Shell, story: Story) -> None:
    answer = rota("show", story.raises)
    assert answer.out.startswith(f"divider #{story.raises} failed\n")
    for attempt, heading in ((1, "attempt 1 of 2: failed, tried again"), (2, "attempt 2 of 2: failed")):
        found = lines_after(answer, heading)
        assert "error: ZeroDivisionError: integer division or modulo by zero" in found
        assert "return 1 // number" in found
        assert f"dividing by 0, attempt {attempt}" in found
        assert f"used {100 * attempt} tokens, $0.25" in found
        assert (
            f"output{', the end' if attempt == 1 else ''} (all of it: rota logs {story.raises} --attempt {attempt})"
            in found
        )
    assert re.search(r"used +300 tokens, \$0\.50", answer.out)
    assert re.search(r"project +lab", answer.out)
    assert f"to run it again: rota retry {story.raises}" in answer.out


def test_a_command_that_failed_has_its_exit_code_and_the_end_of_its_output(rota: Shell, story: Story) -> None:
    answer = rota("show", story.breaks)
    found = lines_after(answer, "attempt 1 of 1: failed")
    assert "error: exited with code 3" in found
    assert found[-2:] == ["working", "needle in the output"]
    assert "runner command" in found[0]
    assert lines_after(answer, "payload") == ["{", '"url": "https://example.org"', "}"]
    history = lines_after(answer, "history")
    assert re.fullmatch(r"\d\d:\d\d:\d\d  enqueued  by user:\S+", history[0])
    assert "ended: failed" in history[-1]
    assert "\nchildren\n" not in answer.out
    assert "None" not in answer.out


def test_json_has_everything_with_types(rota: Shell, story: Story) -> None:
    found = rota("show", story.breaks, "--json").json
    assert (found["entry"]["status"], found["agent"], found["project"]) == ("failed", "breaker", "lab")
    (attempt,) = found["attempts"]
    assert (attempt["exit_code"], attempt["ended"]) == (3, "failed")
    assert found["log"]["text"] == "working\nneedle in the output\n"
    assert found["history"][0]["kind"] == "kernel.sched.enqueued"
    assert rota("show", story.expired, "--json").json["log"] is None


def test_parent_child_expired_cancelled_and_succeeded(rota: Shell, story: Story) -> None:
    assert lines_after(rota("show", story.parent), "children") == [f"divider #{story.child} succeeded"]
    child = rota("show", story.child).out
    assert child.startswith(f"divider #{story.child} succeeded\n")
    assert re.search(rf"parent +parent #{story.parent} succeeded", child)
    assert "\nresult\n  1\n" in child
    assert rota("show", story.expired).out.startswith(f"divider #{story.expired} expired\n")
    cancelled = rota("show", story.cancelled).out
    assert cancelled.startswith(f"divider #{story.cancelled} was cancelled\n")
    assert "attempt 1" not in cancelled
    assert rota("show", 999).code == 3


# --- queue -----------------------------------------------------------------------------------------


def ids_of(answer: Answer) -> list[int]:
    return [entry["sched_id"] for entry in answer.json["entries"]]


def test_queue_filters_by_status_and_names_agents(rota: Shell, story: Story) -> None:
    failed = [story.raises, story.breaks, story.secret]
    assert ids_of(rota("queue", "--status", "failed", "--json")) == failed
    both = sorted([*failed, story.expired, story.cancelled])
    assert ids_of(rota("queue", "--status", "failed,expired", "--status", "cancelled", "--json")) == both
    shown = rota("queue", "--status", "failed", "--project", "lab")
    assert re.search(
        rf"^{story.breaks} +breaker +\d+ +lab +0 +failed +\d\d:\d\d:\d\d \(.* ago\)", shown.out, re.MULTILINE
    )
    assert "2 match; in total: 2 succeeded, 3 failed, 1 expired, 1 cancelled" in shown.out
    assert "`rota show ID`" in shown.out
    refused = rota("queue", "--status", "broken")
    assert (refused.code, "waiting, ready, running, succeeded" in refused.err) == (2, True)
    assert rota("queue").out.startswith("no matching entries\n")


def test_queue_searches_payload_result_and_errors(rota: Shell, story: Story) -> None:
    assert ids_of(rota("queue", "--search", "NEEDLE", "--json")) == [story.secret, story.breaks]
    assert ids_of(rota("queue", "--search", "ZeroDivision", "--status", "failed", "--json")) == [story.raises]
    assert ids_of(rota("queue", "--search", "example.org", "--agent", "breaker", "--json")) == [story.breaks]
    assert rota("queue", "--search", "nowhere", "--json").json["is_complete"] is True
    assert "The search stopped before the oldest" in rota("queue", "--search", "needle", "--limit", 1).out
    assert rota("queue", "--search", "x", "--offset", 1).code == 2


def test_ps_names_the_agent_its_progress_and_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shell = make_shell(monkeypatch, capsys)
    monkeypatch.setenv("ROTA_STORE", str(tmp_path / "rota.db"))
    monkeypatch.setenv("COLUMNS", "200")
    with Rota(tmp_path / "rota.db") as rota:
        kernel = rota.kernel
        pid = kernel.agents.create("coder")
        kernel.contexts.create(bound_to="name", bound_id="api", unit="requests", budget=1, period_s=3_600)
        kernel.queue.enqueue_many([ScheduleSpec(pid)] * 2)
        first, second = kernel.queue.claim(worker_id="box", max_n=2)
        supervision = kernel.supervision
        supervision.progress(first.sched_id, first.token or 0, 0.4, "reading")
        for key in ("a", "b"):
            supervision.acquire(second.sched_id, second.token or 0, "api", {"requests": 1}, key=key)
        listed = shell("ps").out.splitlines()
        assert re.fullmatch(
            r"entry +agent +pid +worker +attempt +started +progress +waits for +claim expires *", listed[0]
        )
        assert re.match(r"1 +coder +1 +box +1 of 3 +\d\d:\d\d:\d\d \(.* ago\) +40% reading +– +in ", listed[1])
        assert re.match(r"2 +coder +1 +box +1 of 3 +.* – +limit api, .* ago +in ", listed[2])
        found = shell("ps", "--json").json
        assert [entry["status"] for entry in found["entries"]] == ["running", "running"]
        assert found["running"][0]["progress"]["text"] == "reading"


# --- who may see what --------------------------------------------------------------------------------


def test_a_token_of_one_project_sees_nothing_of_another(story: Story) -> None:
    token = make_token(story.served.path, "read", projects=("lab",))
    with connect(story.served.url, token=token) as client:
        assert client.show(story.breaks).agent == "breaker"
        with pytest.raises(SchedUnknownId):
            client.show(story.secret)
        assert [entry.sched_id for entry in client.queue.search("needle").entries] == [story.breaks]
        assert [entry.sched_id for entry in client.queue.list(status="failed")[0]] == [story.raises, story.breaks]
        assert client.queue.counts(by="status")["failed"] == 2
        keeper = client.queue.running(project_id="vault")
        assert keeper == ([], 0)
        names = client.agents.names(list(range(1, 20)))
        assert set(names.values()) == {"divider", "parent", "breaker"}
        with pytest.raises(Forbidden):
            client.queue.retry(story.breaks)


def test_relatives_behind_a_wall_are_left_out(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db") as served, served.client() as client:
        client.projects.create("lab")
        client.projects.create("vault")
        client.projects.grant("vault", "lab")
        lab, vault = (client.agents.create(name, project_id=name) for name in ("lab", "vault"))
        own = client.enqueue(ScheduleSpec(lab))
        foreign = client.enqueue(ScheduleSpec(vault, parent_id=own, after=(own,)))
        whole = client.show(own)
        assert [each.sched_id for each in whole.children] == [foreign]
        with connect(served.url, token=make_token(served.path, "read", projects=("lab",))) as bound:
            assert bound.show(own).children == ()
        with connect(served.url, token=make_token(served.path, "read", projects=("vault",))) as bound:
            seen = bound.show(foreign)
        assert (seen.parent, seen.after) == (None, ())


# --- where it is suggested -----------------------------------------------------------------------------


def test_a_failure_names_the_command_that_shows_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    print_summary(RunSummary(runs=3, completed=2, failed=1, last_failed=7), as_json=False)
    assert capsys.readouterr().err == "3 runs ended: 2 completed, 1 failed\n  why it failed: rota show 7\n"
    print_summary(RunSummary(runs=3, completed=3), as_json=False)
    assert "rota show" not in capsys.readouterr().err
    shell = make_shell(monkeypatch, capsys)
    monkeypatch.setenv("ROTA_STORE", str(tmp_path / "rota.db"))
    with Rota(tmp_path / "rota.db") as rota:
        pid = rota.kernel.agents.create("coder")
        sched_id = rota.kernel.queue.enqueue(ScheduleSpec(pid, key="one"))
        rota.kernel.queue.cancel(sched_id)
        waited = shell("enqueue", "coder", "--key", "one", "--wait", "1s")
    assert (waited.code, waited.err) == (1, "entry 1\ncancelled; what happened: rota show 1\n")


def test_a_time_beyond_the_calendar_is_shown_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, shell = tmp_path / "far.db", make_shell(monkeypatch, capsys)
    kernel = Kernel(store.open(str(path)))
    kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("bob"), runnable_at=SECONDS_MAX, deadline=SECONDS_MAX))
    kernel.store.close()
    for words in (("queue",), ("show", "1"), ("why", "1")):
        ended = shell(*words, "--store", path)
        assert (ended.code, "beyond the calendar" in ended.out) == (0, True), words

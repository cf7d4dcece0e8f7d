"""The entry page: everything about one entry, live, and what can be done about it."""

from __future__ import annotations

import os

import pytest
from playwright.sync_api import Page, expect

from rota.model import Suggestion
from rota.model.work import ProjectConstraint
from rota.web.live_log import LINE_MAX, LogLines
from rota.web.suggestions import call_of
from tests.web.harness import World, picture
from tests.web.made import agent, authors, failed, queued, running

# --- lines of a log --------------------------------------------------------------------------------


def test_a_log_is_cut_into_lines_as_it_comes() -> None:
    lines = LogLines()
    assert lines.add(b"one\ntw") == ["one"]
    assert lines.add("o ä".encode()[:-1]) == []
    assert lines.add("ä".encode()[-1:] + b"\r\n") == ["two ä"]
    assert lines.add(b"\x1b[31mred\x1b[0m \x07bell\rover", is_last=True) == ["red bell", "over"]
    assert lines.add(b"x" * (LINE_MAX + 5), is_last=True) == ["x" * LINE_MAX]


# --- suggestions as calls --------------------------------------------------------------------------


def test_a_suggestion_becomes_a_typed_call_of_its_author() -> None:
    resume = call_of(Suggestion("resume", "agents.resume", {"pid": 3, "by": "operator"}), "token:7")
    assert resume is not None
    assert (resume[0].name, resume[1]) == ("kernel.agent.resume", {"pid": 3, "by": "token:7"})
    relax = call_of(Suggestion("relax", "projects.constrain", {"project_id": "p", "constraint": {}}), "x")
    assert relax is not None
    assert relax[1]["constraint"] == ProjectConstraint()


@pytest.mark.parametrize("verb", [None, "queue.force_claim", "queue.nonsense"])
def test_a_suggestion_to_wait_is_no_call(verb: str | None) -> None:
    assert call_of(Suggestion("wait", verb, {}), "x") is None


# --- in the browser --------------------------------------------------------------------------------


def test_a_run_is_followed_from_the_queue_to_its_end(operator: Page, shared: World) -> None:
    """Within a second or so each: the status, the progress, what it prints, what it used."""
    with shared.client() as client:
        pid = agent(client, "followed", "followed-live")
        sched_id = queued(client, pid, payload={"task": "read"}, runnable_at=4e9)
        operator.goto(f"{shared.board.url}/entry/{sched_id}")
        chip = operator.locator(".page .chip").first
        expect(chip).to_have_text("waiting")
        cancel = operator.get_by_role("button", name="Cancel")
        cancel.focus()
        client.queue.change(sched_id, runnable_at=0.0)
        expect(chip).to_have_text("ready")
        expect(cancel).to_be_focused()
        token = client.queue.force_claim(sched_id, worker_id="w").token
        assert token is not None
        expect(chip).to_have_text("running")
        expect(operator.locator(".toolbar:focus")).to_contain_text("Stop")  # the button is gone
        child = queued(client, pid, parent_id=sched_id, runnable_at=4e9)
        link = operator.locator(f'a[href="/entry/{child}"]')
        link.focus()
        client.queue.request_cancel(child)
        expect(link).to_contain_text("cancelled")
        expect(link).to_be_focused()
        client.logs.append(sched_id, 1, token, 0, b"first line\n")
        log = operator.get_by_role("log")
        expect(log).to_contain_text("first line")
        client.supervision.progress(sched_id, token, 0.25, "a quarter")
        expect(operator.get_by_text("25% a quarter").first).to_be_visible()
        client.logs.append(sched_id, 1, token, 11, b"second line\n")
        expect(log).to_contain_text("second line")
        client.queue.charge(sched_id, {"tokens": 1_234}, token=token)
        expect(operator.get_by_text("1,234 tokens").first).to_be_visible()
        picture(operator, "entry-running")
        client.complete(sched_id, "completed", token=token, result={"answer": 42})
        expect(chip).to_have_text("succeeded")
        expect(operator.get_by_text('"answer": 42')).to_be_visible()


def test_why_it_waits_is_said_and_one_press_changes_it(operator: Page, shared: World) -> None:
    """The budget of its project is used up: the page says so, and its button raises the budget."""
    with shared.client() as client:
        pid = agent(client, "over-budget", "poor")
        client.ledger.set_budget("project", "poor", "tokens", 100)
        done, token = running(client, pid)
        client.queue.charge(done, {"tokens": 100}, token=token)
        client.complete(done, "completed", token=token)
        sched_id = queued(client, pid)
    operator.goto(f"{shared.board.url}/entry/{sched_id}")
    why = operator.get_by_role("region", name="Why it is not running")
    expect(why).to_contain_text("Blocked: tokens of project poor: 100 used")
    picture(operator, "entry-why")
    why.get_by_role("button", name="raise tokens of project poor").click()
    operator.get_by_role("alertdialog").get_by_role("button", name="Change").click()
    expect(why).not_to_contain_text("Blocked")
    with shared.client() as client:
        assert next(line.limit for line in client.ledger.budgets() if line.owner == "poor") > 100
    assert authors(shared, "kernel.budget.set")[-1] == f"uid:{os.getuid()}"


def test_a_failed_entry_is_retried_and_its_copy_shown(operator: Page, shared: World) -> None:
    with shared.client() as client:
        sched_id = failed(client, agent(client, "fails-once", "retry-one"), "no such file")
    operator.goto(f"{shared.board.url}/entry/{sched_id}")
    expect(operator.get_by_text("error: no such file")).to_be_visible()
    operator.get_by_role("button", name="Retry").click()
    operator.wait_for_url(lambda url: not url.endswith(f"/{sched_id}"))
    expect(operator.locator(".page .chip").first).to_have_text("ready")


def test_a_running_entry_is_stopped_and_its_priority_changed_before(operator: Page, shared: World) -> None:
    with shared.client() as client:
        pid = agent(client, "stopped", "stopped-one")
        sched_id = queued(client, pid, runnable_at=4e9)
        operator.goto(f"{shared.board.url}/entry/{sched_id}")
        operator.get_by_role("button", name="Change priority …").click()
        operator.get_by_label("Priority; higher runs sooner").fill("9")
        operator.get_by_role("dialog").get_by_role("button", name="Change").click()
        expect(operator.get_by_text("has priority 9")).to_be_visible()
        client.queue.change(sched_id, runnable_at=0.0)
        client.queue.force_claim(sched_id, worker_id="w")
        operator.get_by_role("button", name="Stop").click()
        operator.get_by_role("alertdialog").get_by_role("button", name="Stop").click()
        expect(operator.get_by_text(f"entry {sched_id} is asked to stop").first).to_be_visible()  # not the dialog
        assert client.get(sched_id).cancel_requested
        assert client.get(sched_id).priority == 9


@pytest.mark.parametrize("path", ["999999999", "nonsense", "9" * 40])
def test_an_unknown_entry_leads_to_the_queue(operator: Page, shared: World, path: str) -> None:
    operator.goto(f"{shared.board.url}/entry/{path}")
    expect(operator.get_by_text("There is no such entry")).to_be_visible()

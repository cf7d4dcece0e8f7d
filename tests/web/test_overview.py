"""The overview: live numbers, shares, budgets and limits; and the pause of the whole fleet."""

from __future__ import annotations

import os

from playwright.sync_api import Page, expect

from tests.web.harness import World, picture
from tests.web.made import agent, authors, queued, running


def test_numbers_shares_budgets_and_limits_are_live(operator: Page, shared: World) -> None:
    operator.goto(shared.board.url)
    expect(operator.locator("header [role=status]")).to_have_text("live")
    with shared.client() as client:
        pid = agent(client, "overseen", "overseen")
        client.ledger.set_budget("project", "overseen", "tokens", 1_000)
        client.contexts.create(bound_to="name", bound_id="overseen-limit", budget=5, period_s=60.0, unit="requests")
        sched_id, token = running(client, pid, draws_on=("overseen-limit",))
        client.queue.charge(sched_id, {"tokens": 400}, token=token)
        expect(operator.get_by_text("400 of 1,000 per 1 d")).to_be_visible()
        expect(operator.get_by_role("meter", name="overseen: tokens")).to_have_attribute("value", "0.4")
        expect(operator.get_by_text("4 left of 5 per 1 min")).to_be_visible()
        client.complete(sched_id, "completed", token=token)
        expect(operator.get_by_text(f"overseen #{sched_id} completed")).to_be_visible()
        queued(client, pid, runnable_at=4e9)
    expect(operator.get_by_role("region", name="Shares: actual against target")).to_contain_text("overseen")
    picture(operator, "overview")


def test_the_fleet_is_paused_and_resumed(operator: Page, shared: World) -> None:
    operator.goto(shared.board.url)
    operator.get_by_role("button", name="Pause the fleet").press("Enter")
    operator.get_by_role("alertdialog").get_by_role("button", name="Pause").press("Enter")
    expect(operator.get_by_text(f"The fleet is paused by uid:{os.getuid()}")).to_be_visible()
    resume = operator.get_by_role("button", name="Resume the fleet")
    expect(resume).to_be_focused()
    resume.press("Enter")
    expect(operator.get_by_role("button", name="Pause the fleet")).to_be_focused()
    with shared.client() as client:
        assert client.projects.fleet_paused_by() is None
    assert authors(shared, "kernel.pause.set")[-1] == f"uid:{os.getuid()}"

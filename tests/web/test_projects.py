"""Projects and agents: an operator changes weights and caps; usage per day."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.web.harness import World, picture
from tests.web.made import agent, authors, failed, token_of


def test_an_operator_changes_a_project_and_an_agent(page: Page, shared: World) -> None:
    token, author = token_of(shared, "operate")
    with shared.client() as client:
        failed(client, agent(client, "weighty-agent", "weighty"))
    shared.board.enter_with(page, token)
    page.goto(f"{shared.board.url}/projects?project=weighty")
    page.get_by_role("button", name="Change weighty", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Weight (thousandths)").fill("none")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_text("weight must be a whole number from 1")).to_be_visible()
    page.get_by_role("button", name="OK").press("Enter")
    expect(page.get_by_role("button", name="Change weighty", exact=True)).to_be_focused()
    page.get_by_role("button", name="Change weighty", exact=True).click()
    dialog.get_by_label("Weight (thousandths)").fill("2500")
    dialog.get_by_label("Most runs at once").fill("3")
    dialog.get_by_role("button", name="Save").click()
    project = page.get_by_role("row").filter(has=page.get_by_role("link", name="weighty", exact=True))
    expect(project).to_contain_text("2,500")
    page.get_by_role("button", name="Pause weighty-agent").press("Enter")
    expect(page.get_by_role("button", name="Resume weighty-agent")).to_be_focused()
    picture(page, "projects")
    with shared.client() as client:
        found = client.projects.get("weighty")
        assert (found.weight, found.max_concurrent) == (2_500, 3)
        assert client.agents.find("weighty-agent")[0].paused_by == author
    assert author in authors(shared, "kernel.project.updated")
    usage = page.get_by_role("group", name="Usage by day and project")
    expect(usage.get_by_role("cell", name="weighty", exact=True)).to_be_visible()

"""Graphs in a real browser: the picture of a run changes its colours as its nodes run; boxes lead to entries."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.web.harness import World, picture
from tests.web.made import GRAPH_NODE as NODE
from tests.web.made import WORKER, authors, start_graph, token_of


def test_a_runs_picture_is_live_and_its_budget_can_be_raised(page: Page, shared: World) -> None:
    token, author = token_of(shared, "operate")
    sched_id = start_graph(shared, "web-r1")
    shared.board.enter_with(page, token)
    page.goto(f"{shared.board.url}/graphs")
    link = page.get_by_role("link", name="web-r1", exact=True)
    link.focus()
    start_graph(shared, "web-r2")
    expect(page.get_by_role("link", name="web-r2", exact=True)).to_be_visible()
    expect(link).to_be_focused()
    link.press("Enter")
    box = page.locator(f'svg a[href="/entry/{sched_id}"]')
    expect(box).to_contain_text(NODE)
    expect(box).to_contain_text("ready")
    box.focus()
    with shared.client() as client:
        token_of_claim = client.queue.force_claim(sched_id, worker_id=WORKER).token
        expect(box).to_contain_text("running")
        expect(box).to_be_focused()
        picture(page, "graph-running")
        client.complete(sched_id, "completed", token=token_of_claim)
    expect(box).to_contain_text("succeeded")
    page.get_by_role("button", name="Raise tokens of the run").click()
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.get_by_role("cell", name="1,000", exact=True)).to_be_visible()
    page.get_by_role("button", name="Cancel the run").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Cancel the run").click()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    with shared.client() as client:
        assert client.graphs.show("web-r1").run.status == "cancelled"
    assert author in authors(shared, "kernel.graph.ended")


def test_an_unknown_run_leads_to_the_list(operator: Page, shared: World) -> None:
    operator.goto(f"{shared.board.url}/graph/no-such-run")
    expect(operator.get_by_text("There is no such graph run")).to_be_visible()

"""Graphs in a real browser: the picture of a run changes its colours as its nodes run; boxes lead to entries."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page, expect

from rota.kernel.graph_entries import key_prefix
from rota.model.graph_budgets import GraphAccount
from rota.model.work import ScheduleSpec
from tests.web.harness import World, picture
from tests.web.made import WORKER, agent, authors, token_of

DOCUMENT: dict[str, Any] = {
    "schema_version": 2,
    "graph": {"name": "web-report"},
    "lanes": {"main": {"type": "event_loop"}},
    "components": [
        {"id": "topic", "type": "rota.input", "execution": {"lane": "main"}},
        {"id": "<b>found</b>", "execution": {"agent": "web-researcher", "budget": {"tokens": 300}}},
        {"id": "text", "type": "rota.output", "execution": {"lane": "main"}},
    ],
    "edges": [
        {"id": "ask", "kind": "async", "from": "topic.out", "to": "<b>found</b>.topic"},
        {"id": "answer", "kind": "async", "from": "<b>found</b>.out", "to": "text.value"},
    ],
}
NODE = "<b>found</b>"


def start(world: World, run_id: str) -> int:
    """Start a run and coordinate it up to the entry of its agent, which runs; return that entry."""
    with world.client() as client:
        found = client.agents.find("web-researcher")
        pid = found[0].pid if found else agent(client, "web-researcher", "graphs")
        run = client.graphs.start(DOCUMENT, {"topic": "tides"}, run_id, "graphs", {"tokens": 500})
        assert run.sched_id is not None
        token = client.queue.force_claim(run.sched_id, worker_id=WORKER).token or 0
        fence = client.graphs.take_entry(run.sched_id, token).fence
        spec = ScheduleSpec(
            pid,
            trigger="graph",
            correlation_id=run_id,
            key=f"{key_prefix(run_id)}2/{NODE}/1",
            account=GraphAccount(run_id, NODE),
            max_attempts=1,
        )
        (sched_id,) = client.graphs.enqueue(run_id, fence, [spec])
        return sched_id


def test_a_runs_picture_is_live_and_its_budget_can_be_raised(page: Page, shared: World) -> None:
    token, author = token_of(shared, "operate")
    sched_id = start(shared, "web-r1")
    shared.board.sign_in_with(page, token)
    page.goto(f"{shared.board.url}/graphs")
    page.get_by_role("link", name="web-r1", exact=True).click()
    box = page.locator(f'svg a[href="/entry/{sched_id}"]')
    expect(box).to_contain_text(NODE)
    expect(box).to_contain_text("ready")
    with shared.client() as client:
        token_of_claim = client.queue.force_claim(sched_id, worker_id=WORKER).token
        expect(box).to_contain_text("running")
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


def test_a_viewer_sees_a_run_and_cannot_act(page: Page, shared: World) -> None:
    token, _ = token_of(shared, "read")
    sched_id = start(shared, "web-r2")
    shared.board.sign_in_with(page, token)
    page.goto(f"{shared.board.url}/graph/web-r2")
    expect(page.locator(f'svg a[href="/entry/{sched_id}"]')).to_be_visible()
    expect(page.get_by_role("cell", name="node <b>found</b>", exact=True)).to_be_visible()
    for word in ("Cancel the run", "Resume", "Raise"):
        expect(page.get_by_role("button", name=word)).to_have_count(0)
    page.goto(f"{shared.board.url}/graph/no-such-run")
    expect(page.get_by_text("There is no such graph run")).to_be_visible()

"""The journal in a real browser: sentences arrive as events happen; filters, a pause, and the details of one event."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from rota.model.work import ScheduleSpec
from tests.web.harness import World, picture
from tests.web.made import agent, queued

HOSTILE = '<img src=x onerror="window.planted=1">'


def test_what_happens_appears_and_is_filtered(operator: Page, shared: World) -> None:
    with shared.client() as client:
        told, other = agent(client, "told", "told-project"), agent(client, "untold", "untold-project")
        before = queued(client, told, runnable_at=4e9)
        operator.goto(f"{shared.board.url}/journal?project=told-project")
        expect(operator.get_by_text(f"told #{before} queued")).to_be_visible()
        after, hidden = queued(client, told, runnable_at=4e9), queued(client, other, runnable_at=4e9)
        expect(operator.get_by_text(f"told #{after} queued")).to_be_visible()
        expect(operator.get_by_text(f"#{hidden} queued")).to_have_count(0)
        expect(operator.get_by_role("link", name=str(after), exact=True)).to_have_attribute("href", f"/entry/{after}")
        picture(operator, "journal")
        operator.get_by_role("button", name="Pause").click()
        client.journal.append(told, "mine.said", {"words": HOSTILE})
        missed = queued(client, told, runnable_at=4e9)
        expect(operator.get_by_text(", paused")).to_be_visible()
        expect(operator.get_by_text(f"told #{missed} queued")).to_have_count(0)
        operator.get_by_role("button", name="Go on").click()
        expect(operator.get_by_text(f"told #{missed} queued")).to_be_visible()
        details = operator.get_by_role("row").filter(has_text=f"told #{missed} queued").get_by_role("button")
        details.focus()
        for _ in range(2):  # more than the browser draws at once
            client.enqueue_many([ScheduleSpec(pid=told, runnable_at=4e9) for _ in range(40)])
            expect(operator.get_by_text(f"up to event {client.journal.cursor():,}")).to_be_visible()
            expect(details).to_be_focused()
            expect(details).to_be_in_viewport()
    operator.get_by_label("Search").fill("mine.said")
    expect(operator.get_by_text(f"told #{missed} queued")).to_have_count(0)
    operator.get_by_role("button", name="Details").click()
    expect(operator.get_by_role("region", name="Payload")).to_contain_text("onerror")
    assert operator.evaluate("window.planted") is None


def test_it_is_filtered_by_kind_and_agent(operator: Page, shared: World) -> None:
    with shared.client() as client:
        first, second = agent(client, "kind-a", "kinds"), agent(client, "kind-b", "kinds")
        ids = [queued(client, pid, runnable_at=4e9) for pid in (first, second)]
    operator.goto(f"{shared.board.url}/journal?agent=kind-b")
    expect(operator.get_by_text(f"kind-b #{ids[1]} queued")).to_be_visible()
    expect(operator.get_by_text(f"kind-a #{ids[0]} queued")).to_have_count(0)
    operator.get_by_label("About").click()
    operator.get_by_role("option", name="agents").click()
    expect(operator.get_by_text("agent kind-b was created")).to_be_visible()
    expect(operator.get_by_text(f"kind-b #{ids[1]} queued")).to_have_count(0)

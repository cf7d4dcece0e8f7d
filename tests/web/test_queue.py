"""The queue page: filters, search, pages of many entries, and changes of many at once."""

from __future__ import annotations

import os

import pytest
from playwright.sync_api import Page, expect

from rota.model.work import ReadyEntry, ScheduleSpec
from rota.web.queue_view import PAGE_SIZE, QueueView, row_of
from tests.web.harness import World, picture
from tests.web.made import agent, authors, failed, queued

MANY = 100_000 if "ROTA_SOAK" in os.environ else 10_000


# --- which part is shown ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "total", "expected"),
    [(1, 0, (0, 0, 0, 0)), (1, 3, (0, 3, 1, 3)), (1, 120, (70, 50, 1, 50)), (3, 120, (0, 20, 101, 120))],
)
def test_a_page_is_a_part_of_the_list_counted_from_its_end(
    page: int, total: int, expected: tuple[int, int, int, int]
) -> None:
    window = QueueView(page=page).window(total)
    assert (window.offset, window.limit, window.first, window.last) == expected


def test_all_pages_together_show_every_entry_once() -> None:
    total = 3 * PAGE_SIZE + 7
    windows = [QueueView(page=number).window(total) for number in range(1, QueueView().window(total).pages + 1)]
    shown = [at for window in windows for at in range(window.offset, window.offset + window.limit)]
    assert sorted(shown) == list(range(total))


def test_an_address_keeps_the_view_and_nonsense_in_it_is_left_out() -> None:
    view = QueueView(status=("failed", "ready"), text="a&b", agent="x", project="p", tag="t", page=3)
    query = dict(pair.split("=", 1) for pair in view.address().partition("?")[2].split("&"))
    assert query["text"] == "a%26b"
    assert QueueView.of_query({"status": "failed,nonsense", "page": "-1"}) == QueueView(status=("failed",))
    assert QueueView.of_query({"page": "9" * 30}).window(10).limit == 10


def test_a_row_says_what_matters_about_its_status() -> None:
    ready = ReadyEntry(7, 1, 0, 0.0, None, "manual", {}, "queued", None, 0.0, None, None, None)
    assert row_of(ready, {1: "bob"}, 10.0)["agent"] == "bob"
    assert row_of(ready, {}, 10.0)["agent"] == "agent 1"
    assert row_of(ready, {}, 10.0)["detail"].startswith("since ")


# --- in the browser --------------------------------------------------------------------------------


def test_many_entries_are_paged_searched_and_filtered(operator: Page, shared: World) -> None:
    with shared.client() as client:
        pid = agent(client, "many", "many-entries")
        specs = [ScheduleSpec(pid=pid, payload={"n": number}, runnable_at=4e9) for number in range(MANY)]
        ids = [sched_id for at in range(0, MANY, 1_000) for sched_id in client.enqueue_many(specs[at : at + 1_000])]
        wanted = queued(client, pid, payload={"text": "needle in it"}, tags=("special",), runnable_at=4e9)
    operator.goto(f"{shared.board.url}/queue?project=many-entries")
    expect(operator.get_by_text(f"1 to 50 of {MANY + 1:,}")).to_be_visible()
    expect(operator.locator("tbody tr")).to_have_count(PAGE_SIZE)
    expect(operator.get_by_role("link", name=f"#{wanted}", exact=True)).to_be_visible()
    picture(operator, "queue-10000")
    operator.get_by_role("button", name="Older").click()
    expect(operator.get_by_text(f"51 to 100 of {MANY + 1:,}")).to_be_visible()
    expect(operator.get_by_role("link", name=f"#{ids[-50]}", exact=True)).to_be_visible()
    operator.get_by_label("Search in payloads, results and errors").fill("needle")
    expect(operator.locator("tbody tr")).to_have_count(1)
    operator.get_by_label("Search in payloads, results and errors").fill("")
    operator.get_by_label("Tag").fill("special")
    expect(operator.get_by_text("1 to 1 of 1")).to_be_visible()
    assert "tag=special" in operator.url
    operator.get_by_label("Agent").fill("no-such-agent")
    expect(operator.get_by_text("there is no agent no-such-agent")).to_be_visible()


def test_the_focus_stays_in_its_row_when_rows_are_drawn_again(operator: Page, shared: World) -> None:
    with shared.client() as client:
        pid = agent(client, "focused", "focused")
        plain, kept = (ScheduleSpec(pid=pid, tags=tags, runnable_at=4e9) for tags in ((), ("kept",)))
        oldest, *_, below, gone, above = client.enqueue_many([plain] * 48 + [kept, plain, kept])
        operator.goto(f"{shared.board.url}/queue?project=focused")
        box, tag = operator.get_by_role("checkbox", name=f"Select entry {below}"), operator.get_by_label("Tag")
        box.focus()
        client.queue.change(below, priority=74243)
        expect(operator.get_by_role("cell", name="74243")).to_be_visible()
        expect(box).to_be_focused()
        tag.fill("kept")
        operator.get_by_role("link", name=f"#{gone}", exact=True).focus()
        expect(operator.locator("tbody tr").filter(has_text=f"#{below}")).to_be_focused()  # the next row
        tag.focus()
        tag.evaluate("field => field.setSelectionRange(1, 3)")
        client.queue.change(below, priority=74244)
        expect(operator.get_by_role("cell", name="74244")).to_be_visible()
        assert tag.evaluate("field => [field.selectionStart, field.selectionEnd]") == [1, 3]
    tag.fill("")
    link = operator.get_by_role("link", name=f"#{above}", exact=True)
    link.focus()
    expect(operator.locator("tbody tr")).to_have_count(PAGE_SIZE)
    expect(link).to_be_focused()
    operator.get_by_role("button", name="Older").press("Enter")
    expect(operator.locator(".toolbar:focus")).to_contain_text("51 to 51 of 51")  # the button is hidden
    tag.fill("none")
    operator.get_by_role("link", name=f"#{oldest}", exact=True).focus()
    expect(operator.get_by_text("No entry matches")).to_be_visible()
    expect(operator.locator("main.page")).to_be_focused()


def test_selected_entries_are_retried_after_a_question(operator: Page, shared: World) -> None:
    with shared.client() as client:
        pid = agent(client, "bulk-retry", "bulk-retry")
        ids = [failed(client, pid) for _ in range(3)]
    operator.goto(f"{shared.board.url}/queue?project=bulk-retry")
    for sched_id in ids[:2]:
        row = operator.locator("tbody tr").filter(has=operator.get_by_role("link", name=f"#{sched_id}", exact=True))
        row.get_by_role("checkbox").click()
    expect(operator.get_by_text("2 selected")).to_be_visible()
    operator.get_by_role("button", name="Retry", exact=True).click()
    dialog = operator.get_by_role("alertdialog")
    expect(dialog).to_contain_text("Retry 2 entries?")
    dialog.get_by_role("button", name="Back").click()
    with shared.client() as client:
        assert client.queue.list(project_id="bulk-retry")[1] == 3
    operator.get_by_role("button", name="Retry", exact=True).click()
    operator.get_by_role("alertdialog").get_by_role("button", name="Retry 2").click()
    expect(operator.get_by_text("1 to 5 of 5")).to_be_visible()


def test_all_that_match_are_changed_then_cancelled(operator: Page, shared: World) -> None:
    with shared.client() as client:
        pid = agent(client, "bulk-change", "bulk-change")
        ids = [queued(client, pid, runnable_at=4e9) for _ in range(4)]
        done = failed(client, pid)
    operator.goto(f"{shared.board.url}/queue?project=bulk-change")
    expect(operator.get_by_text("all 5 that match")).to_be_visible()
    operator.get_by_role("button", name="Change …").click()
    operator.get_by_label("Priority; higher runs sooner").fill("74242")
    operator.get_by_role("button", name="Continue").click()
    operator.get_by_role("alertdialog").get_by_role("button", name="Change 4").click()
    expect(operator.locator("tbody tr").filter(has_text="74242")).to_have_count(4)
    operator.get_by_role("button", name="Cancel", exact=True).click()
    operator.get_by_role("alertdialog").get_by_role("button", name="Cancel 4").click()
    expect(operator.locator("tbody .chip").filter(has_text="cancelled")).to_have_count(4)
    with shared.client() as client:
        assert {client.get(sched_id).priority for sched_id in ids} == {74242}
        assert client.get(done).status == "failed"
    assert "uid:0" in authors(shared, "kernel.sched.cancelled")


def test_the_agents_of_selected_entries_are_paused(operator: Page, shared: World) -> None:
    with shared.client() as client:
        pid = agent(client, "paused-in-browser", "bulk-pause")
        queued(client, pid, runnable_at=4e9)
    operator.goto(f"{shared.board.url}/queue?project=bulk-pause")
    operator.locator("tbody tr").get_by_role("checkbox").click()
    operator.get_by_role("button", name="Pause their agents").click()
    operator.get_by_role("alertdialog").get_by_role("button", name="Pause").click()
    expect(operator.get_by_text("agent paused-in-browser is paused")).to_be_visible()
    with shared.client() as client:
        assert [found.pid for found in client.agents.paused("uid:0")] == [pid]
        client.agents.resume(pid, "test")


def test_why_entries_wait_is_counted(operator: Page, shared: World) -> None:
    with shared.client() as client:
        pid = agent(client, "waits-for-time", "counted")
        sched_id, _ = (queued(client, pid, runnable_at=4e9) for _ in range(2))
    operator.goto(f"{shared.board.url}/queue?project=counted")
    operator.get_by_role("button", name="Why do they wait?").click()
    dialog = operator.get_by_role("dialog")
    expect(dialog).to_contain_text("2 waiting")
    expect(dialog.get_by_role("link", name=f"#{sched_id}").first).to_be_visible()

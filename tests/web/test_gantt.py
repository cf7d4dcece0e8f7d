"""The Gantt page in a real browser: runs appear as they happen, bars lead to entries, and the chart can be exported."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from playwright.sync_api import Locator, Page, expect

from tests.web.harness import World, picture
from tests.web.made import agent, failed, running


def row_of(page: Page, sched_id: int) -> Locator:
    """The row of an entry in the table of runs."""
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=str(sched_id), exact=True))


def test_a_run_appears_while_one_looks_and_can_be_exported(operator: Page, shared: World, tmp_path: Path) -> None:
    operator.goto(f"{shared.board.url}/gantt")
    with shared.client() as client:
        pid = agent(client, "drawn", "gantt-project")
        sched_id, token = running(client, pid, max_attempts=1)
        bar = operator.locator(f'svg a[href="/entry/{sched_id}"]')
        bar.focus()
        expect(row_of(operator, sched_id)).to_contain_text("runs")
        client.complete(sched_id, "failed", token=token)
    expect(row_of(operator, sched_id)).to_contain_text("failed")
    expect(bar.locator("rect.bar-bad")).to_be_attached()
    expect(bar).to_be_focused()
    expect(operator.locator(".legend")).to_contain_text("gantt-project")
    picture(operator, "gantt")
    for form in ("SVG", "CSV"):
        with operator.expect_download() as download:
            operator.get_by_role("button", name=f"Export {form}").click()
        download.value.save_as(tmp_path / form)
    assert (tmp_path / "SVG").read_text().startswith("<svg")
    lines = list(csv.DictReader(io.StringIO((tmp_path / "CSV").read_text())))
    assert [line["ending"] for line in lines if line["entry"] == str(sched_id)] == ["failed"]


def test_it_zooms_moves_and_reads_what_is_older_from_the_journal(operator: Page, shared: World) -> None:
    with shared.client() as client:
        sched_id = failed(client, agent(client, "zoomed", "gantt-project"))
    operator.goto(f"{shared.board.url}/gantt?window=60")
    expect(operator.get_by_label("Shown")).to_have_value("1 min")
    for _ in range(3):
        operator.get_by_role("button", name="Zoom out").click()
    expect(operator.get_by_label("Shown")).to_have_value("1 h")
    expect(row_of(operator, sched_id)).to_be_visible()
    for _ in range(2):
        operator.get_by_role("button", name="Earlier").click()
    expect(operator.get_by_text("rota run fleet.toml")).to_be_visible()
    operator.get_by_role("button", name="Now", exact=True).press("Enter")
    expect(row_of(operator, sched_id)).to_be_visible()
    expect(operator.locator(".toolbar:focus")).to_be_visible()  # the button is disabled

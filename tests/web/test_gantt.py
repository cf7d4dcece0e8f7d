"""The Gantt page in a real browser: runs appear as they happen, bars lead to entries, and the chart can be exported."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from playwright.sync_api import Page, expect

from rota.kernel import ScheduleSpec
from tests.web.harness import World, picture

HOSTILE = '<img src=x onerror="window.planted=1">'


def test_an_empty_chart_teaches_how_to_start_a_fleet(signed_in: Page, world: World) -> None:
    signed_in.goto(f"{world.board.url}/gantt")
    expect(signed_in.get_by_text("rota run fleet.toml")).to_be_visible()
    picture(signed_in, "gantt-empty")


def test_a_run_appears_while_one_looks_and_leads_to_its_entry(signed_in: Page, world: World) -> None:
    signed_in.goto(f"{world.board.url}/gantt")
    with world.client() as client:
        client.projects.create("alpha")
        pid = client.agents.create("coder", project_id="alpha")
        other = client.agents.create("spy")
        client.queue.enqueue_many([ScheduleSpec(pid, max_attempts=1), ScheduleSpec(other, max_attempts=1)])
        first, second = client.claim(HOSTILE, max_n=2)
        bar = signed_in.locator(f'svg a[href="/entry/{first.sched_id}"]')
        expect(bar).to_be_attached()
        expect(signed_in.get_by_role("cell", name="runs", exact=True)).to_have_count(2)
        client.complete(first.sched_id, "completed", token=first.token)
        client.complete(second.sched_id, "failed", token=second.token)
    expect(signed_in.get_by_role("cell", name="failed", exact=True)).to_be_visible()
    expect(signed_in.get_by_role("cell", name="completed", exact=True)).to_be_visible()
    expect(signed_in.locator(".legend")).to_contain_text("alpha")
    expect(signed_in.locator("svg text").filter(has_text="onerror")).to_have_count(2)
    assert signed_in.evaluate("window.planted") is None
    expect(signed_in.get_by_role("link", name=str(first.sched_id), exact=True)).to_have_attribute(
        "href", f"/entry/{first.sched_id}"
    )
    picture(signed_in, "gantt-light")


def test_it_zooms_moves_and_reads_what_is_older_from_the_journal(signed_in: Page, world: World) -> None:
    signed_in.goto(f"{world.board.url}/gantt?window=60")
    expect(signed_in.get_by_label("Shown")).to_have_value("1 min")
    for _ in range(3):
        signed_in.get_by_role("button", name="Zoom out").click()
    expect(signed_in.get_by_label("Shown")).to_have_value("1 h")
    expect(signed_in.get_by_role("cell", name="failed", exact=True)).to_be_visible()
    for _ in range(2):
        signed_in.get_by_role("button", name="Earlier").click()
    expect(signed_in.get_by_text("rota run fleet.toml")).to_be_visible()
    signed_in.get_by_role("button", name="Now").click()
    expect(signed_in.get_by_role("cell", name="failed", exact=True)).to_be_visible()


def test_the_chart_is_exported_as_svg_and_csv(signed_in: Page, world: World, tmp_path: Path) -> None:
    signed_in.goto(f"{world.board.url}/gantt")
    expect(signed_in.get_by_role("cell", name="failed", exact=True)).to_be_visible()
    for form in ("SVG", "CSV"):
        with signed_in.expect_download() as download:
            signed_in.get_by_role("button", name=f"Export {form}").click()
        download.value.save_as(tmp_path / form)
    assert (tmp_path / "SVG").read_text().startswith("<svg")
    lines = list(csv.DictReader(io.StringIO((tmp_path / "CSV").read_text())))
    assert [(line["agent"], line["ending"]) for line in lines] == [("coder", "completed"), ("spy", "failed")]

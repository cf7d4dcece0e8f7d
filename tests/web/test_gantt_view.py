"""The chart of runs as a picture, a document and values: pure functions of rows and an interval."""

from __future__ import annotations

import csv
import io
from collections import deque
from xml.etree import ElementTree as ET

from rota.observe import ChartRow, RunSpan
from rota.web.gantt_view import ROWS_MAX, GanttView, gantt_view, to_csv, to_svg

SVG = "{http://www.w3.org/2000/svg}"
NOW = 1_000_000.0
NAMES = {1: "coder", 2: "=cmd|' /C calc'!A0", 3: "<script>alert(1)</script>"}


def row(*runs: RunSpan, worker: str = "box", number: int = 1) -> ChartRow:
    return ChartRow(worker, number, deque(runs))


def run(sched_id: int, start_s: float, end_s: float | None, *, pid: int = 1, ending: str = "completed") -> RunSpan:
    """A run that began and ended so many seconds ago."""
    ended = None if end_s is None else NOW - end_s
    return RunSpan(sched_id, pid, "alpha", NOW - start_s, ended, None if end_s is None else ending)  # type: ignore[arg-type]


def view(*rows: ChartRow, window_s: float = 100.0, until_at: float = NOW) -> GanttView:
    return gantt_view(rows, lambda pid: NAMES[pid], since_at=until_at - window_s, until_at=until_at, now=NOW)


def test_a_bar_is_where_its_run_was() -> None:
    shown = view(row(run(1, 75, 50), run(2, 25, None)))
    ended, running = shown.rows[0].bars
    assert (ended.left, ended.width, ended.ending) == (0.25, 0.25, "completed")
    assert (running.left, running.width, running.ending) == (0.75, 0.25, None)
    assert ended.tip.startswith("coder #1 of alpha: completed, 25.0 s")
    assert shown.projects == ("alpha",)


def test_a_run_that_reaches_over_an_edge_is_cut_there_and_one_outside_is_not_drawn() -> None:
    (bar,) = view(row(run(1, 500, 400), run(2, 150, 50))).rows[0].bars
    assert (bar.sched_id, bar.left, bar.width) == (2, 0.0, 0.5)
    assert view(row(run(1, 500, 400))).rows == ()


def test_narrow_neighbours_are_one_bar_that_says_how_many_and_the_worst_end() -> None:
    runs = [run(number, 50.0 - number / 100, 50.0 - number / 100 - 0.005) for number in range(1, 21)]
    runs[7].ending = "failed"
    (bar,) = view(row(*runs)).rows[0].bars
    assert (bar.count, bar.ending) == (20, "failed")
    assert bar.tip == "20 runs of alpha, at least one failed"


def test_a_thousand_short_runs_make_a_small_picture() -> None:
    runs = [run(number, 100 - number / 10, 100 - number / 10 - 0.05) for number in range(1_000)]
    assert len(view(row(*runs)).rows[0].bars) <= 1_010 / 3


def test_rows_beyond_the_maximum_are_counted() -> None:
    rows = [row(run(number, 50, 40), number=number) for number in range(1, ROWS_MAX + 2)]
    assert (len(view(*rows[:-1]).rows), view(*rows[:-1]).rows_left_out) == (ROWS_MAX, 0)
    assert (len(view(*rows).rows), view(*rows).rows_left_out) == (ROWS_MAX, 1)


def test_on_a_page_bars_lead_to_entries_and_names_are_texts() -> None:
    shown = view(row(run(7, 50, 40, pid=3, ending="failed"), worker="<b>box</b>"))
    drawn = ET.fromstring(to_svg(shown, is_page=True))
    (link,) = drawn.iter(f"{SVG}a")
    assert link.get("href") == "/entry/7"
    assert "<script>" in (link.get("aria-label") or "")
    assert [each for each in drawn.iter() if each.tag.endswith("script") or each.tag.endswith("}b")] == []
    assert [each.get("class") for each in link] == ["bar-0", "bar-bad"]


def test_the_document_stands_alone_and_names_the_projects() -> None:
    drawn = ET.fromstring(to_svg(view(row(run(7, 50, 40)))))
    assert list(drawn.iter(f"{SVG}a")) == []
    assert "alpha" in [each.text for each in drawn.iter(f"{SVG}text")]
    assert "1970-01-12 13:45:00" in (drawn.findtext(f"{SVG}title") or "")


def test_the_values_have_every_run_and_no_formula() -> None:
    runs = row(run(1, 500, 400), run(2, 50, 40.5, pid=2), run(3, 20, None, pid=3))
    lines = list(
        csv.DictReader(io.StringIO(to_csv([runs], NAMES.__getitem__, since_at=NOW - 100, until_at=NOW, now=NOW)))
    )
    assert [line["entry"] for line in lines] == ["2", "3"]
    assert lines[0]["agent"] == "'=cmd|' /C calc'!A0"
    assert (lines[0]["seconds"], lines[0]["ending"]) == ("9.500", "completed")
    assert (lines[1]["end"], lines[1]["ending"]) == ("", "running")

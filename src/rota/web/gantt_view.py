"""Who ran when on which slot: the chart of runs as a picture on a page, as an SVG document and as CSV. Pure functions.

A bar is a run, from its start to its end, in the row of its slot; colours distinguish projects, and the right edge of a
bar says how the run ended. Runs that would be narrower than `BAR_PX_MIN` are drawn together with their neighbours, so
that a picture stays small however many runs it shows; the CSV has them all.
"""

from __future__ import annotations

import csv
import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice, takewhile

import msgspec

from rota.observe import ChartRow, RunEnding, RunSpan
from rota.svg import document, element, link, picture, printable, text
from rota.time_text import fine_span, local_time

__all__ = ["ROWS_MAX", "WINDOWS_S", "Bar", "GanttRow", "GanttView", "gantt_view", "step_s", "to_csv", "to_svg"]

WINDOWS_S = (60.0, 300.0, 600.0, 3_600.0, 21_600.0, 86_400.0)  # how much time a chart may show
ROWS_MAX = 60  # slots that are drawn
RUNS_LISTED_MAX = 50  # the newest runs, as a table for readers who cannot see the picture
WIDTH, LABEL_WIDTH = 1_180, 170  # of a picture, in pixels
ROW_HEIGHT, BAR_HEIGHT, TOP = 24, 16, 26
BAR_PX_MIN = 3.0
TICKS = 6
COLOURS = 8  # of projects; they repeat
NO_PROJECT = "no project"

_ENDING_WORDS: dict[RunEnding | None, str] = {
    None: "runs",
    "completed": "completed",
    "failed": "failed",
    "lost": "lost",
    "returned": "gave its slot back",
}
_BAD = ("failed", "lost")
_WORST: tuple[RunEnding | None, ...] = ("lost", "failed", "returned", None, "completed")


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One run, or several that are too narrow to be drawn one by one."""

    left: float  # parts of the window, from 0 to 1
    width: float
    project: str
    ending: RunEnding | None
    tip: str
    sched_id: int  # of the last one
    count: int = 1


class GanttRow(msgspec.Struct, frozen=True):
    """The bars of one slot."""

    worker_id: str
    number: int
    bars: tuple[Bar, ...]


class GanttView(msgspec.Struct, frozen=True, kw_only=True):
    """A chart of an interval."""

    since_at: float
    until_at: float
    rows: tuple[GanttRow, ...]
    projects: tuple[str, ...]  # in the order of their colours
    ticks: tuple[tuple[float, str], ...]
    runs: tuple[tuple[str, int, RunSpan], ...]  # the newest ones, with their worker and row
    rows_left_out: int = 0


def step_s(window_s: float) -> float:
    """Return how much time passes before a chart that ends now is worth drawing again."""
    return max(1.0, window_s / 300)


def gantt_view(
    rows: Iterable[ChartRow], name: Callable[[int], str], *, since_at: float, until_at: float, now: float
) -> GanttView:
    """Return the chart of the runs in an interval; `name` returns the name of an agent."""
    shown = [(row, spans) for row in rows if (spans := list(_between(row.spans, since_at, until_at, now)))]
    projects = sorted({each.project_id or NO_PROJECT for _, spans in shown for each in spans})
    drawn = tuple(
        GanttRow(row.worker_id, row.number, tuple(_bars(spans, name, since_at, until_at, now)))
        for row, spans in shown[:ROWS_MAX]
    )
    newest = sorted(
        ((row.worker_id, row.number, each) for row, spans in shown for each in spans[-RUNS_LISTED_MAX:]),
        key=lambda found: (found[2].start_at, found[2].sched_id),
        reverse=True,
    )
    return GanttView(
        since_at=since_at,
        until_at=until_at,
        rows=drawn,
        projects=tuple(projects),
        ticks=tuple(_ticks(since_at, until_at, now)),
        runs=tuple(newest[:RUNS_LISTED_MAX]),
        rows_left_out=len(shown) - len(drawn),
    )


def _between(runs: deque[RunSpan], since_at: float, until_at: float, now: float) -> Iterator[RunSpan]:
    """Yield the runs of one row that are in an interval; in a row, one run follows the other."""
    first = len(runs)
    for run in reversed(runs):
        if _end_at(run, now) < since_at:
            break
        first -= 1
    return takewhile(lambda run: run.start_at <= until_at, islice(runs, first, None))


def _end_at(run: RunSpan, now: float) -> float:
    return now if run.end_at is None else run.end_at


def _bars(
    spans: Sequence[RunSpan], name: Callable[[int], str], since_at: float, until_at: float, now: float
) -> Iterator[Bar]:
    """Yield the bars of a row; narrow neighbours of one project are one bar."""
    narrow_s = BAR_PX_MIN / (WIDTH - LABEL_WIDTH) * (until_at - since_at)
    group: list[RunSpan] = []
    for run in spans:
        if group and (run.project_id != group[0].project_id or _end_at(run, now) - group[0].start_at > narrow_s):
            yield _bar(group, name, since_at, until_at, now)
            group = []
        group.append(run)
    if group:
        yield _bar(group, name, since_at, until_at, now)


def _bar(runs: Sequence[RunSpan], name: Callable[[int], str], since_at: float, until_at: float, now: float) -> Bar:
    first, last = runs[0], runs[-1]
    whole_s = until_at - since_at
    left = max(0.0, (first.start_at - since_at) / whole_s)
    right = min(1.0, (_end_at(last, now) - since_at) / whole_s)
    project = first.project_id or NO_PROJECT
    ending = min((run.ending for run in runs), key=_WORST.index)
    if len(runs) > 1:
        tip = f"{len(runs):,} runs of {project}" + (f", at least one {ending}" if ending in _BAD else "")
    else:
        took = fine_span(_end_at(last, now) - last.start_at)
        tip = f"{name(last.pid)} #{last.sched_id} of {project}: {_ENDING_WORDS[ending]}, {took}"
        tip += f" from {local_time(last.start_at, now)}"
    width = max(0.0, right - left)
    return Bar(left=left, width=width, project=project, ending=ending, tip=tip, sched_id=last.sched_id, count=len(runs))


def _ticks(since_at: float, until_at: float, now: float) -> Iterator[tuple[float, str]]:
    for at in range(TICKS + 1):
        yield at / TICKS, local_time(since_at + (until_at - since_at) * at / TICKS, now)


# --- drawings ------------------------------------------------------------------------------------


def to_svg(view: GanttView, *, is_page: bool = False) -> str:
    """Return the chart as an SVG document, or as a part of a page, in which bars lead to entries."""
    height = TOP + ROW_HEIGHT * len(view.rows) + 8
    if is_page:
        return picture(WIDTH, height, "Runs by slot and time", _parts(view, 0, is_page=True))
    top = 52
    legend = 22 * (len(view.projects) // 4 + 1) if view.projects else 0
    began, ended = (datetime.fromtimestamp(at, UTC) for at in (view.since_at, view.until_at))
    title = f"Runs from {began:%Y-%m-%d %H:%M:%S} to {ended:%Y-%m-%d %H:%M:%S} UTC"
    parts = [*_parts(view, top, is_page=False), *_legend(view, top + height)]
    return document(WIDTH + 20, top + height + legend + 20, title, parts)


def _parts(view: GanttView, top: float, *, is_page: bool) -> Iterator[str]:
    plot = WIDTH - LABEL_WIDTH
    bottom = top + TOP + ROW_HEIGHT * len(view.rows)
    for part, words in view.ticks:
        x = LABEL_WIDTH + part * plot
        yield element("line", class_="tick", x1=x, x2=x, y1=top + 18, y2=bottom, stroke="#cbd5e1")
        anchor = "start" if part == 0 else "end" if part == 1 else "middle"
        yield text(x, top + 12, words, class_="small", text_anchor=anchor)
    for at, row in enumerate(view.rows):
        y = top + TOP + at * ROW_HEIGHT
        yield text(0 if is_page else 10, y + 13, _label(row))
        for bar in row.bars:
            yield from _bar_parts(bar, LABEL_WIDTH + bar.left * plot, y, plot, view, is_page=is_page)


def _bar_parts(bar: Bar, x: float, y: float, plot: float, view: GanttView, *, is_page: bool) -> Iterator[str]:
    width = max(BAR_PX_MIN - 1, bar.width * plot)
    colour = view.projects.index(bar.project) % COLOURS
    shape: dict[str, str | float] = {"x": round(x, 1), "y": y, "width": round(width, 1), "height": BAR_HEIGHT, "rx": 2}
    end: dict[str, str | float] = {"x": round(x + max(0.0, width - 4), 1), "y": y, "width": min(4.0, width)}
    parts = [
        element("rect", class_=f"bar-{colour}", **({} if is_page else {"fill": _FILLS[colour]}), **shape, tip=bar.tip)
    ]
    if bar.ending in _BAD:
        parts.append(element("rect", class_="bar-bad", fill="#b3261e", height=BAR_HEIGHT, **end, tip=bar.tip))
    yield from (link(f"/entry/{bar.sched_id}", parts, bar.tip, tabindex=-1),) if is_page else parts


# on white, for documents; a page's style sheet has the same with others for dark pages
_FILLS = ("#4a7fb5", "#b5724a", "#5b9a63", "#8a6bb0", "#b0596f", "#4a9a9a", "#9a8a3f", "#6b7480")


def _label(row: GanttRow) -> str:
    name = row.worker_id if len(row.worker_id) <= 20 else "…" + row.worker_id[-19:]  # noqa: PLR2004  # fits the column
    return f"{name} · {row.number}"


def _legend(view: GanttView, top: float) -> Iterator[str]:
    for at, project in enumerate(view.projects):
        x, y = 10 + at % 4 * 290, top + 22 * (at // 4)
        yield element("rect", x=x, y=y, width=14, height=14, rx=2, fill=_FILLS[at % COLOURS])
        yield text(x + 20, y + 12, project[:40])


# --- values --------------------------------------------------------------------------------------


def to_csv(
    rows: Iterable[ChartRow], name: Callable[[int], str], *, since_at: float, until_at: float, now: float
) -> str:
    """Return every run of the interval as comma-separated values, oldest first, with instants in UTC."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("worker", "slot", "entry", "agent", "project", "start", "end", "seconds", "ending"))
    found = [(row.worker_id, row.number, run) for row in rows for run in _between(row.spans, since_at, until_at, now)]
    for worker_id, number, run in sorted(found, key=lambda each: (each[2].start_at, each[2].sched_id)):
        end = "" if run.end_at is None else _utc(run.end_at)
        seconds = f"{_end_at(run, now) - run.start_at:.3f}"
        agent, project = _cell(name(run.pid)), _cell(run.project_id or "")
        worker = _cell(worker_id)
        writer.writerow(
            (worker, number, run.sched_id, agent, project, _utc(run.start_at), end, seconds, run.ending or "running")
        )
    return out.getvalue()


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def _cell(words: str) -> str:
    """Return a text that no spreadsheet takes for a formula."""
    shown = printable(words)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@")) else shown

"""Gantt: who ran when on which slot. A chart of the last minutes follows the fleet; older ones are read on demand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import ceil
from weakref import WeakKeyDictionary

import msgspec
from nicegui import ui

from rota.observe import WINDOW_S, ChartRow, read_runs
from rota.time_text import fine_span, local_time, span
from rota.web.feed import Feed
from rota.web.gantt_view import COLOURS, WINDOWS_S, GanttView, gantt_view, step_s, to_csv, to_svg
from rota.web.page_session import PageSession
from rota.web.pictures import legend, picture_frame
from rota.web.tables import Column, TextTable
from rota.web.widgets import empty, labelled, section

__all__ = ["build"]

WINDOW_DEFAULT_S = 300.0
_COLUMNS = (
    Column("entry", "Entry"),
    Column("agent", "Agent"),
    Column("project", "Project"),
    Column("slot", "Slot"),
    Column("began", "Began"),
    Column("took", "Took", is_number=True),
    Column("ending", "End"),
)


class Drawn(msgspec.Struct, frozen=True):
    """A chart with its picture, for all pages that show the same."""

    view: GanttView
    svg: str
    rows: list[ChartRow]
    names: Callable[[int], str]
    is_whole: bool = True


# what was drawn last for the pages of one feed, by window; a step later it is drawn again
_drawn: WeakKeyDictionary[Feed, dict[tuple[float, float], Drawn]] = WeakKeyDictionary()


async def build(session: PageSession) -> None:
    """Build the page."""
    page = GanttPage(session)
    page.build()
    session.live(page.refresh)


class GanttPage:
    """The chart, and where it is: how much time it shows, and up to when."""

    def __init__(self, session: PageSession) -> None:
        self._session = session
        wanted = session.query("window")
        self._window_s = next((each for each in WINDOWS_S if f"{each:g}" == wanted), WINDOW_DEFAULT_S)
        self._until_at: float | None = None  # None: now
        self._shown: Drawn | None = None

    def build(self) -> None:
        """Make the elements."""
        with ui.element("div").classes("toolbar"):
            self._window = ui.select(
                {each: _words(each) for each in WINDOWS_S}, value=self._window_s, label="Shown", on_change=self._choose
            ).props("dense outlined options-dense")
            self._button("zoom_in", "Zoom in", lambda: self._zoom(-1))
            self._button("zoom_out", "Zoom out", lambda: self._zoom(1))
            self._button("chevron_left", "Earlier", lambda: self._move(-0.5))
            self._button("chevron_right", "Later", lambda: self._move(0.5))
            self._now = ui.button("Now", on_click=self._go_to_now).props("flat dense no-caps")
            ui.space()
            ui.button("Export SVG", on_click=self._export_svg).props("flat dense no-caps")
            ui.button("Export CSV", on_click=self._export_csv).props("flat dense no-caps")
        with section("Runs by slot"):
            self._place = ui.label("").classes("soft small")
            self._picture = picture_frame()
            self._legend = ui.element("div").classes("legend")
            self._empty = empty("Nothing ran in this time. Start a fleet:", self._session.fleet_command)
        with section("Newest runs"):
            self._table = TextTable(_COLUMNS, "Newest runs", links=("entry",), rows_shown=10)

    @staticmethod
    def _button(icon: str, label: str, act: Callable[[], object]) -> None:
        button = ui.button(icon=icon, on_click=act).props("flat dense round")
        labelled(button, label).tooltip(label)

    # --- where the chart is ----------------------------------------------------------------------

    async def _choose(self) -> None:
        self._window_s = float(self._window.value)
        await self._session.refresh()

    def _zoom(self, steps: int) -> None:
        at = WINDOWS_S.index(self._window_s) + steps
        if 0 <= at < len(WINDOWS_S):
            self._window.set_value(WINDOWS_S[at])  # which draws the chart

    async def _move(self, parts: float) -> None:
        now = self._session.api.clock.now()
        until_at = (now if self._until_at is None else self._until_at) + parts * self._window_s
        self._until_at = None if until_at >= now else until_at
        await self._session.refresh()

    async def _go_to_now(self) -> None:
        self._until_at = None
        await self._session.refresh()

    # --- drawing ---------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Draw the chart, if it looks different now."""
        drawn = await self._draw()
        if drawn is self._shown:
            return
        view, now = drawn.view, self._session.api.clock.now()
        self._picture.set_content(drawn.svg if view.rows else "")
        self._empty.set_visibility(not view.rows)
        if self._shown is None or view.projects != self._shown.view.projects:
            legend(self._legend, [(project, at % COLOURS) for at, project in enumerate(view.projects)])
        self._shown = drawn
        self._now.set_enabled(self._until_at is not None)
        words = [f"{local_time(view.since_at, now)} to {local_time(min(now, view.until_at), now)}"]
        if view.rows_left_out:
            words.append(f"{view.rows_left_out:,} more slots are not drawn")
        if not drawn.is_whole:
            words.append("there were too many runs: only the last ones are shown")
        self._place.set_text("; ".join(words))
        self._table.show(_rows(drawn, now))

    async def _draw(self) -> Drawn:
        now, feed, step = self._session.api.clock.now(), self._session.feed, step_s(self._window_s)
        until_at = self._until_at or ceil(now / step) * step
        is_live = self._until_at is None and self._window_s <= WINDOW_S
        key = (self._window_s, until_at if not is_live else float(feed.generation))
        known = _drawn.setdefault(feed, {})
        if key not in known:
            made = self._draw_live(until_at) if is_live else await self._draw_history(until_at, now)
            for old in [each for each in known if each[0] == self._window_s]:
                del known[old]
            known[key] = made
        return self._same_as_shown(known[key])

    def _same_as_shown(self, drawn: Drawn) -> Drawn:
        """Return what is shown already, if the picture is the same."""
        return self._shown if self._shown is not None and self._shown.svg == drawn.svg else drawn

    def _draw_live(self, until_at: float) -> Drawn:
        state = self._session.feed.state
        rows = [] if state is None else state.rows
        copies = [ChartRow(row.worker_id, row.number, deque(row.spans)) for row in rows]
        name = str if state is None else state.agent
        view = gantt_view(copies, name, since_at=until_at - self._window_s, until_at=until_at, now=until_at)
        return Drawn(view, to_svg(view, is_page=True), copies, name)

    async def _draw_history(self, until_at: float, now: float) -> Drawn:
        since_at = until_at - self._window_s
        found = await self._session.read(read_runs, self._session.api, since_at, until_at)

        def name(pid: int) -> str:
            return found.names.get(pid, f"agent {pid}")

        view = gantt_view(found.rows, name, since_at=since_at, until_at=until_at, now=min(now, until_at))
        return Drawn(view, to_svg(view, is_page=True), found.rows, name, found.is_whole)

    # --- export ----------------------------------------------------------------------------------

    def _export_svg(self) -> None:
        if self._shown is not None:
            ui.download.content(to_svg(self._shown.view), "rota-runs.svg", "image/svg+xml")

    def _export_csv(self) -> None:
        if self._shown is not None:
            view, now = self._shown.view, self._session.api.clock.now()
            text = to_csv(self._shown.rows, self._shown.names, since_at=view.since_at, until_at=view.until_at, now=now)
            ui.download.content(text, "rota-runs.csv", "text/csv")


def _words(window_s: float) -> str:
    return span(window_s).replace(".0", "")


def _rows(drawn: Drawn, now: float) -> list[dict[str, object]]:
    return [
        {
            "id": f"{run.sched_id} {run.start_at}",
            "entry": str(run.sched_id),
            "agent": drawn.names(run.pid),
            "project": run.project_id or "–",
            "slot": f"{worker_id} · {number}",
            "began": local_time(run.start_at, now),
            "took": fine_span((run.end_at or drawn.view.until_at) - run.start_at),
            "ending": run.ending or "runs",
            "links": {"entry": f"/entry/{run.sched_id}"},
        }
        for worker_id, number, run in drawn.view.runs
    ]

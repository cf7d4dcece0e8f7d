"""Queue: all entries, by status, text, agent, project and tag; and changes of many of them at once.

The server reads one page of entries at a time, so a hundred thousand entries cost no more than fifty.
"""

from __future__ import annotations

from typing import Any

import msgspec
from nicegui import ui

from rota.errors import NotFound, RotaError
from rota.model import STATUSES, Agent, ReadyEntry
from rota.web.bulk_actions import BulkActions
from rota.web.page_session import PageSession
from rota.web.queue_view import PAGE_SIZE, QueueView, row_of
from rota.web.tables import CellTable
from rota.web.widgets import empty, labelled, section

__all__ = ["build"]

SEARCH_MAX = 200  # entries that a search shows
ENTRIES_PER_S = 20_000  # of a list that are passed over per second: a long one is read more rarely
AGE_S_MAX = 5.0
WAIT_S = 5.0  # how often why entries wait is asked again, at most
_COLUMNS = [
    {"name": "entry", "label": "Entry", "field": "entry", "align": "left", "cell": "link"},
    {"name": "agent", "label": "Agent", "field": "agent", "align": "left"},
    {"name": "project", "label": "Project", "field": "project", "align": "left"},
    {"name": "status", "label": "Status", "field": "status", "align": "left", "cell": "chip"},
    {"name": "detail", "label": "Details", "field": "detail", "align": "left", "cell": "clip"},
    {"name": "priority", "label": "Priority", "field": "priority"},
    {"name": "attempt", "label": "Attempt", "field": "attempt"},
    {"name": "created", "label": "Enqueued", "field": "created", "align": "left"},
    {"name": "tags", "label": "Tags", "field": "tags", "align": "left"},
]


async def build(session: PageSession) -> None:
    """Build the page."""
    page = _QueuePage(session)
    page.draw_filter()
    page.draw_table()
    session.live(page.refresh)


class _QueuePage:
    def __init__(self, session: PageSession) -> None:
        self._session = session
        self._view = QueueView.of_query(session.request.query_params)
        self._pid: int | None = None
        self._total = 0
        self._is_searching = False
        self._shown: list[dict[str, Any]] | None = None

    # --- the filter ------------------------------------------------------------------------------

    def draw_filter(self) -> None:
        """Draw the fields that say which entries are shown."""
        view = self._view
        with ui.element("div").classes("toolbar").props("role=search"):
            statuses = ui.select(list(STATUSES), multiple=True, value=list(view.status), label="Status")
            statuses.classes("filter-wide").props("dense outlined use-chips")
            statuses.on_value_change(lambda event: self._change(status=tuple(event.value or ())))
            text = self._field("Search in payloads, results and errors", "text", view.text).classes("filter-wide")
            text.props("data-search")
            self._field("Agent", "agent", view.agent)
            self._field("Project", "project", view.project)
            self._field("Tag", "tag", view.tag)
            ui.button("Clear", on_click=lambda: ui.navigate.to("/queue")).props("flat dense no-caps")
            if self._session.may("kernel.sched.explain_many"):
                button = ui.button("Why do they wait?", icon="help_outline", on_click=self._explain)
                button.props("outline dense no-caps")

    def _field(self, label: str, name: str, value: str) -> ui.input:
        field = ui.input(label, value=value).props("dense outlined debounce=400 clearable")
        field.on_value_change(lambda event: self._change(**{name: (event.value or "").strip()}))
        return field

    async def _change(self, **changes: Any) -> None:
        self._view = msgspec.structs.replace(self._view, **{"page": 1, **changes})
        self._table.selected = []
        ui.navigate.history.replace(self._view.address())
        await self._session.refresh()

    # --- the table -------------------------------------------------------------------------------

    def draw_table(self) -> None:
        """Draw the actions, the table and its pages."""
        self._actions = BulkActions(self._session, self._chosen)
        with ui.element("div").classes("table-wrap"):
            self._table = CellTable(rows=[], columns=_COLUMNS, row_key="id", pagination=0)
            self._table.set_selection("multiple" if self._actions.has_any else None)
            self._table.props("flat bordered dense hide-pagination role=region").classes("entries")
            self._table.on_select(lambda _: self._actions.show_selection(len(self._table.selected)))
        labelled(self._table, "Entries")
        with ui.element("div").classes("toolbar"):
            self._newer = ui.button("Newer", icon="chevron_left", on_click=lambda: self._turn(-1))
            self._place = ui.label("").props("role=status")
            self._older = ui.button("Older", on_click=lambda: self._turn(1)).props("icon-right=chevron_right")
            for button in (self._newer, self._older):
                button.props("flat dense no-caps")
        command = self._session.command("rota enqueue NAME")
        self._empty = empty("No entry matches. Enqueue one, or clear the filter:", command)

    async def _turn(self, by: int) -> None:
        await self._change(page=max(1, self._view.page + by))

    def _chosen(self) -> tuple[QueueView, int | None, list[dict[str, Any]], int | None]:
        """Return the view, its agent, the selected rows, and how many entries match it; None: a search has no total."""
        return self._view, self._pid, list(self._table.selected), None if self._is_searching else self._total

    async def refresh(self) -> None:
        """Read the page's entries again."""
        api, view = self._session.api, self._view
        try:
            self._pid = await self._agent()
        except NotFound:
            self._show([], 0, f"there is no agent {view.agent}")
            return
        conditions = view.conditions(self._pid)
        self._is_searching = bool(view.text)
        if self._is_searching:
            found = await self._session.read(api.queue.search, view.text, limit=SEARCH_MAX, **conditions)
            rest = "" if found.is_complete else "; older entries were not looked at"
            await self._show_entries(found.entries, len(found.entries), f"{len(found.entries)} found{rest}")
            return
        age_s = min(AGE_S_MAX, self._total / ENTRIES_PER_S)
        _, total = await self._session.read_every(age_s, api.queue.list, limit=1, **conditions)
        window = view.window(total)
        entries: list[ReadyEntry] = []
        if window.limit:
            entries, total = await self._session.read_every(
                age_s, api.queue.list, limit=window.limit, offset=window.offset, **conditions
            )
        place = f"{window.first:,} to {window.last:,} of {total:,}" if entries else ""
        await self._show_entries(entries[::-1], total, place)

    async def _agent(self) -> int | None:
        name = self._view.agent
        if not name:
            return None
        if name.isascii() and name.isdecimal():
            return int(name)
        found: list[Agent] = await self._session.read(self._session.api.agents.find, name)
        if not found:
            raise NotFound(f"there is no agent {name}")
        return found[0].pid

    async def _show_entries(self, entries: list[ReadyEntry], total: int, place: str) -> None:
        pids = tuple(sorted({entry.pid for entry in entries}))
        names = await self._session.read(self._session.api.agents.names, pids) if pids else {}
        now = self._session.api.clock.now()
        self._show([row_of(entry, names, now) for entry in entries], total, place)

    def _show(self, rows: list[dict[str, Any]], total: int, place: str) -> None:
        self._total = total
        if rows != self._shown:
            self._shown = rows
            ids = {row["id"] for row in self._table.selected}
            self._table.rows = rows
            self._table.selected = [row for row in rows if row["id"] in ids]
            self._table.update()
        self._place.set_text(place)
        self._empty.set_visibility(not rows)
        self._table.set_visibility(bool(rows))
        self._newer.set_visibility(self._view.page > 1)
        self._older.set_visibility(not self._is_searching and self._view.page * PAGE_SIZE < total)
        self._actions.show_selection(len(self._table.selected))

    # --- why they wait ---------------------------------------------------------------------------

    async def _explain(self) -> None:
        """Show why queued entries wait, most frequent reason first."""
        api, view = self._session.api, self._view
        asked = {"pid": self._pid, "project_id": view.project or self._own_project()}
        try:
            summary = await self._session.read_every(WAIT_S, api.explain_many, **asked)
        except RotaError as problem:
            self._session.say_problem(problem)
            return
        with ui.dialog() as dialog, ui.card().classes("dialog"), section("Why entries wait"):
            whole = "" if summary.is_whole else f"; the first {summary.examined:,} were examined"
            ui.label(f"{summary.ready:,} ready, {summary.waiting:,} waiting, {summary.running:,} running{whole}")
            for each in summary.reasons:
                words = "nothing blocks it: it waits for its turn" if each.reason is None else each.reason.sentence()
                with ui.element("div").classes("event-row"):
                    ui.label(f"{each.count:,}").classes("mono")
                    ui.label(words)
                    ui.link(f"#{each.sched_id}", f"/entry/{each.sched_id}")
            if not summary.reasons:
                ui.label("Nothing waits.")
            ui.button("Close", on_click=dialog.close).props("flat no-caps autofocus")
        dialog.open()

    def _own_project(self) -> str | None:
        projects = self._session.access.rights.projects
        return projects[0] if projects else None

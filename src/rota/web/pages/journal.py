"""Journal: what happens, a sentence for each event, as it happens; with filters."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import msgspec
from nicegui import ui

from rota.model import Event
from rota.observe import EventText, FleetState, SentenceReader, TextFilter
from rota.time_text import local_time
from rota.web.journal_view import KINDS, ROWS_MAX, filter_of, has_words, row
from rota.web.page_session import PageSession
from rota.web.pictures import add_style
from rota.web.tables import Column, TextTable
from rota.web.widgets import answer_of, empty, labelled, section

__all__ = ["build"]

_COLUMNS = (
    Column("when", "When"),
    Column("what", "What", is_wide=True),
    Column("entry", "Entry"),
    Column("project", "Project"),
    Column("by", "By"),
    Column("kind", "Kind"),
)
PAYLOAD_CHARS_MAX = 20_000


async def build(session: PageSession) -> None:
    """Build the page."""
    page = JournalPage(session)
    page.build()
    await page.read_history()
    session.live(page.refresh)


class JournalPage:
    """The newest sentences that match, and the event that was read last."""

    def __init__(self, session: PageSession) -> None:
        self._session = session
        self._wanted = TextFilter()
        self._rows: deque[dict[str, Any]] = deque(maxlen=ROWS_MAX)
        self._events: dict[str, Event] = {}  # of the rows
        self._through = 0
        self._matching = 0  # sentences since the page was opened
        self._is_paused = False

    def build(self) -> None:
        """Make the elements."""
        add_style()
        with ui.element("div").classes("toolbar"):
            kinds = {pattern: word for word, pattern in KINDS.items()}
            self._search = ui.input("Search", on_change=self._show).props("dense outlined clearable debounce=200")
            self._search.props["data-search"] = True
            self._kind = ui.select(kinds, value="", label="About", on_change=self._choose).props(
                "dense outlined options-dense"
            )
            self._agent = ui.input("Agent", value=self._session.query("agent"), on_change=self._choose).props(
                "dense outlined clearable debounce=400"
            )
            self._project = ui.input("Project", value=self._session.query("project"), on_change=self._choose).props(
                "dense outlined clearable debounce=400"
            )
            self._details = ui.switch("Also details", on_change=self._choose)
            self._pause = ui.button("Pause", on_click=self._toggle).props("flat dense no-caps")
        with section("Events, newest first"):
            self._place = ui.label("").classes("soft small").mark("place")
            with ui.element("div").classes("feed-table"):
                self._table = TextTable(
                    _COLUMNS, "Events", links=("entry", "project"), tones=("what",), on_act=self._act, is_feed=True
                )
            self._empty = empty(
                "Nothing has happened that matches. To see the same in a terminal:",
                self._session.command("rota tail -f"),
            )

    # --- what is wanted --------------------------------------------------------------------------

    async def _choose(self) -> None:
        await self.read_history()
        await self._session.refresh()

    async def _show(self) -> None:
        self._draw()

    async def _toggle(self) -> None:
        self._is_paused = not self._is_paused
        self._pause.set_text("Go on" if self._is_paused else "Pause")
        self._draw()
        await self._session.refresh()

    async def _pid(self) -> int | None:
        """Return the agent that the reader wrote, by pid or name; a name of none matches nothing."""
        written = str(self._agent.value or "").strip()
        if not written:
            return None
        if written.isdecimal():
            return int(written)
        found = await self._session.access.call(self._session.api.agents.find, written)
        return found[0].pid if found else -1

    # --- events ----------------------------------------------------------------------------------

    async def read_history(self) -> None:
        """Read the last sentences that match from the journal."""
        project = str(self._project.value or "").strip()
        self._wanted = filter_of(
            kind=str(self._kind.value or ""),
            pid=await self._pid(),
            project_id=project,
            details=bool(self._details.value),
        )
        reader, found = await self._session.access.call(self._read, self._wanted)
        self._rows.clear()
        self._events.clear()
        self._matching = 0
        self._add(found, reader.state)
        self._through = reader.state.through_id
        self._draw()

    def _read(self, wanted: TextFilter) -> tuple[SentenceReader, list[tuple[Event, EventText]]]:
        reader = SentenceReader(self._session.api, wanted)
        return reader, reader.history(ROWS_MAX)

    async def refresh(self) -> None:
        """Add what has happened since."""
        state = self._session.feed.state
        if self._is_paused or state is None:
            return
        new = [seen for seen in self._session.feed.events if seen.event.event_id > self._through]
        if not new:
            return
        self._through = new[-1].event.event_id
        pairs = ((seen.event, text) for seen in new for text in seen.texts)
        self._add([(event, text) for event, text in pairs if self._wanted.wants(event, text, state)], state)
        self._draw()

    def _add(self, found: list[tuple[Event, EventText]], state: FleetState) -> None:
        now = self._session.api.clock.now()
        self._matching += len(found)
        of_event: Counter[int] = Counter()  # a row has the same id when the journal is read again
        for event, text in found[-ROWS_MAX:]:
            shown = {**row(event, text, of_event[event.event_id], state, now), "actions": ["Details"]}
            of_event[event.event_id] += 1
            if len(self._rows) == ROWS_MAX:
                self._events.pop(self._rows[0]["id"], None)
            self._rows.append(shown)
            self._events[shown["id"]] = event

    def _draw(self) -> None:
        words = str(self._search.value or "")
        rows = [shown for shown in reversed(self._rows) if has_words(shown, words)]
        self._table.show(rows)
        self._empty.set_visibility(not rows)
        newest = (
            f"{len(rows):,} of {self._matching:,} sentences"
            if self._matching > len(rows)
            else f"{len(rows):,} sentences"
        )
        self._place.set_text(f"{newest}, up to event {self._through:,}{', paused' if self._is_paused else ''}")

    # --- one event -------------------------------------------------------------------------------

    async def _act(self, row_id: str, _word: str) -> None:
        event = self._events.get(row_id)
        if event is None:
            return
        payload = msgspec.json.format(msgspec.json.encode(event.payload), indent=2).decode()
        with ui.dialog() as dialog, ui.card().classes("dialog"):
            ui.label(f"Event {event.event_id}").classes("card-title").props("role=heading aria-level=2")
            ui.label(f"{event.kind}, {local_time(event.ts, self._session.api.clock.now())}, by {event.author or '–'}")
            labelled(ui.label(payload[:PAYLOAD_CHARS_MAX]).classes("log").props("tabindex=0 role=region"), "Payload")
            ui.button("Close", on_click=dialog.close).props("flat no-caps autofocus")
        dialog.props["aria-label"] = f"Event {event.event_id}"
        await answer_of(dialog)

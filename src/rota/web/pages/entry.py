"""Entry: everything about one entry, as `rota show` and `rota why` tell it, live, with what can be done about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from nicegui import ui

from rota.errors import NotFound
from rota.model import (
    EntryReport,
    Explanation,
    ReadyEntry,
    RelatedEntry,
    Suggestion,
    attempt_heading,
    attempt_lines,
    name_agent,
    related_text,
    report_fields,
    shown_result,
)
from rota.time_text import local_time, when
from rota.web.live_log import LOG_S, LiveLog
from rota.web.page_session import PageSession
from rota.web.suggestions import call_of, function_of
from rota.web.widgets import Meter, answer_of, confirm, empty, fields_table, labelled, section, status_chip

__all__ = ["build"]

EXPLAIN_S = 2.0  # how often why it waits is asked, at most: each time is a rehearsal of a claim
JSON_CHARS_MAX = 20_000  # of a payload or a result
AHEAD_MAX = 10
QUEUED = ("waiting", "ready")
ENDED = ("failed", "expired", "cancelled")


async def build(session: PageSession) -> None:
    """Build the page."""
    text = session.path("sched_id")
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:  # noqa: PLR2004  # what an id can have
        _no_such_entry(session)
        return
    try:
        found = await session.read(session.api.show, int(text))
    except NotFound:
        _no_such_entry(session)
        return
    _EntryPage(session, found).draw()


def _no_such_entry(session: PageSession) -> None:
    empty(
        "There is no such entry, or not for you. All of them are on the page Queue, and:", session.command("rota queue")
    )


class _Changing:
    """A box that is drawn again only when what it shows has changed."""

    def __init__(self) -> None:
        self._box = ui.element("div").classes("rows")
        self._shown: Any = _Changing  # nothing yet

    def show(self, what: Any, draw: Callable[[], None]) -> None:
        """Draw it, unless it shows this already."""
        if what != self._shown:
            self._shown = what
            self._box.clear()
            with self._box:
                draw()


class _EntryPage:
    def __init__(self, session: PageSession, found: EntryReport) -> None:
        self._session = session
        self._found = found
        self._sched_id = found.entry.sched_id

    def draw(self) -> None:
        """Draw the sections, and fill them live."""
        self._head = _Changing()
        self._draw_actions()
        self._why_card = section("Why it is not running")
        with self._why_card:
            self._why = _Changing()
        with ui.element("div").classes("grid"):
            with section("Facts"):
                self._fields = _Changing()
            with section("History"):
                self._history = _Changing()
        with section("Output"):
            self._attempt = ui.select({0: "the last attempt"}, value=0, label="Output of")
            self._attempt.props("dense outlined").classes("filter-wide")
            self._log = LiveLog(self._session, self._sched_id)
            self._attempt.on_value_change(lambda event: self._log.show_attempt(event.value or None))
        with section("Attempts"):
            self._attempts = _Changing()
        with ui.element("div").classes("grid"):
            with section("Payload"):
                self._payload = _Changing()
            with section("Result"):
                self._result = _Changing()
            with section("Related entries"):
                self._related = _Changing()
        self._session.live(self.refresh)
        ui.timer(LOG_S, self._follow_log)

    async def refresh(self) -> None:
        """Read the entry again and draw what has changed."""
        api = self._session.api
        self._found = found = await self._session.read(api.show, self._sched_id)
        entry = found.entry
        self._head.show((entry.status, found.agent, found.progress), self._draw_head)
        for button, fits in self._actions:
            button.set_visibility(fits(entry))
        fields = [(name, text) for name, text in report_fields(found) if text]
        self._fields.show(fields, lambda: _draw_fields(fields))
        self._history.show((found.history, found.history_is_complete), lambda: _draw_history(found))
        self._attempts.show(found.attempts, lambda: _draw_attempts(found))
        self._show_choice([attempt.attempt for attempt in found.attempts])
        self._payload.show(entry.payload, lambda: _draw_json(entry.payload, "Payload"))
        self._result.show(shown_result(found), lambda: _draw_json(shown_result(found), "Result"))
        self._related.show((found.parent, found.children, found.after), lambda: _draw_related(found))
        self._why_card.set_visibility(entry.status in QUEUED)
        if entry.status in QUEUED:
            await self._explain(entry.kind)
        await self._log.refresh()

    async def _follow_log(self) -> None:
        if self._found.attempts and not self._log.is_whole:
            await self._log.refresh()

    # --- the head --------------------------------------------------------------------------------

    def _draw_head(self) -> None:
        found = self._found
        with ui.element("div").classes("toolbar"):
            ui.label(f"{found.agent} #{self._sched_id}").classes("entry-name")
            status_chip(found.entry.status)
        if found.progress is not None and found.entry.status == "running":
            Meter("Progress").set(found.progress.fraction, f"{found.progress.fraction:.0%} {found.progress.text}")

    def _draw_actions(self) -> None:
        cancel = "kernel.sched.request_cancel"
        known: tuple[tuple[str, str, str, Callable[[], Any], Callable[[ReadyEntry], bool]], ...] = (
            ("Retry", "replay", "kernel.sched.retry", self._retry, lambda e: e.status in ENDED or e.hold == "backoff"),
            ("Cancel", "close", cancel, self._cancel, lambda e: e.status in QUEUED),
            ("Stop", "stop", cancel, self._cancel, lambda e: e.status == "running" and not e.cancel_requested),
            ("Release", "lock_open", "kernel.sched.release", self._release, lambda e: e.hold in ("after", "worker")),
            ("Change priority …", "tune", "kernel.sched.change", self._change, lambda e: e.status in QUEUED),
            ("Pause its agent", "pause", "kernel.agent.pause", self._pause, lambda e: e.status in (*QUEUED, "running")),
        )
        with ui.element("div").classes("toolbar"):
            self._actions = [
                (ui.button(label, icon=icon, on_click=act).props("outline dense no-caps"), fits)
                for label, icon, method, act, fits in known
                if self._session.may(method)
            ]

    async def _retry(self) -> None:
        words = f"entry {self._sched_id} is retried"
        made = await self._session.act("kernel.sched.retry", words, self._session.api.queue.retry, self._sched_id)
        if made is not None and made != self._sched_id:
            ui.navigate.to(f"/entry/{made}")

    async def _cancel(self) -> None:
        is_running = self._found.entry.status == "running"
        verb = "Stop" if is_running else "Cancel"
        text = "The run is asked to stop at its next heartbeat." if is_running else "It will not run."
        if await confirm(f"{verb} entry {self._sched_id}?", text, verb):
            words = f"entry {self._sched_id} is {'asked to stop' if is_running else 'cancelled'}"
            call, caller = self._session.api.queue.request_cancel, self._session.caller
            await self._session.act("kernel.sched.request_cancel", words, call, self._sched_id, by=caller)

    async def _release(self) -> None:
        words = f"entry {self._sched_id} is released"
        await self._session.act("kernel.sched.release", words, self._session.api.queue.release, self._sched_id)

    async def _change(self) -> None:
        with ui.dialog() as dialog, ui.card().classes("dialog"):
            ui.label("Change the priority").classes("card-title").props("role=heading aria-level=2")
            field = ui.number("Priority; higher runs sooner", value=self._found.entry.priority, precision=0)
            field.props("outlined dense autofocus")
            with ui.row().classes("dialog-buttons"):
                ui.button("Back", on_click=lambda: dialog.submit(None)).props("flat no-caps")
                ui.button("Change", on_click=lambda: dialog.submit(field.value)).props("no-caps")
        labelled(dialog, "Change the priority")
        value = await answer_of(dialog)
        if value is not None:
            words = f"entry {self._sched_id} has priority {int(value)}"
            call = self._session.api.queue.change
            await self._session.act("kernel.sched.change", words, call, self._sched_id, priority=int(value))

    async def _pause(self) -> None:
        found, session = self._found, self._session
        text = f"No entry of {found.agent} is claimed until it is resumed. Runs that have begun go on."
        if await confirm(f"Pause agent {found.agent}?", text, "Pause"):
            words = f"agent {found.agent} is paused"
            await session.act("kernel.agent.pause", words, session.api.agents.pause, found.entry.pid, session.caller)

    # --- why -------------------------------------------------------------------------------------

    async def _explain(self, kind: str | None) -> None:
        kinds = () if kind is None else (kind,)
        try:
            found = await self._session.read_every(EXPLAIN_S, self._session.api.explain, self._sched_id, kinds=kinds)
        except NotFound:
            return
        shown = (found.blocking, found.ordering, found.workers, found.position, found.ahead, found.changes)
        self._why.show(shown, lambda: self._draw_why(found))

    def _draw_why(self, found: Explanation) -> None:
        def named(text: str) -> str:
            return name_agent(text, found.pid, found.agent)

        for reason in found.blocking:
            _sentence(f"Blocked: {named(reason.sentence())}", "tone-bad")
        for order in found.ordering:
            _sentence(f"Eligible, but {named(order.sentence())}", "tone-warn")
        if found.workers is not None:
            _sentence(f"{'Eligible, but' if found.starts else 'And'} {found.workers.sentence()}", "tone-warn")
        elif found.starts:
            _sentence(f"Eligible: the next claim takes it ({found.policy}).", "tone-good")
        starts = found.start.starts_at
        place = "" if found.position is None else f", position {found.position:,}"
        estimate = "unknown" if starts is None else when(starts, found.now)
        ui.label(f"Start: {estimate}{place} ({named(found.start.basis)})").classes("soft")
        self._draw_ahead(found)
        if found.changes:
            ui.label("What would start it").classes("small-title")
        for change in found.changes:
            self._draw_change(change, named(change.words), found.now)

    @staticmethod
    def _draw_ahead(found: Explanation) -> None:
        if not found.ahead:
            return
        ui.label("These run first").classes("small-title")
        for each in found.ahead[:AHEAD_MAX]:
            with ui.element("div").classes("event-row"):
                ui.link(f"#{each.sched_id}", f"/entry/{each.sched_id}")
                ui.label(each.agent or f"agent {each.pid}")
                ui.label(each.score).classes("soft")

    def _draw_change(self, change: Suggestion, words: str, now: float) -> None:
        until = f" (or wait: {when(change.until_at, now)})" if change.until_at else ""
        call = call_of(change, self._session.caller)
        if call is None or not self._session.may(call[0].name):
            ui.label(f"{words}{until}")
            return
        with ui.element("div").classes("toolbar"):
            button = ui.button(words, icon="build", on_click=lambda: self._apply(change, words))
            button.props("outline dense no-caps").classes("suggestion")
            ui.label(until).classes("soft")

    async def _apply(self, change: Suggestion, words: str) -> None:
        call = call_of(change, self._session.caller)
        if call is not None and await confirm("Make this change?", f"{words}.", "Change"):
            method, arguments = call
            function = function_of(self._session.api, method)
            await self._session.act(method.name, f"done: {words}", function, **arguments)

    # --- attempts --------------------------------------------------------------------------------

    def _show_choice(self, attempts: list[int]) -> None:
        self._attempt.set_visibility(len(attempts) > 1)
        choices = {0: "the last attempt", **{number: f"attempt {number}" for number in attempts}}
        if choices != self._attempt.options:
            self._attempt.set_options(choices)


# --- drawing without a state -----------------------------------------------------------------------


def _sentence(text: str, tone: str) -> None:
    ui.label(text).classes(tone)


def _draw_fields(fields: list[tuple[str, str]]) -> None:
    fields_table(fields)


def _draw_history(found: EntryReport) -> None:
    if not found.history_is_complete:
        ui.label("A part of the journal is not kept.").classes("soft small")
    with ui.element("ol").classes("timeline"):
        for step in found.history:
            with ui.element("li").classes("event-row"):
                ui.label(local_time(step.at, found.now)).classes("soft small mono")
                ui.label(step.words)
                ui.label(f"by {step.author}" if step.author else "").classes("soft small")


def _draw_attempts(found: EntryReport) -> None:
    for attempt in found.attempts:
        ui.label(attempt_heading(attempt, found)).classes("small-title")
        ui.label("\n".join(attempt_lines(attempt, found))).classes("mono small")
    if not found.attempts:
        ui.label("It has not run yet.").classes("soft")


def _draw_json(value: Any, name: str) -> None:
    if value is None or value == {}:
        ui.label(f"It has no {name.lower()}.").classes("soft")
        return
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    cut = f"\n… {len(text):,} characters in all" if len(text) > JSON_CHARS_MAX else ""
    labelled(ui.label(text[:JSON_CHARS_MAX] + cut).classes("log").props("tabindex=0 role=group"), name)


def _draw_related(found: EntryReport) -> None:
    groups: tuple[tuple[str, tuple[RelatedEntry, ...]], ...] = (
        ("Parent", () if found.parent is None else (found.parent,)),
        ("After", found.after),
        ("Children", found.children),
    )
    for title, entries in groups:
        if entries:
            ui.label(title).classes("small-title")
            for each in entries:
                ui.link(related_text(each), f"/entry/{each.sched_id}")
    if not found.children_are_complete:
        ui.label("… and more").classes("soft")
    if not any(entries for _, entries in groups):
        ui.label("None.").classes("soft")

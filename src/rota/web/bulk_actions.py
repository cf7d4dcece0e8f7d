"""Changes of many entries at once. Each first counts what it would do, and asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nicegui import ui

from rota.errors import RotaError
from rota.kernel import EntryFilter
from rota.kernel.bulk import BulkResult, BulkVerb
from rota.web.page_session import PageSession
from rota.web.queue_view import QueueView
from rota.web.widgets import answer_of, confirm, labelled

__all__ = ["BulkActions"]

METHOD = "kernel.sched.bulk"
HOUR_S = 3_600.0
_DONE = {"cancel": "cancelled", "retry": "retried", "release": "released", "change": "changed"}
Chosen = Callable[[], tuple[QueueView, int | None, list[dict[str, Any]], int | None]]


class BulkActions:
    """The buttons above the table. What the caller may not do has no button."""

    def __init__(self, session: PageSession, chosen: Chosen) -> None:
        self._session = session
        self._chosen = chosen
        may_change = session.may(METHOD, "verb")
        may_cancel = session.may(METHOD)
        may_pause = session.may("kernel.agent.pause")
        self.has_any = may_change or may_cancel or may_pause
        if not self.has_any:
            return
        with ui.element("div").classes("toolbar"):
            self._words = ui.label("").classes("soft")
            if may_change:
                self._button("Retry", "replay", lambda: self._bulk("retry"))
            if may_cancel:
                self._button("Cancel", "close", lambda: self._bulk("cancel"))
                self._stop = ui.checkbox("also stop running ones").props("dense")
            if may_change:
                self._button("Change …", "tune", self._change)
            if may_pause:
                self._button("Pause their agents", "pause", self._pause)

    @staticmethod
    def _button(label: str, icon: str, action: Callable[[], Any]) -> None:
        ui.button(label, icon=icon, on_click=action).props("outline dense no-caps")

    def show_selection(self, count: int) -> None:
        """Say what a button would apply to."""
        if not self.has_any:
            return
        total = self._chosen()[3]
        everything = "select entries first" if total is None else f"nothing selected: all {total:,} that match"
        self._words.set_text(f"{count:,} selected" if count else everything)

    # --- retry, cancel, change -------------------------------------------------------------------

    async def _bulk(self, verb: BulkVerb, **options: Any) -> None:
        view, pid, rows, total = self._chosen()
        if not rows and total is None:
            ui.notify("Select entries first: a search cannot be changed as a whole.", position="top")
            return
        if verb == "cancel":
            options["stop"] = bool(self._stop.value)
        wanted = EntryFilter(project_id=self._project(view)) if rows else self._filter(view, pid)
        options |= {"by": self._session.caller, "sched_ids": [row["id"] for row in rows] if rows else None}
        bulk = self._session.api.queue.bulk
        try:
            found: BulkResult = await self._session.access.call(bulk, wanted, verb, dry_run=True, **options)
        except RotaError as problem:
            self._session.say_problem(problem)
            return
        if not await self._agreed(verb, found):
            return
        words = f"{found.count:,} {_entries(found.count)} {_DONE[verb]}"
        await self._session.act(METHOD, words, bulk, wanted, verb, **options)

    def _project(self, view: QueueView) -> str | None:
        """Return the project that a call names: a caller that is bound to projects must name one of them."""
        projects = self._session.access.rights.projects
        return view.project or (projects[0] if projects else None)

    def _filter(self, view: QueueView, pid: int | None) -> EntryFilter:
        conditions = view.conditions(pid)
        return EntryFilter(**{**conditions, "project_id": self._project(view)})

    async def _agreed(self, verb: BulkVerb, found: BulkResult) -> bool:
        refused = [f"{count:,} not: {reason}" for reason, count in found.refused.items()]
        if not found.count:
            ui.notify("; ".join(["nothing to do", *refused]), position="top")
            return False
        statuses = ", ".join(f"{count:,} {status}" for status, count in found.statuses.items())
        text = "\n".join([f"Now: {statuses}.", *(f"{line[0].upper()}{line[1:]}." for line in refused)])
        title = f"{verb.capitalize()} {found.count:,} {_entries(found.count)}?"
        return await confirm(title, text, f"{verb.capitalize()} {found.count:,}")

    async def _change(self) -> None:
        """Ask for the new priority, time and deadline; what is left empty stays."""
        with ui.dialog() as dialog, ui.card().classes("dialog"):
            ui.label("Change entries").classes("card-title").props("role=heading aria-level=2")
            priority = ui.number("Priority; higher runs sooner", precision=0).props("outlined dense")
            start = ui.number("Start in hours; 0 is now", min=0).props("outlined dense")
            deadline = ui.number("Drop it after hours", min=0).props("outlined dense")
            tags = ui.input("Tags, with commas").props("outlined dense")
            with ui.row().classes("dialog-buttons"):
                ui.button("Back", on_click=lambda: dialog.submit(False)).props("flat no-caps")
                ui.button("Continue", on_click=lambda: dialog.submit(True)).props("no-caps")
        labelled(dialog, "Change entries")
        agreed = await answer_of(dialog)
        if not agreed:
            return
        now = self._session.api.clock.now()
        changes: dict[str, Any] = {}
        if priority.value is not None:
            changes["priority"] = int(priority.value)
        if start.value is not None:
            changes["runnable_at"] = now + start.value * HOUR_S
        if deadline.value is not None:
            changes["deadline"] = now + deadline.value * HOUR_S
        if tags.value:
            changes["tags"] = [tag.strip() for tag in tags.value.split(",") if tag.strip()]
        if changes:
            await self._bulk("change", **changes)

    # --- pause -----------------------------------------------------------------------------------

    async def _pause(self) -> None:
        """Pause the agents of the selected entries: their entries are not claimed until they are resumed."""
        agents = {int(row["pid"]): str(row["agent"]) for row in self._chosen()[2]}
        if not agents:
            ui.notify("Select entries first: their agents are paused.", position="top")
            return
        names = ", ".join(agents.values())
        text = f"{names}: their entries are not claimed until they are resumed. Runs that have begun go on."
        if not await confirm(f"Pause {len(agents)} agents?", text, "Pause"):
            return
        for pid, name in agents.items():
            words = f"agent {name} is paused"
            await self._session.act(
                "kernel.agent.pause", words, self._session.api.agents.pause, pid, self._session.caller
            )


def _entries(count: int) -> str:
    return "entry" if count == 1 else "entries"

"""Tables and lists of texts. What a cell contains is shown as text; it may lead to another page of the dashboard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from nicegui import ui
from nicegui.events import GenericEventArguments

__all__ = ["CellTable", "Column", "FieldList", "TextTable"]


class CellTable(ui.table, component="cell_table.js"):
    """A table whose rows and cells are updated in place; a column's `cell` says how its texts are drawn."""


class Column(msgspec.Struct, frozen=True):
    """A column: its heading, and whether it is a number."""

    name: str
    title: str
    is_number: bool = False
    is_wide: bool = False  # text that may be folded


class TextTable:
    """A table of texts, with a name for screen readers; without rows it is hidden."""

    def __init__(
        self,
        columns: Sequence[Column],
        label: str,
        *,
        links: Sequence[str] = (),
        tones: Sequence[str] = (),
        on_act: Callable[[str, str], Any] | None = None,
        rows_shown: int = 0,
        is_feed: bool = False,
    ) -> None:
        """Make a table.

        `links` are the columns that may lead elsewhere, `tones` those that have the colour of their row's `tone`.
        `on_act` gets a row's id and one of its `actions`. The browser draws of a feed only the rows in sight.
        """
        self._rows: list[dict[str, Any]] = []
        self._rows_shown = rows_shown
        shown: list[dict[str, Any]] = [
            {
                "name": each.name,
                "label": each.title,
                "field": each.name,
                "align": "right" if each.is_number else "left",
                "classes": "cell-wide" if each.is_wide else "",
                "cell": "link" if each.name in links else "tone" if each.name in tones else "",
            }
            for each in columns
        ]
        if on_act is not None:
            shown.append({"name": "actions", "label": "Actions", "field": "id", "align": "left", "cell": "actions"})
        with ui.element("div").classes("table-wrap").props("tabindex=0 role=group") as self._wrap:
            self.table = CellTable(columns=shown, rows=[], row_key="id", pagination=rows_shown or None)
        self._wrap.props["aria-label"] = label
        self._wrap.set_visibility(False)
        self.table.props("flat dense")
        if is_feed:
            self.table.props("virtual-scroll virtual-scroll-item-size=34 virtual-scroll-slice-size=20")
        if on_act is not None:

            async def act(event: GenericEventArguments) -> None:
                row_id, word = event.args
                known = next((row for row in self._rows if row["id"] == row_id), None)
                if known is not None and word in known.get("actions", ()):  # only what the row offers
                    await on_act(str(row_id), str(word))

            self.table.on("act", act)

    def show(self, rows: Sequence[dict[str, Any]]) -> None:
        """Show rows: texts by column, with `id`, and maybe `links` and `actions`."""
        new = [{"links": {}, **row} for row in rows]
        if new != self._rows:
            self._rows = new
            self._wrap.set_visibility(bool(new))
            self.table.rows = new
            self.table.props["hide-pagination"] = not self._rows_shown or len(new) <= self._rows_shown


class FieldList:
    """Names and texts as a list of definitions; texts are changed in place."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._texts: list[ui.label] = []
        self._list = ui.element("dl").classes("fields")

    def show(self, fields: Sequence[tuple[str, str]]) -> None:
        """Show names and their texts."""
        if [name for name, _ in fields] != self._names:
            self._names = [name for name, _ in fields]
            self._texts = []
            self._list.clear()
            with self._list:
                for name in self._names:
                    with ui.element("dt"):
                        ui.label(name)
                    with ui.element("dd"):
                        self._texts.append(ui.label(""))
        for label, (_, words) in zip(self._texts, fields, strict=True):
            if label.text != words:
                label.set_text(words)

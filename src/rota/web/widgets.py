"""Elements that pages share. Texts of users go through `ui.label`, table cells or `props[...]`: never through HTML.

A string given to `.props("…")`, `.classes("…")` or `.style("…")` is parsed, so it must be a constant: a name with a
quote in it could add a property. Set a property to a text with `element.props["aria-label"] = text`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from nicegui import ui
from nicegui.element import Element

__all__ = [
    "TONES",
    "Meter",
    "Rows",
    "Stat",
    "answer_of",
    "confirm",
    "empty",
    "fields_table",
    "labelled",
    "section",
    "status_chip",
]

E = TypeVar("E", bound=Element)
D = TypeVar("D")
TONES = {  # the CSS class of a status
    "waiting": "tone-quiet",
    "ready": "tone-plain",
    "running": "tone-busy",
    "succeeded": "tone-good",
    "failed": "tone-bad",
    "expired": "tone-warn",
    "cancelled": "tone-warn",
}


def labelled(element: E, text: str) -> E:
    """Give an element a name for screen readers."""
    element.props["aria-label"] = text
    return element


def section(title: str) -> Element:
    """Return a card with a heading, as a landmark of its own."""
    with ui.element("section").classes("card") as card:
        ui.label(title).classes("card-title").props("role=heading aria-level=2")
    card.props["aria-label"] = title
    return card


class Stat:
    """A number with its name, and a line below."""

    def __init__(self, name: str, href: str = "") -> None:
        tag = "a" if href else "div"
        with ui.element(tag).classes("stat") as box:
            ui.label(name).classes("stat-name")
            self._value = ui.label("–").classes("stat-value")
            self._detail = ui.label("").classes("stat-detail")
        if href:
            box.props["href"] = href

    def set(self, value: str, detail: str = "", *, is_bad: bool = False) -> None:
        """Show a value."""
        self._value.set_text(value)
        self._detail.set_text(detail)
        self._value.classes(add="text-bad" if is_bad else "", remove="" if is_bad else "text-bad")


class Rows(Generic[D]):
    """A list whose elements are made again only when other things are in it; otherwise they are updated in place."""

    def __init__(self, make: Callable[[D], Callable[[D], None]], *, nothing: str = "", command: str = "") -> None:
        self._make = make
        self._box = ui.element("div").classes("rows")
        self._updates: dict[Any, Callable[[D], None]] | None = None
        self._nothing, self._command = nothing, command

    def show(self, items: Mapping[Any, D]) -> None:
        """Show these, by a key that stays the same."""
        if self._updates is None or list(self._updates) != list(items):
            self._box.clear()
            with self._box:
                self._updates = {key: self._make(item) for key, item in items.items()}
                if not items and self._nothing:
                    empty(self._nothing, self._command)
        for key, item in items.items():
            self._updates[key](item)


class Meter:
    """A name, a bar and a sentence: a share, or how much of a budget is used."""

    def __init__(self, name: str) -> None:
        with ui.element("div").classes("meter-row"):
            with ui.element("div").classes("meter-head"):
                ui.label(name).classes("meter-name")
                self._text = ui.label("").classes("soft small")
            with ui.element("div").classes("meter-box"):
                self._bar = labelled(ui.element("meter").props("min=0 max=1"), name)
                self._mark = ui.element("div").classes("meter-mark").props("aria-hidden=true")
                self._mark.set_visibility(False)

    def set(self, share: float, text: str, *, is_high: bool = False, target: float | None = None) -> None:
        """Show a share from 0 to 1, and a mark where it should be."""
        self._mark.set_visibility(target is not None)
        if target is not None:
            self._mark.style(f"left: {round(100 * max(0.0, min(1.0, target))):d}%")
        self._bar.props["value"] = round(max(0.0, min(1.0, share)), 3)
        self._bar.classes(add="meter-high" if is_high else "", remove="" if is_high else "meter-high")
        self._text.set_text(text)


def status_chip(status: str) -> ui.label:
    """Return a status as a small coloured word."""
    return ui.label(status).classes("chip").classes(TONES.get(status, "tone-plain"))


def empty(text: str, command: str = "") -> Element:
    """Return what is shown where there is nothing yet: why, and the command that changes it."""
    with ui.element("div").classes("empty") as box:
        ui.label(text)
        if command:
            ui.label(command).classes("command")
    return box


def fields_table(fields: Sequence[tuple[str, str]]) -> Element:
    """Return names and texts as a list of definitions."""
    with ui.element("dl").classes("fields") as table:
        for name, text in fields:
            with ui.element("dt"):
                ui.label(name)
            with ui.element("dd"):
                ui.label(text)
    return table


async def answer_of(dialog: ui.dialog) -> Any:
    """Open a dialog and return its answer; it is removed when it has closed, and the focus is back where it was."""
    dialog.on("hide", dialog.delete)
    return await dialog


async def confirm(title: str, text: str, action: str) -> bool:
    """Ask before something is changed; Escape and a click beside the dialog mean no."""
    with ui.dialog().props("role=alertdialog") as dialog, ui.card().classes("dialog"):
        ui.label(title).classes("card-title").props("role=heading aria-level=2")
        ui.label(text).classes("dialog-text")
        with ui.row().classes("dialog-buttons"):
            ui.button("Back", on_click=lambda: dialog.submit(False)).props("flat autofocus no-caps")
            ui.button(action, on_click=lambda: dialog.submit(True)).props("no-caps").mark("confirm")
    dialog.props["aria-label"] = title
    answer: Any = await answer_of(dialog)
    return bool(answer)

"""Elements that pages share. Texts of users go through `ui.label`, table cells or `props[...]`: never through HTML.

A string given to `.props("…")`, `.classes("…")` or `.style("…")` is parsed, so it must be a constant: a name with a
quote in it could add a property. Set a property to a text with `element.props["aria-label"] = text`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from nicegui import ui
from nicegui.element import Element

from rota.model import COST_DIM, dollars

__all__ = [
    "TONES",
    "Stat",
    "amounts_text",
    "confirm",
    "empty",
    "fields_table",
    "labelled",
    "section",
    "status_chip",
]

E = TypeVar("E", bound=Element)
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


async def confirm(title: str, text: str, action: str) -> bool:
    """Ask before something is changed; Escape and a click beside the dialog mean no."""
    with ui.dialog().props("role=alertdialog") as dialog, ui.card().classes("dialog"):
        ui.label(title).classes("card-title").props("role=heading aria-level=2")
        ui.label(text).classes("dialog-text")
        with ui.row().classes("dialog-buttons"):
            ui.button("Back", on_click=lambda: dialog.submit(False)).props("flat autofocus no-caps")
            ui.button(action, on_click=lambda: dialog.submit(True)).props("no-caps").mark("confirm")
    dialog.props["aria-label"] = title
    answer: Any = await dialog
    dialog.delete()
    return bool(answer)


def amounts_text(amounts: dict[str, int]) -> str:
    """Return amounts by dimension as a text; a cost is in dollars."""
    known = ((dim, amount) for dim, amount in amounts.items() if amount)
    return ", ".join(dollars(amount) if dim == COST_DIM else f"{amount:,} {dim}" for dim, amount in known)

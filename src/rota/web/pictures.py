"""Drawings inside pages. What is drawn is made by `rota.svg`, which escapes all texts; the browser checks it again."""

from __future__ import annotations

from collections.abc import Sequence

from nicegui import ui
from nicegui.element import Element

__all__ = ["add_style", "legend", "picture_frame"]

HEAD = '<link rel="stylesheet" href="/static/pictures.css">'  # a constant: what is added here is not escaped


def picture_frame(*, on_paper: bool = False) -> ui.html:
    """Return the place of a drawing: on white also on a dark page, or as wide as the page with now at the right."""
    add_style()
    with ui.element("div").classes("picture-frame").classes("picture-paper" if on_paper else "newest-first"):
        return ui.html("", sanitize=True)


def add_style() -> None:
    """Give the page the style sheet of drawings, tables and meters."""
    ui.add_head_html(HEAD)


def legend(place: Element, items: Sequence[tuple[str, int]]) -> None:
    """Show what colours mean: texts, each with the number of its colour."""
    place.clear()
    with place:
        for words, colour in items:
            with ui.element("div").classes("legend-item"):
                ui.element("span").classes("legend-mark").classes(f"bar-{colour:d}")
                ui.label(words)

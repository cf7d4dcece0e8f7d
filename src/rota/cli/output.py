"""Print tables and sentences for people, JSON for programs; what is printed cannot control the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table

from rota.cli.terminal_text import harmless
from rota.clock import SystemClock

__all__ = ["cell", "console", "now", "print_fields", "print_json", "print_page", "print_table", "span", "when"]

PIPE_COLUMNS = 160  # the width where output is not a terminal
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def now() -> float:
    """Return this machine's time, for \"3 min ago\"."""
    return SystemClock().now()


class _HarmlessConsole(Console):
    """A console that shows the codes in a text; of codes, a terminal gets only its own styles and cursor moves."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield the parts of what is printed."""
        for part in super().render(renderable, options):
            if part.control or part.text.isprintable() or part.text == "\n":
                yield part
            else:
                yield Segment(harmless(part.text, lines=True), part.style)


def console(*, stderr: bool = False, **options: Any) -> Console:
    """Return the console for standard output or standard error."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stderr or stream.isatty() or "COLUMNS" in os.environ else PIPE_COLUMNS
    return _HarmlessConsole(**{"width": width, "highlight": False, "emoji": False, "stderr": stderr, **options})


def print_json(value: Any, *, indent: int | None = None, file: IO[str] | None = None) -> None:
    """Print one value, on one line unless it is indented."""
    text = msgspec.json.encode(value)
    shown = text if indent is None else msgspec.json.format(text, indent=indent)
    (file or sys.stdout).write(harmless(shown.decode(), lines=True) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
    """Print a table, or the sentence `empty` if it has no rows."""
    table = Table(*columns, box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*map(cell, row))
    console().print(table if table.row_count else empty, markup=not table.row_count)


def print_page(name: str, page: tuple[Sequence[Any], int], columns: dict[str, str], *, as_json: bool) -> None:
    """Print a page of structures and the total; `columns` maps headings to attributes."""
    things, total = page
    if as_json:
        print_json({name: things, "total": total})
        return
    rows = ([getattr(thing, attribute) for attribute in columns.values()] for thing in things)
    print_table(list(columns), rows, empty=f"no {name}")
    if total > len(things):
        console().print(f"{len(things):,} of {total:,} {name}", style="dim")


def cell(value: Any) -> str:
    """Format a value for a table cell; nothing is a dash."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple | list):
        return ", ".join(map(cell, value)) or "–"
    if isinstance(value, dict | msgspec.Struct):
        value = msgspec.json.encode(value).decode()
    return escape(harmless(str(value)))


def when(at: float | None, now_at: float) -> str:
    """Format an instant relative to now."""
    if at is None:
        return "–"
    if not at:
        return "now"
    return f"in {span(at - now_at)}" if at > now_at else f"{span(now_at - at)} ago"


def span(seconds: float) -> str:
    """Format a duration in the largest unit that fits."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def print_fields(thing: Any) -> None:
    """Print one structure, a line for each field."""
    at = now()
    out = console()
    width = max(map(len, thing.__struct_fields__))
    for name in thing.__struct_fields__:
        value = getattr(thing, name)
        text = when(value, at) if name.endswith("_at") else cell(value)
        out.print(f"[bold]{name.replace('_', ' '):{width}}[/]  {text}")

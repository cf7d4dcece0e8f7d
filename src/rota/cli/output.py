"""Print tables and sentences for people, JSON for programs; what is printed cannot control the terminal."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any, cast

import msgspec

from rota.cli.plain_console import PlainConsole, escape
from rota.cli.terminal_text import harmless
from rota.clock import SystemClock
from rota.time_text import local_time, moment, span, when

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = [
    "cell",
    "console",
    "local_time",
    "moment",
    "now",
    "print_fields",
    "print_json",
    "print_page",
    "print_table",
    "span",
    "when",
]


def now() -> float:
    """Return this machine's time, for \"3 min ago\"."""
    return SystemClock().now()


def console(*, stderr: bool = False, **options: Any) -> Console:
    """Return the console for standard output or standard error; with options, it is rich's."""

    def make_rich() -> Console:
        from rota.cli.rich_console import rich_console

        return rich_console(stderr=stderr, **options)

    return make_rich() if options else cast("Console", PlainConsole(make_rich, stderr=stderr))


def print_json(value: Any, *, indent: int | None = None, file: IO[str] | None = None) -> None:
    """Print one value, on one line unless it is indented."""
    text = msgspec.json.encode(value)
    shown = text if indent is None else msgspec.json.format(text, indent=indent)
    (file or sys.stdout).write(harmless(shown.decode(), lines=True) + "\n")


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str, optional: Collection[str] = ()
) -> None:
    """Print a table, or the sentence `empty` if it has no rows; an `optional` column only if a row has a value."""
    if optional:
        rows = list(rows)
        shown = [
            at for at, name in enumerate(columns) if name not in optional or any(cell(row[at]) != "–" for row in rows)
        ]
        columns, rows = [columns[at] for at in shown], [[row[at] for at in shown] for row in rows]
    cells = [list(map(cell, row)) for row in rows]
    out = console()
    if not cells:
        out.print(empty)
    elif not cast("PlainConsole", out).print_table(columns, cells):
        out.print(_folding_table(columns, cells))


def _folding_table(columns: Sequence[str], rows: list[list[str]]) -> Table:
    """Return a table that rich folds to the width of the terminal."""
    from rich.table import Table

    table = Table(*columns, box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*row)
    return table


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


def print_fields(thing: Any) -> None:
    """Print one structure, a line for each field."""
    at = now()
    out = console()
    width = max(map(len, thing.__struct_fields__))
    for name in thing.__struct_fields__:
        value = getattr(thing, name)
        text = when(value, at) if name.endswith("_at") else cell(value)
        out.print(f"[bold]{name.replace('_', ' '):{width}}[/]  {text}")

"""`rota doctor`: is everything as it should be, and if not, what to do."""

from __future__ import annotations

import typer

from rota.cli.exits import FOUND
from rota.cli.options import STORE, AsJson, Store

__all__ = ["doctor"]

_MARKS = {"good": "[green]✓[/]", "note": "[yellow]![/]", "bad": "[red]✗[/]"}


def doctor(store: Store = STORE, as_json: AsJson = False) -> None:
    """Check the installation, the store and the platform, and say what to fix; ends with 1 if something is wrong."""
    from rota.cli.checkup import examine
    from rota.cli.output import console, print_json

    findings = list(examine(store))
    if as_json:
        print_json({"findings": findings})
    else:
        out, part = console(), ""
        for each in findings:
            if each.part != part:
                part = each.part
                out.print(f"[bold]{part}[/]")
            out.print(f"  {_MARKS[each.verdict]} {each.words}")
            if each.fix:
                out.print(f"      → {each.fix}", markup=False)
    if any(each.verdict == "bad" for each in findings):
        raise typer.Exit(FOUND)

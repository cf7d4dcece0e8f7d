"""`rota doctor`: check installation, store and platform."""

from __future__ import annotations

import typer

from rota.cli.exit_codes import FOUND
from rota.cli.options import STORE, AsJson, Store

__all__ = ["doctor"]

_VERDICTS = {"good": "[green]✓[/]", "note": "[yellow]![/]", "bad": "[red]✗[/]"}


def doctor(store: Store = STORE, as_json: AsJson = False) -> None:
    """Check installation, store and platform; say what to fix.

    Exits with 1 if a check fails.
    """
    from rota.cli.health_checks import examine
    from rota.cli.output import cell, console, print_json

    findings = list(examine(store))
    if as_json:
        print_json({"findings": findings})
    else:
        out, part = console(), ""
        for each in findings:
            if each.part != part:
                part = each.part
                out.print(f"[bold]{part}[/]")
            out.print(f"  {_VERDICTS[each.verdict]} {cell(each.words)}")
            if each.fix:
                out.print(f"      → {each.fix}", markup=False)
    if any(each.verdict == "bad" for each in findings):
        raise typer.Exit(FOUND)

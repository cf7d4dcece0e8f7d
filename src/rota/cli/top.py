"""`rota top`: a live, full-screen view of what happens at a store, whoever runs it."""

from __future__ import annotations

from rota.cli.options import STORE, AsJson, Store

__all__ = ["top"]


def top(store: Store = STORE, as_json: AsJson = False) -> None:
    """Watch a store: slots, shares, budgets, limits, the queue, the last events. Ctrl-C ends it; --json looks once."""
    from rota.cli.connection import open_desk
    from rota.cli.output import print_json

    with open_desk(store) as desk:
        if as_json:
            running, _ = desk.queue.list(state="dispatched", limit=1_000)
            print_json(
                {
                    "cursor": desk.journal.cursor(),
                    "counts": desk.queue.counts(),
                    "running": running,
                    "budgets": desk.ledger.budgets(),
                    "limits": desk.contexts.list(),
                    "paused_by": desk.projects.fleet_paused_by(),
                }
            )
            return
        from rich.console import Console

        from rota.cli.view import LiveView

        with LiveView(desk, console=Console(), store=store, full_screen=True) as view:
            view.wait()

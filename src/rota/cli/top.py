"""`rota top`: a live view of a store."""

from __future__ import annotations

from rota.cli.options import STORE, AsJson, Store

__all__ = ["top"]


def top(store: Store = STORE, as_json: AsJson = False) -> None:
    """Show a live, full-screen view of a store.

    Slots, shares, budgets, limits, the queue and the last events. Ctrl-C ends it; --json prints one snapshot.
    """
    from rota.cli.connection import open_api
    from rota.cli.output import console, print_json

    with open_api(store) as api:
        if as_json:
            running, _ = api.queue.list(state="dispatched", limit=1_000)
            print_json(
                {
                    "cursor": api.journal.cursor(),
                    "counts": api.queue.counts(),
                    "running": running,
                    "budgets": api.ledger.budgets(),
                    "limits": api.contexts.list(),
                    "paused_by": api.projects.fleet_paused_by(),
                    "policy": api.policies.get(),
                }
            )
            return
        from rota.cli.view import LiveView

        with LiveView(api, console=console(), store=store, full_screen=True) as view:
            view.wait()

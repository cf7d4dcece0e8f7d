"""`rota top`: what a fleet is doing, from any terminal."""

from __future__ import annotations

from typing import Annotated

import typer

from rota.cli.options import STORE, AsJson, Store

__all__ = ["top"]


def top(
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot and exit.")] = False,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Show a live, full-screen view of a store.

    The policy in force, workers and their slots, shares against targets, waits, budgets, limits, the queue and the last
    events, also of a fleet that another process runs. Ctrl-C ends it. Without a terminal, and with --once or --json, it
    prints one snapshot.
    """
    from functools import partial

    from rota.cli.connection import open_api
    from rota.cli.output import console, print_json
    from rota.cli.view import LiveView
    from rota.observe import read_overview, recent_state, report_of
    from rota.store import without_password

    with open_api(store) as api:
        state = recent_state(api)
        overview = read_overview(api)
        if as_json:
            print_json(report_of(overview, state))
            return
        output = console(force_terminal=None)  # what the view paints on
        view = partial(LiveView, api, store=without_password(store), state=state, overview=overview)
        if once or not output.is_terminal or output.is_dumb_terminal:
            view(console=console(force_terminal=False, color_system=None)).print_once()
            return
        with view(console=output, full_screen=True) as live:
            live.wait()

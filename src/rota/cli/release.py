"""`rota release`: let what waits for a failed entry, or is kept for a worker, run all the same."""

from __future__ import annotations

from typing import Annotated

import typer

from rota.cli.options import STORE, AsJson, Store

__all__ = ["release"]


def release(
    ids: Annotated[list[int], typer.Argument(help="The entries.")],
    *,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Let entries run although what they were to come after failed, or although they are kept for a worker."""
    from rota.cli.connection import open_desk
    from rota.cli.output import print_json, print_table

    with open_desk(store) as desk:
        entries = [desk.queue.release(sched_id) for sched_id in ids]
    if as_json:
        print_json({"released": {entry.sched_id: entry.hold for entry in entries}})
    else:
        rows = [(entry.sched_id, entry.hold or "nothing") for entry in entries]
        print_table(("entry", "held for"), rows, empty="nothing to release")

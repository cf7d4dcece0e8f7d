"""`rota cpu status`: leased cores, reserved time, islands and budgets of CPU time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.cli.connection import open_api
from rota.cli.output import now, print_json, print_table, when

if TYPE_CHECKING:
    from rota.model import CoreGrant, CoreRefusal, SchedulingContext

__all__ = ["show_status"]


def show_status(store: str, *, as_json: bool) -> None:
    """Print the grants of every host, the refused entries and the contexts of CPU time."""
    with open_api(store) as api:
        status = api.cores.status()
    if as_json:
        print_json(status)
        return
    grants = [each for host in status.hosts for each in host.grants]
    columns = ("host", "entry", "agent", "granted", "since")
    print_table(columns, map(_grant_row, grants), empty="no run has leased cores or reserved time")
    if status.refused:
        print_table(("refused entry", "host", "when", "reason"), map(_refusal_row, status.refused), empty="")
    if status.contexts:
        print_table(("context", "of", "CPU time", "left", "state"), map(_context_row, status.contexts), empty="")


def _grant_row(grant: CoreGrant) -> tuple[object, ...]:
    what = "; ".join(grant.sentences())
    return grant.host_name, grant.sched_id, grant.owner, what, when(grant.granted_at, now())


def _refusal_row(refusal: CoreRefusal) -> tuple[object, ...]:
    return refusal.sched_id, refusal.host_name, when(refusal.at, now()), refusal.reason


def _context_row(context: SchedulingContext) -> tuple[object, ...]:
    budget = f"{context.budget:,} ms in {context.period / 1000:g} s"
    return (
        context.context_id,
        f"{context.bound_to} {context.bound_id}",
        budget,
        f"{context.remaining:,} ms",
        context.state,
    )

"""`rota workers`: which workers are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.cli.options import STORE, AsJson, Store

if TYPE_CHECKING:
    from rota.model import WorkerInfo

__all__ = ["workers"]


def workers(store: Store = STORE, as_json: AsJson = False) -> None:
    """List the workers: where they run, how many slots they have and how many are in use.

    A worker that has not been seen for 20 s is silent: stopped, cut off from the store, or dead. One that vanished is
    shown as lost until its claims have expired.
    """
    from rota.cli.connection import open_api
    from rota.cli.output import print_json, print_table

    with open_api(store) as api:
        found = api.workers.list(lost=True)
    if as_json:
        print_json({"workers": found})
        return
    columns = ("worker", "kind", "host", "os pid", "slots", "running", "since", "last seen", "state")
    print_table(columns, map(_row, found), empty="no worker is running; start one: rota run fleet.toml")


def _row(worker: WorkerInfo) -> tuple[object, ...]:
    from rota.cli.output import now, when

    at, kinds = now(), [f"{pool.slots} {', '.join(pool.kinds)}" for pool in worker.pools if pool.kinds]
    by_kind = f" ({'; '.join(kinds)})" if kinds else ""
    slots = None if worker.kind == "unregistered" else f"{worker.slots}{by_kind}"
    working = "draining" if worker.draining else "working" if worker.running else "idle"
    state = "lost" if not worker.alive else "silent" if worker.silent else working
    return (
        worker.worker_id,
        worker.kind.replace("_", " "),
        worker.host,
        worker.os_pid,
        slots,
        worker.running,
        when(worker.started_at, at),
        when(worker.seen_at, at),
        state,
    )

"""The entries that run now, as `rota ps` lists them: with their agent, how far they are and what they wait for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rota.decoding import decode_json
from rota.kernel.rows import DECODE_ERRORS, decode_spent, json_list
from rota.model.entry_report import LimitUse, RunningEntry, RunProgress
from rota.model.events import RunProgressed
from rota.model.work import ReadyEntry
from rota.store import Row, Transaction
from rota.store.statements import agents as agent_sql
from rota.store.statements import journal as journal_sql
from rota.store.statements import limit_asks as ask_sql

__all__ = ["RunningPage", "progress_of", "running_entries"]

PROGRESS_SCAN_MAX = 1_000  # newest events of an agent in which the last report of a run is looked for


class RunningPage(NamedTuple):
    """A page of the entries that run, and their number."""

    running: list[RunningEntry]
    total: int


def running_entries(tx: Transaction, entries: Sequence[ReadyEntry]) -> list[RunningEntry]:
    """Add to entries that run what their rows do not have."""
    if not entries:
        return []
    names: dict[int, str] = dict(tx.run_for(agent_sql.NAMES_OF, {entry.pid for entry in entries}))
    waits: dict[int, list[LimitUse]] = {}
    for sched_id, name, asked, asked_at in tx.run(ask_sql.WAITING_RUNS, (json_list(e.sched_id for e in entries),)):
        use = LimitUse(name=name, amounts=dict(decode_spent(asked)), asked_at=asked_at)
        waits.setdefault(sched_id, []).append(use)
    return [
        RunningEntry(
            entry=entry,
            agent=names.get(entry.pid, ""),
            progress=progress_of(tx, entry),
            waits_for=tuple(waits.get(entry.sched_id, ())),
        )
        for entry in entries
    ]


def progress_of(tx: Transaction, entry: ReadyEntry) -> RunProgress | None:
    """Return what the live run of an entry reported last; None if it has not, or it was long ago."""
    if entry.state != "dispatched":
        return None
    rows: Sequence[Row] = tx.run(
        journal_sql.LAST_PROGRESS, (entry.pid, entry.token, PROGRESS_SCAN_MAX, RunProgressed.kind, entry.sched_id)
    )
    if not rows:
        return None
    try:
        said = decode_json(rows[0][1], RunProgressed)
    except DECODE_ERRORS:
        return None
    return RunProgress(said.fraction, said.text, rows[0][0])

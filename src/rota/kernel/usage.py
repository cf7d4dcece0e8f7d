"""Usage reports, and bringing the usage per day up to date.

`usage_daily` is a fold over the journal (usage_fold.py), and the setting `usage_cursor` names the last event that is in
it. Both change in one transaction, so an event is added exactly once, whatever process is killed at whatever moment:

    usage_daily + the fold of the events after the cursor = the fold of all events that were ever recorded

No call that enqueues, claims or completes pays for this. The rows are brought up to date in steps of `FOLD_MAX` events:
by a report, by daemons and supervisors from time to time, and before a prune. Each step reads and adds up without
holding the write lock, then writes the sums, if no other process has moved the cursor meanwhile.

A prune removes no event behind the cursor, and no entry while the cursor is not at the end: the events that complete
an entry do not name its agent, so the fold needs its row.

The days are outside of *checkpoint + tail = tables*: no decision of the scheduler depends on them, and the events that
they were made of may be gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from rota.decoding import decode_json
from rota.errors import InvalidPayload, LimitExceeded, StoreCorrupt, StoreError
from rota.kernel.environment import KernelEnvironment
from rota.kernel.journal import append, event_from_row
from rota.kernel.rows import DECODE_ERRORS, json_list
from rota.kernel.settings import read_number, read_setting, write_setting
from rota.kernel.usage_fold import DAY_S, FOLDED_KINDS, NO_AGENT, DayKey, EntryNote, UsageFold, entries_of, merged
from rota.kernel.usage_fold import FoldedUsage as Folded
from rota.kernel.usage_report import Wanted, add_usage, make_report
from rota.model.checks import Checks
from rota.model.events import PricesSet
from rota.model.prices import PRICES_MAX, ModelPrice
from rota.model.usage import OTHER_MODELS, SUMMED, USAGE_KEYS, DayUsage, UsageKey, UsageReport
from rota.store import Row, Transaction
from rota.store.statements import agents as agent_sql
from rota.store.statements import journal as journal_sql
from rota.store.statements import usage as sql

__all__ = ["FOLD_MAX", "MODELS_MAX", "Usage", "fold_in", "usage_cursor"]

FOLD_MAX = 2_000  # events in one step
MODELS_MAX = 32  # of one agent and day; usage of further ones is counted as `OTHER_MODELS`
_CURSOR = "usage_cursor"
_PRICES = "model_prices"  # the setting that holds them, as JSON
_KINDS = json_list(FOLDED_KINDS)
_NOTHING: Mapping[int, EntryNote | None] = {}
_checks = Checks("Usage", InvalidPayload)
_encode = msgspec.json.Encoder().encode


class _Step(NamedTuple):
    """What one step adds."""

    since: int  # the cursor before
    until: int  # and after
    is_last: bool  # no event is behind it
    folded: Folded


def usage_cursor(tx: Transaction) -> int:
    """Return the last event that is in the usage per day."""
    return int(read_number(tx, _CURSOR, 0))


def _prepare(
    tx: Transaction, since: int | None = None, later: Mapping[int, EntryNote | None] = _NOTHING
) -> _Step | None:
    """Add up the next events after the cursor, or after a given one, with what was noted since; None at the end."""
    since = usage_cursor(tx) if since is None else since
    first, last = tx.run(journal_sql.EVENT_ENDS)[0]
    if last is None or last <= since:
        return None
    until = min(max(since, first - 1) + FOLD_MAX, last)
    events = [event_from_row(row) for row in tx.run(sql.EVENTS_OF_KINDS, (since, until, _KINDS))]
    entries = entries_of(events)
    agents: dict[int, int] = dict(tx.run_for(sql.AGENTS_OF_ENTRIES, entries)) if entries else {}
    notes = {row[0]: _note(row) for row in tx.run_for(sql.NOTES, entries)} if entries else {}
    for sched_id in entries & later.keys():
        notes[sched_id] = later[sched_id] or EntryNote()
    fold = UsageFold(lambda sched_id: agents.get(sched_id, NO_AGENT), notes)
    for event in events:
        fold.add(event)
    return _Step(since, until, until == last, fold.result)


def _note(row: Row) -> EntryNote:
    """Return a stored note, without what is damaged in it."""
    _, model, released_at, waited_ms = row
    return EntryNote(
        model if isinstance(model, str) else "",
        released_at if isinstance(released_at, float) else None,
        waited_ms if isinstance(waited_ms, int) else None,
    )


def _apply(tx: Transaction, step: _Step) -> None:
    """Write what a step adds, unless the cursor has moved."""
    if usage_cursor(tx) != step.since:
        return
    dropped = [(sched_id,) for sched_id, note in step.folded.notes.items() if note is None]
    kept = [(key, note.model, note.released_at, note.waited_ms) for key, note in step.folded.notes.items() if note]
    if dropped:
        tx.run_many(sql.NOTE_DROP, dropped)
    if kept:
        tx.run_many(sql.NOTE_PUT, kept)
    pids = {pid for _, pid, _ in step.folded.days}
    projects: dict[int, str | None] = dict(tx.run_for(agent_sql.PROJECTS_OF, pids)) if pids else {}
    by_agent: dict[tuple[int, int], dict[str, DayUsage]] = {}
    for (day, pid, model), usage in step.folded.days.items():
        by_agent.setdefault((day, pid), {})[model] = usage
    for (day, pid), models in by_agent.items():
        rows = _rows_with(tx.run(sql.DAY_GET, (day, pid)), models)
        project = projects.get(pid) or ""
        tx.run_many(sql.DAY_PUT, [(day, pid, model, project, *_columns(usage)) for model, usage in rows.items()])
    write_setting(tx, _CURSOR, str(step.until))


def _rows_with(stored: list[Row], added: dict[str, DayUsage]) -> dict[str, DayUsage]:
    """Return the rows of a day and an agent that change; models beyond the maximum are added to the last one."""
    rows = {row[0]: row[1:] for row in stored}
    named = {model for model in rows if model not in ("", OTHER_MODELS)}
    changed: dict[str, DayUsage] = {}
    for model, usage in added.items():
        kept = model
        if model not in ("", OTHER_MODELS) and model not in named:
            kept = model if len(named) < MODELS_MAX else OTHER_MODELS
            named |= {kept} - {OTHER_MODELS}
        before = _columns(changed[kept]) if kept in changed else rows.get(kept, _columns(DayUsage()))
        changed[kept] = merged(before, usage)
    return changed


def _columns(usage: DayUsage) -> tuple[Any, ...]:
    return *(getattr(usage, field) for field in SUMMED), usage.wait_max_ms, _encode(usage.wait_sizes).decode()


def _not_folded(tx: Transaction) -> dict[DayKey, DayUsage]:
    """Return what the events after the cursor add, without writing anything."""
    days: dict[DayKey, DayUsage] = {}
    notes: dict[int, EntryNote | None] = {}
    since = usage_cursor(tx)
    while (step := _prepare(tx, since, notes)) is not None:
        since = step.until
        notes |= step.folded.notes
        for key, usage in step.folded.days.items():
            days[key] = add_usage(days[key], usage) if key in days else usage
    return days


def fold_in(tx: Transaction) -> bool:
    """Do one step inside a transaction; returns whether all events are in the usage per day then."""
    step = _prepare(tx)
    if step is None:
        return True
    _apply(tx, step)
    return step.is_last


class Usage:
    """Reports of what was used, by project, agent, model and day."""

    def __init__(self, env: KernelEnvironment) -> None:
        self._env = env

    def fold(self, after_step: Callable[[], object] = lambda: None) -> None:
        """Add the events so far to the usage per day, in small transactions, and call a function after each."""
        _, last = self._env.read(lambda tx: tx.run(journal_sql.EVENT_ENDS)[0])
        while (step := self._env.read(_prepare)) is not None and step.since < last:  # others may go on writing
            self._env.write_keeping_cache(lambda tx, step=step: _apply(tx, step))  # type: ignore[misc]  # runs now
            after_step()

    # --- prices ----------------------------------------------------------------------------------

    def prices(self) -> dict[str, ModelPrice]:
        """Return the prices of models, by name."""
        return self._env.read(_read_prices)

    def set_prices(self, prices: Mapping[str, ModelPrice | None]) -> None:
        """Set the prices of some models; None removes one. Other models keep theirs."""
        for model, price in _checks.mapping("prices", prices).items():
            _checks.name("model", model)
            if price is not None and type(price) is not ModelPrice:
                raise _checks.refuse(f"prices[{model!r}]", f"must be a ModelPrice, not {price!r}")
        now = self._env.now()

        def work(tx: Transaction) -> None:
            before = _read_prices(tx)
            after = {model: price for model, price in {**before, **prices}.items() if price is not None}
            if len(after) > PRICES_MAX:
                raise LimitExceeded("prices_max", PRICES_MAX, len(after), field="prices")
            if after != before:
                write_setting(tx, _PRICES, _encode(after).decode())
                append(tx, PricesSet(prices=dict(prices)), now=now)

        self._env.write_keeping_cache(work)

    # --- reports ---------------------------------------------------------------------------------

    def report(
        self,
        by: tuple[UsageKey, ...] = ("project",),
        since_at: float | None = None,
        until_at: float | None = None,
        *,
        project_id: str | None = None,
        agent: str | None = None,
    ) -> UsageReport:
        """Return what was used in the days (UTC) from one instant to another, grouped by these keys."""
        _checks.optional_text("project_id", project_id)
        wanted = _wanted(None if project_id is None else {project_id}, by, since_at, until_at, agent)
        with suppress(StoreError):  # a store that this process may only read: its last events are added up each time
            self.fold()
        return self._env.read(lambda tx: make_report(tx, wanted, _not_folded(tx)))

    def report_within(
        self,
        within: Collection[str | None] | None,
        by: tuple[UsageKey, ...],
        since_at: float | None,
        until_at: float | None,
        *,
        agent: str | None,
    ) -> UsageReport:
        """Return the report of some projects, or of all (None). It writes nothing: its caller may not."""
        wanted = _wanted(within, by, since_at, until_at, agent)
        return self._env.read(lambda tx: make_report(tx, wanted, _not_folded(tx)))


def _wanted(
    within: Collection[str | None] | None,
    by: tuple[UsageKey, ...],
    since_at: float | None,
    until_at: float | None,
    agent: str | None,
) -> Wanted:
    """Check what a report is asked for."""
    _checks.sequence("by", by)
    for key in by:
        _checks.one_of("by", key, USAGE_KEYS)
    _checks.optional_text("agent", agent)
    return Wanted(
        tuple(by),
        None if since_at is None else int(_checks.instant("since_at", since_at) // DAY_S),
        None if until_at is None else int(_checks.instant("until_at", until_at) // DAY_S),
        None if within is None else frozenset(name or "" for name in within),
        agent,
    )


def _read_prices(tx: Transaction) -> dict[str, ModelPrice]:
    text = read_setting(tx, _PRICES)
    try:
        return {} if text is None else decode_json(text, dict[str, ModelPrice])
    except DECODE_ERRORS as problem:
        hint = "Apply the fleet file again: `rota run fleet.toml` writes the prices."
        raise StoreCorrupt(f"the prices of models cannot be read: {problem}", hint=hint) from problem

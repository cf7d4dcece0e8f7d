"""A usage report: rows of days, those that are stored and those that are not yet, added up by what was asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from rota.kernel.rows import json_list
from rota.kernel.usage_fold import DAY_S, DayKey, merged
from rota.model.checks import INTEGER_MAX
from rota.model.usage import SUMMED, DayUsage, UsageKey, UsageLine, UsageReport, add_sizes, percentile_ms
from rota.store import Transaction
from rota.store.statements import usage as sql

__all__ = ["REPORT_LINES_MAX", "Wanted", "add_usage", "make_report"]

REPORT_LINES_MAX = 10_000  # of one report; the rest is only in the total
ROWS_READ_MAX = 1_000  # rows read at a time


class Wanted(NamedTuple):
    """What a report is about."""

    by: tuple[UsageKey, ...]
    first_day: int | None
    last_day: int | None
    projects: frozenset[str] | None  # "" is no project; None: all
    agent: str | None


class _DayRow(NamedTuple):
    """A row of the days, with the name of its agent."""

    day: int
    model: str
    project_id: str
    name: str
    usage: DayUsage


def make_report(tx: Transaction, wanted: Wanted, not_stored: Mapping[DayKey, DayUsage]) -> UsageReport:
    """Return the report of the stored days and of what is not stored yet."""
    rows = chain(_stored(tx, wanted), _matching(tx, wanted, not_stored))
    lines = sorted(_grouped(rows, wanted.by).items(), key=itemgetter(0))
    whole = DayUsage()
    for _, usage in lines:
        whole = add_usage(whole, usage)
    return UsageReport(
        by=wanted.by,
        since_day=None if wanted.first_day is None else _date(wanted.first_day),
        until_day=None if wanted.last_day is None else _date(wanted.last_day),
        lines=[_line(key, usage) for key, usage in lines[:REPORT_LINES_MAX]],
        total=_line((None, None, None, None), whole),
        left_out=max(0, len(lines) - REPORT_LINES_MAX),
    )


def _stored(tx: Transaction, wanted: Wanted) -> Iterator[_DayRow]:
    first, last = _ends(wanted)
    projects = None if wanted.projects is None else json_list(wanted.projects)
    after: Sequence[Any] = (-INTEGER_MAX - 1, -1, "")
    while rows := tx.run(sql.DAYS, (first, last, projects, wanted.agent, *after, ROWS_READ_MAX)):
        for day, _, model, project_id, name, *columns in rows:
            yield _DayRow(day, model, project_id, name, merged(columns, DayUsage()))
        after = rows[-1][:3]


def _matching(tx: Transaction, wanted: Wanted, days: Mapping[DayKey, DayUsage]) -> Iterator[_DayRow]:
    first, last = _ends(wanted)
    pids = {pid for _, pid, _ in days}
    agents = {pid: (project_id, name) for pid, project_id, name in tx.run_for(sql.AGENTS, pids)} if pids else {}
    for (day, pid, model), usage in days.items():
        project_id, name = agents.get(pid, ("", ""))
        is_wanted = wanted.projects is None or project_id in wanted.projects
        if first <= day <= last and is_wanted and wanted.agent in (None, name):
            yield _DayRow(day, model, project_id, name, usage)


def _ends(wanted: Wanted) -> tuple[int, int]:
    first = -INTEGER_MAX if wanted.first_day is None else wanted.first_day
    return first, INTEGER_MAX if wanted.last_day is None else wanted.last_day


_LineKey = tuple[str | None, str | None, str | None, str | None]  # project, agent, model, day


def _grouped(rows: Iterable[_DayRow], by: tuple[UsageKey, ...]) -> dict[_LineKey, DayUsage]:
    """Add up rows by these keys. The name of an agent belongs to its project, so a line by agent has both."""
    wanted = set(by)
    totals: dict[_LineKey, DayUsage] = {}
    for day, model, project_id, name, usage in rows:
        key = (
            project_id if wanted & {"project", "agent"} else None,
            name if "agent" in wanted else None,
            model if "model" in wanted else None,
            _date(day) if "day" in wanted else None,
        )
        totals[key] = add_usage(totals[key], usage) if key in totals else usage
    return totals


def add_usage(first: DayUsage, second: DayUsage) -> DayUsage:
    """Return the sum of two."""
    sums = {field: getattr(first, field) + getattr(second, field) for field in SUMMED}
    longest = max(first.wait_max_ms, second.wait_max_ms)
    return DayUsage(**sums, wait_max_ms=longest, wait_sizes=add_sizes(first.wait_sizes, second.wait_sizes))


def _line(key: _LineKey, usage: DayUsage) -> UsageLine:
    shown = {field: getattr(usage, field) for field in SUMMED if field != "wait_ms"}
    longest = usage.wait_max_ms
    return UsageLine(
        project_id=key[0],
        agent=key[1],
        model=key[2],
        day=key[3],
        wait_mean_ms=usage.wait_ms // usage.waits if usage.waits else 0,
        wait_p50_ms=percentile_ms(usage.wait_sizes, longest, 50),
        wait_p95_ms=percentile_ms(usage.wait_sizes, longest, 95),
        wait_max_ms=longest,
        **shown,
    )


def _date(day: int) -> str:
    """Return a day as text; one that no calendar has, of a clock that was far off, as its number."""
    try:
        return datetime.fromtimestamp(day * DAY_S, UTC).date().isoformat()
    except (OverflowError, ValueError, OSError):
        return str(day)

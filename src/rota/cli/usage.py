"""`rota usage`: what was used, by project, agent, model and day."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rota.cli.options import STORE, AsJson, Store
from rota.cli.terminal_text import say

if TYPE_CHECKING:
    from rota.model import UsageLine, UsageReport

__all__ = ["usage"]

_NOT_KNOWN = {"project_id": "no project", "agent": "removed", "model": "no model"}  # for an empty text


def usage(
    by: Annotated[str, typer.Option("--by", help="One or several of project,agent,model,day.")] = "project",
    since: Annotated[str, typer.Option("--since", help="The first day: 7d ago, or a date (UTC).")] = "7d",
    until: Annotated[str | None, typer.Option("--until", help="The last day: 1d ago, or a date (UTC).")] = None,
    *,
    project: Annotated[str | None, typer.Option("--project", help="Only this project.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", help="Only agents of this name.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Show runs, tokens, cost, CPU time and waits, added up per day.

    The days are in UTC. They stay when events and finished entries are removed.
    """
    from rota.cli.connection import open_api
    from rota.cli.output import print_json

    keys: Any = tuple(dict.fromkeys(key for key in by.replace(" ", "").split(",") if key))
    since_at, until_at = _instant(since, "since"), None if until is None else _instant(until, "until")
    with open_api(store) as api:
        report = api.usage.report(keys, since_at, until_at, project_id=project, agent=agent)
    if as_json:
        print_json(report)
    elif as_csv:
        _print_csv(report)
    else:
        _print(report)


def _instant(text: str, field: str) -> float:
    """Return an instant: a duration before now, or a date in UTC."""
    import datetime as dt

    from rota.cli.arguments import instant, seconds
    from rota.cli.output import now
    from rota.errors import InvalidInput

    try:
        return max(0.0, now() - seconds(text, field))
    except InvalidInput:
        pass
    try:
        return dt.datetime.combine(dt.date.fromisoformat(text), dt.time(), dt.UTC).timestamp()
    except ValueError:
        return instant(text, field)


def _keys(report: UsageReport) -> list[str]:
    """Return the columns that the lines are grouped by; a line by agent also has its project."""
    fields = {"project_id": {"project", "agent"}, "agent": {"agent"}, "model": {"model"}, "day": {"day"}}
    return [field for field, keys in fields.items() if keys & set(report.by)]


def _print(report: UsageReport) -> None:
    from rota.cli.output import print_table
    from rota.model import main_measure

    keys, (measure, measured_in) = _keys(report), main_measure(report.total)
    whole = getattr(report.total, measure)
    rows = [(*(_key(line, key) for key in keys), *_numbers(line, measure, whole)) for line in report.lines]
    if keys and rows:
        rows.append(("total", *[""] * (len(keys) - 1), *_numbers(report.total, measure, whole)))
    headings = [key.removesuffix("_id") for key in keys]
    numbers = ("runs", "failed", "tokens", "cost", f"share of {measured_in}", "CPU", "wait", "wait p95", "wait max")
    print_table((*headings, *numbers), rows, empty="nothing was used in these days")
    if report.left_out:
        say(f"{report.left_out:,} more lines are only in the total: group by less, or give --since")


def _key(line: UsageLine, field: str) -> str:
    value: str = getattr(line, field) or ""
    return value or _NOT_KNOWN.get(field, "")


def _numbers(line: UsageLine, measure: str, whole: int) -> tuple[str, ...]:
    from rota.model import dollars
    from rota.time_text import fine_span

    share = f"{100 * getattr(line, measure) / whole:.1f} %" if whole > 0 else ""
    waits = (line.wait_mean_ms, line.wait_p95_ms, line.wait_max_ms) if line.waits else (None, None, None)
    return (
        f"{line.runs:,}",
        f"{line.failures:,}",
        f"{line.tokens:,}",
        dollars(line.cost_micro) if line.cost_micro else "",
        share,
        fine_span(line.cpu_ms / 1_000) if line.cpu_ms else "",
        *("" if wait is None else fine_span(wait / 1_000) for wait in waits),
    )


def _print_csv(report: UsageReport) -> None:
    """Print the lines without the total, and amounts as they are stored."""
    import csv
    import sys

    from rota.cli.terminal_text import harmless
    from rota.model import UsageLine

    keys = _keys(report)
    fields = [name for name in UsageLine.__struct_fields__ if name not in ("project_id", "agent", "model", "day")]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*keys, *fields])
    for line in report.lines:
        writer.writerow([*(harmless(getattr(line, key) or "") for key in keys), *(getattr(line, f) for f in fields)])

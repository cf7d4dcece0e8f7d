"""Print what a method returned: a table for a list, a line for each field of one structure, JSON for programs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple, get_args

import msgspec

from rota.cli.output import print_fields, print_json, print_page
from rota.cli.terminal_text import say
from rota.model import (
    COST_DIM,
    Agent,
    BudgetLine,
    LedgerLine,
    Project,
    SchedulingContext,
    Workspace,
    dim_text,
    dollars,
    hide_env,
)

__all__ = ["print_result"]

_AMOUNTS = ("used", "reserved", "limit", "granted", "hard_limit")  # columns of budgets


class ResultTable(NamedTuple):
    """How a list of structures is printed: its name in JSON, and a table's headings with their attributes."""

    name: str
    columns: dict[str, str]
    also_one: bool = False  # one structure is printed as a list, too
    has_total: bool = True


_COLUMNS: dict[Any, ResultTable] = {
    Agent: ResultTable(
        "agents",
        {
            "pid": "pid",
            "name": "name",
            "state": "state",
            "project": "project_id",
            "priority": "priority",
            "weight": "weight",
            "intent": "intent",
            "max concurrent": "max_concurrent",
            "paused by": "paused_by",
        },
    ),
    BudgetLine: ResultTable(
        "budgets",
        {
            "level": "level",
            "owner": "owner",
            "dimension": "dim",
            "used": "used",
            "reserved": "reserved",
            "limit": "limit",
            "window s": "window_s",
        },
    ),
    LedgerLine: ResultTable(
        "lines",
        {"agent": "pid", "dimension": "dim", "used": "used", "granted": "granted", "limit": "hard_limit"},
        also_one=True,
    ),
    Project: ResultTable(
        "projects",
        {
            "project": "project_id",
            "name": "name",
            "status": "status",
            "weight": "weight",
            "max concurrent": "max_concurrent",
            "paused by": "paused_by",
        },
    ),
    SchedulingContext: ResultTable(
        "limits",
        {
            "limit": "context_id",
            "bound to": "bound_to",
            "name": "bound_id",
            "project": "project_id",
            "unit": "unit",
            "left": "remaining",
            "budget": "budget",
            "state": "state",
        },
        also_one=True,
        has_total=False,
    ),
    Workspace: ResultTable(
        "workspaces",
        {
            "workspace": "workspace_id",
            "path": "path",
            "mode": "lock_mode",
            "held by": "held_by",
            "kept because": "kept",
        },
    ),
}


def print_result(result: Any, returns: Any, *, as_json: bool, field: str = "") -> None:
    """Print a result of the type `returns`; `field` is its name in JSON if it is a plain value."""
    result = _without_env(result)
    page = result if isinstance(result, tuple) else (result, None)
    columns = _columns_of(returns)
    if columns is not None and (isinstance(page[0], list) or columns.also_one):
        _print_list(page, columns, as_json=as_json)
    elif as_json:
        print_json({field: result} if field else result)
    elif isinstance(result, msgspec.Struct):
        print_fields(result)
    elif result is not None:
        say(result)


def _without_env(result: Any) -> Any:
    """Hide the values of agents' variables: a terminal, its history and a pipe have other readers."""
    if isinstance(result, Agent):
        return msgspec.structs.replace(result, metadata=hide_env(result.metadata))
    return type(result)(map(_without_env, result)) if type(result) in (list, tuple) else result


def _columns_of(returns: Any) -> ResultTable | None:
    """Return the columns of a structure, of a list of them, or of a page."""
    if returns in _COLUMNS:
        return _COLUMNS[returns]
    return next((found for kind in get_args(returns) if (found := _columns_of(kind)) is not None), None)


def _print_list(page: tuple[Any, int | None], columns: ResultTable, *, as_json: bool) -> None:
    things = page[0] if isinstance(page[0], list) else [page[0]]
    if as_json and not columns.has_total:
        print_json({columns.name: things})
    else:
        total = len(things) if page[1] is None else page[1]
        if not as_json:
            things = [_for_people(thing, columns.columns) for thing in things]
        print_page(columns.name, (things, total), columns.columns, as_json=as_json)


def _for_people(thing: Any, columns: dict[str, str]) -> Any:
    """Return a line of a budget with its cost in dollars, and anything else as it is."""
    if getattr(thing, "dim", None) != COST_DIM:
        return thing
    shown = {attribute: getattr(thing, attribute) for attribute in columns.values()}
    shown |= {field: dollars(shown[field]) for field in _AMOUNTS if field in shown}
    return SimpleNamespace(**shown | {"dim": dim_text(COST_DIM)})

"""A statement for many rows of parameters at once: each parameter is an array, and `unnest` makes rows of them.

A hundred rows in one statement take the server less than half the time of a hundred statements, even if these are sent
together. The text is derived for a statement that inserts values, and for one that updates or deletes rows by the
equality of columns with parameters. A few others have a text that is written here (`_WRITTEN`); any other statement
runs once for each row.

A parameter that is the same in all rows, such as the time or the worker of a claim, is not sent as an array: the
statement has a form for each set of such parameters, up to `FORMS_MAX`. An update in which only the id of the row
differs compares it with the array, without `unnest`: claims and ends of runs do, and take the server a tenth less time.

One statement changes a row at most once. So rows of parameters that name the same key twice run one by one, and the
last one counts, as it should (`Batch.keys`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from rota.store.postgres_schema import COLUMNS
from rota.store.postgres_text import postgres_text
from rota.store.protocol import Statement
from rota.store.statements.budgets import BUCKET_ADD

__all__ = [
    "BATCH_ROWS_MAX",
    "BATCH_ROWS_MIN",
    "FLUSH_ROWS_MIN",
    "FORMS_MAX",
    "Batch",
    "Command",
    "batch_of",
    "command_for",
    "commands",
]

BATCH_ROWS_MIN = 3  # fewer rows are sent one by one
BATCH_ROWS_MAX = 1_000  # in one statement, so that no array becomes too large to hold
# Rows that keep the server busy while this process goes on. Where all cores are in use, the server's process takes the
# core of the one that wakes it, so fewer rows than these wait for the rest of the turn (docs/decisions/0045).
FLUSH_ROWS_MIN = 50
FORMS_MAX = 8  # of one statement: each is prepared by the server, and kept there

_INSERT = re.compile(
    r"INSERT INTO (?P<table>\w+)(?: AS \w+)? \((?P<columns>[\w, ]+)\) VALUES \((?P<values>[^()]+)\)"
    r"(?: ON CONFLICT \((?P<conflict>[\w, ]+)\) (?P<action>.*))?"
)
_UPDATE = re.compile(r"UPDATE (?P<table>\w+) SET (?P<changes>.*?) WHERE (?P<condition>.*)")
_DELETE = re.compile(r"DELETE FROM (?P<table>\w+) WHERE (?P<condition>.*)")
_PARAMETER = re.compile(r"\$(\d+)")
_EQUAL = re.compile(r"(\w+) = \$(\d+)")
_ONE_ARRAY = re.compile(
    r"^(?P<head>UPDATE (?:(?!\bu\.p).)*) FROM unnest\((?P<array>\$\d+::[^,]*\[\])\) AS u\((?P<name>p\d+)\) "
    r"WHERE (?P<before>.*)\b(?P<column>\w+) = u\.(?P=name)\b(?P<after>.*)$"
)
_NUMBERS = ({int}, {float})  # types whose `repr` PostgreSQL reads
_COMMA = re.compile(r", (?=\w+ = )")  # between two changes


Command: TypeAlias = tuple[str, Sequence[Any]]  # a text and its parameters


class Batch(NamedTuple):
    """A statement for many rows of parameters."""

    text: str
    keys: tuple[int, ...]  # the parameters that together name a row, from 0; empty: rows may be equal
    types: tuple[str, ...]  # of the parameters; empty: there is no form with constants
    forms: dict[tuple[int, ...], str]  # by the parameters that are constant, from 0


def _unnest(types: Sequence[str], constants: Collection[int] = ()) -> str:
    """Return the parameters as rows: `u.p1` is the first one."""
    places = [(place, kind) for place, kind in enumerate(types, 1) if place - 1 not in constants]
    given = ", ".join(f"${place}::{kind}[]" for place, kind in places)
    return f"unnest({given}) AS u({', '.join(f'p{place}' for place, _ in places)})"


_USAGE = ("text", "text", "bigint", "bigint", "double precision", "double precision")
_LEAVES_AT = "(trunc(u.p5 / (t.window_s / u.p6))::bigint + 1) * (t.window_s / u.p6) + t.window_s"
_WRITTEN: dict[Statement, Batch] = {
    BUCKET_ADD: Batch(
        "INSERT INTO usage_buckets AS b (owner, dim, window_s, leaves_at, amount, ended) "  # noqa: S608  # constants
        f"SELECT t.owner, t.dim, t.window_s, {_LEAVES_AT}, u.p3, u.p4 "
        f"FROM {_unnest(_USAGE)} JOIN usage_windows t ON t.owner = u.p1 AND t.dim = u.p2 "
        "ON CONFLICT (owner, dim, window_s, leaves_at) "
        "DO UPDATE SET amount = b.amount + excluded.amount, ended = b.ended + excluded.ended",
        (0, 1),
        _USAGE,
        {},
    ),
}


@cache
def batch_of(statement: Statement) -> Batch | None:
    """Return the text for many rows of parameters; None if there is none."""
    if statement in _WRITTEN:
        return _WRITTEN[statement]
    text = postgres_text(statement)
    if text.startswith('INSERT INTO "'):  # as copies do; no name of the schema needs quotes
        text = text.replace('"', "")
    if any(word in text for word in ("RETURNING", "SELECT", " OR ")):
        return None
    for pattern, derive in ((_INSERT, _inserted), (_UPDATE, _updated), (_DELETE, _deleted)):
        found = pattern.fullmatch(text)
        if found is not None and found["table"] in COLUMNS:
            return derive(found)
    return None


def _inserted(found: re.Match[str]) -> Batch | None:
    columns, values = found["columns"].split(", "), found["values"].split(", ")
    if len(columns) != len(values):
        return None
    places = {value[1:]: column for column, value in zip(columns, values, strict=True) if value.startswith("$")}
    types = _types(found["table"], places)
    if types is None:
        return None
    head = f"INSERT INTO {found['table']} AS t ({found['columns']})"
    text = f"{head} SELECT {_named(found['values'])} FROM {_unnest(types)}"  # noqa: S608  # names of the schema
    if found["conflict"] is None:
        return Batch(text, (), types, {})
    action = _PARAMETER.sub(lambda each: f"excluded.{places[each[1]]}", found["action"])
    action = re.sub(r"\b(?:b|f)\.", "t.", action)  # how the statements call the row that is there
    keys = tuple(int(place) - 1 for place, column in places.items() if column in found["conflict"].split(", "))
    return Batch(f"{text} ON CONFLICT ({found['conflict']}) {action}", keys, types, {})


def _updated(found: re.Match[str]) -> Batch | None:
    places = {place: column for column, place in _EQUAL.findall(found["condition"])}
    keys, kinds = tuple(int(place) - 1 for place in places), COLUMNS[found["table"]]
    for change in _COMMA.split(found["changes"]):
        column = change.split(" = ")[0]
        for place in _PARAMETER.findall(change):
            if kinds.get(places.setdefault(place, column)) != kinds.get(column):
                return None  # one parameter of two types
    types = _types(found["table"], places)
    if types is None or not keys or set(_PARAMETER.findall(found["condition"])) - places.keys():
        return None
    changes, condition = _named(found["changes"]), _named(found["condition"])
    text = f"UPDATE {found['table']} AS t SET {changes} FROM {_unnest(types)} WHERE {condition}"  # noqa: S608
    return Batch(text, keys, types, {})


def _deleted(found: re.Match[str]) -> Batch | None:
    places = {place: column for column, place in _EQUAL.findall(found["condition"])}
    types = _types(found["table"], places)
    if types is None or set(_PARAMETER.findall(found["condition"])) - places.keys():
        return None
    text = f"DELETE FROM {found['table']} AS t USING {_unnest(types)} WHERE {_named(found['condition'])}"  # noqa: S608
    return Batch(text, (), types, {})


def _types(table: str, places: dict[str, str]) -> tuple[str, ...] | None:
    """Return the types of the parameters; None if that of one is not known."""
    types = COLUMNS[table]
    count = len(places)
    if not count or sorted(map(int, places)) != list(range(1, count + 1)) or not set(places.values()) <= types.keys():
        return None
    return tuple(types[places[str(place)]] for place in range(1, count + 1))


def _named(text: str) -> str:
    return _PARAMETER.sub(r"u.p\1", text)


def commands(statement: Statement, rows: Sequence[Sequence[Any]]) -> list[Command]:
    """Return what runs a statement for all rows: a command for many of them where that is possible, else for each."""
    batch = batch_of(statement) if len(rows) >= BATCH_ROWS_MIN else None
    if batch is None:
        text = postgres_text(statement)
        return [(text, row) for row in rows]
    found: list[Command] = []
    for first in range(0, len(rows), BATCH_ROWS_MAX):
        some = rows[first : first + BATCH_ROWS_MAX]
        command = command_for(batch, some) if len(some) >= BATCH_ROWS_MIN else None
        found += [command] if command is not None else [(postgres_text(statement), row) for row in some]
    return found


def command_for(batch: Batch, rows: Sequence[Sequence[Any]]) -> Command | None:
    """Return the text and the parameters that run a batch for these rows; None if two of them have the same key."""
    columns, count = list(zip(*rows, strict=True)), len(rows)
    if batch.keys:
        key, *more = batch.keys
        names = zip(*(columns[place] for place in batch.keys), strict=True) if more else columns[key]
        if len(set(names)) < count:
            return None
    constants: list[int] = []
    values: list[Any] = []
    for place, column in enumerate(columns):
        value = column[0]
        if column.count(value) == count:
            constants.append(place)
            values.append(value)
        else:
            values.append(_array(column))
    if len(constants) == len(columns):
        constants.remove(0)  # one array tells how many rows there are
        values[0] = _array(columns[0])
    text = _form(batch, tuple(constants)) if constants and batch.types else None
    return (text, values) if text is not None else (batch.text, [_array(column) for column in columns])


def _form(batch: Batch, constants: tuple[int, ...]) -> str | None:
    """Return the text with some parameters that are the same in all rows; None if there are too many forms."""
    text = batch.forms.get(constants)
    if text is None and len(batch.forms) < FORMS_MAX:
        text = batch.text.replace(_unnest(batch.types), _unnest(batch.types, constants))
        for place in constants:
            text = re.sub(rf"\bu\.p{place + 1}\b", f"${place + 1}::{batch.types[place]}", text)
        text = batch.forms[constants] = _without_join(text)
    return text


def _without_join(text: str) -> str:
    """Return an update in which one parameter is an array and names the row, without the join with that array."""
    return _ONE_ARRAY.sub(r"\g<head> WHERE \g<before>\g<column> = ANY (\g<array>)\g<after>", text)


def _array(values: Sequence[Any]) -> str:
    if set(map(type, values)) in _NUMBERS:
        return f"{{{repr(list(values))[1:-1]}}}"
    return f"{{{','.join(_elements(values))}}}"


def _elements(values: Sequence[Any]) -> Iterator[str]:
    for value in values:
        if value is None:
            yield "NULL"
        elif isinstance(value, str):
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            yield f'"{escaped}"'
        else:
            yield repr(float(value)) if isinstance(value, float) else str(int(value))

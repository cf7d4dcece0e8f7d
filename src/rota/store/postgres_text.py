"""The text of a statement for PostgreSQL, derived from its SQLite text where that is safe, else written beside it.

What is derived, and nothing else:

- parameters: `?` and `?3` become `$1` and `$3`; the plus of `+?` and of `+column` is left out, and so are `INDEXED BY`
  and `NOT INDEXED`: they steer SQLite's planner only;
- `a CROSS JOIN b ON …` becomes a `JOIN` (in SQLite the word CROSS only fixes the order of the tables);
- `IS` beside a column or a parameter becomes `IS NOT DISTINCT FROM`, `IS NOT` becomes `IS DISTINCT FROM`;
- `x IN (SELECT value FROM json_each(?1))` becomes `x = ANY (ARRAY(…))`, so that the list is read once and the rows are
  found by an index whatever the planner believes about its length; `NOT IN` becomes a subquery that is hashed once;
- `GLOB 'prefix*'` becomes `LIKE 'prefix%'`; `instr` becomes `strpos`; `max` and `min` of two values become `greatest`
  and `least`.

Parameters are sent as text without a type and PostgreSQL infers their types: 1, 1.5, 'a' and a JSON list all fit the
column they meet, and so does True as 1. A statement that the store runs by `insert` or `insert_many` takes the new
row's id as one more parameter, the first: the holder of the turn gives the ids (`gives_id`).
"""

from __future__ import annotations

import re
from functools import cache

from rota.store.protocol import Statement

__all__ = ["gives_id", "postgres_text"]

# The columns that a list of numbers is compared with; every other list is one of texts.
_NUMBERS = frozenset({"pid", "sched_id", "waits_for", "place"})

_SQLITE_ONLY = re.compile(  # what no rule below translates: such a statement needs a second text
    r"json_|pragma|sqlite_|INSERT OR|rowid|unixepoch|typeof|\bAS INTEGER\b|\bLIKE\b|RECURSIVE|INDEX IF NOT EXISTS",
    re.IGNORECASE,
)
_INDEX_HINT = re.compile(r" (?:NOT INDEXED|INDEXED BY \w+)")
_UNARY_PLUS = re.compile(r"\+(?=[\w?])")
_CROSS_JOIN = re.compile(r"CROSS JOIN (\w+(?: \w+)?) ON\b")
_IS_NOT = re.compile(r"\bIS NOT (?!NULL\b|DISTINCT\b)")
_IS = re.compile(r"\bIS (?!NULL\b|NOT\b|DISTINCT\b)")
_LIST = re.compile(r"(?P<column>[\w.]*)(?P<end>\)*) (?P<no>NOT )?IN \(SELECT value FROM json_each\((?P<list>\?\d*)\)\)")
_GLOB = re.compile(r"\bGLOB '([\w.]+)\*'")
_SCALAR = re.compile(r"\b(max|min)\((?=[^()]*(?:\([^()]*\)[^()]*)*,)")
_INSERT = re.compile(r"INSERT INTO (agent_events|agent_schedule_queue) \([^)]*\) VALUES \([^)]*\)")
_ID_COLUMN = {"agent_events": "event_id", "agent_schedule_queue": "sched_id"}
_PARAMETER = re.compile(r"\?(\d*)")


def gives_id(statement: Statement) -> bool:
    """Whether the statement's text for PostgreSQL takes the new row's id as its first parameter."""
    return _INSERT.fullmatch(statement.sql) is not None


@cache
def postgres_text(statement: Statement) -> str:
    """Return the text of a statement for PostgreSQL."""
    if statement.postgres is not None:
        return _numbered(statement.postgres)
    text = _LIST.sub(_list, _INDEX_HINT.sub("", statement.sql))
    given = _INSERT.fullmatch(text)
    if given is not None:
        text = text.replace("(", f"({_ID_COLUMN[given[1]]}, ", 1).replace("VALUES (", "VALUES (?, ", 1)
    text = _CROSS_JOIN.sub(r"JOIN \1 ON", _UNARY_PLUS.sub("", text))
    text = _IS.sub("IS NOT DISTINCT FROM ", _IS_NOT.sub("IS DISTINCT FROM ", text))
    text = text.replace("instr(", "strpos(")
    text = _SCALAR.sub(lambda found: "greatest(" if found[1] == "max" else "least(", text)
    if _SQLITE_ONLY.search(text):
        unknown = f"statement {statement.name} has no text for PostgreSQL, and none can be derived"
        raise AssertionError(unknown)
    return _numbered(_GLOB.sub(r"LIKE '\1%'", text))


def _list(found: re.Match[str]) -> str:
    """Compare with the values of a JSON list."""
    is_number = not found["end"] and found["column"].rsplit(".", 1)[-1] in _NUMBERS
    values = f"SELECT jsonb_array_elements_text({found['list']}::jsonb){'::bigint' if is_number else ''}"
    left = f"{found['column']}{found['end']}"
    return f"{left} NOT IN ({values})" if found["no"] else f"{left} = ANY (ARRAY({values}))"


def _numbered(text: str) -> str:
    """Write the parameters as PostgreSQL does: `?` in their order, `?3` as the third one."""
    count = 0

    def number(found: re.Match[str]) -> str:
        nonlocal count
        count += 1
        return f"${found[1] or count}"

    return _PARAMETER.sub(number, text)

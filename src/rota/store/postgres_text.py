"""The text of a statement for PostgreSQL, derived from its SQLite text where that is safe, else written beside it.

What is derived, and nothing else:

- parameters: `?` and `?3` become `$1` and `$3`; the plus of `+?` and `NOT INDEXED` are left out, because they steer
  SQLite's planner only. The plus of `+column` keeps an index from being used in both, of text as `|| ''`;
- `(?1 IS NULL OR x = ?1)` is turned round, because PostgreSQL wants to see first where the type comes from;
- `INDEXED BY` is left out too. Where several indexes fit, and an empty one is as good as another, the index that a
  statement names has a condition in other words (`NAMED`), and the statement gets these words;
- `a CROSS JOIN b ON …` becomes a `JOIN` (in SQLite the word CROSS only fixes the order of the tables);
- `IS` beside a column or a parameter becomes `IS NOT DISTINCT FROM`, `IS NOT` becomes `IS DISTINCT FROM`;
- `x IN (SELECT value FROM json_each(?1))` becomes `x = ANY (…)` with an array, so that the list is read once and the
  rows are found by an index whatever the planner believes about its length; a list of numbers becomes an array by its
  brackets, which is faster than to read it as JSON. `NOT IN` becomes a subquery that is hashed once;
- `GLOB 'prefix*'` becomes `LIKE 'prefix%'`; `instr` becomes `strpos`; `max` and `min` of two values become `greatest`
  and `least`.

A second text goes through the same rules, so that it can share its fragments with the first one.

Parameters are sent as text without a type and PostgreSQL infers their types: 1, 1.5, 'a' and a JSON list all fit the
column they meet, and so does True as 1. A statement that inserts the values of an event or an entry takes the new row's
id as one more parameter, the first: the holder of the turn gives these ids (`gives_id`).
"""

from __future__ import annotations

import re
from functools import cache

from rota.store.protocol import Statement

__all__ = ["NAMED", "gives_id", "postgres_text"]

# The columns that lists of numbers are compared with, or that have a plus; every other one is of text.
_NUMBERS = frozenset({"pid", "sched_id", "event_id", "waits_for", "place"})

_SQLITE_ONLY = re.compile(  # what no rule below translates: such a statement needs a second text
    r"\bjson_|pragma|sqlite_|INSERT OR|rowid|unixepoch|typeof|\bAS INTEGER\b|ESCAPE|RECURSIVE|INDEX IF NOT EXISTS",
    re.IGNORECASE,
)
_INDEX_HINT = re.compile(r" (?:NOT INDEXED|INDEXED BY \w+)")
_READY = re.compile(r"\b(\w+\.)?hold IS NULL")
_HELD = re.compile(r"\((\w+\.)?hold = 'time' OR (?:\w+\.)?hold = 'backoff'\)")
NAMED = {  # index: what stands in the statement, and in the condition of the index
    "idx_sched_queue_pickable_by_agent": (_READY, r"coalesce(\1hold, '') = ''"),
    "idx_sched_queue_pickable_by_project": (_READY, r"coalesce(\1hold, 'none') = 'none'"),
    "idx_sched_queue_held_by_priority": (_HELD, r"coalesce(\1hold, '') IN ('time', 'backoff')"),
}
_UNARY_PLUS = re.compile(r"\+(?=[\w?])(?P<column>[\w.]*)")
_CROSS_JOIN = re.compile(r"CROSS JOIN (\w+(?: \w+)?) ON\b")
_IS_NOT = re.compile(r"\bIS NOT (?!NULL\b|DISTINCT\b)")
_IS = re.compile(r"\bIS (?!NULL\b|NOT\b|DISTINCT\b)")
_LIST = re.compile(r"(?P<column>[\w.]*)(?P<end>\)*) (?P<no>NOT )?IN \(SELECT value FROM json_each\((?P<list>\?\d*)\)\)")
_UNTYPED = re.compile(r"\((\?\d+ IS NULL) OR ")
_FOUND = re.compile(r"AND instr\((\?\d+), ('[^']*')\)(?! >)")
_GLOB = re.compile(r"\bGLOB '([\w.]+)\*'")
_SCALAR = re.compile(r"\b(max|min)\((?=[^()]*(?:\([^()]*\)[^()]*)*,)")
_INSERT = re.compile(  # without an id
    r"INSERT INTO (agent_events|agent_schedule_queue) \((?!event_id|sched_id)[^)]*\) VALUES \([^)]*\)"
)
_ID_COLUMN = {"agent_events": "event_id", "agent_schedule_queue": "sched_id"}
_PARAMETER = re.compile(r"\?(\d*)")


def gives_id(statement: Statement) -> bool:
    """Whether the statement's text for PostgreSQL takes the new row's id before its other parameters."""
    return _INSERT.fullmatch(statement.sql) is not None


@cache
def postgres_text(statement: Statement) -> str:
    """Return the text of a statement for PostgreSQL."""
    if statement.postgres is not None:
        return _derived(statement.postgres)
    text = statement.sql
    if (inserted := _INSERT.fullmatch(text)) is not None:
        text = text.replace("(", f"({_ID_COLUMN[inserted[1]]}, ", 1).replace("VALUES (", "VALUES (?, ", 1)
    text = _derived(text)
    if _SQLITE_ONLY.search(text):
        unknown = f"statement {statement.name} has no text for PostgreSQL, and none can be derived"
        raise AssertionError(unknown)
    return text


def _derived(text: str) -> str:
    """Apply the rules."""
    for index, (words, others) in NAMED.items():
        if f"INDEXED BY {index}" in text:
            text = words.sub(others, text)
    text = _FOUND.sub(r"AND strpos(\1::text, \2) > 0", _INDEX_HINT.sub("", text))
    text = _typed(_UNARY_PLUS.sub(_plus, _LIST.sub(_list, text)))
    text = _IS.sub("IS NOT DISTINCT FROM ", _IS_NOT.sub("IS DISTINCT FROM ", _CROSS_JOIN.sub(r"JOIN \1 ON", text)))
    text = _SCALAR.sub(lambda found: "greatest(" if found[1] == "max" else "least(", text)
    return _numbered(_GLOB.sub(r"LIKE '\1%'", text).replace("instr(", "strpos("))


def _list(found: re.Match[str]) -> str:
    """Compare with the values of a JSON list."""
    is_number = not found["end"] and found["column"].rsplit(".", 1)[-1] in _NUMBERS
    left = f"{found['column']}{found['end']}"
    if is_number and not found["no"]:
        return f"{left} = ANY (translate({found['list']}::text, '[]', '{{}}')::bigint[])"
    values = f"SELECT jsonb_array_elements_text({found['list']}::jsonb){'::bigint' if is_number else ''}"
    return f"{left} NOT IN ({values})" if found["no"] else f"{left} = ANY (ARRAY({values}))"


def _plus(found: re.Match[str]) -> str:
    column = found["column"]
    if not column:  # a parameter
        return ""
    return f"+{column}" if column.rsplit(".", 1)[-1] in _NUMBERS else f"{column} || ''"


def _typed(text: str) -> str:
    """Turn `(?1 IS NULL OR …)` round, each up to its own closing parenthesis."""
    while (found := _UNTYPED.search(text)) is not None:
        end = _closing(text, found.end())
        text = f"{text[: found.start()]}({text[found.end() : end]} OR {found[1]}{text[end:]}"
    return text


def _closing(text: str, start: int) -> int:
    """Where the parenthesis ends in which the text at `start` stands."""
    depth = 1
    for position in range(start, len(text)):
        depth += (text[position] == "(") - (text[position] == ")")
        if depth == 0:
            return position
    raise AssertionError(text)


def _numbered(text: str) -> str:
    """Write the parameters as PostgreSQL does: `?` in their order, `?3` as the third one."""
    count = 0

    def number(found: re.Match[str]) -> str:
        nonlocal count
        count += 1
        return f"${found[1] or count}"

    return _PARAMETER.sub(number, text)

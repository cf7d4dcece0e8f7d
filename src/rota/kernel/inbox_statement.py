"""The one SQL statement that enqueues an entry inside a program's own PostgreSQL transaction, for each driver.

    connection.execute(*enqueue_statement("reader", {"page": 7}, key="page-7").psycopg)

It calls the schema's function `enqueue` (migrations.POSTGRES_STEPS), as a program in any other language does. Nothing
is imported of any driver, and no connection of rota's is needed: the program's transaction carries it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from rota.decoding import decode_json
from rota.errors import InvalidInput, SchedInvalidPayload
from rota.kernel.rows import DECODE_ERRORS, decode_problem, json_text
from rota.model.checks import PAYLOAD_BYTES_MAX, Checks
from rota.model.work import ScheduleSpec

__all__ = ["EnqueueStatement", "enqueue_statement"]

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,57}")
# sent as text: a program may have set its driver to encode what is sent as JSON
_JSON = "CAST(CAST({} AS text) AS {})"
_CALL = 'SELECT "{schema}".enqueue({agent}, {payload}, {options})'
_checks = Checks("Enqueue", SchedInvalidPayload)


class EnqueueStatement(NamedTuple):
    """A statement that enqueues one entry and returns the number of its row in the inbox."""

    schema: str
    agent: str
    payload: str  # JSON
    options: str  # JSON

    @property
    def psycopg(self) -> tuple[str, tuple[str, str, str]]:
        """What `execute(*…)` takes in psycopg, with or without async, in psycopg2, and Django's cursors."""
        return self._text("%s", "%s", "%s"), (self.agent, self.payload, self.options)

    @property
    def asyncpg(self) -> tuple[str, str, str, str]:
        """What `fetchval(*…)` and `execute(*…)` take in asyncpg."""
        return self._text("$1", "$2", "$3"), self.agent, self.payload, self.options

    @property
    def sqlalchemy(self) -> tuple[str, dict[str, str]]:
        """A text for `sqlalchemy.text`, and its parameters: `session.execute(text(statement), parameters)`."""
        names = {"agent": self.agent, "payload": self.payload, "options": self.options}
        return self._text(*(f":{name}" for name in names)), names

    def _text(self, agent: str, payload: str, options: str) -> str:
        as_json, as_jsonb = _JSON.format(payload, "json"), _JSON.format(options, "jsonb")
        return _CALL.format(schema=self.schema, agent=agent, payload=as_json, options=as_jsonb)


def enqueue_statement(
    agent: str | int, payload: Mapping[str, Any] | None = None, *, schema: str = "rota", **options: Any
) -> EnqueueStatement:
    """Return the statement that enqueues an entry of an agent, given by its name or pid.

    `options` are further fields of a `ScheduleSpec` (key, priority, delay_s, tags, …), and `project`, where several
    agents have the name. What the agent's settings say holds for the others.
    """
    if not _SCHEMA.fullmatch(schema):
        hint = "Name the one in the store's URL: `…?schema=rota`."
        raise InvalidInput(f"{schema!r} is not a schema of rota", field="schema", hint=hint)
    if isinstance(agent, bool) or not isinstance(agent, str | int):
        raise _checks.refuse("agent", f"must be a name or a pid, not {agent!r}")
    name = _checks.text("agent", str(agent))
    body = json_text(_checks, "payload", _checks.mapping("payload", dict(payload or {})), PAYLOAD_BYTES_MAX)
    given = {field: value for field, value in options.items() if value is not None}
    text = json_text(_checks, "options", given, PAYLOAD_BYTES_MAX)
    _check_options(given)
    return EnqueueStatement(schema, name, body, text)


def _check_options(given: dict[str, Any]) -> None:
    """Raise what is wrong with the options: the program should hear of it now, and not read it in a failed entry."""
    if not_options := {"pid", "payload", "account"} & given.keys():
        raise _checks.refuse("options", f"must not have {min(not_options)}")
    fields = {field: value for field, value in given.items() if field != "project"}
    try:
        decode_json(json_text(_checks, "options", {**fields, "pid": 1}, PAYLOAD_BYTES_MAX), ScheduleSpec)
    except DECODE_ERRORS as problem:
        raise _checks.refuse("options", f"cannot be used: {decode_problem(problem)}") from None

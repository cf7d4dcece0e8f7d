"""A limit on the steps of a call, so that a call that does not end fails its test at the same place every time.

Two counters: the statements that a call runs, and the instructions that SQLite executes for them. Sound calls on the
small stores of these tests need a few hundred of the former and far fewer than a million of the latter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import apsw
import pytest

from rota.store import Row, Statement
from rota.store.sqlite_engine import SqliteTransaction

STATEMENTS_MAX = 20_000
INSTRUCTIONS_MAX = 50_000_000
_INSTRUCTIONS = 10_000  # between two looks


class NeverEnds(BaseException):
    """A call has used up its steps. Not an Exception: no code of rota must take it for an error of a row."""


class Steps:
    """Counts the steps of one call after another."""

    def __init__(self) -> None:
        self.statements = self.instructions = 0
        self._last = ""

    def count(self, statement: Statement) -> None:
        self.statements += 1
        self._last = statement.name
        if self.statements > STATEMENTS_MAX:
            raise NeverEnds(f"{STATEMENTS_MAX:,} statements, the last of them {self._last}")

    def look(self) -> bool:
        """Called by SQLite from time to time; True ends the statement."""
        self.instructions += _INSTRUCTIONS
        return self.instructions > INSTRUCTIONS_MAX

    @contextlib.contextmanager
    def limited(self) -> Iterator[None]:
        """Limit the steps of the call inside."""
        self.statements = self.instructions = 0
        try:
            yield
        finally:
            if self.instructions > INSTRUCTIONS_MAX:
                raise NeverEnds(f"{INSTRUCTIONS_MAX:,} instructions of SQLite, the last statement {self._last}")


def limit_steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Count the steps of all stores that are opened from now on."""
    steps, run = Steps(), SqliteTransaction.run

    def counted(tx: SqliteTransaction, statement: Statement, parameters: Sequence[Any] = ()) -> list[Row]:
        steps.count(statement)
        return run(tx, statement, parameters)

    def on_open(connection: apsw.Connection) -> None:
        connection.set_progress_handler(steps.look, _INSTRUCTIONS)

    hooks: list[Callable[[apsw.Connection], None]] = [*apsw.connection_hooks, on_open]
    monkeypatch.setattr(SqliteTransaction, "run", counted)
    monkeypatch.setattr(apsw, "connection_hooks", hooks)
    return steps

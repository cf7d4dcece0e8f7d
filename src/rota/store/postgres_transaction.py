"""An open transaction on PostgreSQL, as one request sees it.

A statement that returns rows is sent, with everything queued before it, and awaited. One that returns none is only
queued. Rows that were prefetched are already here and cost no trip. The turn, which belongs to all requests of a
transaction, gives the ids and has to know of every write.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import psycopg

from rota.errors import StoreError
from rota.store.engine import TransactionLost
from rota.store.postgres_batches import FLUSH_ROWS_MIN, Command, commands
from rota.store.postgres_connection import one_line, statement_error
from rota.store.postgres_pipeline import Pipeline
from rota.store.postgres_text import gives_id, postgres_text
from rota.store.protocol import Row, Statement, TransactionEffects
from rota.store.statements.journal import EVENT_APPEND

__all__ = ["PostgresTransaction", "Turn"]

_encode = msgspec.json.Encoder().encode
_WRITES = re.compile(r"\s*(INSERT|UPDATE|DELETE|CREATE|DROP|ALTER|ANALYZE|SET)\b|.*\b(nextval|setval)\b", re.DOTALL)
_RETURNS = re.compile(r"\bRETURNING\b")
_OF_ENTRIES = re.compile(r"INSERT INTO agent_schedule_queue\b")


class Turn(Protocol):
    """The turn of a transaction, as its requests need it."""

    foreign_version: int
    facts_version: int
    is_pending: bool  # it is asked for, and the answer not read
    prefetched: dict[tuple[Statement, Row], list[Row]]  # read with the first trip, and nothing written since
    also_prefetched: list[tuple[Statement, Row]]  # reads that the transaction itself names while the turn is pending
    last_event: tuple[int, Sequence[Any]] | None

    def take_turn(self) -> None:
        """Wait for the turn."""
        ...

    def take_ids(self, statement: Statement, count: int) -> int:
        """Return the first of so many new ids."""
        ...

    def changing(self, text: str, count: int, *, moves_ids: bool, is_everyday: bool) -> None:
        """Note that writes are sent."""
        ...

    def failed(self, problem: psycopg.Error) -> BaseException:
        """Return rota's error for a statement that failed."""
        ...


class _Prepared(NamedTuple):
    """What has to be known of a statement."""

    text: str
    writes: bool
    returns_rows: bool
    gives_id: bool  # the id of the new row is its first parameter
    moves_ids: bool  # it inserts entries whose ids this process has not given
    is_everyday: bool  # it changes nothing that others remember


_prepared: dict[Statement, _Prepared] = {}


def _prepare(statement: Statement) -> _Prepared:
    text = postgres_text(statement)
    writes = _WRITES.match(text) is not None or (text.startswith("WITH") and _RETURNS.search(text) is not None)
    returns_rows = not writes or not _WRITES.match(text) or _RETURNS.search(text) is not None
    with_id = gives_id(statement)
    moves_ids = _OF_ENTRIES.search(text) is not None and not with_id
    found = _prepared[statement] = _Prepared(text, writes, returns_rows, with_id, moves_ids, statement.everyday)
    return found


class PostgresTransaction:
    """An open transaction, as one request sees it."""

    __slots__ = ("_pipeline", "_turn", "effects", "has_read_journal")
    prefetches = True

    def __init__(self, pipeline: Pipeline, effects: TransactionEffects, turn: Turn | None = None) -> None:
        self._pipeline = pipeline
        self._turn = turn  # None: it only reads
        self.effects = effects
        self.has_read_journal = False

    @property
    def foreign_version(self) -> int:
        """A number that grows when another process has written."""
        turn = self._taken_turn()
        return 0 if turn is None else turn.foreign_version

    @property
    def facts_version(self) -> int:
        """A number that grows when another process has changed what this one remembers."""
        turn = self._turn
        if turn is None:
            return 0
        if turn.is_pending:  # as in `_taken_turn`: this is asked more often than anything else
            turn.take_turn()
        return turn.facts_version

    def _taken_turn(self) -> Turn | None:
        """The turn, which has begun; None if the transaction only reads."""
        turn = self._turn
        if turn is not None and turn.is_pending:
            turn.take_turn()
        return turn

    def run(self, statement: Statement, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run a statement and return its rows; one that returns none is only queued."""
        text, writes, returns_rows, with_id, moves_ids, is_everyday = _prepared.get(statement) or _prepare(statement)
        if with_id:
            self.insert_many(statement, (parameters,))
            return []
        turn = self._turn
        if turn is not None:
            if turn.is_pending:
                turn.take_turn()
            if writes:
                turn.changing(text, 1, moves_ids=moves_ids, is_everyday=is_everyday)
            elif turn.prefetched and (rows := turn.prefetched.get((statement, tuple(parameters)))) is not None:
                return rows
        elif "agent_events" in text:
            self.has_read_journal = True
        try:
            if not returns_rows:
                self._pipeline.send(text, parameters)
                return []
            return self._pipeline.rows(text, parameters)
        except psycopg.Error as problem:
            raise self._failed(problem) from problem

    def run_for(self, statement: Statement, keys: Collection[int | str]) -> list[Row]:
        """Run a statement for a list of keys, as JSON."""
        return self.run(statement, (_encode(list(keys)).decode(),))

    def read_together(self, reads: Sequence[tuple[Statement, Row]]) -> None:
        """Read these in one trip, for the calls of `run` that follow: in the first one, if that has not been made."""
        turn = self._turn
        if turn is None:
            return
        missing = [read for read in reads if read not in turn.prefetched]
        try:
            for statement, parameters in missing:
                self._pipeline.send((_prepared.get(statement) or _prepare(statement)).text, parameters)
            if turn.is_pending:
                turn.also_prefetched += missing
            elif missing:
                turn.prefetched.update(zip(missing, self._pipeline.collect()[-len(missing) :], strict=True))
        except psycopg.Error as problem:
            raise self._failed(problem) from problem

    def insert(self, statement: Statement, parameters: Sequence[Any]) -> int:
        """Queue a statement that inserts one row, and return the id that the row gets."""
        return self.insert_many(statement, (parameters,))

    def insert_unless(
        self, statement: Statement, parameters: Sequence[Any], known: tuple[Statement, Row]
    ) -> int | None:
        """Queue a statement that inserts one row, and return its id; None if `known` finds its unique key."""
        return None if self.run(*known) else self.insert(statement, parameters)

    def insert_many(self, statement: Statement, parameters: Sequence[Sequence[Any]]) -> int:
        """Insert one row for each row of parameters and return the first id; the other ids follow it."""
        turn = self._turn
        if turn is None or not (_prepared.get(statement) or _prepare(statement)).gives_id:
            raise StoreError(f"statement {statement.name} inserts no row with an id, or the store is only read")
        if turn.is_pending:
            turn.take_turn()
        try:
            first_id = turn.take_ids(statement, len(parameters))
        except psycopg.Error as problem:
            raise self._failed(problem) from problem
        self._queue(statement, [(first_id + number, *row) for number, row in enumerate(parameters)])
        if statement is EVENT_APPEND:
            turn.last_event = first_id + len(parameters) - 1, parameters[-1]
        return first_id

    def run_many(self, statement: Statement, parameters: Sequence[Sequence[Any]]) -> None:
        """Queue a statement once for each row of parameters."""
        if (_prepared.get(statement) or _prepare(statement)).gives_id:
            self.insert_many(statement, parameters)
        else:
            self._queue(statement, parameters)

    def _queue(self, statement: Statement, parameters: Sequence[Sequence[Any]]) -> None:
        prepared = _prepared.get(statement) or _prepare(statement)
        found = commands(statement, parameters)
        self._send(found, len(parameters), moves_ids=prepared.moves_ids, is_everyday=prepared.is_everyday)

    def _send(self, found: Sequence[Command], count: int, *, moves_ids: bool, is_everyday: bool) -> None:
        """Queue commands that write so many rows of the same tables."""
        turn = self._turn
        if turn is not None and found:
            if turn.is_pending:
                turn.take_turn()
            turn.changing(found[0][0], count, moves_ids=moves_ids, is_everyday=is_everyday)
        try:
            for text, values in found:
                self._pipeline.send(text, values)
            if count >= FLUSH_ROWS_MIN:
                self._pipeline.begin()
        except psycopg.Error as problem:
            raise self._failed(problem) from problem

    def _failed(self, problem: psycopg.Error) -> BaseException:
        if self._turn is not None:
            return self._turn.failed(problem)
        return TransactionLost(one_line(problem)) if self._pipeline.is_broken else statement_error(problem)

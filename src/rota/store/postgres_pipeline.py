"""A PostgreSQL connection on which statements are sent without waiting for one another.

Between two machines the round trips are the cost of a transaction, not its statements. So a statement is only put into
a buffer (`send`); `collect` sends the buffer and waits once for the results of everything in it. What is wrong with a
statement is found out there, and the statements behind it are skipped by the server.

Every statement is prepared under its own text when it is first sent. The server prepares it in the same trip; if it
skips that because an earlier statement failed, it is prepared again at its next use.

psycopg's cursors do the same for any program, at several times the cost for each statement. So this uses its binding
of libpq, with psycopg's own code for turning results into rows.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import ConnStatus, ExecStatus, Format, TransactionStatus

from rota.errors import InvalidInput
from rota.store.protocol import Row

__all__ = ["Pipeline"]

UNREAD_MAX = 400  # results that may wait in the buffers of the sockets: if these fill up, both sides wait for ever
FLOATS_CACHED_MAX = 64  # a turn sends its time many times, and the shortest text of a float takes a while to find
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1
_ROWS, _DONE, _SKIPPED = ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK, ExecStatus.PIPELINE_ABORTED
_SYNC = ExecStatus.PIPELINE_SYNC
_SENT, _SYNCED = None, ""
_OLD_PLAN = "0A000"  # a column has another type since the statement was prepared: only a new connection is of use


class Pipeline:
    """A connection, the statements it has prepared, and the results that it still owes."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.trips = 0  # how often it has waited for the server
        self._link = connection.pgconn
        self.backend_pid = self._link.backend_pid  # the server's process for this connection, also when it is lost
        self._link.nonblocking = 1
        self._link.enter_pipeline_mode()
        self._poll = select.poll()  # select() refuses descriptors above 1,023
        self._poll.register(self._link.socket, select.POLLIN)
        self._transformer = Transformer(connection)
        self._names: dict[str, bytes] = {}  # text → name of the prepared statement
        self._prepared = 0
        self._owed: deque[str | None] = deque()  # one for each result to come: `_SENT`, `_SYNCED`, or a text to prepare
        self._found: list[list[Row]] = []  # the results that were read since the last sync
        self._problem: psycopg.Error | None = None  # of the first statement that failed
        self._entered = False  # a call is in progress, or was interrupted

    @property
    def is_broken(self) -> bool:
        """Whether the connection is gone, has statements of an older schema, or was left by an interrupt."""
        return self._entered or self._link.status != ConnStatus.OK

    @property
    def is_idle(self) -> bool:
        """Whether nothing is sent or owed, and no transaction is open."""
        return not self._owed and self._link.transaction_status == TransactionStatus.IDLE

    def send(self, text: str, parameters: Sequence[Any] = ()) -> None:
        """Put a statement into the buffer."""
        if self._entered:  # which results are still to come is not known
            raise psycopg.OperationalError("a call on this connection was interrupted")
        values = [encode(value) for value in parameters]
        self._entered = True
        name = self._names.get(text)
        if name is None:
            self._prepared += 1
            name = self._names[text] = b"s%d" % self._prepared
            self._link.send_prepare(name, text.encode())
            self._owed.append(text)
        self._link.send_query_prepared(name, values, result_format=Format.BINARY)
        self._owed.append(_SENT)
        if len(self._owed) >= UNREAD_MAX:
            self._link.send_flush_request()
            self._read()
        self._entered = False

    def begin(self) -> None:
        """Send the buffer without waiting: the server works on it while this process goes on."""
        self._entered = True
        self._link.flush()
        self._entered = False

    def rows(self, text: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Send a statement and everything before it, and return its rows."""
        self.send(text, parameters)
        return self.collect()[-1]

    def post(self, text: str) -> None:
        """Send a statement and everything before it, and leave the results, also a failure, to the next `collect`."""
        self.send(text)
        self._entered = True
        self._link.pipeline_sync()
        self._owed.append(_SYNCED)
        self._link.flush()
        self._entered = False

    def collect(self) -> list[list[Row]]:
        """Send the buffer and return the rows of each statement in it; raises what the first failed one raised."""
        self._entered = True
        self._link.pipeline_sync()
        self._read()
        self._read_sync()
        found, self._found = self._found, []
        self._entered = False
        problem, self._problem = self._problem, None
        if problem is not None:
            self._entered = problem.sqlstate == _OLD_PLAN
            raise problem
        return found

    def _read(self) -> None:
        """Read all results that are owed; keep the rows of the statements since the last sync."""
        self.trips += 1
        link, owed = self._link, self._owed
        if link.flush():
            self._flush()
        while owed:
            kind = owed.popleft()
            if kind is _SYNCED:
                self._read_sync()
                self._found, self._problem = [], None
                continue
            if link.is_busy():
                self._wait()
            result: Any = link.get_result()
            if link.is_busy():
                self._wait()
            link.get_result()  # each statement's results end with None
            if kind is _SENT:
                self._found.append([] if result.status == _DONE else self._load(result))
            elif result.status != _DONE:
                del self._names[kind]
                self._load(result)

    def _read_sync(self) -> None:
        """Read the answer to a sync.

        A statement outside of BEGIN and COMMIT has its result before it is committed. The sync commits it, so that it
        could not be committed is said here.
        """
        link = self._link
        while True:
            if link.is_busy():
                self._wait()
            result: Any = link.get_result()
            if result is None:  # it ends the results of a statement, and all of a connection that is lost
                if link.status != ConnStatus.OK:
                    raise self._problem or psycopg.OperationalError("the connection is lost")
            elif result.status == _SYNC:
                return
            else:
                self._load(result)

    def _load(self, result: Any) -> list[Row]:
        status = result.status
        if status == _ROWS:
            self._transformer.set_pgresult(result)
            return self._transformer.load_rows(0, result.ntuples, tuple)
        if status != _SKIPPED and self._problem is None:
            self._problem = psycopg.errors.error_from_result(result)
        return []

    def _wait(self) -> None:
        """Wait for the next result without keeping other threads from running."""
        link = self._link
        while link.is_busy():
            self._poll.poll()
            link.consume_input()

    def _flush(self) -> None:
        """Send the rest of a full buffer, and read meanwhile: else the server may wait for this side."""
        self._poll.modify(self._link.socket, select.POLLIN | select.POLLOUT)
        try:
            while self._link.flush():
                for _, event in self._poll.poll():
                    if event & ~select.POLLOUT:
                        self._link.consume_input()
        finally:
            self._poll.modify(self._link.socket, select.POLLIN)

    def close(self) -> None:
        """Close the connection. The server rolls back what is open."""
        self.connection.close()


def encode(value: Any) -> bytes | None:
    """Return a parameter as text; the server infers its type."""
    if value is None:
        return None
    if isinstance(value, str):
        if "\0" in value:
            raise InvalidInput("a value cannot be stored: PostgreSQL has no texts with the character U+0000")
        try:
            return value.encode()
        except UnicodeEncodeError as problem:
            raise InvalidInput(f"a value cannot be stored: {' '.join(str(problem).split())}") from problem
    if isinstance(value, int):
        if not _INT_MIN <= value <= _INT_MAX:
            raise InvalidInput(f"a value cannot be stored: {value} has more than 64 bits")
        return b"%d" % value
    if isinstance(value, float):
        return _float_text(float(value)) if value else b"0"  # -0.0 has the place of 0.0 in the cache
    raise InvalidInput(f"a value cannot be stored: {type(value).__name__}")


@lru_cache(FLOATS_CACHED_MAX)
def _float_text(value: float) -> bytes:
    return repr(value).encode()

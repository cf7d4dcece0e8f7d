"""How a process hears of the commits of others on PostgreSQL.

Every commit notifies the channel of its schema with its number (`news`, see postgres_engine.py). A process in which a
request waits has one connection that listens; while no process has one, commits do not notify. Notifications are hints
that can be lost, with the connection or with a server that is replaced; so every `POLL_S` the listener also asks for
the last number. A number that no notification has announced may belong to a transaction that is not committed yet; the
listener waits for the turn, and after it the transaction is over.

A program that enqueues in a transaction of its own has no number; its commit notifies with the word `inbox`.

A new connection may be to a standby that was promoted and lacks the last commits: it gives their numbers again. So what
this process knows of numbers does not count then, and the listener reports commits without one.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable
from typing import Any

import psycopg

from rota.errors import RotaError, StoreReplaced
from rota.fault_log import FaultLog
from rota.store.postgres_connection import PostgresAddress, connect, unavailable
from rota.store.postgres_engine import LAST_NEWS, channel, listeners_key, turn_key

__all__ = ["POLL_S", "NewsListener"]

INBOX = "inbox"  # what the schema's function `enqueue` notifies with
POLL_S = 1.0  # how late a lost notification, or a server that is back, is noticed
_ASK = f"SELECT {LAST_NEWS}, (SELECT inbox_id FROM enqueue_inbox ORDER BY inbox_id LIMIT 1)"  # noqa: S608  # a constant


class NewsListener:
    """A thread that calls `on_news` with the number of every commit, in order, but not with each of them.

    None stands for commits without a number: of programs that have enqueued in a transaction of their own, and what was
    missed while there was no connection. `on_gone` is called once, when the schema was dropped.
    """

    def __init__(
        self,
        address: PostgresAddress,
        on_news: Callable[[int | None], None],
        on_gone: Callable[[StoreReplaced], None] = lambda _: None,
        *,
        read_only: bool = False,
    ) -> None:
        self._address = address
        self._on_news = on_news
        self._on_gone = on_gone
        self._read_only = read_only
        self._faults = FaultLog(__name__, expected=(psycopg.Error, RotaError, OSError))
        self._seen: int | None = None
        self._seen_inbox: int | None = None  # the first row that the poll has found there
        self._stop_in, self._stop_out = os.pipe()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rota-watch", daemon=True)
        self._thread.start()
        self._listening.wait(POLL_S)  # so that a commit right after this is announced, not found by the poll

    def stop(self) -> None:
        """End the thread."""
        os.write(self._stop_out, b"!")
        os.close(self._stop_out)
        if self._thread is not threading.current_thread():  # a change listener may close the store
            self._thread.join()

    def forget(self) -> None:
        """In a forked child, which does not have the thread: close the descriptors."""
        os.close(self._stop_in)
        os.close(self._stop_out)

    def _run(self) -> None:
        while True:
            try:
                with contextlib.closing(self._connect()) as connection:
                    self._listen(connection)
                break
            except (psycopg.Error, RotaError, OSError) as problem:
                error = unavailable(self._address, problem) if isinstance(problem, psycopg.Error) else problem
                if isinstance(error, StoreReplaced):  # there is nothing more to hear of
                    self._listening.set()
                    self._on_gone(error)
                    self._is_stopped(None)
                    break
                self._faults.failed("commits of other processes are not heard of", error)
            self._listening.set()
            if self._is_stopped(POLL_S):
                break
        os.close(self._stop_in)

    def _connect(self) -> psycopg.Connection[Any]:
        connection = connect(self._address, "listener", read_only=self._read_only)
        connection.execute("SELECT pg_advisory_lock_shared(%s::bigint)", (listeners_key(self._address.schema),))
        connection.execute(f'LISTEN "{channel(self._address.schema)}"')
        return connection

    def _listen(self, connection: psycopg.Connection[Any]) -> None:
        poll = select.poll()
        poll.register(self._stop_in, select.POLLIN)
        poll.register(connection.fileno(), select.POLLIN)
        heard: set[str] = set()
        connection.add_notify_handler(lambda notice: heard.add(notice.payload))
        self._ask(connection)
        if self._listening.is_set():  # not the first connection
            self._tell(None)
        self._faults.worked()
        self._listening.set()
        while True:
            if INBOX in heard:  # also what came with the answer to a question
                self._tell(None)
            if numbers := [int(text) for text in heard if text.isdecimal()]:
                self._report(max(numbers))
            heard.clear()
            ready = [descriptor for descriptor, _ in poll.poll(POLL_S * 1_000)]
            if self._stop_in in ready:
                return
            if ready:
                connection.pgconn.consume_input()
                while notice := connection.pgconn.notifies():
                    heard.add(notice.extra.decode())
            else:
                self._ask(connection)

    def _ask(self, connection: psycopg.Connection[Any]) -> None:
        """Ask for the last number; if it is new, wait until its transaction is over."""
        row = connection.execute(_ASK).fetchone()
        news, inbox = (int(row[0]), row[1]) if row else (0, None)
        if inbox != self._seen_inbox:
            self._seen_inbox = inbox
            if inbox is not None:
                self._tell(None)
        if news != self._seen:
            if not self._read_only:  # a standby has no turns, and shows what is committed
                key = turn_key(self._address.schema)
                connection.execute("SELECT pg_advisory_lock_shared(%s), pg_advisory_unlock_shared(%s)", (key, key))
            self._report(news)

    def _report(self, news: int) -> None:
        self._seen = news
        self._tell(news)

    def _tell(self, news: int | None) -> None:
        try:
            self._on_news(news)
        except Exception as problem:  # the thread must survive: parked requests depend on the next commit
            self._faults.failed("the check for commits of other processes", problem, of="check")
        else:
            self._faults.worked("check")

    def _is_stopped(self, wait_s: float | None) -> bool:
        """Wait for `stop`, without end if `wait_s` is None; return whether it was called."""
        poll = select.poll()  # select() refuses descriptors above 1,023
        poll.register(self._stop_in, select.POLLIN)
        return bool(poll.poll(None if wait_s is None else wait_s * 1_000))

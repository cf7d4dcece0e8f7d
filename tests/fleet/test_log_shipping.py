"""Sending the output of runs: in bounded pieces, on its own thread, never holding up a run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rota.clock import SystemClock
from rota.errors import StaleClaim, StoreUnavailable
from rota.fleet import log_shipping
from rota.fleet.log_shipping import SHIP_BYTES, UNSENT_LOGS_MAX, LogShipping
from rota.fleet.run_logs import BoundedLog
from rota.service.run_logs import PIECE_BYTES_MAX
from tests.runners.recording import entry

PATIENCE_S = 30.0


class Daemon:
    """The part of an API that takes output; it can be away, refuse, or wait before it answers."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.logs = self
        self.log: list[tuple[int, int, bytes]] = []  # entry, offset, data
        self.problem: Exception | None = None
        self.answers = threading.Event()
        self.answers.set()
        self._changed = threading.Condition()

    def append(self, sched_id: int, attempt: int, token: int, offset: int, data: bytes) -> int:
        assert (attempt, token) == (2, 41)
        assert self.answers.wait(PATIENCE_S)
        with self._changed:
            self._changed.notify_all()
            if self.problem is not None:
                raise self.problem
            self.log.append((sched_id, offset, data))
        return offset + len(data)

    def until(self, pieces: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.log) >= pieces, PATIENCE_S)

    def until_asked(self) -> None:
        with self._changed:
            assert self._changed.wait(PATIENCE_S)


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
def shipping(daemon: Daemon) -> Iterator[LogShipping]:
    made: Any = daemon
    shipping = LogShipping(made)
    yield shipping
    daemon.answers.set()
    shipping.close()


def log_of(shipping: LogShipping, sched_id: int = 7) -> BoundedLog:
    log = BoundedLog(1024 * 1024)
    log.copies.append(shipping.copy_of(log, entry(sched_id=sched_id)))
    return log


def test_a_little_output_is_sent_without_being_asked_for_and_all_of_it_at_the_end(
    shipping: LogShipping, daemon: Daemon
) -> None:
    log = log_of(shipping)
    log.write(b"one, ")
    log.write(b"two, ")
    daemon.until(1)
    log.write(b"three")
    log.close()
    assert b"".join(data for _, _, data in daemon.log) == b"one, two, three"
    assert next(offset for _, offset, _ in daemon.log) == 0
    assert len(daemon.log) <= 3  # not each line alone


def test_much_output_is_sent_in_bounded_pieces(shipping: LogShipping, daemon: Daemon) -> None:
    log = log_of(shipping)
    body = bytes(range(256)) * 2_400  # 600 KiB
    for at in range(0, len(body), SHIP_BYTES):
        log.write(body[at : at + SHIP_BYTES])
    log.close()
    assert b"".join(data for _, _, data in daemon.log) == body
    assert max(len(data) for _, _, data in daemon.log) <= PIECE_BYTES_MAX


def test_a_run_that_prints_nothing_costs_nothing(shipping: LogShipping, daemon: Daemon) -> None:
    log_of(shipping).close()
    assert daemon.log == []
    assert shipping._thread is None


def test_a_slow_daemon_does_not_hold_up_output_and_the_end_only_for_a_while(
    shipping: LogShipping, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_shipping, "FLUSH_S", 0.05)
    daemon.answers.clear()
    log = log_of(shipping)
    for _ in range(100):
        log.write(b"x" * SHIP_BYTES)
    log.close()
    assert daemon.log == []
    daemon.answers.set()
    daemon.until(1)


def test_output_waits_for_a_daemon_that_is_away_and_the_run_does_not(
    shipping: LogShipping, daemon: Daemon, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_shipping, "RETRY_S", 0.01)
    daemon.problem = StoreUnavailable("the daemon is away")
    first, second = log_of(shipping), log_of(shipping, 8)
    first.write(b"during the outage")
    daemon.until_asked()
    first.close()
    second.write(b"too")
    second.close()
    daemon.problem = None
    daemon.until(2)
    assert sorted(daemon.log) == [(7, 0, b"during the outage"), (8, 0, b"too")]
    assert caplog.text.count("the output of runs waits for the daemon") == 1


def test_a_run_prints_on_while_a_handler_has_the_warning_that_the_daemon_is_away(
    shipping: LogShipping, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_shipping, "RETRY_S", 0.01)
    daemon.problem = StoreUnavailable("the daemon is away")
    has_printed = threading.Event()
    found: list[bool] = []

    def print_more() -> None:
        log.write(b"more")
        has_printed.set()

    class Waiting(logging.Handler):
        def emit(self, _record: logging.LogRecord) -> None:
            threading.Thread(target=print_more, daemon=True).start()
            found.append(has_printed.wait(PATIENCE_S))
            daemon.problem = None

    handler = Waiting()
    logging.getLogger("rota.fleet").addHandler(handler)
    try:
        log = log_of(shipping)
        log.write(b"some, ")
        daemon.until(1)
    finally:
        logging.getLogger("rota.fleet").removeHandler(handler)
    assert found == [True]


def test_a_bounded_number_of_logs_is_held_for_a_daemon_that_is_away(
    shipping: LogShipping, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_shipping, "RETRY_S", 0.01)
    daemon.problem = StoreUnavailable("the daemon is away")
    first = log_of(shipping, 1)
    first.write(b"x")
    daemon.until_asked()
    first.close()
    for number in range(2, UNSENT_LOGS_MAX + 3):
        log = log_of(shipping, number)
        log.write(b"x")
        log.close()
    assert len(shipping._unsent) == UNSENT_LOGS_MAX
    daemon.problem = None
    daemon.until(UNSENT_LOGS_MAX)
    assert sorted(sched_id for sched_id, _, _ in daemon.log) == list(range(3, UNSENT_LOGS_MAX + 3))


def test_a_refused_log_is_given_up_and_the_others_are_sent(shipping: LogShipping, daemon: Daemon) -> None:
    daemon.problem = StaleClaim("not yours")
    refused = log_of(shipping)
    refused.write(b"x")
    refused.close()
    daemon.problem = None
    refused.write(b"more")
    other = log_of(shipping, 8)
    other.write(b"y")
    other.close()
    assert daemon.log == [(8, 0, b"y")]


def test_what_is_left_is_sent_at_the_end(shipping: LogShipping, daemon: Daemon) -> None:
    log = log_of(shipping)
    log.write(b"unfinished")
    shipping.close()
    assert daemon.log == [(7, 0, b"unfinished")]

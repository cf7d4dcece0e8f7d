"""The watchdog calls back when the timeout has passed on the clock, not earlier, and not after a cancel."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from rota.clock import ManualClock
from rota.host.watchdog import COMPACT_MIN, Watchdog


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def watchdog(clock: ManualClock) -> Iterator[Watchdog]:
    watchdog = Watchdog(clock, "test-watchdog")
    yield watchdog
    watchdog.close()


class Log:
    """The callbacks that were called, and a way to wait for them."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._changed = threading.Condition()

    def add(self, name: str) -> None:
        with self._changed:
            self.names.append(name)
            self._changed.notify_all()

    def until(self, count: int) -> list[str]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.names) >= count, 30)
            return self.names


def test_callbacks_are_called_in_order_of_time(clock: ManualClock, watchdog: Watchdog) -> None:
    log = Log()
    for seconds in (3.0, 1.0, 2.0):
        watchdog.watch(seconds, lambda seconds=seconds: log.add(f"{seconds}"))  # type: ignore[misc]
    clock.until_parked()
    clock.advance(0.9)
    assert log.names == []
    clock.advance(0.1)
    assert log.until(1) == ["1.0"]
    clock.until_parked()
    clock.advance(2)
    assert log.until(3) == ["1.0", "2.0", "3.0"]


def test_a_cancelled_timeout_is_not_called(clock: ManualClock, watchdog: Watchdog) -> None:
    log = Log()
    cancelled = watchdog.watch(1, lambda: log.add("cancelled"))
    watchdog.watch(2, lambda: log.add("called"))
    watchdog.cancel(cancelled)
    watchdog.cancel(cancelled)  # a second cancel does nothing
    clock.until_parked()
    clock.advance(2)
    assert log.until(1) == ["called"]


def test_a_timeout_of_zero_is_called_immediately(watchdog: Watchdog) -> None:
    log = Log()
    watchdog.watch(0, lambda: log.add("now"))
    assert log.until(1) == ["now"]


def test_cancelled_timeouts_are_removed_from_the_heap(watchdog: Watchdog) -> None:
    for _ in range(10_000):
        watchdog.cancel(watchdog.watch(3_600, lambda: None))
    assert len(watchdog._heap) <= COMPACT_MIN + 1


def test_a_closed_watchdog_calls_nothing(clock: ManualClock) -> None:
    log = Log()
    watchdog = Watchdog(clock, "test-watchdog")
    watchdog.watch(1, lambda: log.add("never"))
    watchdog.close()
    clock.advance(1)
    assert log.names == []

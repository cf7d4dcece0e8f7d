"""The watchdog acts when the time has passed on the clock, not before, and not at all when called off."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from rota.clock import ManualClock
from rota.host.watchdog import TIDY_MIN, Watchdog


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def dog(clock: ManualClock) -> Iterator[Watchdog]:
    dog = Watchdog(clock, "test-dog")
    yield dog
    dog.close()


class Log:
    """What was bitten, and a way to wait for it."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._changed = threading.Condition()

    def bite(self, name: str) -> None:
        with self._changed:
            self.names.append(name)
            self._changed.notify_all()

    def until(self, count: int) -> list[str]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.names) >= count, 30)
            return self.names


def test_it_bites_in_the_order_of_time_whatever_the_order_of_watching(clock: ManualClock, dog: Watchdog) -> None:
    log = Log()
    for seconds in (3.0, 1.0, 2.0):
        dog.watch(seconds, lambda seconds=seconds: log.bite(f"{seconds}"))  # type: ignore[misc]
    clock.until_parked()
    clock.advance(0.9)
    assert log.names == []
    clock.advance(0.1)
    assert log.until(1) == ["1.0"]
    clock.until_parked()
    clock.advance(2)
    assert log.until(3) == ["1.0", "2.0", "3.0"]


def test_what_was_called_off_is_not_bitten(clock: ManualClock, dog: Watchdog) -> None:
    log = Log()
    spared = dog.watch(1, lambda: log.bite("spared"))
    dog.watch(2, lambda: log.bite("bitten"))
    dog.call_off(spared)
    dog.call_off(spared)  # twice is once
    clock.until_parked()
    clock.advance(2)
    assert log.until(1) == ["bitten"]


def test_a_time_of_zero_has_passed(dog: Watchdog) -> None:
    log = Log()
    dog.watch(0, lambda: log.bite("now"))
    assert log.until(1) == ["now"]


def test_what_was_called_off_is_forgotten_long_before_its_time(dog: Watchdog) -> None:
    for _ in range(10_000):
        dog.call_off(dog.watch(3_600, lambda: None))
    assert len(dog._heap) <= TIDY_MIN + 1


def test_a_closed_dog_bites_nobody(clock: ManualClock) -> None:
    log = Log()
    dog = Watchdog(clock, "test-dog")
    dog.watch(1, lambda: log.bite("never"))
    dog.close()
    clock.advance(1)
    assert log.names == []

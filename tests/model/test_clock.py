"""The clocks: a manual clock wakes callers that wait on it."""

from __future__ import annotations

import threading

import pytest

from rota.clock import ManualClock, SystemClock, wait_until


def test_a_manual_clock_moves_only_when_advanced() -> None:
    clock = ManualClock(now=100.0)
    clock.advance(2.5)
    assert (clock.now(), clock.monotonic()) == (102.5, 2.5)


def test_a_jump_moves_the_wall_clock_alone() -> None:
    clock = ManualClock(now=100.0)
    clock.jump(-50)
    assert (clock.now(), clock.monotonic()) == (50.0, 0.0)


def test_time_does_not_go_back() -> None:
    for seconds in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="forward"):
            ManualClock().advance(seconds)


def test_advance_wakes_only_the_waiters_that_are_due() -> None:
    clock, log = ManualClock(), []

    def sleeper(name: str, seconds: float) -> None:
        condition = threading.Condition()
        with condition:
            wait_until(clock, condition, lambda: False, seconds)
        log.append(name)

    early = threading.Thread(target=sleeper, args=("early", 5))
    late = threading.Thread(target=sleeper, args=("late", 10))
    early.start()
    late.start()
    clock.until_parked(2)
    clock.advance(5)
    early.join()
    assert log == ["early"]
    clock.advance(5)
    late.join()
    assert log == ["early", "late"]


def test_a_notified_waiter_does_not_wait_for_its_time() -> None:
    clock, condition, happened = ManualClock(), threading.Condition(), threading.Event()
    answers = []

    def waiter() -> None:
        with condition:
            answers.append(wait_until(clock, condition, happened.is_set, 3600))

    thread = threading.Thread(target=waiter)
    thread.start()
    clock.until_parked()
    happened.set()
    with condition:
        condition.notify_all()
    thread.join()
    assert answers == [True]
    assert clock.monotonic() == 0


def test_a_wait_of_zero_seconds_returns_immediately() -> None:
    condition = threading.Condition()
    with condition:
        assert ManualClock().wait(condition, 0) is False
        assert SystemClock().wait(condition, 0) is False


def test_the_system_clock_tells_the_time() -> None:
    clock = SystemClock()
    assert clock.now() > 1_700_000_000
    assert clock.monotonic() <= clock.monotonic()

"""Progress reports: the newest one is recorded, at most one in a second, and the last one in any case."""

from __future__ import annotations

import queue

import pytest

from rota.clock import ManualClock
from rota.errors import InvalidPayload, StoreUnavailable
from rota.fleet.progress import PAUSE_S, ProgressReports
from rota.host.watchdog import Watchdog

PATIENCE_S = 30.0


def test_reports_that_follow_too_soon_are_replaced_by_the_newest() -> None:
    clock = ManualClock()
    log: queue.SimpleQueue[tuple[float, str]] = queue.SimpleQueue()
    watchdog = Watchdog(clock, "test")
    reports = ProgressReports(clock, watchdog, lambda fraction, text: log.put((fraction, text)))
    for number in range(10):
        reports.report(number / 10, f"page {number}")
    assert log.get_nowait() == (0.0, "page 0")
    assert log.empty()
    clock.until_parked(1)
    clock.advance(PAUSE_S)
    assert log.get(timeout=PATIENCE_S) == (0.9, "page 9")  # on the watchdog's thread
    clock.advance(PAUSE_S)
    reports.report(1, "done")
    reports.report(1, "really")
    reports.close()
    assert [log.get_nowait(), log.get_nowait(), log.empty()] == [(1.0, "done"), (1.0, "really"), True]
    watchdog.close()


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), "half", True])
def test_a_fraction_is_a_number_from_0_to_1(fraction: float) -> None:
    clock = ManualClock()
    reports = ProgressReports(clock, Watchdog(clock, "test"), lambda _fraction, _text: None)
    with pytest.raises(InvalidPayload, match="fraction"):
        reports.report(fraction)


def test_a_report_that_cannot_be_recorded_is_dropped() -> None:
    def record(_fraction: float, _text: str) -> None:
        raise StoreUnavailable("away")

    clock = ManualClock()
    ProgressReports(clock, Watchdog(clock, "test"), record).report(0.5, "x")

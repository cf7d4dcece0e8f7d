"""Rates over time: what happened when, bounded, with percentiles of the waits."""

from __future__ import annotations

from rota.observe.recent_rates import BUCKET_S, BUCKETS, WAITS_MAX, RecentRates


def test_counts_are_kept_by_time() -> None:
    rates = RecentRates()
    rates.add(100.0, enqueued=3)
    for wait_s in (1.0, 2.0, 3.0):
        rates.add_start(100.0 + BUCKET_S, wait_s)
    rates.add_start(100.0 + BUCKET_S, None)  # when it became ready is not known
    rates.add(100.0 + 2 * BUCKET_S, ended=2, failed=1)
    points = rates.points(100.0 + 2 * BUCKET_S)
    assert len(points) == BUCKETS
    first, second, third = points[-3:]
    assert (first.at, first.enqueued, first.wait_p50_s) == (100.0, 3, None)
    assert (second.started, second.wait_p50_s, second.wait_p95_s) == (4, 2.0, 3.0)
    assert (third.ended, third.failed) == (2, 1)


def test_what_is_older_is_forgotten_and_quiet_times_are_zero() -> None:
    rates = RecentRates()
    rates.add(0.0, enqueued=1)
    rates.add(BUCKETS * BUCKET_S, enqueued=1)
    assert [point.enqueued for point in rates.points(BUCKETS * BUCKET_S)] == [0] * (BUCKETS - 1) + [1]


def test_a_clock_that_jumps_back_counts_in_the_last_part() -> None:
    rates = RecentRates()
    rates.add(1_000.0, ended=1)
    rates.add(10.0, ended=1)
    assert rates.points(1_000.0)[-1].ended == 2


def test_one_part_keeps_a_limited_number_of_waits() -> None:
    rates = RecentRates()
    for _ in range(WAITS_MAX + 10):
        rates.add_start(0.0, 1.0)
    rates.add_start(0.0, 99.0)
    point = rates.points(0.0)[-1]
    assert (point.started, point.wait_p99_s) == (WAITS_MAX + 11, 1.0)

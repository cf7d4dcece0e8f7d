"""The common time follows the cores that are compared, and never jumps when its speed changes."""

from __future__ import annotations

from rota.cores.common_time import FOLLOWED_PART, SPEED_WINDOW_NS, CommonTime

MS = 1_000_000


def test_before_its_speed_is_known_it_is_the_time_of_the_core_that_was_compared_last() -> None:
    common = CommonTime()
    common.follow(700, now=5)
    common.follow(300, now=6)
    assert common.at(6) == common.at(1_000 * MS) == 300


def test_it_passes_at_the_measured_speed_from_where_it_was() -> None:
    common = CommonTime()
    common.follow(500, now=0)
    common.measure(3 * SPEED_WINDOW_NS, now=SPEED_WINDOW_NS)
    assert common.speed == 3
    assert common.at(SPEED_WINDOW_NS) == 500
    assert common.at(SPEED_WINDOW_NS + 10) == 530


def test_three_quarters_of_a_new_measurement_count() -> None:
    common = CommonTime()
    common.measure(4 * SPEED_WINDOW_NS, now=SPEED_WINDOW_NS)
    common.measure(4 * SPEED_WINDOW_NS + 8 * SPEED_WINDOW_NS // 2, now=SPEED_WINDOW_NS * 3 // 2)  # too early
    assert common.speed == 4
    common.measure(12 * SPEED_WINDOW_NS, now=2 * SPEED_WINDOW_NS)
    assert common.speed == (4 + 3 * 8) // 4


def test_no_single_core_decides() -> None:
    common = CommonTime()
    common.measure(2 * SPEED_WINDOW_NS, now=SPEED_WINDOW_NS)
    before = common.at(SPEED_WINDOW_NS)
    common.follow(before + 800, now=SPEED_WINDOW_NS)
    assert common.at(SPEED_WINDOW_NS) == before + 800 // FOLLOWED_PART


def test_a_core_can_only_slow_it_down_if_it_was_measured_all_the_time() -> None:
    common = CommonTime()
    common.measure(6 * SPEED_WINDOW_NS, now=SPEED_WINDOW_NS)
    measured = common.measure_at_most((0, 0), 9 * SPEED_WINDOW_NS, now=SPEED_WINDOW_NS)
    assert (common.speed, measured) == (6, (SPEED_WINDOW_NS, 9 * SPEED_WINDOW_NS))
    assert common.measure_at_most(measured, 0, now=SPEED_WINDOW_NS + 1) == measured
    late = 3 * SPEED_WINDOW_NS
    assert common.measure_at_most(measured, 9 * SPEED_WINDOW_NS, now=late) == (late, 9 * SPEED_WINDOW_NS)
    assert common.speed == 6
    common.measure_at_most((0, 0), 2 * SPEED_WINDOW_NS, now=SPEED_WINDOW_NS)
    assert common.speed == 2

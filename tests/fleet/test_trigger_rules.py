"""When timed triggers fire: in their time zone, and across changes of the clock."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rota.fleet.trigger_rules import cron_problem, firings_after, latest_by, next_after, zone_problem
from rota.model.work import Trigger

BERLIN = ZoneInfo("Europe/Berlin")


def cron(expression: str, zone: str = "Europe/Berlin") -> Trigger:
    return Trigger(kind="cron", cron=expression, zone=zone)


def every(seconds: float) -> Trigger:
    return Trigger(kind="interval", every_s=seconds)


def utc(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def in_berlin(firings: list[float]) -> list[str]:
    """Return firings in the local time of Berlin."""
    return [datetime.fromtimestamp(at, BERLIN).strftime("%m-%d %H:%M %z") for at in firings]


def test_a_cron_time_is_local_time_in_winter_and_in_summer() -> None:
    assert in_berlin(firings_after(cron("0 9 * * *"), utc("2026-03-28 00:00"), 3)) == [
        "03-28 09:00 +0100",
        "03-29 09:00 +0200",
        "03-30 09:00 +0200",
    ]


def test_a_time_in_the_missing_hour_fires_once_right_after_it() -> None:
    assert in_berlin(firings_after(cron("30 2 * * *"), utc("2026-03-28 12:00"), 2)) == [
        "03-29 03:00 +0200",
        "03-30 02:30 +0200",
    ]


def test_a_fixed_time_in_a_repeated_hour_fires_once() -> None:
    assert in_berlin(firings_after(cron("30 2 * * *"), utc("2026-10-24 12:00"), 2)) == [
        "10-25 02:30 +0200",
        "10-26 02:30 +0100",
    ]


def test_a_step_fires_in_both_repeated_hours() -> None:
    assert in_berlin(firings_after(cron("*/30 * * * *"), utc("2026-10-25 00:15"), 4)) == [
        "10-25 02:30 +0200",
        "10-25 02:00 +0100",
        "10-25 02:30 +0100",
        "10-25 03:00 +0100",
    ]


def test_inside_the_second_repeated_hour_the_next_firing_is_later() -> None:
    at = utc("2026-10-25 01:15")  # 02:15 for the second time
    assert in_berlin([next_after(cron("30 2 * * *"), at) or 0]) == ["10-26 02:30 +0100"]
    assert in_berlin([latest_by(cron("30 2 * * *"), at) or 0]) == ["10-25 02:30 +0200"]


def test_an_interval_is_counted_from_the_epoch() -> None:
    assert firings_after(every(300), 1_000.0, 3) == [1_200, 1_500, 1_800]
    assert next_after(every(300), 1_200.0) == 1_500
    assert (latest_by(every(300), 1_199.9), latest_by(every(300), 1_200.0)) == (900, 1_200)


def test_latest_by_includes_the_given_instant_and_next_after_excludes_it() -> None:
    nine = utc("2026-01-05 08:00")
    assert latest_by(cron("0 9 * * *"), nine) == nine
    assert latest_by(cron("0 9 * * *"), nine - 0.5) == nine - 86_400
    assert next_after(cron("0 9 * * *"), nine) == nine + 86_400
    assert next_after(cron("0 9 * * *"), nine - 0.5) == nine


def test_instants_outside_the_calendar_have_no_firing() -> None:
    assert cron_problem("0 0 * 2 mon#5") is None  # every few decades
    assert next_after(cron("0 9 * * *"), -1e9) is None
    assert latest_by(cron("0 9 * * *"), 1e12) is None


@pytest.mark.parametrize("expression", ["", "x", "* * * * * *", "60 * * * *", "* * * * mon-xyz", "0 0 31 2 *"])
def test_an_invalid_cron_expression_has_a_problem(expression: str) -> None:
    assert cron_problem(expression)


@pytest.mark.parametrize("zone", ["", "Mars/Phobos", "../../etc/passwd", "/etc/localtime", "Europe", "x" * 5_000])
def test_an_unknown_time_zone_has_a_problem(zone: str) -> None:
    assert zone_problem(zone)


TIMES = st.floats(utc("2025-01-01 00:00"), utc("2027-12-31 00:00"))
CRONS = st.sampled_from(
    ["* * * * *", "*/7 * * * *", "30 2 * * *", "0 */6 * * *", "15 1-3 * * sun", "0 0 1 * *", "5,35 2 25 10 *"]
)
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"])
TRIGGERS = st.builds(cron, CRONS, ZONES) | st.builds(every, st.floats(1, 1e5) | st.integers(1, 100_000))


@given(trigger=TRIGGERS, at=TIMES)
@example(trigger=every(14362.108890122836), at=1735689600.0)  # where division rounds down
@example(trigger=cron("* * * * *", "UTC"), at=1830211199.9999998)  # where datetime rounds up
def test_no_firing_lies_between_the_latest_and_the_next(trigger: Trigger, at: float) -> None:
    last, following = latest_by(trigger, at), next_after(trigger, at)
    assert last is not None
    assert following is not None
    assert last <= at < following
    assert next_after(trigger, last) == pytest.approx(following, abs=1e-3)
    assert latest_by(trigger, following) == pytest.approx(following, abs=1e-3)


@given(trigger=TRIGGERS, at=TIMES)
def test_firings_are_ascending(trigger: Trigger, at: float) -> None:
    firings = [at, *firings_after(trigger, at, 20)]
    assert all(earlier < later for earlier, later in pairwise(firings))


def around_a_change(day: str, zone: str) -> list[float]:
    return [
        datetime.fromisoformat(f"{day}T00:00").replace(tzinfo=ZoneInfo(zone)).timestamp() + 300 * n for n in range(72)
    ]


@pytest.mark.parametrize("expression", ["30 2 * * *", "*/30 * * * *", "0 1,3 * * *", "45 1-2 * * *", "5 * * * *"])
@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"])
def test_around_a_change_of_the_clock_both_directions_find_the_same_firings(expression: str, day: str) -> None:
    trigger = cron(expression)
    instants = around_a_change(day, "Europe/Berlin")
    ahead = firings_after(trigger, instants[0] - 1, 40)
    forward = [at for at in ahead if at <= instants[-1]]
    assert len(forward) < len(ahead)
    seen = {latest_by(trigger, at) for at in instants}
    assert {at for at in seen if at is not None and at >= instants[0]} == set(forward)
    for at in instants:
        assert next_after(trigger, at) == next(each for each in ahead if each > at)

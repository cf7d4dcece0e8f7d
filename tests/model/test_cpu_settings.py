"""CPU settings: what they accept, and one sentence for each value that they do not."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from rota.errors import FleetInvalid
from rota.model.cpu import CpuQuota, CpuSettings, RealtimeRequest, core_list, parse_cores, read_cpu


def test_settings_are_parsed() -> None:
    stored = {"weight": 3, "quota": "20ms/100ms", "cores": "0-1,3", "lease": 1, "class": "batch", "realtime": "rr:7"}
    cpu = read_cpu(stored)
    assert cpu is not None
    assert cpu.budget == CpuQuota(20_000, 100_000)
    assert cpu.core_set == frozenset({0, 1, 3})
    assert cpu.policy == RealtimeRequest("rr", 7)
    assert msgspec.to_builtins(cpu) == stored
    assert read_cpu(None) is None


def test_what_is_not_given_differs_from_the_default() -> None:
    """An agent can refuse what its project has."""
    given, stored = CpuSettings(lease=0, class_="normal"), {"lease": 0, "class": "normal"}
    assert msgspec.to_builtins(given) == stored
    assert read_cpu(stored) == given != CpuSettings()
    assert (CpuSettings().leased_cores, CpuSettings().latency_class) == (0, "normal")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20/100", (20_000, 100_000)),
        ("1.5ms/1s", (1_500, 1_000_000)),
        ("150ms/100ms", (150_000, 100_000)),
        ("1000us/1ms", (1_000, 1_000)),
    ],
)
def test_a_quota_has_units_or_is_in_milliseconds(text: str, expected: tuple[int, int]) -> None:
    assert CpuSettings(quota=text).budget == expected


def test_a_deadline_is_a_budget_in_a_period() -> None:
    assert CpuSettings(realtime="deadline:2/10").policy == RealtimeRequest("deadline", 0, 2_000_000, 10_000_000)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"weight": math.inf}, "weight must be finite, not inf"),
    ({"weight": math.nan}, "weight must be finite, not nan"),
    ({"weight": -1}, "weight must lie from 0.01 to 100, not -1"),
    ({"weight": 100.1}, "weight must lie from 0.01 to 100, not 100.1"),
    ({"weight": True}, "weight must be a number, not True"),
    ({"quota": "20ms"}, "quota must be CPU time per period, such as 20ms/100ms"),
    ({"quota": "inf/100ms"}, "quota must have times such as 20ms, 500us or 1s, not 'inf'"),
    ({"quota": "-5/100"}, "quota must have times such as 20ms, 500us or 1s, not '-5'"),
    ({"quota": "0.5ms/100ms"}, "quota must be at least 1ms per period, not 0.5ms"),
    ({"quota": "20ms/2s"}, "quota must have a period from 1ms to 1s, not 2s"),
    ({"quota": "300ms/100ms", "cores": "0-1"}, "quota (300ms/100ms) is more than its cores have (0-1)"),
    ({"cores": ""}, "cores must not be empty"),
    ({"cores": "a"}, "cores must be numbers and ranges, such as 0-1,3, not 'a'"),
    ({"cores": "-1"}, "cores must be numbers and ranges"),
    ({"cores": "3-1"}, "cores has the range 3-1, which ends before it begins"),
    ({"cores": "4096"}, "cores must lie from 0 to 4,095, not 4,096"),
    ({"lease": -1}, "lease must lie from 0 to 4,095, not -1"),
    ({"lease": 3, "cores": "0-1"}, "lease (3) is more than the cores that it may use (0-1)"),
    ({"class_": "fast"}, "class must be one of batch, normal, sensitive, not 'fast'"),
    ({"realtime": "fifo:0"}, "realtime must lie from 1 to 99, not 0"),
    ({"realtime": "fifo:nan"}, "realtime must be fifo:PRIORITY, rr:PRIORITY or deadline:BUDGET/PERIOD"),
    ({"realtime": "deadline:20/10"}, "realtime must have a budget from 2us up to its period"),
]


@pytest.mark.parametrize(("fields", "expected"), REFUSED, ids=[str(fields) for fields, _ in REFUSED])
def test_a_value_that_cannot_be_kept_is_refused_in_one_sentence(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(FleetInvalid) as refused:
        CpuSettings(**fields)
    assert refused.value.message.startswith(f"CpuSettings.{expected}")
    assert "\n" not in refused.value.message


def test_stored_settings_that_cannot_be_read_name_the_field() -> None:
    with pytest.raises(FleetInvalid, match="clas: unknown field; did you mean 'class'"):
        read_cpu({"clas": "batch"})
    with pytest.raises(FleetInvalid, match=r"CpuSettings.weight must lie"):
        read_cpu({"weight": 0})


def test_cores_are_written_as_ranges() -> None:
    for text in ("0", "0-1", "0-1,3", "2,4-7"):
        assert core_list(parse_cores(text)) == text

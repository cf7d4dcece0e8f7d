"""The benchmark of PostgreSQL: its cases keep their names and their bars."""

from __future__ import annotations

from bench.postgres import cases


def test_the_cases_have_the_names_and_the_bars_of_the_contract() -> None:
    assert {case.name: case.goal for case in cases()} == {
        "drain-100x4": 1.5,
        "drain-100x1": 2.0,
        "drain-10x4": 1.2,
        "eevdf-100x4": 0.5,
        "finished-1m": 0.8,
        "latency": 1.0,
        "round-trips-strict": 1.0,
        "round-trips-eevdf": 1.0,
        "early-release": 2.4,
    }

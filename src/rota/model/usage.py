"""What a usage report says: runs, failures, tokens, cost, CPU time and waits, by project, agent, model and day."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

__all__ = [
    "FAILED",
    "OTHER_MODELS",
    "SUMMED",
    "USAGE_KEYS",
    "DayUsage",
    "UsageKey",
    "UsageLine",
    "UsageReport",
    "add_sizes",
    "main_measure",
    "percentile_ms",
]

UsageKey: TypeAlias = Literal["project", "agent", "model", "day"]
USAGE_KEYS: tuple[UsageKey, ...] = ("project", "agent", "model", "day")
FAILED = frozenset({"failed", "crashed"})  # exit kinds that count as failures
OTHER_MODELS = "other"  # the models of an agent and day beyond the maximum number


class DayUsage(msgspec.Struct):
    """Sums over one day, agent and model, or over many of them."""

    runs: int = 0  # attempts that ended
    failures: int = 0  # of them, those that failed or crashed, also if they are tried again
    tokens: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    cost_micro: int = 0
    cpu_ms: int = 0
    wall_ms: int = 0
    waits: int = 0  # attempts that started
    wait_ms: int = 0  # from ready to started, all together
    wait_max_ms: int = 0
    wait_sizes: list[int] = []  # the number of waits by the bit length of their milliseconds


SUMMED = tuple(field for field in DayUsage.__struct_fields__ if field not in ("wait_max_ms", "wait_sizes"))


class UsageLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a report. What it is not grouped by is null; a project or model of "" is none."""

    project_id: str | None = None
    agent: str | None = None  # its name; "" if it is not known any more
    model: str | None = None
    day: str | None = None  # in UTC, 2026-03-01
    runs: int = 0
    failures: int = 0
    tokens: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    cost_micro: int = 0
    cpu_ms: int = 0
    wall_ms: int = 0
    waits: int = 0
    wait_mean_ms: int = 0
    wait_p50_ms: int = 0  # percentiles are exact to a factor of two
    wait_p95_ms: int = 0
    wait_max_ms: int = 0


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was used in some days, in lines and in total."""

    by: tuple[UsageKey, ...]
    since_day: str | None = None  # the first day of the report; null: the first one recorded
    until_day: str | None = None  # the last day
    lines: list[UsageLine]
    total: UsageLine
    left_out: int = 0  # lines beyond the maximum; they are in the total


def main_measure(total: UsageLine) -> tuple[str, str]:
    """Return what shares of a report are shares of, as a field and in words: cost, else tokens, CPU time or runs."""
    named = {"cost_micro": "cost", "tokens": "tokens", "cpu_ms": "CPU"}
    return next(((field, name) for field, name in named.items() if getattr(total, field) > 0), ("runs", "runs"))


def add_sizes(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Add two counts of waits by size."""
    longer, shorter = (first, second) if len(first) >= len(second) else (second, first)
    return [count + (shorter[size] if size < len(shorter) else 0) for size, count in enumerate(longer)]


def percentile_ms(sizes: Sequence[int], longest_ms: int, percent: int) -> int:
    """Return a wait that is not shorter than this share of all waits: the end of its class, at most the longest one."""
    needed, seen = sum(sizes) * percent, 0
    for size, count in enumerate(sizes):
        seen += 100 * count
        if count and seen >= needed:
            return min((1 << size) - 1, longest_ms)
    return 0

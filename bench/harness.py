"""How a benchmark is run, so that its numbers can be believed.

Only ratios count: machines are noisy, so rota and its baseline take turns in the same run, and the
ratio is the median over the rounds of each round's own ratio. `ratio` is always rota over baseline
with higher = better. A run whose answers were not verified prints no ratio. Every round's raw values
go to a file with the facts of the machine.
"""

from __future__ import annotations

import gc
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

__all__ = ["Case", "Measured", "Row", "run", "table"]

RESULTS = Path("bench-results")
ROUNDS = 7


@dataclass(frozen=True)
class Measured:
    """A side that measured itself: its value in the case's unit, and its answer."""

    value: float
    answer: Any = None


Side = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """One comparison. `arena` makes what both sides need and is not timed."""

    name: str
    n: int
    unit: Literal["ops/s", "ms", "us", "MiB", "%", "trips"]
    baseline: str
    arena: Callable[[], Arena]
    ops: int = 1  # operations in one round, for rates
    goal: float | None = None  # what the ratio should reach
    rounds: int = ROUNDS

    @property
    def higher_is_better(self) -> bool:
        """Rates are better high; times and sizes are better low."""
        return self.unit == "ops/s"


@dataclass
class Arena:
    """Both sides of a case, what happens before each round, and the proof that they did the same."""

    rota: Side
    base: Side | None = None
    before: Callable[[int], None] = lambda _round: None
    verify: Callable[[Any, Any], bool] = lambda ours, theirs: bool(ours == theirs)
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Row:
    """What a case came to."""

    bench: str
    case: str
    n: int
    value: float
    unit: str
    baseline: str | None
    baseline_value: float | None
    ratio: float | None
    goal: float | None = None
    verified: bool = True
    rounds: list[dict[str, float]] = field(default_factory=list)

    def public(self) -> dict[str, Any]:
        """The eight fields of the contract."""
        names = ("bench", "case", "n", "value", "unit", "baseline", "baseline_value", "ratio")
        return {name: getattr(self, name) for name in names}


def _measure(case: Case, side: Side) -> tuple[float, Any]:
    gc.collect()
    gc.disable()  # both sides alike: a collection in one round of one side says nothing
    started = time.perf_counter()
    try:
        answer = side()
    finally:
        seconds = time.perf_counter() - started
        gc.enable()
    if isinstance(answer, Measured):
        return answer.value, answer.answer
    if case.unit == "ops/s":
        return case.ops / seconds, answer
    return seconds * {"ms": 1e3, "us": 1e6}[case.unit] / case.ops, answer


def _round(case: Case, arena: Arena, number: int) -> tuple[dict[str, float], bool]:
    arena.before(number)
    if arena.base is None:
        value, answer = _measure(case, arena.rota)
        return {"value": value}, bool(arena.verify(answer, None))
    # take turns going first: whoever goes second finds warm caches
    sides = {"value": arena.rota, "baseline_value": arena.base}
    names = list(sides) if number % 2 else list(reversed(sides))
    got = {name: _measure(case, sides[name]) for name in names}
    return {name: got[name][0] for name in sides}, bool(arena.verify(got["value"][1], got["baseline_value"][1]))


def _ratio(case: Case, values: dict[str, float]) -> float:
    ours, theirs = values["value"], values["baseline_value"]
    return ours / theirs if case.higher_is_better else theirs / ours


def run_case(bench: str, case: Case) -> Row:
    """Run one case: an unmeasured round, then the rounds that count."""
    arena = case.arena()
    try:
        _round(case, arena, 0)
        outcomes = [_round(case, arena, number) for number in range(1, case.rounds + 1)]
    finally:
        arena.close()
    rounds = [values for values, _ in outcomes]
    verified = all(ok for _, ok in outcomes)
    compared = arena.base is not None
    return Row(
        bench=bench,
        case=case.name,
        n=case.n,
        value=statistics.median(values["value"] for values in rounds),
        unit=case.unit,
        baseline=case.baseline if compared else None,
        baseline_value=statistics.median(values["baseline_value"] for values in rounds) if compared else None,
        ratio=statistics.median(_ratio(case, values) for values in rounds) if compared and verified else None,
        goal=case.goal,
        verified=verified,
        rounds=rounds,
    )


def run(bench: str, cases: Iterable[Case], only: str | None = None) -> Iterator[Row]:
    """Run the cases one after the other, keeping raw rows in a file."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{bench}-{time.strftime('%Y%m%dT%H%M%S')}.jsonl"
    with path.open("w") as file:
        file.write(json.dumps({"machine": _machine(), "bench": bench}) + "\n")
        for case in cases:
            if only is not None and only not in case.name:
                continue
            row = run_case(bench, case)
            file.write(json.dumps({**row.public(), "verified": row.verified, "rounds": row.rounds}) + "\n")
            file.flush()
            yield row
    print(f"raw rows: {path}", file=sys.stderr)


def _machine() -> dict[str, Any]:
    import os  # noqa: PLC0415  # only here

    load = os.getloadavg()[0]
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load_1m": round(load, 2),
    }


def table(rows: Iterable[Row]) -> bool:
    """Print rows as they come, for people; the answer is whether every goal was met."""
    met = True
    head = f"{'case':28} {'n':>9} {'rota':>14} {'baseline':>14} {'ratio':>8} {'goal':>6}  against"
    print(head)
    print("─" * len(head))
    for row in rows:
        ratio = "–" if row.ratio is None else f"{row.ratio:.2f}"
        goal = "" if row.goal is None else f"≥{row.goal:g}"
        theirs = "–" if row.baseline_value is None else f"{row.baseline_value:,.2f}"
        note = row.baseline or "a figure"
        if not row.verified:
            note = "NOT VERIFIED: " + note
        missed = row.goal is not None and (row.ratio is None or row.ratio < row.goal)
        met = met and not missed and row.verified
        mark = "✗" if missed else " "
        value = f"{row.value:,.2f}"
        print(f"{row.case:28} {row.n:>9,} {value:>14} {theirs:>14} {ratio:>8} {goal:>6}{mark} {row.unit}; {note}")
    return met

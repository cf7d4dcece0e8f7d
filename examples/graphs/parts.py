"""The components of the example graphs.

A component is a function or a class with a decorator. Positional parameters are its inputs, keyword-only ones are its
configuration, what it returns goes out on `out`. Try one:

    rota graph run examples/graphs/pipeline.yaml -c examples/graphs/parts.py --steps 3
"""

from __future__ import annotations

import threading
from typing import Any

from rota.graph import GraphContext, component

# --- numbers -------------------------------------------------------------------------------------


@component("demo.Counter", role="input")
class Counter:
    """One, two, three: the next number in each epoch."""

    def __init__(self, *, start: int = 1) -> None:
        self.number = start - 1

    def execute(self) -> int:
        """The next number."""
        self.number += 1
        return self.number

    def snapshot(self) -> int:
        """Where it stands, for a run that is resumed."""
        return self.number

    def restore(self, number: int) -> None:
        """Go on from there."""
        self.number = number


@component("demo.Add")
def add(value: int, *, amount: int = 1) -> int:
    return value + amount


@component("demo.Multiply")
def multiply(value: int, *, factor: int = 2) -> int:
    return value * factor


@component("demo.Sum")
def sum_of_both(left: int, right: int) -> int:
    return left + right


@component("demo.Show", role="output")
def show(value: Any, *, label: str = "") -> None:
    print(f"{label}{value}")


# --- a room that is kept warm --------------------------------------------------------------------


@component("demo.Room", role="input")
class Room:
    """A room that cools down and is warmed by what the heater gave it in the epoch before."""

    def __init__(self, *, degrees: float = 15.0, outside: float = 5.0) -> None:
        self.degrees, self.outside = degrees, outside

    def execute(self, heat: float = 0.0) -> float:
        """The temperature after this epoch."""
        self.degrees += heat - 0.1 * (self.degrees - self.outside)
        return self.degrees


@component("demo.Estimator")
class Estimator:
    """What the temperature is believed to be: between what was measured and what the controller expects."""

    def __init__(self, *, trust: float = 0.5) -> None:
        self.trust, self.measured = trust, 0.0

    def execute(self, measured: float | None = None, expected: float | None = None) -> float:
        """The belief."""
        if measured is not None:
            self.measured = measured
        return self.measured if expected is None else self.trust * self.measured + (1 - self.trust) * expected


@component("demo.Controller", outputs=("expected", "heat"))
class Controller:
    """How much heat the belief asks for, and what it expects to come of it. It says when it no longer changes much."""

    def __init__(self, *, target: float = 20.0, gain: float = 0.4) -> None:
        self.target, self.gain, self.before = target, gain, 0.0

    def execute(self, belief: float, *, context: GraphContext) -> dict[str, float]:
        """The heat, and what it should lead to."""
        heat = max(0.0, self.gain * (self.target - belief))
        context.report_residual(abs(heat - self.before))
        self.before = heat
        return {"expected": belief + heat / 10, "heat": heat}


# --- more work than there is room for ------------------------------------------------------------


@component("demo.Burst", role="input")
def burst(*, context: GraphContext, size: int = 8) -> None:
    """Several messages at once."""
    for number in range(size):
        context.publish("out", number)


@component("demo.SlowSquare")
def slow_square(value: int, *, milliseconds: float = 2.0) -> int:
    threading.Event().wait(milliseconds / 1000)
    return value * value


@component("demo.Blink")
class Blink:
    """Quick, except for every third time."""

    def __init__(self, *, slow_ms: float = 12.0) -> None:
        self.slow_ms, self.times = slow_ms, 0

    def execute(self) -> int:
        """How many times it has blinked."""
        self.times += 1
        if self.times % 3 == 0:
            threading.Event().wait(self.slow_ms / 1000)
        return self.times


# --- agents with token budgets -------------------------------------------------------------------


class OverBudget(Exception):
    """An agent asked its model for more tokens than its budget allows."""


class Model:
    """A model that answers the same to the same, and counts what its answers cost. A word is a token."""

    def __init__(self, token_budget: int) -> None:
        self.token_budget, self.used = token_budget, 0

    def answer(self, prompt: str, words: int) -> str:
        """So many words about a prompt, or OverBudget before anything is spent."""
        if self.used + words > self.token_budget:
            raise OverBudget(f"{self.used} of {self.token_budget} tokens are used and {words} more were asked for")
        self.used += words
        topics = prompt.split()
        return " ".join(topics[at % len(topics)] for at in range(words))


@component("agents.Planner", role="input", outputs=("history", "present", "outlook"))
def planner(*, question: str, token_budget: int) -> dict[str, str]:
    """Three questions out of one."""
    model = Model(token_budget)
    return {view: model.answer(f"{view} of {question}", 6) for view in ("history", "present", "outlook")}


@component("agents.Researcher")
def researcher(question: str, *, token_budget: int, words_per_note: int = 8) -> dict[str, Any]:
    """Notes on a question, as many as the budget pays for."""
    model = Model(token_budget)
    notes: list[str] = []
    try:
        while True:
            notes.append(model.answer(f"note {len(notes)} {question}", words_per_note))
    except OverBudget as spent:
        return {"question": question, "notes": notes, "tokens": model.used, "stopped": str(spent)}


@component("agents.Join")
def join(history: dict[str, Any], present: dict[str, Any], outlook: dict[str, Any]) -> list[dict[str, Any]]:
    return [history, present, outlook]


@component("agents.Writer")
def writer(findings: list[dict[str, Any]], *, token_budget: int) -> str:
    """A report over all notes. A budget that does not pay for it is a failure, not a shorter report."""
    model = Model(token_budget)
    notes = [note for finding in findings for note in finding["notes"]]
    model.answer("report", len(notes) * 4)
    spent = sum(finding["tokens"] for finding in findings)
    return f"a report on {len(notes)} notes: research {spent} tokens, writing {model.used} of {token_budget}"

"""The components of the example graphs.

A component is a function or a class with the decorator `component`. Its positional parameters are the inputs, its
keyword-only parameters are the configuration, and its return value is published on `out`. Try one:

    rota graph run examples/graphs/pipeline.yaml -c examples/graphs/parts.py --steps 3
"""

from __future__ import annotations

import threading
from typing import Any

from rota.graph import GraphContext, component

# --- numbers -------------------------------------------------------------------------------------


@component("demo.Counter", role="input")
class Counter:
    """Counts 1, 2, 3, …: one number per epoch."""

    def __init__(self, *, start: int = 1) -> None:
        self.number = start - 1

    def execute(self) -> int:
        """Return the next number."""
        self.number += 1
        return self.number

    def snapshot(self) -> int:
        """Return the state for a run that is resumed."""
        return self.number

    def restore(self, number: int) -> None:
        """Continue from this state."""
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


# --- temperature control of a room ---------------------------------------------------------------


@component("demo.Room", role="input")
class Room:
    """A room that cools down, and is heated by the heat of the previous epoch."""

    def __init__(self, *, degrees: float = 15.0, outside: float = 5.0) -> None:
        self.degrees, self.outside = degrees, outside

    def execute(self, heat: float = 0.0) -> float:
        """Return the temperature after this epoch."""
        self.degrees += heat - 0.1 * (self.degrees - self.outside)
        return self.degrees


@component("demo.Estimator")
class Estimator:
    """Estimates the temperature from the measured value and the value that the controller expects."""

    def __init__(self, *, trust: float = 0.5) -> None:
        self.trust, self.measured = trust, 0.0

    def execute(self, measured: float | None = None, expected: float | None = None) -> float:
        """Return the estimate."""
        if measured is not None:
            self.measured = measured
        return self.measured if expected is None else self.trust * self.measured + (1 - self.trust) * expected


@component("demo.Controller", outputs=("expected", "heat"))
class Controller:
    """Computes the heat for an estimate, and the temperature it expects. It reports how much the heat still changes."""

    def __init__(self, *, target: float = 20.0, gain: float = 0.4) -> None:
        self.target, self.gain, self.before = target, gain, 0.0

    def execute(self, belief: float, *, context: GraphContext) -> dict[str, float]:
        """Return the heat and the expected temperature."""
        heat = max(0.0, self.gain * (self.target - belief))
        context.report_residual(abs(heat - self.before))
        self.before = heat
        return {"expected": belief + heat / 10, "heat": heat}


# --- overload ------------------------------------------------------------------------------------


@component("demo.Burst", role="input")
def burst(*, context: GraphContext, size: int = 8) -> None:
    """Publish several messages in one invocation."""
    for number in range(size):
        context.publish("out", number)


@component("demo.SlowSquare")
def slow_square(value: int, *, milliseconds: float = 2.0) -> int:
    threading.Event().wait(milliseconds / 1000)
    return value * value


@component("demo.Blink")
class Blink:
    """Fast, except for every third invocation."""

    def __init__(self, *, slow_ms: float = 12.0) -> None:
        self.slow_ms, self.times = slow_ms, 0

    def execute(self) -> int:
        """Return the number of invocations so far."""
        self.times += 1
        if self.times % 3 == 0:
            threading.Event().wait(self.slow_ms / 1000)
        return self.times


# --- agents with token budgets -------------------------------------------------------------------


class OverBudget(Exception):
    """An agent requested more tokens than its budget allows."""


class Model:
    """A deterministic model that counts the tokens of its answers. A word is a token."""

    def __init__(self, token_budget: int) -> None:
        self.token_budget, self.used = token_budget, 0

    def answer(self, prompt: str, words: int) -> str:
        """Return an answer of this many words, or raise `OverBudget` before any token is used."""
        if self.used + words > self.token_budget:
            raise OverBudget(f"{self.used} of {self.token_budget} tokens are used, {words} more were requested")
        self.used += words
        topics = prompt.split()
        return " ".join(topics[at % len(topics)] for at in range(words))


@component("agents.Planner", role="input", outputs=("history", "present", "outlook"))
def planner(*, question: str, token_budget: int) -> dict[str, str]:
    """Derive three questions from one."""
    model = Model(token_budget)
    return {view: model.answer(f"{view} of {question}", 6) for view in ("history", "present", "outlook")}


@component("agents.Researcher")
def researcher(question: str, *, token_budget: int, words_per_note: int = 8) -> dict[str, Any]:
    """Write notes on a question until the budget is used up."""
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
    """Write a report on all notes. If the budget is too small, the component fails instead of writing less."""
    model = Model(token_budget)
    notes = [note for finding in findings for note in finding["notes"]]
    model.answer("report", len(notes) * 4)
    spent = sum(finding["tokens"] for finding in findings)
    return f"a report on {len(notes)} notes: research {spent} tokens, writing {model.used} of {token_budget}"

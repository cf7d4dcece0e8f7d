"""Components that several tests use. Worker processes import this module, so it holds no state that matters."""

from __future__ import annotations

from typing import Any

from rota.graph.components import component
from rota.graph.invocation import GraphContext

log: list[Any] = []  # what components of this process noted; tests empty it


@component("parts.count")
class Count:
    """1, 2, 3, … one number a run."""

    def __init__(self, *, start: int = 0) -> None:
        self.count = start

    def execute(self) -> int:
        self.count += 1
        return self.count


@component("parts.burst", outputs=("out",))
def burst(context: GraphContext, *, size: int = 3) -> None:
    """Several messages at once: 0, 1, 2, …"""
    for number in range(size):
        context.publish("out", number)


@component("parts.add")
def add(value: int, *, amount: int = 1) -> int:
    """One more."""
    return value + amount


@component("parts.join")
def join(*values: Any) -> tuple[Any, ...]:
    """All inputs together."""
    return values


@component("parts.note")
def note(value: Any) -> None:
    """Log the input."""
    log.append(value)


@component("parts.note_many")
def note_many(*values: Any) -> None:
    """Log the inputs of one invocation."""
    log.append(values)

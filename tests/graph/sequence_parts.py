"""Components that are also agents: the same function, called on a lane or as an entry of an agent."""

from __future__ import annotations

from typing import Any

from rota.graph.components import component
from rota.graph.invocation import GraphContext

VALUES = 4  # that the source publishes


@component("sequence.source", outputs=("out",))
def source(start: Any, context: GraphContext) -> None:
    """A few numbers, once."""
    for number in range(VALUES):
        context.publish("out", number)


@component("sequence.combine")
def combine(v0: int, v1: int = 0, v2: int = 0, *, salt: int) -> int:
    """One number made of others; the order of the inputs matters."""
    return (v0 * 31 + v1 * 17 + v2 * 7 + salt) % 100_003


@component("sequence.hear")
class Hear:
    """Keeps everything it receives, in order."""

    def __init__(self) -> None:
        self._heard: list[int] = []

    def execute(self, value: int) -> None:
        """Keep a value."""
        self._heard.append(value)

    def snapshot(self) -> list[int]:
        """What it received."""
        return list(self._heard)

    def restore(self, heard: list[int]) -> None:
        """Continue with what an earlier process received."""
        self._heard = list(heard)

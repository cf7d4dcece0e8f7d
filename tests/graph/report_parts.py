"""Functions of a report, for graphs that are built in Python: they can be imported by any process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rota.graph import GraphContext, component


def plan_topic(topic: str) -> list[str]:
    """Return three questions."""
    return [f"{view} of {topic}" for view in ("past", "present", "future")]


def answer(questions: Sequence[str], which: int = 0, *, words: int = 3) -> str:
    """Return an answer to one of the questions."""
    return " ".join(questions[which].split()[:words])


def critic(draft: Any) -> dict[str, Any]:
    """Return a review of a draft, or of the first findings."""
    texts = draft["texts"] if isinstance(draft, dict) else draft
    return {"texts": texts, "score": draft.get("score", 0) if isinstance(draft, dict) else 0}


def revise(review: dict[str, Any]) -> dict[str, Any]:
    """Return a better draft."""
    return {**review, "score": review["score"] + 1}


def accepted(draft: dict[str, Any]) -> bool:
    """Whether a draft is good enough."""
    return bool(draft["score"] >= 3)


def write(draft: dict[str, Any], title: str = "Report") -> str:
    """Return the report."""
    return f"{title}: {'; '.join(draft['texts'])} (revised {draft['score']} times)"


def join(*parts: Any) -> list[Any]:
    """Return everything that was given."""
    return list(parts)


def double(number: int) -> int:
    """Return twice the number."""
    return 2 * number


def numbers() -> list[int]:
    """Return some numbers."""
    return [1, 2, 3]


def total(values: list[int], offset: int = 0) -> int:
    """Return the sum."""
    return sum(values) + offset


async def double_async(number: int) -> int:
    """Return twice the number."""
    return 2 * number


def nothing(value: Any) -> None:
    """Return nothing."""


class Desk:
    """An object with methods."""

    def __init__(self, name: str) -> None:
        self.name = name

    def sign(self, text: str) -> str:
        """Return the text, signed."""
        return f"{text} ({self.name})"

    @classmethod
    def empty(cls, text: str) -> str:
        """Return the text."""
        return text


@component("test.Split", outputs=("head", "rest"))
def split(values: list[int], *, context: GraphContext) -> dict[str, Any]:
    """Return the first value and the others, on an output each."""
    del context
    return {"head": values[0], "rest": values[1:]}

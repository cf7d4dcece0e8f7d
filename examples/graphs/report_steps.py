"""The steps of a report. They are ordinary functions of a module, so any process can import them.

The model is a stand-in that needs no key: it counts its words as tokens. Put your own calls in `ask`.
"""

from __future__ import annotations

from typing import Any


def ask(question: str, words: int) -> tuple[str, int]:
    """Return an answer and what it cost: here, the words of the question again and again."""
    known = question.split()
    return " ".join(known[at % len(known)] for at in range(words)), words


def plan_topic(topic: str) -> list[str]:
    """Split a topic into three questions."""
    return [f"the {view} of {topic}" for view in ("history", "present", "outlook")]


def researcher(ctx: Any, question: str, words: int = 8) -> str:
    """Answer one question: an agent, whose runs have a budget, a log and retries."""
    text, tokens = ask(question, words)
    ctx.charge(tokens=tokens)
    return text


def critic(draft: Any) -> dict[str, Any]:
    """Review the findings, or a draft that was revised: it is too long until each part has at most four words."""
    parts = draft["parts"] if isinstance(draft, dict) else draft
    return {"parts": parts, "too_long": [at for at, part in enumerate(parts) if len(part.split()) > 4]}


def revise(review: dict[str, Any]) -> dict[str, Any]:
    """Shorten what the critic found too long, by two words at a time."""
    parts = list(review["parts"])
    for at in review["too_long"]:
        parts[at] = " ".join(parts[at].split()[:-2])
    return {"parts": parts, "changed": len(review["too_long"])}


def accepted(draft: dict[str, Any]) -> bool:
    """Whether the loop may end: nothing had to be changed."""
    return draft["changed"] == 0


def write(draft: dict[str, Any], title: str = "Report") -> str:
    """Write the report."""
    return f"{title}: {', '.join(draft['parts'])}."

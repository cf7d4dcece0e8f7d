"""Earliest deadline first, and the tests that say whether deadlines can be met.

*edf* runs whatever is due first; what has no deadline comes last. On one core, if any order meets all
deadlines this one does. It knows no shares: whoever always claims the nearest deadline always wins,
and work without a deadline may starve.
"""

from __future__ import annotations

import math

from rota.model.reasons import Because
from rota.model.snapshot import Candidate, Decisions, Snapshot
from rota.policy.contract import Policy, place
from rota.policy.ranking import LineOrdering

__all__ = ["edf", "edf_key"]


def edf_key(candidate: Candidate) -> tuple[float, float, int]:
    """Deadline (none is last), then priority, then id."""
    due = math.inf if candidate.deadline is None else candidate.deadline
    return due, -candidate.priority, candidate.id


def edf() -> Policy:
    """Whatever is due first."""

    def rank(snapshot: Snapshot) -> Decisions:
        return place(((c, _because(c)) for c in sorted(snapshot.candidates, key=edf_key)), snapshot.slots)

    return Policy(
        name="edf",
        rank=rank,
        sentence="Whatever is due first; what has no deadline comes last. May starve.",
        ordering=lambda: LineOrdering(edf_key),
        heads="deadline",
    )


def _because(candidate: Candidate) -> Because:
    return Because("edf", "no deadline" if candidate.deadline is None else f"due at {candidate.deadline}")

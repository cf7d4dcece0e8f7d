"""Retries: which outcomes are never retried, and why an entry that failed was not retried again.

The spec of an entry says which exit kinds are retried (`retry_on`) and how often (`max_attempts`). Some outcomes are
final whatever the spec says: another attempt would end in the same way, and would cost as much.
"""

from __future__ import annotations

from collections.abc import Mapping

from rota.model.lifecycle import ENTRY
from rota.model.work import ReadyEntry

__all__ = ["CORES_NEVER_GRANTED", "NOT_RETRIED", "NOT_RETRYABLE", "why_not_retried"]

NOT_RETRYABLE = "not_retryable"  # the outcome of a function that raised an error its agent declares as final
CORES_NEVER_GRANTED = "cores_never_granted"  # the outcome of a run that asks for more than any host could grant

NOT_RETRIED: Mapping[str, str] = {  # by outcome: why another attempt would end the same way
    CORES_NEVER_GRANTED: "no host can grant the cores that it asks for",
    "over_budget": "another attempt would exceed its budget again",
    "unreadable": "its stored row cannot be read",
    NOT_RETRYABLE: "its agent declares this error as non_retryable",
    "payload_mismatch": "its payload does not fit the function",
    "result_not_json": "what the function returns is not JSON",
    "result_too_large": "what the run returns is too large",
    "hook_refused": "the receiver of this hook refuses it",
}


def why_not_retried(entry: ReadyEntry) -> str | None:
    """Return why an entry that did not complete was not retried; None if it completed, expired or has not ended."""
    if entry.state not in ENTRY.final or entry.exit_kind in (None, "completed"):
        return None
    if entry.exit_kind == "cancelled":
        return "it was cancelled"
    if (why := NOT_RETRIED.get(entry.outcome or "")) is not None:
        return why
    if entry.attempt >= entry.max_attempts:
        return f"it was attempt {entry.attempt} of {entry.max_attempts}"
    return f"it is not retried when it has {entry.exit_kind}"

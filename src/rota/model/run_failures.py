"""What a run failed with, from the result that its runner reported: the error, where it was raised, what it printed."""

from __future__ import annotations

from typing import Any

from rota.model.events import RunFailure

__all__ = ["ERROR_CHARS_MAX", "OUTPUT_CHARS_MAX", "TRACEBACK_CHARS_MAX", "failure_in"]

ERROR_CHARS_MAX = 1_000
TRACEBACK_CHARS_MAX = 4_000  # the end of it, where the error was raised
OUTPUT_CHARS_MAX = 2_000  # the end of it
ADVISORIES_MAX = 10


def failure_in(result: Any) -> RunFailure:
    """Return what a result says about a failure, in bounded size; a text that is cut says so."""
    said = result if isinstance(result, dict) else {}
    exit_code, advisories = said.get("exit_code"), said.get("advisories")
    known = advisories if isinstance(advisories, list) else []
    return RunFailure(
        error=_beginning(said.get("error"), ERROR_CHARS_MAX),
        error_type=_beginning(said.get("type"), ERROR_CHARS_MAX),
        traceback=_end(said.get("traceback"), TRACEBACK_CHARS_MAX),
        exit_code=exit_code if type(exit_code) is int else None,
        signal=_beginning(said.get("signal"), ERROR_CHARS_MAX),
        output_tail=_end(said.get("output_tail"), OUTPUT_CHARS_MAX),
        advisories=tuple(
            text for each in known[:ADVISORIES_MAX] if (text := _beginning(each, ERROR_CHARS_MAX)) is not None
        ),
    )


def _beginning(value: Any, chars_max: int) -> str | None:
    if not isinstance(value, str) or not value:
        return None
    return value if len(value) <= chars_max else f"{value[:chars_max]} … (cut)"


def _end(value: Any, chars_max: int) -> str | None:
    if not isinstance(value, str) or not value:
        return None
    return value if len(value) <= chars_max else f"(cut) … {value[-chars_max:]}"

"""What a valid field is, and the named limits on fields.

A noun checks itself when it is made, so whoever holds one need not check it again. Each check
returns the value it was given or raises the error class it was given, naming class and field:
`SchedInvalidPayload: ScheduleSpec.priority must be a whole number, not True`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from rota.errors import InvalidInput

__all__ = [
    "AMOUNT_MAX",
    "ID_CHARS_MAX",
    "INTEGER_MAX",
    "NOTE_CHARS_MAX",
    "PAYLOAD_BYTES_MAX",
    "RESULT_BYTES_MAX",
    "SECONDS_MAX",
    "TAGS_MAX",
    "Checks",
]

INTEGER_MAX = 2**63 - 1  # what a row can hold
AMOUNT_MAX = 10**12  # of one charge, in any dimension
SECONDS_MAX = 1e12  # an instant or a duration: some thirty thousand years
PAYLOAD_BYTES_MAX = 256 * 1024  # an entry's payload, as JSON
RESULT_BYTES_MAX = 256 * 1024  # an entry's result, as JSON
ID_CHARS_MAX = 256  # names, ids, triggers, tags
NOTE_CHARS_MAX = 4_096  # reasons and remarks
TAGS_MAX = 32  # tags of one entry


class Checks:
    """Checks for one noun: they raise its error and name its fields."""

    __slots__ = ("_error", "_noun")

    def __init__(self, noun: str, error: Callable[..., InvalidInput]) -> None:
        self._noun = noun
        self._error = error

    def refuse(self, field: str, problem: str) -> InvalidInput:
        """The error for a field, to be raised by the caller."""
        return self._error(f"{self._noun}.{field} {problem}", field=field)

    def whole(self, field: str, value: Any, low: int = -INTEGER_MAX - 1, high: int = INTEGER_MAX) -> int:
        """A whole number in range; `True` is not a number."""
        if type(value) is not int:
            raise self.refuse(field, f"must be a whole number, not {value!r}")
        if not low <= value <= high:
            raise self.refuse(field, f"must lie from {low:,} to {high:,}, not {value:,}")
        return value

    def number(self, field: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
        """A finite number in range."""
        if type(value) is not float and type(value) is not int:
            raise self.refuse(field, f"must be a number, not {value!r}")
        if not math.isfinite(value):
            raise self.refuse(field, f"must be finite, not {value}")
        if not low <= value <= high:
            raise self.refuse(field, f"must lie from {low:,} to {high:,}, not {value:,}")
        return value

    def instant(self, field: str, value: Any) -> float:
        """Epoch seconds, from 0 on."""
        return self.number(field, value, 0, SECONDS_MAX)

    def duration(self, field: str, value: Any) -> float:
        """A length of time, from 0 on."""
        return self.number(field, value, 0, SECONDS_MAX)

    def text(self, field: str, value: Any, longest: int = ID_CHARS_MAX) -> str:
        """Text that is not empty and not too long."""
        if type(value) is not str:
            raise self.refuse(field, f"must be text, not {value!r}")
        if not value:
            raise self.refuse(field, "must not be empty")
        if len(value) > longest:
            raise self.refuse(field, f"must be at most {longest:,} characters, not {len(value):,}")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as problem:
                raise self.refuse(field, f"is not valid Unicode: {problem.reason}") from problem
        return value

    def note(self, field: str, value: Any, longest: int = NOTE_CHARS_MAX) -> str | None:
        """Text that may be left out: a reason, somebody's name."""
        return None if value is None else self.text(field, value, longest)

    def flag(self, field: str, value: Any) -> bool:
        """True or False, and nothing that only looks like it."""
        if type(value) is not bool:
            raise self.refuse(field, f"must be a bool, not {value!r}")
        return value

    def mapping(self, field: str, value: Any) -> Mapping[str, Any]:
        """A dictionary."""
        if type(value) is not dict:
            raise self.refuse(field, f"must be a dictionary, not {type(value).__name__}")
        return value

    def amounts(self, field: str, value: Any) -> Mapping[str, int]:
        """A dictionary of dimension to a whole amount, from 0 on."""
        for dim, amount in self.mapping(field, value).items():
            self.text(f"{field} dimension", dim)
            self.whole(f"{field}[{dim!r}]", amount, 0, AMOUNT_MAX)
        return value  # type: ignore[no-any-return]  # checked just above

    def one_of(self, field: str, value: Any, allowed: Collection[str]) -> str:
        """One of a few words."""
        if not isinstance(value, str) or value not in allowed:
            raise self.refuse(field, f"must be one of {', '.join(allowed)}, not {value!r}")
        return value

    def sequence(self, field: str, value: Any) -> None:
        """A list or a tuple."""
        if type(value) is not list and type(value) is not tuple:
            raise self.refuse(field, f"must be a list, not {type(value).__name__}")

    def texts(self, field: str, value: Any, most: int = TAGS_MAX) -> tuple[str, ...]:
        """A tuple of texts, not too many."""
        if type(value) is not tuple:
            raise self.refuse(field, f"must be a tuple, not {type(value).__name__}")
        if len(value) > most:
            raise self.refuse(field, f"may have at most {most}, not {len(value)}")
        for item in value:
            self.text(field, item)
        return value

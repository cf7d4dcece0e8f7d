"""Validation of fields, and the named limits on them.

A model class checks its fields when it is created, so that code which receives one need not check it again. Each check
returns the value or raises the given error class, with the names of the class and the field:
`SchedInvalidPayload: ScheduleSpec.priority must be a whole number, not True`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from rota.errors import InvalidInput

__all__ = [
    "AMOUNT_MAX",
    "DIMS_MAX",
    "ID_CHARS_MAX",
    "INTEGER_MAX",
    "NOTE_CHARS_MAX",
    "PAYLOAD_BYTES_MAX",
    "RESULT_BYTES_MAX",
    "SECONDS_MAX",
    "TAGS_MAX",
    "Checks",
    "check_finite",
    "is_path_part",
]

INTEGER_MAX = 2**63 - 1  # the largest integer that SQLite stores
AMOUNT_MAX = 10**12  # of one charge, in any dimension
SECONDS_MAX = 1e12  # an instant or a duration: about thirty thousand years
PAYLOAD_BYTES_MAX = 256 * 1024  # an entry's payload, as JSON
RESULT_BYTES_MAX = 256 * 1024  # an entry's result, as JSON
ID_CHARS_MAX = 256  # names, ids, triggers, tags
NOTE_CHARS_MAX = 4_096  # reasons and comments
TAGS_MAX = 32  # tags of one entry
DIMS_MAX = 64  # dimensions in one charge, ceiling or expected usage; of one run, and of one agent's ledger


def is_path_part(name: str) -> bool:
    """Whether a name can be that of a file or a folder: it leads nowhere else and hides nothing."""
    return not name.startswith(".") and "/" not in name and "\0" not in name


def check_finite(value: Any, body: bytes) -> None:
    """Raise `ValueError` if a value that was encoded as this JSON has a number that JSON does not have.

    The encoder writes NaN and infinities as null, so only a value with a null has to be searched.
    """
    if body.find(b"null") < 0:  # `in` would first try to take b"null" for a number: it takes three times as long
        return
    pending = [msgspec.to_builtins(value)]
    while pending:
        each = pending.pop()
        if type(each) is float and not math.isfinite(each):
            raise ValueError(f"{each} is not a number in JSON")
        if isinstance(each, dict):
            pending.extend(each.values())
        elif isinstance(each, list | tuple):
            pending.extend(each)


class Checks:
    """Checks for the fields of one class; they raise its error class."""

    __slots__ = ("_error", "_noun")

    def __init__(self, noun: str, error: Callable[..., InvalidInput]) -> None:
        self._noun = noun
        self._error = error

    def refuse(self, field: str, problem: str) -> InvalidInput:
        """Return the error for a field; the caller raises it."""
        return self._error(f"{self._noun}.{field} {problem}", field=field)

    def whole(self, field: str, value: Any, low: int = -INTEGER_MAX - 1, high: int = INTEGER_MAX) -> int:
        """Check a whole number in a range; `True` is not a number."""
        if type(value) is not int:
            raise self.refuse(field, f"must be a whole number, not {value!r}")
        if not low <= value <= high:
            raise self.refuse(field, f"must lie from {low:,} to {high:,}, not {value:,}")
        return value

    def number(self, field: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
        """Check a finite number in a range."""
        if type(value) is not float and type(value) is not int:
            raise self.refuse(field, f"must be a number, not {value!r}")
        if not math.isfinite(value):
            raise self.refuse(field, f"must be finite, not {value}")
        if not low <= value <= high:
            raise self.refuse(field, f"must lie from {low:,} to {high:,}, not {value:,}")
        return value

    def instant(self, field: str, value: Any) -> float:
        """Check epoch seconds, 0 or more."""
        return self.number(field, value, 0, SECONDS_MAX)

    def duration(self, field: str, value: Any) -> float:
        """Check a duration, 0 or more."""
        return self.number(field, value, 0, SECONDS_MAX)

    def text(self, field: str, value: Any, chars_max: int = ID_CHARS_MAX) -> str:
        """Check text that is not empty and not too long, and that every store can hold."""
        if type(value) is not str:
            raise self.refuse(field, f"must be text, not {value!r}")
        if not value:
            raise self.refuse(field, "must not be empty")
        if len(value) > chars_max:
            raise self.refuse(field, f"must be at most {chars_max:,} characters, not {len(value):,}")
        if "\0" in value:  # PostgreSQL has no such text; a file refuses it too, so that what it holds can be copied
            raise self.refuse(field, "must not contain the character U+0000")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as problem:
                raise self.refuse(field, f"is not valid Unicode: {problem.reason}") from problem
        return value

    def name(self, field: str, value: Any, chars_max: int = ID_CHARS_MAX) -> str:
        """Check a name: text that can be shown as it is, without control, escape or direction codes.

        Check a name where it is made. A name that is looked up is only `text`: a store of an earlier version may have
        it, and what is printed is made harmless by the command line.
        """
        if type(value) is str and value.isprintable() and 0 < len(value) <= chars_max:
            return value
        if not self.text(field, value, chars_max).isprintable():
            raise self.refuse(field, f"must be printable, without control or direction codes, not {value!a}")
        return value  # type: ignore[no-any-return]  # `text` has checked it

    def optional_name(self, field: str, value: Any, chars_max: int = ID_CHARS_MAX) -> str | None:
        """Check an optional name."""
        return None if value is None else self.name(field, value, chars_max)

    def optional_text(self, field: str, value: Any, chars_max: int = NOTE_CHARS_MAX) -> str | None:
        """Check optional text: a reason, an operator's name."""
        return None if value is None else self.text(field, value, chars_max)

    def flag(self, field: str, value: Any) -> bool:
        """Check a bool; 0 and 1 are refused."""
        if type(value) is not bool:
            raise self.refuse(field, f"must be a bool, not {value!r}")
        return value

    def mapping(self, field: str, value: Any) -> Mapping[str, Any]:
        """Check a dictionary."""
        if type(value) is not dict:
            raise self.refuse(field, f"must be a dictionary, not {type(value).__name__}")
        return value

    def amounts(self, field: str, value: Any) -> Mapping[str, int]:
        """Check a dictionary from dimensions to whole amounts, 0 or more."""
        if len(self.mapping(field, value)) > DIMS_MAX:
            raise self.refuse(field, f"may have at most {DIMS_MAX} dimensions, not {len(value):,}")
        for dim, amount in value.items():
            self.name(f"{field} dimension", dim)
            self.whole(f"{field}[{dim!r}]", amount, 0, AMOUNT_MAX)
        return value  # type: ignore[no-any-return]  # checked just above

    def one_of(self, field: str, value: Any, allowed: Collection[str]) -> str:
        """Check that the value is one of the allowed words."""
        if not isinstance(value, str) or value not in allowed:
            raise self.refuse(field, f"must be one of {', '.join(allowed)}, not {value!r}")
        return value

    def sequence(self, field: str, value: Any) -> None:
        """Check a list or a tuple."""
        if type(value) is not list and type(value) is not tuple:
            raise self.refuse(field, f"must be a list, not {type(value).__name__}")

    def names(self, field: str, value: Any, items_max: int = TAGS_MAX) -> tuple[str, ...]:
        """Check a tuple of names with at most `items_max` items."""
        for item in self.texts(field, value, items_max):
            self.name(field, item)
        return value  # type: ignore[no-any-return]  # checked just above

    def texts(self, field: str, value: Any, items_max: int = TAGS_MAX) -> tuple[str, ...]:
        """Check a tuple of texts with at most `items_max` items."""
        if type(value) is not tuple:
            raise self.refuse(field, f"must be a tuple, not {type(value).__name__}")
        if len(value) > items_max:
            raise self.refuse(field, f"may have at most {items_max}, not {len(value)}")
        for item in value:
            self.text(field, item)
        return value

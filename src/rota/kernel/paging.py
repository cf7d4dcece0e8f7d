"""Pages of a listing: limit and offset, corrected instead of refused."""

from __future__ import annotations

from typing import NamedTuple

from rota.model.checks import INTEGER_MAX

__all__ = ["LIST_DEFAULT", "LIST_MAX", "READ_MAX", "Page", "page"]

LIST_MAX = 10_000  # rows in one page
LIST_DEFAULT = 100
READ_MAX = 250  # rows with payloads are read in parts of this size, so that a size limit can stop the reading


class Page(NamedTuple):
    """A part of a listing."""

    limit: int
    offset: int


def page(limit: object, offset: object) -> Page:
    """Return a valid page: a bad limit becomes `LIST_DEFAULT`, a bad offset 0, a large limit `LIST_MAX`."""
    good_limit = limit if type(limit) is int and limit >= 1 else LIST_DEFAULT
    good_offset = offset if type(offset) is int and 0 <= offset <= INTEGER_MAX else 0
    return Page(min(good_limit, LIST_MAX), good_offset)

"""Notes: what a supervisor remembers in the store under a name, such as how far its triggers have come.

A note may be damaged, or written by another version. Such a note is ignored and an event says so; the next `save` of
its owner replaces it. So it costs what it held, and never the supervisor that reads it.
"""

from __future__ import annotations

import logging
from typing import TypeVar

import msgspec

from rota.decoding import convert
from rota.errors import StoreCorrupt
from rota.kernel.journal import NOTE_PREFIX
from rota.model.events import RowUnreadable
from rota.service.api import KernelApi

__all__ = ["read_note", "report_ignored"]

PROBLEM_CHARS_MAX = 200
_log = logging.getLogger("rota.fleet")
Note = TypeVar("Note", bound=msgspec.Struct)


def read_note(api: KernelApi, name: str, kind: type[Note], *, reports: bool = True) -> Note:
    """Return the note of a name; an empty one if there is none or it cannot be read, which `reports` records."""
    try:
        return convert(api.journal.recall(name) or {}, kind)
    except (StoreCorrupt, msgspec.ValidationError) as problem:
        if reports:
            report_ignored(api, name, str(problem))
        return kind()


def report_ignored(api: KernelApi, name: str, problem: str) -> None:
    """Log and record that a note, or a part of it, is ignored."""
    _log.warning("ignored the note %r in the store: %s", name, problem)
    api.journal.record(
        RowUnreadable(table="kernel_meta", key=f"{NOTE_PREFIX}{name}", problem=problem[:PROBLEM_CHARS_MAX])
    )

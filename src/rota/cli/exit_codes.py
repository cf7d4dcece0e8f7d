"""Exit codes of the command. Scripts rely on them, so they do not change."""

from __future__ import annotations

from rota import errors
from rota.errors import RotaError

__all__ = ["EXITS", "FOUND", "INTERRUPTED", "SIGNAL_CODES", "code_of"]

FOUND = 1  # a check found something
INTERRUPTED = 130
SIGNAL_CODES = 128  # a shell adds this to the number of a signal

EXITS: dict[int, str] = {
    0: "success",
    FOUND: "refused, or a check found something wrong",
    2: "invalid command line, or a value in it was refused",
    3: "no such entry, agent, project, policy, …",
    4: "not possible in this state, or it exists already",
    5: "the store is unavailable",
    6: "not allowed",
    7: "timed out",
    INTERRUPTED: "interrupted",
}
_CODES: tuple[tuple[type[RotaError], int], ...] = (
    (errors.InvalidInput, 2),
    (errors.NotFound, 3),
    (errors.IllegalTransition, 4),
    (errors.Conflict, 4),
    (errors.StoreError, 5),
    (errors.NotAllowed, 6),
    (errors.WaitTimeout, 7),
)


def code_of(error: RotaError) -> int:
    """Return the exit code for an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), 1)

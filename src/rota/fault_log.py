"""Faults of work that is repeated: what is wrong is logged once, not at every attempt.

A loop that must not end (heartbeats, claims, the listener for commits) tries again after an error, often many times a
second. An outage, or a defect, may last for days; the same line at every attempt would fill the disk and hide the rest.

    fails: A    logged, with its traceback if it is unexpected
    fails: A    nothing
    fails: B    logged: something else is wrong
    fails: A    nothing: two faults may alternate
    works
    fails: A    logged

A server that cannot be reached is one fault: while it restarts it is shut down, then not there, then starts up.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from rota.errors import RotaError, StoreUnavailable
from rota.lazy import late

if TYPE_CHECKING:
    import logging
    import traceback
else:
    logging, traceback = late("logging"), late("traceback")

__all__ = ["FAULTS_MAX", "FaultLog"]

FAULTS_MAX = 10  # different faults that are logged before a success: the text may differ at every attempt


class FaultLog:
    """Logs why something that is repeated fails: each fault once until a success. Any thread may use it.

    One log may serve several tasks, each with faults of its own: `of` says which task failed or succeeded.
    """

    def __init__(self, logger: str, *, expected: type[Exception] | tuple[type[Exception], ...] = RotaError) -> None:
        """`expected` errors are logged as warnings with their own text, all others as errors with a traceback."""
        self._logger = logger
        self._expected = expected
        self._said: dict[Hashable, set[str]] = {}  # by task, since its last success
        self.is_failing = False  # whether any task has failed since its last success

    def failed(self, what: str, problem: Exception, *, then: str = "", of: Hashable = None) -> None:
        """A task has failed: log it, unless the same was logged since its last success. `then` says what follows."""
        fault = _address_of(problem) or "".join(traceback.format_exception_only(problem))  # its own `str` may raise
        said = self._said.setdefault(of, set())  # without a lock, which a forked child may find held
        if fault in said or len(said) >= FAULTS_MAX:
            return
        said.add(fault)
        self.is_failing = True
        if len(said) == FAULTS_MAX:
            then = "; ".join(filter(None, (then, "further errors are not logged until it succeeds")))
        is_expected = isinstance(problem, self._expected)
        logging.getLogger(self._logger).log(
            logging.WARNING if is_expected else logging.ERROR,
            "%s: %s%s",
            what,
            problem if is_expected else "unexpected error",
            f"; {then}" if then else "",
            exc_info=None if is_expected else problem,
            stacklevel=2,
        )

    def worked(self, of: Hashable = None) -> None:
        """A task has succeeded: its next fault is logged again."""
        if self._said:  # usually empty, and this is called at every success
            self._said.pop(of, None)
            self.is_failing = bool(self._said)


def _address_of(problem: Exception) -> str | None:
    """Return the address of a server that cannot be reached."""
    return problem.data.get("address") if isinstance(problem, StoreUnavailable) else None

"""What a supervisor's runs warned about: each warning is logged once per agent, and counted for the summary.

A run that completed may still say that something configured had no effect, such as a usage preset that found nothing.
The warning is in the run's result; a person who reads only the terminal sees it here.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from rota.fleet.run_summary import RunAdvisory

__all__ = ["ADVISORIES_MAX", "RunAdvisories"]

ADVISORIES_MAX = 100  # different ones that are counted
_log = logging.getLogger("rota.fleet")


class RunAdvisories:
    """The warnings of all runs. Any thread may add them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], list[int]] = {}  # by agent and text: how often, and the first entry

    def add(self, agent: str, sched_id: int, result: Any) -> None:
        """Count the warnings in the result of a run; log those that are new."""
        found = result.get("advisories") if isinstance(result, dict) else None
        for text in found if isinstance(found, list | tuple) else ():
            if isinstance(text, str) and self._is_new(agent, text, sched_id):
                _log.warning("%s #%s: %s", agent, sched_id, text)

    def _is_new(self, agent: str, text: str, sched_id: int) -> bool:
        with self._lock:
            known = self._counts.get((agent, text))
            if known is not None:
                known[0] += 1
            elif len(self._counts) < ADVISORIES_MAX:
                self._counts[agent, text] = [1, sched_id]
            else:
                return False
            return known is None

    def found(self) -> tuple[RunAdvisory, ...]:
        """Return the warnings so far, in the order in which they came."""
        with self._lock:
            return tuple(
                RunAdvisory(agent=agent, text=text, count=count, sched_id=first)
                for (agent, text), (count, first) in self._counts.items()
            )

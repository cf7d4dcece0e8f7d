"""The component types that every registry has, for graphs that are built in Python and for others.

    rota.input, rota.output   where values enter and leave a run (see `run_values`)
    rota.list                 the messages of several edges as one list, in the order of the edges
    rota.loop                 sends a value around a ring of components until a function accepts it

A loop spans epochs, one iteration at a time, so its members may run anywhere: in this process or as agents of a fleet.

    draft → loop ──body──> critic ──> revise        each value that comes back is shown to `until`; the accepted one,
             ↑└─out─> write             │            or the one of the last iteration, leaves on `out`
             └───────result, delay──────┘
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rota.errors import ComponentInvalid
from rota.graph.components import component
from rota.graph.importable_names import load_importable
from rota.graph.invocation import Invocation
from rota.graph.run_values import RunOutput, run_input
from rota.graph.spec import LOOP_TYPE

__all__ = ["LIST_TYPE", "LoopComponent", "RunOutput", "collect_list", "run_input"]

LIST_TYPE = "rota.list"


@component(LIST_TYPE)
def collect_list(*items: Any) -> list[Any]:
    """Return the messages of all edges as one list."""
    return list(items)


@component(LOOP_TYPE, outputs=("body", "out"))
class LoopComponent:
    """Sends a value around a ring of components until it is accepted, at most `max_iterations` times."""

    def __init__(
        self,
        *,
        max_iterations: int,
        until: str | Callable[[Any], Any] | None = None,
        field: str = "",  # it is accepted if it is a mapping in which this field is true
        stable: bool = False,  # it is accepted if it equals the one before
    ) -> None:
        if max_iterations < 1:
            raise ComponentInvalid(f"max_iterations of a loop must be at least 1, not {max_iterations}")
        self._accepted = load_importable(until) if isinstance(until, str) else until
        self._max_iterations = max_iterations
        self._field = field
        self._stable = stable
        self._iteration = 0  # of the value that is under way
        self._before: Any = None  # the value of the iteration before

    def execute(self, initial: Any = None, result: Any = None, *, invocation: Invocation) -> dict[str, Any]:
        """Send the first value, and every one that is not accepted, to the body."""
        if not invocation.messages("result"):
            self._iteration = 0
            return {"body": initial}
        self._iteration += 1
        is_accepted = self._is_accepted(result)
        self._before = result
        return {"out" if is_accepted or self._iteration >= self._max_iterations else "body": result}

    def _is_accepted(self, result: Any) -> bool:
        if self._accepted is not None and self._accepted(result):
            return True
        if self._field and isinstance(result, dict) and result.get(self._field):
            return True
        return self._stable and self._iteration > 1 and bool(result == self._before)

    def snapshot(self) -> list[Any]:
        """Return the number of iterations so far, and the last value if it will be compared."""
        return [self._iteration, self._before if self._stable else None]

    def restore(self, state: list[Any]) -> None:
        """Continue a run of another process."""
        self._iteration, self._before = state

    def reset(self) -> None:
        """Begin a new run."""
        self._iteration, self._before = 0, None

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
from typing import Any, Literal

from rota.errors import ComponentInvalid
from rota.graph.components import component
from rota.graph.importable_names import load_importable
from rota.graph.invocation import Invocation
from rota.graph.run_values import RunOutput, run_input
from rota.graph.spec import LOOP_TYPE

__all__ = ["LIST_TYPE", "LoopComponent", "RunOutput", "collect_list", "run_input"]

LIST_TYPE = "rota.list"
WAITING_MAX = 10_000  # values that wait while a loop is busy with another one


@component(LIST_TYPE)
def collect_list(*items: Any) -> list[Any]:
    """Return the messages of all edges as one list."""
    return list(items)


@component(LOOP_TYPE, outputs=("body", "out"))
class LoopComponent:
    """Sends a value around a ring of components until it is accepted, at most `max_iterations` times.

    One value at a time: those that arrive meanwhile wait.
    """

    def __init__(
        self,
        *,
        max_iterations: int,
        until: str | Callable[[Any], Any] | None = None,
        field: str = "",  # it is accepted if it is a mapping in which this field is true
        stable: bool = False,  # it is accepted if it equals the one before
        otherwise: Literal["commit", "discard", "fail"] = "commit",  # what becomes of the last value if none was
    ) -> None:
        if max_iterations < 1:
            raise ComponentInvalid(f"max_iterations of a loop must be at least 1, not {max_iterations}")
        if otherwise not in ("commit", "discard", "fail"):
            raise ComponentInvalid(f"otherwise of a loop must be commit, discard or fail, not {otherwise!r}")
        self._accepted = load_importable(until) if isinstance(until, str) else until
        self._max_iterations = max_iterations
        self._field = field
        self._stable = stable
        self._otherwise = otherwise
        self._iteration = 0  # of the value that is under way
        self._before: Any = None  # the value of the iteration before
        self._is_busy = False  # a value is under way
        self._waiting: list[Any] = []  # values for the next rounds

    def execute(  # the parameters declare the ports
        self,
        initial: Any = None,  # noqa: ARG002
        result: Any = None,
        *,
        invocation: Invocation,
    ) -> dict[str, Any]:
        """Send the first value, and every one that is not accepted, to the body."""
        waiting = [*self._waiting, *(message.payload for message in invocation.messages("initial"))]
        if len(waiting) > WAITING_MAX:
            raise ComponentInvalid(f"more than {WAITING_MAX:,} values wait for loop {invocation.component_id}")
        sent = self._iterated(result, invocation) if invocation.messages("result") else {}
        if not self._is_busy and waiting:
            self._is_busy, self._iteration = True, 0
            sent["body"] = waiting.pop(0)
        self._waiting = waiting
        return sent

    def _iterated(self, result: Any, invocation: Invocation) -> dict[str, Any]:
        """Return where the value of an iteration goes, and record that in the trace."""
        self._iteration += 1
        iterations = str(self._iteration)
        invocation.loop_events = (("loop_iteration", {"iteration": iterations}),)
        is_accepted = self._is_accepted(result)
        self._before = result
        if not is_accepted and self._iteration < self._max_iterations:
            return {"body": result}
        self._is_busy = False
        reason = "accepted" if is_accepted else "max_iterations"
        event = "loop_converged" if is_accepted else "loop_max_iterations_hit"
        invocation.loop_events += ((event, {"reason": reason, "iterations": iterations}),)
        if is_accepted or self._otherwise == "commit":
            return {"out": result}
        if self._otherwise == "fail":
            raise ComponentInvalid(f"loop {invocation.component_id} did not converge in {iterations} iterations")
        invocation.loop_events += (("loop_output_discarded", {"reason": reason, "count": "1"}),)
        return {}

    def _is_accepted(self, result: Any) -> bool:
        if self._accepted is not None and self._accepted(result):
            return True
        if self._field and isinstance(result, dict) and result.get(self._field):
            return True
        return self._stable and self._iteration > 1 and bool(result == self._before)

    def snapshot(self) -> list[Any]:
        """Return the state of the loop; the last value only if it will be compared."""
        return [self._iteration, self._before if self._stable else None, self._is_busy, self._waiting]

    def restore(self, state: list[Any]) -> None:
        """Continue a run of another process."""
        self._iteration, self._before, *rest = state
        self._is_busy, self._waiting = rest or (True, [])  # an earlier version of rota stored two fields

    def reset(self) -> None:
        """Begin a new run."""
        self._iteration, self._before, self._is_busy, self._waiting = 0, None, False, []

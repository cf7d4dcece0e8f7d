"""Starting the components of a run, and ending them again.

In lifecycle order each component is configured, given its earlier state (or reset), and activated. If one fails, those
that were started are deactivated in reverse order and the run does not begin. At the end everybody who was started is
deactivated in reverse order, whatever happened in between; a failure there is recorded and stops nobody.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from rota.graph.calling import Coroutines
from rota.graph.nodes import Node
from rota.graph.reports import Phase, Reports, words

__all__ = ["Lifecycle", "Remote", "call_hook"]


class Remote(Protocol):
    """Where the instances of a component live that is not called in this process."""

    def start(self, node: Node, state: Any, has_state: bool, /) -> None:
        """Configure and activate it; raises what the component raised."""
        ...

    def end(self, node: Node, /) -> None:
        """Deactivate it."""
        ...

    def snapshot(self, node: Node, /) -> Any:
        """Its state, or None."""
        ...


def call_hook(instance: Any, hook: str, coroutines: Coroutines, *arguments: Any) -> Any:
    """Call a method of a component if it has it; async ones are run to their end."""
    method: Callable[..., Any] | None = getattr(instance, hook, None)
    if method is None:
        return None
    returned = method(*arguments)
    return coroutines.run(returned) if inspect.iscoroutine(returned) else returned


class Lifecycle:
    """The components of one run, from configure to deactivate."""

    def __init__(
        self, nodes: Sequence[Node], remotes: Mapping[str, Remote], reports: Reports, coroutines: Coroutines
    ) -> None:
        self._nodes = nodes  # in lifecycle order
        self._remotes = remotes  # by lane
        self._reports = reports
        self._coroutines = coroutines
        self._started: list[Node] = []
        self.snapshots: dict[str, Any] = {}

    def start(self, restore: Mapping[str, Any]) -> bool:
        """Configure and activate everybody; False when somebody failed."""
        for node in self._nodes:
            if not self._start(node, restore):
                return False
            self._started.append(node)
        return True

    def _start(self, node: Node, restore: Mapping[str, Any]) -> bool:
        phase: Phase = "configure"
        try:
            remote = self._remotes.get(node.lane.id)
            if remote is not None:
                phase = "activate"
                remote.start(node, restore.get(node.id), node.id in restore)
                return True
            self._hook(node, "configure")
            self._bring_back(node, restore)
            phase = "activate"
            self._hook(node, "activate")
        except Exception as problem:  # a component's failure is a result, not ours
            self._fail(node, phase, problem, fatal=True)
            return False
        return True

    def _bring_back(self, node: Node, restore: Mapping[str, Any]) -> None:
        if node.id in restore and hasattr(node.unit.instance, "restore"):
            self._hook(node, "restore", restore[node.id])
        else:
            self._hook(node, "reset")

    def end(self) -> None:
        """Take snapshots, then deactivate whoever was started, last first."""
        for node in self._started:
            self._attempt(node, self._take_snapshot)
        for node in reversed(self._started):
            self._attempt(node, self._deactivate)
        self._started.clear()

    def _attempt(self, node: Node, what: Callable[[Node], None]) -> None:
        try:
            what(node)
        except Exception as problem:  # one component's failure keeps nobody else from ending
            self._fail(node, "deactivate", problem, fatal=False)

    def snapshot(self, node: Node) -> Any:
        """The state of a component that takes snapshots; None for others. Raises what the component raised."""
        remote = self._remotes.get(node.lane.id)
        return remote.snapshot(node) if remote is not None else self._hook(node, "snapshot")

    def _take_snapshot(self, node: Node) -> None:
        state = self.snapshot(node)
        if state is not None:
            self.snapshots[node.id] = state

    def _deactivate(self, node: Node) -> None:
        remote = self._remotes.get(node.lane.id)
        if remote is not None:
            remote.end(node)
        else:
            self._hook(node, "deactivate")

    def _hook(self, node: Node, hook: str, *arguments: Any) -> Any:
        return call_hook(node.unit.instance, hook, self._coroutines, *arguments)

    def _fail(self, node: Node, phase: Phase, problem: Exception, *, fatal: bool) -> None:
        self._reports.error(
            phase, f"component_{phase}", words(problem), component_id=node.id, lane=node.lane.id, fatal=fatal
        )

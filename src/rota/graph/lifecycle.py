"""The lifecycle of a run's components: start, reconfigure, stop.

In lifecycle order each component is configured, restored to its earlier state (or reset), and activated. If one fails,
those already started are deactivated in reverse order and the run does not begin. At the end every started component is
deactivated in reverse order, whatever happened in between; a failure there is recorded and does not stop the others.

New configuration is applied between two epochs, all of it or none. Each change is validated first: functions against
their signature, classes by their `validate_config`. If applying one change fails, those already applied are rolled back
and the run ends with an error, because the state of the failed component is unknown.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from rota.errors import ComponentInvalid, ComponentUnknown
from rota.graph.calling import CoroutineRunner
from rota.graph.nodes import Node
from rota.graph.reports import COMPONENT_FAILURES, Phase, Reports, RunStopped, error_text

__all__ = ["Lifecycle", "Reconfiguration", "RemoteComponents", "call_hook"]


class RemoteComponents(Protocol):
    """The components of a lane whose instances are in other processes."""

    def start(self, node: Node, state: Any, has_state: bool, /) -> None:
        """Configure and activate a component; raises what the component raised."""
        ...

    def end(self, node: Node, /) -> None:
        """Deactivate a component."""
        ...

    def snapshot(self, node: Node, /) -> Any:
        """Return a component's state, or None."""
        ...


def call_hook(instance: Any, hook: str, coroutines: CoroutineRunner, *arguments: Any) -> Any:
    """Call a component's lifecycle method if it has one, and wait for an async one."""
    method: Callable[..., Any] | None = getattr(instance, hook, None)
    if method is None:
        return None
    returned = method(*arguments)
    return coroutines.run(returned) if inspect.iscoroutine(returned) else returned


class Lifecycle:
    """The components of one run, from configure to deactivate."""

    def __init__(
        self,
        nodes: Sequence[Node],
        remotes: Mapping[str, RemoteComponents],
        reports: Reports,
        coroutines: CoroutineRunner,
    ) -> None:
        self._nodes = nodes  # in lifecycle order
        self._remotes = remotes  # by lane
        self._reports = reports
        self._coroutines = coroutines
        self._started: list[Node] = []
        self.snapshots: dict[str, Any] = {}

    def start(self, restore: Mapping[str, Any]) -> bool:
        """Configure and activate all components; False if one failed."""
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
            self._restore_or_reset(node, restore)
            phase = "activate"
            self._hook(node, "activate")
        except COMPONENT_FAILURES as problem:  # a component's failure is a result, not an error of the runner
            self._fail(node, phase, problem, fatal=True)
            return False
        return True

    def _restore_or_reset(self, node: Node, restore: Mapping[str, Any]) -> None:
        if node.id in restore and hasattr(node.component.instance, "restore"):
            self._hook(node, "restore", restore[node.id])
        else:
            self._hook(node, "reset")

    def end(self) -> None:
        """Take snapshots, then deactivate the started components in reverse order."""
        for node in self._started:
            self._attempt(node, self._take_snapshot)
        for node in reversed(self._started):
            self._attempt(node, self._deactivate)
        self._started.clear()

    def _attempt(self, node: Node, action: Callable[[Node], None]) -> None:
        try:
            action(node)
        except COMPONENT_FAILURES as problem:  # one component's failure must not keep the others from ending
            self._fail(node, "deactivate", problem, fatal=False)

    def snapshot(self, node: Node) -> Any:
        """Return the state of a component that takes snapshots, else None. Raises what the component raised."""
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
        return call_hook(node.component.instance, hook, self._coroutines, *arguments)

    def _fail(self, node: Node, phase: Phase, problem: BaseException, *, fatal: bool) -> None:
        self._reports.error(
            phase, f"component_{phase}", error_text(problem), component_id=node.id, lane=node.lane.id, fatal=fatal
        )


class Reconfiguration:
    """Configuration changes that wait for the next epoch."""

    def __init__(self, nodes: Mapping[str, Node], remote_lanes: frozenset[str], reports: Reports) -> None:
        self._nodes = nodes
        self._remote_lanes = remote_lanes
        self._reports = reports
        self._waiting: deque[Mapping[str, Mapping[str, Any]]] = deque()
        self._configs = {node.id: dict(node.spec.config) for node in nodes.values()}

    def request(self, changes: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the configuration of these components when the next epoch begins; any thread may call this."""
        for component_id in changes:
            node = self._nodes.get(component_id)
            if node is None:
                raise ComponentUnknown(
                    f"the graph has no component {component_id!r}",
                    hint=f"Its components: {', '.join(sorted(self._nodes))}.",
                )
            self._check_can_change(node)
        self._waiting.append({name: dict(config) for name, config in changes.items()})

    @property
    def is_waiting(self) -> bool:
        """Whether a change waits for the next epoch."""
        return bool(self._waiting)

    def apply(self) -> None:
        """Apply the waiting changes: an epoch begins."""
        while self._waiting:
            changes = self._waiting.popleft()
            try:
                for component_id, config in changes.items():
                    self._validate(self._nodes[component_id], config)
            except COMPONENT_FAILURES as problem:  # validate_config is the component's code
                self._refuse(problem)
            self._apply_all(changes)

    def _apply_all(self, changes: Mapping[str, Mapping[str, Any]]) -> None:
        applied: list[str] = []
        for component_id, config in changes.items():
            try:
                _apply(self._nodes[component_id], config)
            except COMPONENT_FAILURES as problem:  # reconfigure is the component's code
                self._roll_back(applied)
                self._refuse(problem)
            applied.append(component_id)
        self._configs.update({name: dict(config) for name, config in changes.items()})

    def _roll_back(self, applied: list[str]) -> None:
        for component_id in reversed(applied):
            try:
                _apply(self._nodes[component_id], self._configs[component_id])
            except COMPONENT_FAILURES as problem:  # it accepted the new configuration, and may still refuse the old one
                self._reports.error("runtime", "config_rollback", error_text(problem), component_id=component_id)

    def _check_can_change(self, node: Node) -> None:
        instance = node.component.instance
        fixed = instance is not None and not hasattr(instance, "reconfigure")
        if fixed or node.lane.id in self._remote_lanes:
            reason = "has no method `reconfigure`" if fixed else "runs in another process"
            raise ComponentInvalid(f"component {node.id} {reason}: its configuration cannot change during a run")

    def _validate(self, node: Node, config: Mapping[str, Any]) -> None:
        node.component.type.check_config(node.id, config)
        validate = getattr(node.component.instance, "validate_config", None)
        if validate is not None:
            validate(**config)

    def _refuse(self, problem: BaseException) -> None:
        self._reports.error("validate", "config_rejected", error_text(problem))
        raise RunStopped from problem


def _apply(node: Node, config: Mapping[str, Any]) -> None:
    if node.component.instance is None:
        node.component.configure(config)
    else:
        node.component.instance.reconfigure(**config)

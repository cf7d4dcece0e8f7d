"""What invocations see of their run: in its own process, and far away from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rota.clock import Clock, SystemClock
from rota.errors import ComponentInvalid
from rota.graph.state import SharedState
from rota.graph.stop import StopToken
from rota.graph.tasks import TaskExecutor

__all__ = ["DetachedScope", "RunScope"]


class RunScope:
    """The run as its invocations see it."""

    def __init__(
        self,
        clock: Clock,
        config: Mapping[str, Any],
        stop_token: StopToken,
        shared: SharedState,
        tasks: TaskExecutor,
    ) -> None:
        self.clock = clock
        self.config = config
        self._stop_token = stop_token
        self._shared = shared
        self._tasks = tasks

    @property
    def stop_is_requested(self) -> bool:
        """Whether the run was asked to stop."""
        return self._stop_token.is_set

    def state(self) -> Mapping[str, Any]:
        """The shared values, as they stood when the epoch began."""
        return self._shared.values()

    def submit(self, component_id: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> int | None:
        """Run something in the background."""
        return self._tasks.submit(component_id, function, arguments)

    def watch(self, component_id: str, future: Any) -> None:
        """Tell the component when a future is done."""
        self._tasks.watch(component_id, future)


class DetachedScope:
    """The run as invocations see it that are executed somewhere else; what belongs to the whole run is refused."""

    def __init__(self, config: Mapping[str, Any], stop_token: StopToken, where: str) -> None:
        self.clock: Clock = SystemClock()
        self.config = config
        self._stop_token = stop_token
        self._where = where

    @property
    def stop_is_requested(self) -> bool:
        """Whether the run was asked to stop."""
        return self._stop_token.is_set

    def state(self) -> Mapping[str, Any]:
        """Shared values stay with the run."""
        raise self._not_here("shared values")

    def submit(self, _component_id: str, _function: Callable[..., Any], _arguments: tuple[Any, ...]) -> int | None:
        """Background tasks stay with the run."""
        raise self._not_here("background tasks")

    def watch(self, _component_id: str, _future: Any) -> None:
        """Futures stay with the run."""
        raise self._not_here("futures")

    def _not_here(self, what: str) -> ComponentInvalid:
        return ComponentInvalid(
            f"{what} are not available in {self._where}", hint="Put the component on a lane of the run's own process."
        )

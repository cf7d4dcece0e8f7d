"""What invocations can use of their run: shared values, background tasks, the clock, the stop request.

`RunScope` serves invocations in the run's own process, `DetachedScope` those in other processes, which have no access
to shared values and background tasks. `SharedState` holds the shared values: what a component sets is staged with its
publications and becomes visible to all components when the next epoch begins. If two components set the same key in
one epoch, the one that was committed last wins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from rota.clock import Clock, SystemClock
from rota.errors import ComponentInvalid
from rota.graph.accounts import RunAccount
from rota.graph.stop import StopToken
from rota.graph.tasks import TaskExecutor

__all__ = ["DetachedScope", "RunScope", "SharedState", "StopFlag"]


class StopFlag(Protocol):
    """Tells whether the run was asked to stop."""

    @property
    def is_set(self) -> bool:
        """Whether it was."""
        ...


class RunScope:
    """The scope of invocations in the run's own process."""

    def __init__(
        self,
        clock: Clock,
        config: Mapping[str, Any],
        stop_token: StopToken,
        shared: SharedState,
        tasks: TaskExecutor,
        *,
        account: RunAccount,
    ) -> None:
        self.account = account
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
        """Return the shared values, as they were when the epoch began."""
        return self._shared.values()

    def submit(self, component_id: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> int | None:
        """Run a function in the background and return the task's id."""
        return self._tasks.submit(component_id, function, arguments)

    def watch(self, component_id: str, future: Any) -> None:
        """Deliver a future to the component when it is done."""
        self._tasks.watch(component_id, future)


class DetachedScope:
    """The scope of invocations in another process; what needs the run's own process is refused."""

    def __init__(
        self, config: Mapping[str, Any], stop: StopFlag, where: str, account: RunAccount | None = None
    ) -> None:
        self._account = account
        self.clock: Clock = SystemClock()
        self.config = config
        self._stop = stop
        self._where = where

    @property
    def stop_is_requested(self) -> bool:
        """Whether the run was asked to stop."""
        return self._stop.is_set

    @property
    def account(self) -> RunAccount:
        """Where what the component uses is counted; raises if nothing can be counted here."""
        if self._account is None:
            raise self._not_here("charges, limits and progress")
        return self._account

    def state(self) -> Mapping[str, Any]:
        """Raise: shared values exist only in the run's process."""
        raise self._not_here("shared values")

    def submit(self, _component_id: str, _function: Callable[..., Any], _arguments: tuple[Any, ...]) -> int | None:
        """Raise: background tasks run only in the run's process."""
        raise self._not_here("background tasks")

    def watch(self, _component_id: str, _future: Any) -> None:
        """Raise: futures are delivered only in the run's process."""
        raise self._not_here("futures")

    def _not_here(self, what: str) -> ComponentInvalid:
        return ComponentInvalid(
            f"{what} are not available in {self._where}",
            hint="Put the component on a lane that runs in the run's own process, such as thread_pool.",
        )


class SharedState:
    """The committed values, and those that wait for the next epoch."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._staged: deque[Mapping[str, Any]] = deque()  # independent lanes stage from their own threads

    def values(self) -> Mapping[str, Any]:
        """Return the committed values. A commit creates a new mapping, so a reader never sees a change."""
        return MappingProxyType(self._values)

    def stage(self, values: Mapping[str, Any]) -> None:
        """Set these values when the next epoch begins."""
        if values:
            self._staged.append(values)

    def commit(self) -> None:
        """Make the staged values visible: an epoch begins."""
        if self._staged:
            values = dict(self._values)
            while self._staged:
                values.update(self._staged.popleft())
            self._values = values

    def restore(self, values: Mapping[str, Any]) -> None:
        """Start with these values."""
        self._values = dict(values)

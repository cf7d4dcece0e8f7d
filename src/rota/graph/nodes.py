"""A component wired into a run: its code, its channels, and where its publications go.

A `Node` joins what the plan says about a component with the things that exist only while a graph runs. A `Route` is the
way out of one port. It answers the one question that differs between places: which edges see a message at once, and
where the others wait. An ordinary component's immediate edges see it at once and the rest waits for the boundary of the
epoch; a member of a loop shows the other members at once and keeps everything else back until the loop is over; on an
independent lane only edges inside the lane are immediate. The code that publishes is the same for all of them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from rota.graph.calling import Unit
from rota.graph.channels import Channel, ChannelFull
from rota.graph.invocation import Publication
from rota.graph.messages import Origin
from rota.graph.plan import Lane
from rota.graph.reports import Reports
from rota.graph.spec import ComponentSpec
from rota.graph.tracing import Label
from rota.graph.triggers import Trigger

__all__ = ["OUTBOX_MAX", "Deferred", "DeferredList", "Node", "Outbox", "Route", "check_room", "publish"]


OUTBOX_MAX = 100_000  # publications of independent lanes, tasks and hosts that may wait for one boundary


class Deferred(NamedTuple):
    """A publication that waits to be committed."""

    channel: Channel
    payload: Any  # as the edge carries it: copied already where it copies
    origin: Origin
    timestamp_ms: float | None


class Outbox:
    """Publications of other threads on their way to the next boundary. There is room for `most`; more are counted."""

    def __init__(self, reports: Reports, most: int = OUTBOX_MAX) -> None:
        self._reports = reports
        self._most = most
        self._waiting: deque[Deferred] = deque()
        self.rejected = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Deferred]:
        return iter(tuple(self._waiting))

    def append(self, deferred: Deferred) -> None:
        """One more; any thread may."""
        if len(self._waiting) < self._most:
            self._waiting.append(deferred)
            return
        self.rejected += 1
        if self.rejected == 1:  # once: whoever fills it will do so again
            message = f"{self._most} publications wait for the next epoch already; more are rejected"
            self._reports.health("outbox_reject", message, channel_id=deferred.channel.id)

    def take(self) -> list[Deferred]:
        """What is there now; what comes meanwhile is for the boundary after."""
        return [self._waiting.popleft() for _ in range(len(self._waiting))]


DeferredList: TypeAlias = list[Deferred] | Outbox


class Route:
    """The way out of one port."""

    __slots__ = ("into", "later", "now")

    def __init__(self, now: Sequence[Channel], later: Sequence[Channel], into: DeferredList) -> None:
        self.now = tuple(now)  # edges that see a message at once
        self.later = tuple(later)  # edges that see it when `into` is committed
        self.into = into


NOWHERE = Route((), (), [])


class Node:
    """One component in one run."""

    def __init__(
        self,
        spec: ComponentSpec,
        lane: Lane,
        unit: Unit,
        *,
        channels: Sequence[Channel],
        trigger: Trigger,
        routes: Mapping[str, Route],
    ) -> None:
        self.id = spec.id
        self.spec = spec
        self.lane = lane
        self.unit = unit
        self.channels = tuple(channels)
        self.trigger = trigger
        self.routes = dict(routes)
        self.rank = spec.execution.rank
        self.reentrant = spec.execution.reentrant
        self.on_error = spec.execution.on_error
        self.timeout_s = spec.execution.timeout_ms / 1000
        self.guarded = any(_guards(channel) for route in routes.values() for channel in route.now)
        self.out = self.routes.get(unit.output or "", NOWHERE)  # the way out of its only output, if it has one
        self.is_plain = unit.is_plain and not self.guarded
        self.label = Label(self.id, lane.id, _ids(self.out.now), _ids(self.out.later))
        self.is_isolated = False
        self.last_epoch_id = 0  # in which it last ran
        self.converged: str | None = None  # what it told its loop
        self.residual: float | None = None
        # what the run counts
        self.completed = self.failed = self.retries = 0
        self.busy_s = 0.0
        self.cancellations_requested = self.cancellations_observed = self.budgets_exceeded = 0

    def __repr__(self) -> str:
        return f"Node({self.id!r})"

    @property
    def executed(self) -> int:
        """How many invocations it had."""
        return self.completed + self.failed

    def isolate(self) -> None:
        """Take the component out of the run: it is never ready again, and nothing is kept for it."""
        self.is_isolated = True
        for channel in self.channels:
            channel.close()


def _guards(channel: Channel) -> bool:
    return channel.room() is not None


def _ids(channels: Sequence[Channel]) -> tuple[str, ...]:
    return tuple(channel.id for channel in channels)


def check_room(node: Node, publications: Sequence[Publication]) -> None:
    """Refuse to commit anything of an invocation when a part of it would be refused with an error."""
    wanted: Counter[Channel] = Counter()
    for publication in publications:
        route = node.routes.get(publication.port)
        wanted.update(route.now if route else ())
    for channel, count in wanted.items():
        room = channel.room()
        if room is not None and count > room:
            raise ChannelFull(f"edge {channel.id}: {max(room, 0)} more fit, and nothing may be lost on it")


def publish(route: Route, payload: Any, origin: Origin, timestamp_ms: float | None = None) -> None:
    """Put a payload on every edge of a route."""
    for channel in route.now:
        channel.put(payload, origin, timestamp_ms)
    for channel in route.later:
        route.into.append(Deferred(channel, channel.copied(payload), origin, timestamp_ms))

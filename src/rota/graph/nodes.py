"""Nodes: a component in a run, with its code, its channels and the routes of its publications.

A `Node` joins the plan's data about a component with the objects that exist only while the graph runs. A `Route` is the
way out of one output port: which edges see a message immediately, and where publications for the other edges wait. An
ordinary component's immediate edges see a message immediately, the others at the next epoch boundary. A member of a
loop publishes to the other members immediately and to everything else when the loop has ended. On an independent lane
only edges inside the lane are immediate. The publishing code is the same in all cases.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from rota.graph.calling import BoundComponent
from rota.graph.channels import ChannelFull, MessageChannel
from rota.graph.invocation import Publication
from rota.graph.mapping import MapOver
from rota.graph.messages import Origin
from rota.graph.plan import Lane
from rota.graph.reports import Reports
from rota.graph.spec import ComponentSpec
from rota.graph.tracing import RowLabel
from rota.graph.triggers import ComponentTrigger

__all__ = [
    "OUTBOX_MAX",
    "DeferredPublication",
    "DeferredTarget",
    "Node",
    "PublicationOutbox",
    "Route",
    "check_room",
    "has_room",
    "publish",
]


OUTBOX_MAX = 100_000  # publications of independent lanes, tasks and hosts that may wait for one epoch boundary


class DeferredPublication(NamedTuple):
    """A publication that waits to be committed."""

    channel: MessageChannel
    payload: Any  # already copied if the edge copies
    origin: Origin
    timestamp_ms: float | None


class PublicationOutbox:
    """Publications of other threads that wait for the next epoch boundary; those over `capacity` are rejected."""

    def __init__(self, reports: Reports, capacity: int = OUTBOX_MAX) -> None:
        self._reports = reports
        self._capacity = capacity
        self._waiting: deque[DeferredPublication] = deque()
        self.rejected = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[DeferredPublication]:
        return iter(tuple(self._waiting))

    def append(self, deferred: DeferredPublication) -> None:
        """Add a publication; any thread may call this."""
        if len(self._waiting) < self._capacity:
            self._waiting.append(deferred)
            return
        self.rejected += 1
        if self.rejected == 1:  # reported once, counted always
            message = f"{self._capacity} publications already wait for the next epoch; more are rejected"
            self._reports.health("outbox_reject", message, channel_id=deferred.channel.id)

    def take(self) -> list[DeferredPublication]:
        """Remove and return what waits now; later publications wait for the next boundary."""
        return [self._waiting.popleft() for _ in range(len(self._waiting))]


DeferredTarget: TypeAlias = list[DeferredPublication] | PublicationOutbox


class Route:
    """The way out of one output port."""

    __slots__ = ("deferred", "immediate", "target")

    def __init__(
        self, immediate: Sequence[MessageChannel], deferred: Sequence[MessageChannel], target: DeferredTarget
    ) -> None:
        self.immediate = tuple(immediate)  # edges that see a message immediately
        self.deferred = tuple(deferred)  # edges that see it when `target` is committed
        self.target = target


NO_ROUTE = Route((), (), [])


class Node:
    """One component in one run."""

    def __init__(
        self,
        spec: ComponentSpec,
        lane: Lane,
        component: BoundComponent,
        *,
        channels: Sequence[MessageChannel],
        trigger: ComponentTrigger,
        routes: Mapping[str, Route],
    ) -> None:
        self.id = spec.id
        self.spec = spec
        self.lane = lane
        self.component = component
        self.channels = tuple(channels)
        self.trigger = trigger
        self.routes = dict(routes)
        self.rank = spec.execution.rank
        outgoing = [channel for route in self.routes.values() for channel in (*route.immediate, *route.deferred)]
        self.keeps_order = not outgoing or any(channel.keeps_order for channel in outgoing)  # of results of entries
        self.reentrant = spec.execution.reentrant
        self.on_error = spec.execution.on_error
        self.timeout_s = spec.execution.timeout_ms / 1000
        self.must_check_room = any(_may_refuse(channel) for route in routes.values() for channel in route.immediate)
        self.output_route = self.routes.get(component.output or "", NO_ROUTE)  # of its only output, if it has one
        self.map_over = _map_over(spec, component)
        self.is_plain = component.is_plain and not self.must_check_room and self.map_over is None
        self.label = RowLabel(self.id, lane.id, _ids(self.output_route.immediate), _ids(self.output_route.deferred))
        self.over_budget_route: Route | None = None  # of the edge that on_over_budget names
        self.holds_messages = trigger.holds_messages or trigger.unwrapped.holds_messages
        self.is_isolated = False
        self.last_epoch_id = 0  # the last epoch in which it ran
        self.converged: str | None = None  # what it reported to its loop
        self.residual: float | None = None
        # counters
        self.completed = self.failed = self.retries = self.rejected = 0
        self.suppressions = 0  # steps in which messages waited and the trigger was not ready
        self.busy_s = 0.0
        self.cancellations_requested = self.cancellations_observed = self.budgets_exceeded = 0

    def __repr__(self) -> str:
        return f"Node({self.id!r})"

    @property
    def executed(self) -> int:
        """The number of invocations so far."""
        return self.completed + self.failed

    def isolate(self) -> None:
        """Remove the component from the run: it is never ready again, and its messages are dropped."""
        self.is_isolated = True
        for channel in self.channels:
            channel.close()


def _map_over(spec: ComponentSpec, component: BoundComponent) -> MapOver | None:
    port, items_max = spec.execution.map_over, spec.execution.map_max
    return MapOver(spec.id, port, items_max, component.channel_ports) if port else None


def _may_refuse(channel: MessageChannel) -> bool:
    return channel.room() is not None


def _ids(channels: Sequence[MessageChannel]) -> tuple[str, ...]:
    return tuple(channel.id for channel in channels)


def check_room(node: Node, publications: Sequence[Publication]) -> None:
    """Raise, before anything is committed, if a part of an invocation's publications would be refused with an error."""
    wanted: Counter[MessageChannel] = Counter()
    for publication in publications:
        route = node.routes.get(publication.port)
        wanted.update(route.immediate if route else ())
    for channel, count in wanted.items():
        room = channel.room()
        if room is not None and count > room:
            raise ChannelFull(
                f"edge {channel.id} has room for {max(room, 0)} of {count} messages, and the edge allows no loss"
            )


def has_room(node: Node, publications: Sequence[Publication], coming: Counter[MessageChannel]) -> bool:
    """Whether durable edges can hold the publications of an entry, besides those that are `coming`; adds them if so.

    An edge that is empty accepts anything: what does not even fit there is an error of the component.
    """
    wanted: Counter[MessageChannel] = Counter()
    for publication in publications:
        route = node.routes.get(publication.port)
        wanted.update(route.deferred if route else ())
    for channel, count in wanted.items():
        room = channel.room()
        is_empty = not len(channel) and not coming[channel]
        if channel.is_durable and room is not None and room - coming[channel] < count and not is_empty:
            return False
    coming.update(wanted)
    return True


def publish(route: Route, payload: Any, origin: Origin, timestamp_ms: float | None = None) -> None:
    """Put a payload on every edge of a route."""
    for channel in route.immediate:
        channel.put(payload, origin, timestamp_ms)
    for channel in route.deferred:
        route.target.append(DeferredPublication(channel, channel.copy_payload(payload), origin, timestamp_ms))

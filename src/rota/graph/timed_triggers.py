"""Triggers that depend on time: alignment, batches, watermarks and rate limits. `triggers` explains the terms.

Timestamps are event times, set by the publisher in the timestamp domain of the edge. Ages are measured on the run's own
clock since publication.

A watermark states that no earlier message is expected. In each domain it is the highest timestamp seen minus the
allowed lateness. With a lateness of 10:

    arrives    100   95   112            88
    watermark   90   90   102           102
    released     –    –   95, 100        88 is late: dropped and counted
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import msgspec

from rota.graph.channels import MessageChannel
from rota.graph.components import EVENT_PORTS
from rota.graph.messages import Inputs, Message
from rota.graph.spec import ComponentSpec, TriggerPolicy
from rota.graph.triggers import (
    AllInputs,
    AnyInput,
    ComponentTrigger,
    OnEvent,
    SimulatedTime,
    Times,
    TimestampedOnly,
    WrappedTrigger,
)

__all__ = ["Batched", "LimitedTrigger", "TimeSync", "Watermark", "WatermarkState", "event_ports", "make_trigger"]

BUFFERED_EXTRA = 16  # messages a watermark may hold beyond the capacity of its channels


class TimeSync(AllInputs):
    """Ready with one message from each input, whose timestamps differ by at most `slop_ms`."""

    def __init__(self, channels: Sequence[MessageChannel], listed: Sequence[int], slop_ms: float) -> None:
        super().__init__(channels, listed)
        self._slop_ms = slop_ms
        self._drops = 0

    def counts(self) -> dict[str, int]:
        """Return how many messages were dropped because no other input had a close timestamp."""
        return {"time_sync_drop_count": self._drops}

    def next(self, now_s: float, iteration_id: int, /) -> Inputs | None:
        """Drop messages that are too old for the other inputs, then return one message from each."""
        while self._all_present(now_s):
            stamps = [(self._stamp(channel, now_s), position) for position, channel in enumerate(self.woken_by)]
            known = [(stamp, position) for stamp, position in stamps if stamp is not None]
            if len(known) < len(stamps) or max(known)[0] - min(known)[0] <= self._slop_ms:
                return super().next(now_s, iteration_id)
            oldest = self.woken_by[min(known)[1]]
            if not oldest.items:  # a kept value cannot be dropped, only replaced
                return None
            self._drops += 1
            oldest.drop_front("no message of the other inputs has a timestamp close enough")
        return None

    def _stamp(self, channel: MessageChannel, now_s: float) -> float | None:
        message = channel.peek(now_s)
        return None if message is None else message.timestamp_ms


class Batched(ComponentTrigger):
    """Ready with `size` messages, or with all that arrived within the window; counted over all listed inputs."""

    holds_messages = True

    def __init__(self, channels: Sequence[MessageChannel], listed: Sequence[int], size: int, window_s: float) -> None:
        super().__init__(channels, listed)
        self._size = size
        self._window_s = window_s
        self._batches = 0
        self.is_timed = self.is_timed or window_s > 0

    def counts(self) -> dict[str, int]:
        """Return how many batches were released."""
        return {"batch_flush_count": self._batches}

    def next(self, now_s: float, _iteration_id: int, /) -> Inputs | None:
        """Return a full batch, or an incomplete one whose window has ended."""
        fronts = [channel.items[0] for channel in self.woken_by if channel.peek(now_s) and channel.items]
        waiting = sum(len(channel) for channel in self.woken_by)
        if self._size and waiting >= self._size:
            return self._batch(now_s, self._size)
        if self._window_s and fronts and self._is_over(fronts, now_s):
            return self._batch(now_s, waiting)
        return None

    def _is_over(self, fronts: Sequence[Message], now_s: float) -> bool:
        return now_s >= self._over_at_s(fronts)

    def _over_at_s(self, fronts: Sequence[Message]) -> float:
        return min(message.origin.published_at_s for message in fronts) + self._window_s

    def due_at_s(self, _now_s: float, *, timers: bool = True) -> float:  # noqa: ARG002  # it has no timer
        """Return when the window of the waiting messages ends."""
        fronts = [channel.items[0] for channel in self.woken_by if channel.items] if self._window_s else []
        return self._over_at_s(fronts) if fronts else math.inf

    def _batch(self, now_s: float, size: int) -> Inputs:
        self._batches += 1
        inputs = self._side_inputs(now_s)
        for position, channel in zip(self.listed, self.woken_by, strict=True):
            taken = channel.take_up_to(now_s, size)
            inputs[position] = taken
            size -= len(taken)
        return tuple(inputs)


class WatermarkState(msgspec.Struct, frozen=True):
    """What a watermark trigger holds and has seen, as a checkpoint stores it."""

    highest_ms: dict[str, float]  # by timestamp domain
    held: tuple[tuple[int, Message], ...]  # the position of its channel, and the message


class Watermark(ComponentTrigger):
    """Ready with each message in order of timestamps, once no earlier message is expected."""

    holds_messages = True

    def __init__(self, channels: Sequence[MessageChannel], listed: Sequence[int], lateness_ms: float) -> None:
        super().__init__(channels, listed)
        self._lateness_ms = lateness_ms
        self._domains: dict[str, _Domain] = {channel.domain: _Domain() for channel in self.woken_by}
        self._arrivals = self._late = 0
        self._room = sum(channel.capacity for channel in self.woken_by) + BUFFERED_EXTRA

    def next(self, now_s: float, _iteration_id: int, /) -> Inputs | None:
        """Return the earliest message at or below the watermark of its domain."""
        self._hold_arrived(now_s)
        due = [domain for domain in self._domains.values() if domain.is_due(self._lateness_ms)]
        if not due:
            return None
        first = min(due, key=lambda domain: domain.held[0])
        _, _, position, message = heappop(first.held)
        inputs = self._side_inputs(now_s)
        inputs[position] = message
        return tuple(inputs)

    def counts(self) -> dict[str, int]:
        """Return how many messages arrived too late."""
        return {"late_drop_count": self._late}

    @property
    def may_be_ready(self) -> bool:
        """True also while messages are held."""
        return super().may_be_ready or any(domain.held for domain in self._domains.values())

    def drop_older(self, than_s: float, now_s: float) -> None:
        """Drop messages that have waited longer than `than_s`, held or not."""
        super().drop_older(than_s, now_s)
        for domain in self._domains.values():
            old = [held for held in domain.held if now_s - held.message.origin.published_at_s > than_s]
            for held in old:
                domain.held.remove(held)
                self.channels[held.position].stale_drops += 1
            heapify(domain.held)

    def state(self) -> WatermarkState:
        """Return what it holds and has seen, for a checkpoint."""
        held = [each for domain in self._domains.values() for each in domain.held]
        highest = {name: domain.highest_ms for name, domain in self._domains.items() if domain.highest_ms > -math.inf}
        return WatermarkState(highest, tuple((each.position, each.message) for each in sorted(held)))

    def restore(self, state: WatermarkState) -> None:
        """Continue from a checkpoint."""
        for name, highest_ms in state.highest_ms.items():
            self._domains[name].highest_ms = highest_ms
        for position, message in state.held:
            self._hold(position, self._domains[self.channels[position].domain], message)

    def _hold_arrived(self, now_s: float) -> None:
        """Move arrived messages to the held ones, as far as there is room."""
        for position, channel in zip(self.listed, self.woken_by, strict=True):
            while channel.peek(now_s) is not None and channel.items:
                if sum(len(domain.held) for domain in self._domains.values()) >= self._room:
                    return
                self._accept(position, channel, now_s)

    def _accept(self, position: int, channel: MessageChannel, now_s: float) -> None:
        domain, stamp = self._domains[channel.domain], channel.items[0].timestamp_ms
        if stamp is not None and stamp < domain.highest_ms - self._lateness_ms:
            self._late += 1
            channel.drop_front(f"its timestamp {stamp} is below the watermark")
            return
        message = channel.take(now_s)
        if message is not None:
            self._hold(position, domain, message)

    def _hold(self, position: int, domain: _Domain, message: Message) -> None:
        # a message without a timestamp has no place in the order, so it does not wait
        stamp = -math.inf if message.timestamp_ms is None else message.timestamp_ms
        self._arrivals += 1
        heappush(domain.held, _Held(stamp, self._arrivals, position, message))
        domain.highest_ms = max(domain.highest_ms, stamp)


class _Held(NamedTuple):
    """A message that is held until the watermark passes it."""

    timestamp_ms: float
    arrival: int  # unique, so the messages themselves are never compared
    position: int
    message: Message


class _Domain:
    """One timestamp domain: the highest timestamp seen and the held messages."""

    def __init__(self) -> None:
        self.highest_ms = -math.inf
        self.held: list[_Held] = []

    def is_due(self, lateness_ms: float) -> bool:
        """Return whether the earliest held message is at or below the watermark."""
        if not self.held:
            return False
        earliest_ms = self.held[0].timestamp_ms
        return earliest_ms == -math.inf or earliest_ms <= self.highest_ms - lateness_ms


class LimitedTrigger(WrappedTrigger):
    """Limits around another trigger: merge waiting messages, drop old ones, enforce a minimum interval."""

    def __init__(self, inner: ComponentTrigger, policy: TriggerPolicy) -> None:
        super().__init__(inner)
        self._coalesce = policy.coalesce or policy.type == "debounce"
        self._max_latency_s = policy.max_latency_ms / 1000
        self._min_interval_s = policy.min_interval_ms / 1000
        self._triggered_at_s = -math.inf
        self._is_limited = False  # whether the interval kept back what may be ready
        self._merged = self._too_old = self._limited = 0
        self.holds_messages = True
        self.every_iteration = inner.every_iteration and not policy.min_interval_ms
        self.is_timed = inner.is_timed or bool(policy.max_latency_ms or policy.min_interval_ms)

    def next(self, now_s: float, iteration_id: int, /) -> Inputs | None:
        """Return what the inner trigger returns, if the limits allow an invocation now."""
        if self._max_latency_s:
            before = self._total("stale_drops")
            self._inner.drop_older(self._max_latency_s, now_s)
            self._too_old += self._total("stale_drops") - before
        if self._coalesce:
            before = self._total("overwrites")
            self._inner.keep_newest()
            self._merged += self._total("overwrites") - before
        if now_s < self._triggered_at_s + self._min_interval_s:
            self._is_limited = self._inner.may_be_ready
            self._limited += self._is_limited
            return None
        self._is_limited = False
        inputs = self._inner.next(now_s, iteration_id)
        if inputs is not None and self._min_interval_s:
            self._triggered_at_s = now_s
        return inputs

    def times(self) -> Times:
        """Return when its interval began, and the times of the inner trigger."""
        return (None if self._triggered_at_s == -math.inf else self._triggered_at_s, *self._inner.times())

    def restore_times(self, times: Times) -> None:
        """Go on with its interval."""
        began_at_s, *inner = times or (None,)
        self._triggered_at_s = -math.inf if began_at_s is None else began_at_s
        self._inner.restore_times(tuple(inner))

    def _total(self, count: str) -> int:
        return sum(getattr(channel, count) for channel in self.woken_by)

    def counts(self) -> dict[str, int]:
        """Return what the limits and the inner trigger did to messages."""
        counts = self._inner.counts()
        if self._coalesce:
            counts["coalesced_count"] = self._merged
        if self._max_latency_s:
            counts["timeout_drop_count"] = self._too_old
        if self._min_interval_s:
            counts["rate_limit_suppressed_count"] = self._limited
        return counts

    def due_at_s(self, now_s: float, *, timers: bool = True) -> float:
        """Return when the interval ends, if it keeps something back; else when the inner trigger is due."""
        inner_s = self._inner.due_at_s(now_s, timers=timers)
        if not self._is_limited:
            return inner_s
        allowed_s = self._triggered_at_s + self._min_interval_s
        if any(channel.items for channel in self.woken_by):
            return allowed_s
        if self._inner.every_iteration:
            return allowed_s if timers else math.inf
        return max(allowed_s, inner_s)


# --- from the graph file -------------------------------------------------------------------------


def event_ports(spec: ComponentSpec) -> tuple[str, ...]:
    """Return the kinds of outside events that a component receives, in a fixed order."""
    named = {source.type for source in spec.event_sources} | {spec.trigger_policy.type}
    return tuple(port for port in EVENT_PORTS if port in named)


def make_trigger(
    spec: ComponentSpec, channels: Sequence[MessageChannel], simulated: SimulatedTime | None = None
) -> ComponentTrigger:
    """Return the trigger that a component's specification asks for; its timers follow `simulated` time if given."""
    policy = spec.trigger_policy
    inner = _inner_trigger(spec, channels, simulated)
    limited = policy.coalesce or policy.max_latency_ms or policy.min_interval_ms or policy.type == "debounce"
    return LimitedTrigger(inner, policy) if limited else inner


def _inner_trigger(
    spec: ComponentSpec, channels: Sequence[MessageChannel], simulated: SimulatedTime | None
) -> ComponentTrigger:
    policy = spec.trigger_policy
    if policy.type == "manual" or (policy.type == "on_event" and not policy.ports):
        return OnEvent(channels, _source_positions(spec, channels), spec.event_sources, simulated)
    listed = _listed(spec, channels)
    make = _TIMED.get(policy.type)
    if make is not None:
        return make(channels, listed, policy)
    if policy.type == "all_inputs" or policy.condition == "all_inputs_ready":
        return AllInputs(channels, listed)
    if policy.condition == "event_timestamp_present":
        return TimestampedOnly(channels, listed)
    return AnyInput(channels, listed)


_TIMED: Mapping[str, Callable[[Sequence[MessageChannel], Sequence[int], TriggerPolicy], ComponentTrigger]] = {
    "time_sync": lambda channels, listed, policy: TimeSync(channels, listed, policy.sync_slop_ms),
    "batch": lambda channels, listed, policy: Batched(
        channels, listed, policy.batch_size, policy.batch_window_ms / 1000
    ),
    "watermark": lambda channels, listed, policy: Watermark(channels, listed, policy.watermark_lateness_ms),
}


def _listed(spec: ComponentSpec, channels: Sequence[MessageChannel]) -> list[int]:
    """Return the positions of the triggering channels: those the trigger names, else those of its sources, else all."""
    policy = spec.trigger_policy
    ports = policy.ports or tuple(port for source in spec.event_sources for port in source.ports)
    if policy.type in EVENT_PORTS:  # outside events always count; the listed inputs deliver the same kind of event
        return [position for position, channel in enumerate(channels) if channel.port in (*EVENT_PORTS, *ports)]
    if ports:
        return [position for position, channel in enumerate(channels) if channel.port in ports]
    return [position for position, channel in enumerate(channels) if channel.port not in EVENT_PORTS]


def _source_positions(spec: ComponentSpec, channels: Sequence[MessageChannel]) -> list[int]:
    """Return the positions of the channels that a component's event sources name."""
    positions: list[int] = []
    for source in spec.event_sources:
        ports = (source.type, *source.ports) if source.type in EVENT_PORTS else source.ports
        for position, channel in enumerate(channels):
            any_message = source.type == "message" and not ports and channel.port not in EVENT_PORTS
            if (channel.port in ports or any_message) and position not in positions:
                positions.append(position)
    return positions

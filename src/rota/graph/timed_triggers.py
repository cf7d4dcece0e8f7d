"""Triggers that weigh time: alignment, batches, watermarks and limits on how often. See `triggers` for the words.

Timestamps are event times, given by whoever publishes, in the domain that the edge names. Ages are measured by the
run's own clock from the moment of publication.

A watermark says: nothing earlier is expected any more. In each domain it is the highest timestamp seen, less the
lateness that is forgiven. With a lateness of 10:

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

from rota.graph.channels import Channel
from rota.graph.components import EVENT_PORTS
from rota.graph.messages import Inputs, Message
from rota.graph.spec import ComponentSpec, TriggerPolicy
from rota.graph.triggers import AllInputs, AnyInput, OnEvent, TimestampedOnly, Trigger

__all__ = ["Batched", "Gate", "TimeSync", "Watermark", "WatermarkState", "make_trigger", "outside_ports"]

BUFFERED_EXTRA = 16  # messages a watermark may hold back beyond what its channels hold


class TimeSync(AllInputs):
    """One message from each input, of timestamps that lie together."""

    def __init__(self, channels: Sequence[Channel], listed: Sequence[int], slop_ms: float) -> None:
        super().__init__(channels, listed)
        self._slop_ms = slop_ms

    def next(self, now_s: float, turn: int, /) -> Inputs | None:
        """One from each, after the samples that are too old for the others were dropped."""
        while self._all_there(now_s):
            stamps = [(self._stamp(channel, now_s), at) for at, channel in enumerate(self.woken_by)]
            known = [(stamp, at) for stamp, at in stamps if stamp is not None]
            if len(known) < len(stamps) or max(known)[0] - min(known)[0] <= self._slop_ms:
                return super().next(now_s, turn)
            oldest = self.woken_by[min(known)[1]]
            if not oldest.items:  # a kept value: it cannot be dropped, only replaced
                return None
            oldest.drop_front("no sample of the other inputs lies close enough")
        return None

    def _stamp(self, channel: Channel, now_s: float) -> float | None:
        message = channel.front(now_s)
        return None if message is None else message.timestamp_ms


class Batched(Trigger):
    """So many messages at once, or what came in so long a time; counted over all listed inputs."""

    def __init__(self, channels: Sequence[Channel], listed: Sequence[int], size: int, window_s: float) -> None:
        super().__init__(channels, listed)
        self._size = size
        self._window_s = window_s
        self.is_timed = self.is_timed or window_s > 0

    def next(self, now_s: float, _turn: int, /) -> Inputs | None:
        """A full batch, or one whose time is up."""
        fronts = [channel.items[0] for channel in self.woken_by if channel.front(now_s) and channel.items]
        waiting = sum(len(channel) for channel in self.woken_by)
        if self._size and waiting >= self._size:
            return self._batch(now_s, self._size)
        if self._window_s and fronts and self._is_over(fronts, now_s):
            return self._batch(now_s, waiting)
        return None

    def _is_over(self, fronts: Sequence[Message], now_s: float) -> bool:
        return now_s - min(message.origin.published_at_s for message in fronts) >= self._window_s

    def _batch(self, now_s: float, size: int) -> Inputs:
        inputs = self._beside_inputs(now_s)
        for at, channel in zip(self.listed, self.woken_by, strict=True):
            taken = channel.take_all(now_s, size)
            inputs[at] = taken
            size -= len(taken)
        return tuple(inputs)


class WatermarkState(msgspec.Struct, frozen=True):
    """What a watermark holds back and has seen."""

    highest_ms: dict[str, float]  # by timestamp domain
    held: tuple[tuple[int, Message], ...]  # the place of its channel, and the message


class Watermark(Trigger):
    """In the order of timestamps, once nothing earlier is expected any more."""

    def __init__(self, channels: Sequence[Channel], listed: Sequence[int], lateness_ms: float) -> None:
        super().__init__(channels, listed)
        self._lateness_ms = lateness_ms
        self._domains: dict[str, _Domain] = {channel.domain: _Domain() for channel in self.woken_by}
        self._arrivals = 0
        self._room = sum(channel.capacity for channel in self.woken_by) + BUFFERED_EXTRA

    def next(self, now_s: float, _turn: int, /) -> Inputs | None:
        """The earliest message below the watermark of its domain."""
        self._hold_back(now_s)
        due = [domain for domain in self._domains.values() if domain.is_due(self._lateness_ms)]
        if not due:
            return None
        first = min(due, key=lambda domain: domain.held[0])
        _, _, at, message = heappop(first.held)
        inputs = self._beside_inputs(now_s)
        inputs[at] = message
        return tuple(inputs)

    @property
    def may_be_ready(self) -> bool:
        """Also while messages are held back."""
        return super().may_be_ready or any(domain.held for domain in self._domains.values())

    def drop_older(self, than_s: float, now_s: float) -> None:
        """Drop what has waited longer than this, held back or not."""
        super().drop_older(than_s, now_s)
        for domain in self._domains.values():
            old = [held for held in domain.held if now_s - held.message.origin.published_at_s > than_s]
            for held in old:
                domain.held.remove(held)
                self.channels[held.at].stale_drops += 1
            heapify(domain.held)

    def state(self) -> WatermarkState:
        """What it holds back and has seen, to be stored."""
        held = [each for domain in self._domains.values() for each in domain.held]
        highest = {name: domain.highest_ms for name, domain in self._domains.items() if domain.highest_ms > -math.inf}
        return WatermarkState(highest, tuple((each.at, each.message) for each in sorted(held)))

    def restore(self, state: WatermarkState) -> None:
        """Go on from what was stored."""
        for name, highest_ms in state.highest_ms.items():
            self._domains[name].highest_ms = highest_ms
        for at, message in state.held:
            self._hold(at, self._domains[self.channels[at].domain], message)

    def _hold_back(self, now_s: float) -> None:
        """Move what arrived to the messages held back, as far as there is room."""
        for at, channel in zip(self.listed, self.woken_by, strict=True):
            while channel.front(now_s) is not None and channel.items:
                if sum(len(domain.held) for domain in self._domains.values()) >= self._room:
                    return
                self._admit(at, channel, now_s)

    def _admit(self, at: int, channel: Channel, now_s: float) -> None:
        domain, stamp = self._domains[channel.domain], channel.items[0].timestamp_ms
        if stamp is not None and stamp < domain.highest_ms - self._lateness_ms:
            channel.drop_front(f"its timestamp {stamp} is below the watermark")
            return
        message = channel.take(now_s)
        if message is not None:
            self._hold(at, domain, message)

    def _hold(self, at: int, domain: _Domain, message: Message) -> None:
        # without a timestamp nothing says when it happened: it does not wait
        stamp = -math.inf if message.timestamp_ms is None else message.timestamp_ms
        self._arrivals += 1
        heappush(domain.held, _Held(stamp, self._arrivals, at, message))
        domain.highest_ms = max(domain.highest_ms, stamp)


class _Held(NamedTuple):
    """A message held back until the watermark has passed it."""

    timestamp_ms: float
    arrival: int  # no two are equal, so the message itself is never compared
    at: int
    message: Message


class _Domain:
    """One clock's timestamps: the highest seen, and what is held back."""

    def __init__(self) -> None:
        self.highest_ms = -math.inf
        self.held: list[_Held] = []

    def is_due(self, lateness_ms: float) -> bool:
        """Whether the earliest message held back lies at the watermark or below."""
        if not self.held:
            return False
        earliest_ms = self.held[0].timestamp_ms
        return earliest_ms == -math.inf or earliest_ms <= self.highest_ms - lateness_ms


class Gate(Trigger):
    """Limits around another trigger: merge, forget what is too old, admit one in so long a time."""

    def __init__(self, inner: Trigger, policy: TriggerPolicy) -> None:
        super().__init__(inner.channels, inner.listed)
        self._inner = inner
        self._coalesce = policy.coalesce or policy.type == "debounce"
        self._max_latency_s = policy.max_latency_ms / 1000
        self._min_interval_s = policy.min_interval_ms / 1000
        self._admitted_at_s = -math.inf
        self.fills = inner.fills
        self.wakes_itself = inner.wakes_itself
        self.is_timed = inner.is_timed or bool(policy.max_latency_ms or policy.min_interval_ms)

    @property
    def innermost(self) -> Trigger:
        """The trigger that these limits are around."""
        return self._inner

    @property
    def may_be_ready(self) -> bool:
        """As the inner trigger."""
        return self._inner.may_be_ready

    def next(self, now_s: float, turn: int, /) -> Inputs | None:
        """What the inner trigger gives, if it may run now."""
        if self._max_latency_s:
            self._inner.drop_older(self._max_latency_s, now_s)
        if self._coalesce:
            self._inner.keep_newest()
        if now_s - self._admitted_at_s < self._min_interval_s:
            return None
        inputs = self._inner.next(now_s, turn)
        if inputs is not None and self._min_interval_s:
            self._admitted_at_s = now_s
        return inputs


# --- from the graph file -------------------------------------------------------------------------


def outside_ports(spec: ComponentSpec) -> tuple[str, ...]:
    """The kinds of event that reach a component from outside the edges, in a fixed order."""
    named = {source.type for source in spec.event_sources} | {spec.trigger_policy.type}
    return tuple(port for port in EVENT_PORTS if port in named)


def make_trigger(spec: ComponentSpec, channels: Sequence[Channel]) -> Trigger:
    """The trigger that a component's entry in the graph file asks for."""
    policy = spec.trigger_policy
    inner = _inner_trigger(spec, channels)
    limited = policy.coalesce or policy.max_latency_ms or policy.min_interval_ms or policy.type == "debounce"
    return Gate(inner, policy) if limited else inner


def _inner_trigger(spec: ComponentSpec, channels: Sequence[Channel]) -> Trigger:
    policy = spec.trigger_policy
    if policy.type == "manual" or (policy.type == "on_event" and not policy.ports):
        return OnEvent(channels, _woken_by_sources(spec, channels), spec.event_sources)
    listed = _listed(spec, channels)
    make = _TIMED.get(policy.type)
    if make is not None:
        return make(channels, listed, policy)
    if policy.type == "all_inputs" or policy.condition == "all_inputs_ready":
        return AllInputs(channels, listed)
    if policy.condition == "event_timestamp_present":
        return TimestampedOnly(channels, listed)
    return AnyInput(channels, listed)


_TIMED: Mapping[str, Callable[[Sequence[Channel], Sequence[int], TriggerPolicy], Trigger]] = {
    "time_sync": lambda channels, listed, policy: TimeSync(channels, listed, policy.sync_slop_ms),
    "batch": lambda channels, listed, policy: Batched(
        channels, listed, policy.batch_size, policy.batch_window_ms / 1000
    ),
    "watermark": lambda channels, listed, policy: Watermark(channels, listed, policy.watermark_lateness_ms),
}


def _listed(spec: ComponentSpec, channels: Sequence[Channel]) -> list[int]:
    """The places of the channels that drive a component: those its trigger names, else its sources, else all."""
    policy = spec.trigger_policy
    if policy.type in EVENT_PORTS:
        return [at for at, channel in enumerate(channels) if channel.port in EVENT_PORTS]
    ports = policy.ports or tuple(port for source in spec.event_sources for port in source.ports)
    if ports:
        return [at for at, channel in enumerate(channels) if channel.port in ports]
    return [at for at, channel in enumerate(channels) if channel.port not in EVENT_PORTS]


def _woken_by_sources(spec: ComponentSpec, channels: Sequence[Channel]) -> list[int]:
    """The places of the channels that a component's event sources name."""
    woken: list[int] = []
    for source in spec.event_sources:
        ports = (source.type,) if source.type in EVENT_PORTS else source.ports
        for at, channel in enumerate(channels):
            anything = source.type == "message" and not ports and channel.port not in EVENT_PORTS
            if (channel.port in ports or anything) and at not in woken:
                woken.append(at)
    return woken

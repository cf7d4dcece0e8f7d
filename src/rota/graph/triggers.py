"""Triggers: when a component is ready, and with which messages.

A trigger reads the component's channels and returns the inputs of one invocation, or None. Called until it returns None
it yields every invocation that is ready in this *iteration*: an epoch, an iteration of a loop, a tick of a lane with a
cadence, or a manual step.

    manual      once per iteration, with whatever waits
    on_event    once for each event of its sources: the iteration itself, a timer, a message, an outside event
    any_input   once for each waiting message
    all_inputs  one message from each input
    time_sync   like all_inputs, for messages with close timestamps; the oldest is dropped until they are close
    batch       `batch_size` messages together, or all that arrived within `batch_window_ms`
    watermark   in order of timestamps, once no earlier message is expected
    condition   all_inputs or any_input under another name, or only messages that carry a timestamp
    debounce    any_input, after each input was reduced to its newest message
    rate_limit  any_input, at most once per `min_interval_ms`
    request, task_ready   once for each request or finished task

Inputs are a tuple with one position for each channel of the component, in order. A channel that the trigger does not
list is a *side input*: it triggers nothing, and an invocation receives what it has. A kept value (state, latched)
triggers once and is passed again to later invocations. For all_inputs a kept value counts as present, but at least one
input must be new.

    all_inputs over `sample` (an event) and `limit` (state)      limit 5; sample 7; sample 8; limit 6
    invocations                                                       –    (7,5)     (8,5)      –
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from rota.graph.channels import MessageChannel
from rota.graph.messages import Inputs, Message
from rota.graph.spec import EventSource

__all__ = [
    "AllInputs",
    "AnyInput",
    "ComponentTrigger",
    "OnEvent",
    "PeriodicTimer",
    "SimulatedTime",
    "Times",
    "TimestampedOnly",
]


Times: TypeAlias = tuple[float | None, ...]  # on a monotonic clock; None: not yet


class ComponentTrigger:
    """Decides when a component runs. `listed` has the positions of the channels that can trigger it."""

    fills_every_input = False  # whether every invocation has exactly one message in each position
    is_timed = False  # whether `next` depends on the time
    ready_without_message = False  # whether it can be ready although no message waits
    every_iteration = False  # whether it is ready in every iteration
    holds_messages = False  # whether messages may wait although the component could take them

    def __init__(self, channels: Sequence[MessageChannel], listed: Sequence[int]) -> None:
        self.channels = tuple(channels)
        self.listed = tuple(listed)
        self.woken_by = tuple(self.channels[position] for position in listed)
        self.is_timed = any(channel.is_timed for channel in channels)
        triggering = frozenset(listed)
        self._is_side_input = tuple(position not in triggering for position in range(len(self.channels)))

    def next(self, now_s: float, iteration_id: int, /) -> Inputs | None:
        """Return the inputs of the next ready invocation; None if there is none in this iteration."""
        raise NotImplementedError

    def collect(self, now_s: float, iteration_id: int, /) -> list[Inputs]:
        """Return the inputs of every invocation that is ready in this iteration."""
        ready: list[Inputs] = []
        while (inputs := self.next(now_s, iteration_id)) is not None:
            ready.append(inputs)
        return ready

    @property
    def unwrapped(self) -> ComponentTrigger:
        """The trigger itself, without limits around it."""
        return self

    @property
    def may_be_ready(self) -> bool:
        """Whether calling `next` can have a result; False only if it would certainly return None."""
        return self.ready_without_message or any(channel.items for channel in self.woken_by)

    @property
    def waits_for_room(self) -> bool:
        """Whether it is ready and held back, because an edge behind the component is full."""
        return False

    def due_at_s(self, _now_s: float, *, timers: bool = True) -> float:  # noqa: ARG002  # for triggers with a timer
        """Return from when on time alone makes it ready: `-math.inf` for now, `math.inf` for never."""
        return math.inf

    def times(self) -> Times:
        """Return the times that it goes by, for a checkpoint: when its timers are due, when its rate began to count."""
        return ()

    def restore_times(self, times: Times) -> None:
        """Go on by the times of a checkpoint, on the clock of this process."""

    def counts(self) -> dict[str, int]:
        """Return what the trigger did to messages, by the name of the metric: only what its kind can do."""
        return {}

    def keep_newest(self) -> None:
        """Reduce each triggering input to its newest message."""
        for channel in self.woken_by:
            channel.keep_newest()

    def drop_older(self, than_s: float, now_s: float) -> None:
        """Drop messages that have waited longer than `than_s`."""
        for channel in self.woken_by:
            channel.drop_older(than_s, now_s)

    def _side_inputs(self, now_s: float) -> list[Message | tuple[Message, ...] | None]:
        """Return the inputs besides the cause: side inputs are read, kept values are passed again."""
        pairs = zip(self.channels, self._is_side_input, strict=True)
        return [channel.read(now_s) if is_side else channel.kept for channel, is_side in pairs]


class WrappedTrigger(ComponentTrigger):
    """A trigger around another one: it decides whether what is ready there may start."""

    def __init__(self, inner: ComponentTrigger) -> None:
        super().__init__(inner.channels, inner.listed)
        self._inner = inner
        self.fills_every_input = inner.fills_every_input
        self.ready_without_message = inner.ready_without_message
        self.every_iteration = inner.every_iteration
        self.holds_messages = inner.holds_messages
        self.is_timed = inner.is_timed

    @property
    def unwrapped(self) -> ComponentTrigger:
        """The trigger itself, without those around it."""
        return self._inner.unwrapped

    @property
    def may_be_ready(self) -> bool:
        """Whether the inner trigger may be ready."""
        return self._inner.may_be_ready

    @property
    def waits_for_room(self) -> bool:
        """Whether the inner trigger waits for room."""
        return self._inner.waits_for_room

    def times(self) -> Times:
        """Return the times that the inner trigger goes by."""
        return self._inner.times()

    def restore_times(self, times: Times) -> None:
        """Let the inner trigger go on by the times of a checkpoint."""
        self._inner.restore_times(times)

    def counts(self) -> dict[str, int]:
        """Return what the inner trigger did to messages."""
        return self._inner.counts()

    def keep_newest(self) -> None:
        """Reduce each triggering input to its newest message."""
        self._inner.keep_newest()

    def drop_older(self, than_s: float, now_s: float) -> None:
        """Drop messages that have waited longer than `than_s`."""
        self._inner.drop_older(than_s, now_s)


class AnyInput(ComponentTrigger):
    """Ready once for each waiting message."""

    def __init__(self, channels: Sequence[MessageChannel], listed: Sequence[int]) -> None:
        super().__init__(channels, listed)
        self.fills_every_input = len(self.channels) == 1 and len(self.listed) == 1

    def collect(self, now_s: float, iteration_id: int, /) -> list[Inputs]:
        """Return the inputs of every invocation that is ready in this iteration."""
        if not self.fills_every_input:
            return super().collect(now_s, iteration_id)
        channel = self.woken_by[0]  # the common case, without `next`
        ready: list[Inputs] = []
        while channel.items and (message := channel.take(now_s)) is not None:
            ready.append((message,))
        return ready

    def next(self, now_s: float, _iteration_id: int, /) -> Inputs | None:
        """Return the next message of the first input that has one."""
        for position, channel in zip(self.listed, self.woken_by, strict=True):
            message = channel.take(now_s)
            if message is not None:
                if self.fills_every_input:
                    return (message,)
                inputs = self._side_inputs(now_s)
                inputs[position] = message
                return tuple(inputs)
        return None


class TimestampedOnly(AnyInput):
    """Ready once for each waiting message with a timestamp; other messages are dropped."""

    def collect(self, now_s: float, iteration_id: int, /) -> list[Inputs]:
        """Collect one by one: each message must be inspected."""
        return ComponentTrigger.collect(self, now_s, iteration_id)

    def next(self, now_s: float, iteration_id: int, /) -> Inputs | None:
        """Return the next message that has a timestamp."""
        for channel in self.woken_by:
            while channel.items and channel.items[0].timestamp_ms is None:
                channel.drop_front("it carries no timestamp")
        return super().next(now_s, iteration_id)


class AllInputs(ComponentTrigger):
    """Ready with one message from each input."""

    holds_messages = True

    def __init__(self, channels: Sequence[MessageChannel], listed: Sequence[int]) -> None:
        super().__init__(channels, listed)
        self.fills_every_input = len(self.listed) == len(self.channels)

    def next(self, now_s: float, _iteration_id: int, /) -> Inputs | None:
        """Return one message from each input, if every input has one and at least one of them is new."""
        if not self._all_present(now_s):
            return None
        return tuple([channel.read(now_s) for channel in self.channels])

    def _all_present(self, now_s: float) -> bool:
        new = False
        for channel in self.woken_by:
            if channel.peek(now_s) is None:
                return False
            new = new or bool(channel.items)
        return new


class PeriodicTimer:
    """A timer that is due immediately and then once per period. Missed ticks are merged into one."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._due_at_s: float | None = None

    @property
    def due_at_s(self) -> float:
        """When the next tick is due; `-math.inf` before the first."""
        return -math.inf if self._due_at_s is None else self._due_at_s

    def restore(self, due_at_s: float | None) -> None:
        """Go on with the next tick at this time."""
        self._due_at_s = due_at_s

    def is_due(self, now_s: float) -> bool:
        """Return whether a tick is due, and consume it."""
        if self._due_at_s is None:
            self._due_at_s = now_s
        if now_s < self._due_at_s:
            return False
        missed = (now_s - self._due_at_s) // self._period_s
        self._due_at_s += (missed + 1) * self._period_s
        return True


class SimulatedTime:
    """The time of the timers in a run by steps: every epoch moves it to the next tick, without waiting.

    One timer ticks in every epoch. Two timers keep their ratio, whatever the machine does meanwhile:

        periods 10 ms and 25 ms      epoch         1     2     3     4     5     6
                                     time in ms    0    10    20    25    30    40
                                     ticks        both  10    10    25    10    10
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._timers: list[PeriodicTimer] = []

    def add(self, timers: Sequence[PeriodicTimer]) -> None:
        """Move with these timers too."""
        self._timers += timers

    def advance(self) -> None:
        """Move to the next tick: an epoch begins. A tick that its component has not seen yet stays due."""
        self.now_s = min((timer.due_at_s for timer in self._timers if timer.due_at_s > self.now_s), default=self.now_s)


class OnEvent(AnyInput):
    """Ready once for each event of its sources. With no listed channel and the source `manual`: once per iteration."""

    def __init__(
        self,
        channels: Sequence[MessageChannel],
        listed: Sequence[int],
        sources: Sequence[EventSource],
        simulated: SimulatedTime | None = None,
    ) -> None:
        super().__init__(channels, listed)
        self.every_iteration = any(source.type == "manual" for source in sources)
        self._timers = [PeriodicTimer(source.period_ms / 1000) for source in sources if source.type == "timer"]
        self._simulated = simulated
        if simulated is not None:
            simulated.add(self._timers)
        self._iteration_id = -1  # the last iteration it ran in
        self.ready_without_message = self.every_iteration or bool(self._timers)
        self.fills_every_input = self.fills_every_input and not self.every_iteration and not self._timers
        self.is_timed = self.is_timed or bool(self._timers)

    def next(self, now_s: float, iteration_id: int, /) -> Inputs | None:
        """Return the next event: the iteration, then timers, then messages."""
        if self.every_iteration and self._iteration_id != iteration_id:
            self._iteration_id = iteration_id
            return tuple(self._side_inputs(now_s))
        if self._timers and self._tick(now_s):
            return tuple(self._side_inputs(now_s))
        return super().next(now_s, iteration_id)

    def _tick(self, now_s: float) -> bool:
        at_s = now_s if self._simulated is None else self._simulated.now_s
        return any(timer.is_due(at_s) for timer in self._timers)

    def due_at_s(self, _now_s: float, *, timers: bool = True) -> float:
        """Return when its next timer is due."""
        return min((timer.due_at_s for timer in self._timers if timers), default=math.inf)

    def times(self) -> Times:
        """Return when its timers are due."""
        return tuple(None if timer.due_at_s == -math.inf else timer.due_at_s for timer in self._timers)

    def restore_times(self, times: Times) -> None:
        """Go on with its timers; one that the checkpoint does not know begins now."""
        for timer, due_at_s in zip(self._timers, times, strict=False):
            timer.restore(due_at_s)

"""When a component is ready, and with which messages.

A trigger looks at the component's channels and answers with the inputs of one invocation, or None. Asked until it says
None, it gives all invocations that are ready in this turn of the component (an epoch; in a loop, an iteration).

    manual      once a turn, with whatever waits
    on_event    once for each event of its sources: the turn itself, a timer, a message, something from outside
    any_input   once for each waiting message
    all_inputs  one message from each input
    time_sync   the same, of messages whose timestamps lie together; the oldest is dropped until they do
    batch       so many messages at once, or what came in so long a time
    watermark   in the order of timestamps, once nothing earlier is expected any more
    condition   all_inputs or any_input by another name, or only messages that carry a timestamp
    debounce    any_input, after each input was merged into its newest message
    rate_limit  any_input, at most one in so long a time
    request, task_ready   once for each request or finished task

Inputs are a tuple with a place for each channel of the component, in order. A channel that the trigger does not list is
a *side input*: it wakes nobody, and whoever runs is given what it has. A kept value (state, latched) wakes once and is
given again to whoever runs later. For all_inputs it counts as there, but something must be new.

    all_inputs over `sample` (an event) and `limit` (state)      limit 5; sample 7; sample 8; limit 6
    invocations                                                       –    (7,5)     (8,5)      –
"""

from __future__ import annotations

from collections.abc import Sequence

from rota.graph.channels import Channel
from rota.graph.messages import Inputs, Message
from rota.graph.spec import EventSource

__all__ = ["AllInputs", "AnyInput", "OnEvent", "Timer", "TimestampedOnly", "Trigger"]


class Trigger:
    """Decides when a component runs. `listed` are the places of the channels that can wake it."""

    fills = False  # whether every invocation has exactly one message in each place
    is_timed = False  # whether it matters what time it is
    wakes_itself = False  # whether it may be ready although no message came

    def __init__(self, channels: Sequence[Channel], listed: Sequence[int]) -> None:
        self.channels = tuple(channels)
        self.listed = tuple(listed)
        self.woken_by = tuple(self.channels[at] for at in listed)
        self.is_timed = any(channel.is_timed for channel in channels)
        self._beside = tuple(at not in self.listed for at in range(len(self.channels)))

    def next(self, now_s: float, turn: int, /) -> Inputs | None:
        """The inputs of the next ready invocation; None when there is none in this turn."""
        raise NotImplementedError

    def collect(self, now_s: float, turn: int, /) -> list[Inputs]:
        """The inputs of every invocation that is ready in this turn."""
        ready: list[Inputs] = []
        while (inputs := self.next(now_s, turn)) is not None:
            ready.append(inputs)
        return ready

    @property
    def innermost(self) -> Trigger:
        """The trigger itself, without limits around it."""
        return self

    @property
    def may_be_ready(self) -> bool:
        """Whether a look is worth while; False only when `next` would surely say None."""
        return self.wakes_itself or any(channel.items for channel in self.woken_by)

    def keep_newest(self) -> None:
        """Merge what waits on each input that can wake the component."""
        for channel in self.woken_by:
            channel.keep_newest()

    def drop_older(self, than_s: float, now_s: float) -> None:
        """Drop what has waited longer than this."""
        for channel in self.woken_by:
            channel.drop_older(than_s, now_s)

    def _beside_inputs(self, now_s: float) -> list[Message | tuple[Message, ...] | None]:
        """What the channels give that are not the cause: side inputs are read, kept values given again."""
        pairs = zip(self.channels, self._beside, strict=True)
        return [channel.read(now_s) if beside else channel.kept for channel, beside in pairs]


class AnyInput(Trigger):
    """Once for each waiting message."""

    def __init__(self, channels: Sequence[Channel], listed: Sequence[int]) -> None:
        super().__init__(channels, listed)
        self.fills = len(self.channels) == 1 and len(self.listed) == 1

    def collect(self, now_s: float, turn: int, /) -> list[Inputs]:
        """The inputs of every invocation that is ready in this turn."""
        if not self.fills:
            return super().collect(now_s, turn)
        channel = self.woken_by[0]  # the common case, in one go
        ready: list[Inputs] = []
        while channel.items and (message := channel.take(now_s)) is not None:
            ready.append((message,))
        return ready

    def next(self, now_s: float, _turn: int, /) -> Inputs | None:
        """The next message, from the first input that has one."""
        for at, channel in zip(self.listed, self.woken_by, strict=True):
            message = channel.take(now_s)
            if message is not None:
                if self.fills:
                    return (message,)
                inputs = self._beside_inputs(now_s)
                inputs[at] = message
                return tuple(inputs)
        return None


class TimestampedOnly(AnyInput):
    """Once for each waiting message that carries a timestamp; others are dropped."""

    def collect(self, now_s: float, turn: int, /) -> list[Inputs]:
        """One by one: each has to be looked at."""
        return Trigger.collect(self, now_s, turn)

    def next(self, now_s: float, turn: int, /) -> Inputs | None:
        """The next message with a timestamp."""
        for channel in self.woken_by:
            while channel.items and channel.items[0].timestamp_ms is None:
                channel.drop_front("it carries no timestamp")
        return super().next(now_s, turn)


class AllInputs(Trigger):
    """One message from each input."""

    def __init__(self, channels: Sequence[Channel], listed: Sequence[int]) -> None:
        super().__init__(channels, listed)
        self.fills = len(self.listed) == len(self.channels)

    def next(self, now_s: float, _turn: int, /) -> Inputs | None:
        """One from each, when each has one and at least one of them is new."""
        if not self._all_there(now_s):
            return None
        return tuple([channel.read(now_s) for channel in self.channels])

    def _all_there(self, now_s: float) -> bool:
        new = False
        for channel in self.woken_by:
            if channel.front(now_s) is None:
                return False
            new = new or bool(channel.items)
        return new


class Timer:
    """Due every so often, the first time at once. Ticks that were missed are merged into one."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._due_at_s: float | None = None

    def is_due(self, now_s: float) -> bool:
        """Whether a tick has come; asking takes it."""
        if self._due_at_s is None:
            self._due_at_s = now_s
        if now_s < self._due_at_s:
            return False
        missed = (now_s - self._due_at_s) // self._period_s
        self._due_at_s += (missed + 1) * self._period_s
        return True


class OnEvent(AnyInput):
    """Once for each event of its sources. Without any listed channel and with the turn as its only source: manual."""

    def __init__(self, channels: Sequence[Channel], listed: Sequence[int], sources: Sequence[EventSource]) -> None:
        super().__init__(channels, listed)
        self._every_turn = any(source.type == "manual" for source in sources)
        self._timers = [Timer(source.period_ms / 1000) for source in sources if source.type == "timer"]
        self._turn = -1  # the last one it ran in
        self.wakes_itself = self._every_turn or bool(self._timers)
        self.fills = self.fills and not self._every_turn and not self._timers
        self.is_timed = self.is_timed or bool(self._timers)

    def next(self, now_s: float, turn: int, /) -> Inputs | None:
        """The next event: the turn, then timers, then messages."""
        if self._every_turn and self._turn != turn:
            self._turn = turn
            return tuple(self._beside_inputs(now_s))
        if any(timer.is_due(now_s) for timer in self._timers):
            return tuple(self._beside_inputs(now_s))
        return super().next(now_s, turn)

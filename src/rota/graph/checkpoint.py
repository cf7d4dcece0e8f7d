"""Checkpoints: the state of a run at the beginning of an epoch, so that another process can resume it.

A run with a queue lane writes a checkpoint at every epoch boundary, after everything published for the epoch became
visible and before anything of the epoch has run, and once more at its end. A run that is started again under the same
id begins there:

    epochs 1 to 3 are over   epoch 4: checkpoint … enqueue 4/search/0 … enqueue 4/search/1 … the process dies
    started again            epoch 4 from the checkpoint; both entries exist under their keys and are not added again

So an entry runs once (as far as the queue guarantees that), while a component of the run's own process may execute the
interrupted epoch a second time. Messages keep their age, timers, rate limits and loops what is left of their time: the
time after a crash does not count, the time in which the run waited in the queue does. A checkpoint does not include:
background tasks, independent lanes with their components, and configuration that was changed during the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rota.decoding import decode_json
from rota.errors import GraphRunFailed
from rota.graph.channels import ChannelContents, MessageChannel
from rota.graph.lanes.durable import NEW_RUN_HINT, json_value
from rota.graph.lanes.queue_lane import PendingInvocation
from rota.graph.loops import LoopStep
from rota.graph.messages import Message, Origin
from rota.graph.nodes import DeferredPublication
from rota.graph.timed_triggers import Watermark, WatermarkState
from rota.graph.triggers import Times
from rota.graph.wiring import Wiring

__all__ = ["RunCheckpoint", "decode_checkpoint", "encode_checkpoint", "restore_checkpoint"]

VERSION = 1  # of the checkpoint format


class StoredDeferred(msgspec.Struct, frozen=True):
    """A publication that waits for the next epoch boundary."""

    channel_id: str
    payload: Any
    origin: Origin
    timestamp_ms: float | None


class RunCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run at the beginning of an epoch."""

    version: int
    next_epoch_id: int
    at_s: float  # on the monotonic clock of the process that wrote it
    channels: dict[str, ChannelContents]
    watermarks: dict[str, WatermarkState]  # by component
    deferred: tuple[StoredDeferred, ...]
    isolated: tuple[str, ...]  # components that were removed from the run
    pending: tuple[PendingInvocation, ...]
    state: dict[str, Any]
    snapshots: dict[str, Any]
    times: dict[str, Times] = {}  # of triggers, by component, on the clock of `at_s`
    loops: dict[str, float] = {}  # when composite loops last ran, on the clock of `at_s`
    counts: dict[str, tuple[int, int]] = {}  # by component: how often it has succeeded and failed since the run began
    waits_since: float | None = None  # if the run waits in the queue from now on: the time of day


def encode_checkpoint(
    wiring: Wiring,
    loops: Sequence[LoopStep],
    next_epoch_id: int,
    pending: Sequence[PendingInvocation],
    *,
    at_s: float,
    state: Mapping[str, Any],
    snapshots: Mapping[str, Any],
    counts: Mapping[str, tuple[int, int]],
    waits_since: float | None = None,
) -> bytes:
    """Return the checkpoint of a run as JSON; raises if a value in it is not JSON."""
    channels = {channel.id: channel.contents() for channel in _channels(wiring)}
    for channel_id, contents in channels.items():
        _check(channel_id, _messages(contents))
    checkpoint = RunCheckpoint(
        version=VERSION,
        next_epoch_id=next_epoch_id,
        at_s=at_s,
        channels=channels,
        watermarks=_watermarks(wiring),
        deferred=tuple(_stored(deferred) for deferred in (*wiring.deferred, *wiring.outbox)),
        isolated=tuple(node.id for node in wiring.nodes.values() if node.is_isolated),
        pending=tuple(pending),
        state=json_value("the shared state", dict(state)),
        snapshots={name: json_value(f"the snapshot of {name}", value) for name, value in snapshots.items()},
        times=_times(wiring),
        loops={loop.id: loop.began_at_s for loop in loops if loop.began_at_s != -math.inf},
        counts=dict(counts),
        waits_since=waits_since,
    )
    return msgspec.json.encode(checkpoint)


def decode_checkpoint(data: bytes) -> RunCheckpoint:
    """Return the checkpoint in `data`; raises if it cannot be read."""
    try:
        checkpoint = decode_json(data, RunCheckpoint)
    except msgspec.MsgspecError as problem:
        raise _unreadable(str(problem)) from problem
    if checkpoint.version != VERSION:
        raise _unreadable(f"its format version is {checkpoint.version}, but this rota reads version {VERSION}")
    return checkpoint


def _unreadable(reason: str) -> GraphRunFailed:
    return GraphRunFailed(f"the run's checkpoint cannot be read: {reason}", hint=NEW_RUN_HINT)


def restore_checkpoint(
    wiring: Wiring, loops: Sequence[LoopStep], checkpoint: RunCheckpoint, now_s: float, now: float
) -> None:
    """Put all messages back into the channels, and go on with timers. `now` is the time of day."""
    waited_s = 0.0 if checkpoint.waits_since is None else max(0.0, now - checkpoint.waits_since)
    later_s = now_s - checkpoint.at_s - waited_s  # from a time on the clock of the checkpoint to one on this clock
    for origin in _origins(checkpoint):
        origin.published_at_s += later_s
    known = {channel.id: channel for channel in _channels(wiring)}
    components = {*checkpoint.watermarks, *checkpoint.isolated, *checkpoint.times}
    unknown = (set(checkpoint.channels) - set(known)) | (components - set(wiring.nodes))
    if unknown:
        raise _changed(", ".join(sorted(unknown)))
    for channel_id, contents in checkpoint.channels.items():
        known[channel_id].restore(contents)
    for component_id, state in checkpoint.watermarks.items():
        trigger = wiring.nodes[component_id].trigger.unwrapped
        if isinstance(trigger, Watermark):
            try:
                trigger.restore(state)
            except LookupError as problem:  # another domain, or fewer edges
                raise _changed(f"an input of {component_id}") from problem
    for component_id, times in checkpoint.times.items():
        shifted = tuple(None if at_s is None else at_s + later_s for at_s in times)
        wiring.nodes[component_id].trigger.restore_times(shifted)
    for loop in loops:
        loop.began_at_s = checkpoint.loops.get(loop.id, -math.inf) + later_s
    for component_id in checkpoint.isolated:
        wiring.nodes[component_id].isolate()
    for each in checkpoint.deferred:
        wiring.deferred.append(
            DeferredPublication(known[each.channel_id], each.payload, each.origin, each.timestamp_ms)
        )


def _changed(gone: str) -> GraphRunFailed:
    return GraphRunFailed(f"the graph has changed since this run began: {gone} no longer exists", hint=NEW_RUN_HINT)


def _origins(checkpoint: RunCheckpoint) -> Iterator[Origin]:
    for contents in checkpoint.channels.values():
        for message in _messages(contents):
            yield message.origin
    for state in checkpoint.watermarks.values():
        for _, message in state.held:
            yield message.origin
    for deferred in checkpoint.deferred:
        yield deferred.origin


def _messages(contents: ChannelContents) -> tuple[Message, ...]:
    return (*contents.waiting, *contents.hidden, *filter(None, (contents.kept,)))


def _channels(wiring: Wiring) -> list[MessageChannel]:
    return [*wiring.channels.values(), *wiring.inboxes.values()]


def _check(channel_id: str, messages: Sequence[Message]) -> None:
    for message in messages:
        json_value(f"a message on edge {channel_id}", message.payload)


def _stored(deferred: DeferredPublication) -> StoredDeferred:
    payload = json_value(f"a publication for edge {deferred.channel.id}", deferred.payload)
    return StoredDeferred(deferred.channel.id, payload, deferred.origin, deferred.timestamp_ms)


def _watermarks(wiring: Wiring) -> dict[str, WatermarkState]:
    triggers = {node.id: node.trigger.unwrapped for node in wiring.nodes.values()}
    states = {name: trigger.state() for name, trigger in triggers.items() if isinstance(trigger, Watermark)}
    for name, state in states.items():
        _check(name, [message for _, message in state.held])
    return states


def _times(wiring: Wiring) -> dict[str, Times]:
    triggers = {node.id: node.trigger for node in wiring.nodes.values() if not node.lane.independent}
    return {name: times for name, trigger in triggers.items() if (times := trigger.times())}

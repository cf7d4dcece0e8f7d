"""Where a run stands at the beginning of an epoch, so that it can be resumed in another process.

A run with a queue lane writes this down at every boundary, after everything that was published for the epoch became
visible and before anything of the epoch has run; and once more at its end. A run that is started again under the same
id begins there:

    epochs 1 to 3 are over   epoch 4: checkpoint … enqueue 4/search/0 … enqueue 4/search/1 … the process dies
    started again            epoch 4 from the checkpoint; both entries exist under their keys and are not added again

So an entry runs once (as far as the queue promises that), while a component of the run's own process may see the epoch
in flight a second time. The time in between does not count: a message is as old as it was when it was written down,
whatever clock the new process has. What is not written down: background tasks, independent lanes with their components,
configuration that was changed while the run went on, and when timers and limits on triggers last let something pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rota.errors import GraphRunFailed
from rota.graph.channels import Channel, ChannelContents
from rota.graph.lanes.as_json import as_json
from rota.graph.lanes.queue_lane import Pending
from rota.graph.messages import Message, Origin
from rota.graph.nodes import Deferred
from rota.graph.timed_triggers import Watermark, WatermarkState
from rota.graph.wiring import Wiring

__all__ = ["Checkpoint", "put_back", "read_checkpoint", "take_checkpoint"]

VERSION = 1  # of what is written down


class StoredDeferred(msgspec.Struct, frozen=True):
    """A publication that waits for the next boundary."""

    channel_id: str
    payload: Any
    origin: Origin
    timestamp_ms: float | None


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run stands."""

    version: int
    next_epoch_id: int
    at_s: float  # by the monotonic clock of the process that wrote it
    channels: dict[str, ChannelContents]
    watermarks: dict[str, WatermarkState]  # by component
    deferred: tuple[StoredDeferred, ...]
    isolated: tuple[str, ...]  # components that take part no more
    pending: tuple[Pending, ...]
    state: dict[str, Any]
    snapshots: dict[str, Any]


def take_checkpoint(
    wiring: Wiring,
    next_epoch_id: int,
    pending: Sequence[Pending],
    *,
    at_s: float,
    state: Mapping[str, Any],
    snapshots: Mapping[str, Any],
) -> bytes:
    """Write down where a run stands; raises when something in it is not JSON."""
    channels = {channel.id: channel.contents() for channel in _channels(wiring)}
    for channel_id, contents in channels.items():
        _check(channel_id, _messages(contents))
    checkpoint = Checkpoint(
        version=VERSION,
        next_epoch_id=next_epoch_id,
        at_s=at_s,
        channels=channels,
        watermarks=_watermarks(wiring),
        deferred=tuple(_stored(deferred) for deferred in (*wiring.deferred, *wiring.outbox)),
        isolated=tuple(node.id for node in wiring.nodes.values() if node.is_isolated),
        pending=tuple(pending),
        state=as_json("the shared state", dict(state)),
        snapshots={name: as_json(f"the snapshot of {name}", value) for name, value in snapshots.items()},
    )
    return msgspec.json.encode(checkpoint)


def read_checkpoint(data: bytes) -> Checkpoint:
    """Where a run stood; raises when that cannot be read."""
    try:
        checkpoint = msgspec.json.decode(data, type=Checkpoint)
    except msgspec.MsgspecError as problem:
        raise _unreadable(str(problem)) from problem
    if checkpoint.version != VERSION:
        raise _unreadable(f"it is of version {checkpoint.version}, and this rota reads version {VERSION}")
    return checkpoint


def _unreadable(why: str) -> GraphRunFailed:
    return GraphRunFailed(f"the run's checkpoint cannot be read: {why}", hint="Use a new run id.")


def put_back(wiring: Wiring, checkpoint: Checkpoint, now_s: float) -> None:
    """Put everything back into the channels, as old as it was."""
    for origin in _origins(checkpoint):
        origin.published_at_s += now_s - checkpoint.at_s
    known = {channel.id: channel for channel in _channels(wiring)}
    components = {*checkpoint.watermarks, *checkpoint.isolated}
    unknown = (set(checkpoint.channels) - set(known)) | (components - set(wiring.nodes))
    if unknown:
        raise _changed(", ".join(sorted(unknown)))
    for channel_id, contents in checkpoint.channels.items():
        known[channel_id].restore(contents)
    for component_id, state in checkpoint.watermarks.items():
        trigger = wiring.nodes[component_id].trigger.innermost
        if isinstance(trigger, Watermark):
            try:
                trigger.restore(state)
            except LookupError as problem:  # another domain, or fewer edges
                raise _changed(f"what {component_id} waits for") from problem
    for component_id in checkpoint.isolated:
        wiring.nodes[component_id].isolate()
    for each in checkpoint.deferred:
        wiring.deferred.append(Deferred(known[each.channel_id], each.payload, each.origin, each.timestamp_ms))


def _changed(gone: str) -> GraphRunFailed:
    return GraphRunFailed(f"the graph has changed since this run began: {gone} is gone", hint="Use a new run id.")


def _origins(checkpoint: Checkpoint) -> Iterator[Origin]:
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


def _channels(wiring: Wiring) -> list[Channel]:
    return [*wiring.channels.values(), *wiring.inboxes.values()]


def _check(channel_id: str, messages: Sequence[Message]) -> None:
    for message in messages:
        as_json(f"what edge {channel_id} holds", message.payload)


def _stored(deferred: Deferred) -> StoredDeferred:
    payload = as_json(f"what waits for edge {deferred.channel.id}", deferred.payload)
    return StoredDeferred(deferred.channel.id, payload, deferred.origin, deferred.timestamp_ms)


def _watermarks(wiring: Wiring) -> dict[str, WatermarkState]:
    triggers = {node.id: node.trigger.innermost for node in wiring.nodes.values()}
    states = {name: trigger.state() for name, trigger in triggers.items() if isinstance(trigger, Watermark)}
    for name, state in states.items():
        _check(name, [message for _, message in state.held])
    return states

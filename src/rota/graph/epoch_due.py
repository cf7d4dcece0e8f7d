"""When the next epoch can execute something, so that a run sleeps until then instead of running empty epochs.

After an epoch every invocation that was ready has been executed. Without a message from outside, the next epoch
executes something only if

    a component runs in every epoch                           now
    a timer is due, or a batch or rate limit lets go          at that time
    a loop ended before its members were quiescent            now, or when its `min_interval_ms` has passed
    a `previous_tick` edge hides a message                    now

What waits for an epoch boundary (publications, ended entries, new configuration) is the engine's to check.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rota.graph.nodes import Node
from rota.graph.wiring import RunLanes, Wiring

__all__ = ["EpochDue"]


class EpochDue:
    """Computes when the next epoch of a run can execute something."""

    def __init__(self, wiring: Wiring, lanes: RunLanes) -> None:
        in_loops = {node for loop in lanes.loops for node in loop.nodes}
        nodes = [node for node in wiring.nodes.values() if node not in in_loops and _begins_with_epochs(lanes, node)]
        self._every_epoch = [node for node in nodes if node.trigger.every_iteration]
        timed = [node for node in nodes if node.trigger.is_timed]
        self._timed = [node for node in timed if not node.lane.independent]
        self._on_threads = {
            lane: [node for node in timed if node.lane is lane.lane] for lane in lanes.isolated.values()
        }
        self._loops = [loop for loop in lanes.loops if _begins_with_epochs(lanes, loop.nodes[0])]
        self._epoch_channels = [channel for channel in wiring.channels.values() if channel.acts_at_epoch_begin]
        self._is_paced = any(pacer.has_wall_clock for pacer in lanes.pacers)  # then every tick is an epoch

    def at_s(self, now_s: float, *, manual: bool = True, timers: bool = True) -> float:
        """Return when the next epoch can execute something: `-math.inf` for now, `math.inf` for never by itself.

        `manual=False` leaves out components and lanes that run in every epoch, `timers=False` leaves out timers.
        """
        if any(channel.waits_for_epoch for channel in self._epoch_channels):
            return -math.inf
        if manual and (self._is_paced or any(map(_may_run, self._every_epoch))):
            return -math.inf
        times = [loop.due_at_s(now_s, manual=manual, timers=timers) for loop in self._loops]
        times += _trigger_times(self._timed, now_s, timers=timers)
        for lane, nodes in self._on_threads.items():
            if nodes and lane.is_idle:  # else it has not yet seen what is due; it notifies the run when it has
                with lane.lock:
                    times += _trigger_times(nodes, now_s, timers=timers)
        return min(times, default=math.inf)


def _may_run(node: Node) -> bool:
    return not node.is_isolated and not node.trigger.waits_for_room


def _trigger_times(nodes: Sequence[Node], now_s: float, *, timers: bool) -> list[float]:
    return [node.trigger.due_at_s(now_s, timers=timers) for node in nodes if not node.is_isolated]


def _begins_with_epochs(lanes: RunLanes, node: Node) -> bool:
    """Whether an epoch begins an iteration of the node's lane; a cadence or the host begins those of the others."""
    return node.lane.id not in lanes.manual and not (node.lane.id in lanes.isolated and node.lane.period_ns)

"""The invocations of a component that are ready in a step; of one with `map_over`, one for each item of its lists."""

from __future__ import annotations

from collections.abc import Iterable

from rota.errors import RotaError
from rota.graph.commit import Committer
from rota.graph.messages import Inputs
from rota.graph.nodes import Node
from rota.graph.reports import RunStopped

__all__ = ["collect_ready", "publish_lists"]


def collect_ready(node: Node, committer: Committer, epoch_id: int, iteration_id: int) -> list[Inputs]:
    """Return the inputs of every invocation of a component that is ready in this iteration."""
    ready = node.trigger.collect(committer.clock.monotonic() if node.trigger.is_timed else 0.0, iteration_id)
    if not ready and node.holds_messages:
        committer.record_suppression(node, epoch_id)
    return ready if node.map_over is None else expand(node, ready, committer, epoch_id)


def expand(node: Node, ready: Iterable[Inputs], committer: Committer, epoch_id: int) -> list[Inputs]:
    """Return the inputs for each item. An empty list is answered at once; what is no list is a failure."""
    found: list[Inputs] = []
    for inputs in ready:
        try:
            items = node.map_over.items(inputs) if node.map_over is not None else [inputs]
        except RotaError as problem:
            may_continue = committer.fail(node, problem)
        else:
            found += items
            may_continue = bool(items) or committer.publish_list(node, [], inputs, epoch_id)
        if not may_continue:
            raise RunStopped
    return found


def publish_lists(node: Node, executed: Iterable[Inputs], committer: Committer, epoch_id: int) -> bool:
    """Publish the lists of results of a step in which all items were executed; False if the run must end."""
    if node.map_over is None or node.is_isolated:
        return True
    may_continue = True
    for inputs in {node.map_over.place(each).message_id: each for each in executed}.values():
        values = node.map_over.take(inputs)
        may_continue = committer.publish_list(node, values, node.map_over.whole(inputs), epoch_id) and may_continue
    return may_continue

"""Which components of a run are executing now, read from the stacks of this process's threads.

Only a stop that has to wait asks for this. To record it for every invocation would cost each of them; the threads know
it anyway: every call of a component goes through one of the functions below, which have it as a local variable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any

from rota.graph.calling import execute
from rota.graph.lanes.async_wave import AsyncWave
from rota.graph.lanes.inline import InlineStep
from rota.graph.lanes.pool import ThreadWorker
from rota.graph.lanes.process_pool import ProcessWorker
from rota.graph.lifecycle import Lifecycle
from rota.graph.nodes import Node
from rota.graph.tasks import TaskExecutor

__all__ = ["executing_components"]

# Each function that calls components, and what of its local variables belongs to their nodes.
_CALLERS: Mapping[CodeType, Callable[[Mapping[str, Any]], Sequence[Any]]] = {
    InlineStep._run_plain.__code__: lambda local: [local.get("node")],
    Lifecycle._start.__code__: lambda local: [local.get("node")],
    Lifecycle._attempt.__code__: lambda local: [local.get("node")],
    execute.__code__: lambda local: [local.get("component")],
    ThreadWorker.execute.__code__: lambda local: [getattr(local.get("item"), "node", None)],
    ProcessWorker.execute_here.__code__: lambda local: [getattr(local.get("item"), "node", None)],
    AsyncWave.run.__code__: lambda local: [
        node for node, invocations in local.get("ready", ()) if any(each.is_open for each in invocations)
    ],
}


def executing_components(nodes: Mapping[str, Node], tasks: TaskExecutor) -> tuple[str, ...]:
    """Return the ids of those of these nodes that some thread of this process is executing, sorted."""
    found = {name for frame in tuple(sys._current_frames().values()) for name in _of_stack(frame, nodes, tasks)}
    return tuple(sorted(found))


def _of_stack(frame: FrameType | None, nodes: Mapping[str, Node], tasks: TaskExecutor) -> Iterator[str]:
    while frame is not None:
        if frame.f_code in _CALLERS:
            for subject in _CALLERS[frame.f_code](frame.f_locals):
                yield from _ids(subject, nodes)
        elif frame.f_code is TaskExecutor._run.__code__ and frame.f_locals.get("self") is tasks:
            yield frame.f_locals["task"].component_id
        frame = frame.f_back


def _ids(subject: Any, nodes: Mapping[str, Node]) -> Iterator[str]:
    """Yield the id of a node of this run; another run of this process may have nodes of the same name."""
    node = nodes.get(getattr(subject, "id", ""))
    if node is not None and (node is subject or node.component is subject):
        yield node.id

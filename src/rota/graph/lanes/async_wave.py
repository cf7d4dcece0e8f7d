"""Async components on the run's own thread: those that are ready together overlap on one event loop.

A wave is a row of neighbours in the compiled order that do not depend on each other, from one async component to
another. All their ready invocations are collected first; then the ordinary components between them run, one by one, and
then all coroutines at once. What they publish is committed in the compiled order when all of them are done, so the
values are those of a run without overlapping. A component that is not reentrant runs one coroutine at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rota.graph.calling import CoroutineRunner, execute, execute_async
from rota.graph.commit import Committer
from rota.graph.fan_out import collect_ready, publish_lists
from rota.graph.invocation import Invocation, Scope
from rota.graph.nodes import Node
from rota.graph.reports import RunStopped

__all__ = ["OVERLAP_MAX", "AsyncWave"]

OVERLAP_MAX = 1_000  # coroutines of one step that run at a time; further ones wait


class AsyncWave:
    """A step of an epoch with components that overlap."""

    def __init__(self, nodes: Sequence[Node], committer: Committer, scope: Scope, coroutines: CoroutineRunner) -> None:
        self.nodes = tuple(nodes)
        self._committer = committer
        self._scope = scope
        self._coroutines = coroutines

    def run(self, epoch_id: int, iteration_id: int, /) -> int:
        """Execute every ready invocation of the wave; return the number of invocations."""
        ready: list[tuple[Node, list[Invocation]]] = []
        for node in self.nodes:
            if not node.is_isolated:
                inputs = collect_ready(node, self._committer, epoch_id, iteration_id)
                ready.append((node, [Invocation(node.component, self._scope, each, epoch_id) for each in inputs]))
        for node, invocations in ready:
            if not node.component.type.is_async:
                for invocation in invocations:
                    execute(node.component, invocation, self._coroutines)
        chains = [chain for node, invocations in ready for chain in _chains(node, invocations)]
        if chains:
            self._coroutines.run(_run_all(chains))
        self._commit(ready, epoch_id)
        return sum(len(invocations) for _, invocations in ready)

    def _commit(self, executed: Sequence[tuple[Node, Sequence[Invocation]]], epoch_id: int) -> None:
        """Commit everything that was executed; then end the run, if something failed for good."""
        may_continue = True
        for node, invocations in executed:
            for invocation in invocations:
                may_continue = self._committer.commit(node, invocation) and may_continue
            items = [each.inputs for each in invocations]
            may_continue = publish_lists(node, items, self._committer, epoch_id) and may_continue
        if not may_continue:
            raise RunStopped


def _chains(node: Node, invocations: Sequence[Invocation]) -> list[tuple[Node, Sequence[Invocation]]]:
    """Return which coroutines of a component run one after another: all, unless it is reentrant."""
    if not node.component.type.is_async or not invocations:
        return []
    return [(node, [each]) for each in invocations] if node.reentrant else [(node, invocations)]


async def _run_all(chains: Sequence[tuple[Node, Sequence[Invocation]]]) -> None:
    places = asyncio.Semaphore(OVERLAP_MAX)

    async def run(node: Node, invocations: Sequence[Invocation]) -> None:
        async with places:
            for invocation in invocations:
                await execute_async(node.component, invocation)

    async with asyncio.TaskGroup() as group:
        for node, invocations in chains:
            group.create_task(run(node, invocations))

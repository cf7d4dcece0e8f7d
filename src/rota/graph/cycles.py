"""Strongly connected components, by Tarjan's algorithm, without recursion.

Two nodes are strongly connected when each can be reached from the other: together they are a cycle, or several cycles
that share nodes. Tarjan finds all such groups in one walk. Each node gets a number when it is first seen, and a *low*
number: the smallest that can be reached from it among the nodes still on the stack. A node whose low number is its own
is the first of its group; everything above it on the stack belongs to the group.

    0 → 1 → 2 → 1        numbers 0 1 2, low 0 1 1: the group {1, 2} is complete when the walk leaves 1, then {0}

A group is complete only after everything reachable from it, so groups come out in reverse topological order. A graph
file may be a chain of thousands of components, deeper than Python's own stack: the walk keeps its own.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["strongly_connected"]

_UNSEEN = -1


def strongly_connected(successors: Sequence[Sequence[int]]) -> list[list[int]]:
    """The groups, each sorted, in the order in which they are complete; nodes and successors are taken in order."""
    return _Walk(successors).groups()


class _Walk:
    """One walk over all nodes."""

    def __init__(self, successors: Sequence[Sequence[int]]) -> None:
        nodes = len(successors)
        self._successors = successors
        self._number = [_UNSEEN] * nodes
        self._low = [0] * nodes
        self._on_stack = [False] * nodes
        self._stack: list[int] = []
        self._seen = 0
        self._groups: list[list[int]] = []

    def groups(self) -> list[list[int]]:
        """Walk from every node that has not been seen."""
        for node in range(len(self._successors)):
            if self._number[node] == _UNSEEN:
                self._walk_from(node)
        return self._groups

    def _walk_from(self, start: int) -> None:
        path = [(start, iter(self._successors[start]))]
        self._enter(start)
        while path:
            node, ahead = path[-1]
            for follower in ahead:
                if self._number[follower] == _UNSEEN:
                    self._enter(follower)
                    path.append((follower, iter(self._successors[follower])))
                    break
                if self._on_stack[follower]:
                    self._low[node] = min(self._low[node], self._number[follower])
            else:
                path.pop()
                self._leave(node)
                if path:
                    before = path[-1][0]
                    self._low[before] = min(self._low[before], self._low[node])

    def _enter(self, node: int) -> None:
        self._number[node] = self._low[node] = self._seen
        self._seen += 1
        self._stack.append(node)
        self._on_stack[node] = True

    def _leave(self, node: int) -> None:
        """If the node is the first of its group, take the group off the stack."""
        if self._low[node] != self._number[node]:
            return
        at = len(self._stack) - 1
        while self._stack[at] != node:
            at -= 1
        group = self._stack[at:]
        del self._stack[at:]
        for member in group:
            self._on_stack[member] = False
        self._groups.append(sorted(group))

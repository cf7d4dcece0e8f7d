"""The priority queue: its edge cases by example, and its whole behaviour against a plain list."""

from __future__ import annotations

import math

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rota.errors import InvalidPayload
from rota.tick import AgentPriorityQueue


def test_an_empty_queue_has_nothing_to_pop_and_nothing_to_see() -> None:
    queue = AgentPriorityQueue()
    assert queue.peek() is None
    assert queue.to_sorted_list() == []
    with pytest.raises(IndexError):
        queue.pop()


def test_an_agent_is_in_the_queue_once() -> None:
    queue = AgentPriorityQueue()
    queue.push(1, 1.0)
    with pytest.raises(ValueError, match="already"):
        queue.push(1, 2.0)
    assert queue.to_sorted_list() == [(1, 1.0)]


def test_an_unknown_agent_cannot_be_changed_or_removed() -> None:
    queue = AgentPriorityQueue()
    for verb in (lambda: queue.update_priority(1, 2.0), lambda: queue.remove(1), lambda: queue.priority(1)):
        with pytest.raises(KeyError):
            verb()


@pytest.mark.parametrize("priority", [math.nan, math.inf, -math.inf])
def test_a_priority_that_is_not_finite_is_refused_and_changes_nothing(priority: float) -> None:
    queue = AgentPriorityQueue()
    queue.push(1, 1.0)
    with pytest.raises(InvalidPayload):
        queue.push(2, priority)
    with pytest.raises(InvalidPayload):
        queue.update_priority(1, priority)
    assert queue.to_sorted_list() == [(1, 1.0)]
    assert 2 not in queue


def test_an_agent_may_come_back_after_it_was_popped() -> None:
    queue = AgentPriorityQueue()
    queue.push(1, 5.0)
    queue.update_priority(1, 7.0)
    queue.update_priority(1, 5.0)
    assert queue.pop() == 1
    queue.push(1, 5.0)
    queue.push(2, 6.0)
    assert [queue.pop(), queue.pop(), queue.peek()] == [2, 1, None]


def test_stale_entries_never_outnumber_live_ones() -> None:
    queue = AgentPriorityQueue()
    for pid in range(10):
        queue.push(pid, float(pid))
    for number in range(1_000):
        queue.update_priority(number % 10, float(number))
        assert len(queue._heap) <= 2 * len(queue)


PIDS = st.integers(1, 8)
PRIORITIES = st.one_of(st.integers(0, 3).map(float), st.floats(allow_nan=False, allow_infinity=False))


class QueueAgainstList(RuleBasedStateMachine):
    """After any operation, the queue gives the same results as a list that is sorted each time."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = AgentPriorityQueue()
        self.model: list[tuple[int, float]] = []

    @property
    def best_first(self) -> list[tuple[int, float]]:
        return sorted(self.model, key=lambda item: (-item[1], item[0]))

    def forget(self, pid: int) -> None:
        self.model = [item for item in self.model if item[0] != pid]

    @rule(pid=PIDS, priority=PRIORITIES)
    def push_or_update(self, pid: int, priority: float) -> None:
        if pid in self.queue:
            self.queue.update_priority(pid, priority)
            self.forget(pid)
        else:
            self.queue.push(pid, priority)
        self.model.append((pid, priority))

    @precondition(lambda self: self.model)
    @rule()
    def pop(self) -> None:
        expected = self.best_first[0][0]
        assert self.queue.pop() == expected
        self.forget(expected)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        pid = data.draw(st.sampled_from([pid for pid, _ in self.model]))
        self.queue.remove(pid)
        self.forget(pid)

    @invariant()
    def agrees(self) -> None:
        best = self.best_first
        before = list(self.queue._heap)
        assert self.queue.peek() == (best[0][0] if best else None)
        assert self.queue._heap == before  # peek changed nothing
        assert self.queue.to_sorted_list() == best
        assert len(self.queue) == len(best)
        assert all((pid in self.queue) == any(pid == other for other, _ in best) for pid in range(1, 9))
        assert len(self.queue._heap) <= 2 * len(self.queue)


TestQueueAgainstList = QueueAgainstList.TestCase

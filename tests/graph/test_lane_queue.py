"""The queue of a lane: priority classes, policies, non-reentrant components, and aging."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.clock import ManualClock
from rota.graph.lanes.invocation_queue import InvocationQueue
from rota.graph.lanes.order import CANDIDATES_MAX, PolicyOrder, QueuedInvocation
from rota.graph.nodes import Node
from rota.graph.reports import Reports
from rota.graph.wiring import Wiring
from rota.model.reasons import PickReason
from rota.model.snapshot import Account, Candidate, Decision, Snapshot
from rota.policy import registry
from rota.policy.contract import Policy
from tests.graph.parts import Count
from tests.graph.worlds import compile_world, node

CLASSES = ("background", "low", "normal", "high")


class Lane:
    """A queue over components `<class>`, or `<class>*` if they are reentrant."""

    def __init__(self, policy: str | Policy | None = None, starvation_epochs: int = 0, **parameters: Any) -> None:
        nodes = [
            node(Count, f"{word}{star}", priority=word, reentrant=bool(star), lane="pool")
            for word in CLASSES
            for star in ("", "*")
        ]
        plan, components = compile_world(nodes, lanes={"pool": {"type": "thread_pool"}})
        self.reports = Reports("run")
        self.nodes: dict[str, Node] = Wiring(plan, components, {}, self.reports).nodes
        if isinstance(policy, str):
            policy = registry.make(policy, **parameters)
        order = None if policy is None else PolicyOrder(policy, "pool", ManualClock())
        self.queue = InvocationQueue("pool", order, starvation_epochs, self.reports)
        self.number = 0

    def add(self, name: str, epoch_id: int = 1) -> QueuedInvocation:
        self.number += 1
        found = self.nodes[name]
        item = QueuedInvocation(found, (), epoch_id, self.number)
        self.queue.add(item)
        return item

    def take(self, epoch_id: int = 1) -> str | None:
        item = self.queue.take(epoch_id)
        if item is None:
            return None
        self.finish(item)
        return item.node.id

    def finish(self, item: QueuedInvocation, seconds: float = 0.001) -> None:
        item.started_at_s, item.ended_at_s = 0.0, seconds
        item.node.completed += 1
        item.node.busy_s += seconds
        self.queue.done(item)

    def drain(self) -> list[str]:
        taken: list[str] = []
        while (name := self.take()) is not None:
            taken.append(name)
        return taken


class TestClasses:
    def test_rank_then_the_order_in_which_they_became_ready(self) -> None:
        lane = Lane()
        for name in ("low*", "normal*", "high", "background", "normal", "high*"):
            lane.add(name)
        assert lane.drain() == ["high", "high*", "normal*", "normal", "low*", "background"]

    def test_priority_queue(self) -> None:
        lane = Lane()
        for _ in range(3):
            lane.add("low*")
        lane.add("high*")
        assert lane.drain() == ["high*", "low*", "low*", "low*"]

    @given(st.lists(st.sampled_from([f"{word}*" for word in CLASSES]), max_size=30))
    @settings(max_examples=25)
    def test_it_is_a_stable_sort_by_rank(self, names: list[str]) -> None:
        lane = Lane()
        for name in names:
            lane.add(name)
        assert lane.drain() == sorted(names, key=lambda name: -CLASSES.index(name[:-1]))


class TestOneAtATime:
    def test_the_next_invocation_is_hidden_until_the_last_is_done(self) -> None:
        lane = Lane()
        lane.add("normal")
        lane.add("normal")
        first = lane.queue.take(1)
        assert first is not None
        assert (lane.queue.take(1), len(lane.queue), lane.queue.visible) == (None, 1, 0)
        lane.finish(first)
        assert lane.take() == "normal"
        assert len(lane.queue) == 0

    def test_a_reentrant_component_may_have_several_in_flight(self) -> None:
        lane = Lane()
        lane.add("normal*")
        lane.add("normal*")
        assert lane.queue.take(1) is not None
        assert lane.queue.take(1) is not None

    def test_discarding_an_invocation_shows_the_next_one(self) -> None:
        lane = Lane()
        first, second = lane.add("normal"), lane.add("normal")
        lane.queue.discard(first)
        assert lane.queue.take(1) is second

    def test_a_hidden_invocation_can_be_discarded_too(self) -> None:
        lane = Lane()
        lane.add("normal")
        behind = lane.add("normal")
        lane.queue.discard(behind)
        assert lane.drain() == ["normal"]

    def test_draining_discards_everything_oldest_first(self) -> None:
        lane = Lane("eevdf")
        added = [lane.add(name) for name in ("low", "high*", "low", "normal*")]
        assert lane.queue.drain() == added
        assert (len(lane.queue), lane.queue.visible, lane.queue.take(1)) == (0, 0, None)


class TestAging:
    def test_starvation_aging(self) -> None:
        """One high invocation arrives in each epoch and one is executed; low became ready in epoch 1."""
        lane = Lane(starvation_epochs=8)
        lane.add("low*", epoch_id=1)
        taken = []
        for epoch_id in range(1, 12):
            lane.add("high*", epoch_id)
            taken.append(lane.take(epoch_id))
        assert taken.index("low*") == 8  # in epoch 9
        assert taken.count("low*") == 1
        assert lane.queue.starvation_guards == 1

    def test_with_zero_epochs_there_is_no_aging(self) -> None:
        lane = Lane(starvation_epochs=0)
        lane.add("low*", epoch_id=1)
        for epoch_id in range(1, 100):
            lane.add("high*", epoch_id)
            assert lane.take(epoch_id) == "high*"
        assert lane.queue.starvation_guards == 0

    def test_an_invocation_that_is_next_anyway_does_not_count_as_guarded(self) -> None:
        lane = Lane(starvation_epochs=2)
        lane.add("low*", epoch_id=1)
        assert lane.take(epoch_id=50) == "low*"
        assert lane.queue.starvation_guards == 0

    def test_aging_comes_before_any_policy(self) -> None:
        lane = Lane("strict", starvation_epochs=3)
        lane.add("background*", epoch_id=1)
        taken = []
        for epoch_id in range(1, 6):
            lane.add("high*", epoch_id)
            taken.append(lane.take(epoch_id))
        assert taken == ["high*", "high*", "high*", "background*", "high*"]
        assert lane.queue.starvation_guards == 1

    def test_no_invocation_waits_much_longer_than_the_guard(self) -> None:
        lane = Lane(starvation_epochs=4)
        waiting = [lane.add("background*", epoch_id=1) for _ in range(3)]
        for epoch_id in range(1, 9):
            lane.add("high*", epoch_id)
            lane.take(epoch_id)
        assert not any(item.is_waiting for item in waiting)
        assert lane.queue.starvation_guards == 3


class TestPolicies:
    @pytest.mark.parametrize("policy", registry.names())
    def test_policy_ordered_queue(self, policy: str) -> None:
        """Every registered policy returns every invocation once, and non-reentrant ones one at a time."""
        lane = Lane(policy)
        names = [f"{word}{star}" for word in CLASSES for star in ("", "*") for _ in range(3)]
        for name in names:
            lane.add(name)
        assert sorted(lane.drain()) == sorted(names)
        assert lane.reports.health_count == 0

    def test_fair_policies_share_by_the_weight_of_the_class(self) -> None:
        lane = Lane("eevdf")
        for _ in range(80):
            for word in CLASSES:
                lane.add(f"{word}*")
        first = [lane.take() for _ in range(75)]
        shares = {word: first.count(f"{word}*") for word in CLASSES}
        assert shares == {"high": 40, "normal": 20, "low": 10, "background": 5}

    def test_round_robin_uses_the_last_epoch_a_component_ran_in(self) -> None:
        lane = Lane("round_robin")
        for name, last in (("low*", 5), ("high*", 7), ("normal*", 2)):
            lane.nodes[name].last_epoch_id = last
            lane.add(name)
        assert lane.drain() == ["normal*", "low*", "high*"]

    def test_measured_time_is_what_is_shared(self) -> None:
        lane = Lane("wfq")
        for _ in range(200):
            lane.add("normal*")
            lane.add("normal")
        spent = {"normal*": 0.0, "normal": 0.0}
        for _ in range(60):
            item = lane.queue.take(1)
            assert item is not None
            seconds = 0.003 if item.node.id == "normal" else 0.001
            spent[item.node.id] += seconds
            lane.finish(item, seconds)
        assert spent["normal*"] == pytest.approx(spent["normal"], abs=0.006)

    def test_a_snapshot_has_the_documented_fields(self) -> None:
        seen: list[Snapshot] = []

        def rank(snapshot: Snapshot) -> tuple[Decision, ...]:
            seen.append(snapshot)
            return (Decision(snapshot.candidates[-1].id, snapshot.slots[0].id, PickReason("last", "last")),)

        lane = Lane(Policy(name="last", rank=rank, sentence="The last one."))
        lane.nodes["high*"].last_epoch_id = 4
        lane.add("low*", epoch_id=3)
        lane.add("high*", epoch_id=5)
        assert lane.take(epoch_id=6) == "high*"
        snapshot = seen[0]
        assert (snapshot.now, len(snapshot.slots)) == (6, 1)
        assert [(each.id, each.owner, each.group, each.priority, each.ready_at) for each in snapshot.candidates] == [
            (1, "low*", "pool", 1, 3),
            (2, "high*", "pool", 3, 5),
        ]
        assert snapshot.owners["high*"] == Account(weight=8000, request=1_000_000, last_run_at=4)

    def test_it_sees_a_bounded_number_of_candidates(self) -> None:
        sizes: list[int] = []

        def rank(snapshot: Snapshot) -> tuple[Decision, ...]:
            sizes.append(len(snapshot.candidates))
            return (Decision(snapshot.candidates[0].id, 0, PickReason("first", "first")),)

        lane = Lane(Policy(name="first", rank=rank, sentence="The first one."))
        for _ in range(CANDIDATES_MAX + 10):
            lane.add("low*")
        lane.take()
        assert sizes == [CANDIDATES_MAX]


class Broken:
    """An incremental order that fails in one of its methods."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.ready: list[Candidate] = []

    def _maybe(self, where: str) -> None:
        if where == self.where:
            raise RuntimeError(f"broken in {where}")

    def set_account(self, level: Any, key: Any, account: Account) -> None:
        self._maybe("account")

    def add(self, candidate: Candidate) -> None:
        self._maybe("add")
        self.ready.append(candidate)

    def remove(self, candidate_id: int) -> None:
        self._maybe("remove")

    def charge(self, owner: Any, group: Any, cost: int) -> None:
        self._maybe("charge")

    def pick(self) -> Candidate | None:
        self._maybe("pick")
        if self.where == "nothing":
            return None
        if self.where == "stranger":
            return Candidate(id=999, owner="?")
        return self.ready.pop()


class TestFailingPolicy:
    @pytest.mark.parametrize("where", ["account", "add", "pick", "charge", "nothing", "stranger"])
    def test_a_failing_policy_loses_no_invocation(self, where: str) -> None:
        policy = Policy(name="broken", rank=lambda _: (), sentence="Broken.", incremental=lambda: Broken(where))
        lane = Lane(policy)
        for name in ("low*", "high*", "normal", "normal", "background"):
            lane.add(name)
        assert sorted(lane.drain()) == ["background", "high*", "low*", "normal", "normal"]
        assert [event.kind for event in lane.reports.health_events] == ["policy_failed"]

    @pytest.mark.parametrize("answer", [(), (Decision(999, 0, PickReason("x", "x")),), None])
    def test_an_invalid_decision_falls_back_to_the_default_order(self, answer: Any) -> None:
        lane = Lane(Policy(name="odd", rank=lambda _: answer, sentence="Odd."))
        for name in ("low*", "high*", "normal*"):
            lane.add(name)
        assert lane.drain() == ["high*", "normal*", "low*"]

    def test_a_policy_that_fails_in_remove_falls_back_too(self) -> None:
        policy = Policy(name="broken", rank=lambda _: (), sentence="Broken.", incremental=lambda: Broken("remove"))
        lane = Lane(policy, starvation_epochs=1)
        oldest = lane.add("low*", epoch_id=1)
        lane.add("high*", epoch_id=9)
        assert lane.queue.take(9) is oldest
        lane.finish(oldest)
        other = Lane(policy)
        thrown_out = other.add("low*")
        other.add("high*")
        other.queue.discard(thrown_out)
        assert other.drain() == ["high*"]

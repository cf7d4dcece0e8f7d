"""A claim for slots of some kinds only: it takes no entries that have no kind, under every policy."""

from __future__ import annotations

import pytest

from rota import Rota
from rota.model.work import ScheduleSpec
from rota.model.workers import ONLY_KINDS, SlotPool


@pytest.mark.parametrize("policy", [None, "strict", "round_robin", "fair_share", "edf", "wfq"])
def test_it_takes_only_entries_of_its_kinds(policy: str | None) -> None:
    with Rota(":memory:", policy=policy) as rota:
        agents = [rota.command(name, ["true"], project=f"p-{name}") for name in ("a", "b")]
        plain, gpu, other = (
            [rota.api.queue.enqueue(ScheduleSpec(agent.pid, kind=kind)) for agent in agents for _ in range(2)]
            for kind in (None, "gpu", "other")
        )
        turn = rota.api.turn([], "w", 100, kinds=(ONLY_KINDS, "gpu"))
        assert sorted(entry.sched_id for entry in turn.entries) == sorted(gpu)
        assert rota.api.turn([], "w", 100, kinds=(ONLY_KINDS, "gpu")).entries == []
        assert sorted(entry.sched_id for entry in rota.api.turn([], "w", 100).entries) == sorted(plain)
        assert {rota.api.queue.get(sched_id).state for sched_id in other} == {"queued"}


def test_an_entry_held_for_its_worker_is_not_released_to_such_a_claim() -> None:
    with Rota(":memory:") as rota:
        agent = rota.command("a", ["true"], affinity="w")
        rota.api.turn([], "w", 1)  # the worker is alive
        held = agent.enqueue()
        assert rota.api.turn([], "w", 1, kinds=(ONLY_KINDS, "gpu")).entries == []
        assert [entry.sched_id for entry in rota.api.turn([], "w", 1).entries] == [held.sched_id]


def test_a_pool_of_such_slots_takes_no_entries_without_a_kind() -> None:
    pool = SlotPool("w", 1, (ONLY_KINDS, "gpu"))
    assert [pool.takes(kind) for kind in (None, "gpu", "other")] == [False, True, False]
    assert SlotPool("w", 1, ("gpu",)).takes(None)

"""Accounting: runtime grows while an entity runs and only then, and every nanosecond is paid for exactly once."""

from __future__ import annotations

import pytest

from rota.cores.events import Call, Exit, Migrate, Reply, Steal, Tick, Wake
from rota.errors import EntityUnknown
from tests.cpu.stage import MS, Stage


def test_runtime_grows_while_it_runs_and_stands_still_while_it_is_blocked() -> None:
    """The gate: measured runtime increases monotonically while a thread runs and stops while it is blocked."""
    stage = Stage()
    worker = stage.one()
    seen = []
    for at_ms in range(1, 8):
        stage.until(at_ms * MS)
        seen.append(stage.runtime(worker))
    assert seen == [at_ms * MS for at_ms in range(1, 8)]
    stage.block(worker)
    for at_ms in (8, 20, 500):
        stage.until(at_ms * MS)
        assert stage.runtime(worker) == 7 * MS
    stage.tell(Wake(worker))
    stage.until(503 * MS)
    assert stage.runtime(worker) == 10 * MS


def test_waiting_for_a_core_is_not_running() -> None:
    stage = Stage()
    first, second = stage.spawn(2)
    stage.until(2 * MS)
    assert (stage.runtime(first), stage.runtime(second)) == (2 * MS, 0)


def test_a_turn_that_ends_is_a_preemption_and_a_block_is_voluntary() -> None:
    stage = Stage()
    hog, sleeper = stage.spawn(2)
    stage.until(4 * MS)  # the hog's turn of 3 ms has ended, the sleeper's is under way
    stage.block(sleeper)
    stage.until(5 * MS)
    account = stage.machine.account(hog, stage.now)
    assert (account.preemptions, account.voluntary_blocks, account.context_switches) == (1, 0, 2)
    account = stage.machine.account(sleeper, stage.now)
    assert (account.preemptions, account.voluntary_blocks, account.context_switches) == (0, 1, 1)


def test_going_on_with_the_same_entity_is_neither_a_switch_nor_a_preemption() -> None:
    stage = Stage()
    alone = stage.one()
    stage.until(30 * MS)
    account = stage.machine.account(alone, stage.now)
    assert (account.preemptions, account.context_switches) == (0, 1)
    assert stage.machine.evidence.picks == 11


def test_the_account_of_one_that_never_ran_says_so() -> None:
    stage = Stage()
    account = stage.machine.account(stage.one(awake=False))
    assert account.last_start_ns is None
    assert account.runtime_ns == account.context_switches == 0


def test_last_start_is_the_beginning_of_the_last_turn() -> None:
    stage = Stage()
    first, second = stage.spawn(2)
    stage.until(4 * MS)
    assert stage.machine.account(second).last_start_ns == 3 * MS
    assert stage.machine.account(first).last_start_ns == 0


def test_a_hand_over_splits_the_runtime_and_the_caller_pays() -> None:
    stage = Stage()
    caller, server = stage.one(), stage.one(awake=False)
    own, servers = stage.context(50, 100), stage.context(50, 100)
    stage.bind(own, caller)
    stage.bind(servers, server)
    stage.until(1 * MS)
    stage.tell(Call(caller, server))
    stage.until(2 * MS + MS // 2)
    stage.tell(Reply(server))
    stage.until(3 * MS)
    stage.block(caller)
    assert (stage.runtime(caller), stage.runtime(server)) == (1 * MS + MS // 2, 1 * MS + MS // 2)
    assert stage.machine.context(1).remaining == 47 * MS
    assert stage.machine.context(2).remaining == 50 * MS


def test_migration_keeps_the_account() -> None:
    stage = Stage(cores=2)
    first, second, third = stage.spawn(3)
    stage.until(20 * MS)
    before = [stage.machine.account(one, stage.now) for one in (first, second, third)]
    alone = next(one for one in (first, second, third) if stage.machine.account(one).preemptions == 0)
    stage.block(alone)
    (stolen,) = stage.said(Steal)
    after = stage.machine.account(stolen.entity, stage.now)
    earlier = before[(first, second, third).index(stolen.entity)]
    assert after.runtime_ns == earlier.runtime_ns
    assert after.migrations == earlier.migrations + 1
    assert not stage.said(Migrate)


def test_the_runtimes_of_all_and_the_idle_time_of_all_cores_add_up() -> None:
    stage = Stage(cores=3)
    workers = stage.spawn(2)
    stage.until(7 * MS)
    stage.block(workers[0])
    stage.until(19 * MS)
    ran = sum(stage.runtime(one) for one in workers)
    idle = sum(stage.machine.idle_ns(core, stage.now) for core in range(3))
    assert ran + idle == 3 * 19 * MS
    assert ran == 7 * MS + 19 * MS


def test_what_an_entity_ran_before_it_ended_stays_counted() -> None:
    stage = Stage()
    worker = stage.one()
    stage.until(5 * MS)
    stage.tell(Exit(worker))
    stage.machine.audit()  # the sum of what ran and the sum of what was paid still agree
    assert stage.machine.best_effort_ns == 5 * MS
    with pytest.raises(EntityUnknown, match=f"no entity {worker}"):
        stage.machine.account(worker)


def test_virtual_time_is_runtime_by_weight() -> None:
    stage = Stage()
    light, heavy = stage.one(weight=1000), stage.one(weight=4000)
    stage.until(40 * MS)
    stage.block(next(one for one in (light, heavy) if stage.running() == [one]))
    pictures = [stage.machine.entity(one, stage.now) for one in (light, heavy)]
    assert abs(pictures[0].eligible - pictures[1].eligible) < 3 * MS * 25_200


def test_a_tick_before_its_time_changes_nothing_and_is_counted() -> None:
    stage = Stage()
    first, _second = stage.spawn(2)
    stage.until(1 * MS)
    assert stage.tell(Tick(0)) == []
    assert stage.running() == [first]
    assert stage.machine.evidence.ticks_early == 1

"""Accounting: runtime grows while an entity runs and only then, and every nanosecond is paid for exactly once."""

from __future__ import annotations

import pytest

from rota.cores.events import CallEntity, CoreTick, ExitEntity, Migrate, Reply, Steal, Wake
from rota.errors import EntityUnknown
from tests.cores.harness import MS, EngineHarness


def test_runtime_grows_while_an_entity_runs_and_not_while_it_is_blocked() -> None:
    """The gate: measured runtime increases monotonically while a thread runs and stops while it is blocked."""
    harness = EngineHarness()
    worker = harness.one()
    seen = []
    for at_ms in range(1, 8):
        harness.until(at_ms * MS)
        seen.append(harness.runtime(worker))
    assert seen == [at_ms * MS for at_ms in range(1, 8)]
    harness.block(worker)
    for at_ms in (8, 20, 500):
        harness.until(at_ms * MS)
        assert harness.runtime(worker) == 7 * MS
    harness.send(Wake(worker))
    harness.until(503 * MS)
    assert harness.runtime(worker) == 10 * MS


def test_waiting_for_a_core_is_not_running() -> None:
    harness = EngineHarness()
    first, second = harness.spawn(2)
    harness.until(2 * MS)
    assert (harness.runtime(first), harness.runtime(second)) == (2 * MS, 0)


def test_the_end_of_a_slice_is_a_preemption_and_a_block_is_voluntary() -> None:
    harness = EngineHarness()
    hog, sleeper = harness.spawn(2)
    harness.until(4 * MS)  # the hog's slice of 3 ms has ended, the sleeper's is in progress
    harness.block(sleeper)
    harness.until(5 * MS)
    account = harness.engine.account(hog, harness.now)
    assert (account.preemptions, account.voluntary_blocks, account.context_switches) == (1, 0, 2)
    account = harness.engine.account(sleeper, harness.now)
    assert (account.preemptions, account.voluntary_blocks, account.context_switches) == (0, 1, 1)


def test_continuing_with_the_same_entity_is_neither_a_switch_nor_a_preemption() -> None:
    harness = EngineHarness()
    alone = harness.one()
    harness.until(30 * MS)
    account = harness.engine.account(alone, harness.now)
    assert (account.preemptions, account.context_switches) == (0, 1)
    assert harness.engine.counters.picks == 11


def test_the_account_of_one_that_never_ran_says_so() -> None:
    harness = EngineHarness()
    account = harness.engine.account(harness.one(awake=False))
    assert account.last_start_ns is None
    assert account.runtime_ns == account.context_switches == 0


def test_last_start_is_the_beginning_of_the_last_slice() -> None:
    harness = EngineHarness()
    first, second = harness.spawn(2)
    harness.until(4 * MS)
    assert harness.engine.account(second).last_start_ns == 3 * MS
    assert harness.engine.account(first).last_start_ns == 0


def test_a_call_splits_the_runtime_and_the_caller_pays() -> None:
    harness = EngineHarness()
    caller, server = harness.one(), harness.one(awake=False)
    own, servers = harness.context(50, 100), harness.context(50, 100)
    harness.bind(own, caller)
    harness.bind(servers, server)
    harness.until(1 * MS)
    harness.send(CallEntity(caller, server))
    harness.until(2 * MS + MS // 2)
    harness.send(Reply(server))
    harness.until(3 * MS)
    harness.block(caller)
    assert (harness.runtime(caller), harness.runtime(server)) == (1 * MS + MS // 2, 1 * MS + MS // 2)
    assert harness.engine.context(1).remaining == 47 * MS
    assert harness.engine.context(2).remaining == 50 * MS


def test_migration_keeps_the_account() -> None:
    harness = EngineHarness(cores=2)
    first, second, third = harness.spawn(3)
    harness.until(4 * MS)  # before the cores differ by enough to balance
    before = [harness.engine.account(one, harness.now) for one in (first, second, third)]
    alone = next(one for one in (first, second, third) if harness.engine.account(one).preemptions == 0)
    harness.block(alone)
    (stolen,) = harness.decided(Steal)
    after = harness.engine.account(stolen.entity, harness.now)
    earlier = before[(first, second, third).index(stolen.entity)]
    assert after.runtime_ns == earlier.runtime_ns
    assert after.migrations == earlier.migrations + 1
    assert not harness.decided(Migrate)


def test_the_runtimes_of_all_and_the_idle_time_of_all_cores_add_up() -> None:
    harness = EngineHarness(cores=3)
    workers = harness.spawn(2)
    harness.until(7 * MS)
    harness.block(workers[0])
    harness.until(19 * MS)
    ran = sum(harness.runtime(one) for one in workers)
    idle = sum(harness.engine.idle_ns(core, harness.now) for core in range(3))
    assert ran + idle == 3 * 19 * MS
    assert ran == 7 * MS + 19 * MS


def test_what_an_entity_ran_before_it_ended_stays_counted() -> None:
    harness = EngineHarness()
    worker = harness.one()
    harness.until(5 * MS)
    harness.send(ExitEntity(worker))
    harness.engine.check_invariants()  # runtime and payments still agree
    assert harness.engine.best_effort_ns == 5 * MS
    with pytest.raises(EntityUnknown, match=f"entity {worker} does not exist or has ended"):
        harness.engine.account(worker)


def test_virtual_time_is_runtime_by_weight() -> None:
    harness = EngineHarness()
    light, heavy = harness.one(weight=1000), harness.one(weight=4000)
    harness.until(40 * MS)
    harness.block(next(one for one in (light, heavy) if harness.running() == [one]))
    views = [harness.engine.entity(one, harness.now) for one in (light, heavy)]
    assert abs(views[0].eligible - views[1].eligible) < 3 * MS * 25_200


def test_a_tick_before_its_time_changes_nothing_and_is_counted() -> None:
    harness = EngineHarness()
    first, _second = harness.spawn(2)
    harness.until(1 * MS)
    assert harness.send(CoreTick(0)) == []
    assert harness.running() == [first]
    assert harness.engine.counters.ticks_early == 1

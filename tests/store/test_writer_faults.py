"""The commit fails: each caller gets a true result, and none hangs."""

from __future__ import annotations

import contextlib
import threading

import pytest

from rota.errors import StoreUnavailable
from rota.store import Transaction
from rota.store.batch import RETRY_S
from rota.store.engine import TransactionLost
from tests.store.world import PUT, World, acquire, failing, noting, put, take

# --- the commit fails ----------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["savepoint", "release"])
def test_a_savepoint_that_fails_loses_nothing(world: World, verb: str) -> None:
    def put_and_refuse(tx: Transaction) -> None:
        put("refused")(tx)
        raise KeyError("mine")  # after a change: the batch runs again with savepoints

    with world.busy():
        callers = [world.write(put(f"word {n}")) for n in range(5)]
        refused = world.write(put_and_refuse)
        world.queue.until(6)
        world.engine.after["commit"] = lambda: world.engine.before.setdefault(verb, failing(1))
    assert sorted(caller.outcome() for caller in callers) == [1, 2, 3, 4, 5]
    assert refused.error().args == ("mine",)
    assert sorted(world.words()) == [f"word {n}" for n in range(5)]
    assert verb in world.engine.log


@pytest.mark.parametrize("verb", ["begin", "commit"])
def test_a_failed_batch_runs_again_one_by_one(world: World, verb: str) -> None:
    with world.busy():
        callers = [world.write(put(f"word {n}")) for n in range(5)]
        world.queue.until(5)
        world.engine.after["commit"] = lambda: world.engine.before.setdefault(verb, failing(1))
    assert sorted(caller.outcome() for caller in callers) == [1, 2, 3, 4, 5]
    assert sorted(world.words()) == [f"word {n}" for n in range(5)]
    assert world.engine.log.count("begin") == 1 + 1 + 5  # the active one, the batch, and each alone


def test_without_contention_a_failed_commit_is_tried_once_more(world: World) -> None:
    world.engine.before["commit"] = failing(1)
    assert world.writer.write(put("word")) == 1
    assert world.words() == ["word"]


def test_while_the_disk_stays_full_each_caller_gets_an_error_and_nothing_is_written(world: World) -> None:
    with world.busy():
        callers = [world.write(put(f"word {n}")) for n in range(5)]
        world.queue.until(5)
        world.engine.after["commit"] = lambda: world.engine.before.setdefault("commit", failing(1_000))
    for caller in callers:
        error = caller.error()
        assert isinstance(error, StoreUnavailable)
        assert "nothing was written: disk full" in str(error)
    world.engine.before.clear()
    assert world.words() == []
    assert world.writer.write(put("later")) == 1


def test_a_request_keeps_its_own_error_when_its_batch_runs_again(world: World) -> None:
    def bad(tx: Transaction) -> None:
        tx.run(PUT, ("bad",))
        raise KeyError("mine")

    with world.busy():
        good, wrong = world.write(put("good")), world.write(bad)
        world.queue.until(2)
        world.engine.after["commit"] = lambda: world.engine.before.setdefault("commit", failing(1))
    assert isinstance(wrong.error(), KeyError)
    assert good.outcome() == 1
    assert world.words() == ["good"]


def test_only_the_request_that_does_not_fit_is_refused(world: World) -> None:
    def too_big(tx: Transaction) -> None:
        tx.run(PUT, ("too big",))
        raise TransactionLost("disk full")  # as SQLite ends the whole transaction when the disk is full

    with world.busy():
        one, big, two = world.write(put("small 1")), world.write(too_big), world.write(put("small 2"))
        world.queue.until(3)
    assert isinstance(big.error(), StoreUnavailable)
    assert sorted([one.outcome(), two.outcome()]) == [1, 2]
    assert sorted(world.words()) == ["small 1", "small 2"]


def test_work_that_catches_exceptions_cannot_continue_in_a_lost_transaction(world: World) -> None:
    def stubborn(tx: Transaction) -> None:
        with contextlib.suppress(Exception):
            fail()
        tx.run(PUT, ("outside any transaction",))

    fail = failing(1_000)

    with pytest.raises(StoreUnavailable, match="disk full"):
        world.writer.write(stubborn)
    assert world.words() == []


def test_effects_of_a_failed_run_are_rolled_back_once(world: World) -> None:
    log: list[str] = []
    world.engine.before["commit"] = failing(1)
    world.writer.write(noting(log, "alone"))
    assert log == ["alone undone", "alone durable"]
    log.clear()
    world.engine.before["commit"] = failing(2)
    with pytest.raises(StoreUnavailable):
        world.writer.write(noting(log, "never"))
    assert log == ["never undone", "never undone"]


@pytest.mark.parametrize(
    "error", [StoreUnavailable("locked"), OSError("no locks available"), RuntimeError("a fault of the engine")]
)
def test_if_begin_fails_every_caller_gets_the_error_and_the_next_batch_runs(world: World, error: Exception) -> None:
    with world.busy():
        callers = [world.write(put(f"word {n}")) for n in range(3)]
        world.queue.until(3)
        world.engine.before["begin"] = failing(1, lambda: error)
    assert [caller.error() for caller in callers] == [error] * 3
    with world.busy():
        later = world.write(put("later"))
        world.queue.until(1)
    assert later.outcome() == 1


def test_an_error_during_the_one_by_one_retry_affects_one_request(world: World) -> None:
    begins = iter([None, TransactionLost("full"), None, RuntimeError("a fault of the engine"), None])

    def hook() -> None:
        error = next(begins)
        if error is not None:
            raise error

    world.engine.before["begin"] = hook
    with world.busy():
        callers = []
        for n in range(3):
            callers.append(world.write(put(f"word {n}")))
            world.queue.until(n + 1)
    assert callers[0].outcome() == 1
    assert isinstance(callers[1].error(), RuntimeError)
    assert callers[2].outcome() == 2


# --- parked requests when the commit fails -------------------------------------------------------


def test_a_waiter_stays_parked_when_the_commit_that_served_it_fails(world: World) -> None:
    log: list[str] = []

    def work(tx: Transaction) -> list[str]:
        tx.effects.on_rollback.append(lambda: log.append("undone"))
        return take()(tx)

    waiter = world.wait_for(work)
    world.engine.before["commit"] = failing(2)  # in the batch, and alone
    with pytest.raises(StoreUnavailable):
        world.writer.write(put("word"))
    assert log == ["undone"]
    world.parked.until(1)
    world.writer.write(put("another"))
    assert waiter.outcome() == ["another"]
    assert world.words() == []


def test_a_waiter_is_served_after_the_batch_ran_again(world: World) -> None:
    waiter = world.wait()
    world.engine.before["commit"] = failing(1)
    world.writer.write(put("word"))
    assert waiter.outcome() == ["word"]


def test_a_waiter_that_loses_the_transaction_affects_no_writer(world: World) -> None:
    fits = threading.Event()

    def too_big(tx: Transaction) -> list[str]:
        got = take()(tx)
        if got and not fits.is_set():
            raise TransactionLost("disk full")
        return got

    waiter = world.wait_for(too_big, equivalence_key="big")
    assert world.writer.write(put("word")) == 1
    assert world.words() == ["word"]
    world.clock.until_parked(2)  # the waiter, and the writer thread
    fits.set()
    world.clock.advance(RETRY_S)
    assert waiter.outcome() == ["word"]


def test_while_the_store_fails_waiters_are_tried_once_per_retry_interval(world: World) -> None:
    def work(tx: Transaction) -> list[str]:
        tx.effects.retry_at = 1_005.0
        return take()(tx)

    waiter = world.wait_for(work, timeout_s=100.0)
    world.clock.until_parked(2)
    tries = threading.Semaphore(0)

    def fail() -> None:
        tries.release()
        raise TransactionLost("disk full")

    world.engine.before["begin"] = fail
    world.clock.advance(5.0)
    for _ in range(5):
        acquire(tries)
        world.clock.until_parked(2)
        assert not tries.acquire(blocking=False)  # the clock stands, so no try happens
        world.clock.advance(RETRY_S)
    acquire(tries)
    world.engine.before.clear()
    world.writer.write(put("word"))
    assert waiter.outcome() == ["word"]


def test_effects_of_a_waiters_earlier_run_are_not_rolled_back_later(world: World) -> None:
    log: list[str] = []

    def work(tx: Transaction) -> list[str]:
        tx.effects.on_rollback.append(lambda: log.append("undone"))
        return take("none such")(tx)

    def too_big(tx: Transaction) -> list[str]:
        if take("%")(tx):
            raise TransactionLost("disk full")
        return []

    first, second = world.wait_for(too_big, equivalence_key="big"), world.wait_for(work, equivalence_key="small")
    world.writer.write(put("word"))  # the first fails before the second is tried
    assert "undone" not in log  # the first run of the second waiter is durable
    world.writer.close()
    assert len([first.error(), second.error()]) == 2


def test_a_foreign_commit_found_by_a_failed_batch_is_not_lost(world: World) -> None:
    waiter = world.wait()
    world.writer.write(put("word", wake=False))
    world.engine.foreign = True
    world.engine.before["commit"] = failing(1)
    world.writer.write(lambda _tx: None)  # it noticed the foreign commit, and then its batch was rolled back
    assert waiter.outcome() == ["word"]

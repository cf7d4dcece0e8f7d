"""The commit fails, the store closes, a caller is interrupted: each gets a true answer and nobody hangs."""

from __future__ import annotations

import contextlib
import threading

import pytest

from rota.errors import StoreUnavailable
from rota.store import Transaction
from rota.store.writer import RETRY_S, GroupFailed
from tests.store.world import PUT, World, acquire, failing, noting, put, take

# --- the commit fails ----------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["begin", "savepoint", "release", "commit"])
def test_a_group_that_fails_once_is_run_again_one_by_one(world: World, verb: str) -> None:
    with world.busy():
        callers = [world.write(put(f"word {n}")) for n in range(5)]
        world.line.until(5)
        world.engine.after["commit"] = lambda: world.engine.before.setdefault(verb, failing(1))
    assert sorted(caller.outcome() for caller in callers) == [1, 2, 3, 4, 5]
    assert sorted(world.words()) == [f"word {n}" for n in range(5)]
    assert world.engine.log.count("begin") == 1 + 1 + 5  # the one under way, the group, and each by itself


def test_alone_a_commit_that_fails_once_is_tried_once_more(world: World) -> None:
    world.engine.before["commit"] = failing(1)
    assert world.writer.write(put("word")) == 1
    assert world.words() == ["word"]


def test_while_the_disk_stays_full_each_caller_is_told_and_nothing_is_written(world: World) -> None:
    with world.busy():
        callers = [world.write(put(f"word {n}")) for n in range(5)]
        world.line.until(5)
        world.engine.after["commit"] = lambda: world.engine.before.setdefault("commit", failing(1_000))
    for caller in callers:
        error = caller.error()
        assert isinstance(error, StoreUnavailable)
        assert "nothing was written: disk full" in str(error)
    world.engine.before.clear()
    assert world.words() == []
    assert world.writer.write(put("later")) == 1


def test_a_request_with_a_fault_of_its_own_keeps_it_when_its_group_is_run_again(world: World) -> None:
    def bad(tx: Transaction) -> None:
        tx.run(PUT, ("bad",))
        raise KeyError("mine")

    with world.busy():
        good, wrong = world.write(put("good")), world.write(bad)
        world.line.until(2)
        world.engine.after["commit"] = lambda: world.engine.before.setdefault("commit", failing(1))
    assert isinstance(wrong.error(), KeyError)
    assert good.outcome() == 1
    assert world.words() == ["good"]


def test_only_the_request_that_does_not_fit_is_refused(world: World) -> None:
    def too_big(tx: Transaction) -> None:
        tx.run(PUT, ("too big",))
        raise GroupFailed("disk full")  # as SQLite ends the whole transaction for one row too many

    with world.busy():
        one, big, two = world.write(put("small 1")), world.write(too_big), world.write(put("small 2"))
        world.line.until(3)
    assert isinstance(big.error(), StoreUnavailable)
    assert sorted([one.outcome(), two.outcome()]) == [1, 2]
    assert sorted(world.words()) == ["small 1", "small 2"]


def test_work_that_catches_everything_cannot_go_on_in_a_transaction_that_is_gone(world: World) -> None:
    def stubborn(tx: Transaction) -> None:
        with contextlib.suppress(Exception):
            fail()
        tx.run(PUT, ("outside any transaction",))

    fail = failing(1_000)

    with pytest.raises(StoreUnavailable, match="disk full"):
        world.writer.write(stubborn)
    assert world.words() == []


def test_what_was_noted_in_a_run_that_failed_is_undone_and_told_once(world: World) -> None:
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
def test_when_it_cannot_even_begin_everybody_is_told_and_the_next_are_served(world: World, error: Exception) -> None:
    with world.busy():
        callers = [world.write(put(f"word {n}")) for n in range(3)]
        world.line.until(3)
        world.engine.before["begin"] = failing(1, lambda: error)
    assert [caller.error() for caller in callers] == [error] * 3
    with world.busy():
        later = world.write(put("later"))
        world.line.until(1)
    assert later.outcome() == 1


def test_a_fault_while_a_group_is_run_one_by_one_is_of_one_request(world: World) -> None:
    begins = iter([None, GroupFailed("full"), None, RuntimeError("a fault of the engine"), None])

    def hook() -> None:
        error = next(begins)
        if error is not None:
            raise error

    world.engine.before["begin"] = hook
    with world.busy():
        callers = []
        for n in range(3):
            callers.append(world.write(put(f"word {n}")))
            world.line.until(n + 1)
    assert callers[0].outcome() == 1
    assert isinstance(callers[1].error(), RuntimeError)
    assert callers[2].outcome() == 2


# --- those who wait, when the commit fails -------------------------------------------------------


def test_a_waiter_waits_on_when_the_commit_that_answered_it_fails(world: World) -> None:
    log: list[str] = []

    def work(tx: Transaction) -> list[str]:
        tx.notes.undone.append(lambda: log.append("undone"))
        return take()(tx)

    waiter = world.wait_for(work)
    world.engine.before["commit"] = failing(2)  # with it, and alone
    with pytest.raises(StoreUnavailable):
        world.writer.write(put("word"))
    assert log == ["undone"]
    world.room.until(1)
    world.writer.write(put("another"))
    assert waiter.outcome() == ["another"]
    assert world.words() == []


def test_a_waiter_gets_its_answer_after_the_group_was_run_again(world: World) -> None:
    waiter = world.wait()
    world.engine.before["commit"] = failing(1)
    world.writer.write(put("word"))
    assert waiter.outcome() == ["word"]


def test_a_waiter_that_does_not_fit_harms_nobody(world: World) -> None:
    fits = threading.Event()

    def too_big(tx: Transaction) -> list[str]:
        got = take()(tx)
        if got and not fits.is_set():
            raise GroupFailed("disk full")
        return got

    waiter = world.wait_for(too_big, same="big")
    assert world.writer.write(put("word")) == 1
    assert world.words() == ["word"]
    world.clock.until_parked(2)  # the waiter, and the writer thread until it tries again
    fits.set()
    world.clock.advance(RETRY_S)
    assert waiter.outcome() == ["word"]


def test_while_the_store_fails_waiters_are_tried_now_and_then_and_not_in_a_hurry(world: World) -> None:
    def work(tx: Transaction) -> list[str]:
        tx.notes.due_at = 1_005.0
        return take()(tx)

    waiter = world.wait_for(work, timeout_s=100.0)
    world.clock.until_parked(2)
    tries = threading.Semaphore(0)

    def fail() -> None:
        tries.release()
        raise GroupFailed("disk full")

    world.engine.before["begin"] = fail
    world.clock.advance(5.0)
    for _ in range(5):
        acquire(tries)
        world.clock.until_parked(2)
        assert not tries.acquire(blocking=False)  # the clock stands, so nobody tries
        world.clock.advance(RETRY_S)
    acquire(tries)
    world.engine.before.clear()
    world.writer.write(put("word"))
    assert waiter.outcome() == ["word"]


def test_what_a_waiter_noted_earlier_is_not_undone_by_a_later_failure(world: World) -> None:
    log: list[str] = []

    def work(tx: Transaction) -> list[str]:
        tx.notes.undone.append(lambda: log.append("undone"))
        return take("none such")(tx)

    def too_big(tx: Transaction) -> list[str]:
        if take("%")(tx):
            raise GroupFailed("disk full")
        return []

    first, second = world.wait_for(too_big, same="big"), world.wait_for(work, same="small")
    world.writer.write(put("word"))  # the first fails before the second is tried
    assert "undone" not in log  # what the second did when it came is durable
    world.writer.close()
    assert len([first.error(), second.error()]) == 2


def test_another_process_that_wrote_while_a_group_failed_is_not_forgotten(world: World) -> None:
    waiter = world.wait()
    world.writer.write(put("word", wake=False))
    world.engine.foreign = True
    world.engine.before["commit"] = failing(1)
    world.writer.write(lambda _tx: None)  # it noticed the other process, and then all it did was undone
    assert waiter.outcome() == ["word"]

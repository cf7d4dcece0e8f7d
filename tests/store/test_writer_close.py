"""The store closes or a caller is interrupted: waiting callers get an error, and a gone caller takes no word."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rota.errors import StoreUnavailable
from rota.store import Transaction
from rota.store.engine import TransactionLost
from tests.store.world import Caller, World, failing, happened, noting, put, take

# --- closing -------------------------------------------------------------------------------------


def test_close_ends_parked_and_queued_requests(world: World) -> None:
    waiters = [world.wait() for _ in range(3)]
    with world.busy():
        in_line = [world.write(put("word")) for _ in range(3)]
        world.queue.until(3)
        closing = Caller(world.writer.close)
        errors = [caller.error() for caller in waiters] + [caller.error() for caller in in_line]
        assert not closing.is_done  # the active writer finishes first
    closing.outcome()
    assert {type(error) for error in errors} == {StoreUnavailable}
    assert world.connection.execute("SELECT count(*) FROM words").fetchall() == [(0,)]


def test_after_close_every_call_raises(world: World) -> None:
    world.writer.close()
    world.writer.close()
    for call in (
        lambda: world.writer.write(put("word")),
        lambda: world.writer.wait(take(), 5.0, "words"),
        lambda: world.writer.exclusive().__enter__(),
    ):
        with pytest.raises(StoreUnavailable, match="closed"):
            call()
    assert world.writer.check_foreign_commit() is False


def test_a_batch_that_runs_while_the_store_closes_is_finished(world: World) -> None:
    tried, go_on = threading.Event(), threading.Event()

    def slow(tx: Transaction) -> int:
        tried.set()
        happened(go_on)
        return put("word")(tx)

    with world.busy():
        writer = world.write(slow)
        world.queue.until(1)
        newcomer = Caller(lambda: world.writer.wait(take("none such"), 3_600, "none"))
        world.queue.until(2)
    happened(tried)
    closing = Caller(world.writer.close)
    go_on.set()
    assert writer.outcome() == 1
    assert isinstance(newcomer.error(), StoreUnavailable)  # it would have parked, and the store is closed
    closing.outcome()


def test_a_waiter_whose_commit_fails_while_the_store_closes_gets_an_error(world: World) -> None:
    closing: list[Caller[None]] = []

    def close_then_fail() -> None:
        del world.engine.before["commit"]
        closing.append(Caller(world.writer.close))
        while not world.writer._closed:
            os.sched_yield()
        raise TransactionLost("disk full")

    waiter = world.wait()
    world.engine.before["commit"] = close_then_fail
    writer = world.write(put("word"))
    assert isinstance(waiter.error(), StoreUnavailable)
    assert writer.outcome() == 1  # a write that runs when the store closes is finished
    closing[0].outcome()


# --- interrupts ----------------------------------------------------------------------------------


class Interrupt:
    """Sends a signal until it is handled: Python can miss one that comes just before it begins to wait."""

    def __init__(self) -> None:
        self._handled = threading.Event()

    def handle(self, _number: int, _frame: object) -> None:
        if not self._handled.is_set():
            self._handled.set()
            raise KeyboardInterrupt

    def press(self) -> None:
        while not self._handled.wait(0.01):
            os.kill(os.getpid(), signal.SIGUSR1)


@pytest.fixture
def interrupt() -> Iterator[Interrupt]:
    """The main thread handles the signal."""
    made = Interrupt()
    before = signal.signal(signal.SIGUSR1, made.handle)
    yield made
    signal.signal(signal.SIGUSR1, before)


def test_an_interrupted_waiter_takes_nothing_later(world: World, interrupt: Interrupt) -> None:
    def when_parked() -> None:
        world.parked.until(1)
        world.clock.until_parked(1)
        interrupt.press()

    Caller(when_parked)
    with pytest.raises(KeyboardInterrupt):
        world.writer.wait(take(), 3_600, "words")
    assert world.writer.parked == 0
    world.writer.write(put("word"))
    assert world.words() == ["word"]


def test_an_interrupted_request_leaves_the_queue(world: World, interrupt: Interrupt) -> None:
    def when_in_line() -> None:
        world.queue.until(1)
        interrupt.press()

    with world.busy():
        Caller(when_in_line)
        with pytest.raises(KeyboardInterrupt):
            world.writer.write(put("word"))
        assert len(world.queue) == 0
    assert world.words() == []


def test_a_waiter_interrupted_while_it_runs_is_not_parked_again(world: World, interrupt: Interrupt) -> None:
    tried, go_on = threading.Event(), threading.Event()

    def work(tx: Transaction) -> list[str]:
        if threading.current_thread() is not threading.main_thread():
            tried.set()
            happened(go_on)
        return take("none such")(tx)

    callers: list[Caller[Any]] = []

    def when_tried() -> None:
        world.parked.until(1)
        callers.append(world.write(put("word")))
        happened(tried)
        interrupt.press()

    Caller(when_tried)
    with pytest.raises(KeyboardInterrupt):
        world.writer.wait(work, 3_600, "words")
    go_on.set()
    callers[0].outcome()
    assert world.writer.parked == 0
    assert world.words() == ["word"]


def test_an_interrupt_during_work_rolls_back_and_leaves_waiters_parked(world: World, interrupt: Interrupt) -> None:
    waiter = world.wait()

    def work(tx: Transaction) -> None:
        put("never")(tx)
        interrupt.press()
        raise AssertionError("the interrupt was not raised")

    with pytest.raises(KeyboardInterrupt):
        world.writer.write(work)
    assert world.words() == []
    assert world.writer.parked == 1
    world.writer.write(put("word"))
    assert waiter.outcome() == ["word"]


def test_an_interrupt_after_the_commit_undoes_nothing(world: World) -> None:
    log: list[str] = []
    waiter = world.wait()

    def work(tx: Transaction) -> None:
        noting(log, "first")(tx)
        noting(log, "second")(tx)

    world.engine.after["commit"] = failing(1, KeyboardInterrupt)  # the most likely moment: the disk is slow
    with pytest.raises(KeyboardInterrupt):
        world.writer.write(work)
    assert log == ["first durable", "second durable"]
    assert waiter.outcome() == ["first"]  # it gets the word that was taken for it in that commit
    assert world.words() == ["second"]


def test_a_single_write_interrupted_after_its_commit_gets_on_commit(world: World) -> None:
    log: list[str] = []
    world.engine.after["commit"] = failing(1, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        world.writer.write(noting(log, "word"))
    assert log == ["word durable"]
    assert world.words() == ["word"]


def test_a_single_write_interrupted_before_its_commit_writes_nothing(world: World) -> None:
    log: list[str] = []

    def work(tx: Transaction) -> None:
        noting(log, "word")(tx)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.writer.write(work)
    assert log == ["word undone"]
    assert world.words() == []


def test_a_new_request_interrupted_after_its_commit_is_not_parked(world: World) -> None:
    world.engine.after["commit"] = failing(1, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        world.writer.wait(take(), 3_600, "words")
    assert world.writer.parked == 0
    world.writer.write(put("word"))
    assert world.words() == ["word"]

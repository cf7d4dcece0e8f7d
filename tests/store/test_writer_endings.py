"""The store closes, or a caller is interrupted: whoever waits is told, and nothing is taken for nobody."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rota.errors import StoreUnavailable
from rota.store import Transaction
from rota.store.writer import GroupFailed
from tests.store.world import Caller, World, failing, happened, noting, put, take

# --- closing -------------------------------------------------------------------------------------


def test_closing_tells_those_who_wait_and_those_in_line(world: World) -> None:
    waiters = [world.wait() for _ in range(3)]
    with world.busy():
        in_line = [world.write(put("word")) for _ in range(3)]
        world.line.until(3)
        closing = Caller(world.writer.close)
        errors = [caller.error() for caller in waiters] + [caller.error() for caller in in_line]
        assert not closing.is_done  # whoever is writing finishes first
    closing.outcome()
    assert {type(error) for error in errors} == {StoreUnavailable}
    assert world.connection.execute("SELECT count(*) FROM words").fetchall() == [(0,)]


def test_after_closing_nobody_is_let_in(world: World) -> None:
    world.writer.close()
    world.writer.close()
    for call in (
        lambda: world.writer.write(put("word")),
        lambda: world.writer.wait(take(), 5.0, "words"),
        lambda: world.writer.exclusive().__enter__(),
    ):
        with pytest.raises(StoreUnavailable, match="closed"):
            call()
    assert world.writer.look_elsewhere() is False


def test_a_group_that_is_being_run_while_the_store_closes_gets_its_answers(world: World) -> None:
    tried, go_on = threading.Event(), threading.Event()

    def slow(tx: Transaction) -> int:
        tried.set()
        happened(go_on)
        return put("word")(tx)

    with world.busy():
        writer = world.write(slow)
        world.line.until(1)
        newcomer = Caller(lambda: world.writer.wait(take("none such"), 3_600, "none"))
        world.line.until(2)
    happened(tried)
    closing = Caller(world.writer.close)
    go_on.set()
    assert writer.outcome() == 1
    assert isinstance(newcomer.error(), StoreUnavailable)  # it would have waited, and there is nothing to wait for
    closing.outcome()


def test_a_waiter_whose_commit_fails_while_the_store_closes_is_told(world: World) -> None:
    closing: list[Caller[None]] = []

    def close_then_fail() -> None:
        del world.engine.before["commit"]
        closing.append(Caller(world.writer.close))
        while not world.writer._closed:
            os.sched_yield()
        raise GroupFailed("disk full")

    waiter = world.wait()
    world.engine.before["commit"] = close_then_fail
    writer = world.write(put("word"))
    assert isinstance(waiter.error(), StoreUnavailable)
    assert writer.outcome() == 1  # whoever was writing when the store closed is run to the end
    closing[0].outcome()


# --- interrupts ----------------------------------------------------------------------------------


class Interrupt:
    """Ctrl-C, pressed until it is heard: Python can miss one that comes just before it begins to wait."""

    def __init__(self) -> None:
        self._heard = threading.Event()

    def hear(self, _number: int, _frame: object) -> None:
        if not self._heard.is_set():
            self._heard.set()
            raise KeyboardInterrupt

    def press(self) -> None:
        while not self._heard.wait(0.01):
            os.kill(os.getpid(), signal.SIGUSR1)


@pytest.fixture
def interrupt() -> Iterator[Interrupt]:
    """The main thread is the one that hears it."""
    made = Interrupt()
    before = signal.signal(signal.SIGUSR1, made.hear)
    yield made
    signal.signal(signal.SIGUSR1, before)


def test_an_interrupted_waiter_takes_nothing_later(world: World, interrupt: Interrupt) -> None:
    def when_parked() -> None:
        world.room.until(1)
        world.clock.until_parked(1)
        interrupt.press()

    Caller(when_parked)
    with pytest.raises(KeyboardInterrupt):
        world.writer.wait(take(), 3_600, "words")
    assert world.writer.parked == 0
    world.writer.write(put("word"))
    assert world.words() == ["word"]


def test_one_who_is_interrupted_in_line_leaves_it(world: World, interrupt: Interrupt) -> None:
    def when_in_line() -> None:
        world.line.until(1)
        interrupt.press()

    with world.busy():
        Caller(when_in_line)
        with pytest.raises(KeyboardInterrupt):
            world.writer.write(put("word"))
        assert len(world.line) == 0
    assert world.words() == []


def test_a_waiter_that_is_interrupted_while_it_is_being_tried_is_not_parked_again(
    world: World, interrupt: Interrupt
) -> None:
    tried, go_on = threading.Event(), threading.Event()

    def work(tx: Transaction) -> list[str]:
        if threading.current_thread() is not threading.main_thread():
            tried.set()
            happened(go_on)
        return take("none such")(tx)

    callers: list[Caller[Any]] = []

    def when_tried() -> None:
        world.room.until(1)
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


def test_an_interrupt_in_the_midst_of_work_undoes_it_and_lets_the_waiters_wait(
    world: World, interrupt: Interrupt
) -> None:
    waiter = world.wait()

    def work(tx: Transaction) -> None:
        put("never")(tx)
        interrupt.press()
        raise AssertionError("nobody heard")

    with pytest.raises(KeyboardInterrupt):
        world.writer.write(work)
    assert world.words() == []
    assert world.writer.parked == 1
    world.writer.write(put("word"))
    assert waiter.outcome() == ["word"]


def test_an_interrupt_that_comes_with_the_commit_takes_nothing_back(world: World) -> None:
    log: list[str] = []
    waiter = world.wait()

    def work(tx: Transaction) -> None:
        noting(log, "first")(tx)
        noting(log, "second")(tx)

    world.engine.after["commit"] = failing(1, KeyboardInterrupt)  # where it most often comes: the disk is slow
    with pytest.raises(KeyboardInterrupt):
        world.writer.write(work)
    assert log == ["first durable", "second durable"]
    assert waiter.outcome() == ["first"]  # what was taken out for it in that commit reaches it
    assert world.words() == ["second"]


def test_one_who_writes_alone_and_is_interrupted_with_its_commit_hears_of_both(world: World) -> None:
    log: list[str] = []
    world.engine.after["commit"] = failing(1, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        world.writer.write(noting(log, "word"))
    assert log == ["word durable"]
    assert world.words() == ["word"]


def test_one_who_writes_alone_and_is_interrupted_before_its_commit_has_written_nothing(world: World) -> None:
    log: list[str] = []

    def work(tx: Transaction) -> None:
        noting(log, "word")(tx)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.writer.write(work)
    assert log == ["word undone"]
    assert world.words() == []


def test_a_newcomer_that_is_interrupted_with_its_commit_is_not_parked(world: World) -> None:
    world.engine.after["commit"] = failing(1, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        world.writer.wait(take(), 3_600, "words")
    assert world.writer.parked == 0
    world.writer.write(put("word"))
    assert world.words() == ["word"]

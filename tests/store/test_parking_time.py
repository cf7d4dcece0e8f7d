"""Parked requests and the clock: retries at their time, timeouts, and no lost words."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.clock import SystemClock
from rota.store import Transaction
from rota.store.parking import CLOCK_CHECK_S, PAUSE_S
from tests.store.world import PATIENCE_S, Caller, World, acquire, happened, put, put_all, take

# --- retry times ---------------------------------------------------------------------------------


def due(at: float, log: list[float], world: World) -> Callable[[Transaction], list[str]]:
    """Work that finds something from a time on, and sets that retry time."""

    def work(tx: Transaction) -> list[str]:
        log.append(world.clock.now())
        if world.clock.now() >= at:
            return [f"due {at:g}"]
        tx.effects.retry_at = at
        return []

    return work


def until_thread_waits(world: World, callers: int) -> None:
    """Return once the callers and the writer thread all wait on the clock."""
    world.clock.until_parked(callers + 1)


def test_a_waiter_is_tried_at_its_retry_time_and_not_before(world: World) -> None:
    log: list[float] = []
    waiter = world.wait_for(due(1_005.0, log, world))
    until_thread_waits(world, 1)
    world.clock.advance(4.0)
    until_thread_waits(world, 1)
    assert log == [1_000.0]
    world.clock.advance(1.0)
    assert waiter.outcome() == ["due 1005"]
    assert log == [1_000.0, 1_005.0]


def test_each_waiter_is_tried_at_its_own_retry_time(world: World) -> None:
    logs: list[list[float]] = [[], [], []]
    waiters = [
        world.wait_for(due(at, log, world), equivalence_key=at)
        for at, log in zip((1_009.0, 1_003.0, 1_006.0), logs, strict=True)
    ]
    for at, which in ((3.0, 1), (6.0, 2), (9.0, 0)):
        until_thread_waits(world, sum(not waiter.is_done for waiter in waiters))
        world.clock.advance(1_000.0 + at - world.clock.now())
        assert waiters[which].outcome() == [f"due {1_000 + at:g}"]
    assert world.writer.parked == 0


def test_skipped_waiters_are_tried_at_the_retry_time_of_the_first(world: World) -> None:
    log: list[float] = []
    waiters = [world.wait_for(due(1_005.0, log, world), equivalence_key="a") for _ in range(3)]
    world.writer.write(lambda tx: setattr(tx.effects, "wake_parked", True))
    until_thread_waits(world, 3)
    world.clock.advance(5.0)
    assert [waiter.outcome() for waiter in waiters] == [["due 1005"]] * 3


@pytest.mark.parametrize("left_at_s", [3.0, 6.0])
def test_a_waiter_that_left_before_its_retry_time_does_not_delay_the_next(world: World, left_at_s: float) -> None:
    """Its retry time is forgotten with it: before 1,005 and after, when the thread waits for no time any more."""
    first = world.wait_for(due(1_005.0, [], world), timeout_s=3.0)
    until_thread_waits(world, 1)
    world.clock.advance(left_at_s)
    assert first.outcome() in ([], ["due 1005"])
    world.writer.write(put("word"))  # leaves the thread without anything to wait for
    with world.busy():
        queued = world.write(put("another"))
        world.queue.until(1)
    queued.outcome()
    until_thread_waits(world, 0)
    log: list[float] = []
    second = world.wait_for(due(1_010.0, log, world))
    until_thread_waits(world, 1)
    world.clock.advance(1_010.0 - world.clock.now())
    assert second.outcome() == ["due 1010"]
    assert log[-1] == 1_010.0


def test_a_retry_time_in_the_past_is_tried_again_after_a_pause(world: World) -> None:
    tries = threading.Semaphore(0)

    def work(tx: Transaction) -> list[str]:
        tx.effects.retry_at = 1_000.0  # in the past
        tries.release()
        return take()(tx)

    waiter = world.wait_for(work)
    for _ in range(5):
        acquire(tries)
        until_thread_waits(world, 1)
        assert not tries.acquire(blocking=False)  # the clock stands, so no try happens
        world.clock.advance(PAUSE_S)
    acquire(tries)
    world.writer.write(put("word"))
    assert waiter.outcome() == ["word"]


def test_a_wall_clock_that_was_moved_is_noticed(world: World) -> None:
    log: list[float] = []
    waiter = world.wait_for(due(5_000.0, log, world), timeout_s=100_000.0)
    until_thread_waits(world, 1)
    world.clock.jump(4_500.0)  # as after a suspended laptop: it ends no wait
    world.clock.advance(CLOCK_CHECK_S)
    assert waiter.outcome() == ["due 5000"]


@pytest.mark.parametrize("at", [1e12, 1e300, float("inf")])
def test_an_endless_timeout_and_an_endless_retry_time_are_accepted(at: float) -> None:
    world = World(SystemClock())

    def work(tx: Transaction) -> list[str]:
        tx.effects.retry_at = at
        return take()(tx)

    waiters = [world.wait_for(work, timeout_s=timeout_s) for timeout_s in (float("inf"), 1e15)]
    with world.busy():
        writer = world.write(put("word"))
        world.queue.until(1)
    writer.outcome()
    world.writer.write(put("word"))
    assert [waiter.outcome() for waiter in waiters] == [["word"], ["word"]]
    world.close()


# --- timeouts ------------------------------------------------------------------------------------


def test_a_waiter_times_out_and_takes_nothing_later(world: World) -> None:
    waiter = world.wait(timeout_s=5.0)
    world.clock.until_parked(1)
    world.clock.advance(4.9)
    world.clock.until_parked(1)
    assert not waiter.is_done
    world.clock.advance(0.1)
    assert waiter.outcome() == []
    assert world.writer.parked == 0
    world.writer.write(put("word"))
    assert world.words() == ["word"]


def test_a_waiter_that_is_being_served_when_it_times_out_gets_its_result(world: World) -> None:
    tried, go_on = threading.Event(), threading.Event()

    def work(tx: Transaction) -> list[str]:
        got = take()(tx)
        if got:
            tried.set()
            happened(go_on)
        return got

    waiter = world.wait_for(work, timeout_s=5.0)
    world.clock.until_parked(1)
    writer = world.write(put("word"))
    happened(tried)
    world.clock.advance(10.0)  # too late: it has taken its word
    go_on.set()
    writer.outcome()
    assert waiter.outcome() == ["word"]


def test_a_timeout_racing_a_write_never_loses_a_word() -> None:
    world = World()
    got: list[str] = []
    left: list[str] = []
    for n in range(300):
        waiters = [world.wait(timeout_s=5.0) for _ in range(2)]
        start = threading.Barrier(2)

        def move(start: threading.Barrier = start) -> None:
            start.wait(PATIENCE_S)
            world.clock.advance(5.0)

        def write(start: threading.Barrier = start, n: int = n) -> None:
            start.wait(PATIENCE_S)
            world.writer.write(put(f"word {n}"))

        callers = [Caller(move), Caller(write)]
        for caller in callers:
            caller.outcome()
        got += [word for waiter in waiters for word in waiter.outcome()]
        left += world.writer.write(take())
        assert world.writer.parked == 0
    assert sorted(got + left) == sorted(f"word {n}" for n in range(300))
    assert got, "some were answered"
    world.close()


def test_retry_times_racing_writes_never_lose_a_word() -> None:
    """A waiter parked on its own thread may be served by another thread before it begins to wait."""
    world, clock = World(SystemClock()), SystemClock()
    for n in range(200):

        def work(tx: Transaction) -> list[str]:
            tx.effects.retry_at = clock.now() + 0.0001  # the writer thread tries it again after it is parked
            return take()(tx)

        waiters = [Caller(partial(world.writer.wait, work, PATIENCE_S, None)) for _ in range(3)]
        for k in range(3):
            world.writer.write(put(f"{n}.{k}"))
        assert sorted(word for waiter in waiters for word in waiter.outcome()) == [f"{n}.{k}" for k in range(3)]
    world.close()


# --- against a model -----------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(["a", "b"]), st.integers(1, 2)),
        st.tuples(st.just("wait"), st.sampled_from(["a", "b", "%"]), st.integers(1, 4)),
        st.tuples(st.just("advance"), st.just(""), st.integers(1, 3)),
    ),
    max_size=14,
)


class Queue:
    """A model of waiting: each word goes to the oldest waiter whose pattern matches."""

    def __init__(self) -> None:
        self.now = 0
        self.words: list[str] = []
        self.waiters: dict[int, tuple[str, int]] = {}  # number → pattern, and when it times out
        self.answers: dict[int, list[str]] = {}

    def put(self, names: list[str]) -> None:
        self.words += names
        for number, (pattern, _give_up_at) in list(self.waiters.items()):
            self._try(number, pattern)

    def wait(self, number: int, pattern: str, timeout: int) -> None:
        self.waiters[number] = (pattern, self.now + timeout)
        self._try(number, pattern)

    def advance(self, by: int) -> None:
        self.now += by
        for number, (_pattern, give_up_at) in list(self.waiters.items()):
            if give_up_at <= self.now:
                del self.waiters[number]
                self.answers[number] = []

    def _try(self, number: int, pattern: str) -> None:
        for word in self.words:
            if pattern == "%" or word.startswith(pattern):
                self.words.remove(word)
                del self.waiters[number]
                self.answers[number] = [word]
                return


@settings(max_examples=60)
@given(STEPS)
def test_in_any_order_of_events_each_word_goes_to_the_oldest_matching_waiter(
    steps: list[tuple[str, str, int]],
) -> None:
    world, model = World(), Queue()
    callers: dict[int, Caller[list[str]]] = {}
    for number, (verb, letter, amount) in enumerate(steps):
        if verb == "put":
            names = [f"{letter}{number}.{k}" for k in range(amount)]
            model.put(names)
            world.writer.write(put_all(names))
        elif verb == "wait":
            model.wait(number, letter, amount)
            pattern = letter if letter == "%" else f"{letter}%"
            callers[number] = Caller(partial(world.writer.wait, take(pattern), float(amount), pattern))
            if number in model.waiters:
                world.parked.until(len(model.waiters))
        else:
            model.advance(amount)
            world.clock.until_parked(world.writer.parked)
            world.clock.advance(float(amount))
        for done in [number for number in callers if number in model.answers]:
            assert callers.pop(done).outcome() == model.answers[done]
        assert world.writer.parked == len(model.waiters)
    assert world.words() == model.words
    world.writer.close()
    assert len([caller.error() for caller in callers.values()]) == len(model.waiters)
    world.connection.close()

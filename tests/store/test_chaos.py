"""Writers, waiters, failing commits, other processes and retry times together: no word is lost or taken twice."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from functools import partial

import pytest

from rota.clock import SystemClock
from rota.errors import StoreUnavailable
from rota.store import Transaction
from rota.store.engine import TransactionLost
from tests.store.world import Caller, World, put, take

ROUNDS = int(os.environ.get("ROTA_SOAK_ROUNDS", "6"))
PUTTERS, TAKERS, WORDS_EACH = 3, 4, 150


def write_words(world: World, chance: random.Random, name: str) -> list[str]:
    """Write words, some with work that raises, and return those that were written."""
    written = []
    for number in range(WORDS_EACH):
        word = f"{name}.{number}"
        with contextlib.suppress(StoreUnavailable, KeyError):
            world.writer.write(partial(put_or_fail, word, chance.random() < 0.2))
            written.append(word)
    return written


def put_or_fail(word: str, fails: bool, tx: Transaction) -> None:
    put(word)(tx)
    if fails:
        raise KeyError(word)


def take_words(world: World, chance: random.Random, done: threading.Event) -> list[str]:
    """Take words until there are none, with some waits, and return them."""
    taken: list[str] = []
    while True:
        is_last = done.is_set()
        with contextlib.suppress(StoreUnavailable):
            got = world.writer.wait(
                take_with_retry(chance), chance.choice((0.0, 0.0005, 0.005)), chance.choice(("a", None))
            )
            taken += got
            if is_last and not got:
                return taken


def take_with_retry(chance: random.Random) -> partial[list[str]]:
    """Work that takes a word, with a random retry time."""
    return partial(_take_soon, SystemClock().now() + chance.choice((0.0, 0.0003, 60.0)))


def _take_soon(due_at: float, tx: Transaction) -> list[str]:
    tx.effects.retry_at = due_at
    return take()(tx)


def report_foreign_commits(world: World, done: threading.Event) -> None:
    """Report foreign commits all the time, as the listener thread does."""
    while not done.is_set():
        world.engine.foreign = True
        world.writer.check_foreign_commit()
        os.sched_yield()


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_every_word_that_was_acknowledged_is_taken_once_or_still_there(seed: int) -> None:
    world, done = World(SystemClock()), threading.Event()
    trouble = random.Random(seed)

    def fail_now_and_then() -> None:
        if trouble.random() < 0.15:
            raise TransactionLost("disk full")

    for verb in ("begin", "savepoint", "release", "commit"):
        world.engine.before[verb] = fail_now_and_then
    takers = [Caller(partial(take_words, world, random.Random(seed * 100 + n), done)) for n in range(TAKERS)]
    putters = [Caller(partial(write_words, world, random.Random(seed * 100 + 50 + n), str(n))) for n in range(PUTTERS)]
    watcher = Caller(partial(report_foreign_commits, world, done))
    written = [word for putter in putters for word in putter.outcome()]
    done.set()
    taken = [word for taker in takers for word in taker.outcome()]
    watcher.outcome()
    world.engine.before.clear()
    assert sorted(taken + world.words()) == sorted(written), f"seed {seed}"
    assert world.writer.parked == 0
    assert len(world.queue) == 0
    assert taken
    world.close()

"""A signal is acted on wherever it arrives, and whatever the main thread does."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from rota.fleet.signals import acting_on

LOOKS = 200
LINGER_S = 0.1  # of a call that takes longer than the block
PATIENCE_S = 30.0  # only a test that fails waits for so long


@pytest.mark.skipif(sys.platform != "linux", reason="reads the state of a thread from /proc")
def test_a_signal_that_reaches_another_thread_does_not_wait_for_the_main_thread() -> None:
    acted = threading.Event()

    def send() -> None:
        for _ in range(LOOKS):  # until the main thread waits below; each look lets it go on
            while not Path(f"/proc/self/task/{os.getpid()}/stat").read_text().rpartition(")")[2].startswith(" S"):
                pass
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    with acting_on([signal.SIGUSR1], lambda _: acted.set()):
        sender = threading.Thread(target=send)
        sender.start()
        assert acted.wait(PATIENCE_S)  # for a lock, so a handler in Python would run afterwards
        sender.join()


def test_the_block_ends_when_the_calls_have_ended() -> None:
    """A supervisor without runs ends as soon as it is told to: what it says and records of that is not lost."""
    acted, left = threading.Event(), threading.Event()
    is_late: list[bool] = []

    def act(_number: int) -> None:
        acted.set()
        is_late.append(left.wait(LINGER_S))

    with acting_on([signal.SIGUSR1], act):
        os.kill(os.getpid(), signal.SIGUSR1)
        assert acted.wait(PATIENCE_S)
    left.set()
    assert is_late == [False]


def test_each_of_two_users_gets_its_own_signals() -> None:
    counted: Counter[str] = Counter()
    changed = threading.Semaphore(0)

    def count(name: str) -> None:
        counted[name] += 1
        changed.release()

    with acting_on([signal.SIGUSR1], lambda _: count("outer")):
        with acting_on([signal.SIGUSR2], lambda _: count("inner")):
            for number in (signal.SIGUSR1, signal.SIGUSR2):
                os.kill(os.getpid(), number)
            assert changed.acquire(timeout=PATIENCE_S)
            assert changed.acquire(timeout=PATIENCE_S)
        assert counted == {"outer": 1, "inner": 1}
        os.kill(os.getpid(), signal.SIGUSR1)
        assert changed.acquire(timeout=PATIENCE_S)
    assert counted == {"outer": 2, "inner": 1}
    assert signal.set_wakeup_fd(-1) == -1


def test_an_event_loop_around_it_keeps_its_signals() -> None:
    async def main() -> bool:
        got = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, got.set)
        with acting_on([signal.SIGUSR1], lambda _: None):
            os.kill(os.getpid(), signal.SIGUSR2)
            return await asyncio.wait_for(got.wait(), PATIENCE_S)

    assert asyncio.run(main())

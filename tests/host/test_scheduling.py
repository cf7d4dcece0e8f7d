"""Cores, scheduling policies and CPU clocks of running processes: what is in force is read back."""

from __future__ import annotations

import os
import threading

import msgspec
import pytest

from rota.errors import CommandInvalid, NotFound
from rota.host.process_cpu import process_cpu_ns, tree_cpu_ns
from rota.host.reaper_client import ReaperClient
from rota.host.thread_settings import (
    Scheduling,
    ThreadSettings,
    affinity_advisories,
    allowed_cores,
    apply_settings,
    pin,
    read_scheduling,
    read_settings,
    threads_of,
)
from tests.host.support import py, running, until

NO_SUCH_PID = 2**22 + 1  # above the largest pid of Linux
THREADS = """
import threading
stop = threading.Event()
for _ in range(5): threading.Thread(target=stop.wait, daemon=True).start()
print("ready", flush=True)
stop.wait()
"""


def test_a_thread_applies_its_own_settings_and_reads_them_back() -> None:
    core = max(allowed_cores())
    before = read_settings()
    wanted = ThreadSettings(name="settled", cores=(core,), nice=3, scheduling=Scheduling(policy="idle"))
    log: list[object] = []
    thread = threading.Thread(target=lambda: log.extend([apply_settings(wanted), read_settings()]))
    thread.start()
    thread.join()
    refused, in_force = log
    assert refused == {}
    assert isinstance(in_force, ThreadSettings)
    assert (in_force.name, in_force.cores, in_force.nice) == ("settled", (core,), 3)
    assert in_force.scheduling is not None
    assert in_force.scheduling.policy == "idle"
    assert read_settings() == before


def test_a_setting_that_is_refused_does_not_affect_the_others() -> None:
    log: list[object] = []
    wanted = ThreadSettings(cores=(900,), nice=2)
    thread = threading.Thread(target=lambda: log.extend([apply_settings(wanted), read_settings().nice]))
    thread.start()
    thread.join()
    assert log == [{"cores": "Invalid argument"}, 2]


def test_every_thread_of_a_process_is_pinned(reaper: ReaperClient) -> None:
    core = max(allowed_cores())
    with running(reaper, py(THREADS)) as (session, _pipe):
        assert pin(session.pid, {core}) == ()
        threads = list(threads_of(session.pid))
        assert len(threads) == 6
        assert {frozenset(os.sched_getaffinity(thread)) for thread in threads} == {frozenset({core})}


def test_cores_that_do_not_exist_are_reported(reaper: ReaperClient) -> None:
    core = max(allowed_cores())
    with running(reaper, py(THREADS)) as (session, _pipe):
        (advisory,) = pin(session.pid, {core, 900})
        assert str(advisory) == (
            f"cores ({core},900 requested) is not in force: the system does not allow the others; in force: {core}"
        )


def test_cores_of_a_process_that_does_not_exist() -> None:
    with pytest.raises(NotFound):
        allowed_cores(NO_SUCH_PID)
    with pytest.raises(NotFound):
        pin(NO_SUCH_PID, allowed_cores())
    with pytest.raises(CommandInvalid):
        pin(os.getpid(), [])


def test_no_advisory_when_the_cores_are_as_requested() -> None:
    assert affinity_advisories(frozenset({1}), frozenset({1})) == ()


@pytest.mark.parametrize(
    "wanted",
    [
        Scheduling(policy="batch", nice=3),
        Scheduling(policy="idle"),
        Scheduling(nice=7),
        Scheduling(policy="fifo", priority=2),
        Scheduling(policy="rr", priority=3),
        Scheduling(policy="deadline", runtime_ns=1_000_000, deadline_ns=90_000_000, period_ns=100_000_000),
        Scheduling(slice_ns=5_000_000),
    ],
    ids=str,
)
def test_a_policy_is_in_force_or_an_advisory_is_reported(reaper: ReaperClient, wanted: Scheduling) -> None:
    one_thread = py("print('ready', flush=True)\nimport signal; signal.pause()", scheduling=wanted)
    with running(reaper, one_thread) as (session, _pipe):
        in_force = read_scheduling(session.pid)
        if session.advisories:
            assert session.advisories[0].asked == str(wanted)
            assert in_force.policy == "other"
        else:  # a slice is a hint: the kernel rounds it, and old kernels ignore it
            assert in_force == msgspec.structs.replace(wanted, slice_ns=in_force.slice_ns)


def test_a_policy_of_a_process_that_does_not_exist() -> None:
    with pytest.raises(NotFound):
        read_scheduling(NO_SUCH_PID)


def test_the_cpu_clock_of_a_process_advances_while_it_runs() -> None:
    ours = process_cpu_ns(os.getpid())
    until(lambda: process_cpu_ns(os.getpid()) > ours)
    with pytest.raises(NotFound):
        process_cpu_ns(NO_SUCH_PID)


def test_the_cpu_time_of_a_tree_includes_its_children(reaper: ReaperClient) -> None:
    family = "import os\nos.fork()\nprint('ready', flush=True)\nwhile True: pass"
    with running(reaper, py(family)) as (session, _pipe):
        until(lambda: tree_cpu_ns(session.pid) > process_cpu_ns(session.pid) + 1_000_000)


PARENT = """
import os, time
for _ in range(3):
    if not os.fork():
        while time.process_time() < 0.05: pass
        os._exit(0)
    os.wait()
print('ready', flush=True)
time.sleep(600)
"""


def test_the_cpu_time_of_a_tree_includes_children_that_have_ended(reaper: ReaperClient) -> None:
    """A program that starts one short child after another is held to its quota by signals, too."""
    with running(reaper, py(PARENT)) as (session, _pipe):
        assert tree_cpu_ns(session.pid) >= process_cpu_ns(session.pid) + 3 * 40_000_000  # in hundredths of a second


def test_a_thread_may_end_while_its_process_is_pinned() -> None:
    stop = threading.Event()

    def comes_and_goes() -> None:
        while not stop.is_set():
            thread = threading.Thread(target=lambda: None)
            thread.start()
            thread.join()

    busy = threading.Thread(target=comes_and_goes)
    busy.start()
    try:
        for _ in range(50):
            pin(os.getpid(), allowed_cores())
    finally:
        stop.set()
        busy.join()

"""Cores, policies and clocks of processes that run: what is in force is read back."""

from __future__ import annotations

import os
import threading

import pytest

from rota.errors import CommandInvalid, NotFound
from rota.host.affinity import advise, allowed_cores, pin, threads_of
from rota.host.cpu_clocks import process_cpu_ns, tree_cpu_ns
from rota.host.realtime import Scheduling, apply, read
from rota.host.reaper_client import Minder
from tests.host.support import py, running, until

NO_SUCH_PID = 2**22 + 1  # above what Linux ever gives
THREADS = """
import threading
stop = threading.Event()
for _ in range(5): threading.Thread(target=stop.wait, daemon=True).start()
print("ready", flush=True)
stop.wait()
"""


def test_every_thread_of_a_process_is_pinned(minder: Minder) -> None:
    core = max(allowed_cores())
    with running(minder, py(THREADS)) as (session, _pipe):
        assert pin(session.pid, {core}) == ()
        threads = list(threads_of(session.pid))
        assert len(threads) == 6
        assert {frozenset(os.sched_getaffinity(thread)) for thread in threads} == {frozenset({core})}


def test_cores_that_are_not_there_are_said(minder: Minder) -> None:
    core = max(allowed_cores())
    with running(minder, py(THREADS)) as (session, _pipe):
        (advisory,) = pin(session.pid, {core, 900})
        assert str(advisory) == (
            f"cores ({core}, 900 was asked) is not in force: the system does not allow the others; in force: {core}"
        )


def test_cores_of_nobody() -> None:
    with pytest.raises(NotFound):
        allowed_cores(NO_SUCH_PID)
    with pytest.raises(NotFound):
        pin(NO_SUCH_PID, allowed_cores())
    with pytest.raises(CommandInvalid):
        pin(os.getpid(), [])


def test_nothing_is_said_when_the_cores_are_as_asked() -> None:
    assert advise(frozenset({1}), frozenset({1})) == ()


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
def test_a_policy_is_in_force_or_it_is_said_that_it_is_not(minder: Minder, wanted: Scheduling) -> None:
    one_thread = py("print('ready', flush=True)\nimport signal; signal.pause()")
    with running(minder, one_thread) as (session, _pipe):
        before = read(session.pid)
        advisories = apply(session.pid, wanted)
        in_force = read(session.pid)
        if advisories:
            assert advisories[0].asked == str(wanted)
            assert advisories[0].in_force == str(in_force)
            assert in_force.policy == before.policy
        else:
            expected = wanted if wanted.slice_ns else with_the_kernels_slice(wanted, in_force)
            assert in_force == expected


def with_the_kernels_slice(wanted: Scheduling, in_force: Scheduling) -> Scheduling:
    """A slice that nobody asked for is the kernel's own."""
    fields = {name: getattr(wanted, name) for name in wanted.__struct_fields__}
    return Scheduling(**{**fields, "slice_ns": in_force.slice_ns})


def test_a_policy_holds_for_every_thread(minder: Minder) -> None:
    with running(minder, py(THREADS)) as (session, _pipe):
        assert apply(session.pid, Scheduling(policy="idle")) == ()
        assert {os.sched_getscheduler(thread) for thread in threads_of(session.pid)} == {os.SCHED_IDLE}


def test_a_policy_of_nobody() -> None:
    with pytest.raises(NotFound):
        read(NO_SUCH_PID)
    with pytest.raises(NotFound):
        apply(NO_SUCH_PID, Scheduling())


def test_more_than_the_processors_have_is_said_not_raised(minder: Minder) -> None:
    """A deadline that takes all of every processor, twice."""
    second = 1_000_000_000
    greedy = Scheduling(policy="deadline", runtime_ns=second - 1, deadline_ns=second, period_ns=second)
    with running(minder, py(THREADS)) as (session, _pipe):
        (advisory,) = apply(session.pid, greedy)
        assert advisory.what == "scheduling"
        assert read(session.pid).policy in {"other", "deadline"}


def test_a_processs_clock_runs_only_while_it_does() -> None:
    ours = process_cpu_ns(os.getpid())
    until(lambda: process_cpu_ns(os.getpid()) > ours)
    with pytest.raises(NotFound):
        process_cpu_ns(NO_SUCH_PID)


def test_a_trees_clock_has_its_children_in_it(minder: Minder) -> None:
    family = "import os\nos.fork()\nprint('ready', flush=True)\nwhile True: pass"
    with running(minder, py(family)) as (session, _pipe):
        until(lambda: tree_cpu_ns(session.pid) > process_cpu_ns(session.pid) + 1_000_000)


def test_a_thread_that_ends_while_its_process_is_pinned_does_not_matter() -> None:
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

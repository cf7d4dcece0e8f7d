"""What the operating system is asked to do for a worker: applied where it allows it, read back, reported if not."""

from __future__ import annotations

import os
import threading
from typing import Any

import msgspec
import pytest

from rota.graph.capabilities import Platform, probe
from rota.graph.components import component
from rota.graph.lanes.threads import THREAD_NAME_CHARS_MAX, WorkerReport, worker_name
from rota.graph.run_options import RuntimeRunnerResult
from tests.graph.parts import log
from tests.graph.worlds import compile_world, node, run

KINDS = pytest.mark.parametrize("kind", ["thread_pool", "isolated_thread"])
CPU = min(os.sched_getaffinity(0))


@component("settings.look")
def look() -> None:
    """What the kernel says about the thread this runs on."""
    thread = threading.get_native_id()
    log.append(
        {
            "cpu_affinity": tuple(sorted(os.sched_getaffinity(thread))),
            "nice": os.getpriority(os.PRIO_PROCESS, thread),
            "policy": os.sched_getscheduler(thread),
        }
    )


def go(kind: str, platform: Platform | None = None, **fields: Any) -> tuple[RuntimeRunnerResult, WorkerReport]:
    result = run(
        [node(look, lane="x")], lanes={"main": {"type": "event_loop"}, "x": {"type": kind, **fields}}, platform=platform
    )
    return result, result.workers[0]


@KINDS
class TestApplied:
    def test_a_worker_is_bound_to_its_cpus(self, kind: str) -> None:
        _, report = go(kind, cpu_affinity=[CPU])
        assert report.cpu_affinity == (CPU,)
        assert log[0]["cpu_affinity"] == (CPU,)

    def test_a_worker_is_as_nice_as_asked(self, kind: str) -> None:
        _, report = go(kind, nice_priority=7)
        assert report.nice == 7
        assert log[0]["nice"] == 7

    def test_only_the_worker_is_changed(self, kind: str) -> None:
        before = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        go(kind, cpu_affinity=[CPU], nice_priority=5)
        assert before == (os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    def test_a_realtime_policy_is_applied_or_its_refusal_is_reported(self, kind: str) -> None:
        """With the right to it the policy is in force; without, the plan says so and the worker runs as it is."""
        result, report = go(kind, rt_policy="rr", rt_priority=1)
        assert result.ok
        if probe().realtime:
            assert (report.rt_policy, report.rt_priority) == ("rr", 1)
            assert log[0]["policy"] & ~os.SCHED_RESET_ON_FORK == os.SCHED_RR
        else:
            assert (report.rt_policy, report.rt_priority) == ("none", 0)

    def test_the_kernel_knows_the_workers_name(self, kind: str) -> None:
        _, report = go(kind, thread_name="listener")
        assert report.name == "listener-0"


@KINDS
def test_nothing_is_tried_that_the_platform_does_not_offer(kind: str) -> None:
    before = os.sched_getaffinity(0)
    _, report = go(kind, Platform(name="bare"), cpu_affinity=[CPU], nice_priority=9, thread_name="x")
    assert set(report.cpu_affinity or ()) == before
    assert report.nice == os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert report.advisories == ()


@KINDS
def test_what_is_refused_at_the_last_moment_is_an_advisory_and_never_a_failure(kind: str) -> None:
    """The platform was thought to allow it: a CPU that went away, a right that was taken."""
    believed = msgspec.structs.replace(probe(), cpus=(CPU, 4095))
    result, report = go(kind, believed, cpu_affinity=[4095])
    assert result.ok
    assert len(report.advisories) == 1
    assert report.advisories[0].startswith("cpu_affinity was not granted")


class TestNames:
    @pytest.mark.parametrize(
        ("thread_name", "worker_id", "expected"),
        [("", 0, "pool-0"), ("short", 3, "short-3"), ("a-very-long-name", 12, "a-very-long--12")],
    )
    def test_the_name_is_cut_and_the_number_is_not(self, thread_name: str, worker_id: int, expected: str) -> None:
        plan, _ = compile_world(
            [node(look, lane="pool")], lanes={"pool": {"type": "thread_pool", "thread_name": thread_name}}
        )
        assert worker_name(plan.lanes["pool"], worker_id) == expected
        assert len(expected) <= THREAD_NAME_CHARS_MAX


def test_a_lane_without_components_starts_no_workers() -> None:
    lanes = {"main": {"type": "event_loop"}, "unused": {"type": "thread_pool", "max_threads": 8}}
    result = run([node(look)], lanes=lanes)
    assert result.workers == ()
    assert result.metric("runtime.scheduler.worker_count", lane="unused") == 0

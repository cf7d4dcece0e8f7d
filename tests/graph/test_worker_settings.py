"""Operating-system settings of workers: applied if allowed, read back, reported if refused."""

from __future__ import annotations

import os
import threading
from typing import Any

import msgspec
import pytest

from rota.graph.capabilities import Platform, probe
from rota.graph.components import component
from rota.graph.lanes.worker_settings import THREAD_NAME_CHARS_MAX, WorkerReport, worker_name
from rota.graph.results import RuntimeRunnerResult
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

    def test_a_worker_has_the_configured_nice_value(self, kind: str) -> None:
        _, report = go(kind, nice_priority=7)
        assert report.nice == 7
        assert log[0]["nice"] == 7

    def test_only_the_worker_is_changed(self, kind: str) -> None:
        before = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        go(kind, cpu_affinity=[CPU], nice_priority=5)
        assert before == (os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    def test_a_realtime_policy_is_applied_or_its_refusal_is_reported(self, kind: str) -> None:
        """With permission the policy is in force; without it, the plan reports that and the worker runs unchanged."""
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
def test_fields_that_the_platform_does_not_support_are_not_tried(kind: str) -> None:
    before = os.sched_getaffinity(0)
    _, report = go(kind, Platform(name="bare"), cpu_affinity=[CPU], nice_priority=9, thread_name="x")
    assert set(report.cpu_affinity or ()) == before
    assert report.nice == os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert report.advisories == ()


@KINDS
def test_a_refused_setting_is_an_advisory_and_not_a_failure(kind: str) -> None:
    """The probe had allowed it, but the CPU or the permission is gone by now."""
    believed = msgspec.structs.replace(probe(), cpus=(CPU, 4095))
    result, report = go(kind, believed, cpu_affinity=[4095])
    assert result.ok
    assert len(report.advisories) == 1
    assert report.advisories[0].startswith("cpu_affinity was not applied")


class TestNames:
    @pytest.mark.parametrize(
        ("thread_name", "worker_id", "expected"),
        [("", 0, "pool-0"), ("short", 3, "short-3"), ("a-very-long-name", 12, "a-very-long--12")],
    )
    def test_the_name_is_cut_but_not_the_number(self, thread_name: str, worker_id: int, expected: str) -> None:
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

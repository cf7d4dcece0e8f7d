"""The fleet: what a run costs beside the barest way to do the same."""

from __future__ import annotations

import operator
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from bench.harness import Arena, Case
from rota.fleet.agent_settings import AgentSettings
from rota.fleet.runners.callable import CallableRunner
from rota.fleet.runners.command import CommandRunner
from rota.fleet.runners.contract import Assignment, Runner, StopHandle
from rota.fleet.runners.resources import RunnerResources
from rota.model.work import Agent, Limits, ReadyEntry

SPAWNS = 200  # in one round
CALLS = 1_000
TRUE = "/bin/true"
LIMITS = Limits(cpu_s=60, memory_bytes=1024**3, open_files=256, processes=10_000)


def cases() -> Iterator[Case]:
    run = "subprocess.run"
    yield Case("command-spawn", SPAWNS, "ops/s", run, lambda: _spawn_arena(groups=False), ops=SPAWNS, goal=0.5)
    yield Case("command-group", SPAWNS, "ops/s", run, lambda: _spawn_arena(groups=True), ops=SPAWNS)
    pool = "ProcessPoolExecutor(1).submit().result()"
    yield Case("warm-process", CALLS, "ops/s", pool, _warm_arena, ops=CALLS, goal=0.5)


class _NullChannel:
    """A supervisor that stores nothing: the bench measures the runner."""

    stop_reason: str | None = None

    def started(self, stop_handle: StopHandle, **_about: Any) -> None:
        """It runs."""

    def settings_changed(self, **_about: Any) -> None:
        """It runs with other settings."""

    def coordinates(self, run_id: str) -> None:
        """A graph run."""

    def log(self, data: bytes) -> None:
        """Output."""

    def log_tail(self) -> str:
        return ""

    def charge(self, *_args: Any, **_options: Any) -> dict[str, int]:
        return {}

    def remaining(self, node: str | None = None) -> dict[str, int]:  # noqa: ARG002  # required by the protocol
        return {}

    def checkpoint(self, state: Mapping[str, Any]) -> None:
        """Saved."""

    def throttled(self, retry_after_s: float, name: str | None = None) -> None:
        """A pause."""

    def progress(self, fraction: float, text: str = "") -> None:
        """How far it is."""

    def wait_for_stop(self, timeout_s: float | None = None) -> bool:  # noqa: ARG002  # required by the protocol
        return False

    def acquire(self, *_args: Any, **_options: Any) -> str:
        return ""

    def settle(self, *_args: Any, **_options: Any) -> dict[str, int]:
        return {}

    def emit(self, *_args: Any, **_options: Any) -> int:
        return 0

    def spawn(self, *_args: Any, **_options: Any) -> int:
        return 0

    def wait_for(self, *_args: Any, **_options: Any) -> list[ReadyEntry]:
        return []


def _assignment(settings: AgentSettings, payload: dict[str, Any]) -> Assignment:
    entry = ReadyEntry(
        1, 1, 0, 0.0, None, "manual", payload, "dispatched", "w", 0.0, 0.0, None, None, attempt=1, token=1
    )
    agent = Agent(1, None, "bench", "t", "RUNNING", None, 0.0, 0.0, None, None, None, {}, {}, None)
    return Assignment(entry=entry, agent=agent, settings=settings, slot="s0")


def _codes(runner: Runner, assignment: Assignment, count: int) -> list[Any]:
    channel = _NullChannel()
    return [runner.run(assignment, channel).result for _ in range(count)]


def _spawn_arena(*, groups: bool) -> Arena:
    resources = RunnerResources()
    runner = CommandRunner(resources, use_groups=groups)
    assignment = _assignment(AgentSettings(runner="command", argv=(TRUE,), cwd="/tmp", limits=LIMITS), {"n": 1})
    return Arena(
        rota=lambda: [result["exit_code"] for result in _codes(runner, assignment, SPAWNS)],
        base=lambda: [subprocess.run([TRUE], cwd="/tmp", check=False).returncode for _ in range(SPAWNS)],
        close=resources.close,
    )


def _warm_arena() -> Arena:
    resources = RunnerResources()
    runner = CallableRunner(resources, {}, slots=1)
    executor = ProcessPoolExecutor(1)
    assignment = _assignment(AgentSettings(function=f"{__name__}:negated", isolation="process"), {"n": 5})

    def close() -> None:
        runner.close()
        resources.close()
        executor.shutdown()

    return Arena(
        rota=lambda: _codes(runner, assignment, CALLS),
        base=lambda: [executor.submit(operator.neg, 5).result() for _ in range(CALLS)],
        close=close,
    )


def negated(n: int) -> int:
    return -n

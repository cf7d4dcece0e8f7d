"""The report of a simulation: shares, lag, latencies, misses, switches and migrations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from rota.cores import ThreadCpuAccount
from rota.sim.simulation import Simulation
from rota.sim.threads import SimThread

__all__ = ["CoreReport", "SimReport", "ThreadReport", "TimeSpread", "make_report"]


class TimeSpread(msgspec.Struct, frozen=True):
    """The distribution of a set of times, in ns."""

    count: int
    p50_ns: int
    p99_ns: int
    max_ns: int

    @classmethod
    def of(cls, times: Sequence[int]) -> TimeSpread | None:
        """Return the distribution of some times, or None without times. Percentiles are not interpolated."""
        if not times:
            return None
        ordered = sorted(times)
        last = len(ordered) - 1
        return cls(len(ordered), ordered[last * 50 // 100], ordered[-(-last * 99 // 100)], ordered[-1])


class ThreadReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of one thread."""

    name: str
    runtime_ns: int
    share_ppm: int  # part of one core, in millionths
    lag_min_ns: int
    lag_max_ns: int
    latency: TimeSpread | None  # from waking to running
    response: TimeSpread | None  # from request to completion
    switches: int
    preemptions: int
    migrations: int


class CoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of one core."""

    core: int
    idle_ppm: int


class SimReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a simulation."""

    duration_ns: int
    events: int
    threads: tuple[ThreadReport, ...]
    cores: tuple[CoreReport, ...]
    counted: dict[str, int]  # the engine's counters
    decisions: dict[str, int]  # decisions other than run, preempt, idle and reschedule, by kind


def make_report(simulation: Simulation) -> SimReport:
    """Return the report of a simulation so far."""
    engine, now = simulation.engine, max(1, simulation.now)
    return SimReport(
        duration_ns=simulation.now,
        events=simulation.events,
        threads=tuple(_threads(simulation)),
        cores=tuple(
            CoreReport(core=core, idle_ppm=engine.idle_ns(core, now) * 1_000_000 // now)
            for core in range(engine.core_count)
        ),
        counted=engine.counters.as_dict(),
        decisions=dict(sorted(simulation.decisions.items())),
    )


def _threads(simulation: Simulation) -> Iterator[ThreadReport]:
    for thread in simulation.threads.values():
        yield _thread(simulation, thread, simulation.engine.account(thread.entity, simulation.now))
    for thread, account in simulation.ended:
        yield _thread(simulation, thread, account)


def _thread(simulation: Simulation, thread: SimThread, account: ThreadCpuAccount) -> ThreadReport:
    low, high = simulation.lag_extremes.get(thread.name, (0, 0))
    return ThreadReport(
        name=thread.name,
        runtime_ns=account.runtime_ns,
        share_ppm=account.runtime_ns * 1_000_000 // max(1, simulation.now),
        lag_min_ns=low,
        lag_max_ns=high,
        latency=TimeSpread.of(thread.latencies),
        response=TimeSpread.of(thread.responses),
        switches=account.context_switches,
        preemptions=account.preemptions,
        migrations=account.migrations,
    )

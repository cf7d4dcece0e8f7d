"""What a simulation showed: shares, lag, latencies, misses, switches, migrations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from rota.sim.simulation import Simulation
from rota.sim.threads import Thread

__all__ = ["CoreReport", "Report", "Spread", "ThreadReport", "report"]


class Spread(msgspec.Struct, frozen=True):
    """How a set of times is spread, in ns."""

    count: int
    p50_ns: int
    p99_ns: int
    max_ns: int

    @classmethod
    def of(cls, times: Sequence[int]) -> Spread | None:
        """The spread of some times, or None if there are none. A percentile is one of the times, not between two."""
        if not times:
            return None
        ordered = sorted(times)
        last = len(ordered) - 1
        return cls(len(ordered), ordered[last * 50 // 100], ordered[-(-last * 99 // 100)], ordered[-1])


class ThreadReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of one thread."""

    name: str
    runtime_ns: int
    share_ppm: int  # of one core, in millionths
    lag_min_ns: int
    lag_max_ns: int
    latency: Spread | None  # from waking to running
    response: Spread | None  # from being asked to being done
    switches: int
    preemptions: int
    migrations: int


class CoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of one core."""

    core: int
    idle_ppm: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a simulation showed."""

    duration_ns: int
    events: int
    threads: tuple[ThreadReport, ...]
    cores: tuple[CoreReport, ...]
    counted: dict[str, int]  # the engine's evidence
    decisions: dict[str, int]  # those that people want to know of, by kind


def report(simulation: Simulation) -> Report:
    """What a simulation has shown so far."""
    machine, now = simulation.machine, max(1, simulation.now)
    return Report(
        duration_ns=simulation.now,
        events=simulation.events,
        threads=tuple(_threads(simulation)),
        cores=tuple(
            CoreReport(core=core, idle_ppm=machine.idle_ns(core, now) * 1_000_000 // now)
            for core in range(machine.core_count)
        ),
        counted=machine.evidence.counted(),
        decisions=dict(sorted(simulation.decisions.items())),
    )


def _threads(simulation: Simulation) -> Iterator[ThreadReport]:
    for thread in simulation.threads.values():
        account = simulation.machine.account(thread.entity, simulation.now)
        yield _thread(
            simulation,
            thread,
            account.runtime_ns,
            (account.context_switches, account.preemptions, account.migrations),
        )
    for thread, account in simulation.ended:
        counts = account.context_switches, account.preemptions, account.migrations
        yield _thread(simulation, thread, account.runtime_ns, counts)


def _thread(simulation: Simulation, thread: Thread, runtime_ns: int, counts: tuple[int, int, int]) -> ThreadReport:
    low, high = simulation.lag_extremes.get(thread.name, (0, 0))
    switches, preemptions, migrations = counts
    return ThreadReport(
        name=thread.name,
        runtime_ns=runtime_ns,
        share_ppm=runtime_ns * 1_000_000 // max(1, simulation.now),
        lag_min_ns=low,
        lag_max_ns=high,
        latency=Spread.of(thread.latencies),
        response=Spread.of(thread.responses),
        switches=switches,
        preemptions=preemptions,
        migrations=migrations,
    )

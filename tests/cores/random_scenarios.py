"""Random scenarios from a seed: hogs, sleepers, callers, periodic threads, groups, contexts and islands."""

from __future__ import annotations

import random
from typing import Any

from rota.cores.accounts import LatencyClass
from rota.sim.scenario import ContextSpec, GroupSpec, IslandSpec, Scenario, ThreadSpec

LATENCIES: tuple[LatencyClass, ...] = ("sensitive", "normal", "normal", "batch")


def random_scenario(seed: int) -> Scenario:
    rng = random.Random(seed)
    cores = rng.choice([1, 1, 2, 2, 3, 4])
    groups = tuple(
        GroupSpec(name=f"group{number}", weight=rng.choice([0.5, 1, 3])) for number in range(rng.randint(0, 2))
    )
    caps = tuple(_cap(number, rng) for number in range(rng.randint(0, 3)))
    reserved, activations = _reservations(cores, rng)
    threads = [*activations, *_servers(rng)]
    threads += [_thread(number, cores, groups, caps, rng) for number in range(rng.randint(2, 9))]
    islands = (IslandSpec(name="island", contexts=tuple(one.name for one in reserved)),) if reserved else ()
    return Scenario(
        seed=seed,
        cores=cores,
        duration_ms=60,
        group=groups,
        context=(*caps, *reserved),
        thread=tuple(threads),
        island=islands,
    )


def _cap(number: int, rng: random.Random) -> ContextSpec:
    period = rng.choice([5_000, 20_000, 50_000])
    return ContextSpec(
        name=f"cap{number}",
        budget_us=max(200, period * rng.randint(5, 60) // 100),
        period_us=period,
        overrun=rng.choice(["throttle", "throttle", "demote", "notify"]),
        endpoint=rng.choice([None, number]),
    )


def _reservations(cores: int, rng: random.Random) -> tuple[tuple[ContextSpec, ...], list[ThreadSpec]]:
    """Contexts that fit together, at most 70 % of each core, and for each a thread that stays within its budget."""
    contexts, threads = [], []
    for core in range(cores):
        left, criticality = 70, rng.choice(["high", "critical"])
        for number in range(rng.randint(0, 2)):
            part = rng.randint(5, 30)
            left -= part
            period = rng.choice([4_000, 10_000, 25_000])
            if left < 0:
                break
            name = f"reserved{core}{number}"
            budget = period * part // 100
            contexts.append(
                ContextSpec(
                    name=name,
                    budget_us=budget,
                    period_us=period,
                    criticality=criticality,  # type: ignore[arg-type]  # one of two words
                    cores=(core,),
                )
            )
            threads.append(
                ThreadSpec(
                    name=f"rt{core}{number}",
                    kind="periodic",
                    context=name,
                    work_us=(max(1, budget // 2), budget),
                    every_us=period + rng.choice([0, 0, 777]),
                    start_ms=rng.randint(0, 9),
                )
            )
    return tuple(contexts), threads


def _servers(rng: random.Random) -> list[ThreadSpec]:
    if rng.random() < 0.5:
        return []
    server = ThreadSpec(name="server", kind="server", count=rng.randint(1, 2))
    callers = ThreadSpec(
        name="caller",
        kind="caller",
        count=rng.randint(1, 4),
        server="server",
        work_us=(50, 2_000),
        serve_us=(50, 4_000),
        sleep_us=(50, 9_000),
        latency=rng.choice(LATENCIES),
    )
    return [server, callers]


def _thread(
    number: int, cores: int, groups: tuple[GroupSpec, ...], caps: tuple[ContextSpec, ...], rng: random.Random
) -> ThreadSpec:
    kind = rng.choice(["hog", "sleeper", "sleeper", "periodic"])
    mask = rng.choice([(), (), (), (rng.randrange(cores),)])
    spans: dict[str, dict[str, Any]] = {
        "hog": {},
        "sleeper": {"work_us": (10, rng.choice([300, 6_000])), "sleep_us": (10, rng.choice([500, 9_000]))},
        "periodic": {"work_us": (10, 1_000), "every_us": rng.choice([2_000, 7_000])},
    }
    return ThreadSpec(
        name=f"thread{number}",
        kind=kind,  # type: ignore[arg-type]  # one of three words
        count=rng.choice([1, 1, 2, 5]),
        weight=rng.choice([0.1, 0.5, 1, 1, 2, 7]),
        latency=rng.choice(LATENCIES),
        group=rng.choice([None, *(group.name for group in groups)]),
        context=rng.choice([None, None, *(cap.name for cap in caps)]),
        cores=mask,
        start_ms=rng.choice([0, 0, 13]),
        **spans[kind],
    )

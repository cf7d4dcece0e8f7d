"""Seeded random scenarios: whatever happens, these hold after every step. Soak runs many more of them.

    one owner per runnable · lag within one maximal request of the fluid ideal per core · budget conserved to the unit ·
    no context runs past its budget · no admitted island misses while its assumptions hold · nothing starves

A failure prints its seed; `ROTA_CPU_SCENARIOS=1 ROTA_CPU_FIRST_SEED=<seed>` runs it alone.
"""

from __future__ import annotations

import os

import pytest

from rota.cpu import Machine
from rota.sim.cores.build import build
from rota.sim.cores.report import report
from rota.sim.cores.scenario import Scenario, ThreadSpec, weight_of
from rota.sim.cores.simulation import Simulation
from rota.sim.cores.threads import Hog
from tests.cpu.watch import LagWatch, check_budgets, check_conservation
from tests.cpu.worlds import random_scenario

MS = 1_000_000
SLICE_MAX = 12 * MS  # of the longest latency class
BATCH = 10  # seeds in one test, so that a failure is found soon and the list stays short

FIRST = int(os.environ.get("ROTA_CPU_FIRST_SEED", "0"))
COUNT = int(os.environ.get("ROTA_CPU_SCENARIOS", "10000" if os.environ.get("ROTA_SOAK") else "100"))


def run_watched(scenario: Scenario) -> Simulation:
    simulation = build(scenario, observe=False)
    watch = LagWatch()

    def check(machine: Machine) -> None:
        machine.audit()
        watch(machine, simulation.now)
        check_budgets(machine)
        check_conservation(machine, simulation.now)

    simulation.check = check
    simulation.run(scenario.duration_ms * MS)
    return simulation


def least_runtime(scenario: Scenario, thread: Hog) -> int:
    """What a hog without a context gets at least: its share if everybody wants its core all the time."""
    spec = next(one for one in scenario.thread if thread.name.split("-")[0] == one.name)
    everybody = sum(weight_of(one.weight) * one.count for one in scenario.thread)
    everybody += sum(weight_of(group.weight) for group in scenario.group)
    promised = max(
        (one.budget_us / one.period_us for one in scenario.context if one.criticality != "normal"), default=0
    )
    left = 1 - min(0.95, 2 * promised)
    share = weight_of(spec.weight) / everybody
    if spec.group is not None:
        share *= weight_of(next(one.weight for one in scenario.group if one.name == spec.group)) / everybody
    return int((scenario.duration_ms - spec.start_ms) * MS * left * share) - 3 * SLICE_MAX


@pytest.mark.parametrize("batch", range(-(-COUNT // BATCH)))
def test_random_scenarios_keep_every_law(batch: int) -> None:
    for seed in range(FIRST + batch * BATCH, FIRST + min(COUNT, (batch + 1) * BATCH)):
        scenario = random_scenario(seed)
        try:
            simulation = run_watched(scenario)
        except AssertionError as problem:
            raise AssertionError(f"seed {seed}: {problem}") from problem
        assert simulation.machine.evidence.misses == 0, f"seed {seed}: an admitted island missed"
        for thread in simulation.threads.values():
            if isinstance(thread, Hog) and simulation.machine.entity(thread.entity).paying is None:
                ran = simulation.machine.account(thread.entity, simulation.now).runtime_ns
                assert ran >= least_runtime(scenario, thread), f"seed {seed}: {thread.name} starved"


def test_a_scenario_is_the_same_every_time() -> None:
    for seed in (3, 14, 15):
        scenario = random_scenario(seed)
        runs = []
        for _ in range(2):
            simulation = build(scenario)
            simulation.run(scenario.duration_ms * MS)
            runs.append((report(simulation), simulation.segments, simulation.notes))
        assert runs[0] == runs[1]


def test_the_watch_would_notice() -> None:
    """The laws can fail: under round robin a hog of ten times the weight is soon further behind than a slice."""
    hogs = tuple(ThreadSpec(name=name, kind="hog", weight=weight) for name, weight in (("heavy", 10), ("light", 1)))
    simulation = build(Scenario(cores=1, duration_ms=100, thread=hogs), rule="round_robin", observe=False)
    watch = LagWatch()
    simulation.check = lambda machine: watch(machine, simulation.now)
    with pytest.raises(AssertionError, match=r"ahead|behind"):
        simulation.run(100 * MS)

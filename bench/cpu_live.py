"""The live driver for cores, as figures: shares, a budget, and what the driver itself costs.

Each figure is a percentage that was measured on real processes, by their own clocks. Beside it stands, where control
groups give it, the kernel's own weight or quota for the same commands in the same run. There is no ratio to reach:
these depend on what else the machine does meanwhile.

`--attribute` says where the driver's own time goes, with a trace and without, and what the same commands get from the
kernel alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

from bench.harness import Arena, Case, Measured
from rota.cores.telemetry import EngineTrace
from rota.fleet.cores_driver import CpuDriver, DriverReport
from rota.host.cgroup_files import GroupLimits
from rota.host.cgroups import Cgroups
from rota.host.command import Command
from rota.host.reaper_client import ReaperClient
from rota.host.thread_settings import allowed_cores

MS = 1_000_000
SECONDS = 10.0
ATTRIBUTE_S = 2.0
HOG = (sys.executable, "-S", "-c", "while True: pass")
MANY = 20


def cases() -> Iterator[Case]:
    for name, n, arena in (
        ("live-weight-3-of-4", 2, _weights),
        ("live-budget-20-of-100", 1, _budget),
        ("live-driver-cost-20", MANY, _cost),
    ):
        yield Case(name, n, "%", "the kernel's control groups", arena, rounds=1)


def _core() -> int:
    return max(allowed_cores())


def _hog() -> Command:
    return Command(argv=HOG, env={"PATH": os.environ.get("PATH", os.defpath)}, cores=frozenset({_core()}))


def _weights() -> Arena:
    def ours() -> Measured:
        with CpuDriver(cores=[_core()]) as driver:
            for name, weight in (("a", 3000), ("b", 1000)):
                driver.launch(name, _hog(), weight=weight)
            driver.run(SECONDS)
            return Measured(driver.report().processes[0].share_ppm / 10_000)

    return Arena(rota=ours, base=_kernel("weight", (300, 100), lambda used, _: used[0] * 100 / sum(used)), verify=_any)


def _budget() -> Arena:
    def ours() -> Measured:
        with CpuDriver(cores=[_core()]) as driver:
            driver.launch("a", _hog())
            driver.limit("a", budget_ns=20 * MS, period_ns=100 * MS)
            driver.run(SECONDS)
            report = driver.report()
            return Measured(report.processes[0].cpu_ns * 100 / report.wall_ns)

    return Arena(rota=ours, base=_kernel("quota", (20_000,), lambda used, wall: used[0] * 100 / wall), verify=_any)


def _cost() -> Arena:
    def ours() -> Measured:
        with CpuDriver(cores=[_core()]) as driver:
            for number in range(MANY):
                driver.launch(f"p{number}", _hog())
            driver.run(SECONDS)
            return Measured(driver.report().driver_ppm / 10_000)

    return Arena(rota=ours, verify=_any)


def _kernel(
    feature: str, values: tuple[int, ...], figure: Callable[[list[int], int], float]
) -> Callable[[], Measured] | None:
    """The same commands under the kernel's own weight or quota; None where control groups do not give it."""
    cgroups = Cgroups()
    if not cgroups.support["weight" if feature == "weight" else "quota"].works:
        return None

    def base() -> Measured:
        field = "weight" if feature == "weight" else "quota_us"
        with ReaperClient() as reaper:
            groups = [cgroups.create(GroupLimits(**{field: value})) for value in values]
            sessions = [reaper.spawn(_hog(), group=group) for group in groups]
            sessions[0].wait(SECONDS)  # it never ends: this is how long they run
            used = [session.cpu_ns() for session in sessions]
            for session in sessions:
                session.kill()
                session.wait()
            for group in groups:
                group.remove()
        return Measured(figure(used, round(SECONDS * 1e9)))

    return base


def _any(*_answers: object) -> bool:
    return True


# --- where the time goes -----------------------------------------------------------------------------


def attribute() -> None:
    """Print where the live driver's own time goes, beside the same commands without it and with a trace."""
    print(f"\ntwo hogs on one core for {ATTRIBUTE_S:g} s: what they had, and the driver's own time\n")
    print(f"  {'without the driver':34} {_without_driver():8.1%} of the core")
    for name, trace in (("with the driver, no trace", None), ("with the driver, tracing", EngineTrace())):
        with CpuDriver(cores=[_core()], trace=trace) as driver:
            for number in range(2):
                driver.launch(f"p{number}", _hog())
            driver.run(ATTRIBUTE_S)
            _print_spent(name, driver.report(), driver.engine.counters.trace_bytes)


def _without_driver() -> float:
    """What both hogs had of the core when only the kernel shared it."""
    with ReaperClient() as reaper:
        sessions = [reaper.spawn(_hog()) for _ in range(2)]
        sessions[0].wait(ATTRIBUTE_S)  # it never ends: this is how long they run
        used_ns = sum(session.cpu_ns() for session in sessions)
        for session in sessions:
            session.kill()
            session.wait()
    return used_ns / 1e9 / ATTRIBUTE_S


def _print_spent(name: str, report: DriverReport, trace_bytes: int) -> None:
    used_ns = sum(one.cpu_ns for one in report.processes)
    print(f"  {name:34} {used_ns / report.wall_ns:8.1%} of the core; the driver {report.driver_ppm / 10_000:.2f} %")
    for field in report.spent.__struct_fields__:
        print(f"    {field:32} {getattr(report.spent, field) * 100 / report.wall_ns:8.3f} % of the time")
    print(f"    {'trace_bytes':32} {trace_bytes:8,}")

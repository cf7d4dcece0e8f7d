"""CPU settings on real processes, as figures: shares, a quota, sleepers, a fleet, and what the driver itself costs.

Each figure is a percentage that was measured on real processes, by the kernel's own count. Beside it stands, in the
same run, what the kernel's control groups do alone, or plain Linux. The cases named `…-fallback` are the same without
control groups: niceness and signals. These depend on what else the machine does meanwhile.

    live-two-cores    weights 10:1:10:1 on two cores: the largest distance of a share from the ideal, in points
    live-sleepers     six programs of 0.5 ms work and 4 ms sleep beside a hog: the part of the core that is used
    fleet-weights     agents weighted 3:1 under `rota run`: the share of the first
    live-driver-cost  the driver and its reaper, with 20 processes, of one core
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import rota
from bench.harness import Arena, Case, Measured
from rota.fleet.cores_driver import CpuDriver, DriverReport
from rota.host.cgroup_files import GroupLimits
from rota.host.cgroups import Cgroups
from rota.host.command import Command
from rota.host.reaper_client import ReaperClient
from rota.host.thread_settings import allowed_cores
from rota.model.cpu import CpuSettings

SECONDS = float(os.environ.get("ROTA_BENCH_SECONDS", "10"))
ATTRIBUTE_S = 2.0
HOG = "while True: pass"
SLEEPER = """
import time
while True:
    end = time.thread_time() + 0.0005
    while time.thread_time() < end: pass
    time.sleep(0.004)
"""
MANY = 20
SLEEPERS = 6
TWO_CORES = (10.0, 1.0, 10.0, 1.0)
FLEET = """
name = "bench"
slots = 2
[agents.heavy]
command = ["timeout", "{seconds}", "sh", "-c", "while :; do :; done"]
cpu = {{ weight = 3, cores = "{core}" }}
restart = {{ when = "never" }}
triggers = [{{ on = "start" }}]
[agents.light]
command = ["timeout", "{seconds}", "sh", "-c", "while :; do :; done"]
cpu = {{ weight = 1, cores = "{core}" }}
restart = {{ when = "never" }}
triggers = [{{ on = "start" }}]
"""
KERNEL, LINUX = "the kernel's control groups", "plain Linux"


def cases() -> Iterator[Case]:
    for groups in (True, False):
        for name, n, baseline, arena in (
            ("live-weight-3-of-4", 2, KERNEL, _weights),
            ("live-budget-20-of-100", 1, KERNEL, _quota),
            ("live-two-cores", 4, KERNEL, _two_cores),
            ("live-sleepers", SLEEPERS + 1, LINUX, _sleepers),
            ("live-driver-cost-20", MANY, KERNEL, _cost),
        ):
            yield Case(name if groups else f"{name}-fallback", n, "%", baseline, partial(arena, groups), rounds=1)
    yield Case("fleet-weights", 2, "%", KERNEL, _fleet, rounds=1)


def _core() -> int:
    return max(allowed_cores())


def _two() -> list[int]:
    return sorted(allowed_cores())[-2:]


def _python(code: str) -> Command:
    return Command(argv=(sys.executable, "-S", "-c", code), env={"PATH": os.environ.get("PATH", os.defpath)})


def _drive(
    settings: Sequence[tuple[str, CpuSettings]], *, cores: Sequence[int], groups: bool, seconds: float = SECONDS
) -> DriverReport:
    """Run programs under the driver and return its report."""
    with CpuDriver(cores=cores, use_groups=groups) as driver:
        heaviest = max(cpu.weight or 1.0 for _, cpu in settings)
        for number, (code, cpu) in enumerate(settings):
            driver.launch(f"p{number:02}", _python(code), cpu, heaviest=heaviest)
        driver.run(seconds)
        return driver.report()


def _shares(used: Sequence[int]) -> list[float]:
    return [each * 100 / max(1, sum(used)) for each in used]


def _used(report: DriverReport) -> list[int]:
    return [one.cpu_ns for one in report.processes]


# --- cases -----------------------------------------------------------------------------------------


def _weights(groups: bool) -> Arena:
    hogs = [(HOG, CpuSettings(weight=weight)) for weight in (3.0, 1.0)]
    return Arena(
        rota=lambda: Measured(_shares(_used(_drive(hogs, cores=[_core()], groups=groups)))[0]),
        base=_kernel([GroupLimits(weight=300), GroupLimits(weight=100)], [_core()], lambda used, _: _shares(used)[0]),
        verify=_any,
    )


def _quota(groups: bool) -> Arena:
    def ours() -> Measured:
        report = _drive([(HOG, CpuSettings(quota="20ms/100ms"))], cores=[_core()], groups=groups)
        return Measured(report.processes[0].cpu_ns * 100 / report.wall_ns)

    limits = [GroupLimits(quota_us=20_000)]
    return Arena(rota=ours, base=_kernel(limits, [_core()], lambda used, wall: used[0] * 100 / wall), verify=_any)


def _two_cores(groups: bool) -> Arena:
    hogs = [(HOG, CpuSettings(weight=weight)) for weight in TWO_CORES]
    limits = [GroupLimits(weight=round(weight * 100)) for weight in TWO_CORES]
    return Arena(
        rota=lambda: Measured(_distance(_used(_drive(hogs, cores=_two(), groups=groups)))),
        base=_kernel(limits, _two(), lambda used, _: _distance(used)),
        verify=_any,
    )


def _distance(used: Sequence[int]) -> float:
    """How far the share that is furthest from its ideal is from it, in points. No ideal share is above one core."""
    ideal = [weight * 100 / sum(TWO_CORES) for weight in TWO_CORES]
    return max(abs(one - wanted) for one, wanted in zip(_shares(used), ideal, strict=True))


def _sleepers(groups: bool) -> Arena:
    programs = [(HOG, CpuSettings()), *[(SLEEPER, CpuSettings())] * SLEEPERS]

    def ours() -> Measured:
        report = _drive(programs, cores=[_core()], groups=groups)
        return Measured(sum(_used(report)) * 100 / report.wall_ns)

    def plain() -> Measured:
        used, wall_ns = _alone([code for code, _ in programs], [_core()])
        return Measured(sum(used) * 100 / wall_ns)

    return Arena(rota=ours, base=plain, verify=_any)


def _cost(groups: bool) -> Arena:
    hogs = [(HOG, CpuSettings())] * MANY
    return Arena(rota=lambda: Measured(_drive(hogs, cores=[_core()], groups=groups).driver_ppm / 10_000), verify=_any)


def _fleet() -> Arena:
    def ours() -> Measured:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "fleet.toml").write_text(FLEET.format(seconds=SECONDS, core=_core()))
            command = [sys.executable, "-m", "rota", "run", "fleet.toml", "--until-idle"]
            subprocess.run(command, cwd=folder, capture_output=True, check=False)
            with rota.Rota(Path(folder, "rota.db")) as app:
                ended = app.api.journal.tail(0, 1_000, kinds=("kernel.run.ended",))
        used = {event.payload["sched_id"]: event.payload["cpu_ms"] for event in ended}
        return Measured(_shares([used[1], used[2]])[0])

    base = _kernel([GroupLimits(weight=300), GroupLimits(weight=100)], [_core()], lambda used, _: _shares(used)[0])
    return Arena(rota=ours, base=base, verify=_any)


# --- without rota ----------------------------------------------------------------------------------


def _alone(
    codes: Sequence[str], cores: Sequence[int], limits: Sequence[GroupLimits] = (), seconds: float = SECONDS
) -> tuple[list[int], int]:
    """Run programs without the driver, in control groups if limits are given; return what each used, and the time."""
    cgroups = Cgroups()
    groups = [cgroups.create(each) for each in limits]
    with ReaperClient() as reaper:
        sessions = []
        for number, code in enumerate(codes):
            command = _python(code)
            pinned = Command(argv=command.argv, env=command.env, cores=frozenset(cores))
            sessions.append(reaper.spawn(pinned, group=groups[number] if groups else None))
        before = [session.cpu_ns() for session in sessions]
        sessions[0].wait(seconds)  # it never ends: this is how long they run
        used = [session.cpu_ns() - start for session, start in zip(sessions, before, strict=True)]
        for session in sessions:
            session.kill()
            session.wait()
    for group in groups:
        group.remove()
    return used, round(seconds * 1e9)


def _kernel(
    limits: list[GroupLimits], cores: list[int], figure: Callable[[list[int], int], float]
) -> Callable[[], Measured] | None:
    """The same hogs under the kernel's own weights or quota; None where control groups do not give it."""
    support = Cgroups().support
    if not (support["weight"].works and support["quota"].works):
        return None
    return lambda: Measured(figure(*_alone([HOG] * len(limits), cores, limits)))


def _any(*_answers: object) -> bool:
    return True


# --- where the time goes -----------------------------------------------------------------------------


def attribute() -> None:
    """Print what two hogs on one core have, and the driver's own time, with control groups, without, and alone."""
    print(f"\ntwo hogs on one core for {ATTRIBUTE_S:g} s: what they had, and the driver's own time\n")
    used, wall_ns = _alone([HOG, HOG], [_core()], seconds=ATTRIBUTE_S)
    print(f"  {'without the driver':34} {sum(used) / wall_ns:8.1%} of the core")
    for name, groups in (("with control groups", True), ("without them", False)):
        report = _drive([(HOG, CpuSettings())] * 2, cores=[_core()], groups=groups, seconds=ATTRIBUTE_S)
        had = sum(_used(report)) / report.wall_ns
        print(f"  {name:34} {had:8.1%} of the core; the driver {report.driver_ppm / 10_000:.2f} %")

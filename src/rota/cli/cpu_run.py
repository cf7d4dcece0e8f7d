"""`rota cpu run`: run commands in time slices on real cores."""

from __future__ import annotations

import os
import string
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
from rich.table import Table

from rota.cli import output
from rota.cores import EngineTrace
from rota.errors import InvalidInput, RotaError
from rota.fleet import CpuDriver, DriverReport
from rota.host import Cgroups, Command, Scheduling, allowed_cores
from rota.model import WEIGHT_UNIT
from rota.store import write_private

__all__ = ["RunOptions", "run"]

MS = 1_000_000
SEPARATOR = "+"
T = TypeVar("T")


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command line. Each applies to the command of its name."""

    weights: Sequence[str] = ()  # a=3
    budgets: Sequence[str] = ()  # a=20/100, in ms
    leases: Sequence[str] = ()  # a=1
    realtime: Sequence[str] = ()  # a=fifo:10, a=rr:10, a=deadline:20/100
    cores: str | None = None  # 0,1
    slice_ms: int = 10
    for_s: float | None = None
    freezer: bool = False
    trace: Path | None = None


def run(words: Sequence[str], options: RunOptions, *, as_json: bool) -> None:
    """Run the commands in time slices and print the report."""
    commands = _commands(words)
    weights = _by_name("weight", options.weights, _weight, commands)
    budgets = _by_name("budget", options.budgets, _budget, commands)
    leases = _by_name("lease", options.leases, _core, commands)
    realtime = _by_name("realtime", options.realtime, _scheduling, commands)
    cgroups = Cgroups() if options.freezer else None
    trace = None if options.trace is None else EngineTrace()
    cores, slice_ns = _cores(options.cores), options.slice_ms * MS
    with CpuDriver(cores=cores, slice_ns=slice_ns, cgroups=cgroups, trace=trace) as driver:
        for name, argv in commands.items():
            command = Command(argv=tuple(argv), env=dict(os.environ), scheduling=realtime.get(name))
            driver.launch(name, command, weight=weights.get(name, WEIGHT_UNIT))
        for name, (budget_ns, period_ns) in budgets.items():
            driver.limit(name, budget_ns=budget_ns, period_ns=period_ns)
        for name, core in leases.items():
            driver.lease(name, (core,))
        with suppress(KeyboardInterrupt):  # print the report after an interrupt
            driver.run(options.for_s)
        report = driver.report()
    if options.trace is not None and trace is not None:
        _write(options.trace, trace)
    _show(report, commands, as_json=as_json)


def _write(path: Path, trace: EngineTrace) -> None:
    try:
        write_private(path, b"".join(line + b"\n" for line in trace.lines()))
    except OSError as problem:
        raise InvalidInput(f"{path} cannot be written: {problem.strerror}", field="trace") from problem


def _show(report: DriverReport, commands: dict[str, list[str]], *, as_json: bool) -> None:
    if as_json:
        output.print_json(report)
        return
    console = output.console()
    table = Table(box=None, padding=(0, 1))
    for name in ("", "command", "share%", "cpu s", "core s", "switches"):
        table.add_column(
            name, justify="left" if name in ("", "command") else "right", overflow="ellipsis", no_wrap=True
        )
    for one in report.processes:
        table.add_row(
            output.cell(one.name),
            output.cell(" ".join(commands[one.name])),
            f"{one.share_ppm / 10_000:.2f}",
            f"{one.cpu_ns / 1e9:.3f}",
            f"{one.turn_ns / 1e9:.3f}",
            f"{one.switches:,}",
        )
    console.print(table)
    console.print(f"{report.wall_ns / 1e9:.3f} s; the driver used {report.driver_ppm / 10_000:.2f} % of a core")
    for advisory in dict.fromkeys(text for one in report.processes for text in one.advisories):
        console.print(f"advisory: {advisory}", markup=False)


# --- parsing -----------------------------------------------------------------------------------------


def _commands(words: Sequence[str]) -> dict[str, list[str]]:
    """The commands by name (a, b, c and so on), separated by a lone plus."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word == SEPARATOR:
            parts.append([])
        else:
            parts[-1].append(word)
    if not all(parts) or len(parts) > len(string.ascii_lowercase):
        raise InvalidInput(
            f"expected 1 to {len(string.ascii_lowercase)} commands, separated by a lone {SEPARATOR}",
            field="commands",
            hint="rota cpu run --weight a=3 -- make all + make docs",
        )
    return dict(zip(string.ascii_lowercase, parts, strict=False))


def _by_name(
    option: str, values: Sequence[str], parse: Callable[[str], T], commands: dict[str, list[str]]
) -> dict[str, T]:
    found: dict[str, T] = {}
    for text in values:
        name, _, value = text.partition("=")
        if name not in commands:
            raise InvalidInput(f"--{option} {text}: there is no command {name!r}", field=option)
        try:
            found[name] = parse(value)
        except RotaError:
            raise  # its message says what is wrong
        except ValueError as problem:
            raise InvalidInput(f"--{option} {text}: {value!r} is not valid", field=option) from problem
    return found


def _weight(text: str) -> int:
    return round(float(text) * WEIGHT_UNIT)


def _budget(text: str) -> tuple[int, int]:
    budget_ms, _, period_ms = text.partition("/")
    return round(float(budget_ms) * MS), round(float(period_ms or 100) * MS)


def _scheduling(text: str) -> Scheduling:
    """A scheduling policy of the kernel: a priority for fifo and rr, a budget per period in ms for deadline."""
    policy, _, value = text.partition(":")
    match policy:
        case "fifo" | "rr":
            return Scheduling(policy=policy, priority=int(value or 1))
        case "deadline":
            runtime_ns, period_ns = _budget(value)
            return Scheduling(policy=policy, runtime_ns=runtime_ns, deadline_ns=period_ns, period_ns=period_ns)
    raise ValueError(policy)


def _core(text: str) -> int:
    return int(text)


def _cores(text: str | None) -> list[int]:
    if text is None:
        return sorted(allowed_cores())
    try:
        return [int(core) for core in text.split(",")]
    except ValueError as problem:
        raise InvalidInput(f"--cores {text}: expected numbers with commas, such as 0,1", field="cores") from problem

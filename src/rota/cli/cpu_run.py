"""`rota cpu run`: commands in turns on real cores."""

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
from rota.cores.trace import Trace
from rota.errors import InvalidInput, RotaError
from rota.fleet.cores_driver import CpuDriver
from rota.fleet.cores_report import DriverReport
from rota.host.affinity import allowed_cores
from rota.host.cgroups import Cgroups
from rota.host.command import Command
from rota.host.realtime import Scheduling
from rota.model.work import WEIGHT_UNIT

__all__ = ["Wishes", "run"]

MS = 1_000_000
SEPARATOR = "+"
T = TypeVar("T")


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What was said on the command line about commands, by their names."""

    weights: Sequence[str] = ()  # a=3
    budgets: Sequence[str] = ()  # a=20/100, in ms
    leases: Sequence[str] = ()  # a=1
    realtime: Sequence[str] = ()  # a=fifo:10, a=rr:10, a=deadline:20/100
    cores: str | None = None  # 0,1
    slice_ms: int = 10
    for_s: float | None = None
    freezer: bool = False
    trace: Path | None = None


def run(words: Sequence[str], wishes: Wishes, *, as_json: bool) -> None:
    """Start the commands, run them in turns, and show what each had."""
    commands = _commands(words)
    weights = _by_name("weight", wishes.weights, _weight, commands)
    budgets = _by_name("budget", wishes.budgets, _budget, commands)
    leases = _by_name("lease", wishes.leases, _core, commands)
    realtime = _by_name("realtime", wishes.realtime, _scheduling, commands)
    cgroups = Cgroups() if wishes.freezer else None
    trace = None if wishes.trace is None else Trace()
    cores, slice_ns = _cores(wishes.cores), wishes.slice_ms * MS
    with CpuDriver(cores=cores, slice_ns=slice_ns, cgroups=cgroups, trace=trace) as driver:
        for name, argv in commands.items():
            command = Command(argv=tuple(argv), env=dict(os.environ), scheduling=realtime.get(name))
            driver.launch(name, command, weight=weights.get(name, WEIGHT_UNIT))
        for name, (budget_ns, period_ns) in budgets.items():
            driver.limit(name, budget_ns=budget_ns, period_ns=period_ns)
        for name, core in leases.items():
            driver.lease(name, (core,))
        with suppress(KeyboardInterrupt):  # the report is what somebody who interrupts wants to see
            driver.run(wishes.for_s)
        report = driver.report()
    if wishes.trace is not None and trace is not None:
        _write(wishes.trace, trace)
    _show(report, commands, as_json=as_json)


def _write(path: Path, trace: Trace) -> None:
    try:
        path.write_bytes(b"".join(line + b"\n" for line in trace.lines()))
    except OSError as problem:
        raise InvalidInput(f"{path} cannot be written: {problem.strerror}", field="trace") from problem


def _show(report: DriverReport, commands: dict[str, list[str]], *, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode(report).decode())
        return
    console = output.console()
    table = Table(box=None, padding=(0, 1))
    for name in ("", "command", "share%", "cpu s", "turns s", "switches"):
        table.add_column(
            name, justify="left" if name in ("", "command") else "right", overflow="ellipsis", no_wrap=True
        )
    for one in report.processes:
        table.add_row(
            one.name,
            " ".join(commands[one.name]),
            f"{one.share_ppm / 10_000:.2f}",
            f"{one.cpu_ns / 1e9:.3f}",
            f"{one.turn_ns / 1e9:.3f}",
            f"{one.switches:,}",
        )
    console.print(table)
    console.print(f"{report.wall_ns / 1e9:.3f} s; the driver used {report.driver_ppm / 10_000:.2f} % of a core")
    for advisory in dict.fromkeys(text for one in report.processes for text in one.advisories):
        console.print(f"advisory: {advisory}")


# --- reading -----------------------------------------------------------------------------------------


def _commands(words: Sequence[str]) -> dict[str, list[str]]:
    """The commands by name: a, b, c and so on, separated by a lone plus."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word == SEPARATOR:
            parts.append([])
        else:
            parts[-1].append(word)
    if not all(parts) or len(parts) > len(string.ascii_lowercase):
        raise InvalidInput(
            f"give 1 to {len(string.ascii_lowercase)} commands, separated by a lone {SEPARATOR}",
            field="commands",
            hint="For example: rota cpu run --weight a=3 -- make all + make docs",
        )
    return dict(zip(string.ascii_lowercase, parts, strict=False))


def _by_name(what: str, said: Sequence[str], read: Callable[[str], T], commands: dict[str, list[str]]) -> dict[str, T]:
    found: dict[str, T] = {}
    for text in said:
        name, _, value = text.partition("=")
        if name not in commands:
            raise InvalidInput(f"--{what} {text}: there is no command {name!r}", field=what)
        try:
            found[name] = read(value)
        except RotaError:
            raise  # it says by itself what is wrong
        except ValueError as problem:
            raise InvalidInput(f"--{what} {text}: {value!r} cannot be read", field=what) from problem
    return found


def _weight(text: str) -> int:
    return round(float(text) * WEIGHT_UNIT)


def _budget(text: str) -> tuple[int, int]:
    budget_ms, _, period_ms = text.partition("/")
    return round(float(budget_ms) * MS), round(float(period_ms or 100) * MS)


def _scheduling(text: str) -> Scheduling:
    """The kernel's own policy: a priority for fifo and rr, a budget per period in ms for deadline."""
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
        raise InvalidInput(f"--cores {text}: give numbers with commas between them", field="cores") from problem

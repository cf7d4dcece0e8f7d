"""`rota cpu run`: run commands under `cpu` settings on real cores.

The report goes to standard output, and with `--json` nothing else does; what the commands write goes to standard error,
or to files with `--logs`. The exit code is that of the first command that failed, as a shell reports it (128 and the
signal if one ended it). A command that is ended because the time is over has not failed. SIGTERM, SIGHUP and Ctrl-C end
the commands, and the exit code is 128 and that signal.
"""

from __future__ import annotations

import math
import os
import signal
import string
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import typer
from rich.table import Table

from rota.cli import output
from rota.cli.exit_codes import SIGNAL_CODES
from rota.errors import InvalidInput, RotaError
from rota.fleet import CpuDriver, DriverReport, OnLoss, ProcessReport, acting_on
from rota.host import Command, signal_name
from rota.model import CpuSettings, parse_cores, read_cpu

__all__ = ["RunOptions", "run"]

SEPARATOR = "+"
STDERR = 2
STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
T = TypeVar("T")


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command line. Each applies to the command of its name."""

    weights: Sequence[str] = ()  # a=3
    quotas: Sequence[str] = ()  # a=20ms/100ms
    leases: Sequence[str] = ()  # a=1 is core 1
    classes: Sequence[str] = ()  # a=batch
    realtime: Sequence[str] = ()  # a=fifo:10, a=rr:10, a=deadline:20/100
    cores: str | None = None  # 0-1
    for_s: float | None = None
    on_loss: OnLoss = "kill"
    groups: bool = True
    logs: Path | None = None


def run(words: Sequence[str], options: RunOptions, *, as_json: bool) -> None:
    """Run the commands, print the report, and exit as they did."""
    commands = _commands(words)
    settings = _settings(commands, options)
    if options.for_s is not None and not math.isfinite(options.for_s):
        raise InvalidInput(f"--for {options.for_s} is not a number of seconds", field="for", hint="Write --for 0.5.")
    cores = None if options.cores is None else parse_cores(options.cores)
    stopped_by: list[int] = []

    def stop(number: int) -> None:
        stopped_by.append(number)
        driver.stop()

    with (
        CpuDriver(cores=cores, on_loss=options.on_loss, use_groups=options.groups) as driver,
        acting_on(STOP_SIGNALS, stop),
    ):
        heaviest = max(cpu.weight or 1.0 for cpu in settings.values())
        for name, argv in commands.items():
            with _output(options.logs, name) as fd:
                command = Command(argv=tuple(argv), env=dict(os.environ))
                driver.launch(name, command, settings[name], heaviest=heaviest, output=fd)
        driver.run(options.for_s)
        driver.end_commands()
        report = driver.report()
    _show(report, commands, as_json=as_json)
    code = SIGNAL_CODES + stopped_by[0] if stopped_by else _exit_code(report)
    if code:
        raise typer.Exit(code)


@contextmanager
def _output(folder: Path | None, name: str) -> Iterator[int]:
    """Yield the descriptor to which a command writes."""
    if folder is None:
        yield STDERR
        return
    path = folder / f"{name}.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    except OSError as problem:
        raise InvalidInput(f"{path} cannot be written: {problem.strerror}", field="logs") from problem
    try:
        yield fd
    finally:
        os.close(fd)


# --- the report --------------------------------------------------------------------------------------


def _exit_code(report: DriverReport) -> int:
    """The exit code of the first command that failed by itself; 0 if none did."""
    return next((code for one in report.processes if one.ended_by == "itself" and (code := _code(one))), 0)


def _code(one: ProcessReport) -> int:
    if one.signal is not None:
        return SIGNAL_CODES + one.signal
    return SIGNAL_CODES + signal.SIGKILL if one.exit_code is None else one.exit_code


def _ended(one: ProcessReport) -> str:
    how = signal_name(one.signal) if one.signal is not None else str(one.exit_code)
    return f"{how} (ended here)" if one.ended_by == "driver" else how


def _show(report: DriverReport, commands: dict[str, list[str]], *, as_json: bool) -> None:
    if as_json:
        output.print_json(report)
        return
    console = output.console()
    table = Table(box=None, padding=(0, 1))
    for name in ("", "command", "cores", "share%", "cpu s", "exit"):
        table.add_column(
            name, justify="left" if name in ("", "command") else "right", overflow="ellipsis", no_wrap=True
        )
    for one in report.processes:
        table.add_row(
            output.cell(one.name),
            output.cell(" ".join(commands[one.name])),
            one.cores,
            f"{one.share_ppm / 10_000:.2f}",
            f"{one.cpu_ns / 1e9:.3f}",
            _ended(one),
        )
    console.print(table)
    console.print(f"{report.wall_ns / 1e9:.3f} s; the driver used {report.driver_ppm / 10_000:.2f} % of a core")
    for one in report.processes:
        for state in one.settings:
            console.print(f"{one.name}: {state}", markup=False, highlight=False)
        for advisory in one.advisories:
            console.print(f"{one.name}: advisory: {advisory}", markup=False, highlight=False)


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


def _settings(commands: dict[str, list[str]], options: RunOptions) -> dict[str, CpuSettings]:
    """The settings of each command, checked as those of a fleet file."""
    given: dict[str, dict[str, object]] = {name: {} for name in commands}
    parsers: tuple[tuple[str, str, Sequence[str], Callable[[str], object]], ...] = (
        ("weight", "weight", options.weights, float),
        ("quota", "quota", options.quotas, lambda text: text if "/" in text else f"{text}/100ms"),
        ("lease", "cores", options.leases, str),
        ("class", "class", options.classes, str),
        ("realtime", "realtime", options.realtime, str),
    )
    for option, key, values, parse in parsers:
        for text in values:
            name, equals, value = text.partition("=")
            if not equals:
                hint = f"Write --{option} a={text}."
                raise InvalidInput(f"--{option} {text} names no command", field=option, hint=hint)
            if name not in commands:
                named = f"the commands are {', '.join(commands)}"
                raise InvalidInput(f"--{option} {text}: there is no command {name!r}; {named}", field=option)
            try:
                given[name][key] = parse(value)
                if option == "lease":
                    given[name]["lease"] = len(parse_cores(value))
                read_cpu(given[name])
            except RotaError as problem:
                raise InvalidInput(f"--{option} {text}: {problem.message}", field=option) from problem
            except ValueError as problem:
                raise InvalidInput(f"--{option} {text}: {value!r} is not a number", field=option) from problem
    return {name: read_cpu(fields) or CpuSettings() for name, fields in given.items()}

"""What the live driver for cores shows: what each command had, and where the driver's own time went."""

from __future__ import annotations

import msgspec

__all__ = ["DriverReport", "ProcessReport", "Spent"]


class Spent(msgspec.Struct):
    """Where the driver's own time went. Diagnostic: no decision reads it."""

    scheduling_ns: int = 0
    clocks_ns: int = 0
    signals_ns: int = 0
    logging_ns: int = 0  # with a trace
    lock_wait_ns: int = 0


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one command had."""

    name: str
    cpu_ns: int  # by its own clock
    turn_ns: int  # the core was its
    share_ppm: int  # of what all of them used
    switches: int
    preemptions: int
    advisories: tuple[str, ...]


class DriverReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver did."""

    wall_ns: int
    processes: tuple[ProcessReport, ...]
    driver_cpu_ns: int
    driver_ppm: int  # of one core
    spent: Spent
    backend: str  # of control groups; none: stopped by signals

"""Layer 1: processes of the operating system. Start commands, limit them, and kill what they leave behind.

`ReaperClient` starts commands as sessions through the reaper process, `Cgroups` limits them, `WorkerPool` runs Python
functions in worker processes, `ThreadSettings` are what a thread sets on itself, and `detect` reports what this machine
supports.

Names are loaded when they are first used, because the reaper process imports this package and must stay small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.lazy import exports

if TYPE_CHECKING:
    from rota.host.advisory import Advisory
    from rota.host.call_outcome import CallOutcome
    from rota.host.capabilities import Capabilities, Capability, Platform, detect, probe
    from rota.host.cgroup_files import GroupLimits
    from rota.host.cgroups import Cgroups, ControlGroup, FeatureSupport, GroupUsage
    from rota.host.command import Command, EncodedCommand, SessionExit, filter_environment, signal_name
    from rota.host.cpu_enforcement import CpuState, cpu_states
    from rota.host.lineage import kill_orphans
    from rota.host.process_cpu import process_cpu_ns, tree_cpu_ns
    from rota.host.reaper_client import ReaperClient, python_command
    from rota.host.session import Session, Termination
    from rota.host.thread_settings import (
        Scheduling,
        ThreadSettings,
        allowed_cores,
        apply_settings,
        pin,
        read_scheduling,
        read_settings,
    )
    from rota.host.watchdog import Watchdog
    from rota.host.worker_pool import Worker, WorkerCall, WorkerPool

__all__ = [
    "Advisory",
    "CallOutcome",
    "Capabilities",
    "Capability",
    "Cgroups",
    "Command",
    "ControlGroup",
    "CpuState",
    "EncodedCommand",
    "FeatureSupport",
    "GroupLimits",
    "GroupUsage",
    "Platform",
    "ReaperClient",
    "Scheduling",
    "Session",
    "SessionExit",
    "Termination",
    "ThreadSettings",
    "Watchdog",
    "Worker",
    "WorkerCall",
    "WorkerPool",
    "allowed_cores",
    "apply_settings",
    "cpu_states",
    "detect",
    "filter_environment",
    "kill_orphans",
    "pin",
    "probe",
    "process_cpu_ns",
    "python_command",
    "read_scheduling",
    "read_settings",
    "signal_name",
    "tree_cpu_ns",
]

__getattr__ = exports(
    __name__,
    {
        "advisory": ("Advisory",),
        "call_outcome": ("CallOutcome",),
        "capabilities": ("Capabilities", "Capability", "Platform", "detect", "probe"),
        "cgroup_files": ("GroupLimits",),
        "cgroups": ("Cgroups", "ControlGroup", "FeatureSupport", "GroupUsage"),
        "command": ("Command", "EncodedCommand", "SessionExit", "filter_environment", "signal_name"),
        "cpu_enforcement": ("CpuState", "cpu_states"),
        "lineage": ("kill_orphans",),
        "process_cpu": ("process_cpu_ns", "tree_cpu_ns"),
        "reaper_client": ("ReaperClient", "python_command"),
        "session": ("Session", "Termination"),
        "thread_settings": (
            "Scheduling",
            "ThreadSettings",
            "allowed_cores",
            "apply_settings",
            "pin",
            "read_scheduling",
            "read_settings",
        ),
        "watchdog": ("Watchdog",),
        "worker_pool": ("Worker", "WorkerCall", "WorkerPool"),
    },
)

"""Layer 1: processes of the operating system. Start commands, limit them, and kill what they leave behind.

`ReaperClient` starts commands as sessions through the reaper process, `Cgroups` limits them, `WorkerPool` runs Python
functions in worker processes, and `detect` reports what this machine supports.

Names are loaded when they are first used, because the reaper process imports this package and must stay small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.lazy import exports

if TYPE_CHECKING:
    from rota.host.advisory import Advisory
    from rota.host.call_outcome import CallOutcome
    from rota.host.capabilities import Capabilities, Capability, detect
    from rota.host.cgroup_files import GroupLimits
    from rota.host.cgroups import Cgroups, ControlGroup, FeatureSupport, GroupUsage
    from rota.host.command import Command, EncodedCommand, SessionExit, filter_environment
    from rota.host.lineage import kill_orphans
    from rota.host.process_cpu import allowed_cores, pin, process_cpu_ns, tree_cpu_ns
    from rota.host.realtime import Scheduling, apply_scheduling, read_scheduling
    from rota.host.reaper_client import ReaperClient
    from rota.host.session import Session, Termination
    from rota.host.watchdog import Watchdog
    from rota.host.worker_pool import WorkerCall, WorkerPool

__all__ = [
    "Advisory",
    "CallOutcome",
    "Capabilities",
    "Capability",
    "Cgroups",
    "Command",
    "ControlGroup",
    "EncodedCommand",
    "FeatureSupport",
    "GroupLimits",
    "GroupUsage",
    "ReaperClient",
    "Scheduling",
    "Session",
    "SessionExit",
    "Termination",
    "Watchdog",
    "WorkerCall",
    "WorkerPool",
    "allowed_cores",
    "apply_scheduling",
    "detect",
    "filter_environment",
    "kill_orphans",
    "pin",
    "process_cpu_ns",
    "read_scheduling",
    "tree_cpu_ns",
]

__getattr__ = exports(
    __name__,
    {
        "advisory": ("Advisory",),
        "call_outcome": ("CallOutcome",),
        "capabilities": ("Capabilities", "Capability", "detect"),
        "cgroup_files": ("GroupLimits",),
        "cgroups": ("Cgroups", "ControlGroup", "FeatureSupport", "GroupUsage"),
        "command": ("Command", "EncodedCommand", "SessionExit", "filter_environment"),
        "lineage": ("kill_orphans",),
        "process_cpu": ("allowed_cores", "pin", "process_cpu_ns", "tree_cpu_ns"),
        "realtime": ("Scheduling", "apply_scheduling", "read_scheduling"),
        "reaper_client": ("ReaperClient",),
        "session": ("Session", "Termination"),
        "watchdog": ("Watchdog",),
        "worker_pool": ("WorkerCall", "WorkerPool"),
    },
)

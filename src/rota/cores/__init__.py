"""Layer 1, sans-IO: accounts, fair queues, contexts, leases and islands for cores. Events in, decisions out."""

from rota.cores.accounts import SchedEntity, ThreadCpuAccount
from rota.cores.islands import Capacity, IslandPlan
from rota.cores.machine import Machine
from rota.model.budgets import CpuIsolationLease, Handle, RealtimeIsland, SchedulingContext

__all__ = [
    "Capacity",
    "CpuIsolationLease",
    "Handle",
    "IslandPlan",
    "Machine",
    "RealtimeIsland",
    "SchedEntity",
    "SchedulingContext",
    "ThreadCpuAccount",
]

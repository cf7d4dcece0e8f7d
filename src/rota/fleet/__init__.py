"""Layer 4: the supervisor and its runners, the fleet file and triggers.

A `Supervisor` claims entries and runs each one with a `Runner`: `command`, `ndjson` or `callable`. `AgentSettings` say
how an agent is run; they are stored with the agent. Names are loaded on first use.

    load_fleet, fleet_schema      a fleet file to a `Fleet`; the JSON Schema of the file
    plan_fleet, apply_fleet       what a fleet would do; make a store match its file
    FleetRun, request_reload      run a fleet; make running supervisors read their file again
    list_hooks, deliver_test      the hooks of a store; send a test through one
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.lazy import exports

if TYPE_CHECKING:
    from rota.fleet.agent_settings import SETTINGS_KEY, AgentSettings, settings_of, spec_for
    from rota.fleet.config.apply import apply_fleet
    from rota.fleet.config.changes import FleetChange, FleetChanges
    from rota.fleet.config.loader import load_fleet
    from rota.fleet.config.plan import FleetPlan, plan_fleet
    from rota.fleet.config.tables import Fleet, FleetFile, fleet_schema
    from rota.fleet.cores_driver import CpuDriver, DriverReport, OnLoss, ProcessReport
    from rota.fleet.fleet_run import FleetRun, request_reload
    from rota.fleet.graph_workers import graph_supervisor
    from rota.fleet.heartbeats import BackgroundTask
    from rota.fleet.hook_reports import HookReport, deliver_test, list_hooks
    from rota.fleet.idle import IdleRule
    from rota.fleet.run_summary import RunSummary, StillWaiting
    from rota.fleet.runners.context import ChildJob, RunContext
    from rota.fleet.runners.contract import (
        AgentChannel,
        Assignment,
        RunChannel,
        Runner,
        RunOutcome,
        StopHandle,
    )
    from rota.fleet.runners.resources import RunnerResources
    from rota.fleet.signals import acting_on
    from rota.fleet.supervisor import STOP_LOGGER, Supervisor, SupervisorSettings

__all__ = [
    "SETTINGS_KEY",
    "STOP_LOGGER",
    "AgentChannel",
    "AgentSettings",
    "Assignment",
    "BackgroundTask",
    "ChildJob",
    "CpuDriver",
    "DriverReport",
    "Fleet",
    "FleetChange",
    "FleetChanges",
    "FleetFile",
    "FleetPlan",
    "FleetRun",
    "HookReport",
    "IdleRule",
    "OnLoss",
    "ProcessReport",
    "RunChannel",
    "RunContext",
    "RunOutcome",
    "RunSummary",
    "Runner",
    "RunnerResources",
    "StillWaiting",
    "StopHandle",
    "Supervisor",
    "SupervisorSettings",
    "acting_on",
    "apply_fleet",
    "deliver_test",
    "fleet_schema",
    "graph_supervisor",
    "list_hooks",
    "load_fleet",
    "plan_fleet",
    "request_reload",
    "settings_of",
    "spec_for",
]

__getattr__ = exports(
    __name__,
    {
        # real processes under the cores engine
        "cores_driver": ("CpuDriver", "DriverReport", "OnLoss", "ProcessReport"),
        # the supervisor
        "graph_workers": ("graph_supervisor",),
        "supervisor": ("STOP_LOGGER", "Supervisor", "SupervisorSettings"),
        "heartbeats": ("BackgroundTask",),
        "idle": ("IdleRule",),
        "signals": ("acting_on",),
        "run_summary": ("RunSummary", "StillWaiting"),
        # agents and their runs
        "agent_settings": ("SETTINGS_KEY", "AgentSettings", "settings_of", "spec_for"),
        "runners.context": ("ChildJob", "RunContext"),
        "runners.contract": ("AgentChannel", "Assignment", "RunChannel", "RunOutcome", "Runner", "StopHandle"),
        "runners.resources": ("RunnerResources",),
        # the fleet file
        "config.tables": ("Fleet", "FleetFile", "fleet_schema"),
        "config.loader": ("load_fleet",),
        "config.plan": ("FleetPlan", "plan_fleet"),
        "config.changes": ("FleetChange", "FleetChanges"),
        "config.apply": ("apply_fleet",),
        "fleet_run": ("FleetRun", "request_reload"),
        "hook_reports": ("HookReport", "deliver_test", "list_hooks"),
    },
)

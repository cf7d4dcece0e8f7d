"""Layer 4: the graph runtime. Components joined by edges, compiled once, run in epochs on lanes.

Names are loaded when they are first used: a worker process and the command line need only a few of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rota.graph.capabilities import Platform, probe
    from rota.graph.compiler import Checked, check, compile_graph, lint
    from rota.graph.component_registry import ComponentRegistry
    from rota.graph.components import Batch, component
    from rota.graph.diagnostics import Diagnostic
    from rota.graph.difference import PlanDifference, compare_plans
    from rota.graph.document import InputLimits
    from rota.graph.entry_worker import EntryWorker, run_entry
    from rota.graph.invocation import GraphContext, Invocation
    from rota.graph.lanes.durable import DurableRuns
    from rota.graph.lanes.threads import WorkerReport
    from rota.graph.loader import load, load_mapping, load_text
    from rota.graph.loops import LoopOutcome
    from rota.graph.mermaid import to_mermaid
    from rota.graph.messages import Message
    from rota.graph.metrics import SCHEDULER_METRICS, Metric
    from rota.graph.plan import Plan
    from rota.graph.ports import ComponentDescriptor, Port
    from rota.graph.reports import HealthEvent, RunError
    from rota.graph.run import RuntimeRunner
    from rota.graph.run_options import RuntimeRunnerOptions, RuntimeRunnerResult, SchedulerStopReason
    from rota.graph.schema import graph_schema
    from rota.graph.shapes import plan_shape, validation_shape
    from rota.graph.spec import GraphSpec
    from rota.graph.stop import StopToken
    from rota.graph.svg import to_svg
    from rota.graph.tasks import TaskExecutorConfig, TaskResult
    from rota.graph.tracing import TRACE_EVENTS, Trace, TraceEvent

__all__ = [
    "SCHEDULER_METRICS",
    "TRACE_EVENTS",
    "Batch",
    "Checked",
    "ComponentDescriptor",
    "ComponentRegistry",
    "Diagnostic",
    "DurableRuns",
    "EntryWorker",
    "GraphContext",
    "GraphSpec",
    "HealthEvent",
    "InputLimits",
    "Invocation",
    "LoopOutcome",
    "Message",
    "Metric",
    "Plan",
    "PlanDifference",
    "Platform",
    "Port",
    "RunError",
    "RuntimeRunner",
    "RuntimeRunnerOptions",
    "RuntimeRunnerResult",
    "SchedulerStopReason",
    "StopToken",
    "TaskExecutorConfig",
    "TaskResult",
    "Trace",
    "TraceEvent",
    "WorkerReport",
    "check",
    "compare_plans",
    "compile_graph",
    "component",
    "graph_schema",
    "lint",
    "load",
    "load_mapping",
    "load_text",
    "plan_shape",
    "probe",
    "run_entry",
    "to_mermaid",
    "to_svg",
    "validation_shape",
]

_HOMES = {
    "rota.graph.capabilities": ("Platform", "probe"),
    "rota.graph.compiler": ("Checked", "check", "compile_graph", "lint"),
    "rota.graph.component_registry": ("ComponentRegistry",),
    "rota.graph.components": ("Batch", "component"),
    "rota.graph.diagnostics": ("Diagnostic",),
    "rota.graph.difference": ("PlanDifference", "compare_plans"),
    "rota.graph.document": ("InputLimits",),
    "rota.graph.entry_worker": ("EntryWorker", "run_entry"),
    "rota.graph.invocation": ("GraphContext", "Invocation"),
    "rota.graph.lanes.durable": ("DurableRuns",),
    "rota.graph.lanes.threads": ("WorkerReport",),
    "rota.graph.loader": ("load", "load_mapping", "load_text"),
    "rota.graph.loops": ("LoopOutcome",),
    "rota.graph.mermaid": ("to_mermaid",),
    "rota.graph.messages": ("Message",),
    "rota.graph.metrics": ("SCHEDULER_METRICS", "Metric"),
    "rota.graph.plan": ("Plan",),
    "rota.graph.ports": ("ComponentDescriptor", "Port"),
    "rota.graph.reports": ("HealthEvent", "RunError"),
    "rota.graph.run": ("RuntimeRunner",),
    "rota.graph.run_options": ("RuntimeRunnerOptions", "RuntimeRunnerResult", "SchedulerStopReason"),
    "rota.graph.schema": ("graph_schema",),
    "rota.graph.shapes": ("plan_shape", "validation_shape"),
    "rota.graph.spec": ("GraphSpec",),
    "rota.graph.stop": ("StopToken",),
    "rota.graph.svg": ("to_svg",),
    "rota.graph.tasks": ("TaskExecutorConfig", "TaskResult"),
    "rota.graph.tracing": ("TRACE_EVENTS", "Trace", "TraceEvent"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a name on first use."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'rota.graph' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)

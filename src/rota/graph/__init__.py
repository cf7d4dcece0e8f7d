"""Layer 4: the graph runtime. Components joined by edges, compiled once, run in epochs on lanes.

Names are loaded when they are first used: a worker process and the command line need only a few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.lazy import exports

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

__getattr__ = exports(
    __name__,
    {
        "capabilities": ("Platform", "probe"),
        "compiler": ("Checked", "check", "compile_graph", "lint"),
        "component_registry": ("ComponentRegistry",),
        "components": ("Batch", "component"),
        "diagnostics": ("Diagnostic",),
        "difference": ("PlanDifference", "compare_plans"),
        "document": ("InputLimits",),
        "entry_worker": ("EntryWorker", "run_entry"),
        "invocation": ("GraphContext", "Invocation"),
        "lanes.durable": ("DurableRuns",),
        "lanes.threads": ("WorkerReport",),
        "loader": ("load", "load_mapping", "load_text"),
        "loops": ("LoopOutcome",),
        "mermaid": ("to_mermaid",),
        "messages": ("Message",),
        "metrics": ("SCHEDULER_METRICS", "Metric"),
        "plan": ("Plan",),
        "ports": ("ComponentDescriptor", "Port"),
        "reports": ("HealthEvent", "RunError"),
        "run": ("RuntimeRunner",),
        "run_options": ("RuntimeRunnerOptions", "RuntimeRunnerResult", "SchedulerStopReason"),
        "schema": ("graph_schema",),
        "shapes": ("plan_shape", "validation_shape"),
        "spec": ("GraphSpec",),
        "stop": ("StopToken",),
        "svg": ("to_svg",),
        "tasks": ("TaskExecutorConfig", "TaskResult"),
        "tracing": ("TRACE_EVENTS", "Trace", "TraceEvent"),
    },
)

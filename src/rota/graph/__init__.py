"""Graphs (layer 4): components connected by edges, compiled to a plan, executed in epochs on lanes.

    load, load_text, load_mapping     a graph file, text or dictionary to a `GraphSpec`
    check, lint, compile_graph        a `GraphSpec` to diagnostics and a `Plan`
    Graph                             build a graph in Python; `Rota.run_graph` runs it
    component, ComponentRegistry      Python functions and classes as component types
    RuntimeRunner                     run a plan; `DurableRuns` for graphs with a queue or fleet lane

Names are loaded on first use: a worker process and the command line need only a few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.lazy import exports

if TYPE_CHECKING:
    from rota.graph.builder import Graph
    from rota.graph.capabilities import Platform, probe
    from rota.graph.compiler import CheckResult, check, compile_graph, lint
    from rota.graph.component_registry import ComponentRegistry
    from rota.graph.components import Batch, ComponentDescriptor, Port, component
    from rota.graph.diagnostics import SEVERITIES, Diagnostic
    from rota.graph.document import InputLimits
    from rota.graph.entry_runs import run_entry
    from rota.graph.invocation import GraphContext, Invocation
    from rota.graph.island import island_ask, island_spec
    from rota.graph.lanes.durable import DurableRuns
    from rota.graph.lanes.worker_settings import WorkerReport
    from rota.graph.loader import LoadedGraph, load, load_mapping, load_text, read_graph
    from rota.graph.loops import LoopOutcome
    from rota.graph.mermaid import to_mermaid
    from rota.graph.messages import Message
    from rota.graph.metrics import SCHEDULER_METRICS, Metric
    from rota.graph.plan import Plan
    from rota.graph.plan_reports import (
        PlanDifference,
        RegionPlacement,
        compare_plans,
        explanation_lines,
        explanation_to_dict,
        plan_to_dict,
        refusing,
        region_placements,
        validation_to_dict,
    )
    from rota.graph.reports import HealthEvent, RunError
    from rota.graph.results import RuntimeRunnerResult
    from rota.graph.run import RuntimeRunner
    from rota.graph.run_options import RuntimeRunnerOptions, SchedulerStopReason
    from rota.graph.schema import graph_schema
    from rota.graph.spec import GraphSpec
    from rota.graph.stop import StopToken
    from rota.graph.stored_documents import StoredGraph, missing_functions, read_mapping, read_stored
    from rota.graph.svg import to_svg
    from rota.graph.tasks import TaskExecutorConfig, TaskResult
    from rota.graph.tracing import TRACE_EVENTS, TRACE_SCHEMA_VERSION, RunTrace, TraceEvent

__all__ = [
    "SCHEDULER_METRICS",
    "SEVERITIES",
    "TRACE_EVENTS",
    "TRACE_SCHEMA_VERSION",
    "Batch",
    "CheckResult",
    "ComponentDescriptor",
    "ComponentRegistry",
    "Diagnostic",
    "DurableRuns",
    "Graph",
    "GraphContext",
    "GraphSpec",
    "HealthEvent",
    "InputLimits",
    "Invocation",
    "LoadedGraph",
    "LoopOutcome",
    "Message",
    "Metric",
    "Plan",
    "PlanDifference",
    "Platform",
    "Port",
    "RegionPlacement",
    "RunError",
    "RunTrace",
    "RuntimeRunner",
    "RuntimeRunnerOptions",
    "RuntimeRunnerResult",
    "SchedulerStopReason",
    "StopToken",
    "StoredGraph",
    "TaskExecutorConfig",
    "TaskResult",
    "TraceEvent",
    "WorkerReport",
    "check",
    "compare_plans",
    "compile_graph",
    "component",
    "explanation_lines",
    "explanation_to_dict",
    "graph_schema",
    "island_ask",
    "island_spec",
    "lint",
    "load",
    "load_mapping",
    "load_text",
    "missing_functions",
    "plan_to_dict",
    "probe",
    "read_graph",
    "read_mapping",
    "read_stored",
    "refusing",
    "region_placements",
    "run_entry",
    "to_mermaid",
    "to_svg",
    "validation_to_dict",
]

__getattr__ = exports(
    __name__,
    {
        "builder": ("Graph",),
        "capabilities": ("Platform", "probe"),
        "compiler": (
            "CheckResult",
            "check",
            "compile_graph",
            "lint",
        ),
        "component_registry": ("ComponentRegistry",),
        "components": ("Batch", "ComponentDescriptor", "Port", "component"),
        "diagnostics": (
            "SEVERITIES",
            "Diagnostic",
        ),
        "document": ("InputLimits",),
        "entry_runs": ("run_entry",),
        "invocation": ("GraphContext", "Invocation"),
        "island": ("island_spec", "island_ask"),
        "lanes.durable": ("DurableRuns",),
        "lanes.worker_settings": ("WorkerReport",),
        "loader": (
            "LoadedGraph",
            "load",
            "load_mapping",
            "load_text",
            "read_graph",
        ),
        "loops": ("LoopOutcome",),
        "mermaid": ("to_mermaid",),
        "messages": ("Message",),
        "metrics": ("SCHEDULER_METRICS", "Metric"),
        "plan": ("Plan",),
        "plan_reports": (
            "PlanDifference",
            "RegionPlacement",
            "compare_plans",
            "explanation_lines",
            "explanation_to_dict",
            "plan_to_dict",
            "refusing",
            "region_placements",
            "validation_to_dict",
        ),
        "reports": ("HealthEvent", "RunError"),
        "run": ("RuntimeRunner",),
        "results": ("RuntimeRunnerResult",),
        "run_options": ("RuntimeRunnerOptions", "SchedulerStopReason"),
        "schema": ("graph_schema",),
        "spec": ("GraphSpec",),
        "stop": ("StopToken",),
        "stored_documents": ("StoredGraph", "missing_functions", "read_mapping", "read_stored"),
        "svg": ("to_svg",),
        "tasks": ("TaskExecutorConfig", "TaskResult"),
        "tracing": (
            "TRACE_EVENTS",
            "TRACE_SCHEMA_VERSION",
            "RunTrace",
            "TraceEvent",
        ),
    },
)

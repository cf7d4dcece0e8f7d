"""What the compiler can report about a graph: one table of codes, one struct.

An *error* refuses the graph. A *warning* lets it run, but it is likely to stall or lose messages; with
`--strict-diagnostics` a warning refuses the graph too. An *advisory* names a field that is accepted but not applied
here, so that a field which parses never looks as if it had an effect. A *note* (severity `info`) is information.

Codes are stable: tools may test for them. `CODES` holds the meaning, the severity and the fix of each code once; the
diagnostic itself holds the sentence about this graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

import msgspec

__all__ = ["CATEGORIES", "CODES", "DIAGNOSTICS_SCHEMA_VERSION", "CodeInfo", "Diagnostic", "Severity", "worst_first"]

DIAGNOSTICS_SCHEMA_VERSION = "1"

Severity: TypeAlias = Literal["error", "warning", "advisory", "info"]
Category: TypeAlias = Literal["graph_structure", "scheduler", "channel", "payload", "trigger"]
CATEGORIES: tuple[Category, ...] = ("graph_structure", "scheduler", "channel", "payload", "trigger")
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "advisory", "info")


class CodeInfo(NamedTuple):
    """What a diagnostic code means, and how to fix it."""

    severity: Severity
    category: Category
    meaning: str
    fix: str


CODES: Mapping[str, CodeInfo] = {
    # --- errors: the graph is refused ---
    "graph_validation_error": CodeInfo(
        "error",
        "graph_structure",
        "the file is not a valid graph file, or it breaks a rule without a code of its own",
        "Correct the field at the given path; `rota graph schema` prints all fields with their allowed values.",
    ),
    "unknown_component": CodeInfo(
        "error",
        "graph_structure",
        "a component that is referenced does not exist, or its type is not registered",
        "Correct the name, add the component, or register its type.",
    ),
    "unknown_port": CodeInfo(
        "error",
        "graph_structure",
        "an edge names a port that the component does not have",
        "Use one of the ports of the component's type.",
    ),
    "duplicate_id": CodeInfo(
        "error",
        "graph_structure",
        "an id is used more than once",
        "Give each lane, component, edge and loop a unique id.",
    ),
    "missing_required_input": CodeInfo(
        "error",
        "graph_structure",
        "a required input has no incoming edge",
        "Add an edge to the input, or use a component type without this input.",
    ),
    "port_multiplicity_mismatch": CodeInfo(
        "error",
        "graph_structure",
        "several edges lead to an input that accepts one edge",
        "Keep one edge, or merge the messages in a component before it.",
    ),
    "boundary_role_mismatch": CodeInfo(
        "error",
        "graph_structure",
        "the boundary role in the file differs from the role of the component's type",
        "Set boundary.role to the role of the component's type.",
    ),
    "immediate_cycle_without_loop": CodeInfo(
        "error",
        "graph_structure",
        "immediate edges form a cycle without a composite loop",
        "Add a composite loop of exactly these components, or make one edge of the cycle a delay edge.",
    ),
    "partial_composite_loop": CodeInfo(
        "error",
        "graph_structure",
        "a loop does not list exactly the components of a cycle",
        "List exactly the components of the cycle.",
    ),
    "decorative_composite_loop": CodeInfo(
        "error",
        "graph_structure",
        "a loop lists components that form no cycle of immediate edges",
        "Remove the loop, or close the cycle with an immediate edge.",
    ),
    "immediate_edge_crosses_independent_lane": CodeInfo(
        "error",
        "scheduler",
        "an immediate edge enters or leaves an isolated_thread or manual_step lane",
        "Make it a delay, state or async edge: such a lane commits at the next epoch boundary.",
    ),
    "unsupported_lane_type": CodeInfo(
        "error",
        "scheduler",
        "the lane type does not exist in this schema version",
        "Use a lane type of the file's schema version.",
    ),
    "unsupported_error_policy": CodeInfo(
        "error",
        "scheduler",
        "the error policy does not exist in this schema version",
        "Use fail_fast, or set schema_version: 2.",
    ),
    "invalid_channel_policy": CodeInfo(
        "error",
        "channel",
        "an edge's policy contradicts itself, its kind or its lane",
        "Change the field; `rota docs graph` lists which modes and overflows can be combined.",
    ),
    "multi_state_writer": CodeInfo(
        "error",
        "channel",
        "two state edges write the same input",
        "Keep one writer, or merge both in a component before it.",
    ),
    "invalid_move_only_multireader": CodeInfo(
        "error",
        "payload",
        "a move_only message cannot have several readers",
        "Set readers: single, or use copy_policy: shared_view.",
    ),
    "payload_type_mismatch": CodeInfo(
        "error",
        "payload",
        "an edge connects ports of different payload types",
        "Connect ports of the same type, or convert the payload in a component between them.",
    ),
    "trigger_missing_input": CodeInfo(
        "error",
        "trigger",
        "a trigger waits for an input without an incoming edge",
        "Add an edge to the input, or remove the input from the trigger.",
    ),
    "incompatible_trigger_edge_mode": CodeInfo(
        "error",
        "trigger",
        "a trigger cannot be combined with these event sources or edges",
        "Choose a trigger that works with the component's event sources and edges.",
    ),
    "invalid_budget": CodeInfo(
        "error",
        "scheduler",
        "a budget has an unknown dimension or amount, exceeds the run's, or on_over_budget names no edge of it",
        "Correct the amount, or name an edge that leaves the component.",
    ),
    # --- warnings: the graph runs, and may stall or lose messages ---
    "backpressure_risk": CodeInfo(
        "warning",
        "channel",
        "a slow reader can cause messages to be refused or lost",
        "Increase the capacity, or choose with overflow which messages may be dropped.",
    ),
    "high_queue_depth_latency_risk": CodeInfo(
        "warning",
        "channel",
        "messages may wait for a long time in a deep queue",
        "Reduce the capacity, or set lifespan_ms.",
    ),
    "large_payload_copy": CodeInfo(
        "warning",
        "payload",
        "large payloads are copied for each reader",
        "Use copy_policy: shared_view, or move_only with a single reader.",
    ),
    "trigger_never_ready": CodeInfo(
        "warning",
        "trigger",
        "nothing in the graph can make this trigger ready",
        "Add an event source or an edge that feeds the trigger, or use trigger type manual.",
    ),
    "required_input_not_awaited": CodeInfo(
        "warning",
        "trigger",
        "a component can run without a message on an input that it requires, and then fails",
        "Use a trigger that waits for the input (any_input, all_inputs), or give the parameter a default value.",
    ),
    "subgraph_hidden_cycle": CodeInfo(
        "warning",
        "graph_structure",
        "a cycle crosses the border of a subgraph, so no single part of the file shows it",
        "Declare the loop at the top level of the file and name it after its purpose.",
    ),
    # --- advisories: accepted, without effect here ---
    "optional_input_unconnected": CodeInfo(
        "advisory",
        "graph_structure",
        "an optional input has no incoming edge",
        "No change is required; add an edge to use the input.",
    ),
    "advisory_lane_field_ignored": CodeInfo(
        "advisory",
        "scheduler",
        "a lane field is accepted and not applied here",
        "Remove the field, or use a lane type and a platform that apply it.",
    ),
    "advisory_execution_field_ignored": CodeInfo(
        "advisory",
        "scheduler",
        "a field of a component's execution, an edge's policy or a loop is accepted and not applied here",
        "Remove the field, or change the lane, edge or loop so that it applies.",
    ),
    # --- notes ---
    "diagnostic_note": CodeInfo("info", "graph_structure", "information about the graph", "No change is required."),
}


class Diagnostic(msgspec.Struct, frozen=True, kw_only=True):
    """One finding about a graph. `graph_path` is where it is, for example lanes.pool.priority."""

    code: str
    severity: Severity
    category: Category
    message: str
    graph_path: str = ""
    involved_components: tuple[str, ...] = ()
    involved_edges: tuple[str, ...] = ()
    suggested_fix: str = ""
    line: int | None = None  # in the file, if known; the first line is 1

    @classmethod
    def of(
        cls,
        code: str,
        message: str,
        path: str = "",
        *,
        components: Iterable[str] = (),
        edges: Iterable[str] = (),
        fix: str | None = None,
        line: int | None = None,
    ) -> Diagnostic:
        """Return a diagnostic of this code. Severity, category and the default fix come from `CODES`."""
        known = CODES[code]
        return cls(
            code=code,
            severity=known.severity,
            category=known.category,
            message=message,
            graph_path=path,
            involved_components=tuple(components),
            involved_edges=tuple(edges),
            suggested_fix=known.fix if fix is None else fix,
            line=line,
        )

    @property
    def is_error(self) -> bool:
        """Whether this diagnostic refuses the graph."""
        return self.severity == "error"

    def sentence(self) -> str:
        """Return the diagnostic as one line of text."""
        at = f"{self.graph_path}: " if self.graph_path and self.graph_path not in self.message else ""
        line = f"line {self.line}: " if self.line is not None else ""
        return f"{self.severity} {self.code}: {line}{at}{self.message}"


def worst_first(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Sort by severity: errors, warnings, advisories, notes. Equal severities keep their order."""
    return tuple(sorted(diagnostics, key=lambda each: SEVERITIES.index(each.severity)))

"""Everything the compiler can say about a graph: one table of codes, one structure.

An *error* means the graph is refused. A *warning* means it runs and will probably disappoint (`--strict-diagnostics`
refuses it too). An *advisory* means that something in the file is not applied here, said aloud so that a field never
looks implemented merely because it parses. A *note* is for information.

Codes are stable: a tool may test for them. What a code means, its severity and how to mend it stand in `CODES`, once;
the sentence about this very graph stands in the diagnostic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

import msgspec

__all__ = ["CATEGORIES", "CODES", "DIAGNOSTICS_SCHEMA_VERSION", "Code", "Diagnostic", "Severity", "worst_first"]

DIAGNOSTICS_SCHEMA_VERSION = "1"

Severity: TypeAlias = Literal["error", "warning", "advisory", "info"]
Category: TypeAlias = Literal["graph_structure", "scheduler", "channel", "payload", "trigger"]
CATEGORIES: tuple[Category, ...] = ("graph_structure", "scheduler", "channel", "payload", "trigger")
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "advisory", "info")


class Code(NamedTuple):
    """One kind of diagnostic."""

    severity: Severity
    category: Category
    meaning: str
    fix: str


CODES: Mapping[str, Code] = {
    # --- refused ---
    "graph_validation_error": Code(
        "error",
        "graph_structure",
        "the file cannot be read as a graph, or breaks a rule that has no code of its own",
        "Correct the named place; `rota graph schema` prints every field with its words and ranges.",
    ),
    "unknown_component": Code(
        "error",
        "graph_structure",
        "something names a component that is not there, or a type that nobody registered",
        "Correct the name, or add the component or register its type.",
    ),
    "unknown_port": Code(
        "error",
        "graph_structure",
        "an edge ends at a port that the component does not have",
        "Use one of the ports that the component's type describes.",
    ),
    "duplicate_id": Code(
        "error", "graph_structure", "an id is used twice", "Give each lane, component, edge and loop an id of its own."
    ),
    "missing_required_input": Code(
        "error",
        "graph_structure",
        "an input that the component needs has no edge",
        "Lead an edge to the input, or use a component that can do without it.",
    ),
    "port_multiplicity_mismatch": Code(
        "error",
        "graph_structure",
        "several edges lead to an input that takes one",
        "Keep one edge, or join the messages in a component before it.",
    ),
    "boundary_role_mismatch": Code(
        "error",
        "graph_structure",
        "the boundary role in the file does not fit the component's type",
        "Give the component the role that its type has.",
    ),
    "immediate_cycle_without_loop": Code(
        "error",
        "graph_structure",
        "immediate edges run in a circle that no loop owns",
        "Add a composite loop of exactly these components, or make one edge of the circle a delay edge.",
    ),
    "partial_composite_loop": Code(
        "error",
        "graph_structure",
        "a loop lists some of a cycle's components, or some that are not in it",
        "List exactly the components of the cycle.",
    ),
    "decorative_composite_loop": Code(
        "error",
        "graph_structure",
        "a loop owns no cycle of immediate edges",
        "Remove the loop, or close the cycle with an immediate edge.",
    ),
    "immediate_edge_crosses_independent_lane": Code(
        "error",
        "scheduler",
        "an immediate edge leads into or out of a lane that has a thread or steps of its own",
        "Make it a delay, state or async edge: such a lane commits at the next epoch boundary.",
    ),
    "unsupported_lane_type": Code(
        "error",
        "scheduler",
        "there is no such lane type in this schema version",
        "Use a lane type of the file's schema version.",
    ),
    "unsupported_error_policy": Code(
        "error",
        "scheduler",
        "there is no such error policy in this schema version",
        "Use fail_fast, or say schema_version: 2.",
    ),
    "invalid_channel_policy": Code(
        "error",
        "channel",
        "an edge's policy contradicts itself, its kind or its lane",
        "Change the named field; docs/graph.md says which modes and overflows go together.",
    ),
    "multi_state_writer": Code(
        "error",
        "channel",
        "two state edges write the same input",
        "Keep one writer, or join both in a component before it.",
    ),
    "invalid_move_only_multireader": Code(
        "error",
        "payload",
        "a message that is moved cannot have several readers",
        "Say readers: single, or use shared_view.",
    ),
    "payload_type_mismatch": Code(
        "error",
        "payload",
        "an edge joins ports of different payload types",
        "Join ports of the same type, or convert between them in a component.",
    ),
    "trigger_missing_input": Code(
        "error",
        "trigger",
        "a trigger waits for an input that no edge leads to",
        "Lead an edge to the input, or take it out of the trigger.",
    ),
    "incompatible_trigger_edge_mode": Code(
        "error",
        "trigger",
        "a trigger and what it is fed with do not go together",
        "Choose a trigger that fits the event sources and the edges' modes.",
    ),
    # --- runs, and may disappoint ---
    "backpressure_risk": Code(
        "warning",
        "channel",
        "a slow reader can stall whoever writes, or lose messages",
        "Bound the queue, or choose which messages may be dropped.",
    ),
    "high_queue_depth_latency_risk": Code(
        "warning",
        "channel",
        "a deep queue hides how late its messages are",
        "Make the queue shallower, or give its messages a lifespan.",
    ),
    "large_payload_copy": Code(
        "warning",
        "payload",
        "large payloads are copied for each reader",
        "Use copy_policy: shared_view, or move_only where there is one reader.",
    ),
    "trigger_never_ready": Code(
        "warning",
        "trigger",
        "nothing in the graph can make this trigger ready",
        "Add an event source or an edge that wakes it, or make it manual.",
    ),
    "subgraph_hidden_cycle": Code(
        "warning",
        "graph_structure",
        "a cycle runs through a subgraph and is not visible in either file part alone",
        "Name the loop after what it does, at the top level, where readers look for it.",
    ),
    # --- not applied here ---
    "optional_input_unconnected": Code(
        "advisory",
        "graph_structure",
        "an input that the component can do without has no edge",
        "Nothing needs to change; lead an edge to it to use it.",
    ),
    "advisory_lane_field_ignored": Code(
        "advisory",
        "scheduler",
        "a lane's field is kept and not applied here",
        "Remove the field, or run on a lane type and a platform that apply it.",
    ),
    "advisory_execution_field_ignored": Code(
        "advisory",
        "scheduler",
        "a field of a component's execution, an edge's policy or a loop is kept and not applied here",
        "Remove the field, or change the lane, edge or loop so that it applies.",
    ),
    # --- for information ---
    "diagnostic_note": Code(
        "info", "graph_structure", "something worth knowing about the graph", "Nothing needs to change."
    ),
}


class Diagnostic(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to know about a graph. `graph_path` names the place, such as lanes.pool.priority."""

    code: str
    severity: Severity
    category: Category
    message: str
    graph_path: str = ""
    involved_components: tuple[str, ...] = ()
    involved_edges: tuple[str, ...] = ()
    suggested_fix: str = ""
    line: int | None = None  # of the file, where it is known; the first line is 1

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
        """A diagnostic of this code; severity, category and fix come from the table."""
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
        """Whether it refuses the graph."""
        return self.severity == "error"

    def sentence(self) -> str:
        """The diagnostic as one line for people."""
        at = f"{self.graph_path}: " if self.graph_path and self.graph_path not in self.message else ""
        line = f"line {self.line}: " if self.line is not None else ""
        return f"{self.severity} {self.code}: {line}{at}{self.message}"


def worst_first(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Errors, then warnings, advisories and notes; inside each, the order in which they were found."""
    return tuple(sorted(diagnostics, key=lambda each: SEVERITIES.index(each.severity)))

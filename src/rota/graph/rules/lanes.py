"""Lanes and execution: what belongs to a later schema version, and what is kept and not applied here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rota.errors import RotaError
from rota.graph.capabilities import Platform, ignored_fields
from rota.graph.diagnostics import Diagnostic
from rota.graph.index import GraphIndex
from rota.graph.spec import (
    CONVERGENCES,
    ERROR_POLICIES_V1,
    LANE_TYPES_V1,
    VERSION_2_FIELDS,
    ComponentSpec,
    ExecutionSpec,
    LanePolicy,
    LaneSpec,
)
from rota.policy import registry

__all__ = ["check_lanes"]

_SAY_2 = "Say schema_version: 2."
_ASYNC_ONLY = ("max_inflight", "drop_policy")


def check_lanes(index: GraphIndex, platform: Platform) -> Iterator[Diagnostic]:
    """Every lane, then the execution of every component and loop."""
    for name, lane in index.spec.lanes.items():
        if index.spec.schema_version == 1:
            yield from _lane_of_version_2(name, lane)
        yield from _policy(name, lane)
        for field, why in ignored_fields(lane, platform).items():
            message = f"lane {name}: {field} is not applied here: {why}"
            yield Diagnostic.of("advisory_lane_field_ignored", message, f"lanes.{name}.{field}")
    for component in index.components.values():
        if index.spec.schema_version == 1:
            yield from _execution_of_version_2(component)
        yield from _execution_ignored(index, component)
    yield from _loops(index)


# --- version 2 in a file of version 1 ------------------------------------------------------------


def _lane_of_version_2(name: str, lane: LaneSpec) -> Iterator[Diagnostic]:
    path = f"lanes.{name}"
    if lane.type not in LANE_TYPES_V1:
        message = f"lane {name} has unsupported type {lane.type}: schema_version 1 has {', '.join(LANE_TYPES_V1)}"
        yield Diagnostic.of("unsupported_lane_type", message, f"{path}.type", fix=_SAY_2)
    for field in _set_fields(lane, "lanes"):
        yield _later_field(f"{path}.{field}")


def _execution_of_version_2(component: ComponentSpec) -> Iterator[Diagnostic]:
    name, execution = component.id, component.execution
    path = f"components.{name}.execution"
    if execution.on_error not in ERROR_POLICIES_V1:
        message = f"component {name} has unsupported on_error {execution.on_error}: schema_version 1 has fail_fast"
        yield Diagnostic.of("unsupported_error_policy", message, f"{path}.on_error", components=[name], fix=_SAY_2)
    for field in _set_fields(execution, "execution"):
        yield _later_field(f"{path}.{field}", name)


def _set_fields(noun: LaneSpec | ExecutionSpec, section: str) -> list[str]:
    kind = type(noun)
    named: dict[str, Any] = dict(zip(kind.__struct_fields__[1:], kind.__struct_defaults__, strict=True))
    return [field for field in VERSION_2_FIELDS[section] if getattr(noun, field) != named[field]]


def _later_field(path: str, *components: str) -> Diagnostic:
    message = f"unexpected field {path} in schema_version 1"
    return Diagnostic.of("graph_validation_error", message, path, components=components, fix=_SAY_2)


# --- accepted, and not applied -------------------------------------------------------------------


def _policy(name: str, lane: LaneSpec) -> Iterator[Diagnostic]:
    """A lane's own policy must be registered and take its parameters."""
    if lane.policy is None:
        return
    policy = lane.policy if isinstance(lane.policy, LanePolicy) else LanePolicy(name=lane.policy)
    try:
        registry.make(policy.name, **policy.params)
    except Exception as problem:  # a policy may be another package's code
        message = f"lane {name}: {problem.message if isinstance(problem, RotaError) else problem}"
        fix = f"The policies are: {', '.join(registry.names())}."
        yield Diagnostic.of("graph_validation_error", message, f"lanes.{name}.policy", fix=fix)


def _execution_ignored(index: GraphIndex, component: ComponentSpec) -> Iterator[Diagnostic]:
    name, execution = component.id, component.execution
    lane = index.spec.lanes.get(execution.lane)
    ignored = []
    if execution.timeout_ms > 0 and lane is not None and lane.type != "process_pool":
        ignored.append(("timeout_ms", "only a process_pool lane can end a component against its will"))
    if execution.max_attempts != ExecutionSpec(lane="").max_attempts and execution.on_error != "retry":
        ignored.append(("max_attempts", "only on_error: retry tries again"))
    for field, why in ignored:
        message = f"component {name}: {field} is not applied here: {why}"
        path = f"components.{name}.execution.{field}"
        yield Diagnostic.of("advisory_execution_field_ignored", message, path, components=[name])


def _loops(index: GraphIndex) -> Iterator[Diagnostic]:
    """Fields of a loop that its type does not apply, and words that nobody knows."""
    for loop in index.spec.composite_loops:
        policy = loop.loop_policy
        ignored = []
        if policy.convergence not in CONVERGENCES:
            known = ", ".join(word for word in CONVERGENCES if word)
            ignored.append(("convergence", f"{policy.convergence!r} is none of {known}"))
        if policy.type != "async_task":
            ignored += [(field, "only async_task loops have it") for field in _ASYNC_ONLY if getattr(policy, field)]
        for field, why in ignored:
            message = f"composite_loop {loop.id}: {field} is not applied here: {why}"
            path = f"composite_loops.{loop.id}.loop_policy.{field}"
            yield Diagnostic.of("advisory_execution_field_ignored", message, path, components=loop.components)

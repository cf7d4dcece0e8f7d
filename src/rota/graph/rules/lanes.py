"""Rules on lanes, execution and loops: what requires schema version 2, and which fields have no effect here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rota.errors import RotaError
from rota.graph.capabilities import Platform, ignored_fields
from rota.graph.diagnostics import Diagnostic
from rota.graph.index import GraphIndex
from rota.graph.spec import (
    AGENT_TYPE,
    CONVERGENCES,
    ERROR_POLICIES_V1,
    EVENT_SOURCES_V1,
    LANE_TYPES_V1,
    VERSION_2_FIELDS,
    ComponentSpec,
    ExecutionSpec,
    LanePolicy,
    LaneSpec,
)
from rota.policy import registry
from rota.service.policy_process import make_policy

__all__ = ["check_lanes"]

_USE_VERSION_2 = "Set schema_version: 2."
_ASYNC_TASK_FIELDS = ("max_inflight", "drop_policy")


def check_lanes(index: GraphIndex, platform: Platform) -> Iterator[Diagnostic]:
    """Check every lane, then the execution of every component, then every loop."""
    if index.spec.schema_version == 1 and index.spec.graph.budget is not None:
        yield _version_2_field("graph.budget")
    for name, lane in index.spec.lanes.items():
        if index.spec.schema_version == 1:
            yield from _version_2_lane(name, lane)
        yield from _policy(name, lane)
        executed = index.spec.executed_lane(name)
        yield from _wall_clock(name, executed)
        for field, reason in ignored_fields(executed, platform, index.spec.schema_version).items():
            message = f"lane {name}: {field} is not applied here: {reason}"
            yield Diagnostic.of("advisory_lane_field_ignored", message, f"lanes.{name}.{field}")
    for component in index.components.values():
        if index.spec.schema_version == 1:
            yield from _version_2_execution(component)
        yield from _agent(index, component)
        yield from _execution_ignored(index, component)
    yield from _loops(index)


# --- version 2 features in a version 1 file ------------------------------------------------------


def _version_2_lane(name: str, lane: LaneSpec) -> Iterator[Diagnostic]:
    path = f"lanes.{name}"
    if lane.type not in LANE_TYPES_V1:
        message = f"lane {name} has unsupported type {lane.type}: schema_version 1 has {', '.join(LANE_TYPES_V1)}"
        yield Diagnostic.of("unsupported_lane_type", message, f"{path}.type", fix=_USE_VERSION_2)
    for field in _set_fields(lane, "lanes"):
        yield _version_2_field(f"{path}.{field}")


def _version_2_execution(component: ComponentSpec) -> Iterator[Diagnostic]:
    name, execution = component.id, component.execution
    path = f"components.{name}.execution"
    if execution.on_error not in ERROR_POLICIES_V1:
        message = f"component {name} has unsupported on_error {execution.on_error}: schema_version 1 has fail_fast"
        yield Diagnostic.of(
            "unsupported_error_policy", message, f"{path}.on_error", components=[name], fix=_USE_VERSION_2
        )
    for field in _set_fields(execution, "execution"):
        yield _version_2_field(f"{path}.{field}", name)
    for source in component.event_sources:
        if source.type not in EVENT_SOURCES_V1:
            message = f"component {name} has the event source {source.type}, which schema_version 1 does not have"
            path = f"components.{name}.event_sources"
            yield Diagnostic.of("graph_validation_error", message, path, components=[name], fix=_USE_VERSION_2)


def _set_fields(spec: LaneSpec | ExecutionSpec, section: str) -> list[str]:
    """Return the version 2 fields of a section that differ from their defaults."""
    kind = type(spec)
    defaults: dict[str, Any] = dict(zip(kind.__struct_fields__[1:], kind.__struct_defaults__, strict=True))
    return [field for field in VERSION_2_FIELDS[section] if getattr(spec, field) != defaults[field]]


def _version_2_field(path: str, *components: str) -> Diagnostic:
    message = f"unexpected field {path} in schema_version 1"
    return Diagnostic.of("graph_validation_error", message, path, components=components, fix=_USE_VERSION_2)


# --- policies, and fields without effect ---------------------------------------------------------


def _policy(name: str, lane: LaneSpec) -> Iterator[Diagnostic]:
    """Check that a lane's policy is registered and accepts its parameters."""
    if lane.policy is None:
        return
    policy = lane.policy if isinstance(lane.policy, LanePolicy) else LanePolicy(name=lane.policy)
    try:
        make_policy(policy.name, policy.params, policy.isolation)
    except Exception as problem:  # the policy may come from another package and fail in any way
        message = f"lane {name}: {problem.message if isinstance(problem, RotaError) else problem}"
        fix = f"The policies are: {', '.join(registry.names())}."
        yield Diagnostic.of("graph_validation_error", message, f"lanes.{name}.policy", fix=fix)


def _wall_clock(name: str, lane: LaneSpec) -> Iterator[Diagnostic]:
    """Check that a lane that waits for its next tick knows when that is."""
    if lane.type == "fixed_rate" and lane.wall_clock_enabled and not lane.period_ns:
        message = f"lane {name}: wall_clock_enabled requires a rate, and neither period_ms nor hz is set"
        fix = "Set period_ms or hz, or remove wall_clock_enabled for simulated ticks."
        yield Diagnostic.of("graph_validation_error", message, f"lanes.{name}.wall_clock_enabled", fix=fix)


def _agent(index: GraphIndex, component: ComponentSpec) -> Iterator[Diagnostic]:
    """Check that agents, and only agents, are on lanes of type fleet."""
    name, agent, lane = component.id, component.execution.agent, index.lane_of(component.id)
    path = f"components.{name}.execution.agent"
    if agent and lane is not None and lane.type != "fleet":
        message = f"component {name} is the agent {agent} and must be on a lane of type fleet, not {lane.type}"
        fix = "Remove the lane, or name one of type fleet."
        yield Diagnostic.of("graph_validation_error", message, path, components=[name], fix=fix)
    elif not agent and lane is not None and lane.type == "fleet":
        message = f"component {name} is on lane {component.execution.lane} of type fleet, but names no agent"
        fix = "Add the agent: execution: {agent: NAME}. For a function use a lane of type queue."
        yield Diagnostic.of("graph_validation_error", message, path, components=[name], fix=fix)
    elif agent and component.type != AGENT_TYPE:
        message = f"component {name} is the agent {agent} and cannot also be of type {component.type}"
        fix = f"Remove the type, or write type: {AGENT_TYPE}."
        yield Diagnostic.of("graph_validation_error", message, f"components.{name}.type", components=[name], fix=fix)


def _execution_ignored(index: GraphIndex, component: ComponentSpec) -> Iterator[Diagnostic]:
    name, execution = component.id, component.execution
    lane = index.spec.lanes.get(execution.lane)
    ignored = []
    if execution.timeout_ms > 0 and lane is not None and lane.type != "process_pool":
        ignored.append(("timeout_ms", "only a process_pool lane can kill a running component"))
    if execution.max_attempts != ExecutionSpec(lane="").max_attempts and execution.on_error != "retry":
        ignored.append(("max_attempts", "it is used with on_error: retry only"))
    for field, reason in ignored:
        message = f"component {name}: {field} is not applied here: {reason}"
        path = f"components.{name}.execution.{field}"
        yield Diagnostic.of("advisory_execution_field_ignored", message, path, components=[name])


def _loops(index: GraphIndex) -> Iterator[Diagnostic]:
    """Yield an advisory for each loop field that its type does not use, and for each unknown convergence."""
    for loop in index.spec.composite_loops:
        policy = loop.loop_policy
        ignored = []
        if policy.convergence not in CONVERGENCES:
            known = ", ".join(word for word in CONVERGENCES if word)
            ignored.append(("convergence", f"{policy.convergence!r} is not one of {known}"))
        if policy.type != "async_task":
            ignored += [
                (field, "only async_task loops use it") for field in _ASYNC_TASK_FIELDS if getattr(policy, field)
            ]
        for field, reason in ignored:
            message = f"composite_loop {loop.id}: {field} is not applied here: {reason}"
            path = f"composite_loops.{loop.id}.loop_policy.{field}"
            yield Diagnostic.of("advisory_execution_field_ignored", message, path, components=loop.components)

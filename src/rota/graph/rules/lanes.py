"""Rules on lanes, execution and loops: what requires schema version 2, and which fields have no effect here."""

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
from rota.service.policy_process import make_policy

__all__ = ["check_lanes"]

_USE_VERSION_2 = "Set schema_version: 2."
_ASYNC_TASK_FIELDS = ("max_inflight", "drop_policy")


def check_lanes(index: GraphIndex, platform: Platform) -> Iterator[Diagnostic]:
    """Check every lane, then the execution of every component, then every loop."""
    for name, lane in index.spec.lanes.items():
        if index.spec.schema_version == 1:
            yield from _version_2_lane(name, lane)
        yield from _policy(name, lane)
        for field, reason in ignored_fields(lane, platform).items():
            message = f"lane {name}: {field} is not applied here: {reason}"
            yield Diagnostic.of("advisory_lane_field_ignored", message, f"lanes.{name}.{field}")
    for component in index.components.values():
        if index.spec.schema_version == 1:
            yield from _version_2_execution(component)
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

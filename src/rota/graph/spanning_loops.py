"""Loops that span epochs: composite loops with members that run as entries.

An ordinary composite loop iterates inside one epoch. A member on a durable lane (an agent, a component in the queue)
ends in a later epoch, so such a loop goes on from epoch to epoch, one iteration at a time. It is replaced by a
component of type `rota.loop` when the graph is loaded, under the id of the loop, and the plan shows it as such:

    draft → critic → revise → write       draft ──> fix.initial     fix.body ──> critic → revise ──> fix.result
              ↑________|   loop `fix`      fix.out ──> write

The loop needs one edge that enters it and one that leads back to the same input. What leaves the loop where the back
edge begins leaves it once: the value of the last iteration. `convergence` ends it before `max_iterations`:

    stable_state                  two iterations in a row gave the same value
    single_pass, always, …        after the first iteration
    accepted                      the value is a mapping in which this field is true
    shop.reports:is_good          this function, called with the value, returns true

If it does not converge, `partial_success` decides as in other loops. The fields of REFUSED mean a loop that ends within
an epoch; a loop that spans epochs and has one of them is refused by the compiler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rota.graph.spec import (
    CONVERGENCES,
    DURABLE_LANE_TYPES,
    LOOP_TYPE,
    ComponentSpec,
    CompositeLoopSpec,
    EdgePolicy,
    EdgeSpec,
    Endpoint,
    EventSource,
    ExecutionSpec,
    GraphSpec,
    LaneSpec,
    LoopPolicy,
    TriggerPolicy,
)

__all__ = ["LOOP_LANE", "fields_refused", "with_spanning_loops"]

LOOP_LANE = "loops"  # of spanning loops, in a graph without an event loop
REFUSED = ("budget_ms", "min_interval_ms", "residual_threshold", "max_inflight", "drop_policy")
_OTHERWISE = {"commit_outputs": "commit", "discard_outputs": "discard", "fail_run": "fail"}
_INPUTS = ("initial", "result")


def with_spanning_loops(spec: GraphSpec) -> GraphSpec:
    """Return the graph with a component for each loop that has a member on a durable lane.

    A loop of another shape stays as it is, and the compiler refuses it.
    """
    for loop in spec.composite_loops:
        if _spans_epochs(spec, loop):
            spec = _replaced(spec, loop)
    return spec


def _spans_epochs(spec: GraphSpec, loop: CompositeLoopSpec) -> bool:
    lanes = {each.id: spec.lanes.get(each.execution.lane) for each in spec.components if each.id in loop.components}
    return any(lane is not None and lane.type in DURABLE_LANE_TYPES for lane in lanes.values())


def _replaced(spec: GraphSpec, loop: CompositeLoopSpec) -> GraphSpec:
    members = frozenset(loop.components)
    ends = {edge.id: (Endpoint.parse(edge.source), Endpoint.parse(edge.target)) for edge in spec.edges}
    entering = [edge for edge in spec.edges if _crosses(ends[edge.id], members, inwards=True)]
    inner = [edge for edge in spec.edges if all(end.component in members for end in ends[edge.id])]
    heads = {ends[edge.id][1] for edge in entering}
    back = [edge for edge in inner if ends[edge.id][1] in heads]
    first = [edge for edge in entering if back and ends[edge.id][1] == ends[back[0].id][1]]
    if len(back) != 1 or len(first) != 1 or fields_refused(loop.loop_policy):
        return spec
    lane, lanes = _loop_lane(spec)
    source, head = ends[back[0].id]
    edges = [_rerouted(edge, ends[edge.id], loop.id, first[0], back[0], source, members) for edge in spec.edges]
    body = EdgeSpec(
        id=f"{loop.id}.body", kind="async", source=f"{loop.id}.body", target=f"{head.component}.{head.port}"
    )
    return msgspec.structs.replace(
        spec,
        lanes=lanes,
        components=(*spec.components, _component(loop, lane)),
        edges=(*edges, body),
        composite_loops=tuple(each for each in spec.composite_loops if each.id != loop.id),
    )


def _crosses(ends: tuple[Endpoint, Endpoint], members: frozenset[str], *, inwards: bool) -> bool:
    source, target = ends
    outside, inside = (source, target) if inwards else (target, source)
    return outside.component not in members and inside.component in members


def _loop_lane(spec: GraphSpec) -> tuple[str, dict[str, LaneSpec]]:
    """Return the lane of a loop's component, and the lanes of the graph with it."""
    found = next((name for name, lane in spec.lanes.items() if lane.type == "event_loop"), None)
    if found is not None:
        return found, spec.lanes
    return LOOP_LANE, {**spec.lanes, LOOP_LANE: LaneSpec(type="event_loop")}


def _rerouted(  # noqa: PLR0917  # the loop, and the three edges that decide
    edge: EdgeSpec,
    ends: tuple[Endpoint, Endpoint],
    loop_id: str,
    first: EdgeSpec,
    back: EdgeSpec,
    last: Endpoint,
    members: frozenset[str],
) -> EdgeSpec:
    if edge.id == first.id:
        return msgspec.structs.replace(edge, target=f"{loop_id}.initial", policy=_queue(edge.policy))
    if edge.id == back.id:
        return msgspec.structs.replace(edge, target=f"{loop_id}.result")
    if ends[0] == last and _crosses(ends, members, inwards=False):
        return msgspec.structs.replace(edge, source=f"{loop_id}.out", policy=_queue(edge.policy))
    return edge


def _queue(policy: EdgePolicy) -> EdgePolicy:
    """Return a policy with the default of a durable edge: the edge no longer ends at the durable lane itself."""
    return policy.completed(durable=True)


def _component(loop: CompositeLoopSpec, lane: str) -> ComponentSpec:
    return ComponentSpec(
        id=loop.id,
        type=LOOP_TYPE,
        execution=ExecutionSpec(lane=lane),
        event_sources=(EventSource(type="message", inputs=_INPUTS),),
        trigger_policy=TriggerPolicy(type="any_input", inputs=_INPUTS),
        config=dict(_config(loop.loop_policy)),
    )


def _config(policy: LoopPolicy) -> Mapping[str, Any]:
    iterations, convergence = max(1, policy.max_iterations), policy.convergence
    if convergence in CONVERGENCES and convergence not in ("", "stable_state"):
        return {"max_iterations": 1}  # it converges by that
    usual = "discard_outputs" if policy.type == "solver_iteration" else "commit_outputs"
    otherwise = _OTHERWISE[policy.partial_success or usual]
    config: dict[str, Any] = {"max_iterations": iterations}
    if otherwise != "commit":
        config["otherwise"] = otherwise
    if convergence == "stable_state":
        config["stable"] = True
    elif convergence:
        config["until" if ":" in convergence else "field"] = convergence
    return config


def fields_refused(policy: LoopPolicy) -> list[str]:
    """Return the fields of a loop that have no meaning if it spans epochs."""
    usual = LoopPolicy(type=policy.type)  # a threshold of 0 is one
    refused = [name for name in REFUSED if getattr(policy, name) != getattr(usual, name)]
    return [*refused, *(["type: coalesced_event"] if policy.type == "coalesced_event" else [])]

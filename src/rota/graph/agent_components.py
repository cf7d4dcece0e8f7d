"""Components that are agents: `execution: {agent: researcher}`.

Such a component needs no `type`: its invocations are ordinary entries of the agent (see `lanes/fleet_lane.py`). Its
input ports are those that its edges name; its output port is `out`, the entry's result. Without a lane it is on the
lane `fleet`, which need not be declared; without a trigger it runs when every input has a message.

    - {id: search, execution: {agent: researcher}}

    is the same as

    lanes: {fleet: {type: fleet}}
    - id: search
      type: agent
      trigger_policy: {type: all_inputs, inputs: [topic]}     # if an edge leads to search.topic
      execution: {lane: fleet, agent: researcher}

An agent without inputs runs once, when the run begins. `completed` fills this in, also for inputs and outputs of the
run (`run_values.py`): the loader calls it, and so does whatever builds a graph in Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rota.graph.components import DEFAULT_OUTPUT, ComponentDescriptor, ComponentType, Port
from rota.graph.run_values import BUILT_IN, trigger_of
from rota.graph.spanning_loops import with_spanning_loops
from rota.graph.spec import (
    AGENT_TYPE,
    FLEET_LANE,
    ComponentSpec,
    EdgeSpec,
    Endpoint,
    EventSource,
    GraphSpec,
    LaneSpec,
    TriggerPolicy,
)

__all__ = ["AGENT_COMPONENT", "completed", "completed_fields", "is_agent"]


def is_agent(spec: ComponentSpec) -> bool:
    """Whether a component is an agent."""
    return bool(spec.execution.agent)


def _not_called_here(**_inputs: Any) -> None:
    raise AssertionError("an agent runs as an entry of the queue")


# the component type of every agent: any inputs, one output
AGENT_COMPONENT = ComponentType(
    descriptor=ComponentDescriptor(type=AGENT_TYPE, outputs=(Port(name=DEFAULT_OUTPUT),), any_inputs=True),
    implementation=_not_called_here,
    kind="function",
    parameters=(),
    injected=(),
    takes_any=True,
    config_names=None,
    config_required=(),
    is_async=False,
)


def completed_fields(component: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the fields that a component of a graph file may leave out if it is an agent; None if it is none."""
    execution = component.get("execution")
    if not isinstance(execution, dict) or not execution.get("agent"):
        return None
    found: dict[str, Any] = {}
    if component.get("type") is None:
        found["type"] = AGENT_TYPE
    if execution.get("lane") is None:
        found["lane"] = FLEET_LANE
    return found


def completed(spec: GraphSpec) -> GraphSpec:
    """Return the graph with all that it may leave out: the lane of agents, triggers, the components of its loops."""
    if not any(is_agent(each) or each.type in BUILT_IN for each in spec.components):
        return with_spanning_loops(spec)
    lanes = dict(spec.lanes)
    if any(is_agent(each) and each.execution.lane == FLEET_LANE for each in spec.components):
        lanes.setdefault(FLEET_LANE, LaneSpec(type="fleet"))
    ports = _ports(spec.edges)
    components = tuple(_with_trigger(each, ports.get(each.id, ())) for each in spec.components)
    return with_spanning_loops(msgspec.structs.replace(spec, lanes=lanes, components=components))


def _ports(edges: tuple[EdgeSpec, ...]) -> dict[str, tuple[str, ...]]:
    """Return the input ports that edges name, by component."""
    found: dict[str, dict[str, None]] = {}
    for edge in edges:
        target = Endpoint.parse(edge.target)
        found.setdefault(target.component, {})[target.port] = None
    return {component: tuple(ports) for component, ports in found.items()}


def _with_trigger(spec: ComponentSpec, ports: tuple[str, ...]) -> ComponentSpec:
    """Return a component with the trigger of its kind, if it has none of its own."""
    if spec.trigger_policy != TriggerPolicy() or spec.event_sources not in ((), (EventSource(),)):
        return spec
    found = trigger_of(spec.type)
    if found is None and is_agent(spec):
        found = EventSource(type="start"), TriggerPolicy()
        if ports:
            found = EventSource(type="message", inputs=ports), TriggerPolicy(type="all_inputs", inputs=ports)
    if found is None:
        return spec
    return msgspec.structs.replace(spec, event_sources=(found[0],), trigger_policy=found[1])

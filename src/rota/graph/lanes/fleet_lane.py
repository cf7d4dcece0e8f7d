"""The entries of a run: what becomes of an invocation in the queue. The only place that makes their specs.

An invocation of a component that is an agent is an ordinary entry of that agent, made with the agent's settings like
one that is enqueued by hand: its limits, workspace, retries, expected cost and budget are the agent's. Its payload is
the component's `config` with the inputs by port name:

    - {id: search, config: {depth: 2}, execution: {agent: researcher}}     an edge leads to search.topic
    payload {"depth": 2, "topic": "owls"}, so that `def researcher(ctx, topic, depth)` gets them by name

An invocation of a component on a queue lane is an entry of the graph's own agent, with everything needed to call the
component elsewhere as its payload. If another process can import the component, any supervisor may claim it; if not,
its kind is `graph:NAME`, and only supervisors that were given the graph's components claim it.

All of them have the key `graph/RUN/EPOCH/NODE/NUMBER`, and the run as their correlation_id. The priority classes are
relative to the agent's priority: high +1, normal 0, low -1, background -2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rota.errors import ComponentInvalid
from rota.graph.components import EVENT_PORTS
from rota.graph.messages import Inputs, Message
from rota.graph.nodes import Node
from rota.graph.spec import PRIORITY_RANKS
from rota.model.agent_names import agent_named
from rota.model.entry_defaults import settings_of, spec_for
from rota.model.graph_places import TRIGGER
from rota.model.graph_runs import GraphRun
from rota.model.work import Agent, ScheduleSpec

__all__ = ["EntryRequest", "EntrySpecs", "agent_payload", "entry_kind"]

_NORMAL = PRIORITY_RANKS["normal"]


def entry_kind(graph: str) -> str:
    """Return the kind of entries that only supervisors with the components of this graph can run."""
    return f"graph:{graph}"


class EntryRequest(NamedTuple):
    """An invocation to enqueue."""

    key: str
    payload: dict[str, Any]
    rank: int  # 3 high … 0 background
    agent: str = ""  # the agent that the component is; "": the component is called by the graph's own agent
    type: str = ""  # of the component
    options: Mapping[str, Any] = {}  # further fields of the spec


class EntrySpecs:
    """Makes the specs of the entries of one run."""

    def __init__(self, api: Any, run: GraphRun) -> None:
        self._api = api
        self._run = run
        self._agents: dict[str, Agent] = {}  # by name

    def make(self, request: EntryRequest) -> ScheduleSpec:
        """Return the spec of an entry; raises if its agent does not exist."""
        common = {"key": request.key, "trigger": TRIGGER, "correlation_id": self._run.run_id, **request.options}
        offset = request.rank - _NORMAL
        if not request.agent:
            kind = None if ":" in request.type else entry_kind(self._run.graph)
            return ScheduleSpec(self._run.pid, offset, payload=request.payload, kind=kind, **common)
        agent = self._agent(request.agent)
        return spec_for(agent, settings_of(agent), request.payload, priority=agent.priority + offset, **common)

    def _agent(self, name: str) -> Agent:
        agent = self._agents.get(name)
        if agent is None:
            agent = self._agents[name] = agent_named(self._api.agents.find(name), name, near=self._run.project_id)
        return agent


def agent_payload(node: Node, inputs: Inputs) -> dict[str, Any]:
    """Return the payload of an agent's entry: the configuration of the component, and its inputs by port name."""
    values: dict[str, list[Any]] = {}
    for port, given in zip(node.component.channel_ports, inputs, strict=True):
        if given is not None and port not in EVENT_PORTS:
            values.setdefault(port, []).append(_payload(given))
    edges = {port: node.component.channel_ports.count(port) for port in values}
    found = {port: got[0] if edges[port] == 1 else got for port, got in values.items()}
    if any(not port.isidentifier() for port in found):
        bad = next(port for port in found if not port.isidentifier())
        raise ComponentInvalid(f"port {bad!r} of agent {node.spec.execution.agent} is no name of a parameter")
    return {**node.spec.config, **found}


def _payload(given: Message | tuple[Message, ...]) -> Any:
    return [message.payload for message in given] if isinstance(given, tuple) else given.payload

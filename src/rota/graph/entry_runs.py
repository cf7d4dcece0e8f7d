"""Running the entry of an invocation: a component is called somewhere else than in the process of its run.

A supervisor does this for entries of queue lanes. The entry has everything that is needed, except for the component's
code. The process that runs the graph may be this one, another one, or one that has died and will be restarted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rota.decoding import convert
from rota.errors import ComponentInvalid, GraphRunFailed
from rota.graph.accounts import RunAccount
from rota.graph.calling import BoundComponent, CoroutineRunner, execute
from rota.graph.component_registry import ComponentRegistry
from rota.graph.invocation import Invocation, Publication
from rota.graph.lanes.durable import EntryResult, json_value
from rota.graph.lifecycle import call_hook
from rota.graph.messages import Inputs
from rota.graph.reports import error_text
from rota.graph.scope import DetachedScope
from rota.graph.stop import StopToken
from rota.model.checks import RESULT_BYTES_MAX

__all__ = ["run_entry"]


def run_entry(
    registry: ComponentRegistry,
    payload: Mapping[str, Any],
    stop_token: StopToken | None = None,
    account: RunAccount | None = None,
) -> dict[str, Any]:
    """Run the invocation of an entry and return the entry's result. Raises if the component failed.

    What the component uses is counted in `account`, which is that of the entry's claim.
    """
    component_type = registry.find(payload["type"])
    instance = component_type.implementation(**payload["config"]) if component_type.kind == "class" else None
    component = BoundComponent(
        payload["component"],
        payload["lane"],
        component_type,
        instance,
        payload["channel_ports"],
        config=payload["config"] if component_type.kind == "function" else {},
        output_ports=frozenset(payload["output_ports"]),
        fills_every_input=payload["fills"],
        budget_s=payload["budget_s"],
    )
    scope = DetachedScope(payload["graph_config"], stop_token or StopToken(), "an entry of a queue", account)
    invocation = Invocation(component, scope, convert(payload["inputs"], Inputs), payload["epoch"])
    invocation.attempt = payload["attempt"] - 1  # the run decides about retries
    _run_lifecycle(component, invocation)
    if invocation.problem is not None:
        raise GraphRunFailed(
            f"component {component.id} failed: {error_text(invocation.problem)}"
        ) from invocation.problem
    return _result(component, invocation)


def _run_lifecycle(component: BoundComponent, invocation: Invocation) -> None:
    """Take a component instance through its whole lifecycle, for one invocation."""
    coroutines = CoroutineRunner()
    try:
        for hook in ("configure", "reset", "activate"):
            call_hook(component.instance, hook, coroutines)
        try:
            execute(component, invocation, coroutines)
        finally:
            call_hook(component.instance, "deactivate", coroutines)
    finally:
        coroutines.close()


def _result(component: BoundComponent, invocation: Invocation) -> dict[str, Any]:
    published = [
        Publication(
            each.port,
            json_value(f"what component {component.id} published on port {each.port}", each.payload),
            each.timestamp_ms,
        )
        for each in invocation.staged
    ]
    duration_s = invocation.ended_at_s - invocation.started_at_s
    result: dict[str, Any] = msgspec.to_builtins(EntryResult(published, duration_s))
    size = len(msgspec.json.encode(result))
    if size > RESULT_BYTES_MAX:
        raise ComponentInvalid(
            f"component {component.id} published {size:,} bytes; the maximum result size is {RESULT_BYTES_MAX:,}",
            hint="Publish less data, or a reference to where it is stored.",
            component_id=component.id,
        )
    return result

"""The table of a graph in a fleet file, and the agent that the graph is.

    [graphs.report]
    file = "report.yaml"
    project = "research"
    inputs = {topic = "tides"}
    budget = {tokens = 200_000}
    triggers = [{cron = "0 9 * * mon-fri"}]

A graph is an agent of this name whose entries are its runs: whatever enqueues an agent starts a run, and the payload
holds the run's inputs. The document is stored with the agent, so any supervisor of the store can run it.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from rota.fleet.agent_settings import AgentSettings
from rota.fleet.config.agent_tables import (
    DIMENSIONS_MAX,
    MONEY,
    TRIGGERS_MAX,
    Grant,
    Text,
    TriggerTable,
    Weight,
)
from rota.model.graph_runs import BUDGETS_KEY, DOCUMENT_KEY, coordinator_settings
from rota.model.work import WEIGHT_UNIT, Intent

__all__ = ["GraphAgent", "GraphTable"]

DIGEST_CHARS = 8  # of a document, in messages


class GraphTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A graph: each of its entries is a run of the whole graph."""

    file: Annotated[Text, Meta(description="The graph file, YAML or JSON; `rota docs graph` describes it.")]
    project: Annotated[
        str | None, Meta(description="The project of its runs; the agents of its nodes are looked for there first.")
    ] = None
    inputs: Annotated[
        dict[str, Any], Meta(description="Values of its inputs, by name; a trigger may override them.")
    ] = {}
    budget: Annotated[
        dict[str, Grant],
        Meta(
            description="What one run may use, with all of its nodes, by dimension; over that of the graph file. `usd` "
            "is in dollars.",
            max_length=DIMENSIONS_MAX,
            **MONEY,
        ),
    ] = {}
    priority: Annotated[
        int,
        Meta(description="Priority of the entry that coordinates a run; higher runs sooner.", ge=-(2**31), le=2**31),
    ] = 0
    weight: Annotated[Weight, Meta(description="Its share among the agents of its project.")] = 1.0
    triggers: Annotated[
        tuple[TriggerTable, ...], Meta(description="What starts runs automatically.", max_length=TRIGGERS_MAX)
    ] = ()


class GraphAgent(msgspec.Struct, frozen=True):
    """The agent of a graph, in the form in which agents of a file are applied and triggered."""

    name: str
    table: GraphTable
    document: dict[str, Any] = {}
    budgets: dict[str, dict[str, int]] = {}  # of a run, under the empty name, and of its nodes
    intent: ClassVar[Intent] = Intent.NEUTRAL
    max_concurrent: ClassVar[None] = None
    budget: ClassVar[dict[str, int]] = {}  # of the agent in all runs: none; that of a run is in `budgets`
    expected: ClassVar[dict[str, int]] = {}

    @property
    def project(self) -> str | None:
        """Its project."""
        return self.table.project

    @property
    def priority(self) -> int:
        """The priority of its entries."""
        return self.table.priority

    @property
    def weight_units(self) -> int:
        """The weight in the kernel's integer unit (thousandths)."""
        return round(self.table.weight * WEIGHT_UNIT)

    @property
    def triggers(self) -> tuple[TriggerTable, ...]:
        """What starts runs."""
        return self.table.triggers

    @property
    def metadata(self) -> dict[str, Any]:
        """The document of its runs, and their budgets."""
        return {DOCUMENT_KEY: self.document, BUDGETS_KEY: self.budgets}

    def settings(self, _folder: str) -> AgentSettings:
        """Return the settings that are stored with the agent."""
        return coordinator_settings(self.table.inputs)


def document_text(document: Any) -> str:
    """Return a document in a few words: two that differ do not look alike."""
    if not isinstance(document, dict):
        return "none"
    nodes = document.get("components")
    digest = hashlib.sha256(msgspec.json.encode(document, order="deterministic")).hexdigest()[:DIGEST_CHARS]
    return f"{len(nodes) if isinstance(nodes, list) else 0} components, {digest}"

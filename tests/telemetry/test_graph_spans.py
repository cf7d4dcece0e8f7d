"""A graph run is one trace: the run, its coordinator, its nodes, and what they spawn."""

from __future__ import annotations

from typing import Any

import pytest

from rota.graph import read_mapping
from rota.model.trace_context import parse_traceparent
from rota.telemetry import make_timeline
from rota.telemetry.trace_source import StoreSource
from rota.testing import InMemoryRota
from tests.telemetry.world import by_name, in_memory, kernel_of, one, pages, spans_of

REPORT = """
schema_version: 2
graph: {name: report}
lanes: {main: {type: event_loop}}
components:
  - {id: topic, type: rota.input, execution: {lane: main}}
  - {id: found, execution: {agent: researcher}}
  - {id: text, type: rota.output, execution: {lane: main}}
edges:
  - {id: ask, kind: async, from: topic.out, to: found.topic}
  - {id: answer, kind: async, from: found.out, to: text.value}
"""


def run_report(rota: InMemoryRota, tmp_path: Any) -> list[str | None]:
    told: list[str | None] = []

    @rota.agent
    def reader(ctx: Any, page: int) -> int:
        told.append(ctx.traceparent)
        return page

    @rota.agent
    def researcher(ctx: Any, topic: str) -> str:
        told.append(ctx.traceparent)
        ctx.spawn("reader", page=1)
        return topic

    file = tmp_path / "report.yaml"
    file.write_text(REPORT)
    rota.api.graphs.start(read_mapping(file), {"topic": "tides"}, run_id="monday")
    assert rota.run_until_idle().ok
    return told


def test_nodes_are_below_their_run_and_their_children_below_them(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROTA_OTEL", "on")
    with in_memory() as rota:
        told = run_report(rota, tmp_path)
        spans = spans_of(kernel_of(rota))
        timeline = make_timeline(pages(kernel_of(rota)), StoreSource(kernel_of(rota)))
    assert len({span.ref.trace_id for span in spans}) == 1
    graph = one(spans, "invoke_workflow report")
    assert graph.attributes["gen_ai.workflow.name"] == "report"
    assert graph.attributes["rota.graph.run"] == "monday"
    assert graph.parent == one(spans, "enqueue report").ref.span_id, "the coordinator's entry"
    node = one(spans, "enqueue researcher")
    assert node.parent == graph.ref.span_id
    assert node.attributes["rota.graph.node"] == "found"
    assert one(spans, "enqueue reader").parent == one(spans, "invoke_agent researcher").ref.span_id
    runs = [one(spans, "invoke_agent researcher").ref, one(spans, "invoke_agent reader").ref]
    assert [parse_traceparent(each or "") for each in told] == runs, "each of them was told its span"
    assert len(by_name(spans)["process report"]) > 1, "the coordinator gives up its slot while it waits"
    assert {flow.name for flow in timeline.flows} == {"enqueue researcher", "enqueue reader"}
    assert {each.category for each in timeline.slices if each.track.group == "graph runs"} == {"invoke_workflow"}

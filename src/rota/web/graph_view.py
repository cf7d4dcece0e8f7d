"""Graph runs as rows, and a run's picture coloured by the states of its nodes, whose boxes lead to entries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from rota.graph import Plan, compile_graph, load_mapping, to_svg
from rota.model import GraphNodeReport, GraphRunInfo, GraphRunReport, amount_text, amounts_text, dim_text
from rota.model.graph_budgets import GraphBudgetLine
from rota.time_text import moment, span, when

__all__ = ["budget_row", "facts", "node_row", "plan_of", "raised", "run_picture", "run_row"]

VALUE_CHARS_MAX = 2_000  # of an input or a result; the command line shows all of it


def run_row(run: GraphRunInfo, now: float) -> dict[str, Any]:
    """Return a row of the list of runs."""
    links = {"run": f"/graph/{quote(run.run_id, safe='')}"}
    if run.sched_id is not None:
        links["entry"] = f"/entry/{run.sched_id}"
    return {
        "id": run.run_id,
        "run": run.run_id,
        "graph": run.graph,
        "project": run.project_id or "–",
        "status": run.status,
        "epoch": str(run.next_epoch_id),
        "entry": "–" if run.sched_id is None else str(run.sched_id),
        "started": when(run.started_at, now),
        "ended": when(run.ended_at, now),
        "note": run.waits or run.error or "–",
        "tone": _TONES.get(run.status, "plain"),
        "links": links,
    }


_TONES = {
    "waiting": "quiet",
    "pending": "quiet",
    "running": "busy",
    "succeeded": "good",
    "failed": "bad",
    "cancelled": "warn",
}


def node_row(node: GraphNodeReport, now: float) -> dict[str, Any]:
    """Return a row of the nodes of a run."""
    newest = node.newest[-1] if node.newest else None
    return {
        "id": node.node,
        "node": node.node,
        "agent": node.agent or "in the coordinator",
        "state": node.state,
        "epoch": "–" if node.epoch_id is None else str(node.epoch_id),
        "entries": ", ".join(f"{count:,} {status}" for status, count in node.entries.items()) or "–",
        "newest": "–" if newest is None else str(newest),
        "since": when(node.since, now) if node.since else "–",
        "used": amounts_text(node.usage) or "–",
        "tone": _TONES.get(node.state, "plain"),
        "links": {} if newest is None else {"newest": f"/entry/{newest}"},
    }


def facts(report: GraphRunReport, now: float) -> list[tuple[str, str]]:
    """Return what is said about the run as a whole."""
    run = report.run
    found = [("Graph", run.graph), ("Project", run.project_id or "–"), ("Status", run.status)]
    if run.waits is not None:
        since = "" if run.waits_since is None else f", since {span(now - run.waits_since)}"
        found.append(("Waits for", f"{run.waits}{since}"))
    if run.error:
        found.append(("Error", run.error))
    found.append(("Started", moment(run.started_at, now)))
    if run.ended_at is not None:
        found.append(("Ended", moment(run.ended_at, now)))
    if run.sched_id is not None:
        state = f" ({report.coordinator})" if report.coordinator else ""
        found.append(("Coordinator", f"entry {run.sched_id}{state}, epoch {run.next_epoch_id}"))
    for name, value in (("Inputs", run.inputs), ("Result", run.result)):
        if value not in (None, {}):
            found.append((name, _short(value)))
    if report.usage:
        found.append(("Used", amounts_text(report.usage)))
    return found


def _short(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}…"


def budget_row(line: GraphBudgetLine, actions: list[str]) -> dict[str, Any]:
    """Return a row of the budgets of a run and its nodes."""
    return {
        "id": f"{line.dim} {line.node}",
        "label": f"{dim_text(line.dim)} of {line.node or 'the run'}",
        "owner": f"node {line.node}" if line.node else "the run",
        "dim": dim_text(line.dim),
        "limit": amount_text(line.dim, line.limit),
        "used": amount_text(line.dim, line.used),
        "reserved": amount_text(line.dim, line.reserved) if line.reserved else "–",
        "tone": "bad" if line.left <= 0 else "plain",
        "actions": actions,
    }


def raised(line: GraphBudgetLine) -> int:
    """Return the limit that is proposed when a budget is raised: twice what was allowed or used."""
    return 2 * max(line.limit, line.used, 1)


# --- the picture ---------------------------------------------------------------------------------


def plan_of(document: Mapping[str, Any]) -> Plan:
    """Compile a run's document, which never changes."""
    return compile_graph(load_mapping(dict(document)))


def run_picture(plan: Plan, report: GraphRunReport) -> str:
    """Return the picture of a run as a part of a page."""
    states = {node.node: node.state for node in report.nodes}
    links = {node.node: f"/entry/{node.newest[-1]}" for node in report.nodes if node.newest}
    return to_svg(plan, states, links=links)

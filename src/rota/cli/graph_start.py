"""`rota graph run` of a graph whose nodes are agents: start a run in a store, and wait for its end.

The supervisors of the store execute the run. This command only stores it and looks on, so Ctrl-C leaves the run alone.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from rota.cli.connection import open_api
from rota.cli.output import print_json
from rota.cli.terminal_text import say
from rota.errors import GraphInvalid, InvalidInput
from rota.graph import read_mapping, read_stored
from rota.model import GraphRunInfo

if TYPE_CHECKING:
    from rota.service import SchedulerApi

__all__ = ["GraphStartOptions", "has_agents", "start", "wait_for_run"]

LOOK_S = 30.0  # how long one request waits for the end of a run
ENDED = "kernel.graph.ended"


class GraphStartOptions(NamedTuple):
    """What a run is started with."""

    inputs: dict[str, Any]
    project: str | None = None
    budget: dict[str, int] | None = None
    run_id: str | None = None
    wait: bool = True
    as_island: bool = False


def has_agents(file: Path) -> bool:
    """Whether a node of a graph file is an agent, as far as it can be read."""
    try:
        document = read_mapping(file)
    except GraphInvalid:  # reading it again says why, with its line
        return False
    nodes = document.get("components")
    executions = [node.get("execution") for node in nodes if isinstance(node, dict)] if isinstance(nodes, list) else []
    return any(isinstance(each, dict) and each.get("agent") for each in executions)


def start(file: Path, store: str | None, options: GraphStartOptions, *, as_json: bool) -> None:
    """Start a run, and wait for its end unless it is detached."""
    document, store = read_mapping(file), store or os.environ.get("ROTA_STORE")
    graph = document.get("graph")
    if options.as_island and isinstance(graph, dict) and graph.get("island") is None:
        graph["island"] = {}  # the host that coordinates the run admits it
    if store is None:
        node, agent = read_stored(document).agents[0]
        hint = f"Give the store that has the agent: `rota graph run {file} --store rota.db`."
        text = f"{file}: component {node} is the agent {agent}, and no store is given"
        raise InvalidInput(text, field="store", hint=hint)
    with open_api(store) as api:
        cursor = api.journal.cursor()
        run = api.graphs.start(document, options.inputs, options.run_id, options.project, options.budget)
        if not as_json:
            say(f"run {run.run_id} of {run.graph}: entry {run.sched_id}", err=options.wait)
        if not options.wait:
            print_json(run) if as_json else say(f"See how it is: rota graph show {run.run_id}")
            return
        if run.ended_at is None:
            _warn_without_workers(api)
        ended = wait_for_run(api, run, cursor)
    _print_end(ended, as_json=as_json)
    if ended.status != "succeeded":
        raise typer.Exit(1)


def _warn_without_workers(api: SchedulerApi) -> None:
    if not any(each.alive for each in api.workers.list()):
        say("no worker is running: start one with `rota run fleet.toml`", err=True)


def wait_for_run(api: SchedulerApi, run: GraphRunInfo, cursor: int) -> GraphRunInfo:
    """Return a run when it has ended; Ctrl-C ends the waiting, not the run."""
    from rota.cli.outages import call_and_say_outage

    def look() -> GraphRunInfo:
        nonlocal cursor
        for event in api.journal.tail(cursor, kinds=(ENDED,), wait_s=LOOK_S):
            cursor = event.event_id
        return api.graphs.get(run.run_id)

    try:
        while run.ended_at is None:
            run = call_and_say_outage(api.clock, look)  # the run goes on when the store is back, and so does this
    except KeyboardInterrupt:
        say(f"\nrun {run.run_id} goes on; to stop it: rota graph cancel {run.run_id}", err=True)
        raise
    return run


def _print_end(run: GraphRunInfo, *, as_json: bool) -> None:
    if as_json:
        print_json(run)
    elif run.status == "succeeded":
        import msgspec

        result = run.result
        say(result if isinstance(result, str) else msgspec.json.encode(result).decode())
    else:
        verb = "was cancelled" if run.status == "cancelled" else "failed"
        say(f"run {run.run_id} {verb}" + (f": {run.error}" if run.error else ""), err=True)
        say(f"See its nodes: rota graph show {run.run_id}; let it go on: rota graph resume {run.run_id}", err=True)

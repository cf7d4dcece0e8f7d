"""What tests of pages look at: agents, entries that failed, run or wait, and tokens."""

from __future__ import annotations

import contextlib
from typing import Any

from rota.errors import Conflict
from rota.kernel.graph_places import key_prefix
from rota.model.graph_budgets import GraphAccount
from rota.model.work import ScheduleSpec
from rota.rpc import Client
from tests.web.harness import World

WORKER = "web-test-worker"
GRAPH: dict[str, Any] = {
    "schema_version": 2,
    "graph": {"name": "web-report"},
    "lanes": {"main": {"type": "event_loop"}},
    "components": [
        {"id": "topic", "type": "rota.input", "execution": {"lane": "main"}},
        {"id": "<b>found</b>", "execution": {"agent": "web-researcher", "budget": {"tokens": 300}}},
        {"id": "text", "type": "rota.output", "execution": {"lane": "main"}},
    ],
    "edges": [
        {"id": "ask", "kind": "async", "from": "topic.out", "to": "<b>found</b>.topic"},
        {"id": "answer", "kind": "async", "from": "<b>found</b>.out", "to": "text.value"},
    ],
}
GRAPH_NODE = "<b>found</b>"


def agent(client: Client, name: str, project: str | None = None) -> int:
    """Create an agent, and its project."""
    if project is not None:
        with contextlib.suppress(Conflict):
            client.projects.create(project)
    return client.agents.create(name, project_id=project)


def queued(client: Client, pid: int, **options: Any) -> int:
    """Enqueue an entry."""
    return client.enqueue(ScheduleSpec(pid=pid, **options))


def running(client: Client, pid: int, **options: Any) -> tuple[int, int]:
    """Enqueue an entry and claim it; return it with the claim's token."""
    sched_id = queued(client, pid, **options)
    token = client.queue.force_claim(sched_id, worker_id=WORKER).token
    assert token is not None
    return sched_id, token


def failed(client: Client, pid: int, error: str = "it broke", **options: Any) -> int:
    """Enqueue an entry whose only run fails."""
    sched_id, token = running(client, pid, max_attempts=1, **options)
    client.complete(sched_id, "failed", token=token, result={"error": error})
    return sched_id


def token_of(world: World, scope: str, *projects: str) -> tuple[str, str]:
    """Create an access token; return its secret and its author's name in the journal."""
    with world.client() as client:
        made = client.tokens.create(f"{scope} test", scope, projects or None)
    return made.token, f"token:{made.line.token_id}"


def authors(world: World, kind: str) -> list[str]:
    """Return the authors of the events of a kind."""
    found: list[str] = []
    with world.client() as client:
        last = 0
        while events := client.journal.tail(last, 1_000, kinds=(kind,)):
            found += [event.author for event in events]
            last = events[-1].event_id
    return found


def start_graph(
    world: World, run_id: str, document: dict[str, Any] = GRAPH, node: str = GRAPH_NODE, worker: str = WORKER
) -> int:
    """Start a run and coordinate it up to the entry of its agent, which runs; return that entry."""
    name = next(each["execution"]["agent"] for each in document["components"] if each["id"] == node)
    with world.client() as client:
        found = client.agents.find(name)
        project = found[0].project_id if found else "graphs"
        pid = found[0].pid if found else agent(client, name, "graphs")
        run = client.graphs.start(document, {"topic": "tides"}, run_id, project, {"tokens": 500})
        assert run.sched_id is not None
        token = client.queue.force_claim(run.sched_id, worker_id=worker).token or 0
        fence = client.graphs.take_entry(run.sched_id, token).fence
        spec = ScheduleSpec(
            pid,
            trigger="graph",
            correlation_id=run_id,
            key=f"{key_prefix(run_id)}2/{node}/1",
            account=GraphAccount(run_id, node),
            max_attempts=1,
        )
        (sched_id,) = client.graphs.enqueue(run_id, fence, [spec])
        return sched_id

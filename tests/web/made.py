"""What tests of pages look at: agents, entries that failed, run or wait, and tokens."""

from __future__ import annotations

import contextlib
from typing import Any

from rota.errors import Conflict
from rota.model.work import ScheduleSpec
from rota.rpc import Client
from tests.web.harness import World

WORKER = "web-test-worker"


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
    with world.client() as client:
        return [event.author for event in client.journal.tail(0, 100_000, kinds=(kind,))]

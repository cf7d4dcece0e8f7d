"""A store for tests: two projects, an agent in each, one without a project."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rota import store
from rota.kernel import Kernel, ScheduleSpec
from rota.mcp.callers import Caller
from rota.model.work import ReadyEntry
from rota.rpc import Client
from tests.daemon.harness import Served, make_token, serving
from tests.mcp.clients import Desk, desk_at


class Office:
    """Two projects at a daemon, and a live run of one of them."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.client: Client = served.client()
        self.client.projects.create("red")
        self.client.projects.create("blue")
        self.own = self.client.create_agent("own", "command", project_id="red")
        self.near = self.client.create_agent("near", "command", project_id="red")
        self.far = self.client.create_agent("far", "command", project_id="blue")
        self.secret = self.client.enqueue(ScheduleSpec(self.far, payload={"planted": "secret"}))

    def claim(self, **options: object) -> ReadyEntry:
        """Start a run of the agent `own`."""
        self.client.enqueue(ScheduleSpec(self.own, priority=9, **options))  # type: ignore[arg-type]
        (entry,) = self.client.claim("worker")
        assert entry.pid == self.own
        return entry

    def token_of(self, run: ReadyEntry) -> str:
        assert run.token is not None
        return self.client.supervision.access_token(run.sched_id, run.token)

    def token(self, scope: str, *projects: str) -> str:
        return make_token(self.served.path, scope, projects=projects or None)


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    with serving(tmp_path / "rota.db", http=False) as served:
        office = Office(served)
        yield office
        office.client.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with an agent `coder` in project `lab`."""
    made = tmp_path / "rota.db"
    kernel = Kernel(store.open(str(made)))
    kernel.projects.create("lab")
    kernel.agents.create("coder", project_id="lab")
    kernel.store.close()
    return made


@pytest.fixture
def desk(path: Path) -> Iterator[Desk]:
    """A writing caller of that file."""
    with desk_at(path, allow_write=True) as found:
        yield found


@pytest.fixture
def caller(desk: Desk) -> Caller:
    return desk.caller

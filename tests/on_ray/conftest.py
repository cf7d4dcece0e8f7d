"""One cluster of two nodes for all tests of a run (shared_cluster.py)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rota import Rota
from rota.clock import SystemClock
from rota.fleet.on_ray import ray_runs, supervised_ray
from rota.model.ray import RayCluster
from rota.model.reasons import NotPlaced
from rota.service.dispatcher import Dispatcher
from rota.service.explanation import explain
from tests.on_ray.shared_cluster import TestCluster, shared_cluster

WAIT_S = 240.0  # much longer than anything takes: a machine may be busy


@pytest.fixture(scope="package")
def cluster() -> Iterator[TestCluster]:
    with shared_cluster() as joined:
        yield joined


@contextmanager
def running(rota: Rota, cluster: TestCluster, **options: object) -> Iterator[None]:
    """Run a supervisor that is connected to the cluster, until the block ends."""
    with supervised(rota, RayCluster(address=cluster.address, **options)):  # type: ignore[arg-type]
        yield


@contextmanager
def supervised(rota: Rota, on_ray: RayCluster) -> Iterator[None]:
    """Run a supervisor until the block ends; it tries things again soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_runs, "RECONNECT_S", 1.0)
        patch.setattr(ray_runs, "WITHDRAWN_S", 0.5)
        patch.setattr(supervised_ray, "DEMAND_S", 0.5)
        supervisor = rota.supervisor(1, ray=on_ray, drain_s=1.0)
        thread = threading.Thread(target=supervisor.run)
        thread.start()
        try:
            yield
        finally:
            supervisor.kill()
            thread.join()


def wait_until(is_true: Callable[[], bool]) -> None:
    clock, pause = SystemClock(), threading.Event()
    give_up_at = clock.monotonic() + WAIT_S
    while not is_true():
        assert clock.monotonic() < give_up_at, "it did not happen"
        pause.wait(0.05)


def why_not(rota: Rota, sched_id: int) -> Any:
    assert isinstance(rota.api, Dispatcher)
    found = explain(rota.api, sched_id)
    if isinstance(found.workers, NotPlaced):
        assert found.changes[0].words == NotPlaced.remedy
    return found.workers


class World:
    """A store with a supervisor that is connected to the cluster, for all tests that need no other one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rota = Rota(folder / "rota.db")
        self.number = 0

    def path(self) -> Path:
        self.number += 1
        return self.folder / f"file-{self.number}"

    def events(self, kind: type) -> list[dict[str, Any]]:
        return [event.payload for event in self.rota.api.journal.tail(0, 1_000, kinds=(kind.kind,))]  # type: ignore[attr-defined]

    def agent(self, name: str, function: Callable[..., Any], **settings: Any) -> Any:
        return self.rota.agent(name, runner="ray", **settings)(function)


@pytest.fixture(scope="package")
def world(cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("ray"))
    with running(world.rota, cluster):
        yield world
    world.rota.close()

"""One cluster of two nodes for all tests of a run (shared_cluster.py)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from rota import Rota
from rota.clock import SystemClock
from rota.model.ray import RayCluster
from tests.on_ray.shared_cluster import TestCluster, shared_cluster

WAIT_S = 240.0  # much longer than anything takes: a machine may be busy


@pytest.fixture(scope="package")
def cluster() -> Iterator[TestCluster]:
    with shared_cluster() as joined:
        yield joined


@contextmanager
def running(rota: Rota, cluster: TestCluster, **options: object) -> Iterator[None]:
    """Run a supervisor that is connected to the cluster, until the block ends."""
    on_ray = RayCluster(address=cluster.address, **options)  # type: ignore[arg-type]
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

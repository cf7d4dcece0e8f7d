"""A daemon with default settings, and a client of it. Every test of this folder runs on each kind of store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.rpc import Client, connect
from tests.daemon.harness import Served, make_token, serving
from tests.stores import pytest_generate_tests, store_kind

__all__ = ["pytest_generate_tests", "store_kind"]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / "rota.db") as daemon:
        yield daemon


@pytest.fixture(params=["unix", "http"])
def client(served: Served, request: pytest.FixtureRequest) -> Iterator[Client]:
    """A client with all rights, over each transport."""
    over_unix = request.param == "unix"
    made = served.client() if over_unix else connect(served.url, token=make_token(served.path, "admin"))
    with made:
        yield made

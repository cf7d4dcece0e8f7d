"""Fixtures: one world for each test, and one store on a file or in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rota import store
from rota.store import Store
from tests.store.world import WORDS, World


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "rota.db")


@pytest.fixture(params=["file", "memory"])
def opened(request: pytest.FixtureRequest, path: str) -> Iterator[Store]:
    made = store.open(path if request.param == "file" else ":memory:")
    made.write(lambda tx: tx.run(WORDS))
    yield made
    made.close()


@pytest.fixture
def file(path: str) -> Iterator[Store]:
    made = store.open(path)
    made.write(lambda tx: tx.run(WORDS))
    yield made
    made.close()

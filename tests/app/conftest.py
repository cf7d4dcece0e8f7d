"""A Rota for each door: in memory, over a file, at a daemon over its socket and over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rota import Rota
from tests.daemon.harness import make_token, serving

DOORS = ("memory", "file", "unix", "http")


@pytest.fixture(params=DOORS)
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rota]:
    """The same Rota behind each door."""
    path = str(tmp_path / "rota.db")
    if request.param in ("memory", "file"):
        with Rota(":memory:" if request.param == "memory" else path) as rota:
            yield rota
        return
    with serving(path) as served:
        address = served.unix if request.param == "unix" else served.url
        token = make_token(path, "operate") if request.param == "http" else None
        with Rota(address, token=token) as rota:
            yield rota

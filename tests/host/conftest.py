"""A shared reaper fixture, which checks that each test leaves no process behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rota.host.lineage import children_of
from rota.host.reaper_client import ReaperClient
from tests.host.support import PATIENCE_S, until


@pytest.fixture
def reaper() -> Iterator[ReaperClient]:
    with ReaperClient() as reaper:
        yield reaper
        assert all(session.wait(PATIENCE_S) is not None for session in reaper.sessions), "a command still runs"
        until(lambda: not children_of(reaper.pid))  # none is left, not even a zombie

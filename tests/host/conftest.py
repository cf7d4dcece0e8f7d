"""A minder for the tests that need no special one, and the proof that each test leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rota.host.lineage import children_of
from rota.host.reaper_client import Minder
from tests.host.support import PATIENCE_S, until


@pytest.fixture
def minder() -> Iterator[Minder]:
    with Minder() as minder:
        yield minder
        assert all(session.wait(PATIENCE_S) is not None for session in minder.sessions), "a command still runs"
        until(lambda: not children_of(minder.pid))  # living or dead: none is left

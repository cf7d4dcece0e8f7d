"""A workshop for the tests that need no special one, and the proof that each leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.fleet.runners.resources import Workshop
from rota.host.lineage import children_of
from tests.host.support import PATIENCE_S, until
from tests.runtime.lines import RecordingLine


@pytest.fixture
def line() -> RecordingLine:
    return RecordingLine(budget={"tokens": 1000})


@pytest.fixture
def shop() -> Iterator[Workshop]:
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with Workshop() as shop:
        yield shop
        minder = shop._minder
        if minder is not None and not minder.is_lost:
            assert all(session.wait(PATIENCE_S) is not None for session in minder.sessions), "a program still runs"
            until(lambda: not children_of(minder.pid))
    until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= descriptors)

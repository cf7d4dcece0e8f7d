"""Runner resources for tests, with a check that each test leaves no process and no descriptor behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.fleet.runners.resources import RunnerResources
from rota.host.lineage import children_of
from tests.host.support import PATIENCE_S, until
from tests.runners.recording import RecordingChannel


@pytest.fixture
def channel() -> RecordingChannel:
    return RecordingChannel(budget={"tokens": 1000})


@pytest.fixture
def resources() -> Iterator[RunnerResources]:
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with RunnerResources() as resources:
        yield resources
        reaper = resources._reaper
        if reaper is not None and not reaper.is_lost:
            assert all(session.wait(PATIENCE_S) is not None for session in reaper.sessions), "a program still runs"
            until(lambda: not children_of(reaper.pid))
    until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= descriptors)

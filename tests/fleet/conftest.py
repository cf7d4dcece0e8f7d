"""Fixtures for the tests of fleet files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.support import FleetHarness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[FleetHarness]:
    made = FleetHarness(tmp_path)
    yield made
    made.close()

"""Fixtures for the tests of fleet files. Every test of this folder runs on each kind of store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.support import FleetHarness
from tests.stores import pytest_generate_tests, store_kind

__all__ = ["pytest_generate_tests", "store_kind"]


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[FleetHarness]:
    made = FleetHarness(tmp_path)
    yield made
    made.close()

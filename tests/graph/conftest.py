"""Every test begins with an empty log."""

from __future__ import annotations

import pytest

from tests.graph import parts


@pytest.fixture(autouse=True)
def _empty_log() -> None:
    parts.log.clear()

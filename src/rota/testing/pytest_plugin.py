"""The pytest plugin: `pip install rota` brings the fixture `rota`, an `InMemoryRota` for each test.

pytest loads this module in every project that has rota installed, so it loads nothing itself until a test asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from rota import testing

if TYPE_CHECKING:
    from rota.testing.in_memory import InMemoryRota

__all__ = ["rota"]


@pytest.fixture
def rota() -> Iterator[InMemoryRota]:
    """A Rota in memory, on a clock that only the test moves: run_until_idle, advance, assert_enqueued."""
    with testing.InMemoryRota() as made:
        yield made  # type: ignore[misc]  # entering it returns the Rota itself

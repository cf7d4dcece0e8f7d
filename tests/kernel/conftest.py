"""Fixtures: a world for each test, and common agents."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rota.service.dispatcher import Dispatcher
from tests.kernel.world import POLICIES, World
from tests.stores import pytest_generate_tests, store_kind

__all__ = ["pytest_generate_tests", "store_kind"]  # every test of this folder runs on each kind of store


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.fixture
def pid(world: World) -> int:
    """An agent."""
    return world.agent()


@pytest.fixture
def lab(world: World) -> int:
    """An agent of the project "lab"."""
    world.projects.create("lab")
    return world.agent(project_id="lab")


@pytest.fixture(params=POLICIES)
def api(request: pytest.FixtureRequest, world: World) -> Dispatcher:
    """A dispatcher for each policy: guarantees must not depend on the policy."""
    return Dispatcher(world.kernel, request.param)

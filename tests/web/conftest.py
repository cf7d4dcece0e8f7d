"""One browser for all tests of this package; a daemon with its dashboard for each module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.web.harness import World, a_browser, a_world, no_problems


@pytest.fixture(scope="package")  # while it is open, an event loop runs in this thread: other packages need it closed
def browser() -> Iterator[Browser]:
    with a_browser() as found:
        yield found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with a_world(tmp_path_factory.mktemp("web")) as made:
        yield made


@pytest.fixture(scope="package")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A daemon with its dashboard for tests that look only at what they have made themselves."""
    with a_world(tmp_path_factory.mktemp("web-shared")) as made:
        yield made


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page of a browser that is not signed in; at the end, nothing must have gone wrong in it."""
    context = browser.new_context()
    context.set_default_timeout(20_000)
    problems = no_problems(context)
    yield context.new_page()
    context.close()
    assert problems == []


@pytest.fixture
def signed_in(page: Page, world: World) -> Page:
    """A page of a browser that is signed in with all rights."""
    world.board.sign_in(page)
    return page


@pytest.fixture
def operator(page: Page, shared: World) -> Page:
    """A page of the shared dashboard, signed in with all rights."""
    shared.board.sign_in(page)
    return page

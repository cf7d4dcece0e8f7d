"""One browser for all tests of this package, and two daemons with their dashboards, each started on first use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.web.harness import World, a_browser, a_world, no_problems


@pytest.fixture(scope="package")  # while it is open, an event loop runs in this thread: other packages need it closed
def browser() -> Iterator[Browser]:
    with a_browser() as found:
        yield found


@pytest.fixture(scope="package")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A daemon with its dashboard for tests that disturb it: they pause the fleet, or kill the daemon."""
    with a_world(tmp_path_factory.mktemp("web")) as made:
        yield made


@pytest.fixture(scope="package")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A daemon with its dashboard for tests that look only at what they have made themselves."""
    with a_world(tmp_path_factory.mktemp("web-shared")) as made:
        yield made


@pytest.fixture(scope="package")
def profile(browser: Browser) -> Iterator[tuple[BrowserContext, list[str]]]:
    """A profile of the browser, with what went wrong in it: one for all tests, so that scripts are fetched once."""
    context = browser.new_context()
    context.set_default_timeout(20_000)
    yield context, no_problems(context)
    context.close()


@pytest.fixture
def page(profile: tuple[BrowserContext, list[str]]) -> Iterator[Page]:
    """A page of a browser that is not signed in; at the end, nothing must have gone wrong in it."""
    context, problems = profile
    problems.clear()
    context.clear_cookies()
    found = context.new_page()
    yield found
    found.close()
    assert problems == []


@pytest.fixture
def signed_in(page: Page, world: World) -> Page:
    """A page of a browser that is signed in with all rights; it shows nothing yet."""
    world.board.enter(page)
    return page


@pytest.fixture
def operator(page: Page, shared: World) -> Page:
    """A page of the shared dashboard, signed in with all rights; it shows nothing yet."""
    shared.board.enter(page)
    return page

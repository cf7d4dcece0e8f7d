"""Every page in dark and light, for a screen reader, on a phone and by keyboard alone.

axe-core is in no package that the tests install, so these are checks of our own: names and roles come from Chromium's
accessibility tree, structure and contrast from `look.js`. They cover what axe calls serious or critical in pages of
this kind: names of controls, labels of fields, one main landmark, the order of headings, ids, contrast.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from rota.web.pages import PAGES
from tests.web.harness import World, picture
from tests.web.made import agent, failed, queued, running

LOOK = (Path(__file__).parent / "look.js").read_text().split("\n", 3)[3]
CONTROLS = {"button", "link", "textbox", "combobox", "checkbox", "switch", "spinbutton", "meter", "image", "img", "tab"}
CONTROLS |= {"listbox", "slider", "dialog", "alertdialog", "searchbox", "navigation", "region", "radio"}
PATHS = [page.path for page in PAGES if "{" not in page.path]


@pytest.fixture(scope="module")
def entries(shared: World) -> list[int]:
    with shared.client() as client:
        pid = agent(client, "accessible", "accessible")
        client.ledger.set_budget("project", "accessible", "tokens", 1_000)
        client.contexts.create(bound_to="name", bound_id="accessible", budget=5, period_s=60.0, unit="requests")
        waits = queued(client, pid, payload={"a": 1}, tags=("x",), runnable_at=4e9)
        return [waits, failed(client, pid), running(client, pid)[0]]


def nameless(page: Page) -> list[str]:
    """Return the controls that a screen reader could not name, as the browser sees them."""
    session = page.context.new_cdp_session(page)
    nodes: list[dict[str, Any]] = session.send("Accessibility.getFullAXTree")["nodes"]
    session.detach()
    return [
        f"{node['role']['value']} {node.get('properties', [])[:2]}"
        for node in nodes
        if not node.get("ignored")
        and node["role"]["value"] in CONTROLS
        and not str(node.get("name", {}).get("value", "")).strip()
    ]


def test_every_page_is_readable_in_light_and_dark(operator: Page, shared: World, entries: list[int]) -> None:
    found: dict[str, list[str]] = {}
    for path in (*PATHS, *(f"/entry/{sched_id}" for sched_id in entries)):
        operator.goto(f"{shared.board.url}{path}")
        expect(operator.locator("header [role=status]")).to_have_text("live")
        for scheme in ("light", "dark"):
            operator.emulate_media(color_scheme=scheme)
            expect(operator.locator(f"body.body--{scheme}")).to_have_count(1)
            if problems := [*operator.evaluate(LOOK), *nameless(operator)]:
                found[f"{path} {scheme}"] = problems
            picture(operator, f"page{path.replace('/', '-')}-{scheme}")
    assert found == {}


def test_the_sign_in_is_readable(page: Page, shared: World) -> None:
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.goto(f"{shared.board.url}/login")
        assert [*page.evaluate(LOOK), *nameless(page)] == []
    picture(page, "sign-in")


def test_no_page_is_wider_than_a_phone(operator: Page, shared: World, entries: list[int]) -> None:
    operator.set_viewport_size({"width": 390, "height": 800})
    wide = {}
    for path in (*PATHS, f"/entry/{entries[0]}"):
        operator.goto(f"{shared.board.url}{path}")
        expect(operator.get_by_role("heading", level=1)).to_be_visible()
        if (width := operator.evaluate("document.documentElement.scrollWidth")) > 390:
            wide[path] = width
        picture(operator, f"phone{path.replace('/', '-')}")
    assert wide == {}


def test_pages_are_opened_and_left_by_keyboard(operator: Page, shared: World) -> None:
    expect(operator.locator("header [role=status]")).to_have_text("live")
    operator.keyboard.press("Tab")
    expect(operator.get_by_text("Skip to main content")).to_be_focused()
    operator.keyboard.press("Enter")
    operator.keyboard.press("g")
    operator.keyboard.press("q")
    operator.wait_for_url(f"{shared.board.url}/queue")
    expect(operator.locator("header [role=status]")).to_have_text("live")
    operator.keyboard.press("/")
    expect(operator.get_by_label("Search in payloads, results and errors")).to_be_focused()
    operator.keyboard.press("Escape")
    operator.locator("h1, [role=heading]").first.click()
    operator.keyboard.press("?")
    expect(operator.get_by_role("dialog")).to_contain_text("this list")
    operator.keyboard.press("Escape")
    expect(operator.get_by_role("dialog")).to_have_count(0)

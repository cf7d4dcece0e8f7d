"""Every page in dark and light, for a screen reader, on a phone and by keyboard alone.

axe-core looks at each page as a program can: no serious or critical violation. It does not see all, so the names of
controls are also read from Chromium's accessibility tree.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import pytest
from playwright.sync_api import Page, ViewportSize, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

from rota.web.pages import PAGES
from tests.web.harness import World, picture
from tests.web.made import agent, failed, queued, running, start_graph

AXE = (files("axe_playwright_python") / "axe.min.js").read_text()
RUN_AXE = """async (rules) =>
  (await axe.run(document, {resultTypes: ['violations'], iframes: false, runOnly: rules})).violations
  .filter((found) => ['serious', 'critical'].includes(found.impact))
  .map((found) => `${found.id}: ${found.help}: ${found.nodes.map((node) => node.html.slice(0, 120)).join(' | ')}`)"""
CONTROLS = {"button", "link", "textbox", "combobox", "checkbox", "switch", "spinbutton", "meter", "image", "img", "tab"}
CONTROLS |= {"listbox", "slider", "dialog", "alertdialog", "searchbox", "navigation", "region", "radio"}
WCAG = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa")
PATHS = [page.path for page in PAGES if "{" not in page.path]
WIDE, PHONE = ViewportSize(width=1280, height=720), ViewportSize(width=390, height=800)


@pytest.fixture(scope="module")
def paths(shared: World) -> list[str]:
    """The pages, with something on each."""
    with shared.client() as client:
        pid = agent(client, "accessible", "accessible")
        client.ledger.set_budget("project", "accessible", "tokens", 1_000)
        client.contexts.create(bound_to="name", bound_id="accessible", budget=5, period_s=60.0, unit="requests")
        waits = queued(client, pid, payload={"a": 1}, tags=("x",), runnable_at=4e9)
        runs, token = running(client, pid)
        client.logs.append(runs, 1, token, 0, b"one line\n")
        ids = (waits, failed(client, pid), runs)
    start_graph(shared, "accessible-run")
    return [*PATHS, "/graph/accessible-run", *(f"/entry/{sched_id}" for sched_id in ids)]


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


def violations(page: Page, *rules: str) -> list[str]:
    """Return what axe calls serious or critical, by these of its rules or by all."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE)  # by the debugger: the policy of the page lets no foreign script in
    found: list[str] = page.evaluate(RUN_AXE, rules or WCAG)
    return found


@pytest.mark.timeout(600)
def test_every_page_is_readable_in_light_and_dark_and_on_a_phone(
    operator: Page, shared: World, paths: list[str]
) -> None:
    found: dict[str, Any] = {}
    for path in paths:
        operator.goto(f"{shared.board.url}{path}")
        expect(operator.locator("header [role=status]")).to_have_text("live")
        name = path.strip("/").replace("/", "-") or "overview"
        for scheme in ("light", "dark"):
            operator.emulate_media(color_scheme=scheme)
            expect(operator.locator(f"body.body--{scheme}")).to_have_count(1)
            if problems := violations(operator, *(["color-contrast"] if scheme == "dark" else [])):
                found[f"{path} {scheme}"] = problems
            picture(operator, f"page-{name}-{scheme}")
        if problems := nameless(operator):
            found[f"{path} names"] = problems
        operator.set_viewport_size(PHONE)
        try:  # charts are drawn anew for the new size, some frames later
            operator.wait_for_function("most => document.documentElement.scrollWidth <= most", arg=PHONE["width"])
        except PlaywrightTimeoutError:
            found[f"{path} on a phone"] = f"{operator.evaluate('document.documentElement.scrollWidth')} pixels wide"
        picture(operator, f"phone-{name}")
        operator.set_viewport_size(WIDE)
    assert found == {}


def test_the_sign_in_and_dialogs_are_readable(operator: Page, shared: World) -> None:
    for scheme in ("light", "dark"):
        operator.emulate_media(color_scheme=scheme)
        operator.goto(f"{shared.board.url}/login")
        assert [*violations(operator), *nameless(operator)] == []
    picture(operator, "sign-in")
    operator.goto(shared.board.url)
    operator.get_by_role("button", name="Pause the fleet").click()
    expect(operator.get_by_role("alertdialog")).to_be_visible()
    expect(operator.get_by_role("button", name="Back")).to_be_focused()
    assert [*violations(operator), *nameless(operator)] == []


def test_pages_are_opened_and_left_by_keyboard(operator: Page, shared: World) -> None:
    with shared.client() as client:
        sched_id = queued(client, agent(client, "by-keyboard", "by-keyboard"), runnable_at=4e9)
    operator.goto(shared.board.url)
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
    for _ in range(2):
        operator.keyboard.press("Tab")
    expect(operator.get_by_label("Project")).to_be_focused()
    operator.keyboard.type("by-keyboard")
    operator.wait_for_url(f"{shared.board.url}/queue?project=by-keyboard")  # the rows are drawn again
    expect(operator.locator("tbody tr")).to_have_count(1)
    entry = operator.get_by_role("link", name=f"#{sched_id}", exact=True)
    entry.focus()
    operator.keyboard.press("Enter")
    operator.wait_for_url(f"{shared.board.url}/entry/{sched_id}")
    cancel = operator.get_by_role("button", name="Cancel")
    cancel.focus()
    operator.keyboard.press("Enter")
    expect(operator.get_by_role("alertdialog")).to_be_visible()
    operator.keyboard.press("Escape")
    expect(operator.get_by_role("alertdialog")).to_have_count(0)
    expect(cancel).to_be_focused()  # the focus is where it was
    operator.keyboard.press("Enter")
    expect(operator.get_by_role("button", name="Back")).to_be_focused()
    operator.keyboard.press("Tab")
    operator.keyboard.press("Enter")
    expect(operator.locator(".page .chip").first).to_have_text("cancelled")
    operator.keyboard.press("?")
    expect(operator.get_by_role("dialog")).to_contain_text("this list")
    operator.keyboard.press("Escape")
    expect(operator.get_by_role("dialog")).to_have_count(0)

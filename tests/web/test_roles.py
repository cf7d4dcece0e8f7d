"""Who sees and does what: an operator, a viewer, a caller of one project. In a real browser, at a daemon."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect

from rota.errors import Forbidden
from rota.web.pages import PAGES
from tests.web.harness import World, picture
from tests.web.made import agent, authors, failed, queued, running, token_of

PATHS = [page.path for page in PAGES if "{" not in page.path]
SignIn = Callable[[str], Page]


@pytest.fixture
def sign_in(page: Page, shared: World) -> SignIn:
    def with_token(token: str) -> Page:
        shared.board.sign_in_with(page, token)
        return page

    return with_token


def test_a_viewer_sees_and_cannot_act(sign_in: SignIn, shared: World) -> None:
    token, _ = token_of(shared, "read")
    with shared.client() as client:
        pid = agent(client, "seen-by-viewer", "viewed")
        sched_ids = failed(client, pid), queued(client, pid, runnable_at=4e9), running(client, pid)[0]
    page = sign_in(token)
    expect(page.get_by_text("it sees, and does not operate")).to_be_visible()
    page.goto(f"{shared.board.url}/queue?project=viewed")
    expect(page.get_by_role("link", name=f"#{sched_ids[0]}", exact=True)).to_be_visible()
    assert _buttons(page) == ["Clear", "Why do they wait?"]
    expect(page.get_by_role("checkbox")).to_have_count(0)
    for sched_id in sched_ids:
        page.goto(f"{shared.board.url}/entry/{sched_id}")
        expect(page.get_by_text(f"seen-by-viewer #{sched_id}")).to_be_visible()
        assert _buttons(page) == []
    picture(page, "viewer-entry")
    with shared.client(token) as viewer, pytest.raises(Forbidden):
        viewer.queue.retry(sched_ids[0])


def _buttons(page: Page) -> list[str]:
    """The buttons of a page, without those of the frame; an icon is a word before the label."""
    return [text.split("\n")[-1] for text in page.locator(".page button:visible").all_inner_texts() if text.split()]


def test_events_for_the_page_of_another_session_are_ignored(sign_in: SignIn, browser: Browser, shared: World) -> None:
    """A viewer who learns all names in an operator's page still cannot press its buttons."""
    frames: list[str] = []
    operator = browser.new_context().new_page()
    operator.on("websocket", lambda socket: socket.on("framesent", lambda frame: frames.append(str(frame))))
    shared.board.sign_in(operator)
    switch = operator.get_by_role("button", name="Dark, light or as the system")
    switch.click()
    expect(switch).to_contain_text("dark_mode")
    click = next(frame for frame in frames if frame.startswith('42["event"') and "client_id" in frame)
    event = msgspec.json.decode(click.removeprefix("42"))[1]

    viewer = sign_in(token_of(shared, "read")[0])
    viewer.evaluate("(event) => { window.socket.emit('event', event); }", event)
    own_switch = viewer.get_by_role("button", name="Dark, light or as the system")
    own_switch.click()
    expect(own_switch).to_contain_text("dark_mode")  # so the event before it has been looked at
    expect(switch).to_contain_text("dark_mode")
    operator.evaluate("(event) => { window.socket.emit('event', event); }", event)  # from its own page it is accepted
    expect(switch).to_contain_text("light_mode")
    operator.context.close()


def test_a_token_of_one_project_sees_that_project_only(sign_in: SignIn, shared: World) -> None:
    token, _ = token_of(shared, "read", "mine")
    with shared.client() as client:
        mine = failed(client, agent(client, "own-agent", "mine"), "own-error")
        other = failed(client, agent(client, "foreign-agent", "foreign-project"), "foreign-error")
    page = sign_in(token)
    page.goto(f"{shared.board.url}/queue")
    expect(page.get_by_role("link", name=f"#{mine}", exact=True)).to_be_visible()
    for path in (*PATHS, f"/entry/{other}", "/queue?project=foreign-project"):
        page.goto(f"{shared.board.url}{path}")
        expect(page.get_by_role("status").first).to_be_visible()
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        for secret in ("foreign-agent", "foreign-error"):
            expect(page.get_by_text(secret)).to_have_count(0)
    page.goto(f"{shared.board.url}/entry/{other}")
    expect(page.get_by_text("There is no such entry")).to_be_visible()


def test_a_caller_of_a_project_cancels_there_and_does_not_operate(sign_in: SignIn, shared: World) -> None:
    token, author = token_of(shared, "enqueue", "cancelled-here")
    with shared.client() as client:
        pid = agent(client, "cancelled-agent", "cancelled-here")
        sched_id, left = queued(client, pid, runnable_at=4e9), failed(client, pid)
    page = sign_in(token)
    page.goto(f"{shared.board.url}/entry/{left}")
    expect(page.get_by_text(f"cancelled-agent #{left}")).to_be_visible()
    expect(page.get_by_role("button", name="Retry")).to_have_count(0)
    page.goto(f"{shared.board.url}/entry/{sched_id}")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Cancel").click()
    expect(page.locator(".page .chip").first).to_have_text("cancelled")
    assert author in authors(shared, "kernel.sched.cancelled")


def test_what_an_operator_does_is_in_the_journal_with_the_token(sign_in: SignIn, shared: World) -> None:
    token, author = token_of(shared, "operate")
    with shared.client() as client:
        sched_id = failed(client, agent(client, "retried-agent", "retried-here"))
    page = sign_in(token)
    page.goto(f"{shared.board.url}/entry/{sched_id}")
    page.get_by_role("button", name="Retry").click()
    page.wait_for_url(f"**/entry/{sched_id + 1}")
    with shared.client() as client:
        assert client.queue.list(project_id="retried-here")[1] == 2
    assert author in authors(shared, "kernel.sched.enqueued")


def test_a_revoked_token_ends_the_session(sign_in: SignIn, shared: World) -> None:
    token, author = token_of(shared, "read")
    page = sign_in(token)
    expect(page.get_by_role("status").first).to_be_visible()
    with shared.client() as client:
        client.tokens.revoke(author.removeprefix("token:"))
        queued(client, agent(client, "after-revoke"))
    page.wait_for_url("**/login")

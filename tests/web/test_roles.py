"""Who sees and does what: an operator, a viewer, a caller of one project. In a real browser, at a daemon."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect

from rota.errors import Forbidden
from rota.rpc import Client
from tests.web.harness import World, picture
from tests.web.made import agent, authors, failed, queued, running, start_graph, token_of

SignIn = Callable[[str], Page]


@pytest.fixture
def sign_in(page: Page, shared: World) -> SignIn:
    def with_token(token: str) -> Page:
        shared.board.enter_with(page, token)
        return page

    return with_token


class Fleet(NamedTuple):
    """What all of them look at: entries of one project in three states, and a run of a graph."""

    queued: int
    failed: int
    running: int


@pytest.fixture(scope="module")
def fleet(shared: World) -> Fleet:
    with shared.client() as client:
        pid = agent(client, "seen-agent", "seen")
        made = Fleet(queued(client, pid, runnable_at=4e9), failed(client, pid), running(client, pid)[0])
        failed(client, agent(client, "foreign-agent", "foreign-project"), "foreign-error")
    start_graph(shared, "seen-run")
    return made


# the buttons on each page for an operator; for others, those that are left
QUEUE_OPERATE = ("Retry", "Change …", "Pause their agents")
OPERATE = {
    "/": ("Pause the fleet",),
    "/queue?project=seen": ("Clear", "Why do they wait?", "Cancel", *QUEUE_OPERATE),
    "/entry/{queued}": ("Cancel", "Change priority …", "Pause its agent", "make it runnable now"),
    "/entry/{failed}": ("Retry",),
    "/entry/{running}": ("Stop", "Pause its agent"),
    "/projects?project=seen": ("Change", "Pause"),
    "/policies": ("Set",),
    "/graph/seen-run": ("Cancel the run", "Raise"),
}
READ = dict.fromkeys(OPERATE, ()) | {"/queue?project=seen": ("Clear", "Why do they wait?")}
ENQUEUE = READ | {
    "/queue?project=seen": ("Clear", "Why do they wait?", "Cancel"),
    "/entry/{queued}": ("Cancel",),
    "/entry/{running}": ("Stop",),
}


ROLES: dict[str, Mapping[str, Any]] = {"read": READ, "enqueue:seen": ENQUEUE, "operate": OPERATE}


@pytest.mark.parametrize("role", ROLES)
def test_every_page_has_the_buttons_of_its_scope_and_no_other(
    sign_in: SignIn, shared: World, fleet: Fleet, role: str
) -> None:
    scope, _, project = role.partition(":")
    page, expected = sign_in(token_of(shared, scope, *filter(None, [project]))[0]), ROLES[role]
    found = {}
    for path in expected:
        page.goto(shared.board.url + path.format(**fleet._asdict()))
        expect(page.locator("header [role=status]")).to_have_text("live")
        for name in expected[path]:
            expect(page.get_by_role("button", name=name).first).to_be_visible()
        found[path] = set(_buttons(page))
        if project:
            assert not re.search("foreign-(agent|project|error)", page.content()), path
    assert found == {path: set(buttons) for path, buttons in expected.items()}
    note = page.get_by_text("it sees, and does not operate")
    expect(note).to_have_count(0 if scope == "operate" else 1)
    picture(page, f"scope-{scope}")


ACTIONS: dict[str, Callable[[Client, Fleet], object]] = {
    "retry": lambda client, fleet: client.queue.retry(fleet.failed),
    "cancel": lambda client, fleet: client.queue.request_cancel(fleet.queued),
    "stop": lambda client, fleet: client.queue.request_cancel(fleet.running),
    "change": lambda client, fleet: client.queue.change(fleet.queued, priority=7),
    "pause an agent": lambda client, fleet: client.agents.pause(client.get(fleet.queued).pid, "x"),
    "pause the fleet": lambda client, _: client.projects.pause_fleet("x"),
    "weight": lambda client, _: client.projects.update("seen", weight=5),
    "policy": lambda client, _: client.policies.set("wfq", {}),
    "cancel a graph": lambda client, _: client.graphs.cancel("seen-run"),
    "raise a budget": lambda client, _: client.ledger.set_graph_budget("seen-run", "tokens", 9),
}


@pytest.mark.parametrize("name", ACTIONS)
def test_the_daemon_refuses_each_action_to_a_viewer_as_well(fleet: Fleet, viewer: Client, name: str) -> None:
    """A page without the button is not what protects it."""
    with pytest.raises(Forbidden):
        ACTIONS[name](viewer, fleet)


@pytest.fixture(scope="module")
def viewer(shared: World) -> Iterator[Client]:
    with shared.client(token_of(shared, "read")[0]) as client:
        yield client


def _buttons(page: Page) -> list[str]:
    """The buttons of a page, without those of the frame; an icon is a word before the label."""
    texts = page.locator(".page button:visible").all_inner_texts()
    return [
        text.split("\n")[-1]
        for text in texts
        if text.split() and not text.endswith(("_up", "_down", "_left", "_right"))
    ]


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
    viewer.goto(shared.board.url)
    viewer.evaluate("(event) => { window.socket.emit('event', event); }", event)
    own_switch = viewer.get_by_role("button", name="Dark, light or as the system")
    own_switch.click()
    expect(own_switch).to_contain_text("dark_mode")  # so the event before it has been looked at
    expect(switch).to_contain_text("dark_mode")
    operator.evaluate("(event) => { window.socket.emit('event', event); }", event)  # from its own page it is accepted
    expect(switch).to_contain_text("light_mode")
    operator.context.close()


def test_a_token_of_one_project_sees_that_project_only(sign_in: SignIn, shared: World) -> None:
    """On the pages that are not in the table above; on those it is checked there."""
    token, _ = token_of(shared, "read", "mine")
    with shared.client() as client:
        mine = failed(client, agent(client, "own-agent", "mine"), "own-error")
        other = failed(client, agent(client, "other-agent", "other-project"), "other-error")
    page = sign_in(token)
    page.goto(f"{shared.board.url}/queue")
    expect(page.get_by_role("link", name=f"#{mine}", exact=True)).to_be_visible()
    for path in ("/gantt", "/graphs", "/cores", "/journal", "/queue?project=other-project", f"/entry/{other}"):
        page.goto(f"{shared.board.url}{path}")
        expect(page.get_by_role("status").first).to_be_visible()
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        for secret in ("other-agent", "other-error"):
            expect(page.get_by_text(secret)).to_have_count(0)
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


def test_a_revoked_token_ends_the_session(page: Page, shared: World) -> None:
    token, author = token_of(shared, "read")
    shared.board.sign_in_with(page, token)
    expect(page.get_by_role("status").first).to_be_visible()
    with shared.client() as client:
        client.tokens.revoke(author.removeprefix("token:"))
        queued(client, agent(client, "after-revoke"))
    page.wait_for_url("**/login")

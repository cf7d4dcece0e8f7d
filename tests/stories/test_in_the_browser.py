"""S9: in the browser. The graph of agents of S4 runs while an operator watches: goes from the graph to the entry of a
node, reads why it waits, raises the budget, and retries an entry that failed. A viewer tries the same.

What changes is shown without a reload; the viewer cannot act; every action is in the journal with its author.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from rota.errors import Forbidden
from rota.model.work import ScheduleSpec
from rota.rpc import connect
from tests.daemon.harness import Process
from tests.stories.report_agents import COSTS, RESULT
from tests.stories.test_graph_of_agents import Desk
from tests.web.harness import Board, a_browser, picture

GRANTED, USED = 5, 6  # tokens of the writer: more than it may use


class Watched:
    """S4 at a daemon, with a dashboard beside it and tokens for two people."""

    def __init__(self, folder: Path) -> None:
        self.desk = desk = Desk(folder)
        desk.api.ledger.update_grant(desk.pids["writer"], "tokens", GRANTED)
        desk.api.ledger.charge(desk.pids["writer"], "tokens", USED)
        self.failed = desk.api.queue.enqueue(ScheduleSpec(desk.pids["other"], max_attempts=1))
        token = desk.api.queue.force_claim(self.failed, worker_id="other-host").token
        desk.api.queue.complete(self.failed, "failed", token=token, result={"error": "no disk space"})
        self.daemon = Process(desk.path)
        self.address = self.daemon.addresses[0]
        with connect(self.address) as client:
            made = [client.tokens.create(scope, scope) for scope in ("operate", "read")]
        self.operator, self.viewer = (each.token for each in made)
        self.author = f"token:{made[0].line.token_id}"
        self.board = Board(self.address)

    def entry_of(self, node: str) -> int:
        """Wait until a node of the run has an entry."""
        last = 0
        while True:
            for entry in self.desk.api.queue.list(limit=1_000)[0]:
                if entry.key and entry.key.split("/")[3:4] == [node]:
                    return entry.sched_id
            last = self.desk.watch(last, 1)

    def open(self, browser: Browser, token: str) -> Page:
        """Return a page that is signed in with a token."""
        page = browser.new_context().new_page()
        self.board.sign_in_with(page, token)
        return page

    def authors(self, kind: str) -> list[str]:
        """Return who made the events of a kind."""
        return [event.author for event in self.desk.kernel.journal.tail(0, 100_000, kinds=(kind,))]

    def stop(self) -> None:
        """End the processes."""
        self.board.process.stop()
        self.daemon.stop()
        self.desk.close()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path / "desk")
    yield made
    made.stop()


def test_an_operator_helps_a_graph_and_a_viewer_only_looks(watched: Watched) -> None:
    with a_browser() as browser, watched.desk.supervisor(watched.address):
        sched_id = watched.entry_of("write")
        operator, viewer = watched.open(browser, watched.operator), watched.open(browser, watched.viewer)
        operator.goto(f"{watched.board.url}/graph/{watched.desk.run_id}")
        picture(operator, "story-graph")
        operator.locator(f'a[href$="/entry/{sched_id}"]').first.click()
        for page in (operator, viewer):
            page.goto(f"{watched.board.url}/entry/{sched_id}")
            why = page.get_by_role("region", name="Why it is not running")
            expect(why).to_contain_text(f"{USED} used")
        expect(viewer.locator(".page button:visible")).to_have_count(0)
        expect(viewer.get_by_text("raise tokens of agent")).to_be_visible()  # what would help, without a button
        operator.get_by_role("button", name="raise tokens of agent").click()
        operator.get_by_role("alertdialog").get_by_role("button", name="Change").click()
        for page in (operator, viewer):  # both see what follows, without a reload
            expect(page.locator(".page .chip").first).to_have_text("succeeded")
        _retry(watched, operator, viewer)
    run = watched.desk.run()
    assert (run.status, run.result) == ("succeeded", RESULT)
    (line,) = watched.desk.api.ledger.get(watched.desk.pids["writer"])
    assert (line.granted, line.used) == (USED, USED + COSTS["writer"])
    assert watched.author in watched.authors("kernel.ledger.granted")


def _retry(watched: Watched, operator: Page, viewer: Page) -> None:
    """The viewer cannot retry, by page or by call; the operator can, and the copy runs."""
    for page in (operator, viewer):
        page.goto(f"{watched.board.url}/entry/{watched.failed}")
        expect(page.get_by_text("error: no disk space")).to_be_visible()
    expect(viewer.get_by_role("button", name="Retry")).to_have_count(0)
    with connect(watched.address, token=watched.viewer) as client, pytest.raises(Forbidden):
        client.queue.retry(watched.failed)
    operator.get_by_role("button", name="Retry").click()
    operator.wait_for_url(lambda url: not url.endswith(f"/{watched.failed}"))
    expect(operator.locator(".page .chip").first).to_have_text("succeeded")
    assert watched.author in watched.authors("kernel.sched.enqueued")

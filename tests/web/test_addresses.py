"""Dashboards of other stores: a daemon over HTTPS with the dashboard over TLS too, and a PostgreSQL database."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from rota import store
from rota.kernel import Kernel
from rota.model.work import ScheduleSpec
from rota.rpc import connect
from rota.store.author import process_user
from tests.daemon.test_tls import make_certificates
from tests.postgres_server import own_schema
from tests.web.harness import Board, Process, no_problems
from tests.web.made import agent, queued


def test_over_tls_at_a_daemon_over_https_people_sign_in_with_tokens(browser: Browser, tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "certificates", "127.0.0.1")
    tls = ("--tls-cert", made.certificate, "--tls-key", made.key)
    socket = str(tmp_path / "rota.sock")
    daemon = Process("serve", "--store", str(tmp_path / "rota.db"), "--socket", socket, "--listen", "127.0.0.1:0", *tls)
    address = daemon.until(r"(https://127.0.0.1:\d+)")[1]
    board = Board(address, *tls, ca_file=made.ca_file)
    try:
        with connect(f"unix:{socket}") as client:
            token = client.tokens.create("over tls", "operate").token
            sched_id = queued(client, agent(client, "encrypted"), runnable_at=4e9)
        assert board.url.startswith("https://")
        context = browser.new_context(ignore_https_errors=True)
        problems, page = no_problems(context), context.new_page()
        page.goto(f"{board.url}/login")
        expect(page.get_by_text("one-time link")).to_have_count(0)
        board.sign_in_with(page, token)
        page.goto(f"{board.url}/entry/{sched_id}")
        expect(page.locator("header [role=status]")).to_have_text("live")
        session = next(cookie for cookie in context.cookies() if cookie["name"].startswith("rota_session"))
        assert (session["secure"], session["httpOnly"], session["sameSite"]) == (True, True, "Strict")
        with connect(f"unix:{socket}") as client:
            client.queue.change(sched_id, runnable_at=0.0)
        expect(page.locator(".page .chip").first).to_have_text("ready")
        assert problems == []
        board.process.end(signal.SIGTERM)  # with the page open
        assert board.process.seen == [f"rota web: {board.url}\n"]
        context.close()
    finally:
        board.process.stop()
        daemon.stop()


def test_a_database_is_opened_with_the_rights_of_its_user(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    with own_schema("web_dashboard") as address, contextlib.closing(store.open(address)) as opened:
        kernel = Kernel(opened)
        pid = kernel.agents.create("in-postgres")
        sched_id = kernel.queue.enqueue(ScheduleSpec(pid, runnable_at=4e9))
        board = Board(f"{address}&password=never-shown")
        page = browser.new_context().new_page()
        try:
            board.sign_in(page)
            page.goto(f"{board.url}/entry/{sched_id}")
            page.get_by_role("button", name="Cancel").click()
            page.get_by_role("alertdialog").get_by_role("button", name="Cancel").click()
            expect(page.locator(".page .chip").first).to_have_text("cancelled")
            page.goto(f"{board.url}/journal")
            expect(page.get_by_text(f"in-postgres #{sched_id} cancelled").first).to_be_visible()
            expect(page.locator(".store")).to_contain_text("postgresql://")
            assert "never-shown" not in page.content()
            later = kernel.queue.enqueue(ScheduleSpec(pid, runnable_at=4e9))
            expect(page.get_by_text(f"in-postgres #{later} queued")).to_be_visible()
            monkeypatch.setattr(opened, "host_name", "far-away")
            ran_there = kernel.queue.enqueue(ScheduleSpec(pid))
            kernel.queue.complete(ran_there, "completed", token=kernel.queue.claim(worker_id="w")[0].token)
            page.goto(f"{board.url}/entry/{ran_there}")
            expect(page.get_by_text("The output of attempt 1 is on host far-away.")).to_be_visible()
            page.goto(f"{board.url}/login")
            expect(page.get_by_text("one-time link")).to_be_visible()
            assert "never-shown" not in page.content()
        finally:
            page.context.close()
            board.process.stop()
        (event,) = kernel.journal.tail(0, kinds=("kernel.sched.cancelled",))
        assert event.author == process_user()

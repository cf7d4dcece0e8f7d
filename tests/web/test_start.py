"""How the dashboard starts: on a file, beside a daemon, without its extra; and what does not load it."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from typer.testing import CliRunner

from rota import store
from rota.cli import app
from rota.errors import NotEnabled
from rota.kernel import Kernel
from rota.model.work import ScheduleSpec
from rota.store.author import process_user
from tests.web.harness import PATIENCE_S, Board, Process, picture


def test_a_file_is_opened_with_the_rights_of_its_user(browser: Browser, tmp_path: Path) -> None:
    page = browser.new_context().new_page()  # its own: it sees the server go
    path = str(tmp_path / "rota.db")
    kernel = Kernel(store.open(path))
    sched_id = kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("filed"), runnable_at=4e9))
    board = Board(path)
    try:
        board.sign_in(page)
        expect(page.get_by_text("No worker is running, so nothing is claimed")).to_be_visible()
        picture(page, "overview-file")
        page.goto(f"{board.url}/entry/{sched_id}")
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("alertdialog").get_by_role("button", name="Cancel").click()
        expect(page.locator(".page .chip").first).to_have_text("cancelled")
        (event,) = kernel.journal.tail(0, kinds=("kernel.sched.cancelled",))
        assert event.author == process_user()
        page.goto(f"{board.url}/login")
        expect(page.get_by_label("Access token")).to_have_count(0)
        page.goto(f"{board.url}/queue")
        expect(page.locator("header [role=status]")).to_have_text("live")
        code = board.process.end(signal.SIGINT)  # with the page open, by Ctrl-C
        assert (code, [line for line in board.process.seen if "works once" not in line]) == (130, [])
    finally:
        page.context.close()
        board.process.stop()
        kernel.store.close()


def test_a_dashboard_beside_a_daemon_ends_with_it_even_if_it_is_killed(tmp_path: Path) -> None:
    serve = Process("serve", "--store", str(tmp_path / "rota.db"), "--web", "--web-port", "0")
    serve.until(r"rota web: open http")
    serve.kill()  # waits for the end of its output, which both processes write


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    result = CliRunner().invoke(app, ["web", "--store", str(tmp_path / "x.db")])
    assert isinstance(result.exception, NotEnabled)
    assert "pip install 'rota[web]'" in str(result.exception)


def test_a_wrong_path_is_an_error_before_anything_is_served(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["web", "--store", str(tmp_path / "no.db")])
    assert "there is no store" in str(result.exception)


def test_nothing_but_the_web_process_loads_the_toolkit() -> None:
    code = (
        "import sys, rota, rota.web, rota.cli.web, rota.cli.serve, rota.rpc.daemon.server; print(sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert "'rota.web'" in done.stdout
    for name in ("nicegui", "fastapi", "uvicorn"):
        assert f"'{name}'" not in done.stdout

"""The dashboard shows what the tutorial says; `./dev docs --pictures` keeps the pictures of it for the pages.

The tutorial itself is followed by test_blocks.py on every change; this looks at its store in a browser, in the long
rounds.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import gettempdir

import pytest
from playwright.sync_api import Page, expect

from tests.docs.test_blocks import ROOT, follow
from tests.web.harness import Board, a_browser

PICTURES = os.environ.get("ROTA_DOCS_PICTURES", "")  # a folder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where the tutorial is followed: for pictures a path that a reader could have, because pages show it."""
    if not PICTURES:
        yield tmp_path
        return
    readers = Path(gettempdir()) / "first-fleet"
    readers.mkdir(mode=0o700)  # never the folder of another user
    yield readers
    shutil.rmtree(readers)


@pytest.mark.soak
def test_the_dashboard_shows_what_the_tutorial_did(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow(ROOT / "docs" / "tutorial.md", folder, monkeypatch, until="\n## 4")
    board = Board(str(folder / "rota.db"))
    try:
        with a_browser() as browser:
            page = browser.new_page(viewport={"width": 1200, "height": 780}, color_scheme="light")
            board.sign_in(page)
            expect(page.locator("header [role=status]")).to_have_text("live")
            expect(page.get_by_role("meter", name="research: tokens")).to_have_attribute("value", "0.8")
            expect(page.get_by_role("region", name="Shares: actual against target")).to_contain_text("research")
            _keep(page, "tutorial-overview")
            page.goto(f"{board.url}/entry/7")
            expect(page.get_by_text("1,600 used + 0 reserved + 500 asked is over 2,000").first).to_be_visible()
            _keep(page, "tutorial-entry")
            page.goto(f"{board.url}/gantt")
            expect(page.get_by_role("link", name="tidier #8").first).to_be_attached()
    finally:
        board.process.stop()


def _keep(page: Page, name: str) -> None:
    if PICTURES:
        page.screenshot(path=str(Path(PICTURES) / f"{name}.png"))

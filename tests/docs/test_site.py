"""The site of `./dev docs --site`: built from all pages, complete, and without anything from another origin."""

from __future__ import annotations

import fcntl
import os
import re
import threading
import tomllib
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Browser, expect

from tests.docs.site import ROOT, build
from tests.web.harness import a_browser

LOADS = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("object", "data")}


class Page(HTMLParser):
    """What a page loads, where it links to, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if (tag, name) in LOADS and value:
                self.loads.append(value)
            if tag == "a" and name == "href" and value:
                self.links.append(value)
            if name in ("id", "name") and value:
                self.anchors.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once for all workers of a test run."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    built = folder / "site-is-built"
    with (folder / "site-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            build(folder / "site")
            built.touch()
    return folder / "site" / "html"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}


def test_every_page_of_docs_is_in_the_site_and_in_its_navigation(site: Path, pages: dict[Path, Page]) -> None:
    settings = tomllib.loads((ROOT / "docs" / "site" / "zensical.toml").read_text())
    listed = set(_leaves(settings["project"]["nav"]))
    for source in sorted((ROOT / "docs").rglob("*.md")):
        page = source.relative_to(ROOT / "docs")
        html = "index.html" if page.name == "README.md" else f"{page.stem}.html"
        assert site / page.parent / html in pages
        assert page.as_posix() in listed or page.parts[0] == "decisions", f"{page} is not in docs/site/zensical.toml"


def _leaves(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    for each in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from _leaves(each)


def test_no_page_loads_anything_from_another_origin(site: Path, pages: dict[Path, Page]) -> None:
    assert len(pages) > 50
    for path, page in pages.items():
        foreign = [url for url in page.loads if urlsplit(url).netloc]
        assert not foreign, f"{path.relative_to(site)} loads {foreign}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"@import|url\(['\"]?(https?:)?//", sheet.read_text()), sheet


def test_links_lead_to_pages_and_anchors_that_exist(site: Path, pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            if not target.exists() or (anchor and target in pages and anchor not in pages[target].anchors):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert not broken, "\n".join(sorted(set(broken)))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as found:
        yield found


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


@pytest.mark.parametrize("opened", ["served", "as files"])
def test_a_browser_searches_and_draws_without_another_origin(
    browser: Browser, site: Path, address: str, opened: str
) -> None:
    root = address if opened == "served" else site.as_uri()
    asked: list[str] = []
    context = browser.new_context()
    page = context.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{root}/architecture.html")
    expect(page.locator(".diagram-drawing svg" if opened == "served" else "pre.diagram").first).to_be_visible()
    page.get_by_role("button", name="Search").first.click()
    page.get_by_placeholder("Search").fill("keep_on")
    expect(page.get_by_role("option").filter(has_text="keep_on").first).to_be_visible()
    assert [url for url in asked if not url.startswith((root, "data:", "blob:"))] == []
    context.close()

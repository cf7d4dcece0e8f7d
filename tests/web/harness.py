"""A daemon and a web process, and a real browser that looks at them.

The browser is Debian's Chromium, driven by playwright. A test waits for what it expects to see (`expect`), with a
deadline; nothing sleeps.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue

from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from rota.rpc import Client, connect

PATIENCE_S = 60.0
SCREENSHOTS = os.environ.get("ROTA_SCREENSHOTS", "")  # a folder: tests leave pictures there, for people
_LINK = re.compile(r"(http\S+)/open/(\S+) ")
expect.set_options(timeout=20_000)


class Process:
    """A rota command in a process of its own, with the lines that it prints."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "rota", *arguments]
        self._child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1)
        self.lines: Queue[str] = Queue()
        self.seen: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self.lines.put(line)

    def until(self, pattern: str | re.Pattern[str]) -> re.Match[str]:
        """Wait for a line that holds a pattern."""
        while True:
            try:
                line = self.lines.get(timeout=PATIENCE_S)
            except Empty:
                raise AssertionError(f"never printed {pattern!r}; it printed:\n{''.join(self.seen)}") from None
            self.seen.append(line)
            if found := re.search(pattern, line):
                return found

    @property
    def pid(self) -> int:
        return self._child.pid

    def end(self, number: signal.Signals) -> int:
        """Send a signal, wait until it has ended, and return its exit code; what it printed is in `seen`."""
        self._child.send_signal(number)
        code = self._child.wait(PATIENCE_S)
        self.stop()
        while not self.lines.empty():
            self.seen.append(self.lines.get())
        return code

    def kill(self) -> None:
        """End it at once, as `kill -9` does."""
        self._child.kill()
        self._child.wait(PATIENCE_S)
        self.stop()

    def stop(self) -> None:
        """Ask it to end, and wait."""
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
            try:
                self._child.wait(10)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        assert self._child.stdout is not None
        self._child.stdout.close()  # a second time does nothing


class Board:
    """A web process of a store or a daemon."""

    def __init__(self, store: str, *options: str, ca_file: str = "") -> None:
        trusted = ("--ca-file", ca_file) if ca_file else ()
        # as important as the test that waits for it
        self.process = Process(*trusted, "web", "--store", store, "--port", "0", "--nice", "0", *options)
        if store.startswith("http"):
            self.url = self.process.until(r"rota web: (\S+)")[1]
        else:
            found = self.process.until(_LINK)
            self.url, self._key = found[1], found[2]

    def take_link(self) -> str:
        """Return the one-time link; when it is used, the process prints the next one."""
        if not self._key:
            self._key = self.process.until(_LINK)[2]
        link, self._key = f"{self.url}/open/{self._key}", ""
        return link

    def sign_in(self, page: Page) -> None:
        """Sign in with the one-time link."""
        page.goto(self.take_link())
        page.wait_for_url(f"{self.url}/")

    def enter(self, page: Page) -> None:
        """Sign in as `sign_in` does, but only fetch the link: a test that goes to its own page needs the cookie."""
        assert page.context.request.get(self.take_link()).ok

    def enter_with(self, page: Page, token: str) -> None:
        """Sign in as `sign_in_with` does, but only send the form: a test that goes to its own page needs the cookie."""
        request = page.context.request
        field = re.search(r'name="csrf" value="([\w-]+)"', request.get(f"{self.url}/login").text())
        assert field is not None
        sent = request.post(f"{self.url}/login", form={"csrf": field[1], "token": token}, max_redirects=0)
        assert sent.headers["location"] == "/"

    def sign_in_with(self, page: Page, token: str) -> None:
        """Sign in with a token."""
        page.goto(f"{self.url}/login")
        page.get_by_label("Access token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{self.url}/")


class World:
    """A daemon with its web process."""

    def __init__(self, folder: Path) -> None:
        self.store = str(folder / "rota.db")
        self.socket = str(folder / "rota.sock")
        self.start_daemon()
        self.board = Board(f"unix:{self.socket}")

    def start_daemon(self) -> None:
        """Start the daemon, also again after it was killed."""
        self.daemon = Process("serve", "--store", self.store, "--socket", self.socket)
        self.daemon.until("serving|listening|ready")

    def client(self, token: str | None = None) -> Client:
        """A client of the daemon."""
        return connect(f"unix:{self.socket}", token=token)

    def stop(self) -> None:
        """End both processes."""
        self.board.process.stop()
        self.daemon.stop()


@contextlib.contextmanager
def a_world(folder: Path) -> Iterator[World]:
    """Yield a daemon with its web process."""
    world = World(folder)
    try:
        yield world
    finally:
        world.stop()


@contextlib.contextmanager
def a_browser() -> Iterator[Browser]:
    """Yield a Chromium without a window."""
    path = shutil.which("chromium")
    assert path is not None, "there is no chromium: `./dev test` installs it as root, or: apt-get install chromium"
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=[*options, "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()


def no_problems(context: BrowserContext) -> list[str]:
    """Return a list that collects what goes wrong in pages: errors of scripts, and what the policy blocks."""
    found: list[str] = []
    context.on("weberror", lambda problem: found.append(str(problem.error)))
    context.on("console", lambda message: found.append(message.text) if message.type == "error" else None)
    return found


def picture(page: Page, name: str) -> None:
    """Leave a picture of a page where ROTA_SCREENSHOTS says."""
    if SCREENSHOTS:
        page.screenshot(path=str(Path(SCREENSHOTS) / f"{name}.png"), full_page=True)

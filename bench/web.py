"""The dashboard: how many events it shows, what a hundred open pages cost it, and what they cost the daemon.

`events-shown` is the time from the first of many events to the moment in which a real browser (Chromium) shows the
last one on the journal page, as a rate; the page must have passed all of them. Its baseline is what is asked for:
1,000 a second. `memory-100-pages` is what the web process has in memory with a hundred open pages after such a burst.
`daemon-under-100-pages` is the rate of claims and completions at a daemon with a hundred dashboards open, against the
same daemon while the web process and its pages are stopped: the machine is the same, and so is the file.

The hundred pages are sockets of one more process (`web_pages.py`), spread over all pages of the dashboard.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path

import msgspec
from playwright.sync_api import sync_playwright

from bench.daemon import Served, _in_threads
from bench.harness import Arena, Case, Measured
from bench.queue_files import Folder, new_file
from rota.kernel import ScheduleSpec
from rota.rpc import Client

__all__ = ["cases"]

PAGES = 100
PATHS = ("/", "/queue", "/gantt", "/projects", "/graphs", "/cores", "/journal", "/policies")
EVENTS = 6_000
BATCH = 100  # events in one request
EVENTS_ASKED = 1_000.0  # a second
ROUND_S = 10.0  # of claims; with a hundred pages there are several seconds between two updates
CLIENTS = 4
STANDING = 60_000  # entries that wait when a round begins
MEMORY_MIB_MAX = 1_024.0
PATIENCE_S = 120.0
_LINK = re.compile(r"(http\S+)/open/(\S+) ")


def cases() -> Iterator[Case]:
    yield Case("events-shown", EVENTS, "ops/s", "the 1,000 a second that are asked for", _events, goal=1.0, rounds=3)
    yield Case("memory-100-pages", PAGES, "MiB", "", _memory, rounds=1)
    yield Case("daemon-under-100-pages", PAGES, "ops/s", "no dashboard", _daemon, goal=0.9, rounds=5)


class Dashboard:
    """A web process of a daemon, and a session of it."""

    def __init__(self, store: str) -> None:
        command = [sys.executable, "-m", "rota", "web", "--store", store, "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1)
        assert self.process.stdout is not None
        found = next(filter(None, map(_LINK.search, self.process.stdout)))
        self.url, self.link = found[1], f"{found[1]}/open/{found[2]}"

    def cookie(self) -> str:
        """Sign in, and return the header of the session."""
        jar = CookieJar()
        urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar)).open(self.link, timeout=60).read()
        return "; ".join(f"{cookie.name}={cookie.value}" for cookie in jar)

    def memory_mib(self) -> float:
        """What it has in memory."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024

    def cpu_s(self) -> float:
        """The CPU time that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(PATIENCE_S)


class Pages:
    """A hundred open pages, in a process of their own."""

    def __init__(self, board: Dashboard) -> None:
        command = [sys.executable, "-m", "bench.web_pages", board.url, board.cookie(), str(PAGES), *PATHS]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "open\n":
            raise RuntimeError("the pages were not opened")

    def status(self) -> dict[str, int]:
        """Return how many are open, and what has arrived."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("?\n")
        self.process.stdin.flush()
        found: dict[str, int] = json.loads(self.process.stdout.readline())
        return found

    def wait(self) -> None:
        """Wait until all are open and have been updated: those that were stopped for long are opened again."""
        give_up_at = time.perf_counter() + PATIENCE_S
        seen = self.status()["updates"]
        while (now := self.status())["open"] < PAGES or now["updates"] == seen:
            if time.perf_counter() > give_up_at:
                raise RuntimeError("the pages were not opened again")
            time.sleep(0.2)

    def stop(self) -> None:
        """Close them."""
        print(f"{PAGES} pages: {self.status()}", file=sys.stderr)
        self.process.communicate(timeout=PATIENCE_S)


class Fleet:
    """A daemon with entries, and its dashboard."""

    def __init__(self) -> None:
        self._folder = Folder()
        self.served = Served(new_file(self._folder.file("served.db")))
        self.client: Client = self.served.client()
        self.fill()
        self.board = Dashboard(self.served.unix)

    def fill(self) -> None:
        """Enqueue entries until so many wait that no round takes them all."""
        for _ in range(self.client.queue.counts().get("queued", 0), STANDING, 1_000):
            self.client.enqueue_many([ScheduleSpec(1)] * 1_000)

    def write_events(self, count: int) -> int:
        """Write so many events, in batches as fast as the daemon takes them, and return the last one."""
        said = {"jsonrpc": "2.0", "method": "kernel.event.append", "params": {"pid": 1, "kind": "bench.said"}}
        body = msgspec.json.encode([said | {"id": number} for number in range(BATCH)]) + b"\n"
        last = 0
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(self.served.unix.removeprefix("unix:"))
            with raw.makefile("rb") as lines:
                for _ in range(0, count, BATCH):
                    raw.sendall(body)
                    last = max(answer["result"]["event_id"] for answer in msgspec.json.decode(lines.readline()))
        return last

    def close(self) -> None:
        """End the processes and remove the files."""
        self.client.close()
        self.board.stop()
        self.served.stop()
        self._folder.close()


# --- events a second -----------------------------------------------------------------------------


def _events() -> Arena:
    fleet = Fleet()
    driver = sync_playwright().start()
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    browser = driver.chromium.launch(executable_path="/usr/bin/chromium", args=[*options, "--disable-dev-shm-usage"])
    page = browser.new_context().new_page()
    page.goto(fleet.board.link)
    page.wait_for_url(f"{fleet.board.url}/")
    page.goto(f"{fleet.board.url}/journal")
    page.get_by_text("up to event").wait_for()

    def measure() -> Measured:
        started, cpu_s = time.perf_counter(), fleet.board.cpu_s()
        last = fleet.write_events(EVENTS)
        written_s = time.perf_counter() - started
        page.get_by_text(f"up to event {last:,}").wait_for(timeout=PATIENCE_S * 1_000)
        shown_s = time.perf_counter() - started
        cpu_s = fleet.board.cpu_s() - cpu_s
        times = f"written in {written_s:.1f} s, all shown after {shown_s:.1f} s"
        print(f"{EVENTS:,} events: {times}; CPU time of the web process {cpu_s:.1f} s", file=sys.stderr)
        return Measured(EVENTS / shown_s, "bench.said" in page.inner_text("table"))

    def close() -> None:
        browser.close()
        driver.stop()
        fleet.close()

    return Arena(
        rota=measure,
        base=lambda: Measured(EVENTS_ASKED),
        verify=lambda shown, _: bool(shown),
        close=close,
    )


# --- a hundred pages -----------------------------------------------------------------------------


def _memory() -> Arena:
    fleet = Fleet()
    pages = Pages(fleet.board)

    def measure() -> Measured:
        fleet.write_events(EVENTS)
        mib = fleet.board.memory_mib()
        return Measured(mib, mib <= MEMORY_MIB_MAX and pages.process.poll() is None)

    def close() -> None:
        pages.stop()
        fleet.close()

    return Arena(rota=measure, verify=lambda ours, _theirs: bool(ours), close=close)


def _daemon() -> Arena:
    fleet = Fleet()
    pages = Pages(fleet.board)
    others = (fleet.board.process.pid, pages.process.pid)

    def claim(thread: int) -> list[int]:
        ids = []
        end_at = time.perf_counter() + ROUND_S
        while time.perf_counter() < end_at:
            (entry,) = fleet.client.claim(f"worker {thread}")
            fleet.client.complete(entry.sched_id, "completed", token=entry.token)
            ids.append(entry.sched_id)
        return ids

    def rate() -> Measured:
        started = time.perf_counter()
        ids = _in_threads(CLIENTS, claim)
        return Measured(len(ids) / (time.perf_counter() - started), len(set(ids)) == len(ids))

    def with_pages() -> Measured:
        pages.wait()
        seen = pages.status()["updates"]
        measured = rate()
        after = pages.status()
        return Measured(measured.value, bool(measured.answer) and after["open"] == PAGES and after["updates"] > seen)

    def without() -> Measured:
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        try:
            return rate()
        finally:
            for pid in others:
                os.kill(pid, signal.SIGCONT)

    def close() -> None:
        pages.stop()
        fleet.close()

    return Arena(
        rota=with_pages,
        base=without,
        before=lambda _round: fleet.fill(),
        verify=lambda ours, theirs: bool(ours and theirs),
        close=close,
    )

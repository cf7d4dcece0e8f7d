"""How much of the disk an entry takes, measured; docs/queue.md has these numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rota import store
from rota.clock import ManualClock
from rota.kernel import Completion, Kernel, ScheduleSpec
from rota.kernel.automatic_retention import LOOK_S
from rota.kernel.finished_entries import collect
from rota.kernel.retention import file_space

PAGE = Path(__file__).parents[2] / "docs" / "queue.md"
COUNT = 1_000
NEAR = 0.15  # how far the page may be from what is measured


@pytest.fixture
def kernel() -> Kernel:
    return Kernel(store.open(":memory:", clock=ManualClock(1_800_000_000.0)))  # it has the pages of a file


def used_bytes(kernel: Kernel) -> int:
    page_bytes, pages, free = kernel.store.read(file_space)
    return page_bytes * (pages - free)


def run_one_by_one(kernel: Kernel, payload_bytes: int) -> float:
    """Run entries, each with its own commits, and return the bytes for each of them."""
    pid = kernel.agents.create(f"coder-{payload_bytes}", "command")
    before = used_bytes(kernel)
    for _ in range(COUNT):
        kernel.queue.enqueue(ScheduleSpec(pid=pid, payload={"text": "x" * payload_bytes}))
        (run,) = kernel.queue.claim(worker_id="worker-1", claim_timeout_s=60)
        kernel.queue.complete_many([Completion(run.sched_id, "completed", token=run.token, result={"ok": True})])
    while collect(kernel.env):
        pass
    return (used_bytes(kernel) - before) / COUNT


@pytest.mark.only_on("memory", reason="it measures the pages of SQLite")
def test_the_page_has_the_measured_bytes_per_entry(kernel: Kernel) -> None:
    small = run_one_by_one(kernel, 100)
    large = run_one_by_one(kernel, 1_100)
    kernel.clock.advance(8.1 * 86_400)  # type: ignore[attr-defined]  # a manual clock
    kernel.clock.advance(LOOK_S)  # type: ignore[attr-defined]
    before = used_bytes(kernel)
    kernel.retention.set(entries_s=1e9)
    kernel.retention.keep("me")  # the events go, the entries stay
    events = (before - used_bytes(kernel)) / (2 * COUNT)
    kernel.store.close()
    stated = {
        name: int(number.replace(",", ""))
        for number, name in re.findall(
            r"([\d,]+) bytes (in all|for its events|for each further 1,000 bytes)", PAGE.read_text()
        )
    }
    measured = {"in all": small, "for its events": events, "for each further 1,000 bytes": large - small}
    assert {name: pytest.approx(number, rel=NEAR) for name, number in measured.items()} == stated

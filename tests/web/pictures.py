"""Writes the pictures of the documentation: `./dev shell python -m tests.web.pictures`.

A small fleet works for a minute at a real daemon, and a real browser looks at it, so the pictures show what the
dashboard shows. They are drawn again by this command when pages have changed.
"""

from __future__ import annotations

import os
import random
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from rota.model import SlotPool
from rota.model.work import ScheduleSpec
from rota.rpc import Client
from tests.web.harness import World, a_browser, a_world
from tests.web.made import start_graph

__all__ = ["NAMES", "PICTURES", "SIZE_MAX", "write"]

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SIZE_MAX = 150_000  # bytes of a picture
NAMES = ("graph", "overview", "gantt", "entry")
SLOTS = 4
BOX = "box"
WORK_S = 65.0  # so that the chart of a minute is full
SEED = 3
FLEET = {  # project: its weight, and its agents
    "research": (3_000, ("reader", "summariser", "writer")),
    "support": (2_000, ("answers",)),
    "build": (1_000, ("tests", "lint")),
}
GRAPH: dict[str, Any] = {
    "schema_version": 2,
    "graph": {"name": "report"},
    "lanes": {"main": {"type": "event_loop"}},
    "components": [
        {"id": "topic", "type": "rota.input", "execution": {"lane": "main"}},
        {"id": "research", "execution": {"agent": "reader", "budget": {"tokens": 3_000}}},
        {"id": "figures", "execution": {"agent": "summariser"}},
        {"id": "write", "execution": {"agent": "writer"}},
        {"id": "report", "type": "rota.output", "execution": {"lane": "main"}},
    ],
    "edges": [
        {"id": "a", "kind": "async", "from": "topic.out", "to": "research.topic"},
        {"id": "b", "kind": "async", "from": "topic.out", "to": "figures.topic"},
        {"id": "c", "kind": "async", "from": "research.out", "to": "write.text"},
        {"id": "d", "kind": "async", "from": "figures.out", "to": "write.table"},
        {"id": "e", "kind": "async", "from": "write.out", "to": "report.value"},
    ],
}


def set_up(client: Client) -> int:
    """Create the projects, agents, budgets and entries; return one whose project has used up its budget."""
    for project, (weight, agents) in FLEET.items():
        client.projects.create(project, weight=weight)
        client.ledger.set_budget("project", project, "tokens", 60_000)
        for name in agents:
            pid = client.agents.create(name, project_id=project)
            client.enqueue_many([ScheduleSpec(pid=pid, draws_on=("provider",), max_attempts=1)] * 60)
    client.projects.create("trial")
    client.ledger.set_budget("project", "trial", "tokens", 1_000)
    pid = client.agents.create("essay", project_id="trial")
    first = client.enqueue(ScheduleSpec(pid=pid))
    token = client.queue.force_claim(first, worker_id=BOX).token
    client.queue.charge(first, {"tokens": 1_000}, token=token)
    client.complete(first, "completed", token=token)
    return client.enqueue(ScheduleSpec(pid=pid, payload={"topic": "tides", "words": 800}, priority=3))


def register(client: Client) -> None:
    """Register the worker, whose slots are threads of this process."""
    pools = [SlotPool(BOX, SLOTS)]
    client.workers.register(BOX, "1", kind="supervisor", host="box", os_pid=os.getpid(), pools=pools)


def work(client: Client, number: int, end: threading.Event) -> None:
    """Be one slot: claim, take a while, charge, complete."""
    chance = random.Random(f"{SEED} {number}")
    while not end.is_set():
        for entry in client.claim(BOX, wait_s=1.0, incarnation="1"):
            end.wait(chance.uniform(0.6, 5.0))
            client.queue.charge(entry.sched_id, {"tokens": chance.randrange(100, 900)}, token=entry.token)
            result = "failed" if chance.random() < 0.08 else "completed"
            client.complete(entry.sched_id, result, token=entry.token)


def write(folder: Path = PICTURES) -> list[Path]:
    """Write the pictures, and return them."""
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)  # pages show the address of the daemon: a short one
        with a_world(Path()) as world, world.client() as client, a_browser() as browser:
            client.contexts.create(bound_to="name", bound_id="provider", budget=120, period_s=60.0, unit="requests")
            waits = set_up(client)
            register(client)
            client.policies.set("eevdf", {"priority_first": True})
            end = threading.Event()
            slots = [threading.Thread(target=work, args=(client, number, end)) for number in range(SLOTS)]
            for slot in slots:
                slot.start()
            time.sleep(WORK_S)
            page = browser.new_context(viewport={"width": 1200, "height": 760}, color_scheme="light").new_page()
            try:
                register(client)
                found = _look(world, page, waits, folder)
            finally:
                end.set()
            for slot in slots:
                slot.join()
        os.chdir(folder)
    return found


def _look(world: World, page: Page, waits: int, folder: Path) -> list[Path]:
    start_graph(world, "report-7", GRAPH, node="research", worker=BOX)
    addresses = dict(zip(NAMES, ("/graph/report-7", "/", "/gantt?window=60", f"/entry/{waits}"), strict=True))
    world.board.sign_in(page)
    for name, address in addresses.items():
        page.goto(f"{world.board.url}{address}")
        expect(page.locator("header [role=status]")).to_have_text("live")
        page.wait_for_timeout(1_500)  # charts are drawn
        page.screenshot(path=str(folder / f"{name}.png"))
    found = [folder / f"{name}.png" for name in NAMES]
    for path in found:
        size = path.stat().st_size
        print(f"{path.name}: {size:,} bytes")
        assert size < SIZE_MAX, f"{path} has {size:,} bytes, more than {SIZE_MAX:,}"
    return found


if __name__ == "__main__":
    write()

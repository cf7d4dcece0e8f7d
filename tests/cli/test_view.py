"""The live view follows real runs and has no part in them."""

from __future__ import annotations

import io
import re
import sys
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rota import store
from rota.app import Rota
from rota.cli import view as views
from rota.cli.view import LiveView, log_line, start_of
from rota.kernel import Kernel, ScheduleSpec
from rota.observe.event_text import EventText
from rota.observe.fleet_state import AgentName, FleetState
from rota.service.dispatcher import Dispatcher
from tests.kernel.world import START, World
from tests.postgres_server import PostgresServer

PATIENCE_S = 10.0


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def pipe() -> tuple[Console, io.StringIO]:
    """What is not a terminal."""
    file = io.StringIO()
    return Console(file=file, force_terminal=False, width=40), file


def terminal() -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=True, width=100, height=30, color_system=None), file


def fleet(rota: Rota) -> None:
    """Two agents with an entry each: one ends well, one does not."""

    @rota.agent(project="lab")
    def reader(url: str) -> dict[str, Any]:
        return {"read": url}

    @rota.agent(project="lab", max_attempts=1)
    def broken() -> None:
        raise RuntimeError("no network")

    reader.enqueue(url="a page")
    broken.enqueue()


def test_without_a_terminal_it_prints_a_line_for_each_fact_that_matters() -> None:
    console, file = pipe()
    with Rota() as rota:
        supervisor = rota.supervisor(1, worker_id="worker-a")
        with LiveView(rota.api, supervisor, console=console):
            fleet(rota)
            supervisor = rota.supervisor(1, worker_id="worker-a")
            assert supervisor.run(until_idle=True).runs == 2
    lines = [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in file.getvalue().splitlines()]
    told = [re.sub(r"after \d+\.\d s", "after a while", line) for line in lines]
    assert told == [
        "worker-a started",
        "reader #1 started on worker-a",
        "reader #1 completed after a while",
        "broken #2 started on worker-a",
        "broken #2 failed after a while: RuntimeError: no network (attempt 1 of 1)",
        "worker-a stopped",
    ]


def test_on_a_terminal_it_paints_and_the_last_painting_shows_the_end() -> None:
    console, file = terminal()
    with Rota(policy="eevdf") as rota:
        fleet(rota)
        supervisor = rota.supervisor(2, worker_id="worker-a")
        with LiveView(rota.api, supervisor, console=console, store="rota.db", state=FleetState()):
            supervisor.run(until_idle=True)
    last = file.getvalue().rpartition("rota eevdf · 2 slots")[2]
    assert "worker-a · rota.db" in last
    assert "queue 0 waiting · 0 running · 2 ended" in last
    assert "failures 1 failed" in last
    assert "worker-a stopped" in last


def test_what_has_not_changed_is_not_painted_again(world: World) -> None:
    pid = world.agent("reader")
    console, file = terminal()
    with LiveView(Dispatcher(world.kernel), console=console) as view:
        world.clock.until_parked()  # the view has had its first look
        before = file.getvalue()
        assert view.look() is False
        assert file.getvalue() == before
        world.put(pid)
        assert view.look() is True
        assert "reader #1 queued" in file.getvalue()[len(before) :]
        assert view.look() is False


def test_closing_does_not_wait_for_time_to_pass(world: World) -> None:
    console, _ = pipe()
    view = LiveView(Dispatcher(world.kernel), console=console)
    with view:
        world.clock.until_parked()
    assert not view._thread.is_alive()
    view.close()  # a second time changes nothing


def test_what_was_recorded_just_before_the_end_is_still_shown(world: World) -> None:
    pid = world.agent("reader")
    console, file = pipe()
    with LiveView(Dispatcher(world.kernel), console=console):
        world.clock.until_parked()
        world.put(pid)
        world.take(worker_id="w")
    assert "reader #1 started on w" in file.getvalue()


class _Full(io.StringIO):
    """A file on a full disk."""

    def write(self, _text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_view_that_fails_is_logged_and_the_run_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with Rota() as rota:
        supervisor = rota.supervisor(1)
        with LiveView(rota.api, supervisor, console=Console(file=_Full(), force_terminal=False)):
            fleet(rota)
            assert rota.supervisor(1).run(until_idle=True).runs == 2
        assert rota.api.queue.counts() == {"completed": 2}
    assert "the view failed; the run continues" in caplog.messages


class _Watched(LiveView):
    """A view that reports each refresh for which the store was away."""

    away = threading.Semaphore(0)

    def show_problem(self, text: str) -> None:
        super().show_problem(text)
        self.away.release()


def test_a_view_goes_on_after_an_outage_of_the_store(socket_folder: Path) -> None:
    """On PostgreSQL, where each refresh fails at once while the server is away."""
    console, file = pipe()
    with PostgresServer(socket_folder / "pg") as server:
        kernel = Kernel(store.open(f"{server.dsn()}&schema=rota"))
        pid = kernel.agents.create("reader")
        with _Watched(Dispatcher(kernel), console=console):
            server.stop()
            for _ in range(views.FAILURES_MAX + 1):
                assert _Watched.away.acquire(timeout=PATIENCE_S)
            server.start()
            kernel.queue.enqueue(ScheduleSpec(pid))
            kernel.queue.claim(worker_id="w")
        kernel.store.close()
    assert "reader #1 started on w" in file.getvalue()


def test_a_view_that_cannot_begin_is_done_without(caplog: pytest.LogCaptureFixture) -> None:
    streams = sys.stdout, sys.stderr
    with Rota() as rota:
        with LiveView(rota.api, console=Console(file=_Full(), force_terminal=True, width=80)):
            fleet(rota)
            assert rota.supervisor(1).run(until_idle=True).runs == 2
        assert rota.api.queue.counts() == {"completed": 2}
    assert caplog.messages[0] == "the view could not start; the run continues without it"
    assert (sys.stdout, sys.stderr) == streams


def test_a_view_far_behind_restarts_and_says_how_much_it_skipped(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "LAG_MAX", 10)
    pid = world.agent("reader")
    console, file = pipe()
    with LiveView(Dispatcher(world.kernel), console=console) as view:
        world.clock.until_parked()
        for _ in range(11):
            world.put(pid)
        view.look()
        assert "… 11 events skipped" in file.getvalue()
        assert (view.state or FleetState()).queued == 11
        world.take(worker_id="w")
    assert "reader #1 started on w" in file.getvalue()


def test_a_view_begins_with_what_is_there(world: World) -> None:
    world.projects.create("lab", weight=2_000)
    pid = world.agent("reader", project_id="lab")
    world.queue.enqueue_many([ScheduleSpec(pid)] * 3 + [ScheduleSpec(pid, runnable_at=START + 5)])
    world.take()
    start = start_of(Dispatcher(world.kernel))
    assert start.through_id == world.journal.cursor()
    assert (start.queued, start.running, start.weights) == (3, 1, {"lab": 2_000})
    assert start.agents == {pid: AgentName("reader", "lab")}


def test_a_log_line_begins_with_the_time() -> None:
    at = datetime(2030, 1, 31, 7, 1, 1).astimezone().timestamp()  # in this machine's zone
    assert log_line(EventText(1, at, "plain", "it began")) == "07:01:01 it began"

"""Loops that go on after an error: a fault that lasts is logged once, however often they try.

Each test lets one loop fail `TRIES` times. Those of the supervisor and the store are tested beside them
(tests/supervisor/test_until_idle.py, tests/store/test_writer.py and test_ipc_notify.py).
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import psycopg
import pytest

from rota.clock import ManualClock
from rota.errors import InvalidInput, StoreUnavailable
from rota.fleet import supervised_cores
from rota.fleet.on_ray import ray_runs
from rota.fleet.progress import PAUSE_S, ProgressReports
from rota.fleet.restarts import Restarts
from rota.fleet.runners.resources import RunnerResources
from rota.host.thread_settings import allowed_cores
from rota.host.watchdog import Watchdog
from rota.model.cpu import core_list
from rota.model.ray import RayCluster
from rota.rpc.daemon import agent_recovery, http, lost_workers, tcp
from rota.rpc.daemon.systemd import SystemdNotifier
from rota.service.retention_thread import RetentionThread
from rota.service.worker_registration import WorkerRegistration
from rota.store import postgres_listener
from rota.store.postgres_connection import parse_url
from rota.web import feed as web_feed

TRIES = 5
AWAY = StoreUnavailable("the disk is full")


class TriedEnough(BaseException):
    """Ends a loop that has no end."""


def failing(problem: Exception = AWAY) -> Callable[..., Any]:
    """Return a function that raises an error `TRIES` times, and then ends its loop."""
    tries = [0]

    def fail(*_arguments: object, **_more: object) -> NoReturn:
        tries[0] += 1
        raise problem if tries[0] <= TRIES else TriedEnough

    return fail


def stub(**attributes: Any) -> Any:
    return SimpleNamespace(clock=ManualClock(), **attributes)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was logged, without the hints."""
    caplog.set_level(logging.WARNING)
    return lambda: [message.partition(":")[0] for message in caplog.messages]


# --- the daemon ----------------------------------------------------------------------------------


def test_lost_workers(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_workers, "LOOK_EVERY_S", 0.0)
    with pytest.raises(TriedEnough):
        asyncio.run(lost_workers.watch_workers(stub(queue=stub(run_due=failing()))))
    assert said() == ["cannot look for lost workers"]


def test_agents_to_recover(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_recovery, "LOOK_EVERY_S", 0.0)
    kernel = stub(agents=stub(interrupted=lambda: {1: 1}, recover_idle=failing()))
    with pytest.raises(TriedEnough):
        asyncio.run(agent_recovery.AgentRecovery(kernel).watch())
    assert said() == ["cannot recover agents"]


def test_metrics(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "METRICS_UPDATE_S", 0.0)
    with pytest.raises(TriedEnough):
        asyncio.run(http.HttpServer._update_metrics(stub(_metrics=stub(catch_up=failing()))))
    assert said() == ["the metrics are not updated"]


def test_connections_that_cannot_be_accepted(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "ACCEPT_RETRY_S", 0.0)

    async def accept() -> None:
        full = failing(OSError(errno.EMFILE, "Too many open files"))
        monkeypatch.setattr(asyncio.get_running_loop(), "sock_accept", full)
        await tcp.Listener._accept(stub(_connections=stub(make_room=lambda: False)), stub())

    with pytest.raises(TriedEnough):
        asyncio.run(accept())
    assert said() == ["cannot accept a connection"]


def test_systemd_that_does_not_listen(said: Any, tmp_path: Path) -> None:
    notifier = SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path / "nothing")})
    for _ in range(TRIES):
        notifier.ready()
    assert said() == ["cannot notify systemd of 'READY=1'"]


# --- daemon and supervisor -----------------------------------------------------------------------


@pytest.mark.parametrize("problem", [AWAY, ValueError("a defect")])
def test_retention(problem: Exception, said: Any) -> None:
    thread = RetentionThread(stub(retention=stub(keep=failing(problem))))
    for _ in range(TRIES):
        thread._look()
    assert said() == ["cannot remove old rows"]


# --- the supervisor ------------------------------------------------------------------------------


def test_the_register_of_workers(said: Any) -> None:
    registration = WorkerRegistration(stub(workers=stub(register=failing())), "box", "i", "supervisor", list)
    for _ in range(TRIES):
        registration.start()
    assert said() == ["the register of workers cannot be written"]


def test_the_ends_of_quarantines(said: Any) -> None:
    watchdog = Watchdog(ManualClock(), "test")
    restarts = Restarts(stub(agents=stub(get=failing())), watchdog)
    for pid in (7, 8, 7, 8):
        restarts._end_quarantine(pid)
    watchdog.close()
    assert said() == ["cannot end the quarantine of agent 7", "cannot end the quarantine of agent 8"]


def test_leased_cores(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised_cores, "open_cores", failing())
    cores = supervised_cores.SupervisedCores(stub(), RunnerResources())
    for _ in range(TRIES):
        cores.on_due()
    assert said() == ["cannot read which cores are leased"]


def test_cores_that_others_have_leased(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that this supervisor may use, by one that may use others too; until the lease ends."""
    cores = supervised_cores.SupervisedCores(stub(), RunnerResources())
    usable = allowed_cores()
    for opened in ((), usable, ()):
        monkeypatch.setattr(supervised_cores, "open_cores", lambda *_, opened=opened: opened)
        for _ in range(TRIES):
            cores.on_due()
    told = f"cores {core_list(usable)}, which are all that this supervisor may use, are leased by other runs"
    assert said() == [told, told]
    assert allowed_cores() == usable


def test_the_progress_of_a_run(said: Any) -> None:
    clock = ManualClock()
    watchdog = Watchdog(clock, "test")
    reports = ProgressReports(clock, watchdog, failing())
    for _ in range(TRIES):
        reports.report(0.5)
        clock.advance(PAUSE_S)
    watchdog.close()
    assert said() == ["cannot record the progress of a run"]


def test_events_of_ray(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    link = stub(events=lambda: iter([None] * TRIES), release=lambda: None)
    monkeypatch.setattr(ray_runs, "DriverLink", lambda *_, **_more: link)
    runs = ray_runs.RayRuns(stub(), RayCluster(), {}, on_room=lambda: None, on_problems=lambda: None)
    monkeypatch.setattr(runs, "_handle", failing(ValueError("a defect")))
    runs._collect()
    assert said().count("runs on Ray") == 1


# --- a store on PostgreSQL, and the dashboard ------------------------------------------------------


class Deaf:
    """A connection that can be opened, and then fails."""

    def execute(self, text: str, *_: object) -> None:
        if not text.startswith("LISTEN"):
            raise psycopg.OperationalError("the server closed the connection")

    def fileno(self) -> int:
        return 0

    def add_notify_handler(self, _: object) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("connect", [failing(psycopg.OperationalError("no server")), lambda *_, **_more: Deaf()])
def test_commits_that_are_not_heard_of(connect: Any, said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stops: Iterator[bool] = iter([False] * (TRIES - 1) + [True])
    monkeypatch.setattr(postgres_listener, "connect", connect)
    monkeypatch.setattr(postgres_listener.NewsListener, "_is_stopped", lambda *_: next(stops))
    listener = postgres_listener.NewsListener(parse_url("postgresql://db/work"), lambda _: None)
    listener._thread.join()
    assert said() == ["commits of other processes are not heard of"]


def test_a_check_for_commits(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_listener.NewsListener, "_run", lambda self: self._listening.set())
    listener = postgres_listener.NewsListener(stub(schema="rota"), failing(ValueError("a defect")))
    for number in range(TRIES):
        listener._report(number)
    listener.stop()
    assert said() == ["the check for commits of other processes"]


def test_the_journal_of_the_dashboard(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_feed, "RETRY_S", 0.0)
    feed = web_feed.Feed(stub(journal=stub(cursor=failing(InvalidInput("no such cursor")))), "test")
    with pytest.raises(TriedEnough):
        feed._follow()
    assert said() == ["the journal cannot be read"]

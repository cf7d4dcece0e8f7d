"""Supervisors and daemons remove old rows by themselves, whatever else they do."""

from __future__ import annotations

from pathlib import Path

import pytest

from rota import Rota
from rota.kernel import automatic_retention as automatic
from rota.rpc.daemon import server
from tests.daemon.harness import serving
from tests.fleet.support import FleetHarness
from tests.host.support import until


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ended goes at once, and the next look is due."""
    monkeypatch.setattr(automatic, "RECENT_S", -1.0)
    monkeypatch.setattr(automatic, "LOOK_S", 0.01)
    monkeypatch.setattr(server, "RETENTION_AFTER_S", 0.0)


@pytest.fixture
def path(tmp_path: Path) -> str:
    where = str(tmp_path / "rota.db")
    with Rota(where) as rota:

        @rota.agent()
        def work(number: int) -> int:
            return number

        work.enqueue_many([{"number": number} for number in range(30)])
        rota.run(slots=4, until_idle=True)
        rota.api.retention.set(entries_max=5)
    return where


def test_a_supervisor_removes_what_is_too_much_while_it_runs(path: str) -> None:
    with Rota(path) as rota:
        supervisor = rota.supervisor()
        counted = rota.api.queue.list(limit=1)[1]

        @rota.agent()
        def patient() -> None:
            until(lambda: rota.api.queue.list(limit=1)[1] <= 6)

        patient.enqueue()
        supervisor.run(until_idle=True)
        assert counted > 6


def test_a_daemon_removes_what_is_too_much(path: str) -> None:
    with serving(path) as served, Rota(served.unix) as rota:
        until(lambda: rota.api.retention.status().removed_entries > 0)
        assert rota.api.queue.list(limit=1)[1] <= 6


def test_nothing_is_removed_from_a_store_in_memory_or_if_it_is_off(path: str) -> None:
    with Rota(path) as rota:
        rota.api.retention.set(enabled=False)
        before = rota.api.queue.list(limit=1)[1]
        rota.run(until_idle=True)
        assert rota.api.queue.list(limit=1)[1] == before


def test_a_fleet_file_sets_what_the_store_keeps(harness: FleetHarness) -> None:
    text = '[retention]\nentries = "2d"\nevents_max = 500\n'
    (change,) = harness.apply(text)
    assert str(change) == "scheduling retention changed: entries_s 604800.0 → 172800.0, events_max 1000000 → 500"
    setting = harness.api.retention.setting()
    assert (setting.entries_s, setting.events_max, setting.by) == (172_800.0, 500, "fleet fleet")
    assert list(harness.apply(text)) == []
    assert list(harness.apply("")) == []  # a file without the table leaves it
    harness.apply("[retention]\nenabled = false\n")
    assert not harness.api.retention.setting().enabled

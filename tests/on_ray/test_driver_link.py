"""The connection to a driver process, with processes that do what the real one does only now and then."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from rota.fleet.on_ray import driver_link
from rota.fleet.on_ray.driver_link import DriverLink
from rota.fleet.runners.resources import RunnerResources
from tests.on_ray.conftest import WAIT_S


def test_a_driver_that_is_late_still_does_what_it_was_told_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The autoscaler keeps what it was told: with this command lost, the cluster would never shrink."""
    monkeypatch.setattr(driver_link, "DRIVER", "tests.on_ray.late_driver")
    reports = threading.Event()
    with RunnerResources() as resources:
        link = DriverLink(resources, str(tmp_path / "commands"))

        def collect() -> None:
            for event in link.events():
                if event is not None:
                    reports.set()
            link.release()

        collector = threading.Thread(target=collect)
        collector.start()
        assert reports.wait(WAIT_S)
        link.send("demand", [{"CPU": 1.0}])
        link.send("demand", [])
        link.close()
        collector.join()
    assert json.loads((tmp_path / "commands").read_text()) == [["demand", [{"CPU": 1.0}]], ["demand", []]]


def test_nothing_is_left_of_a_driver_that_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor outlives many clusters: each would leave a thread and a descriptor behind."""
    monkeypatch.setattr(driver_link, "DRIVER", "tests.on_ray.late_driver")
    with RunnerResources() as resources:
        link = DriverLink(resources, str(tmp_path / "commands"))
        assert next(event for event in link.events() if event is not None) == ["ready", "0"]
        link.send("demand", [])
        link.release()
        assert list(link.events()) == []
        assert link._connection.closed
        assert not link._writer.is_alive()

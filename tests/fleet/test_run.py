"""A running fleet: real commands, triggers, and reloads while runs are in progress."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rota import store
from rota.errors import WorkerExists
from rota.fleet.config.loader import load_fleet
from rota.fleet.fleet_run import FleetRun, request_reload
from rota.host.cgroup_files import FILES_BY_VERSION
from rota.host.cgroup_mounts import hierarchies
from rota.host.cgroups import Cgroups
from rota.kernel import Kernel, ScheduleSpec
from rota.model.events import FleetReloadRequested
from rota.service.api import SchedulerApi
from rota.service.dispatcher import Dispatcher
from rota.service.entry_reports import entry_report
from tests.host.support import PATIENCE_S, until
from tests.stores import address_of

ONE = """
slots = 2
[projects.lab]
weight = 1
[agents.greeter]
project = "lab"
command = ["sh", "-c", "echo hello | tee greeted"]
triggers = [{on = "start"}]
[agents.sleeper]
project = "lab"
command = ["sh", "-c", "echo $$ > slept.$ROTA_SCHED_ID; while [ ! -e go ]; do sleep 0.01; done"]
stop_grace_s = 0.2
"""
TWO = (
    ONE.replace("slots = 2", "slots = 3").replace("weight = 1", "weight = 5")
    + """
[agents.newcomer]
command = ["sh", "-c", "echo here > arrived"]
"""
)
SUPPORT = Cgroups().support
needs_groups = pytest.mark.skipif(not SUPPORT["quota"].works, reason="no control groups for CPU time can be made here")


@contextmanager
def fleet_in(folder: Path, text: str = ONE) -> Iterator[FleetRun]:
    path = folder / "fleet.toml"
    path.write_text(text)
    kernel = Kernel(store.open(str(folder / "rota.db")))
    yield FleetRun(Dispatcher(kernel, "eevdf"), load_fleet(path))
    kernel.store.close()


@contextmanager
def running(fleet: FleetRun) -> Iterator[None]:
    thread = threading.Thread(target=fleet.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        fleet.supervisor.drain()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def put(fleet: FleetRun, name: str, **spec: Any) -> int:
    (agent,) = fleet.api.agents.find(name)
    return fleet.api.queue.enqueue(ScheduleSpec(agent.pid, **spec))


def test_agents_run_in_the_folder_of_the_file(tmp_path: Path) -> None:
    with fleet_in(tmp_path) as fleet:
        assert fleet.run(until_idle=True).runs == 1
        assert (tmp_path / "greeted").read_text() == "hello\n"
        assert fleet.api.logs.read(1).data == b"hello\n"
        assert [path.name for path in (tmp_path / "rota.db-logs").iterdir()] == ["1.1.log"]


def test_a_reload_keeps_runs_in_progress_and_applies_what_is_new(tmp_path: Path) -> None:
    with fleet_in(tmp_path) as fleet, running(fleet):
        held = [put(fleet, "sleeper") for _ in range(2)]
        until(lambda: all((tmp_path / f"slept.{sched_id}").exists() for sched_id in held))
        tokens = [fleet.api.queue.get(sched_id).token for sched_id in held]
        (tmp_path / "fleet.toml").write_text(TWO)
        request_reload(fleet.api, "the test")
        until(lambda: fleet.fleet.slots == 3)
        sched_id = put(fleet, "newcomer")
        fleet.api.queue.wait(sched_id, PATIENCE_S)  # on the slot that came with the reload
        assert (tmp_path / "arrived").exists()
        assert fleet.api.projects.get("lab").weight == 5_000
        assert [fleet.api.queue.get(each).token for each in held] == tokens
        (tmp_path / "go").touch()
        assert [fleet.api.queue.wait(each, PATIENCE_S).exit_kind for each in held] == ["completed"] * 2
    changes = [event.payload["changes"] for event in events(tmp_path, "kernel.fleet.reloaded")]
    assert changes[-1]["agent"] == {"created": ["newcomer"]}


@needs_groups
def test_a_reload_lowers_and_raises_the_quota_of_runs_in_progress(tmp_path: Path) -> None:
    """That of the project becomes less than the agent's, and then more again; the kernel has both."""
    agent = "cpu = {quota = '60ms/100ms'}\nstop_grace_s"

    def text(quota: str) -> str:
        return ONE.replace("weight = 1", f"cpu = {{quota = '{quota}'}}").replace("stop_grace_s", agent)

    with fleet_in(tmp_path, text("80ms/100ms")) as fleet, running(fleet):
        sched_id = put(fleet, "sleeper")
        until((tmp_path / f"slept.{sched_id}").exists)
        assert quotas_in_force() == {"lab": "80ms/100ms", "sleeper": "60ms/100ms"}
        for quota, agents in (("20ms/100ms", "20ms/100ms"), ("90ms/100ms", "60ms/100ms")):
            (tmp_path / "fleet.toml").write_text(text(quota))
            request_reload(fleet.api, "the test")
            wanted = {"lab": quota, "sleeper": agents}
            until(lambda wanted=wanted: quotas_in_force() == wanted)  # type: ignore[misc]
            told = f"lab: cpu quota = {quota} is enforced"  # also in `rota show`, which had that of the start
            until(lambda told=told: any(each.startswith(told) for each in enforced(fleet.api, sched_id)))  # type: ignore[misc]
        (tmp_path / "go").touch()
        ended = fleet.api.queue.wait(sched_id, PATIENCE_S)
        assert ended.exit_kind == "completed"


def enforced(api: SchedulerApi, sched_id: int) -> tuple[str, ...]:
    assert isinstance(api, Dispatcher)
    return entry_report(api.kernel.store, api.kernel.clock, sched_id).attempts[-1].enforced


def quotas_in_force() -> dict[str, str]:
    """The quotas that the kernel has for the groups of this process, by the name of the project or the agent."""
    files = FILES_BY_VERSION[SUPPORT["quota"].version or 0]
    found = {}
    for each in hierarchies():
        for folder in each.base.glob(f"rota-{os.getpid()}-*-lab") if "cpu" in each.controllers else ():
            for inner in (folder, *folder.glob("rota-*-sleeper")):
                found[inner.name.rpartition("-")[2]] = files.in_force("quota", inner)
    return found


def test_an_invalid_file_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with fleet_in(tmp_path) as fleet:
        (tmp_path / "fleet.toml").write_text(ONE.replace("weight = 1", "weight = 'much'"))
        assert fleet.reload() is None
        assert "projects.lab.weight" in caplog.text
        assert fleet.fleet.slots == 2
        assert fleet.api.projects.get("lab").weight == 1_000


def test_a_reload_logs_what_it_changed_in_the_supervisor(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "rota.fleet")
    with fleet_in(tmp_path) as fleet:
        (tmp_path / "fleet.toml").write_text(ONE.replace("slots = 2", "slots = 3"))
        assert fleet.reload() is not None
        assert "fleet.toml: slots 2 → 3" in caplog.text
        assert fleet.reload() is not None
        assert caplog.text.endswith("nothing changed\n")


def test_a_reload_logs_what_takes_effect_at_the_next_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "rota.fleet")
    with fleet_in(tmp_path) as fleet:
        text = ONE.replace(
            "slots = 2", "slots = {any = 2, gpu = 1}\nworker_id = 'box'\nlogs_max = 5\nlogs = 'out'\nlogs_bytes_max = 9"
        )
        (tmp_path / "fleet.toml").write_text(text + "\n[scheduling.preemption]\nbands = [50]\n")
        assert fleet.reload() is not None
        for field in ("kinds of slots", "worker_id", "preemption", "logs_max", "logs_bytes_max", "logs"):
            assert f"{field} (takes effect at the next start)" in caplog.text
        assert "store (" not in caplog.text


def test_the_file_says_how_much_output_is_kept(tmp_path: Path) -> None:
    text = ONE.replace("slots = 2", "slots = 2\nlogs_max = 5\nlogs_bytes_max = '3MB'\nlogs = 'copies'")
    with fleet_in(tmp_path, text) as fleet:
        assert fleet.run(until_idle=True).runs == 1
        assert (tmp_path / "copies" / "1.1.log").read_text().endswith("\nhello\n")
        assert isinstance(fleet.api, Dispatcher)
        assert fleet.api.logs.maxima() == (5, 3_000_000)
        assert fleet.api.logs.folder is not None
        assert (fleet.api.logs.folder.logs_max, fleet.api.logs.folder.logs_bytes_max) == (5, 3_000_000)


def test_the_same_fleet_started_twice_is_refused_before_it_changes_anything(tmp_path: Path) -> None:
    named = ONE.replace("slots = 2", "slots = 2\nworker_id = 'box'")
    with fleet_in(tmp_path, named) as fleet, running(fleet):
        held = put(fleet, "sleeper")
        until(lambda: len(fleet.supervisor.runs) == 1)
        (tmp_path / "fleet.toml").write_text(named.replace("weight = 1", "weight = 9"))
        with pytest.raises(WorkerExists, match="worker id box is in use"):
            FleetRun(fleet.api, load_fleet(tmp_path / "fleet.toml"))
        assert fleet.api.projects.get("lab").weight == 1_000
        assert fleet.api.queue.get(held).attempt == 1
        (tmp_path / "go").touch()
        fleet.api.queue.wait(held, PATIENCE_S)
        assert fleet.api.queue.get(held).attempt == 1


def test_fewer_slots_take_effect_as_runs_end(tmp_path: Path) -> None:
    with fleet_in(tmp_path) as fleet, running(fleet):
        held = [put(fleet, "sleeper") for _ in range(3)]
        until(lambda: len(fleet.supervisor.runs) == 2)
        fleet.supervisor.resize(1)
        (tmp_path / "go").touch()
        for each in held:
            fleet.api.queue.wait(each, PATIENCE_S)
        until(lambda: fleet.supervisor.slot_loops[0].free == 1)


def test_sighup_reloads_the_first_sigterm_drains_and_the_second_kills(tmp_path: Path) -> None:
    named = f'store = "{address_of(tmp_path / "rota.db")}"\n'
    (tmp_path / "fleet.toml").write_text(named + ONE)
    rota = str(Path(sys.executable).with_name("rota"))
    process = subprocess.Popen([rota, "run", "--plain"], cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        until((tmp_path / "greeted").exists)
        (tmp_path / "fleet.toml").write_text(named + TWO)
        process.send_signal(signal.SIGHUP)
        until(lambda: bool(events(tmp_path, "kernel.fleet.reloaded")[1:]))
        kernel = Kernel(store.open(str(tmp_path / "rota.db")))
        (agent,) = kernel.agents.find("sleeper")
        sched_id = kernel.queue.enqueue(ScheduleSpec(agent.pid))
        until((tmp_path / f"slept.{sched_id}").exists)
        process.send_signal(signal.SIGTERM)
        until(lambda: any(e.payload["verb"] == "draining" for e in events(tmp_path, "kernel.supervisor.moved")))
        assert process.poll() is None  # it waits for the run
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
        entry = kernel.queue.get(sched_id)
        assert (entry.state, entry.attempt) == ("queued", 0)  # queued again, and no attempt counted
        kernel.store.close()
    finally:
        process.kill()
        process.wait()


def test_the_reload_command_reloads_a_running_fleet(tmp_path: Path) -> None:
    with fleet_in(tmp_path) as fleet, running(fleet):
        (tmp_path / "fleet.toml").write_text(f'store = "{address_of(tmp_path / "rota.db")}"\n' + TWO)
        until(lambda: bool(fleet.api.workers.list()))
        done = _reload(tmp_path)
        assert "each reads the file that it was started with" in done.stderr
        assert done.returncode == 0, done.stderr
        until(lambda: fleet.fleet.slots == 3)


def test_supervisors_of_one_fleet_with_different_files_say_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """When the second one starts, and when both reload. What belongs to one supervisor may differ."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    text = f'name = "night"\nstore = "{address_of(here / "rota.db")}"\n{ONE}'
    (there / "fleet.toml").write_text(text.replace("slots = 2", "slots = 3"))
    command = [str(Path(sys.executable).with_name("rota")), "run", "--plain"]
    with fleet_in(here, text) as fleet, (there / "log").open("w") as log:
        api, other = fleet.api, subprocess.Popen(command, cwd=there, stdout=log, stderr=log)
        try:
            until(lambda: (api.journal.recall("fleet-file:night") or {})["os_pid"] == other.pid)
            until(lambda: bool(api.workers.list()))
            (here / "fleet.toml").write_text(text.replace("weight = 1", "weight = 2"))
            assert "differs" not in caplog.text + (there / "log").read_text()
            with running(FleetRun(api, load_fleet(here / "fleet.toml"))):
                assert f"differs from that of the supervisor on {os.uname().nodename} (pid {other.pid}, " in caplog.text
                caplog.clear()
                until(lambda: len(api.workers.list()) == 2)
                request_reload(api, "ann", "night")
                until(lambda: "differs" in caplog.text + (there / "log").read_text())
        finally:
            other.terminate()
            other.wait(PATIENCE_S)


def test_a_reload_that_nobody_would_do_is_refused(tmp_path: Path) -> None:
    with fleet_in(tmp_path) as fleet:
        done = _reload(tmp_path)
        assert done.returncode == 3
        assert "no supervisor is running at the store of fleet" in done.stderr
        assert "rota run " in done.stderr
        assert not fleet.api.journal.tail(kinds=(FleetReloadRequested.kind,))


def _reload(folder: Path) -> subprocess.CompletedProcess[str]:
    rota = str(Path(sys.executable).with_name("rota"))
    return subprocess.run([rota, "reload"], cwd=folder, capture_output=True, text=True, check=False)


def events(folder: Path, kind: str) -> list[Any]:
    opened = store.open(os.fspath(folder / "rota.db"), read_only=True)
    try:
        return Kernel(opened).journal.tail(kinds=(kind,))
    finally:
        opened.close()

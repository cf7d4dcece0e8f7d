"""`rota trace export`, `rota otel` and `--otel`: the journal of a real store, in and out of this process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import pytest

from rota import store
from rota.cli.otel import _export
from rota.clock import ManualClock
from rota.fleet import load_fleet
from rota.fleet.config.apply import apply_fleet
from rota.kernel import Kernel, ScheduleSpec
from rota.rpc import connect
from rota.service import Dispatcher
from rota.telemetry import ApiSource, StoreSource, hold_exporter_lock
from tests.cli.conftest import path, rota
from tests.cli.shell import Shell
from tests.daemon.harness import Process
from tests.postgres_server import PostgresServer
from tests.stores import database_url, store_kind
from tests.telemetry.perfetto_messages import BEGIN, read_trace
from tests.telemetry.receiver import Collector, attributes, collector
from tests.telemetry.world import CALLER

__all__ = ["path", "rota", "store_kind"]  # the last takes schemas back


@pytest.fixture
def receiver() -> Iterator[Collector]:
    with collector() as found:
        yield found


@pytest.fixture
def journal(path: Path) -> Path:
    """A store in which two entries ran, ten seconds after each other."""
    _fill(str(path))
    return path


@pytest.fixture(params=["file", "postgres"])
def address(request: pytest.FixtureRequest, path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same on a file and on PostgreSQL."""
    found = str(path) if request.param == "file" else database_url(path)
    monkeypatch.setenv("ROTA_STORE", found)
    _fill(found)
    return found


def _fill(address: str) -> None:
    clock = ManualClock(1_000.0)
    kernel = Kernel(store.open(address, clock=clock))
    pid = kernel.agents.create("coder")
    for _ in range(2):
        kernel.queue.enqueue(ScheduleSpec(pid))
        clock.advance(5.0)
        (entry,) = kernel.queue.claim(worker_id="box")
        clock.advance(5.0)
        kernel.queue.complete(entry.sched_id, "completed", token=entry.token)
    kernel.store.close()


@pytest.mark.usefixtures("address")
def test_a_trace_is_written_in_every_format(rota: Shell, tmp_path: Path) -> None:
    found = rota("trace", "export", "--format", "chrome", "-o", tmp_path / "trace.json")
    assert found.code == 0, found.err
    assert "events 1 to" in found.err
    rows = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [row["name"] for row in rows if row["ph"] == "X"] == ["process coder #1", "process coder #2"]
    written = rota("trace", "export", "-o", tmp_path / "trace.pb", "--json").json
    assert written["bytes"] == (tmp_path / "trace.pb").stat().st_size
    packets = read_trace((tmp_path / "trace.pb").read_bytes()).packet
    assert sum(packet.track_event.type == BEGIN for packet in packets) == 4
    assert rota("trace", "export", "--format", "otlp", "-o", tmp_path / "trace.jsonl").code == 0
    refused = rota("trace", "export", "-o", tmp_path / "nowhere" / "trace.pb")
    assert (refused.code, "trace.pb cannot be written: No such file" in refused.err) == (2, True)
    (line,) = (tmp_path / "trace.jsonl").read_text().splitlines()
    spans = json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert [span["name"] for span in spans].count("process coder") == 2


def test_a_stretch_is_chosen_by_events_or_by_time(rota: Shell, journal: Path, tmp_path: Path) -> None:
    kernel = Kernel(store.open(str(journal)))
    events = kernel.journal.tail(0)
    kernel.store.close()
    middle = next(event.event_id for event in events if event.kind == "kernel.sched.completed")

    def exported(*words: object) -> list[str]:
        assert rota("trace", "export", "--format", "chrome", "-o", tmp_path / "t.json", *words).code == 0
        rows = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
        return [row["name"] for row in rows if row["ph"] == "X"]

    assert exported("--after", middle) == ["process coder #2"]
    assert exported("--through", middle) == ["process coder #1"]
    assert exported("--since", "1h") == [], "it was long ago"
    assert exported("--since", "90000d", "--until", "1d") == ["process coder #1", "process coder #2"]
    refused = rota("trace", "export", "--since", "1h", "--after", 3)
    assert refused.code != 0
    assert "exclude each other" in refused.err


@pytest.mark.usefixtures("journal")
def test_a_stretch_has_a_limit_that_says_what_to_do(rota: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rota.telemetry.timeline.EVENTS_MAX", 3)
    refused = rota("trace", "export", "--format", "otlp")
    assert refused.code != 0
    assert "rota trace export --since 1h" in refused.err


def test_a_daemon_shows_the_same_as_its_file(journal: Path) -> None:
    kernel = Kernel(store.open(str(journal)))
    api = Dispatcher(kernel)
    of_file, of_api = StoreSource(kernel).entries([1, 2, 3]), ApiSource(api).entries([1, 2, 3])
    assert sorted(of_file) == [1, 2]
    assert {sched_id: msgspec.structs.replace(entry, incarnation=None) for sched_id, entry in of_file.items()} == of_api
    api.close()


def test_what_is_in_the_journal_is_sent_once(
    rota: Shell, address: str, receiver: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "nice", lambda _: 0)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
    first = rota("otel", "--once", "--from-start", "--json")
    assert first.code == 0, first.err
    assert first.json["spans"] == len(receiver.spans) == 6
    again = rota("otel", "--once", "--json")
    assert again.json["spans"] == 0
    assert len(receiver.spans) == 6
    assert "exclude each other" in rota("otel", "--from-start", "--from-now").err
    with hold_exporter_lock(address, threading.Event()):
        assert "another process exports" in rota("otel", "--once").err


def has_ended(receiver: Collector, sched_id: int) -> bool:
    """Whether the run of an entry was sent."""
    runs = [attributes(span) for span in receiver.spans if span.name == "process coder"]
    return str(sched_id) in [run["messaging.message.id"] for run in runs]


def test_an_exporter_goes_on_after_the_server_was_restarted(
    receiver: Collector, socket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "nice", lambda _: 0)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    stop = threading.Event()
    with PostgresServer(socket_folder / "pg") as server, ThreadPoolExecutor() as pool:
        url = f"{server.dsn()}&schema=rota"
        kernel = Kernel(store.open(url))
        pid = kernel.agents.create("coder")
        exporting = pool.submit(_export, url, stop, once=False, begin="start")
        try:
            for number in (1, 2):
                kernel.queue.enqueue(ScheduleSpec(pid))
                (entry,) = kernel.queue.claim(worker_id="box")
                kernel.queue.complete(entry.sched_id, "completed", token=entry.token)
                receiver.until(partial(has_ended, receiver, entry.sched_id))
                with hold_exporter_lock(url, threading.Event(), waits=False) as other:
                    assert not other, "it has the lock, which ended with the session, again"
                if number == 1:
                    server.restart()
        finally:
            stop.set()
            kernel.store.close()
        report = exporting.result()
    assert report is not None
    assert report.spans >= 6


@pytest.mark.usefixtures("journal")
def test_without_the_extra_it_says_what_to_install(rota: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rota.telemetry.exporter_process.find_spec", lambda _: None)
    refused = rota("otel", "--once")
    assert refused.code != 0
    assert "pip install 'rota[otel]'" in refused.err


def test_a_fleet_with_otel_exports_its_runs_and_a_program_knows_its_span(
    rota: Shell, receiver: Collector, path: Path, tmp_path: Path
) -> None:
    """Real processes: the fleet, its exporter, and a program that is told its span."""
    file = tmp_path / "fleet.toml"
    file.write_text('slots = 1\n[agents.hello]\ncommand = ["sh", "-c", "echo $TRACEPARENT"]\n')
    kernel = Kernel(store.open(str(path)))
    apply_fleet(kernel, load_fleet(file))
    (agent,) = kernel.agents.find("hello")
    sched_id = kernel.queue.enqueue(ScheduleSpec(agent.pid))
    kernel.store.close()
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("ROTA_", "OTEL_"))},
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "20",
    }
    command = [sys.executable, "-m", "rota", "run", str(file), "--plain", "--until-idle", "--otel"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (run,) = [span for span in receiver.spans if span.name == "invoke_agent hello"]
    assert rota("logs", sched_id).out.strip() == f"00-{run.trace_id.hex()}-{run.span_id.hex()}-01"
    assert attributes(run)["rota.slot"] == "slot-1"
    assert attributes(run)["process.pid"] > 1
    assert any("hello #1 completed" in log.body.string_value for log in receiver.logs)


def test_a_daemon_with_otel_exports_what_its_clients_do(
    path: Path, receiver: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real processes: the daemon and its exporter, which ends with it and sends the rest first."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    daemon = Process(str(path), "--otel")
    with connect(daemon.addresses[0]) as client:
        pid = client.agents.create("coder", "callable")
        sched_id = client.queue.enqueue(ScheduleSpec(pid, traceparent=CALLER))
        (entry,) = client.claim("box")
        client.complete(entry.sched_id, "completed", token=entry.token)
    assert daemon.stop() == 0
    assert sorted(span.name for span in receiver.spans) == ["enqueue coder", "process coder", "wait coder"]
    assert {span.trace_id.hex() for span in receiver.spans} == {CALLER.split("-")[1]}
    (process,) = [span for span in receiver.spans if span.name == "process coder"]
    assert attributes(process)["messaging.message.id"] == str(sched_id)
    found = {attributes(each)["state"]: each.as_double for each in receiver.metrics["rota_entries"].gauge.data_points}
    assert found["completed"] == 1, "the last values are sent at the end"
    with hold_exporter_lock(str(path), threading.Event(), waits=False) as is_free:
        assert is_free, "no exporter is left"


def test_a_second_ctrl_c_does_not_wait_for_a_collector_that_takes_nothing(journal: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_EXPORTER_OTLP_TIMEOUT": "3600"}
        command = [sys.executable, "-m", "rota", "otel", "--store", str(journal)]
        with subprocess.Popen(command, env={**os.environ, **variables}) as process:
            connection, _ = listener.accept()
            with connection:
                while process.poll() is None:  # two that come at the same time are one
                    process.send_signal(signal.SIGINT)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(0.1)
    assert process.returncode == -signal.SIGINT

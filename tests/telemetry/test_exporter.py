"""The exporter against a real OTLP receiver: protobuf over HTTP, in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rota import store
from rota.kernel import Kernel, ScheduleSpec
from rota.telemetry import Exporter, hold_exporter_lock, mark_start
from rota.telemetry import exporter as module
from tests.telemetry.receiver import Collector, attributes, collector
from tests.telemetry.world import family, in_memory, kernel_of, spans_of


@pytest.fixture
def receiver() -> Iterator[Collector]:
    with collector() as found:
        yield found


@pytest.fixture
def environ(receiver: Collector, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """The variables that name the receiver: the SDK's exporters read them from the process."""
    found = {
        "ROTA_OTEL": "on",
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-team=lab",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
        "OTEL_BSP_SCHEDULE_DELAY": "10",
    }
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


def test_traces_logs_and_metrics_arrive(receiver: Collector, environ: Mapping[str, str]) -> None:
    with in_memory() as rota:
        kernel = kernel_of(rota)
        exporter = Exporter(kernel, "rota.db", environ)
        family(rota)
        assert rota.run_until_idle().ok
        report = exporter.catch_up()
        made = spans_of(kernel)
    assert [(span.name, span.span_id.hex(), span.trace_id.hex()) for span in receiver.spans] == [
        (span.name, span.ref.span_id, span.ref.trace_id) for span in made
    ]
    assert report.spans == len(made)
    assert report.logs == len(receiver.logs)
    assert report.left_out == 0
    assert receiver.resource["service.name"] == "rota"
    assert receiver.resource["deployment.environment.name"] == "test"
    assert all(headers["x-team"] == "lab" for headers in receiver.headers)
    (run,) = [span for span in receiver.spans if span.name == "invoke_agent planner"]
    assert attributes(run)["gen_ai.agent.name"] == "planner"
    assert run.events[0].name == "run.progressed"
    (failed,) = [span for span in receiver.spans if span.name == "invoke_agent coder" and span.status.code == 2]
    assert failed.status.message == "failed"


def test_logs_are_sentences_that_name_their_span(receiver: Collector, environ: Mapping[str, str]) -> None:
    with in_memory() as rota:
        exporter = Exporter(kernel_of(rota), "rota.db", environ)
        family(rota)
        assert rota.run_until_idle().ok
        exporter.catch_up()
    retried = next(log for log in receiver.logs if "no network" in log.body.string_value)
    assert retried.severity_text in ("WARN", "ERROR")
    assert retried.event_name == "kernel.sched.returned"
    said = attributes(retried)
    assert said["gen_ai.agent.name"] == "coder"
    assert said["rota.entry"] == 2
    spans = {span.span_id: span.name for span in receiver.spans}
    assert spans[retried.span_id] == "invoke_agent coder"


def test_metrics_have_the_names_of_prometheus_and_of_the_conventions(
    receiver: Collector, environ: Mapping[str, str]
) -> None:
    with in_memory() as rota:
        exporter = Exporter(kernel_of(rota), "rota.db", environ)
        family(rota)
        assert rota.run_until_idle().ok
        exporter.catch_up()
    found = receiver.metrics
    (enqueued,) = found["rota_entries_enqueued"].sum.data_points
    assert enqueued.as_double == 2
    assert found["rota_entries_enqueued"].sum.is_monotonic
    assert found["messaging.client.sent.messages"].sum.data_points[0].as_double == 2
    assert found["messaging.client.sent.messages"].unit == "{message}"
    (runs,) = found["rota_run_seconds"].histogram.data_points
    assert runs.count == 3
    assert runs.sum == pytest.approx(4.0)
    assert sum(runs.bucket_counts) == 3
    assert len(runs.bucket_counts) == len(runs.explicit_bounds) + 1
    assert not runs.HasField("min")
    assert found["rota_run_seconds"].unit == found["messaging.process.duration"].unit == "s"
    tokens = {
        (attributes(point)["gen_ai.token.type"], attributes(point)["gen_ai.request.model"]): point.sum
        for point in found["gen_ai.client.token.usage"].histogram.data_points
    }
    assert tokens == {("input", "m-1"): 50, ("output", "m-1"): 5}
    took = found["gen_ai.client.operation.duration"].histogram.data_points
    assert sorted((attributes(point).get("error.type", ""), point.sum) for point in took) == [
        ("", 1.0),
        ("", 2.0),
        ("failed", 1.0),
    ], "of two models, one of them unknown, and of a failure"
    states = {attributes(point)["state"]: point.as_double for point in found["rota_entries"].gauge.data_points}
    assert states["completed"] == 2


def test_a_collector_that_is_away_costs_a_delay_and_nothing_is_lost_or_sent_twice(
    receiver: Collector,
    environ: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.001)
    receiver.refuse = 3
    with in_memory() as rota:
        exporter = Exporter(kernel_of(rota), "rota.db", environ)
        family(rota)
        assert rota.run_until_idle().ok
        exporter.catch_up()
        ids = [span.span_id.hex() for span in receiver.spans]
        assert ids == [span.ref.span_id for span in spans_of(kernel_of(rota))]
    assert receiver.refuse == 0
    assert caplog.text.count("the collector cannot be reached") == 1


def test_a_page_that_is_never_taken_is_left_out_and_counted(
    receiver: Collector, environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GIVE_UP_S", 0.0)
    receiver.refuse = 1
    with in_memory() as rota:
        exporter = Exporter(kernel_of(rota), "rota.db", environ)
        kernel_of(rota).agents.create("idle")
        report = exporter.catch_up()
    assert report.left_out == report.events > 0


def test_the_next_exporter_goes_on_where_the_last_one_was(
    receiver: Collector, environ: Mapping[str, str], tmp_path: Path
) -> None:
    path = str(tmp_path / "rota.db")
    kernel = Kernel(store.open(path))
    pid = kernel.agents.create("agent")

    def one_run() -> None:
        kernel.queue.enqueue(ScheduleSpec(pid))
        (entry,) = kernel.queue.claim(worker_id="w")
        kernel.queue.complete(entry.sched_id, "completed", token=entry.token)

    one_run()
    mark_start(kernel.journal)
    for _ in range(2):
        one_run()
        Exporter(kernel, path, environ).catch_up()
    sent = [attributes(span)["messaging.message.id"] for span in receiver.spans if span.name == "process agent"]
    assert sent == ["2", "3"]
    Exporter(kernel, path, environ, begin="start").catch_up()
    again = [attributes(span)["messaging.message.id"] for span in receiver.spans if span.name == "process agent"]
    assert again[2:] == ["1", "2", "3"]
    assert len({span.span_id for span in receiver.spans}) == 9, "the same ids, however often they are sent"
    kernel.store.close()


def test_signals_are_switched_off_one_by_one(receiver: Collector, environ: Mapping[str, str]) -> None:
    off = {**environ, "OTEL_LOGS_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}
    with in_memory() as rota:
        exporter = Exporter(kernel_of(rota), "rota.db", off)
        family(rota)
        assert rota.run_until_idle().ok
        exporter.catch_up()
    assert receiver.spans
    assert {path for path, _ in receiver.requests} == {"/v1/traces"}


def test_an_exporter_runs_until_it_is_told_and_sends_what_is_left(
    receiver: Collector, environ: Mapping[str, str]
) -> None:
    with in_memory() as rota:
        stop = threading.Event()
        exporter = Exporter(kernel_of(rota), "rota.db", environ)
        reports: list[Any] = []
        thread = threading.Thread(target=lambda: reports.append(exporter.run(stop)))
        thread.start()
        family(rota)
        assert rota.run_until_idle().ok
        assert receiver.arrived.wait(30)
        stop.set()
        thread.join(30)
        assert reports[0].events == kernel_of(rota).journal.cursor()


def test_one_exporter_works_for_a_file_at_a_time(tmp_path: Path) -> None:
    path, stop = str(tmp_path / "rota.db"), threading.Event()
    with hold_exporter_lock(path, stop) as first:
        assert first
        with hold_exporter_lock(path, stop, waits=False) as second:
            assert not second
        stop.set()
        with hold_exporter_lock(path, stop) as second:
            assert not second
    with hold_exporter_lock(path, stop) as third:
        assert third, "told to stop already, but what is in the journal is still to be sent"

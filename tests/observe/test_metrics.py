"""Metrics are computed from the journal."""

from __future__ import annotations

import pytest

from rota import store
from rota.clock import ManualClock
from rota.kernel import Kernel, ScheduleSpec
from rota.observe import metrics as module
from rota.observe.metrics import Metrics
from tests.daemon.harness import Served, make_token
from tests.daemon.http_client import fetch


def values(metrics: Metrics) -> dict[str, float]:
    lines = metrics.exposition().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def test_events_are_counted_and_timed() -> None:
    clock = ManualClock(1_000.0)
    kernel = Kernel(store.open(":memory:", clock=clock))
    pid = kernel.agents.create("agent")
    kernel.queue.enqueue(ScheduleSpec(pid))
    metrics = Metrics(kernel)  # earlier events are not counted
    kernel.queue.enqueue_many([ScheduleSpec(pid), ScheduleSpec(pid), ScheduleSpec(pid, deadline=1_010.0)])
    kernel.ledger.create(pid, {"tokens": 10})
    clock.advance(3.0)
    entries = kernel.queue.claim(worker_id="w", max_n=2)
    kernel.queue.charge(entries[1].sched_id, {"tokens": 7}, token=entries[1].token)
    clock.advance(10.0)
    kernel.queue.complete(entries[0].sched_id, "completed", token=entries[0].token)
    kernel.queue.put_back(entries[1].sched_id, token=entries[1].token or 0)
    kernel.queue.cancel(3)
    kernel.journal.append(pid, "my own kind")
    kernel.queue.gc_expired()
    seen = values(metrics)
    assert seen["rota_entries_enqueued_total"] == 3
    assert seen['rota_entries_claimed_total{policy="strict"}'] == 2
    assert seen['rota_entries_completed_total{exit_kind="completed"}'] == 1
    assert seen['rota_entries_returned_total{verb="yield"}'] == 1
    assert seen["rota_entries_cancelled_total"] == 1
    assert seen["rota_entries_expired_total"] == 1
    assert seen['rota_usage_total{dimension="tokens"}'] == 7
    assert seen['rota_events_total{kind="user"}'] == 1
    assert seen["rota_wait_seconds_count"] == 1, (
        "one of the two claimed entries was enqueued before the metrics were created"
    )
    assert seen["rota_wait_seconds_sum"] == 3.0
    assert seen["rota_run_seconds_count"] == 2
    assert seen["rota_run_seconds_sum"] == 20.0
    assert seen['rota_entries{state="completed"}'] == 1
    assert seen['rota_agents{state="READY"}'] == 1
    assert seen["rota_metrics_lag_events"] == 0
    assert values(metrics) == seen, "events are counted once"
    kernel.store.close()


def test_the_number_of_tracked_entries_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TRACKED_MAX", 3)
    kernel = Kernel(store.open(":memory:"))
    metrics = Metrics(kernel)
    pid = kernel.agents.create("agent")
    kernel.queue.enqueue_many([ScheduleSpec(pid)] * 5)
    seen = values(metrics)
    assert len(metrics._queued_at) == 3
    assert seen["rota_metrics_untracked_total"] == 2
    kernel.store.close()


def test_many_events_are_read_in_parts_and_the_lag_shows_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FOLD_MAX", 4)
    monkeypatch.setattr(module, "TAIL_MAX", 2)
    kernel = Kernel(store.open(":memory:"))
    metrics = Metrics(kernel)
    for _ in range(6):
        kernel.journal.append(None, "note")
    assert values(metrics)["rota_metrics_lag_events"] == 2
    assert values(metrics)["rota_metrics_lag_events"] == 0
    kernel.store.close()


def test_a_daemon_serves_them_to_tokens_that_may_read(served: Served) -> None:
    with served.client() as client:
        client.enqueue(ScheduleSpec(client.create_agent("agent", "callable")))
    assert fetch(served.url, "/metrics").status == 401
    page = fetch(served.url, "/metrics", authorization=f"Bearer {make_token(served.path, 'read')}")
    assert page.status == 200
    assert b"rota_entries_enqueued_total 1.0" in page.body
    assert page.headers["content-type"].startswith("text/plain")


def test_every_metric_has_our_prefix_and_no_id_in_its_labels() -> None:
    kernel = Kernel(store.open(":memory:"))
    page = Metrics(kernel).exposition().decode()
    names = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")}
    assert all(name.startswith("rota_") for name in names)
    assert not any(word in page for word in ("pid=", "sched_id=", "project_id="))
    kernel.store.close()

"""Metrics are computed from the journal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rota import store
from rota.clock import ManualClock
from rota.kernel import Completion, Kernel, ScheduleSpec
from rota.model.workers import SlotPool
from rota.observe import metric_labels, table_metrics
from rota.observe import metrics as module
from rota.observe.metrics import Metrics
from tests.daemon.harness import Served, make_token
from tests.daemon.http_client import fetch
from tests.docs.pages import ROOT


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


# --- projects, agents, budgets, limits, slots ------------------------------------------------------


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    made = Kernel(store.open(":memory:", clock=ManualClock(1_000.0)))
    yield made
    made.store.close()


def test_runs_and_waits_are_counted_by_project_and_agent(kernel: Kernel) -> None:
    kernel.projects.create("lab")
    coder = kernel.agents.create("coder", project_id="lab")
    loner = kernel.agents.create("loner")
    kernel.queue.enqueue(ScheduleSpec(loner))
    (early,) = kernel.queue.claim(worker_id="w")
    metrics = Metrics(kernel)  # the first run started before
    kernel.queue.enqueue_many([ScheduleSpec(coder, retry_on=("failed",))] * 3)
    clock = kernel.clock
    assert isinstance(clock, ManualClock)
    clock.advance(2.0)
    first, second, third = kernel.queue.claim(worker_id="w", max_n=3)
    kernel.queue.charge(first.sched_id, {"tokens": 7}, token=first.token)
    kernel.queue.complete(early.sched_id, "completed", token=early.token)
    kernel.queue.complete(first.sched_id, "completed", token=first.token)
    kernel.queue.complete(second.sched_id, "failed", token=second.token)
    kernel.queue.complete(third.sched_id, "cancelled", token=third.token)
    seen = values(metrics)
    ended = 'rota_runs_ended_total{agent="%s",project="%s",status="%s"}'
    assert seen[ended % ("loner", "", "succeeded")] == 1
    assert seen[ended % ("coder", "lab", "succeeded")] == 1
    assert seen[ended % ("coder", "lab", "retried")] == 1
    assert seen[ended % ("coder", "lab", "cancelled")] == 1
    assert seen['rota_runs_started_total{agent="coder",project="lab"}'] == 3
    assert seen['rota_project_usage_total{dimension="tokens",project="lab"}'] == 7
    assert seen['rota_project_wait_seconds_sum{project="lab"}'] == 6.0
    assert seen['rota_project_wait_seconds_bucket{le="1.0",project="lab"}'] == 0
    assert seen['rota_project_wait_seconds_bucket{le="5.0",project="lab"}'] == 3


def test_budgets_limits_and_slots_are_read_from_the_tables(kernel: Kernel) -> None:
    kernel.projects.create("lab")
    pid = kernel.agents.create("coder", project_id="lab")
    kernel.ledger.set_budget("project", "lab", "tokens", 1_000)
    kernel.ledger.set_budget("global", "*", "tokens", 5_000)
    kernel.contexts.create(bound_to="name", bound_id="model-api", budget=600, period_s=60.0)
    pools = (SlotPool(worker_id="box", slots=3),)
    kernel.workers.register("box", "i1", kind="supervisor", host="host-a", os_pid=42, pools=pools)
    metrics = Metrics(kernel)
    kernel.queue.enqueue(ScheduleSpec(pid, draws_on=("model-api",), expected={"tokens": 50}))
    (entry,) = kernel.queue.claim(worker_id="box", incarnation="i1")
    kernel.queue.charge(entry.sched_id, {"tokens": 400}, token=entry.token)
    seen = values(metrics)
    lab = 'dimension="tokens",level="project",project="lab"'
    assert (seen[f"rota_budget_used{{{lab}}}"], seen[f"rota_budget_limit{{{lab}}}"]) == (400, 1_000)
    assert seen['rota_budget_limit{dimension="tokens",level="global",project=""}'] == 5_000
    api = 'limit="model-api",unit="tokens"'
    assert (seen[f"rota_limit_used{{{api}}}"], seen[f"rota_limit_available{{{api}}}"]) == (400, 200)
    assert (seen['rota_slots{worker="box"}'], seen['rota_slots_busy{worker="box"}'], seen["rota_workers"]) == (3, 1, 1)
    kernel.queue.complete(entry.sched_id, "completed", token=entry.token)
    kernel.workers.leave("box", "i1")
    assert not any(name.startswith("rota_slots{") for name in values(metrics))


def test_the_first_projects_and_agents_have_series_and_the_rest_share_one(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_labels, "PROJECTS_MAX", 2)
    monkeypatch.setattr(metric_labels, "AGENTS_MAX", 3)
    metrics = Metrics(kernel)
    for project in ("a", "b", "c"):
        kernel.projects.create(project)
        for name in ("one", "two"):
            kernel.queue.enqueue(ScheduleSpec(kernel.agents.create(name, project_id=project)))
    kernel.queue.claim(worker_id="w", max_n=6)
    seen = {name: value for name, value in values(metrics).items() if name.startswith("rota_runs_started_total")}
    started = 'rota_runs_started_total{agent="%s",project="%s"}'
    assert seen == {
        started % ("one", "a"): 1,
        started % ("two", "a"): 1,
        started % ("one", "b"): 1,
        started % ("other", "b"): 1,
        started % ("other", "other"): 2,
    }


@pytest.mark.parametrize("char", ["x", "é", "🙂", '"'])
def test_a_long_name_is_cut_and_stays_apart_from_others(char: str) -> None:
    first, second = (metric_labels.short(char * 200 + end) for end in "ab")
    assert first != second
    escaped = first.replace('"', '\\"').encode()
    assert metric_labels.LABEL_BYTES_MAX - 4 < len(escaped) <= metric_labels.LABEL_BYTES_MAX
    assert metric_labels.short("lab") == "lab"


def test_the_page_stays_small_whatever_there_is(kernel: Kernel) -> None:
    metrics = Metrics(kernel)
    long = "n" * 150
    many = 2 * metric_labels.PROJECTS_MAX
    specs = []
    for number in range(many):
        project = f"{number:04}-{long}"
        kernel.projects.create(project)
        kernel.ledger.set_budget("project", project, f"{number:04}-{long}", 1_000)
        kernel.contexts.create(bound_to="name", bound_id=f"{number:04}-{long}", budget=600, period_s=60.0)
        pools = (SlotPool(worker_id=f"{number:04}-{long}", slots=3),)
        kernel.workers.register(f"{number:04}-{long}", "i", kind="supervisor", host="h", os_pid=1, pools=pools)
        specs += [ScheduleSpec(kernel.agents.create(f"{name}-{long}", project_id=project)) for name in range(4)]
    kernel.queue.enqueue_many(specs * 2)
    ends = ("completed", "failed", "cancelled", "crashed")
    amounts = {f"{dim}-{long}"[:100]: 1 for dim in range(10)}
    ended = []
    for entry in kernel.queue.claim(worker_id="w", max_n=2 * len(specs)):
        if entry.sched_id % 4 == 0:
            kernel.queue.charge(entry.sched_id, amounts, token=entry.token)
        ended.append(Completion(entry.sched_id, ends[entry.sched_id % 4], entry.token))
    kernel.queue.complete_many(ended[:1_000])
    metrics.catch_up()
    for labels in list(metrics.started._metrics):  # each of them ends in each way
        for status in ("succeeded", "failed", "cancelled", "retried", "lost", "returned"):
            metrics.ended.labels(*labels, status).inc()
    page = metrics.exposition()
    assert len(page) < module.PAGE_BYTES_MAX
    seen = values(metrics)
    assert seen['rota_metrics_omitted{of="budgets"}'] == many - table_metrics.ROWS_MAX
    agents = {name for name in seen if name.startswith("rota_runs_started_total")}
    assert len(agents) <= metric_labels.AGENTS_MAX + metric_labels.PROJECTS_MAX + 1
    assert len(agents) >= metric_labels.AGENTS_MAX


def test_every_metric_is_documented(kernel: Kernel) -> None:
    page = Metrics(kernel).exposition().decode()
    names = {line.split()[2].removesuffix("_total") for line in page.splitlines() if line.startswith("# TYPE")}
    guide = (ROOT / "docs" / "telemetry.md").read_text()
    missing = {name for name in names if f"`{name}" not in guide}
    assert not missing
    assert not any(name.endswith("_created") for name in names)

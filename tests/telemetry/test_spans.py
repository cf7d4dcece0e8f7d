"""Spans are made of the journal, and the runs knew them before."""

from __future__ import annotations

from typing import Any

import pytest

from rota import store
from rota.clock import ManualClock
from rota.errors import SchedInvalidPayload
from rota.kernel import Kernel, ScheduleSpec
from rota.model.trace_context import SpanRef, parse_traceparent
from rota.telemetry.span_fold import SpanFold
from rota.telemetry.trace_source import StoreSource
from tests.telemetry.world import CALLER, by_name, family, in_memory, kernel_of, one, pages, spans_of

SECOND = 1_000_000_000


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_OTEL", "on")


def ref(traceparent: str | None) -> SpanRef:
    found = parse_traceparent(traceparent or "")
    assert found is not None, traceparent
    return found


@pytest.mark.usefixtures("traced")
def test_an_entry_is_enqueued_waits_and_runs_and_its_run_knew_its_span() -> None:
    with in_memory() as rota:
        seen = family(rota)
        assert rota.run_until_idle().ok
        spans = spans_of(kernel_of(rota))
    enqueue, wait = one(spans, "enqueue planner"), one(spans, "wait planner")
    process, run = one(spans, "process planner"), one(spans, "invoke_agent planner")
    assert [each.kind for each in (enqueue, wait, process, run)] == ["producer", "internal", "consumer", "internal"]
    assert {each.ref.trace_id for each in spans} == {enqueue.ref.trace_id}, "all of it is one trace"
    assert enqueue.parent is None
    assert wait.parent == process.parent == enqueue.ref.span_id
    assert process.links == (enqueue.ref,)
    assert run.parent == process.ref.span_id
    assert wait.end_ns - wait.start_ns == 4 * SECOND
    assert run.end_ns - run.start_ns == 2 * SECOND
    assert ref(seen["planner"]) == run.ref
    assert run.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert run.attributes["gen_ai.agent.name"] == "planner"
    assert process.attributes["messaging.system"] == "rota"
    assert process.attributes["messaging.operation.type"] == "process"
    assert process.attributes["messaging.message.id"] == str(seen["job"].sched_id)
    assert [note.name for note in run.notes] == ["run.progressed"]


@pytest.mark.usefixtures("traced")
def test_a_child_is_below_the_run_that_spawned_it_and_each_attempt_has_its_own_spans() -> None:
    with in_memory() as rota:
        seen = family(rota)
        assert rota.run_until_idle().ok
        spans = spans_of(kernel_of(rota))
    parent = one(spans, "invoke_agent planner")
    assert one(spans, "enqueue coder").parent == parent.ref.span_id
    runs = by_name(spans)["invoke_agent coder"]
    assert [ref(each) for each in seen["coder"]] == [run.ref for run in runs], "both attempts knew their spans"
    assert [run.attributes["rota.attempt"] for run in runs] == [1, 2]
    assert runs[0].error is not None
    assert runs[1].error is None
    failed, ended = by_name(spans)["process coder"]
    assert failed.attributes["rota.returned"] == "retry"
    assert failed.attributes["error.type"] == "retried"
    assert ended.attributes["rota.exit_kind"] == "completed"
    assert runs[1].attributes["gen_ai.usage.input_tokens"] == 50, "with those from the cache, as the conventions count"
    assert runs[1].attributes["gen_ai.usage.output_tokens"] == 5
    assert runs[1].attributes["gen_ai.request.model"] == "m-1"
    assert len(by_name(spans)["wait coder"]) == 2
    assert len({span.ref.span_id for span in spans}) == len(spans), "no two spans share an id"


def test_the_trace_of_a_caller_is_continued_also_without_telemetry() -> None:
    with in_memory() as rota:
        seen: list[str | None] = []

        @rota.agent
        def echo(ctx: Any) -> None:
            seen.append(ctx.traceparent)

        echo.enqueue(options={"traceparent": CALLER, "tracestate": "vendor=1"})
        assert rota.run_until_idle().ok
        spans = spans_of(kernel_of(rota))
    assert seen == [CALLER], "telemetry is off: the run gets what its caller passed"
    enqueue = one(spans, "enqueue echo")
    assert enqueue.ref.trace_id == ref(CALLER).trace_id
    assert enqueue.parent == ref(CALLER).span_id
    assert enqueue.parent_is_remote
    assert enqueue.tracestate == "vendor=1"
    assert one(spans, "invoke_agent echo").ref.trace_id == ref(CALLER).trace_id


def test_a_caller_in_a_traced_program_passes_its_span_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415  # of this test only

    with in_memory() as rota:

        @rota.agent
        def echo() -> None: ...

        monkeypatch.setenv("TRACEPARENT", CALLER)
        by_environment = echo.enqueue()
        with TracerProvider().get_tracer("test").start_as_current_span("caller") as span:
            by_span = echo.enqueue()
        context = span.get_span_context()
        queue = kernel_of(rota).queue
        assert queue.get(by_environment.sched_id).traceparent == CALLER
        assert (
            queue.get(by_span.sched_id).traceparent
            == f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
        )


def test_a_trace_that_its_caller_does_not_sample_has_no_spans() -> None:
    with in_memory() as rota:

        @rota.agent
        def echo() -> None: ...

        echo.enqueue(options={"traceparent": CALLER[:-2] + "00"})
        assert rota.run_until_idle().ok
        assert spans_of(kernel_of(rota)) == []


def test_a_share_of_the_traces_is_kept_and_a_run_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_OTEL", "1")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    with in_memory() as rota:
        told: dict[str, SpanRef] = {}

        @rota.agent
        def echo(ctx: Any) -> None:
            found = ref(ctx.traceparent)
            told[found.span_id] = found

        echo.map([{}] * 40)
        assert rota.run_until_idle().ok
        fold = SpanFold(StoreSource(kernel_of(rota)), ratio=0.5)
        spans = [span for page in pages(kernel_of(rota)) for span in fold.fold(page)]
    kept = {span.ref.span_id for span in spans if span.name.startswith("invoke_agent")}
    assert kept == {each.span_id for each in told.values() if each.flags & 1}
    assert 5 < len(kept) < 35


@pytest.mark.parametrize(
    "wrong", ["", "4bf9", CALLER.upper(), CALLER[:-3], "00-" + "0" * 32 + CALLER[35:], "01" + CALLER[2:]]
)
def test_a_trace_context_that_is_none_is_refused(wrong: str) -> None:
    with pytest.raises(SchedInvalidPayload, match="traceparent"):
        ScheduleSpec(1, traceparent=wrong)


def test_a_tracestate_needs_its_traceparent_and_has_a_limit() -> None:
    with pytest.raises(SchedInvalidPayload, match="traceparent"):
        ScheduleSpec(1, tracestate="a=1")
    ScheduleSpec(1, traceparent=CALLER, tracestate="a" * 512)
    with pytest.raises(SchedInvalidPayload, match="512"):
        ScheduleSpec(1, traceparent=CALLER, tracestate="a" * 513)


# --- without a supervisor ------------------------------------------------------------------------


@pytest.fixture
def kernel() -> Kernel:
    return Kernel(store.open(":memory:", clock=ManualClock(1_000.0)))


def test_a_worker_without_a_supervisor_has_claims_but_no_invocations(kernel: Kernel) -> None:
    parent, child = kernel.agents.create("parent"), kernel.agents.create("child")
    kernel.queue.enqueue(ScheduleSpec(parent))
    (entry,) = kernel.queue.claim(worker_id="w")
    assert entry.token is not None
    kernel.supervision.spawn(ScheduleSpec(child, parent_id=entry.sched_id), entry.token)
    kernel.queue.complete(entry.sched_id, "completed", token=entry.token)
    (entry,) = kernel.queue.claim(worker_id="w")
    kernel.queue.complete(entry.sched_id, "failed", token=entry.token)
    spans = spans_of(kernel)
    assert not [span for span in spans if span.name.startswith("invoke")]
    assert one(spans, "enqueue child").parent == one(spans, "process parent").ref.span_id
    assert one(spans, "process child").error == "failed"


def test_entries_that_leave_the_queue_without_a_run_have_waited(kernel: Kernel) -> None:
    pid = kernel.agents.create("agent")
    late = kernel.queue.enqueue(ScheduleSpec(pid, deadline=1_010.0))
    kernel.queue.cancel(kernel.queue.enqueue(ScheduleSpec(pid)))
    assert isinstance(kernel.clock, ManualClock)
    kernel.clock.advance(20.0)
    kernel.queue.gc_expired()
    waits = by_name(spans_of(kernel))["wait agent"]
    assert [wait.attributes["rota.exit_kind"] for wait in waits] == ["cancelled", "expired"]
    assert [wait.error for wait in waits] == [None, "expired"]
    assert waits[1].attributes["messaging.message.id"] == str(late)
    assert waits[1].end_ns - waits[1].start_ns == 20 * SECOND


def test_a_reader_that_begins_late_finds_the_same_spans(kernel: Kernel) -> None:
    pid = kernel.agents.create("agent")
    kernel.queue.enqueue_many([ScheduleSpec(pid)] * 2)
    ending, running = kernel.queue.claim(worker_id="w", max_n=2)
    begin = kernel.journal.cursor()
    kernel.queue.complete(ending.sched_id, "completed", token=ending.token)
    late = SpanFold(StoreSource(kernel))
    late.begin_with(StoreSource(kernel).live())
    kernel.queue.put_back(running.sched_id, token=running.token or 0)
    found = {span.ref for span in late.fold(kernel.journal.tail(begin))}
    assert found == {span.ref for span in spans_of(kernel) if span.name == "process agent"}
    assert len(found) == 2
    blind = SpanFold(StoreSource(kernel))
    assert len(list(blind.fold(kernel.journal.tail(begin)))) == 1, "of an entry that ended, its row has the claim"
    assert blind.unmatched == 1


def test_the_size_of_the_pages_changes_nothing() -> None:
    with in_memory() as rota:
        family(rota)
        assert rota.run_until_idle().ok
        kernel = kernel_of(rota)
        assert spans_of(kernel, size=1) == spans_of(kernel, size=7) == spans_of(kernel)


def test_what_was_pruned_is_shown_as_far_as_events_go(kernel: Kernel) -> None:
    class Nothing:
        def entries(self, _ids: object) -> dict[int, Any]:
            return {}

        def runs(self, _ids: object) -> dict[str, Any]:
            return {}

        def live(self) -> list[Any]:
            return []

    pid = kernel.agents.create("agent")
    kernel.queue.enqueue(ScheduleSpec(pid))
    (entry,) = kernel.queue.claim(worker_id="w")
    kernel.queue.complete(entry.sched_id, "completed", token=entry.token)
    fold = SpanFold(Nothing())
    spans = [span for page in pages(kernel) for span in fold.fold(page)]
    assert [span.name for span in spans] == [f"{verb} agent {pid}" for verb in ("enqueue", "wait", "process")]

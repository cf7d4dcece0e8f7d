"""Bad input: every refusal has its own error, names its field, and leaves no trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rota.errors import (
    ContextInvalid,
    ContextUnknown,
    IllegalTransition,
    InvalidInput,
    InvalidPayload,
    LedgerInvalidAmount,
    ProjectInvalid,
    ProjectUnknown,
    RotaError,
    SchedIllegalTransition,
    SchedInvalidPayload,
    SchedInvalidStateFilter,
    SchedUnknownId,
    StaleClaim,
    UnknownPid,
    WorkspaceUnknown,
)
from rota.kernel import EntryFilter, ScheduleSpec
from rota.model.checks import ID_CHARS_MAX, PAYLOAD_BYTES_MAX, RESULT_BYTES_MAX
from rota.model.work import ProjectConstraint
from tests.kernel.populated_world import DEAD_PID, DONE, INF, NAN, PID, QUEUED, RUNNING, SURROGATE, PopulatedWorld
from tests.kernel.world import START


@pytest.fixture
def populated() -> Iterator[PopulatedWorld]:
    made = PopulatedWorld()
    yield made
    made.close()


Call = Callable[[PopulatedWorld], object]


def spec(**wrong: Any) -> Call:
    """Enqueue with something wrong."""
    return lambda world: world.queue.enqueue(ScheduleSpec(**({"pid": PID} | wrong)))


def claim(**wrong: Any) -> Call:
    return lambda world: world.queue.claim(**({"worker_id": "w"} | wrong))


def _add_workspace(world: PopulatedWorld, **wrong: Any) -> object:
    return world.projects.add_workspace("w", "lab", "/w", **wrong)


SPECS: list[tuple[str, dict[str, Any]]] = [("pid", {"pid": value}) for value in (True, "1", 1.0, None, 2**63)]
SPECS += [("priority", {"priority": value}) for value in (True, "1", 1.0, None, NAN, 2**63, -(2**63) - 1)]
SPECS += [("runnable_at", {"runnable_at": value}) for value in (-0.001, -1, NAN, INF, -INF, True, "0", None)]
SPECS += [("deadline", {"deadline": value}) for value in (-1.0, NAN, INF, False, "soon")]
SPECS += [(field, {field: "a\0b"}) for field in ("trigger", "key", "kind", "workspace", "affinity", "correlation_id")]
SPECS += [
    ("deadline", {"runnable_at": 10.0, "deadline": 9.999}),
    ("trigger", {"trigger": ""}),
    ("trigger", {"trigger": None}),
    ("trigger", {"trigger": 5}),
    ("trigger", {"trigger": b"cron"}),
    ("trigger", {"trigger": "x" * (ID_CHARS_MAX + 1)}),
    ("trigger", {"trigger": SURROGATE}),
    ("payload", {"payload": None}),
    ("payload", {"payload": [1]}),
    ("payload", {"payload": "{}"}),
    ("payload", {"payload": {"f": object()}}),
    ("payload", {"payload": {"text": SURROGATE}}),
    ("payload", {"payload": {"text": "x" * (PAYLOAD_BYTES_MAX - len('{"text":""}') + 1)}}),
    ("tags", {"tags": None}),
    ("tags", {"tags": "x"}),
    ("tags", {"tags": ["x"]}),
    ("tags", {"tags": ("",)}),
    ("tags", {"tags": (5,)}),
    ("tags", {"tags": (SURROGATE,)}),
    ("key", {"key": ""}),
    ("key", {"key": 5}),
    ("key", {"key": SURROGATE}),
    ("after", {"after": None}),
    ("after", {"after": QUEUED}),
    ("after", {"after": [QUEUED]}),
    ("after", {"after": (True,)}),
    ("after", {"after": (0,)}),
    ("after", {"after": (1.0,)}),
    ("after", {"after": (-1,)}),  # there is nothing before it in this call
    ("on_failed", {"on_failed": "explode"}),
    ("on_failed", {"on_failed": None}),
    ("max_attempts", {"max_attempts": 0}),
    ("max_attempts", {"max_attempts": True}),
    ("max_attempts", {"max_attempts": 1_001}),
    ("retry_on", {"retry_on": ("exploded",)}),
    ("retry_on", {"retry_on": "crashed"}),
    ("retry_on", {"retry_on": ""}),
    ("retry_on", {"retry_on": None}),
    ("retry_on", {"retry_on": 5}),
    ("backoff", {"backoff": None}),
    ("backoff", {"backoff": 5.0}),
    ("backoff", {"backoff": {"base_s": 5}}),
    ("expected", {"expected": None}),
    ("expected", {"expected": {"tokens": -1}}),
    ("expected", {"expected": {"tokens": True}}),
    ("expected", {"expected": {"tokens": 1.5}}),
    ("expected", {"expected": {"": 1}}),
    ("expected", {"expected": {5: 1}}),
    ("ceiling", {"ceiling": []}),
    ("ceiling", {"ceiling": {"tokens": "5"}}),
    ("draws_on", {"draws_on": "api"}),
    ("draws_on", {"draws_on": None}),
    ("draws_on", {"draws_on": (None,)}),
    ("kind", {"kind": ""}),
    ("kind", {"kind": 5}),
    ("workspace", {"workspace": ""}),
    ("workspace_mode", {"workspace_mode": "alone"}),
    ("workspace_mode", {"workspace_mode": ""}),
    ("affinity", {"affinity": 5}),
    ("parent_id", {"parent_id": True}),
    ("parent_id", {"parent_id": "1"}),
    ("parent_id", {"parent_id": 1.0}),
    ("correlation_id", {"correlation_id": 5}),
    ("causation_id", {"causation_id": ""}),
]


@pytest.mark.parametrize(("field", "wrong"), SPECS, ids=lambda value: str(value)[:40])
def test_a_wrong_field_of_a_spec_is_named_and_nothing_is_written(
    populated: PopulatedWorld, field: str, wrong: dict[str, Any]
) -> None:
    before = populated.everything()
    with pytest.raises(SchedInvalidPayload) as caught:
        spec(**wrong)(populated)
    assert caught.value.code == -32133
    assert caught.value.field is not None
    assert caught.value.field.startswith(field)  # "expected['tokens']" says more than "expected"
    assert populated.everything() == before


CALLS: list[tuple[str, type[RotaError], Call]] = [
    # the agent
    ("enqueue for an unknown agent", UnknownPid, spec(pid=99)),
    ("enqueue for a negative pid", UnknownPid, spec(pid=-1)),
    ("enqueue for the dead", SchedInvalidPayload, spec(pid=DEAD_PID)),
    ("enqueue after nothing", SchedUnknownId, spec(after=(99,))),
    ("enqueue for an unknown parent", SchedUnknownId, spec(parent_id=99)),
    ("enqueue no spec", SchedInvalidPayload, lambda world: world.queue.enqueue({"pid": PID})),  # type: ignore[arg-type]
    ("enqueue many that are one", SchedInvalidPayload, lambda world: world.queue.enqueue_many(ScheduleSpec(PID))),  # type: ignore[arg-type]
    ("enqueue many of None", SchedInvalidPayload, lambda world: world.queue.enqueue_many(None)),  # type: ignore[arg-type]
    # claiming
    ("claim without a worker", SchedInvalidPayload, claim(worker_id="")),
    ("claim for a number", SchedInvalidPayload, claim(worker_id=7)),
    ("claim none", SchedInvalidPayload, claim(max_n=0)),
    ("claim True", SchedInvalidPayload, claim(max_n=True)),
    ("claim 1.0", SchedInvalidPayload, claim(max_n=1.0)),
    ("claim a word", SchedInvalidPayload, claim(max_n="1")),
    ("claim before time", SchedInvalidPayload, claim(now=-1.0)),
    ("claim at no time", SchedInvalidPayload, claim(now=NAN)),
    ("claim at the end of time", SchedInvalidPayload, claim(now=INF)),
    ("claim with a doubtful check", SchedInvalidPayload, claim(admission_check=1)),
    ("claim for less than no time", SchedInvalidPayload, claim(claim_timeout_s=-1)),
    ("claim for ever", SchedInvalidPayload, claim(claim_timeout_s=INF)),
    ("claim for True seconds", SchedInvalidPayload, claim(claim_timeout_s=True)),
    ("claim and wait backwards", SchedInvalidPayload, claim(wait_s=-1)),
    ("claim and wait NaN", SchedInvalidPayload, claim(wait_s=NAN)),
    ("claim with kinds in one word", SchedInvalidPayload, claim(kinds="gpu")),
    ("claim with kinds of None", SchedInvalidPayload, claim(kinds=None)),
    ("claim with an empty kind", SchedInvalidPayload, claim(kinds=("",))),
    ("claim in a numbered life", SchedInvalidPayload, claim(incarnation=5)),
    ("claim in no life", SchedInvalidPayload, claim(incarnation=None)),
    # by force
    ("force without a worker", SchedInvalidPayload, lambda world: world.queue.force_claim(QUEUED, worker_id="")),
    ("force True", SchedInvalidPayload, lambda world: world.queue.force_claim(True, worker_id="w")),
    (
        "force for no time",
        SchedInvalidPayload,
        lambda world: world.queue.force_claim(QUEUED, worker_id="w", claim_timeout_s=NAN),
    ),
    ("force by a number", SchedInvalidPayload, lambda world: world.queue.force_claim(QUEUED, worker_id="w", by=5)),  # type: ignore[arg-type]
    (
        "force with a doubtful check",
        SchedInvalidPayload,
        lambda world: world.queue.force_claim(QUEUED, worker_id="w", admission_check="no"),  # type: ignore[arg-type]
    ),
    # holding on and ending
    ("heartbeat of True", SchedInvalidPayload, lambda world: world.queue.heartbeat(True, world.token)),
    ("heartbeat without a token", SchedInvalidPayload, lambda world: world.queue.heartbeat(RUNNING, None)),  # type: ignore[arg-type]
    ("heartbeat of nothing", SchedUnknownId, lambda world: world.queue.heartbeat(99, 1)),
    ("heartbeat of a ghost", StaleClaim, lambda world: world.queue.heartbeat(RUNNING, world.token + 1)),
    ("heartbeat before time", InvalidPayload, lambda world: world.queue.heartbeat(RUNNING, world.token, now=-1.0)),
    ("complete as nothing", SchedInvalidPayload, lambda world: world.queue.complete(RUNNING, "exploded")),
    ("complete as None", SchedInvalidPayload, lambda world: world.queue.complete(RUNNING, None)),  # type: ignore[arg-type]
    ("complete as a list", SchedInvalidPayload, lambda world: world.queue.complete(RUNNING, ["completed"])),  # type: ignore[arg-type]
    ("complete True", SchedInvalidPayload, lambda world: world.queue.complete(True, "completed")),
    ("complete with True", SchedInvalidPayload, lambda world: world.queue.complete(RUNNING, "completed", token=True)),
    (
        "complete with an object",
        SchedInvalidPayload,
        lambda world: world.queue.complete(RUNNING, "completed", result=object()),
    ),
    (
        "complete with too much",
        SchedInvalidPayload,
        lambda world: world.queue.complete(RUNNING, "completed", result="x" * (RESULT_BYTES_MAX - 1)),
    ),
    (
        "complete with an empty outcome",
        SchedInvalidPayload,
        lambda world: world.queue.complete(RUNNING, "failed", outcome=""),
    ),
    ("complete what waits", SchedIllegalTransition, lambda world: world.queue.complete(QUEUED, "completed")),
    ("complete what ended", SchedIllegalTransition, lambda world: world.queue.complete(DONE, "completed")),
    ("complete what waits, with a token", StaleClaim, lambda world: world.queue.complete(QUEUED, "completed", token=1)),
    ("complete nothing", SchedUnknownId, lambda world: world.queue.complete(99, "completed")),
    ("charge True", LedgerInvalidAmount, lambda world: world.queue.charge(RUNNING, {"tokens": True})),
    ("charge less than nothing", LedgerInvalidAmount, lambda world: world.queue.charge(RUNNING, {"tokens": -1})),
    ("charge a word", LedgerInvalidAmount, lambda world: world.queue.charge(RUNNING, "tokens")),  # type: ignore[arg-type]
    ("charge what waits", StaleClaim, lambda world: world.queue.charge(QUEUED, {"tokens": 1})),
    ("charge nothing", SchedUnknownId, lambda world: world.queue.charge(99, {"tokens": 1})),
    ("charge by a ghost", StaleClaim, lambda world: world.queue.charge(RUNNING, {"tokens": 1}, token=1)),
    ("take over by a number", SchedInvalidPayload, lambda world: world.queue.take_over(5, "life")),  # type: ignore[arg-type]
    ("take over in no life", SchedInvalidPayload, lambda world: world.queue.take_over("worker", None)),  # type: ignore[arg-type]
    ("sweep before time", InvalidPayload, lambda world: world.queue.gc_expired(now=-1.0)),
    ("sweep at no time", InvalidPayload, lambda world: world.queue.gc_expired(now=NAN)),
    ("upkeep at no time", InvalidPayload, lambda world: world.queue.upkeep(now=INF)),
    # changing what waits
    ("cancel what runs", SchedIllegalTransition, lambda world: world.queue.cancel(RUNNING)),
    ("cancel what ended", SchedIllegalTransition, lambda world: world.queue.cancel(DONE)),
    ("cancel nothing", SchedUnknownId, lambda world: world.queue.cancel(99)),
    ("cancel True", SchedInvalidPayload, lambda world: world.queue.cancel(True)),
    ("change what runs", SchedIllegalTransition, lambda world: world.queue.change(RUNNING, priority=5)),
    ("change to True", SchedInvalidPayload, lambda world: world.queue.change(QUEUED, priority=True)),
    ("change to no time", SchedInvalidPayload, lambda world: world.queue.change(QUEUED, runnable_at=NAN)),
    ("change to before time", SchedInvalidPayload, lambda world: world.queue.change(QUEUED, deadline=-1.0)),
    ("ask what ended to stop", SchedIllegalTransition, lambda world: world.queue.request_cancel(DONE)),
    ("ask by a number", SchedInvalidPayload, lambda world: world.queue.request_cancel(RUNNING, by=5)),  # type: ignore[arg-type]
    (
        "cancel by filter for a number",
        SchedInvalidPayload,
        lambda world: world.queue.cancel_where(EntryFilter(), reason=5),  # type: ignore[arg-type]
    ),
    ("cancel by no filter", SchedInvalidPayload, lambda world: world.queue.cancel_where({"pid": PID})),  # type: ignore[arg-type]
    ("retry by no filter", SchedInvalidPayload, lambda world: world.queue.retry_where("failed")),  # type: ignore[arg-type]
    # looking
    ("get True", SchedInvalidPayload, lambda world: world.queue.get(True)),
    ("get a word", SchedInvalidPayload, lambda world: world.queue.get("1")),  # type: ignore[arg-type]
    ("get too much", SchedInvalidPayload, lambda world: world.queue.get(2**63)),
    ("get nothing", SchedUnknownId, lambda world: world.queue.get(99)),
    ("list a state that is none", SchedInvalidStateFilter, lambda world: world.queue.list(state="bogus")),
    ("list a numbered state", SchedInvalidStateFilter, lambda world: world.queue.list(state=5)),  # type: ignore[arg-type]
    ("list True's", SchedInvalidPayload, lambda world: world.queue.list(pid=True)),
    ("list a list of tags", SchedInvalidPayload, lambda world: world.queue.list(tag=["x"])),
    ("list by a numbered trigger", SchedInvalidPayload, lambda world: world.queue.list(trigger=5)),
    ("list by an exit kind that is none", SchedInvalidPayload, lambda world: world.queue.list(exit_kind="exploded")),
    ("wait backwards", SchedInvalidPayload, lambda world: world.queue.wait(QUEUED, -1.0)),
    ("wait NaN", SchedInvalidPayload, lambda world: world.queue.wait(QUEUED, NAN)),
    # agents
    ("an agent without a name", InvalidPayload, lambda world: world.agents.create("")),
    ("an agent with a number", InvalidPayload, lambda world: world.agents.create(5)),  # type: ignore[arg-type]
    ("an agent with half a letter", InvalidPayload, lambda world: world.agents.create(SURROGATE)),
    ("an agent without a template", InvalidPayload, lambda world: world.agents.create("a", "")),
    ("an agent of True", InvalidPayload, lambda world: world.agents.create("a", parent_pid=True)),
    ("an agent with an unknown parent", UnknownPid, lambda world: world.agents.create("a", parent_pid=99)),
    ("an agent of no project", ProjectUnknown, lambda world: world.agents.create("a", project_id="nowhere")),
    ("an agent of a list", InvalidInput, lambda world: world.agents.create("a", project_id=["lab"])),  # type: ignore[arg-type]
    ("an agent with a list", InvalidPayload, lambda world: world.agents.create("a", metadata=[1])),  # type: ignore[arg-type]
    ("an agent with an object", InvalidPayload, lambda world: world.agents.create("a", metadata={"f": object()})),
    ("an agent with True priority", InvalidPayload, lambda world: world.agents.create("a", priority=True)),
    ("an agent without weight", InvalidPayload, lambda world: world.agents.create("a", weight=0)),
    ("an agent with another intent", InvalidPayload, lambda world: world.agents.create("a", intent="EAT")),
    ("an agent with a cap below none", InvalidPayload, lambda world: world.agents.create("a", max_concurrent=-1)),
    ("an agent that is perhaps re-runnable", InvalidPayload, lambda world: world.agents.create("a", rerunnable="no")),  # type: ignore[arg-type]
    ("get agent True", InvalidPayload, lambda world: world.agents.get(True)),
    ("get an agent by a word", InvalidPayload, lambda world: world.agents.get("1")),  # type: ignore[arg-type]
    ("get an agent too far", InvalidPayload, lambda world: world.agents.get(2**63)),
    ("move an unknown agent", UnknownPid, lambda world: world.agents.transition(99, "RUNNING")),
    ("move somewhere else", InvalidPayload, lambda world: world.agents.transition(PID, "FLYING")),
    ("move to itself", IllegalTransition, lambda world: world.agents.transition(PID, "READY")),
    ("move the dead", IllegalTransition, lambda world: world.agents.transition(DEAD_PID, "READY")),
    ("move for a number", InvalidPayload, lambda world: world.agents.transition(PID, "RUNNING", reason=5)),  # type: ignore[arg-type]
    ("update with an object", InvalidPayload, lambda world: world.agents.update(PID, metadata={"f": object()})),
    ("pause without a name", InvalidPayload, lambda world: world.agents.pause(PID, "")),
    ("pause for a number", InvalidPayload, lambda world: world.agents.pause(PID, "anna", 5)),  # type: ignore[arg-type]
    ("resume an unknown agent", UnknownPid, lambda world: world.agents.resume(99, "anna")),
    ("list agents in no state", InvalidPayload, lambda world: world.agents.list(state="FLYING")),
    ("recover somehow", InvalidPayload, lambda world: world.agents.recover("forget")),  # type: ignore[arg-type]
    ("recover for a number", InvalidPayload, lambda world: world.agents.recover(reason=5)),  # type: ignore[arg-type]
    ("terminate an unknown agent", UnknownPid, lambda world: world.kernel.terminate(99, "failed")),
    ("terminate the dead", IllegalTransition, lambda world: world.kernel.terminate(DEAD_PID, "failed")),
    ("terminate somehow", InvalidPayload, lambda world: world.kernel.terminate(PID, "exploded")),
    # the journal
    ("append for True", InvalidPayload, lambda world: world.journal.append(True, "mine")),
    ("append for a word", InvalidPayload, lambda world: world.journal.append("1", "mine")),  # type: ignore[arg-type]
    ("append for an unknown agent", UnknownPid, lambda world: world.journal.append(99, "mine")),
    ("append a numbered kind", InvalidPayload, lambda world: world.journal.append(None, 5)),  # type: ignore[arg-type]
    ("append a long kind", InvalidPayload, lambda world: world.journal.append(None, "x" * (ID_CHARS_MAX + 1))),
    ("append a kind of ours", InvalidPayload, lambda world: world.journal.append(None, "kernel.sched.enqueued")),
    ("append for a numbered cause", InvalidPayload, lambda world: world.journal.append(None, "mine", causation_id=5)),  # type: ignore[arg-type]
    ("append to no story", InvalidPayload, lambda world: world.journal.append(None, "mine", correlation_id="")),
    ("tail since a word", InvalidPayload, lambda world: world.journal.tail("x")),  # type: ignore[arg-type]
    ("tail since True", InvalidPayload, lambda world: world.journal.tail(True)),
    ("tail since too far", InvalidPayload, lambda world: world.journal.tail(2**64)),
    # ledgers
    ("a check of True", InvalidInput, lambda world: world.ledger.check(True, "tokens", 1)),
    ("a check of an object", InvalidInput, lambda world: world.ledger.check(PID, ["tokens"], 1)),  # type: ignore[arg-type]
    ("a grant for True", InvalidInput, lambda world: world.ledger.update_grant(True, "tokens", 5)),
    ("a ledger of True", InvalidInput, lambda world: world.ledger.get(True)),
    # projects
    ("a project of no name", ProjectInvalid, lambda world: world.projects.create("")),
    ("a project of a number", ProjectInvalid, lambda world: world.projects.create(5)),  # type: ignore[arg-type]
    ("a project without weight", ProjectInvalid, lambda world: world.projects.create("p", weight=0)),
    ("a project with True weight", ProjectInvalid, lambda world: world.projects.create("p", weight=True)),
    ("a project with a cap below none", ProjectInvalid, lambda world: world.projects.create("p", max_concurrent=-1)),
    ("a project with a list", ProjectInvalid, lambda world: world.projects.create("p", metadata=[1])),  # type: ignore[arg-type]
    ("a project with an object", ProjectInvalid, lambda world: world.projects.create("p", metadata={"f": object()})),
    ("a project moved by a number", ProjectInvalid, lambda world: world.projects.move("lab", "pause", by=5)),  # type: ignore[arg-type]
    (
        "a constraint that is perhaps",
        ProjectInvalid,
        lambda world: world.projects.constrain("lab", ProjectConstraint(exclusive="yes")),  # type: ignore[arg-type]
    ),
    (
        "a constraint below none",
        ProjectInvalid,
        lambda world: world.projects.constrain("lab", ProjectConstraint(max_by_kind={"gpu": -1})),
    ),
    ("no constraint", ProjectInvalid, lambda world: world.projects.constrain("lab", None)),  # type: ignore[arg-type]
    ("pause the fleet without a name", ProjectInvalid, lambda world: world.projects.pause_fleet("")),
    ("the fleet paused for a number", ProjectInvalid, lambda world: world.projects.pause_fleet("anna", 5)),  # type: ignore[arg-type]
    ("a workspace without a path", ProjectInvalid, lambda world: world.projects.add_workspace("w", "lab", "")),
    (
        "a workspace from nowhere",
        ProjectInvalid,
        lambda world: world.projects.add_workspace("w", "lab", "/w", source="x"),
    ),
    ("an unknown workspace", WorkspaceUnknown, lambda world: world.projects.workspace("w")),
    # contexts
    ("context True", ContextInvalid, lambda world: world.contexts.get(True)),
    ("no context", ContextUnknown, lambda world: world.contexts.charge(99, 1)),
    ("charge a context True", ContextInvalid, lambda world: world.contexts.charge(world.context_id, True)),
    ("charge a context less than nothing", ContextInvalid, lambda world: world.contexts.charge(world.context_id, -1)),
    ("throttle backwards", ContextInvalid, lambda world: world.contexts.throttle("api", -1.0)),
    ("throttle for ever", ContextInvalid, lambda world: world.contexts.throttle("api", INF)),
    ("throttle by a word", ContextInvalid, lambda world: world.contexts.throttle("api", 5.0, by="x")),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("error", "call"), [pytest.param(kind, call, id=name) for name, kind, call in CALLS])
def test_bad_input_gets_its_own_error_and_nothing_is_written(
    populated: PopulatedWorld, error: type[RotaError], call: Call
) -> None:
    before = populated.everything()
    with pytest.raises(error) as caught:
        call(populated)
    assert caught.value.code == error.code or issubclass(type(caught.value), error)
    assert str(caught.value)
    assert populated.everything() == before


def test_what_lies_exactly_at_a_limit_is_taken(populated: PopulatedWorld) -> None:
    text = "x" * (PAYLOAD_BYTES_MAX - len('{"text":""}'))
    sched_id = populated.put(
        PID,
        payload={"text": text},
        trigger="t" * ID_CHARS_MAX,
        max_attempts=1_000,
        priority=2**63 - 1,
        runnable_at=START,
        deadline=START,
    )
    entry = populated.queue.get(sched_id)
    assert (entry.payload, entry.priority, entry.deadline) == ({"text": text}, 2**63 - 1, START)
    populated.put(PID, priority=-(2**63))

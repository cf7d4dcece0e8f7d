"""Model classes check their fields when they are created, and name the invalid field."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from rota.errors import ContextInvalid, ProjectInvalid, SchedInvalidPayload
from rota.model.budgets import REFILLS_MAX, CpuIsolationLease, LedgerLine, Refill, SchedulingContext
from rota.model.checks import ID_CHARS_MAX, TAGS_MAX
from rota.model.work import AFTER_MAX, Backoff, Project, ReadyEntry, ScheduleSpec


def test_a_spec_keeps_the_order_and_defaults_of_its_positional_fields() -> None:
    spec = ScheduleSpec(7, 3, 10.0, 20.0, "cron", {"step": 1})
    assert (spec.pid, spec.priority, spec.runnable_at, spec.deadline) == (7, 3, 10.0, 20.0)
    plain = ScheduleSpec(7)
    assert (plain.priority, plain.runnable_at, plain.deadline, plain.trigger, plain.payload) == (
        0,
        0.0,
        None,
        "manual",
        {},
    )


def test_an_entry_keeps_the_order_of_its_positional_fields() -> None:
    assert ReadyEntry.__struct_fields__[:13] == (
        "sched_id",
        "pid",
        "priority",
        "runnable_at",
        "deadline",
        "trigger",
        "payload",
        "state",
        "worker_id",
        "created_at",
        "dispatched_at",
        "completed_at",
        "exit_kind",
    )
    with pytest.raises(TypeError):
        ScheduleSpec(7, 0, 0.0, None, "manual", {}, ("tag",))  # type: ignore[call-arg]


BAD: list[tuple[str, dict[str, Any]]] = [
    ("pid", {"pid": "7"}),
    ("pid", {"pid": True}),
    ("priority", {"priority": 1.5}),
    ("priority", {"priority": False}),
    ("priority", {"priority": 2**63}),
    ("runnable_at", {"runnable_at": -1}),
    ("runnable_at", {"runnable_at": math.nan}),
    ("runnable_at", {"runnable_at": math.inf}),
    ("runnable_at", {"runnable_at": "soon"}),
    ("deadline", {"deadline": math.nan}),
    ("deadline", {"runnable_at": 10.0, "deadline": 9.0}),
    ("trigger", {"trigger": ""}),
    ("trigger", {"trigger": None}),
    ("trigger", {"trigger": "x" * (ID_CHARS_MAX + 1)}),
    ("payload", {"payload": [1]}),
    ("max_attempts", {"max_attempts": 0}),
    ("max_attempts", {"max_attempts": True}),
    ("tags", {"tags": ["list"]}),
    ("tags", {"tags": ("x",) * (TAGS_MAX + 1)}),
    ("after", {"after": (0,)}),
    ("after", {"after": tuple(range(1, AFTER_MAX + 2))}),
    ("expected['tokens']", {"expected": {"tokens": -1}}),
    ("ceiling['tokens']", {"ceiling": {"tokens": 1.0}}),
    ("retry_on", {"retry_on": ("exploded",)}),
    ("on_failed", {"on_failed": "panic"}),
    ("workspace_mode", {"workspace_mode": "half"}),
    ("key", {"key": ""}),
]


@pytest.mark.parametrize(("field", "change"), BAD)
def test_a_bad_field_is_refused_by_name(field: str, change: dict[str, Any]) -> None:
    with pytest.raises(SchedInvalidPayload) as refused:
        ScheduleSpec(**{"pid": 1, **change})
    assert refused.value.field == field
    assert refused.value.code == -32133
    assert f"ScheduleSpec.{field}" in str(refused.value)


def test_fields_at_their_limits_are_taken() -> None:
    ScheduleSpec(
        1,
        2**63 - 1,
        deadline=0.0,
        trigger="x" * ID_CHARS_MAX,
        tags=("x",) * TAGS_MAX,
        after=tuple(range(1, AFTER_MAX + 1)),
        max_attempts=1,
    )


def test_a_spec_survives_json() -> None:
    spec = ScheduleSpec(1, 2, payload={"a": [1, None]}, tags=("x",), backoff=Backoff(base_s=0.5))
    assert msgspec.json.decode(msgspec.json.encode(spec), type=ScheduleSpec) == spec


def test_an_unknown_field_on_the_wire_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"pid": 1, "prio": 3}', type=ScheduleSpec)


def test_a_project_needs_a_name_and_a_positive_share() -> None:
    Project(project_id="a", name="A", weight=1)
    for bad in ({"weight": 0}, {"weight": 1.5}, {"name": ""}, {"max_concurrent": -1}):
        with pytest.raises(ProjectInvalid):
            Project(**{"project_id": "a", "name": "A", **bad})  # type: ignore[arg-type]


def test_at_the_limit_is_within_it_and_one_more_is_over() -> None:
    assert not LedgerLine(1, "tokens", 100, 100, 100).over_limit
    assert LedgerLine(1, "tokens", 101, 100, 100).over_limit


def test_a_context_cannot_promise_more_time_than_there_is() -> None:
    SchedulingContext(context_id=1, budget=100, period=100)
    with pytest.raises(ContextInvalid, match="longer than its period"):
        SchedulingContext(context_id=1, budget=101, period=100)
    SchedulingContext(context_id=1, budget=101, period=100, unit="tokens")  # tokens per period are not time
    with pytest.raises(ContextInvalid, match="at most"):
        SchedulingContext(context_id=1, budget=1, period=1, refills=(Refill(1, 1),) * (REFILLS_MAX + 1))


def test_a_lease_names_at_least_one_core() -> None:
    with pytest.raises(ContextInvalid, match="at least one core"):
        CpuIsolationLease(lease_id=1, owner="a", cores=())

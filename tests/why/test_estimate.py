"""An estimate says what would happen to an entry if it were enqueued now, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rota import store
from rota.clock import ManualClock
from rota.errors import UnknownPid
from rota.kernel import Kernel, ScheduleSpec
from rota.model import reasons
from rota.service.dispatcher import Dispatcher
from rota.service.explanation import estimate, explain


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    made = Kernel(store.open(":memory:", clock=ManualClock(1_000.0)))
    yield made
    made.store.close()


def test_it_says_what_an_explanation_says_after_the_enqueue(kernel: Kernel) -> None:
    dispatcher = Dispatcher(kernel)
    coder = kernel.agents.create("coder")
    for _ in range(3):
        kernel.queue.enqueue(ScheduleSpec(coder))
    guess = estimate(dispatcher, ScheduleSpec(coder))
    asked = explain(dispatcher, kernel.queue.enqueue(ScheduleSpec(coder)))
    assert (guess.position, guess.ordering, guess.estimate) == (asked.position, asked.ordering, asked.estimate)
    assert guess.position == 4
    assert (guess.sched_id, guess.agent) == (0, "coder")


def test_a_higher_priority_is_estimated_to_be_first(kernel: Kernel) -> None:
    coder = kernel.agents.create("coder")
    kernel.queue.enqueue(ScheduleSpec(coder))
    assert estimate(Dispatcher(kernel), ScheduleSpec(coder, priority=5)).starts


def test_a_delay_is_when_it_starts(kernel: Kernel) -> None:
    coder = kernel.agents.create("coder")
    found = estimate(Dispatcher(kernel), ScheduleSpec(coder, delay_s=60))
    assert found.estimate.starts_at == 1_060.0
    assert found.status == "waiting"


def test_changes_name_the_agent_and_never_the_entry_that_does_not_exist(kernel: Kernel) -> None:
    coder = kernel.agents.create("coder")
    kernel.agents.pause(coder, "ann")
    found = estimate(Dispatcher(kernel), ScheduleSpec(coder))
    assert [type(reason) for reason in found.blocking] == [reasons.PausedByOperator]
    assert [change.verb for change in found.changes] == ["agents.resume"]
    kernel.agents.resume(coder, "ann")
    kernel.queue.enqueue(ScheduleSpec(coder, priority=1))
    assert estimate(Dispatcher(kernel), ScheduleSpec(coder)).changes == ()


def test_it_needs_a_slot_of_the_entrys_kind(kernel: Kernel) -> None:
    coder = kernel.agents.create("coder")
    assert estimate(Dispatcher(kernel), ScheduleSpec(coder, kind="gpu")).starts


def test_nothing_is_left_behind(kernel: Kernel) -> None:
    coder = kernel.agents.create("coder")
    cursor = kernel.journal.cursor()
    estimate(Dispatcher(kernel), ScheduleSpec(coder, tags=("a",), key="once"))
    assert kernel.journal.cursor() == cursor
    assert kernel.queue.list() == ([], 0)
    assert kernel.queue.enqueue(ScheduleSpec(coder, key="once")) == 1


def test_an_agent_that_does_not_exist_is_refused(kernel: Kernel) -> None:
    with pytest.raises(UnknownPid):
        estimate(Dispatcher(kernel), ScheduleSpec(7))

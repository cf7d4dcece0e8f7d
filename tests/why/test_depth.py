"""The cost of an explanation in SQLite steps, with few entries waiting and with a hundred thousand."""

from __future__ import annotations

import pytest

from rota import store
from rota.clock import ManualClock
from rota.kernel import Kernel, ScheduleSpec
from rota.model.reasons import Outranked
from rota.policy import registry
from rota.service.dispatcher import Dispatcher
from rota.service.explanation import LOOK_MAX, explain
from tests.kernel_proof.test_statement_cost import steps

START_AT = 1_000.0
AGENTS = 20
BATCH = 10_000


def crowd(count: int) -> tuple[Kernel, int]:
    """Enqueue entries of many agents, and one after all of them in strict order."""
    kernel = Kernel(store.open(":memory:", clock=ManualClock(START_AT)))
    kernel.projects.create("p")
    pids = [kernel.agents.create(f"a{at}", project_id="p" if at % 2 else None) for at in range(AGENTS)]
    for start in range(0, count, BATCH):
        specs = [ScheduleSpec(pids[at % AGENTS], 1) for at in range(start, min(count, start + BATCH))]
        kernel.queue.enqueue_many(specs)
    return kernel, kernel.queue.enqueue(ScheduleSpec(pids[0]))


def measured(count: int) -> dict[str, int]:
    kernel, last = crowd(count)
    counted: dict[str, int] = {}
    for policy in registry.names():
        api = Dispatcher(kernel, policy)
        api.claim("w")  # the first claim creates the index of this policy
        counted[policy] = steps(kernel, lambda api=api: explain(api, last))  # type: ignore[misc]
    kernel.store.close()
    return counted


@pytest.mark.only_on("memory", "file", reason="it counts SQLite's steps")
def test_the_cost_does_not_grow_with_the_number_of_entries() -> None:
    few, many = measured(3_000), measured(100_000)
    assert {policy: (few[policy], many[policy]) for policy in few if many[policy] > 1.25 * few[policy] + 25} == {}


@pytest.mark.parametrize("count", [LOOK_MAX - 1, LOOK_MAX, LOOK_MAX + 1])
def test_a_position_is_searched_up_to_a_limit(count: int) -> None:
    """The claim takes one entry, and `LOOK_MAX` after it are examined, including the entry itself."""
    kernel, last = crowd(count)
    explanation = explain(Dispatcher(kernel), last)
    (reason,) = explanation.ordering
    assert isinstance(reason, Outranked)
    assert (reason.ahead, reason.at_least) == (min(count, LOOK_MAX + 1), count > LOOK_MAX)
    assert explanation.position == (None if count > LOOK_MAX else count + 1)
    kernel.store.close()

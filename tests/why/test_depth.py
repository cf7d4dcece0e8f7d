"""How much work an explanation is: the steps SQLite takes, with few entries waiting and with a hundred thousand."""

from __future__ import annotations

import pytest

from rota import store
from rota.clock import ManualClock
from rota.kernel import Kernel, ScheduleSpec
from rota.model.reasons import Outranked
from rota.policy import registry
from rota.service.dispatcher import Dispatcher
from rota.service.explain import LOOK_MAX, explain
from tests.kernel_proof.test_depth import steps

START_AT = 1_000.0
AGENTS = 20
BATCH = 10_000


def crowd(count: int) -> tuple[Kernel, int]:
    """So many entries of many agents, and one behind them all in strict order."""
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
        desk = Dispatcher(kernel, policy)
        desk.claim("w")  # whoever comes first makes the index that this policy asks by
        counted[policy] = steps(kernel, lambda desk=desk: explain(desk, last))  # type: ignore[misc]
    kernel.store.close()
    return counted


def test_it_takes_no_more_steps_with_a_hundred_thousand_entries_than_with_a_few_thousand() -> None:
    few, many = measured(3_000), measured(100_000)
    assert {policy: (few[policy], many[policy]) for policy in few if many[policy] > 1.25 * few[policy] + 25} == {}


@pytest.mark.parametrize("count", [LOOK_MAX - 1, LOOK_MAX, LOOK_MAX + 1])
def test_a_position_is_looked_for_up_to_a_limit_and_beyond_it_is_at_least_that(count: int) -> None:
    """One entry is the claim's own, `LOOK_MAX` are looked at behind it, the entry itself among them."""
    kernel, last = crowd(count)
    told = explain(Dispatcher(kernel), last)
    (reason,) = told.ordering
    assert isinstance(reason, Outranked)
    assert (reason.ahead, reason.at_least) == (min(count, LOOK_MAX + 1), count > LOOK_MAX)
    assert told.position == (None if count > LOOK_MAX else count + 1)
    kernel.store.close()

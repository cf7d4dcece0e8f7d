"""`kernel.usage.report` and the prices on the wire, and what a caller sees that is bound to projects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rota import store
from rota.clock import ManualClock
from rota.errors import Forbidden
from rota.kernel import Kernel, ScheduleSpec
from rota.model.prices import ModelPrice
from rota.rpc.authorization import Principal
from rota.rpc.handlers import RpcHandlers
from rota.service.dispatcher import Dispatcher

LAB = Principal(name="token:lab", scope="read", projects=frozenset({"lab"}))


@pytest.fixture
def handlers() -> Iterator[RpcHandlers]:
    """A server whose projects lab and shop have each run once."""
    kernel = Kernel(store.open(":memory:", clock=ManualClock(1_000.0)))
    for project_id, tokens in (("lab", 5), ("shop", 70)):
        kernel.projects.create(project_id)
        kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("coder", project_id=project_id)))
        (entry,) = kernel.queue.claim(worker_id="w")
        kernel.queue.charge(entry.sched_id, {"tokens": tokens}, token=entry.token, model="gpt-x")
        kernel.queue.complete(entry.sched_id, "completed", token=entry.token)
    yield RpcHandlers(kernel, Dispatcher(kernel))
    kernel.store.close()


def test_a_report_over_the_wire(handlers: RpcHandlers) -> None:
    report = handlers.call("kernel.usage.report", by=("agent", "model"))
    assert [(line.project_id, line.agent, line.model, line.tokens) for line in report.lines] == [
        ("lab", "coder", "gpt-x", 5),
        ("shop", "coder", "gpt-x", 70),
    ]
    assert report.total.runs == 2


def test_a_bound_token_sees_its_own_projects_only(handlers: RpcHandlers) -> None:
    for params in ({"by": ("agent",)}, {"by": ("model", "day")}, {"by": ()}, {"by": ("project",), "agent": "coder"}):
        report = handlers.execute_by_name("kernel.usage.report", params, LAB)
        assert report.total.tokens == 5
        assert sum(line.tokens for line in report.lines) == 5
    assert handlers.execute_by_name("kernel.usage.report", {"project_id": "shop"}, LAB).lines == []


def test_prices_are_read_by_all_and_set_by_operators(handlers: RpcHandlers) -> None:
    handlers.call("kernel.usage.set_prices", prices={"gpt-x": ModelPrice(input_micro=1, output_micro=2)})
    assert handlers.execute_by_name("kernel.usage.prices", {}, LAB).prices["gpt-x"].output_micro == 2
    with pytest.raises(Forbidden):
        handlers.execute_by_name("kernel.usage.set_prices", {"prices": {}}, LAB)

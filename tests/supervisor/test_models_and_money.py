"""A run that names a model: its charges say so, and tokens get their cost from the fleet's prices."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.errors import InvalidInput
from rota.model.prices import ModelPrice
from tests.supervisor.world import World


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


PRICES = {"gpt-x": ModelPrice(input_micro=2_500_000, output_micro=10_000_000)}


def test_the_cost_is_computed_where_the_program_gives_none(world: World) -> None:
    world.rota.api.usage.set_prices(PRICES)
    left: list[Any] = []

    @world.rota.agent(budget={"cost_micro": 1_000_000})
    def writer(ctx: Any) -> None:
        left.append(ctx.charge(input_tokens=1_000, output_tokens=200, model="gpt-x"))
        left.append(ctx.charge(tokens=5, cost_micro=500, model="gpt-x"))

    writer.enqueue()
    world.rota.run(until_idle=True)
    assert [each["cost_micro"] for each in left] == [995_500, 995_000]
    (line,) = world.rota.usage("agent", "model").lines
    assert (line.agent, line.model, line.runs, line.tokens, line.cost_micro) == ("writer", "gpt-x", 1, 1_205, 5_000)
    assert (line.input_tokens, line.output_tokens) == (1_000, 200)


def test_dollars_in_python(world: World) -> None:
    left: list[Any] = []

    @world.rota.agent(budget={"usd": 1.10}, ceiling={"usd": 0.5})
    def writer(ctx: Any) -> None:
        left.append(ctx.charge(usd=0.07))

    writer.enqueue()
    world.rota.run(until_idle=True)
    assert left == [{"cost_micro": 430_000}]
    world.rota.project("lab", budget={"usd": 3})
    assert [line.limit for line in world.rota.api.ledger.budgets()] == [3_000_000]
    with pytest.raises(InvalidInput, match="more than six digits"):
        world.rota.project("lab", budget={"usd": 0.0000001})
    with pytest.raises(InvalidInput, match="are the same"):
        world.rota.project("lab", budget={"usd": 1, "cost_micro": 1})


def test_an_unknown_model_is_said_once_in_the_log(world: World, tmp_path: Path) -> None:
    world.rota.api.usage.set_prices(PRICES)

    @world.rota.agent()
    def writer(ctx: Any) -> None:
        for _ in range(3):
            ctx.charge(input_tokens=10, model="gpt-y")

    writer.enqueue()
    world.rota.run(until_idle=True, logs=str(tmp_path))
    (log,) = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert log.count("no price for model gpt-y") == 1
    assert world.rota.usage().total.tokens == 30


def test_a_computed_cost_counts_against_the_ceiling(world: World) -> None:
    world.rota.api.usage.set_prices(PRICES)

    @world.rota.agent(ceiling={"cost_micro": 4_000})
    def greedy(ctx: Any) -> None:
        ctx.charge(output_tokens=500, model="gpt-x")
        ctx.raise_if_cancelled()

    job = greedy.enqueue()
    world.rota.run(until_idle=True)
    assert job.entry().outcome == "over_budget"


PRINTS = """
import json
print(json.dumps({"model": "%s", "usage": {"prompt_tokens": 1000, "completion_tokens": 200}}))
"""


def test_the_usage_that_a_program_prints_is_of_the_model_that_it_names(world: World) -> None:
    world.rota.api.usage.set_prices(PRICES)
    for model in ("gpt-x", "gpt-y"):
        world.rota.command(model, [sys.executable, "-c", PRINTS % model], usage="generic").enqueue()
    world.rota.run(until_idle=True)
    known, unknown = world.rota.usage("model").lines
    assert (known.model, known.tokens, known.cost_micro, known.runs) == ("gpt-x", 1_200, 4_500, 1)
    assert known.cpu_ms > 0
    assert (unknown.model, unknown.tokens, unknown.cost_micro) == ("gpt-y", 1_200, 0)
    assert "no price for model gpt-y" in world.rota.job(2).result()["advisories"][0]


def test_an_ndjson_agent_names_the_model(world: World, tmp_path: Path) -> None:
    program = tmp_path / "agent.py"
    program.write_text(
        "from rota.agent import connect\nwith connect() as run:\n    run.charge(input_tokens=1000, model='gpt-x')\n"
    )
    world.rota.api.usage.set_prices(PRICES)
    world.rota.command("talker", [sys.executable, str(program)], ndjson=True).enqueue()
    world.rota.run(until_idle=True)
    (line,) = world.rota.usage("model").lines
    assert (line.model, line.tokens, line.cost_micro, line.failures) == ("gpt-x", 1_000, 2_500, 0)

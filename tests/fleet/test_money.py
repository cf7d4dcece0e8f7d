"""A fleet file with money: budgets in dollars, prices of models, alerts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rota.errors import FleetInvalid
from rota.fleet.agent_settings import SETTINGS_KEY
from rota.fleet.config.plan import plan_fleet
from rota.fleet.config.tables import fleet_schema
from rota.model.prices import ModelPrice
from tests.fleet.support import FleetHarness

FILE = """
store = ":memory:"
scheduling = {budget = {usd = 100}, alerts = [0.9]}

[prices."gpt-x"]
input_per_million = 2.50
output_per_million = 10
cached_input_per_million = 0.25

[projects.lab]
budget = {usd = 5.10, tokens = 1_000}
alerts = [1.0, 0.5]

[agents.coder]
project = "lab"
command = "true"
budget = {usd = 20}
ceiling = {usd = 0.29}
expected = {usd = 0.07}
"""


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[FleetHarness]:
    made = FleetHarness(tmp_path)
    yield made
    made.store.close()


def test_dollars_are_exact_millionths_in_the_store(harness: FleetHarness) -> None:
    harness.apply(FILE)
    budgets = {(line.owner, line.dim): (line.limit, line.alerts) for line in harness.api.ledger.budgets()}
    assert budgets == {
        ("*", "cost_micro"): (100_000_000, (0.9,)),
        ("lab", "cost_micro"): (5_100_000, (0.5, 1.0)),
        ("lab", "tokens"): (1_000, (0.5, 1.0)),
    }
    agent = harness.agent("coder")
    (line,) = harness.api.ledger.get(agent.pid)
    assert (line.dim, line.granted, line.alerts) == ("cost_micro", 20_000_000, (0.8, 1.0))
    settings = agent.metadata[SETTINGS_KEY]
    assert (settings["ceiling"], settings["expected"]) == ({"cost_micro": 290_000}, {"cost_micro": 70_000})


def test_prices_are_applied_changed_and_removed(harness: FleetHarness) -> None:
    assert "price gpt-x created" in harness.apply_messages(FILE)
    assert harness.api.usage.prices() == {
        "gpt-x": ModelPrice(input_micro=2_500_000, output_micro=10_000_000, cached_input_micro=250_000)
    }
    assert harness.apply_messages(FILE) == []
    changed = harness.apply_messages(FILE.replace("= 10\n", "= 12\n"))
    assert changed == ["price gpt-x changed: output_micro 10000000 → 12000000"]
    harness.api.usage.set_prices({"theirs": ModelPrice(input_micro=1, output_micro=1)})
    renamed = FILE.replace('"gpt-x"', '"gpt-y"')
    assert harness.apply_messages(renamed) == ["price gpt-y created", "price gpt-x removed"]
    assert sorted(harness.api.usage.prices()) == ["gpt-y", "theirs"]


def test_changed_alerts_are_applied(harness: FleetHarness) -> None:
    harness.apply(FILE)
    changed = harness.apply_messages(
        FILE.replace("[1.0, 0.5]", "[0.5]").replace("[agents.coder]", "[agents.coder]\nalerts = []")
    )
    assert changed == [
        "budget lab tokens changed: alerts [0.5,1.0] → [0.5]",
        "budget lab cost_micro changed: alerts [0.5,1.0] → [0.5]",
        "grant coder cost_micro changed: alerts [0.8,1.0] → []",
    ]


def test_all_problems_are_found_at_once(harness: FleetHarness) -> None:
    wrong = (
        FILE.replace("= 2.50", "= 2.5000001")
        .replace("{usd = 5.10,", "{usd = -1,")
        .replace("[1.0, 0.5]", "[0]")
        .replace("{usd = 20}", "{usd = 0}")
        .replace("{usd = 0.29}", "{usd = 0.29, cost_micro = 5}")
        .replace("{usd = 0.07}", '{usd = "7"}')
    )
    with pytest.raises(FleetInvalid) as found:
        harness.fleet(wrong)
    dollars = "expected dollars, 0 or more, with up to six digits after the point"
    assert sorted(found.value.data["problems"]) == [
        "agents.coder.budget.usd: expected more than 0, found 0",
        "agents.coder.ceiling.usd: is the same budget as cost_micro; keep one of them",
        f'agents.coder.expected.usd: {dollars}, found "7"',
        f"prices.gpt-x.input_per_million: {dollars}, found 2.5000001",
        "projects.lab.alerts[0]: expected a number above 0 and at most 10, found 0",
        f"projects.lab.budget.usd: {dollars}, found -1",
    ]


def test_the_plan_shows_prices(harness: FleetHarness) -> None:
    plan = plan_fleet(harness.fleet(FILE), harness.clock.now())
    (row,) = plan.prices
    assert (row.model, row.input_micro, row.cached_input_micro, row.output_micro) == (
        "gpt-x",
        2_500_000,
        250_000,
        10_000_000,
    )
    assert "cost_micro" in msgspec.json.encode(plan).decode()


def test_editors_know_usd(harness: FleetHarness) -> None:
    del harness
    schema = fleet_schema()["$defs"]
    for table in ("AgentTable", "ProjectTable", "SchedulingTable"):
        assert schema[table]["properties"]["budget"]["properties"]["usd"]["type"] == "number"

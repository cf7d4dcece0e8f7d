"""`rota usage`: the table, its shares and totals, filters, JSON and CSV."""

from __future__ import annotations

from pathlib import Path

import pytest

from rota import store
from rota.clock import ManualClock
from rota.kernel import Kernel, ScheduleSpec
from rota.kernel.run_reports import RunReport
from rota.model.prices import ModelPrice
from rota.service.dispatcher import Dispatcher
from tests.cli.shell import Shell

DAY_S = 86_400.0
START = 20_000 * DAY_S  # 2024-10-04


@pytest.fixture
def used(path: Path) -> None:
    """Two projects with runs on two days, by two models."""
    clock = ManualClock(START)
    kernel = Kernel(store.open(str(path), clock=clock))
    api = Dispatcher(kernel)
    for project_id, name, cost in (("lab", "coder", 3_000_000), ("shop", "writer", 1_000_000)):
        kernel.projects.create(project_id)
        pid = kernel.agents.create(name, project_id=project_id)
        for model, exit_kind in (("gpt-x", "completed"), ("small", "failed")):
            kernel.queue.enqueue(ScheduleSpec(pid))
            clock.advance(10)
            (entry,) = api.claim("w")
            kernel.queue.charge(entry.sched_id, {"tokens": 500, "cost_micro": cost}, token=entry.token, model=model)
            report = RunReport(sched_id=entry.sched_id, token=entry.token or 0, exit_kind=exit_kind, cpu_ms=250)
            api.turn([report], "w")
            clock.advance(DAY_S / 2)
    kernel.retention.prune(events_older_than_s=0, entries_older_than_s=0)
    kernel.store.close()


ALL = ("--since", "2024-10-01")


@pytest.mark.usefixtures("used")
def test_the_table_has_shares_and_a_total(rota: Shell) -> None:
    lab, shop, total = (line.split() for line in rota("usage", *ALL).out.splitlines()[1:])
    assert " ".join(lab) == "lab 2 1 1,000 $6.00 75.0 % 500 ms 10.0 s 10.0 s 10.0 s"
    assert shop[:5] == ["shop", "2", "1", "1,000", "$2.00"]
    assert total[:6] == ["total", "4", "2", "2,000", "$8.00", "100.0"]


@pytest.mark.usefixtures("used")
def test_it_groups_by_any_keys_and_filters(rota: Shell) -> None:
    lines = rota("usage", "--by", "agent,model,day", "--agent", "coder", *ALL, "--json").json["lines"]
    found = [(each["project_id"], each["agent"], each["model"], each["day"], each["runs"]) for each in lines]
    assert found == [("lab", "coder", "gpt-x", "2024-10-04", 1), ("lab", "coder", "small", "2024-10-04", 1)]
    assert [each["failures"] for each in lines] == [0, 1]
    assert rota("usage", "--project", "shop", *ALL, "--json").json["total"]["cost_micro"] == 2_000_000
    assert rota("usage", "--since", "2024-10-04", "--until", "2024-10-04", "--json").json["total"]["runs"] == 2
    assert rota("usage").out == "nothing was used in these days\n"


@pytest.mark.usefixtures("used")
def test_csv_has_stored_amounts(rota: Shell) -> None:
    head, first, _ = rota("usage", "--by", "model", *ALL, "--csv").out.splitlines()
    line = dict(zip(head.split(","), first.split(","), strict=True))
    assert (line["model"], line["runs"], line["cost_micro"], line["wait_p95_ms"]) == ("gpt-x", "2", "4000000", "10000")


def test_an_unknown_key_and_a_date_that_is_none_are_refused(rota: Shell) -> None:
    rota("agents", "create", "bob")
    assert "by must be one of project, agent, model, day" in rota("usage", "--by", "color").err
    assert rota("usage", "--since", "yesterday").code == 2


# --- money -----------------------------------------------------------------------------------------


def test_budgets_are_given_and_shown_in_dollars(rota: Shell) -> None:
    pid = rota("agents", "create", "bob").out.strip()
    assert rota("ledger", "grant", "bob", "usd", "5.00", "--alert", "0.5").out.split()[-5:] == [
        pid, "cost", "$0.00", "$5.00", "$5.00",
    ]  # fmt: skip
    rota("ledger", "charge", "bob", "usd", "2.50")
    (line,) = rota("ledger", "show", "bob", "--json").json["lines"]
    assert (line["dim"], line["used"], line["granted"], line["alerts"]) == ("cost_micro", 2_500_000, 5_000_000, [0.5])
    assert "kernel.budget.alert" in rota("events", "--kind", "kernel.budget.*").out
    assert rota("ledger", "refund", "bob", "usd", "0.50").out.split()[-3:] == ["$2.00", "$5.00", "$5.00"]
    rota("projects", "create", "lab")
    assert (
        rota("ledger", "budget", "project", "usd", "1.5", "--project", "lab").out
        == "cost of project lab: $1.50 per 1d\n"
    )
    assert rota("ledger", "budgets", "--json").json["budgets"][0]["limit"] == 1_500_000
    assert rota("ledger", "budget", "project", "usd", "--project", "lab").out == "cost of project lab: no budget\n"


def test_an_amount_that_is_none_is_refused(rota: Shell) -> None:
    rota("agents", "create", "bob")
    assert "more than six digits" in rota("ledger", "grant", "bob", "usd", "0.0000001").err
    assert "must be a whole number" in rota("ledger", "grant", "bob", "tokens", "5.5").err


def test_a_run_charges_a_model_by_its_price(rota: Shell, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(store.open(str(path)))
    kernel.usage.set_prices({"gpt-x": ModelPrice(input_micro=2_500_000, output_micro=10_000_000)})
    kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("bob")))
    (entry,) = kernel.queue.claim(worker_id="w")
    kernel.store.close()
    monkeypatch.setenv("ROTA_SCHED_ID", str(entry.sched_id))
    monkeypatch.setenv("ROTA_TOKEN", str(entry.token))
    assert rota("charge", "input_tokens=1000", "output_tokens=200", "--model", "gpt-x").code == 0
    assert "no price for model gpt-y" in rota("charge", "input_tokens=5", "--model", "gpt-y").err
    assert rota("charge", "usd=0.01").code == 0
    total = rota("usage", "--json").json["total"]
    assert (total["tokens"], total["cost_micro"]) == (1_205, 14_500)

"""The dry run: who would get what, which budget ends when, and what looks like a mistake."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rota import store
from rota.cli import fleet_plan as door
from rota.clock import ManualClock
from rota.fleet.config.apply import apply
from rota.fleet.config.file import load
from rota.fleet.config.plan import FleetPlan, parts, plan
from rota.fleet.config.tables import schema
from rota.kernel import Kernel
from tests.fleet.office import START, Office

ROOT = Path(__file__).parents[2]
THREE = """
    slots = 6
    [projects.a]
    weight = 3
    [projects.b]
    weight = 2
    [projects.c]
    weight = 1
    [agents.a1]
    project = "a"
    command = "ls"
    [agents.a2]
    project = "a"
    command = "ls"
    weight = 2
    [agents.b1]
    project = "b"
    command = "ls"
    [agents.c1]
    project = "c"
    command = "ls"
"""


def planned(office: Office, text: str) -> FleetPlan:
    return plan(office.fleet(text), START)


def slots(made: FleetPlan) -> dict[str, float | None]:
    return {row.name: row.slots and round(row.slots, 6) for row in made.projects}


def shares(made: FleetPlan) -> dict[str, float | None]:
    return {row.name: row.share and round(row.share, 6) for row in made.agents}


# --- shares ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["eevdf", "wfq", "fair_share"])
def test_a_policy_that_shares_gives_projects_their_weights(office: Office, policy: str) -> None:
    assert slots(planned(office, f"policy = '{policy}'\n" + THREE)) == {"a": 3, "b": 2, "c": 1}


def test_inside_a_project_agents_share_by_their_weights(office: Office) -> None:
    assert shares(planned(office, THREE)) == {"a1": 0.166667, "a2": 0.333333, "b1": 0.333333, "c1": 0.166667}


def test_by_turns_every_agent_gets_the_same(office: Office) -> None:
    made = planned(office, "policy = 'round_robin'\n" + THREE)
    assert slots(made) == {"a": 3, "b": 1.5, "c": 1.5}
    assert set(shares(made).values()) == {0.25}


def test_by_priority_nobody_is_promised_anything(office: Office) -> None:
    made = planned(office, "policy = 'strict'\n" + THREE)
    assert set(slots(made).values()) == {None}
    assert "policy: strict may let unimportant entries wait for ever" in made.warnings


def test_what_a_cap_leaves_goes_to_the_others(office: Office) -> None:
    assert slots(planned(office, THREE.replace("weight = 3", "weight = 3\nmax_concurrent = 1"))) == {
        "a": 1,
        "b": 3.333333,
        "c": 1.666667,
    }


def test_a_project_cannot_have_more_than_its_agents_can_fill(office: Office) -> None:
    capped = THREE.replace('project = "b"', 'project = "b"\nmax_concurrent = 1')
    assert slots(planned(office, capped)) == {"a": 3.75, "b": 1, "c": 1.25}


def test_a_project_without_agents_takes_no_share_and_agents_without_a_project_share_as_one(office: Office) -> None:
    made = planned(office, THREE.replace('project = "c"\n', ""))
    assert slots(made) == {"a": 3, "b": 2, "c": 0.0, "–": 1}


@given(
    whole=st.integers(1, 50),
    weights=st.dictionaries(st.text("abcdef", min_size=1, max_size=1), st.integers(1, 9), min_size=1),
    data=st.data(),
)
def test_parts_use_up_all_that_caps_allow_and_are_fair_to_whoever_is_below_its_cap(
    whole: int, weights: dict[str, float], data: st.DataObject
) -> None:
    caps = {name: data.draw(st.integers(0, 20)) for name in weights if data.draw(st.booleans())}
    given_ = parts(whole, weights, caps)
    assert given_.keys() == weights.keys()
    assert sum(given_.values()) == pytest.approx(min(whole, sum(caps.get(name, whole) for name in weights)))
    assert all(given_[name] <= cap for name, cap in caps.items())
    below = [name for name in weights if given_[name] < caps.get(name, whole)]
    rates = [given_[name] / weights[name] for name in below]
    assert all(rate == pytest.approx(rates[0]) for rate in rates)
    # and nobody who is held back by a cap would have had less without it
    assert all(caps[name] / weights[name] <= max(rates, default=whole) + 1e-9 for name in caps.keys() - set(below))


# --- budgets -----------------------------------------------------------------------------------------

BUDGETED = """
    [scheduling]
    budget = {tokens = 1_000_000}
    [projects.lab]
    budget = {tokens = 12_000, cost_micro = 5}
    [agents.reader]
    project = "lab"
    command = "ls"
    expected = {tokens = 100}
    budget = {tokens = 3_000}
    triggers = [{every = "6m"}]
    [agents.writer]
    project = "lab"
    command = "ls"
    expected = {tokens = 200}
    triggers = [{after = "reader"}]
    [agents.nightly]
    project = "lab"
    command = "ls"
    triggers = [{cron = "0 3 * * *"}]
"""


def test_budgets_end_when_triggered_runs_at_their_expected_cost_have_used_them_up(office: Office) -> None:
    made = planned(office, BUDGETED)
    told = {(row.owner, row.dim): (round(row.use_per_hour, 3), row.told) for row in made.budgets}
    assert told == {
        ("*", "tokens"): (3000.0, "lasts: 72,000 per window"),
        ("lab", "tokens"): (3000.0, "ends in 4.0 h, then waits for its window of 24 h"),
        ("lab", "cost_micro"): (0.0, "no triggered run says what it is expected to use"),
        ("reader", "tokens"): (1000.0, "ends in 3.0 h"),
    }
    ends = {(row.owner, row.dim): row.ends_at for row in made.budgets}
    assert ends["lab", "tokens"] == pytest.approx(START + 4 * 3600)
    assert ends["*", "tokens"] is None


def test_how_often_an_agent_runs_follows_from_its_triggers(office: Office) -> None:
    rates = {row.name: (round(row.runs_per_hour, 2), row.and_more) for row in planned(office, BUDGETED).agents}
    assert rates == {"reader": (10, False), "writer": (10, False), "nightly": (0.04, False)}
    circle = "[agents.a]\ncommand = 'ls'\ntriggers = [{after = 'b'}, {every = '30m'}]\n"
    circle += "[agents.b]\ncommand = 'ls'\ntriggers = [{after = 'a'}]\n[agents.c]\ncommand = 'ls'"
    rates = {row.name: (row.runs_per_hour, row.and_more) for row in planned(office, circle).agents}
    assert rates == {"a": (2, True), "b": (2, True), "c": (0, True)}


def test_with_a_store_what_was_used_counts(office: Office) -> None:
    office.apply(BUDGETED)
    office.desk.ledger.charge(office.agent("reader").pid, "tokens", 1_500)
    made = plan(office.fleet(BUDGETED), office.clock.now(), office.desk)
    told = {(row.level, row.owner, row.dim): (row.used, row.told) for row in made.budgets}
    assert told["agent", "reader", "tokens"] == (1_500, "ends in 1.5 h")
    assert told["project", "lab", "tokens"][0] == 1_500
    assert made.changes == []


def test_next_firings_and_limits_are_listed(office: Office) -> None:
    more = '[limits.api]\ntokens_per_minute = 5\n[agents.x]\ncommand = "ls"\ndraws_on = ["api"]\n'
    made = planned(office, more + BUDGETED)
    (nightly,) = [row for row in made.triggers if row.agent == "nightly"]
    assert (nightly.what, nightly.next_at[0]) == ("cron 0 3 * * * (UTC)", START - START % 86_400 + 86_400 + 3 * 3600)
    assert len(nightly.next_at) == 3
    (limit,) = made.limits
    assert (limit.unit, limit.budget, limit.period_s, limit.drawn_by) == ("tokens", 5, 60, ["x"])


# --- warnings ----------------------------------------------------------------------------------------

A = "[agents.a]\ncommand = 'ls'\nbudget = {tokens = 50}\n"
WARNED = {
    "[agents.a]\ncommand = 'ls'": (
        "agents.a: has no budget, nor has its project or everybody: nothing limits what it may use"
    ),
    A + "max_concurrent = 9": "agents.a.max_concurrent: is 9 and there are 4 slots, so it is never reached",
    A + "max_concurrent = 0": "agents.a.max_concurrent: is 0, so nothing of it ever runs",
    A + "kind = 'gpu'": "agents.a.kind: there is no slot of kind 'gpu', so it waits for another worker",
    A + "expected = {tokens = 51}": "agents.a: a run asks for 51 tokens and its own budget is 50, so it never runs",
    A + "limits = {tokens = 51}": "agents.a: a run asks for 51 tokens and its own budget is 50, so it never runs",
    A + "ceiling = {tokens = 9}\n[scheduling]\nbudget = {tokens = 8}": (
        "agents.a: a run asks for 9 tokens and everybody's budget is 8, so it never runs"
    ),
    A + "triggers = [{after = 'a'}]": "agents.a: a → a runs for ever once it has begun",
    A + "triggers = [{event = 'kernel.run.*'}]": (
        "agents.a.triggers[0].event: kernel.run.* hears kernel.run.started, which its own runs write: it may not end"
    ),
    "[limits.x]\ntokens_per_minute = 5\n" + A: "limits.x: no agent draws on it",
    "[limits.x]\ntokens_per_minute = 5\n" + A + "draws_on = ['x']": (
        "agents.a: draws on x's tokens and says neither expected nor ceiling: none are held back for a run"
    ),
    "[projects.p]\n" + A: "projects.p: has no agents, so its weight counts for nothing",
    "[agents.f]\nfunction = 'm:f'\nbudget = {tokens = 5}\nlimits = {memory = '1GiB'}": (
        "agents.f.limits.memory: a function on a thread cannot be held to it; say isolation = 'process'"
    ),
    "[scheduling]\nmin_task_guarantee = false\n" + A: (
        "scheduling.min_task_guarantee: eevdf has no guarantee to switch off; fair_share has"
    ),
}


@pytest.mark.parametrize("text", WARNED)
def test_what_looks_like_a_mistake_is_said(office: Office, text: str) -> None:
    assert planned(office, text).warnings == [WARNED[text]]


def test_a_circle_of_agents_is_said_once(office: Office) -> None:
    names = ("a", "b", "c")
    text = "[scheduling]\nbudget = {tokens = 5}\n" + "\n".join(
        f"[agents.{name}]\ncommand = 'ls'\ntriggers = [{{after = '{before}'}}]"
        for name, before in zip(names, (names[-1], *names), strict=False)
    )
    assert planned(office, text).warnings == ["agents.c: c → a → b → c runs for ever once it has begun"]


def test_a_project_that_somebody_paused_is_said(office: Office) -> None:
    text = "[projects.p]\nbudget = {tokens = 5}\n[agents.a]\nproject = 'p'\ncommand = 'ls'"
    office.apply(text)
    office.desk.projects.move("p", "pause", by="anna")
    made = plan(office.fleet(text), START, office.desk)
    assert made.warnings == ["projects.p: is paused in the store; nothing of it runs until somebody resumes it"]


def test_the_example_has_nothing_to_look_at_again() -> None:
    fleet = load(ROOT / "examples" / "fleet.toml")
    assert plan(fleet, START).warnings == []


# --- the command -------------------------------------------------------------------------------------


def shown(path: Path, **how: Any) -> str:
    out = io.StringIO()
    door.show(path, clock=ManualClock(START), console=Console(file=out, width=160), **how)
    return out.getvalue()


def test_the_dry_run_makes_no_store(office: Office) -> None:
    office.fleet(BUDGETED)
    text = shown(office.folder / "fleet.toml", as_json=False)
    assert "to be made" in text
    assert "ends in 4.0 h" in text
    assert sorted(path.name for path in office.folder.iterdir()) == ["fleet.toml"]


def test_the_dry_run_reads_a_store_and_leaves_it_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(BUDGETED)
    opened = store.open(str(tmp_path / "rota.db"))
    apply(Kernel(opened), load(tmp_path / "fleet.toml"))
    opened.close()
    before = (tmp_path / "rota.db").read_bytes()
    (tmp_path / "fleet.toml").write_text(BUDGETED.replace("[agents.nightly]", '[agents."[bold]"]'))
    text = shown(tmp_path / "fleet.toml", as_json=False)
    assert "agent [bold] created" in text
    assert "agent nightly paused: no longer in the fleet file" in text
    assert (tmp_path / "rota.db").read_bytes() == before


def test_as_json_it_is_the_plan_whole(office: Office) -> None:
    office.fleet(BUDGETED)
    made = msgspec.json.decode(shown(office.folder / "fleet.toml", as_json=True), type=FleetPlan)
    assert made == plan(load(office.folder / "fleet.toml"), START)


def test_a_long_table_says_how_much_is_left_out(office: Office) -> None:
    office.fleet("\n".join(f"[agents.a{at}]\ncommand = 'ls'" for at in range(door.ROWS_MAX + 3)))
    assert "and 3 more" in shown(office.folder / "fleet.toml", as_json=False)


def test_the_schema_is_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    door.print_schema()
    assert msgspec.json.decode(capsys.readouterr().out) == msgspec.json.decode(msgspec.json.encode(schema()))

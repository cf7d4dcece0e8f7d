"""The store agrees with the file: made once, changed where it differs, and nothing that runs is dropped."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota import store
from rota.errors import FleetInvalid
from rota.fleet.agent_settings import plan_of, spec_for
from rota.fleet.config.apply import BY, FLEET_KEY, NO_GRANT, apply, difference
from rota.fleet.config.changes import NAMES_MAX, Change, Changes
from rota.fleet.config.file import load
from rota.kernel import Kernel, ScheduleSpec
from rota.model.events import FleetReloaded
from tests.fleet.office import Office
from tests.store.world import Caller

FLEET = """
    slots = 2
    [scheduling]
    budget = {tokens = 9000}
    [projects.lab]
    weight = 2.5
    max_concurrent = 3
    budget = {tokens = 5000, cost_micro = 70}
    workspaces = ["rooms/a", "rooms/b"]
    [limits.api]
    requests_per_minute = 60
    tokens_per_minute = 1000
    [agents.reader]
    project = "lab"
    command = "cat"
    priority = 4
    weight = 2
    intent = "DISCOVER"
    max_concurrent = 2
    budget = {tokens = 800}
    draws_on = ["api"]
    workspace = "exclusive"
    [agents.writer]
    command = "tee"
"""


def test_a_file_is_made_real(office: Office) -> None:
    changes = office.apply(FLEET)
    project = office.desk.projects.get("lab")
    assert (project.weight, project.max_concurrent, project.metadata) == (2500, 3, {FLEET_KEY: "fleet"})
    budgets = {(line.owner, line.dim): (line.limit, line.window_s) for line in office.desk.ledger.budgets()}
    assert budgets == {
        ("*", "tokens"): (9000, 86_400),
        ("lab", "tokens"): (5000, 86_400),
        ("lab", "cost_micro"): (70, 86_400),
    }
    rooms = office.desk.projects.workspaces("lab")
    assert [(room.workspace_id, room.path) for room in rooms] == [
        ("lab/rooms/a", str(office.folder / "rooms" / "a")),
        ("lab/rooms/b", str(office.folder / "rooms" / "b")),
    ]
    assert all(Path(room.path).is_dir() for room in rooms)
    limits = {(each.bound_id, each.unit): (each.budget, each.period) for each in office.desk.contexts.list()}
    assert limits == {("api", "requests"): (60, 60_000), ("api", "tokens"): (1000, 60_000)}
    reader = office.agent("reader")
    assert (reader.project_id, reader.priority, reader.weight, reader.intent) == ("lab", 4, 2000, "DISCOVER")
    assert (reader.max_concurrent, reader.template) == (2, "command")
    assert plan_of(reader) == office.fleet(FLEET).agents["reader"].plan(str(office.folder))
    assert [(line.dim, line.granted) for line in office.desk.ledger.get(reader.pid)] == [("tokens", 800)]
    assert changes.of("agent", "created") == ["reader", "writer"]
    assert changes.of("limit", "created") == ["api requests", "api tokens"]


def test_a_second_time_nothing_is_written(office: Office) -> None:
    office.apply(FLEET)
    cursor = office.cursor
    assert not office.apply(FLEET)
    assert office.cursor == cursor


def test_only_what_differs_is_changed_and_said(office: Office) -> None:
    office.apply(FLEET)
    told = office.told(
        FLEET.replace("weight = 2.5", "weight = 1")
        .replace("tokens = 5000, cost_micro = 70", "tokens = 6000")
        .replace("priority = 4", "priority = 5")
        .replace('command = "tee"', 'command = "tee x"')
        .replace("tokens = 800", "tokens = 900")
        .replace("requests_per_minute = 60", "requests_per_minute = 30")
    )
    assert sorted(told) == [
        "agent reader changed: priority 4 → 5",
        'agent writer changed: argv ["tee"] → ["tee","x"]',
        "budget lab cost_micro removed",
        "budget lab tokens changed: limit 5000 → 6000",
        "grant reader tokens changed: granted 800 → 900",
        "limit api requests changed: budget, period_ms [60,60000] → [30,60000]",
        "project lab changed: weight 2500 → 1000",
    ]


def test_an_agent_that_is_gone_is_paused_with_its_entries_and_comes_back(office: Office) -> None:
    office.apply(FLEET)
    pid = office.agent("writer").pid
    waiting = office.desk.queue.enqueue(ScheduleSpec(pid))
    without = FLEET.split("[agents.writer]", maxsplit=1)[0]
    assert office.told(without) == ["agent writer paused: no longer in the fleet file"]
    assert (office.agent("writer").paused_by, office.desk.queue.get(waiting).state) == (BY, "queued")
    assert office.desk.queue.claim(worker_id="w") == []
    assert office.told(without) == []
    assert office.told(FLEET) == ["agent writer resumed"]
    assert [entry.sched_id for entry in office.desk.queue.claim(worker_id="w")] == [waiting]
    assert office.agent("writer").pid == pid


def test_what_somebody_else_paused_stays_paused(office: Office) -> None:
    office.apply(FLEET)
    office.desk.agents.pause(office.agent("writer").pid, "anna")
    without = FLEET.split("[agents.writer]", maxsplit=1)[0]
    assert office.told(without) == []
    assert office.told(FLEET) == []
    assert office.agent("writer").paused_by == "anna"


def test_a_run_goes_on_while_everything_around_it_changes(office: Office) -> None:
    office.apply(FLEET)
    pid = office.agent("reader").pid
    office.desk.queue.enqueue(ScheduleSpec(pid, draws_on=("api",), workspace_mode="exclusive"))
    (run,) = office.desk.queue.claim(worker_id="w")
    changes = office.apply("slots = 1")
    assert changes.of("agent", "paused") == ["reader", "writer"]
    assert changes.of("project", "paused") == ["lab"]
    assert changes.of("limit", "removed") == ["api requests", "api tokens"]
    office.desk.queue.charge(run.sched_id, {"tokens": 5}, token=run.token)
    assert office.desk.queue.complete(run.sched_id, "completed", token=run.token)[1] == "completed"


def test_a_project_that_is_gone_is_paused_and_comes_back(office: Office) -> None:
    office.apply("[projects.lab]")
    assert office.told("") == ["project lab paused: no longer in the fleet file"]
    assert office.told("") == []
    assert office.told("[projects.lab]") == ["project lab resumed"]
    office.desk.projects.move("lab", "pause", by="anna")
    assert office.told("[projects.lab]") == []
    assert office.desk.projects.get("lab").status == "PAUSED"


def test_a_held_workspace_is_taken_away_the_next_time(office: Office) -> None:
    office.apply(FLEET)
    pid = office.agent("reader").pid
    office.desk.queue.enqueue(ScheduleSpec(pid, workspace_mode="exclusive"))
    (run,) = office.desk.queue.claim(worker_id="w")
    smaller = FLEET.replace('["rooms/a", "rooms/b"]', '["rooms/b"]')
    assert office.told(smaller) == ["workspace lab/rooms/a postponed: it is held by a run"]
    office.desk.queue.complete(run.sched_id, "completed", token=run.token)
    assert office.told(smaller) == [f"workspace lab/rooms/a removed: {office.folder / 'rooms' / 'a'} stays on disk"]
    assert office.told(smaller) == []
    assert (office.folder / "rooms" / "a").is_dir()


def test_a_folder_that_was_removed_is_made_again(office: Office) -> None:
    office.apply(FLEET)
    (office.folder / "rooms" / "a").rmdir()
    cursor = office.cursor
    assert office.apply(FLEET).of("workspace", "changed") == ["lab/rooms/a"]
    assert (office.folder / "rooms" / "a").is_dir()
    assert office.cursor == cursor  # the store knew it all along


def test_a_folder_goes_from_one_project_to_another(office: Office) -> None:
    office.apply("[projects.a]\n[projects.b]\nworkspaces = ['w']")
    office.apply("[projects.a]\nworkspaces = ['w']\n[projects.b]")
    assert [each.workspace_id for each in office.desk.projects.workspaces("a")] == ["a/w"]
    assert office.desk.projects.workspaces("b") == []


def test_a_folder_that_cannot_be_made_is_an_error_with_its_key(office: Office) -> None:
    (office.folder / "file").write_text("")
    with pytest.raises(FleetInvalid, match=r"projects\.lab\.workspaces: .*file/w cannot be made: Not a directory"):
        office.apply("[projects.lab]\nworkspaces = ['file/w']")


def test_an_agent_stays_in_its_project_and_nothing_is_written(office: Office) -> None:
    office.apply(FLEET)
    cursor = office.cursor
    with pytest.raises(FleetInvalid) as caught:
        office.apply(
            FLEET.replace('project = "lab"\n', "").replace('workspace = "exclusive"', "").replace("3\n", "9\n")
        )
    assert caught.value.field == "agents.reader.project"
    assert "in project 'lab' and the file says None" in str(caught.value)
    assert office.cursor == cursor


def test_a_grant_that_is_gone_is_lifted_and_its_usage_stays_known(office: Office) -> None:
    office.apply(FLEET)
    pid = office.agent("reader").pid
    office.desk.ledger.charge(pid, "tokens", 300)
    without = FLEET.replace("budget = {tokens = 800}", "")
    assert office.told(without) == ["grant reader tokens removed"]
    (line,) = office.desk.ledger.get(pid)
    assert (line.used, line.granted) == (300, NO_GRANT)
    assert office.told(without) == []
    assert office.told(FLEET) == [f"grant reader tokens changed: granted {NO_GRANT} → 800"]


def test_a_limit_that_is_used_up_keeps_its_debt_through_a_change(office: Office) -> None:
    office.apply(FLEET)
    (tokens,) = [each for each in office.desk.contexts.list() if each.unit == "tokens"]
    office.desk.contexts.charge(tokens.context_id, 1000)
    half = FLEET.replace("tokens_per_minute = 1000", "tokens_per_minute = 500")
    assert office.apply(half).of("limit") == ["api tokens"]
    assert office.apply(half).of("limit") == []  # though it comes into force only at the next refill
    assert office.desk.contexts.get(tokens.context_id).remaining == 0
    office.clock.advance(61)
    office.desk.queue.upkeep()
    assert office.desk.contexts.get(tokens.context_id).budget == 500


def test_what_others_made_in_the_same_store_is_left_alone(office: Office) -> None:
    office.desk.agents.create("helper")
    office.desk.projects.create("theirs")
    office.desk.contexts.create(bound_to="name", bound_id="other", budget=5, period_s=60)
    office.desk.ledger.set_budget("global", "*", "cpu_s", 10)
    office.apply(FLEET)
    office.apply("slots = 1")
    assert office.agent("helper").paused_by is None
    assert office.desk.projects.get("theirs").status == "ACTIVE"
    assert [each.state for each in office.desk.contexts.list() if each.bound_id == "other"] == ["active"]
    assert [line.dim for line in office.desk.ledger.budgets() if line.owner == "*"] == ["cpu_s"]


def test_two_fleets_of_different_names_share_a_store(office: Office) -> None:
    office.apply("name = 'day'\n[agents.a]\ncommand = 'ls'")
    office.apply("name = 'night'\n[agents.b]\ncommand = 'ls'\n[limits.x]\ntokens_per_minute = 5")
    office.apply("name = 'day'\n[agents.a]\ncommand = 'ls'")
    assert (office.agent("a").paused_by, office.agent("b").paused_by) == (None, None)
    assert [each.state for each in office.desk.contexts.list()] == ["active"]


def test_an_agent_that_somebody_made_before_is_taken_over_with_its_pid(office: Office) -> None:
    pid = office.desk.agents.create("writer", metadata={"mine": 1})
    office.apply(FLEET)
    agent = office.agent("writer")
    assert (agent.pid, agent.metadata["mine"], plan_of(agent) is not None) == (pid, 1, True)


def test_an_agent_that_has_ended_is_made_anew(office: Office) -> None:
    office.apply(FLEET)
    pid = office.agent("writer").pid
    office.desk.terminate(pid, "completed")
    assert office.told(FLEET) == ["agent writer created"]
    assert office.agent("writer").pid > pid


def test_asking_for_the_difference_writes_nothing(office: Office) -> None:
    cursor = office.cursor
    assert len(difference(office.desk, office.fleet(FLEET))) == 10
    assert office.cursor == cursor
    assert not (office.folder / "rooms").exists()


def test_two_supervisors_that_apply_one_file_at_once_make_one_fleet(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET)
    fleet = load(tmp_path / "fleet.toml")
    opened = store.open(str(tmp_path / "rota.db"))
    kernels = [Kernel(opened) for _ in range(4)]
    gate = threading.Barrier(len(kernels))

    def one(kernel: Kernel) -> Changes:
        gate.wait()
        return apply(kernel, fleet)

    for caller in [Caller(lambda kernel=kernel: one(kernel)) for kernel in kernels]:  # type: ignore[misc]
        caller.outcome()
    kernel = kernels[0]
    assert [agent.name for agent in kernel.agents.list()[0]] == ["reader", "writer"]
    assert len(kernel.contexts.list()) == 2
    assert len(kernel.ledger.get(kernel.agents.find("reader")[0].pid)) == 1
    assert not apply(kernel, fleet)
    opened.close()


def test_the_fact_of_a_reload_names_what_changed_and_counts_what_is_too_much(office: Office) -> None:
    changes = office.apply(FLEET)
    event_id = office.desk.journal.record(changes.fact())
    (fact,) = office.facts(event_id - 1)
    assert isinstance(fact, FleetReloaded)
    assert fact.changes["agent"] == {"created": ["reader", "writer"]}
    many = Changes(tuple(Change(what="agent", name=f"a{at}", verb="paused") for at in range(NAMES_MAX + 7)))
    assert many.fact().changes["agent"]["paused"][-1] == "and 7 more"


# --- the law ---------------------------------------------------------------------------------------

_AMOUNTS = st.dictionaries(st.sampled_from(["tokens", "cost_micro"]), st.integers(1, 50))
_PROJECT = st.fixed_dictionaries(
    {
        "weight": st.integers(1, 5),
        "budget": _AMOUNTS,
        "workspaces": st.lists(st.sampled_from(["u", "v", "w"]), unique=True, max_size=2),
    },
    optional={"max_concurrent": st.integers(0, 4)},
)
_AGENT = st.fixed_dictionaries(
    {"command": st.sampled_from(["ls", "cat"]), "priority": st.integers(-2, 2), "budget": _AMOUNTS},
    optional={"max_concurrent": st.integers(0, 4), "draws_on": st.just(["api"])},
)
_LIMIT = st.dictionaries(st.sampled_from(["requests_per_minute", "tokens_per_minute"]), st.integers(1, 9), min_size=1)
_FLEET = st.fixed_dictionaries(
    {
        "scheduling": st.fixed_dictionaries(
            {"budget": _AMOUNTS, "rolling_window_hours": st.sampled_from([1, 24])},
        ),
        "projects": st.dictionaries(st.sampled_from(["p"]), _PROJECT),
        "limits": st.fixed_dictionaries({"api": _LIMIT}, optional={"web": _LIMIT}),
        "agents": st.dictionaries(st.sampled_from(["a", "b", "c"]), _AGENT),
    }
)


@given(fleets=st.lists(_FLEET, min_size=1, max_size=4))
def test_whatever_came_before_a_file_applied_is_in_force_and_applied_again_writes_nothing(
    fleets: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    office = Office(tmp_path_factory.mktemp("law"))
    for number, tables in enumerate(fleets):
        text = _toml(tables)
        office.apply(text)
        cursor, fleet = office.cursor, office.fleet(text)
        assert not office.apply(text)
        assert office.cursor == cursor
        for name, agent in fleet.agents.items():
            made = office.agent(name)
            assert (made.priority, made.max_concurrent, made.paused_by) == (agent.priority, agent.max_concurrent, None)
            grants = {line.dim: line.granted for line in office.desk.ledger.get(made.pid) if line.granted != NO_GRANT}
            assert grants == agent.budget
        earlier = {name for tables in fleets[:number] for name in tables["agents"]}
        assert all(office.agent(name).paused_by == BY for name in earlier - fleet.agents.keys())
        budgets = {(line.owner, line.dim): line.limit for line in office.desk.ledger.budgets()}
        wanted = {("*", dim): amount for dim, amount in fleet.scheduling.budget.items()}
        for name, project in fleet.projects.items():
            wanted |= {(name, dim): amount for dim, amount in project.budget.items()}
            rooms = office.desk.projects.workspaces(name)
            assert {room.workspace_id for room in rooms} == {f"{name}/{folder}" for folder in project.workspaces}  # type: ignore[union-attr]
        assert {key: budgets[key] for key in wanted} == wanted
    office.close()


def _toml(value: Any) -> str:
    lines = [f"{key} = {_inline(item)}" for key, item in value.items()]
    return "\n".join(lines)


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_inline(item)}" for key, item in value.items()) + "}"
    return repr(value)


def test_the_window_of_a_file_is_what_fair_share_looks_back_and_what_budgets_count_in(office: Office) -> None:
    text = "[scheduling]\nrolling_window_hours = {hours}\n[projects.lab]\nbudget = {{tokens = 9}}\n"
    office.apply(text.format(hours=6))
    assert office.desk.ledger.share_window() == 6 * 3600
    changes = office.apply(text.format(hours=2))
    assert [str(change) for change in changes] == [
        "scheduling rolling_window_hours changed: window_s 21600.0 → 7200.0",
        "budget lab tokens changed: window_s 21600.0 → 7200.0",
    ]
    assert office.desk.ledger.share_window() == 2 * 3600
    assert [line.window_s for line in office.desk.ledger.budgets()] == [2 * 3600]


def test_the_wait_of_a_file_is_how_long_entries_are_kept_and_its_agents_may_name_a_worker(office: Office) -> None:
    text = "[scheduling]\naffinity_wait_s = '{wait}'\n[agents.a]\ncommand = 'ls'\naffinity = 'box'\n"
    changes = list(office.apply(text.format(wait="5m")))
    assert str(changes[0]) == "scheduling affinity_wait_s changed: wait_s 120.0 → 300.0"
    assert office.desk.queue.affinity_wait() == 300.0
    (agent,) = office.desk.agents.find("a")
    assert spec_for(agent, plan_of(agent), {}).affinity == "box"
    assert list(office.apply(text.format(wait="5m"))) == []
    office.apply("")
    assert office.desk.queue.affinity_wait() == 120.0

"""Applying a fleet file: the store matches it, only differences are written, and runs in progress continue."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota import store
from rota.errors import FleetInvalid
from rota.fleet.agent_settings import settings_of, spec_for
from rota.fleet.config.apply import FLEET_KEY, PAUSED_BY, UNLIMITED, apply_fleet, pending_changes
from rota.fleet.config.changes import NAMES_MAX, FleetChange, FleetChanges
from rota.fleet.config.loader import load_fleet
from rota.kernel import Kernel, ScheduleSpec
from rota.model.events import FleetReloaded
from tests.fleet.support import FleetHarness
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


def test_applying_a_file_creates_everything_in_it(harness: FleetHarness) -> None:
    changes = harness.apply(FLEET)
    project = harness.api.projects.get("lab")
    assert (project.weight, project.max_concurrent, project.metadata) == (2500, 3, {FLEET_KEY: "fleet"})
    budgets = {(line.owner, line.dim): (line.limit, line.window_s) for line in harness.api.ledger.budgets()}
    assert budgets == {
        ("*", "tokens"): (9000, 86_400),
        ("lab", "tokens"): (5000, 86_400),
        ("lab", "cost_micro"): (70, 86_400),
    }
    workspaces = harness.api.projects.workspaces("lab")
    assert [(workspace.workspace_id, workspace.path) for workspace in workspaces] == [
        ("lab/rooms/a", str(harness.folder / "rooms" / "a")),
        ("lab/rooms/b", str(harness.folder / "rooms" / "b")),
    ]
    assert all(Path(workspace.path).is_dir() for workspace in workspaces)
    limits = {(each.bound_id, each.unit): (each.budget, each.period) for each in harness.api.contexts.list()}
    assert limits == {("api", "requests"): (60, 60_000), ("api", "tokens"): (1000, 60_000)}
    reader = harness.agent("reader")
    assert (reader.project_id, reader.priority, reader.weight, reader.intent) == ("lab", 4, 2000, "DISCOVER")
    assert (reader.max_concurrent, reader.template) == (2, "command")
    assert settings_of(reader) == harness.fleet(FLEET).agents["reader"].settings(str(harness.folder))
    assert [(line.dim, line.granted) for line in harness.api.ledger.get(reader.pid)] == [("tokens", 800)]
    assert changes.names("agent", "created") == ["reader", "writer"]
    assert changes.names("limit", "created") == ["api requests", "api tokens"]


def test_applying_a_file_again_writes_nothing(harness: FleetHarness) -> None:
    harness.apply(FLEET)
    cursor = harness.cursor
    assert not harness.apply(FLEET)
    assert harness.cursor == cursor


def test_only_differences_are_changed_and_reported(harness: FleetHarness) -> None:
    harness.apply(FLEET)
    messages = harness.apply_messages(
        FLEET.replace("weight = 2.5", "weight = 1")
        .replace("tokens = 5000, cost_micro = 70", "tokens = 6000")
        .replace("priority = 4", "priority = 5")
        .replace('command = "tee"', 'command = "tee x"')
        .replace("tokens = 800", "tokens = 900")
        .replace("requests_per_minute = 60", "requests_per_minute = 30")
    )
    assert sorted(messages) == [
        "agent reader changed: priority 4 → 5",
        'agent writer changed: argv ["tee"] → ["tee","x"]',
        "budget lab cost_micro removed",
        "budget lab tokens changed: limit 5000 → 6000",
        "grant reader tokens changed: granted 800 → 900",
        "limit api requests changed: budget 60 → 30",
        "project lab changed: weight 2500 → 1000",
    ]


def test_an_agent_removed_from_the_file_is_paused_and_resumed_when_it_returns(harness: FleetHarness) -> None:
    harness.apply(FLEET)
    pid = harness.agent("writer").pid
    waiting = harness.api.queue.enqueue(ScheduleSpec(pid))
    without = FLEET.split("[agents.writer]", maxsplit=1)[0]
    assert harness.apply_messages(without) == ["agent writer paused: no longer in the fleet file"]
    assert (harness.agent("writer").paused_by, harness.api.queue.get(waiting).state) == (PAUSED_BY, "queued")
    assert harness.api.queue.claim(worker_id="w") == []
    assert harness.apply_messages(without) == []
    assert harness.apply_messages(FLEET) == ["agent writer resumed"]
    assert [entry.sched_id for entry in harness.api.queue.claim(worker_id="w")] == [waiting]
    assert harness.agent("writer").pid == pid


def test_an_agent_that_an_operator_paused_stays_paused(harness: FleetHarness) -> None:
    harness.apply(FLEET)
    harness.api.agents.pause(harness.agent("writer").pid, "anna")
    without = FLEET.split("[agents.writer]", maxsplit=1)[0]
    assert harness.apply_messages(without) == []
    assert harness.apply_messages(FLEET) == []
    assert harness.agent("writer").paused_by == "anna"


def test_a_run_continues_while_everything_else_is_removed_from_the_file(harness: FleetHarness) -> None:
    harness.apply(FLEET)
    pid = harness.agent("reader").pid
    harness.api.queue.enqueue(ScheduleSpec(pid, draws_on=("api",), workspace_mode="exclusive"))
    (run,) = harness.api.queue.claim(worker_id="w")
    changes = harness.apply("slots = 1")
    assert changes.names("agent", "paused") == ["reader", "writer"]
    assert changes.names("project", "paused") == ["lab"]
    assert changes.names("limit", "removed") == ["api requests", "api tokens"]
    harness.api.queue.charge(run.sched_id, {"tokens": 5}, token=run.token)
    assert harness.api.queue.complete(run.sched_id, "completed", token=run.token)[1] == "completed"


def test_a_project_removed_from_the_file_is_paused_and_resumed_when_it_returns(harness: FleetHarness) -> None:
    harness.apply("[projects.lab]")
    assert harness.apply_messages("") == ["project lab paused: no longer in the fleet file"]
    assert harness.apply_messages("") == []
    assert harness.apply_messages("[projects.lab]") == ["project lab resumed"]
    harness.api.projects.move("lab", "pause", by="anna")
    assert harness.apply_messages("[projects.lab]") == []
    assert harness.api.projects.get("lab").status == "PAUSED"


def test_cpu_settings_are_stored_with_projects_and_agents_and_follow_the_file(harness: FleetHarness) -> None:
    text = "[projects.p]\n{project}\n[agents.a]\nproject = 'p'\ncommand = 'ls'\n{agent}\n"
    harness.apply(text.format(project="cpu = {weight = 3}", agent="cpu = {quota = '20ms/100ms', class = 'batch'}"))
    assert harness.api.projects.get("p").metadata["cpu"] == {"weight": 3.0}
    (agent,), _total = harness.api.agents.list()
    assert agent.metadata["run"]["cpu"] == {"quota": "20ms/100ms", "class": "batch"}
    harness.apply(text.format(project="", agent=""))
    assert "cpu" not in harness.api.projects.get("p").metadata
    assert "cpu" not in harness.api.agents.get(agent.pid).metadata["run"]


def test_a_held_workspace_is_removed_the_next_time(harness: FleetHarness) -> None:
    harness.apply(FLEET)
    pid = harness.agent("reader").pid
    harness.api.queue.enqueue(ScheduleSpec(pid, workspace_mode="exclusive"))
    (run,) = harness.api.queue.claim(worker_id="w")
    smaller = FLEET.replace('["rooms/a", "rooms/b"]', '["rooms/b"]')
    assert harness.apply_messages(smaller) == ["workspace lab/rooms/a postponed: a run holds it"]
    harness.api.queue.complete(run.sched_id, "completed", token=run.token)
    assert harness.apply_messages(smaller) == [
        f"workspace lab/rooms/a removed: {harness.folder / 'rooms' / 'a'} stays on disk"
    ]
    assert harness.apply_messages(smaller) == []
    assert (harness.folder / "rooms" / "a").is_dir()


def test_a_missing_workspace_folder_is_created_again(harness: FleetHarness) -> None:
    harness.apply(FLEET)
    (harness.folder / "rooms" / "a").rmdir()
    cursor = harness.cursor
    assert harness.apply(FLEET).names("workspace", "changed") == ["lab/rooms/a"]
    assert (harness.folder / "rooms" / "a").is_dir()
    assert harness.cursor == cursor  # the store has the workspace already


def test_a_workspace_folder_can_move_to_another_project(harness: FleetHarness) -> None:
    harness.apply("[projects.a]\n[projects.b]\nworkspaces = ['w']")
    harness.apply("[projects.a]\nworkspaces = ['w']\n[projects.b]")
    assert [each.workspace_id for each in harness.api.projects.workspaces("a")] == ["a/w"]
    assert harness.api.projects.workspaces("b") == []


def test_a_folder_that_cannot_be_created_is_an_error_with_its_key(harness: FleetHarness) -> None:
    (harness.folder / "file").write_text("")
    with pytest.raises(FleetInvalid, match=r"projects\.lab\.workspaces: cannot create .*file/w: Not a directory"):
        harness.apply("[projects.lab]\nworkspaces = ['file/w']")


def test_an_agent_cannot_change_its_project_and_nothing_is_written(harness: FleetHarness) -> None:
    harness.apply(FLEET)
    cursor = harness.cursor
    with pytest.raises(FleetInvalid) as caught:
        harness.apply(
            FLEET.replace('project = "lab"\n', "").replace('workspace = "exclusive"', "").replace("3\n", "9\n")
        )
    assert caught.value.field == "agents.reader.project"
    assert "in project 'lab' in the store and in no project in the file" in str(caught.value)
    assert harness.cursor == cursor


def test_a_removed_grant_becomes_unlimited_and_its_usage_is_kept(harness: FleetHarness) -> None:
    harness.apply(FLEET)
    pid = harness.agent("reader").pid
    harness.api.ledger.charge(pid, "tokens", 300)
    without = FLEET.replace("budget = {tokens = 800}", "")
    assert harness.apply_messages(without) == ["grant reader tokens removed"]
    (line,) = harness.api.ledger.get(pid)
    assert (line.used, line.granted) == (300, UNLIMITED)
    assert harness.apply_messages(without) == []
    assert harness.apply_messages(FLEET) == [f"grant reader tokens changed: granted {UNLIMITED} → 800"]


def test_a_limit_that_is_used_up_stays_used_up_after_a_change(harness: FleetHarness) -> None:
    harness.apply(FLEET)
    (tokens,) = [each for each in harness.api.contexts.list() if each.unit == "tokens"]
    harness.api.contexts.charge(tokens.context_id, 1000)
    half = FLEET.replace("tokens_per_minute = 1000", "tokens_per_minute = 500")
    assert harness.apply(half).names("limit") == ["api tokens"]
    assert harness.apply(half).names("limit") == []  # although it takes effect at the next refill
    assert harness.api.contexts.get(tokens.context_id).remaining == 0
    harness.clock.advance(61)
    harness.api.queue.upkeep()
    assert harness.api.contexts.get(tokens.context_id).budget == 500


def test_what_others_created_in_the_same_store_is_not_touched(harness: FleetHarness) -> None:
    harness.api.agents.create("helper")
    harness.api.projects.create("theirs")
    harness.api.contexts.create(bound_to="name", bound_id="other", budget=5, period_s=60)
    harness.api.ledger.set_budget("global", "*", "cpu_s", 10)
    harness.apply(FLEET)
    harness.apply("slots = 1")
    assert harness.agent("helper").paused_by is None
    assert harness.api.projects.get("theirs").status == "ACTIVE"
    assert [each.state for each in harness.api.contexts.list() if each.bound_id == "other"] == ["active"]
    assert [line.dim for line in harness.api.ledger.budgets() if line.owner == "*"] == ["cpu_s"]


def test_two_fleets_of_different_names_share_a_store(harness: FleetHarness) -> None:
    harness.apply("name = 'day'\n[agents.a]\ncommand = 'ls'")
    harness.apply("name = 'night'\n[agents.b]\ncommand = 'ls'\n[limits.x]\ntokens_per_minute = 5")
    harness.apply("name = 'day'\n[agents.a]\ncommand = 'ls'")
    assert (harness.agent("a").paused_by, harness.agent("b").paused_by) == (None, None)
    assert [each.state for each in harness.api.contexts.list()] == ["active"]


def test_an_agent_that_already_exists_keeps_its_pid_and_metadata(harness: FleetHarness) -> None:
    pid = harness.api.agents.create("writer", metadata={"mine": 1})
    harness.apply(FLEET)
    agent = harness.agent("writer")
    assert (agent.pid, agent.metadata["mine"], settings_of(agent) is not None) == (pid, 1, True)


def test_a_terminated_agent_is_created_again_with_a_new_pid(harness: FleetHarness) -> None:
    harness.apply(FLEET)
    pid = harness.agent("writer").pid
    harness.api.terminate(pid, "completed")
    assert harness.apply_messages(FLEET) == ["agent writer created"]
    assert harness.agent("writer").pid > pid


def test_computing_pending_changes_writes_nothing(harness: FleetHarness) -> None:
    cursor = harness.cursor
    assert len(pending_changes(harness.api, harness.fleet(FLEET))) == 10
    assert harness.cursor == cursor
    assert not (harness.folder / "rooms").exists()


def test_supervisors_that_apply_one_file_concurrently_create_one_fleet(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET)
    fleet = load_fleet(tmp_path / "fleet.toml")
    opened = store.open(str(tmp_path / "rota.db"))
    kernels = [Kernel(opened) for _ in range(4)]
    gate = threading.Barrier(len(kernels))

    def one(kernel: Kernel) -> FleetChanges:
        gate.wait()
        return apply_fleet(kernel, fleet)

    for caller in [Caller(lambda kernel=kernel: one(kernel)) for kernel in kernels]:  # type: ignore[misc]
        caller.outcome()
    kernel = kernels[0]
    assert [agent.name for agent in kernel.agents.list()[0]] == ["reader", "writer"]
    assert len(kernel.contexts.list()) == 2
    assert len(kernel.ledger.get(kernel.agents.find("reader")[0].pid)) == 1
    assert not apply_fleet(kernel, fleet)
    opened.close()


def test_the_reload_event_names_what_changed_up_to_names_max(harness: FleetHarness) -> None:
    changes = harness.apply(FLEET)
    event_id = harness.api.journal.record(changes.to_event())
    (event,) = harness.kernel_events(event_id - 1)
    assert isinstance(event, FleetReloaded)
    assert event.changes["agent"] == {"created": ["reader", "writer"]}
    many = FleetChanges(tuple(FleetChange(what="agent", name=f"a{at}", verb="paused") for at in range(NAMES_MAX + 7)))
    assert many.to_event().changes["agent"]["paused"][-1] == "and 7 more"


# --- property ---------------------------------------------------------------------------------------

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
def test_a_file_is_in_force_after_any_earlier_files_and_applying_it_again_writes_nothing(
    fleets: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    harness = FleetHarness(tmp_path_factory.mktemp("property"))
    for number, tables in enumerate(fleets):
        text = _toml(tables)
        harness.apply(text)
        cursor, fleet = harness.cursor, harness.fleet(text)
        assert not harness.apply(text)
        assert harness.cursor == cursor
        for name, agent in fleet.agents.items():
            made = harness.agent(name)
            assert (made.priority, made.max_concurrent, made.paused_by) == (agent.priority, agent.max_concurrent, None)
            grants = {line.dim: line.granted for line in harness.api.ledger.get(made.pid) if line.granted != UNLIMITED}
            assert grants == agent.budget
        earlier = {name for tables in fleets[:number] for name in tables["agents"]}
        assert all(harness.agent(name).paused_by == PAUSED_BY for name in earlier - fleet.agents.keys())
        budgets = {(line.owner, line.dim): line.limit for line in harness.api.ledger.budgets()}
        wanted = {("*", dim): amount for dim, amount in fleet.scheduling.budget.items()}
        for name, project in fleet.projects.items():
            wanted |= {(name, dim): amount for dim, amount in project.budget.items()}
            workspaces = harness.api.projects.workspaces(name)
            assert isinstance(project.workspaces, tuple)
            ids = {f"{name}/{folder}" for folder in project.workspaces}
            assert {workspace.workspace_id for workspace in workspaces} == ids
        assert {key: budgets[key] for key in wanted} == wanted
    harness.close()


def _toml(value: Any) -> str:
    lines = [f"{key} = {_inline(item)}" for key, item in value.items()]
    return "\n".join(lines)


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_inline(item)}" for key, item in value.items()) + "}"
    return repr(value)


def test_the_rolling_window_applies_to_fair_share_and_to_budgets(harness: FleetHarness) -> None:
    text = "[scheduling]\nrolling_window_hours = {hours}\n[projects.lab]\nbudget = {{tokens = 9}}\n"
    harness.apply(text.format(hours=6))
    assert harness.api.ledger.share_window() == 6 * 3600
    changes = harness.apply(text.format(hours=2))
    assert [str(change) for change in changes] == [
        "scheduling rolling_window_hours changed: window_s 21600.0 → 7200.0",
        "budget lab tokens changed: window_s 21600.0 → 7200.0",
    ]
    assert harness.api.ledger.share_window() == 2 * 3600
    assert [line.window_s for line in harness.api.ledger.budgets()] == [2 * 3600]


def test_the_affinity_wait_and_the_affinity_of_an_agent_are_applied(
    harness: FleetHarness,
) -> None:
    text = "[scheduling]\naffinity_wait_s = '{wait}'\n[agents.a]\ncommand = 'ls'\naffinity = 'box'\n"
    changes = list(harness.apply(text.format(wait="5m")))
    assert str(changes[0]) == "scheduling affinity_wait_s changed: wait_s 120.0 → 300.0"
    assert harness.api.queue.affinity_wait() == 300.0
    (agent,) = harness.api.agents.find("a")
    assert spec_for(agent, settings_of(agent), {}).affinity == "box"
    assert list(harness.apply(text.format(wait="5m"))) == []
    harness.apply("")
    assert harness.api.queue.affinity_wait() == 120.0

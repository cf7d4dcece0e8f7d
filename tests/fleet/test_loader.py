"""Fleet files as they are loaded: defaults, paths, units, agents, and the JSON Schema."""

from __future__ import annotations

import contextlib
import os
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.errors import FleetInvalid
from rota.fleet.agent_settings import SETTINGS_KEY, settings_of, spec_for
from rota.fleet.config.loader import load_fleet
from rota.fleet.config.tables import FleetFile, fleet_schema
from rota.fleet.config.units import Bytes, DurationText, Seconds
from rota.model.work import Agent, Backoff, Intent, Limits
from tests.fleet.support import FleetHarness

ROOT = Path(__file__).parents[2]


def test_an_empty_file_is_a_fleet_with_the_defaults(harness: FleetHarness) -> None:
    fleet = harness.fleet("")
    assert (fleet.title, fleet.slots, fleet.policy_name) == ("fleet", 4, "eevdf")
    assert fleet.store_path == str(harness.folder / "rota.db")
    scheduling = fleet.scheduling
    assert (scheduling.rolling_window_hours, scheduling.min_task_guarantee, float(scheduling.affinity_wait_s)) == (
        24,
        True,
        120,
    )
    assert scheduling.preemption is None


def test_the_example_file_is_valid() -> None:
    fleet = load_fleet(ROOT / "examples" / "fleet.toml")
    assert set(fleet.projects) == {"research", "chores"}
    assert [trigger.trigger.kind for trigger in fleet.agents["sweeper"].triggers] == ["start", "cron"]


def test_paths_are_relative_to_the_folder_of_the_file(harness: FleetHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    fleet = harness.fleet("store = '../x.db'\n[agents.a]\ncommand = 'ls'\ncwd = 'sub'\n[agents.b]\ncommand = 'ls'")
    assert fleet.store_path == str(harness.folder.parent / "x.db")
    assert fleet.agents["a"].settings(fleet.folder).cwd == str(harness.folder / "sub")
    assert fleet.agents["b"].settings(fleet.folder).cwd == str(harness.folder)


def test_store_addresses_that_are_not_paths_are_not_resolved(harness: FleetHarness) -> None:
    assert harness.fleet("store = ':memory:'").store_path == ":memory:"
    assert harness.fleet("store = 'postgresql://host/db'").store_path == "postgresql://host/db"


def test_a_policy_is_a_name_or_a_table_with_parameters(harness: FleetHarness) -> None:
    assert harness.fleet("policy = 'strict'").policy_params == {}
    fair = harness.fleet("policy = 'fair_share'\n[scheduling]\nmin_task_guarantee = false")
    assert fair.policy_params == {"min_guarantee": False}
    explicit = harness.fleet("policy = {name = 'fair_share', params = {min_guarantee = true}}")
    assert explicit.policy_params == {"min_guarantee": True}


def test_slots_are_a_number_or_a_number_per_kind(harness: FleetHarness) -> None:
    assert harness.fleet("slots = 2").slot_kinds == ((), ())
    assert harness.fleet("slots = {any = 1, gpu = 2}").slot_kinds == ((), ("gpu",), ("gpu",))


def test_a_command_is_a_string_or_a_list(harness: FleetHarness) -> None:
    fleet = harness.fleet("""
        [agents.a]
        command = "python 'my script.py' --fast"
        [agents.b]
        ndjson = ["python", "my script.py"]
        [agents.c]
        function = "package.module:work"
        isolation = "process"
        [agents.d]
        command = "image:latest"
        runner = "container"
    """)
    settings = {name: agent.settings("/f") for name, agent in fleet.agents.items()}
    assert (settings["a"].runner, settings["a"].argv) == ("command", ("python", "my script.py", "--fast"))
    assert (settings["b"].runner, settings["b"].argv) == ("ndjson", ("python", "my script.py"))
    assert (settings["c"].runner, settings["c"].function, settings["c"].isolation) == (
        "callable",
        "package.module:work",
        "process",
    )
    assert (settings["d"].runner, settings["d"].argv) == ("container", ("image:latest",))


FULL = """
    [projects.lab]
    workspaces = ["w"]
    [limits.api]
    requests_per_minute = 60
    tokens = {budget = 1000, period_s = "10s"}
    [agents.a]
    project = "lab"
    command = "ls"
    env = {A = "1"}
    pass_env = ["KEY_*"]
    stdin = "none"
    usage = {tokens = "usage.total"}
    payload = {depth = 3, when = 2026-01-01}
    intent = "PROTECT"
    priority = 7
    weight = 2.5
    max_concurrent = 3
    limits = {wall_s = "5m", cpu_s = 30, memory = "1GiB", processes = 9, open_files = 64, log = "2kB", tokens = 500}
    expected = {tokens = 100}
    ceiling = {tokens = 900}
    draws_on = ["api"]
    stop_grace_s = 1.5
    kind = "gpu"
    workspace = "shared"
    [agents.a.restart]
    when = "always"
    attempts = 7
    backoff_s = 2
    backoff_factor = 3
    backoff_cap_s = "1m"
    quarantine_after = 4
    quarantine_s = "1h"
"""


def test_every_key_of_an_agent_is_in_its_settings(harness: FleetHarness) -> None:
    agent = harness.fleet(FULL).agents["a"]
    settings = agent.settings("/f")
    assert settings.limits == Limits(
        wall_s=300, cpu_s=30, memory_bytes=2**30, processes=9, open_files=64, log_bytes=2000, tokens=500
    )
    assert settings.restart.backoff == Backoff(2, 3, 60)
    assert (settings.restart.when, settings.restart.quarantine_after, settings.restart.quarantine_s) == (
        "always",
        4,
        3600,
    )
    assert (settings.max_attempts, settings.stop_grace_s, settings.workspace_mode, settings.kind) == (
        7,
        1.5,
        "shared",
        "gpu",
    )
    assert (settings.env, settings.pass_env, settings.stdin) == ({"A": "1"}, ("KEY_*",), "none")
    assert (agent.weight_units, agent.intent) == (2500, Intent.PROTECT)
    assert settings.payload == {"depth": 3, "when": "2026-01-01"}


def test_settings_survive_being_stored_with_an_agent_and_give_its_entries_their_defaults(harness: FleetHarness) -> None:
    settings = harness.fleet(FULL).agents["a"].settings("/f")
    stored = msgspec.json.decode(msgspec.json.encode({SETTINGS_KEY: settings}))
    agent = Agent(5, None, "a", "command", "READY", None, 0, 0, None, None, None, {}, stored, None, priority=7)
    assert settings_of(agent) == settings
    spec = spec_for(agent, settings, {"depth": 9, "page": "x"})
    assert spec.payload == {"depth": 9, "when": "2026-01-01", "page": "x"}
    assert (spec.priority, spec.ceiling, spec.draws_on, spec.kind) == (7, {"tokens": 500}, ("api",), "gpu")


def test_a_limit_is_per_minute_or_per_given_period(harness: FleetHarness) -> None:
    budgets = harness.fleet(FULL).limits["api"].budgets
    assert {unit: (each.budget, float(each.period_s)) for unit, each in budgets.items()} == {
        "requests": (60, 60),
        "tokens": (1000, 10),
    }


@pytest.mark.parametrize(
    ("written", "seconds"), [("90s", 90), ("5m", 300), ("2h", 7200), ("1.5h", 5400), ("250ms", 0.25), ("2 d", 172_800)]
)
def test_durations_are_written_with_a_unit(written: str, seconds: float) -> None:
    assert Seconds.read(written) == DurationText.read(written) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "wrong", ["", "5", "m", "5 minutes", "-5s", "1e3s", "5M", "99999999999999999d", None, True, [1]]
)
def test_an_invalid_duration_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError):
        Seconds.read(wrong)


@pytest.mark.parametrize(
    ("written", "count"), [("1B", 1), ("2kB", 2000), ("512MiB", 2**29), ("1.5GiB", 3 * 2**29), (7, 7)]
)
def test_amounts_of_memory_are_written_with_a_unit(written: str | int, count: int) -> None:
    assert Bytes.read(written) == count


KEYS = st.sampled_from([*FleetFile.__struct_fields__, "a", "limits", "command", "triggers", "budget", "workspaces"])
TABLES = st.recursive(
    st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just("5m"), st.just("strict")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(tables=st.dictionaries(KEYS, TABLES, max_size=5))
def test_any_file_loads_or_raises_fleet_invalid(tables: dict[str, Any], tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("any") / "fleet.toml"
    path.write_text(_toml(tables))
    with contextlib.suppress(FleetInvalid):
        assert load_fleet(path).path == os.path.realpath(path)


def _toml(value: Any) -> str:
    """Return a dictionary as TOML, with inline values."""
    if isinstance(value, dict):
        lines = [f"{_inline(str(key))} = {_inline(item)}" for key, item in value.items()]
        return "\n".join(lines)
    raise TypeError(value)


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_inline(str(key))} = {_inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
    return repr(value)


def test_the_schema_has_a_description_for_every_key() -> None:
    made = fleet_schema()
    tables = made["$defs"]
    assert tables["FleetFile"]["additionalProperties"] is False
    undescribed = [
        f"{name}.{key}"
        for name, table in tables.items()
        for key, field in table.get("properties", {}).items()
        if not field.get("description")
    ]
    assert undescribed == []
    assert set(tables["FleetFile"]["properties"]) == set(FleetFile.__struct_fields__)
    assert msgspec.json.encode(made)


def test_reading_key_by_key_gives_the_same_as_msgspec(harness: FleetHarness) -> None:
    path = harness.folder / "fleet.toml"
    for text in ((ROOT / "examples" / "fleet.toml").read_text(), FULL):
        path.write_text(text)
        tables = msgspec.to_builtins(tomllib.loads(text))
        converted = msgspec.convert(tables, FleetFile, strict=True, dec_hook=lambda kind, value: kind.read(value))
        fleet = load_fleet(path)
        assert {name: getattr(fleet, name) for name in FleetFile.__struct_fields__} == {
            name: getattr(converted, name) for name in FleetFile.__struct_fields__
        }

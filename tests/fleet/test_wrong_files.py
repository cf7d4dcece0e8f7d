"""Invalid fleet files by example, each with its error message."""

from __future__ import annotations

from pathlib import Path

import pytest

from rota.errors import FleetInvalid
from rota.fleet.config.agent_tables import TRIGGERS_MAX
from rota.fleet.config.loader import FILE_BYTES_MAX, load_fleet
from rota.fleet.config.tables import AGENTS_MAX, PROJECTS_MAX
from rota.model.struct_reader import PROBLEMS_MAX
from tests.fleet.support import FleetHarness

SECONDS = 'a number of seconds, or a string such as "90s", "5m" or "2h"'
BYTES = 'a number of bytes, or a string such as "512MiB" or "2GB"'
AMOUNT = "a whole number from 0 to 1,000,000,000,000"
GRANT = "a whole number from 1 to 1,000,000,000,000"
F = "[agents.f]\nfunction = 'm:f'\n"
A = "[agents.reader]\ncommand = 'ls'\n"  # a valid agent, to which each case adds one mistake

WRONG = {
    # unknown keys
    "polcy = 'eevdf'": "polcy: unknown key; did you mean 'policy'?",
    "[agent.reader]\ncommand = 'ls'": "agent: unknown key; did you mean 'agents'?",
    "colour = 'red'": (
        "colour: unknown key; valid keys: name, store, policy, slots, worker_id, logs_max, logs_bytes_max, logs, "
        "dimensions, scheduling, projects, limits, prices, agents, graphs, hooks, ray, retention"
    ),
    A + "prioriy = 3": "agents.reader.prioriy: unknown key; did you mean 'priority'?",
    A + "limits = {wall = 3}": "agents.reader.limits.wall: unknown key; did you mean 'wall_s'?",
    "[projects.lab]\nwieght = 2": "projects.lab.wieght: unknown key; did you mean 'weight'?",
    "[limits.api]\ntokens_per_hour = 2": "limits.api.tokens_per_hour: unknown key; did you mean 'tokens_per_minute'?",
    A + "triggers = [{on = 'start'}, {crn = '* * * * *'}]": (
        "agents.reader.triggers[1].crn: unknown key; did you mean 'cron'?"
    ),
    # values of the wrong type or out of range
    "slots = '4'": (
        "slots: expected a whole number from 1 to 4,096 or a table (each value: a whole number from 1 to 4,096), "
        'found "4"'
    ),
    "slots = 0": (
        "slots: expected a whole number from 1 to 4,096 or a table (each value: a whole number from 1 to 4,096), "
        "found 0"
    ),
    "slots = {gpu = 0}": "slots.gpu: expected a whole number from 1 to 4,096, found 0",
    "slots = {}": "slots: expected 1 to 4,096 slots in total, found 0",
    "slots = {a = 4096, b = 1}": "slots: expected 1 to 4,096 slots in total, found 4,097",
    "store = ''": 'store: expected a string that is not empty, found ""',
    "projects = 3": "projects: expected a table (each value: a table), found 3",
    "projects = {lab = 'x'}": 'projects.lab: expected a table, found "x"',
    "agents = [1]": "agents: expected a table (each value: a table), found a list",
    "[projects.lab]\nweight = 'much'": 'projects.lab.weight: expected a number from 0.001 to 1,000,000, found "much"',
    "[projects.lab]\nweight = 0": "projects.lab.weight: expected a number from 0.001 to 1,000,000, found 0",
    "[projects.lab]\nweight = inf": "projects.lab.weight: expected a number from 0.001 to 1,000,000, found inf",
    "[projects.lab]\nweight = true": "projects.lab.weight: expected a number from 0.001 to 1,000,000, found true",
    "[projects.lab]\nmax_concurrent = -1": (
        "projects.lab.max_concurrent: expected a whole number from 0 to 1,000,000, found -1"
    ),
    "[projects.lab]\nbudget = {tokens = 1.5}": f"projects.lab.budget.tokens: expected {AMOUNT}, found 1.5",
    "[projects.lab]\nbudget = 100": f"projects.lab.budget: expected a table (each value: {AMOUNT}), found 100",
    "[projects.'my lab']\nweight = 'x'": (
        'projects."my lab".weight: expected a number from 0.001 to 1,000,000, found "x"'
    ),
    "[scheduling]\nrolling_window_hours = 0": (
        "scheduling.rolling_window_hours: expected a number above 0 and at most 8,784, found 0"
    ),
    "[scheduling]\nmin_task_guarantee = 1": "scheduling.min_task_guarantee: expected true or false, found 1",
    "[scheduling]\naffinity_wait_s = '2 weeks'": f'scheduling.affinity_wait_s: expected {SECONDS}, found "2 weeks"',
    "[scheduling]\naffinity_wait_s = -1": f"scheduling.affinity_wait_s: expected {SECONDS}, found -1",
    "[scheduling]\npreemption = {grace_s = 5}": (
        "scheduling.preemption.bands: required key is missing; expected a list (each item: a whole number) "
        "that is not empty"
    ),
    "[scheduling]\npreemption = {bands = []}": (
        "scheduling.preemption.bands: expected a list (each item: a whole number) that is not empty, "
        "found an empty list"
    ),
    "[scheduling]\npreemption = {bands = [5, 1]}": (
        "scheduling.preemption.bands: expected ascending numbers, found [5, 1]"
    ),
    A + "priority = 'high'": (
        'agents.reader.priority: expected a whole number from -2,147,483,648 to 2,147,483,648, found "high"'
    ),
    A + "intent = 'protect'": (
        "agents.reader.intent: expected one of PROTECT, ACCUMULATE, BELONG, DISCOVER, DOMINATE, NEUTRAL, "
        'found "protect"'
    ),
    A + "env = {PORT = 80}": "agents.reader.env.PORT: expected a string, found something else",
    A + "pass_env = 'HOME'": 'agents.reader.pass_env: expected a list (each item: a string), found "HOME"',
    A + "pass_env = ['HOME', 3]": "agents.reader.pass_env[1]: expected a string, found 3",
    A + "limits = {memory = '512 megs'}": f'agents.reader.limits.memory: expected {BYTES}, found "512 megs"',
    A + "limits = {wall_s = true}": f"agents.reader.limits.wall_s: expected {SECONDS}, found true",
    A + "budget = {tokens = 0}": f"agents.reader.budget.tokens: expected {GRANT}, found 0",
    A + "workspace = 'mine'": 'agents.reader.workspace: expected one of exclusive, shared, found "mine"',
    A + "restart = {when = 'sometimes'}": (
        'agents.reader.restart.when: expected one of never, on_crash, on_failure, always, found "sometimes"'
    ),
    A + "priority = 2026-01-01": (
        'agents.reader.priority: expected a whole number from -2,147,483,648 to 2,147,483,648, found "2026-01-01"'
    ),
    A + "limits = {wall_s = 0}": "agents.reader.limits.wall_s: expected more than 0, found 0: no run could start",
    A + "env = {'A=B' = 'x'}": (
        'agents.reader.env."A=B": expected a variable name without = and NUL characters, and a value without NUL '
        "characters"
    ),
    "worker_id = '" + "x" * 101 + "'": (
        'worker_id: expected a name of 1 to 100 printable characters, found "' + "x" * 59 + "…"
    ),
    "[projects." + "x" * 101 + "]": "projects." + "x" * 20 + ": expected a name of 1 to 100 printable characters",
    "[projects.lab]\nworkspaces = ['']": (
        "projects.lab.workspaces[0]: expected a folder of 1 to 150 characters, found 0"
    ),
    # how an agent is run
    "[agents.reader]\npriority = 1": (
        "agents.reader: expected exactly one of command, ndjson, function, found none of them"
    ),
    A + "function = 'a:b'": (
        "agents.reader: expected exactly one of command, ndjson, function, found command and function"
    ),
    A + "isolation = 'process'": "agents.reader: isolation is only valid with function, not with command",
    F + "env = {KEY = '1'}": "agents.f: env is only valid with command or ndjson, not with function",
    F + "pass_env = ['KEY']": "agents.f: pass_env is only valid with command or ndjson, not with function",
    F + "cwd = 'work'": "agents.f: cwd is only valid with command or ndjson, not with function",
    F + "stdin = 'none'": "agents.f: stdin is only valid with command, not with function",
    "[agents.n]\nndjson = 'n'\nusage = {tokens = 'a'}": "agents.n: usage is only valid with command, not with ndjson",
    "[agents.reader]\ncommand = ''": 'agents.reader.command: expected a program and its arguments, found ""',
    "[agents.reader]\nndjson = []": "agents.reader.ndjson: expected a program and its arguments, found an empty list",
    '[agents.reader]\ncommand = "echo \'x"': (
        "agents.reader.command: cannot be split into arguments: no closing quotation"
    ),
    "[agents.reader]\nfunction = 'read.py'": 'agents.reader.function: expected "module:name", found "read.py"',
    "[agents.reader]\nfunction = 'a:b c'": 'agents.reader.function: expected "module:name", found "a:b c"',
    # unknown names
    "policy = 'evdf'": "policy: unknown policy 'evdf'; did you mean 'eevdf'?",
    "policy = {name = 'fair_share', params = {guarantee = true}}": (
        "policy.params: fair_share takes no such parameters: fair_share() got an unexpected keyword argument "
        "'guarantee'. It takes: min_guarantee"
    ),
    "[projects.research]\n" + A + "project = 'reserch'": (
        "agents.reader.project: unknown project 'reserch'; did you mean 'research'?"
    ),
    A + "project = 'lab'": "agents.reader.project: unknown project 'lab'; defined: none",
    "[limits.openai]\ntokens_per_minute = 9\n" + A + "draws_on = ['open_ai']": (
        "agents.reader.draws_on[0]: unknown limit 'open_ai'; did you mean 'openai'?"
    ),
    "[limits.a]\ntokens_per_minute = 9\n[limits.b]\ntokens_per_minute = 9\n" + A + "draws_on = ['a', 'model']": (
        "agents.reader.draws_on[1]: unknown limit 'model'; defined: a, b"
    ),
    A + "triggers = [{after = 'writer'}]": "agents.reader.triggers[0].after: unknown agent 'writer'; defined: reader",
    "[projects.lab]\n" + A + "project = 'lab'\nworkspace = 'shared'": (
        "agents.reader.workspace: requires projects.lab.workspaces: project 'lab' has no workspaces"
    ),
    A
    + "workspace = 'shared'": "agents.reader.workspace: requires agents.reader.project: workspaces belong to projects",
    "[projects.'*']": "projects.\"*\": the name '*' is reserved for all projects together; choose another name",
    "[projects.a]\nworkspaces = ['w']\n[projects.b]\nworkspaces = ['./w']": (
        "projects.b.workspaces[0]: './w' is already projects.a.workspaces[0]; a folder can be one workspace only"
    ),
    "[projects.a]\nworkspaces = {worktrees_of = 'r', branch = '--upload'}": (
        'projects.a.workspaces.branch: expected a branch, a tag or a commit, found "--upload"'
    ),
    "[projects.a]\nworkspaces = {count = 3}": (
        "projects.a.workspaces.worktrees_of: required key is missing; expected a string that is not empty"
    ),
    # limits and amounts
    "[limits.api]": (
        "limits.api: no limit is set; expected requests_per_minute, tokens_per_minute, requests, tokens or cpu_ms"
    ),
    "[limits.api]\ntokens_per_minute = 5\ntokens = {budget = 5}": (
        "limits.api: tokens and tokens_per_minute are both set; keep one of them"
    ),
    "[limits.api]\nrequests = {budget = 5, period_s = 0}": (
        "limits.api.requests.period_s: expected at least 0.001 seconds, found 0"
    ),
    A + "expected = {tokens = 9}\nceiling = {tokens = 5}": (
        "agents.reader.expected.tokens: expected at most 5, the ceiling of a run, found 9"
    ),
    # triggers
    A + "triggers = [{payload = {}}]": (
        "agents.reader.triggers[0]: expected exactly one of cron, event, every, every_s, on, after, found none of them"
    ),
    A + "triggers = [{on = 'start', every = '5m'}]": (
        "agents.reader.triggers[0]: expected exactly one of cron, event, every, every_s, on, after, found every and on"
    ),
    A + "triggers = [{on = 'stop'}]": 'agents.reader.triggers[0].on: expected "start", found "stop"',
    A + "triggers = [{every = 300}]": (
        'agents.reader.triggers[0].every: expected a string such as "90s", "5m" or "2h", found 300'
    ),
    A + "triggers = [{every = '10ms'}]": "agents.reader.triggers[0].every: expected at least 1 second, found 0.01",
    A + "triggers = [{cron = '* * * *'}]": (
        'agents.reader.triggers[0].cron: expected a cron expression, found "* * * *": it has 4 fields, not 5'
    ),
    A + "triggers = [{cron = '61 * * * *'}]": (
        'agents.reader.triggers[0].cron: expected a cron expression, found "61 * * * *": bad minute'
    ),
    A + "triggers = [{cron = '0 9 * * *', zone = 'Europe/Berlln'}]": (
        "agents.reader.triggers[0].zone: unknown time zone 'Europe/Berlln'; expected a name such as 'Europe/Berlin'"
    ),
    A + "triggers = [{event = '*'}]": (
        "agents.reader.triggers[0].event: '*' matches kernel.trigger.fired, which every firing of this trigger writes: "
        "it would fire forever"
    ),
    A + "triggers = [{event = 'kernel.sched.enqueued'}]": (
        "agents.reader.triggers[0].event: 'kernel.sched.enqueued' matches kernel.sched.enqueued, which every firing of "
        "this trigger writes: it would fire forever"
    ),
    A + "triggers = [{event = 'a*b'}]": (
        'agents.reader.triggers[0].event: expected an event kind, or a prefix of kinds followed by one *, found "a*b"'
    ),
    A + "triggers = [{on = 'start', event_as = 'e'}]": (
        "agents.reader.triggers[0].event_as: is only valid with event or after: other triggers have no event to pass on"
    ),
    # the file itself
    "slots = = 4": "is not valid TOML: Invalid value (at line 1, column 9)",
}


@pytest.mark.parametrize("text", WRONG)
def test_an_invalid_file_is_refused_with_its_message(text: str, tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    with pytest.raises(FleetInvalid) as caught:
        load_fleet(path)
    stop = "" if WRONG[text].endswith("?") else "."
    assert str(caught.value) == f"{path}: {WRONG[text]}{stop} Correct the file; nothing was changed."
    assert caught.value.data["file"] == str(path)


def test_one_error_lists_all_problems(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text("slots = 'x'\n[projects.lab]\nweight = 0\n" + A + "prio = 3\nlimits = {wall_s = 'x', memory = 'y'}")
    with pytest.raises(FleetInvalid) as caught:
        load_fleet(path)
    assert caught.value.data["keys"] == [
        "slots",
        "projects.lab.weight",
        "agents.reader.prio",
        "agents.reader.limits.wall_s",
        "agents.reader.limits.memory",
    ]
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{path}: 5 problems"
    assert lines[2] == "  projects.lab.weight: expected a number from 0.001 to 1,000,000, found 0"


def test_one_error_lists_all_unknown_names(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text("policy = 'x'\n" + A + "project = 'p'\ndraws_on = ['l']\ntriggers = [{after = 'z'}, {cron = 'c'}]")
    with pytest.raises(FleetInvalid) as caught:
        load_fleet(path)
    assert len(caught.value.data["problems"]) == 5


def test_an_error_lists_at_most_problems_max_and_counts_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text("\n".join(f"x{number} = 1" for number in range(PROBLEMS_MAX + 5)))
    with pytest.raises(FleetInvalid) as caught:
        load_fleet(path)
    assert len(caught.value.data["problems"]) == PROBLEMS_MAX + 1
    assert caught.value.data["problems"][-1] == "and 5 more"


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FleetInvalid, match="cannot be read: No such file or directory"):
        load_fleet(tmp_path / "none.toml")


def test_invalid_utf_8_is_reported_with_its_position(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_bytes(b"slots = 4 # \xff")
    with pytest.raises(FleetInvalid, match="is not valid UTF-8 at byte 12"):
        load_fleet(path)


@pytest.mark.parametrize(
    ("table", "maximum"),
    [
        (lambda count: "\n".join(f"[projects.p{at}]" for at in range(count)), PROJECTS_MAX),
        (lambda count: A + "triggers = [" + "{on = 'start'}," * count + "]", TRIGGERS_MAX),
        (lambda count: "agents = {" + ",".join(f"a{at} = {{command = 'ls'}}" for at in range(count)) + "}", AGENTS_MAX),
    ],
    ids=["projects", "triggers", "agents"],
)
def test_a_table_at_its_maximum_is_valid_and_one_item_more_is_not(table, maximum: int, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "fleet.toml"
    path.write_text(table(maximum))
    load_fleet(path)
    path.write_text(table(maximum + 1))
    with pytest.raises(FleetInvalid, match=f"expected at most {maximum:,} items, found {maximum + 1:,}"):
        load_fleet(path)


def test_a_file_of_the_maximum_size_is_valid_and_one_byte_more_is_not(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    text = "slots = 4\n#"
    path.write_text(text + "x" * (FILE_BYTES_MAX - len(text)))
    assert load_fleet(path).slots == 4
    path.write_text(text + "x" * (FILE_BYTES_MAX - len(text) + 1))
    with pytest.raises(FleetInvalid, match="has 4,194,305 bytes; the maximum is 4,194,304"):
        load_fleet(path)


def test_the_error_names_the_field_and_has_its_code(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text("slots = 0")
    with pytest.raises(FleetInvalid) as caught:
        load_fleet(path)
    assert caught.value.to_rpc_data()["field"] == "slots"
    assert caught.value.code == -32211


def test_all_problems_are_reported_at_once(harness: FleetHarness) -> None:
    text = """
slots = "4"
[projects.lab]
weight = "heavy"
budget = {tokenz = 4, pages = 3}
[agents.x]
project = "lab"
command = "ls"
draws_on = ["nope"]
[agents.y]
project = "barn"
comand = "ls"
"""
    with pytest.raises(FleetInvalid) as refused:
        harness.fleet(text)
    assert refused.value.data["keys"] == [
        "slots",
        "projects.lab.weight",
        "agents.y.comand",
        "projects.lab.budget.tokenz",
        "projects.lab.budget.pages",
        "agents.x.draws_on[0]",
        "agents.y.project",
    ]
    assert "unknown dimension 'tokenz'; did you mean 'tokens'?" in str(refused.value)


def test_a_dimension_that_the_file_declares_may_have_a_budget(harness: FleetHarness) -> None:
    fleet = harness.fleet("dimensions = ['pages']\n[agents.a]\ncommand = 'ls'\nbudget = {pages = 3, tokens = 5}\n")
    assert fleet.agents["a"].budget == {"pages": 3, "tokens": 5}

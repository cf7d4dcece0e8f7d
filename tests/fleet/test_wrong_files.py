"""Errors by example: a wrong file, and the sentence it is refused with."""

from __future__ import annotations

from pathlib import Path

import pytest

from rota.errors import FleetInvalid
from rota.fleet.config.agent_tables import TRIGGERS_MAX
from rota.fleet.config.file import FILE_BYTES_MAX, load
from rota.fleet.config.reader import PROBLEMS_MAX
from rota.fleet.config.tables import AGENTS_MAX, PROJECTS_MAX

SECONDS = 'a number of seconds, or a text such as "90s", "5m" or "2h"'
BYTES = 'a number of bytes, or a text such as "512MiB" or "2GB"'
AMOUNT = "a whole number from 0 to 1,000,000,000,000"
GRANT = "a whole number from 1 to 1,000,000,000,000"
F = "[agents.f]\nfunction = 'm:f'\n"
A = "[agents.reader]\ncommand = 'ls'\n"  # an agent to put one wrong thing into

WRONG = {
    # keys that mean nothing
    "polcy = 'eevdf'": "polcy: unknown key; did you mean 'policy'?",
    "[agent.reader]\ncommand = 'ls'": "agent: unknown key; did you mean 'agents'?",
    "colour = 'red'": (
        "colour: unknown key; known here: name, store, policy, slots, worker_id, logs_max, scheduling, projects, "
        "limits, agents"
    ),
    A + "prioriy = 3": "agents.reader.prioriy: unknown key; did you mean 'priority'?",
    A + "limits = {wall = 3}": "agents.reader.limits.wall: unknown key; did you mean 'wall_s'?",
    "[projects.lab]\nwieght = 2": "projects.lab.wieght: unknown key; did you mean 'weight'?",
    "[limits.api]\ntokens_per_hour = 2": "limits.api.tokens_per_hour: unknown key; did you mean 'tokens_per_minute'?",
    A + "triggers = [{on = 'start'}, {crn = '* * * * *'}]": (
        "agents.reader.triggers[1].crn: unknown key; did you mean 'cron'?"
    ),
    # values of the wrong kind
    "slots = '4'": (
        'slots: expected a whole number from 1 to 4,096 or a table (a whole number from 1 to 4,096 each), found "4"'
    ),
    "slots = 0": (
        "slots: expected a whole number from 1 to 4,096 or a table (a whole number from 1 to 4,096 each), found 0"
    ),
    "slots = {gpu = 0}": "slots.gpu: expected a whole number from 1 to 4,096, found 0",
    "slots = {}": "slots: expected 1 to 4,096 slots in all, found 0",
    "slots = {a = 4096, b = 1}": "slots: expected 1 to 4,096 slots in all, found 4,097",
    "store = ''": 'store: expected a text that is not empty, found ""',
    "projects = 3": "projects: expected a table (a table each), found 3",
    "projects = {lab = 'x'}": 'projects.lab: expected a table, found "x"',
    "agents = [1]": "agents: expected a table (a table each), found a list",
    "[projects.lab]\nweight = 'much'": 'projects.lab.weight: expected a number from 0.001 to 1,000,000, found "much"',
    "[projects.lab]\nweight = 0": "projects.lab.weight: expected a number from 0.001 to 1,000,000, found 0",
    "[projects.lab]\nweight = inf": "projects.lab.weight: expected a number from 0.001 to 1,000,000, found inf",
    "[projects.lab]\nweight = true": "projects.lab.weight: expected a number from 0.001 to 1,000,000, found true",
    "[projects.lab]\nmax_concurrent = -1": (
        "projects.lab.max_concurrent: expected a whole number from 0 to 1,000,000, found -1"
    ),
    "[projects.lab]\nbudget = {tokens = 1.5}": f"projects.lab.budget.tokens: expected {AMOUNT}, found 1.5",
    "[projects.lab]\nbudget = 100": f"projects.lab.budget: expected a table ({AMOUNT} each), found 100",
    "[projects.'my lab']\nweight = 'x'": (
        'projects."my lab".weight: expected a number from 0.001 to 1,000,000, found "x"'
    ),
    "[scheduling]\nrolling_window_hours = 0": (
        "scheduling.rolling_window_hours: expected a number above 0, at most 8,784, found 0"
    ),
    "[scheduling]\nmin_task_guarantee = 1": "scheduling.min_task_guarantee: expected true or false, found 1",
    "[scheduling]\naffinity_wait_s = '2 weeks'": f'scheduling.affinity_wait_s: expected {SECONDS}, found "2 weeks"',
    "[scheduling]\naffinity_wait_s = -1": f"scheduling.affinity_wait_s: expected {SECONDS}, found -1",
    "[scheduling]\npreemption = {grace_s = 5}": (
        "scheduling.preemption.bands: is missing: expected a list (a whole number each) that is not empty"
    ),
    "[scheduling]\npreemption = {bands = []}": (
        "scheduling.preemption.bands: expected a list (a whole number each) that is not empty, found an empty list"
    ),
    "[scheduling]\npreemption = {bands = [5, 1]}": "scheduling.preemption.bands: expected rising numbers, found (5, 1)",
    A + "priority = 'high'": (
        'agents.reader.priority: expected a whole number from -2,147,483,648 to 2,147,483,648, found "high"'
    ),
    A + "intent = 'protect'": (
        "agents.reader.intent: expected one of PROTECT, ACCUMULATE, BELONG, DISCOVER, DOMINATE, NEUTRAL, "
        'found "protect"'
    ),
    A + "env = {PORT = 80}": "agents.reader.env.PORT: expected a text, found 80",
    A + "pass_env = 'HOME'": 'agents.reader.pass_env: expected a list (a text each), found "HOME"',
    A + "pass_env = ['HOME', 3]": "agents.reader.pass_env[1]: expected a text, found 3",
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
    A + "limits = {wall_s = 0}": "agents.reader.limits.wall_s: expected more than 0, found 0: no run could begin",
    A + "env = {'A=B' = 'x'}": (
        'agents.reader.env."A=B": a name cannot hold = and neither it nor its value a NUL character'
    ),
    "worker_id = '" + "x" * 101 + "'": ('worker_id: expected a text of 1 to 100 characters, found "' + "x" * 59 + "…"),
    "[projects." + "x" * 101 + "]": "projects." + "x" * 20 + ": expected a name of 1 to 100 characters",
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
    A + "isolation = 'process'": "agents.reader: isolation goes with function, not with command",
    F + "env = {KEY = '1'}": "agents.f: env goes with command and ndjson, not with function",
    F + "pass_env = ['KEY']": "agents.f: pass_env goes with command and ndjson, not with function",
    F + "cwd = 'work'": "agents.f: cwd goes with command and ndjson, not with function",
    F + "stdin = 'none'": "agents.f: stdin goes with command, not with function",
    "[agents.n]\nndjson = 'n'\nusage = {tokens = 'a'}": "agents.n: usage goes with command, not with ndjson",
    "[agents.reader]\ncommand = ''": 'agents.reader.command: expected a program to start, found ""',
    "[agents.reader]\nndjson = []": "agents.reader.ndjson: expected a program to start, found an empty list",
    '[agents.reader]\ncommand = "echo \'x"': "agents.reader.command: cannot be split into words: no closing quotation",
    "[agents.reader]\nfunction = 'read.py'": 'agents.reader.function: expected "module:name", found "read.py"',
    "[agents.reader]\nfunction = 'a:b c'": 'agents.reader.function: expected "module:name", found "a:b c"',
    # names that lead nowhere
    "policy = 'evdf'": "policy: there is no policy 'evdf'; did you mean 'eevdf'?",
    "policy = {name = 'fair_share', params = {guarantee = true}}": (
        "policy.params: fair_share takes no such parameters: fair_share() got an unexpected keyword argument "
        "'guarantee'. It takes: min_guarantee"
    ),
    "[projects.research]\n" + A + "project = 'reserch'": (
        "agents.reader.project: there is no project 'reserch'; did you mean 'research'?"
    ),
    A + "project = 'lab'": "agents.reader.project: there is no project 'lab'; there is none at all",
    "[limits.openai]\ntokens_per_minute = 9\n" + A + "draws_on = ['open_ai']": (
        "agents.reader.draws_on[0]: there is no limit 'open_ai'; did you mean 'openai'?"
    ),
    "[limits.a]\ntokens_per_minute = 9\n[limits.b]\ntokens_per_minute = 9\n" + A + "draws_on = ['a', 'model']": (
        "agents.reader.draws_on[1]: there is no limit 'model'; there is a, b"
    ),
    A
    + "triggers = [{after = 'writer'}]": "agents.reader.triggers[0].after: there is no agent 'writer'; there is reader",
    "[projects.lab]\n" + A + "project = 'lab'\nworkspace = 'shared'": (
        "agents.reader.workspace: project 'lab' has no workspaces"
    ),
    A + "workspace = 'shared'": "agents.reader.workspace: needs a project: workspaces belong to projects",
    "[projects.'*']": "projects.\"*\": a project cannot be called '*': that is everybody",
    "[projects.a]\nworkspaces = ['w']\n[projects.b]\nworkspaces = ['./w']": (
        "projects.b.workspaces[0]: './w' is projects.a.workspaces[0] already; a workspace belongs to one project"
    ),
    "[projects.a]\nworkspaces = {worktrees_of = 'r', branch = '--upload'}": (
        'projects.a.workspaces.branch: expected a branch, a tag or a commit, found "--upload"'
    ),
    "[projects.a]\nworkspaces = {count = 3}": (
        "projects.a.workspaces.worktrees_of: is missing: expected a text that is not empty"
    ),
    # limits and amounts that cannot be
    "[limits.api]": "limits.api: limits nothing: say requests_per_minute, tokens_per_minute, requests or tokens",
    "[limits.api]\ntokens_per_minute = 5\ntokens = {budget = 5}": (
        "limits.api: says both tokens and tokens_per_minute; keep one of them"
    ),
    "[limits.api]\nrequests = {budget = 5, period_s = 0}": (
        "limits.api.requests.period_s: expected at least 0.001 seconds, found 0"
    ),
    A + "expected = {tokens = 9}\nceiling = {tokens = 5}": (
        "agents.reader.expected.tokens: (9) is above the run's ceiling (5)"
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
        'agents.reader.triggers[0].every: expected a text such as "90s", "5m" or "2h", found 300'
    ),
    A + "triggers = [{every = '10ms'}]": "agents.reader.triggers[0].every: expected at least 1 second, found 0.01",
    A + "triggers = [{cron = '* * * *'}]": (
        'agents.reader.triggers[0].cron: expected a cron expression, found "* * * *": it has 4 fields, not 5'
    ),
    A + "triggers = [{cron = '61 * * * *'}]": (
        'agents.reader.triggers[0].cron: expected a cron expression, found "61 * * * *": bad minute'
    ),
    A + "triggers = [{cron = '0 9 * * *', zone = 'Europe/Berlln'}]": (
        "agents.reader.triggers[0].zone: no time zone is called 'Europe/Berlln'"
    ),
    A + "triggers = [{event = '*'}]": (
        "agents.reader.triggers[0].event: '*' would hear kernel.trigger.fired, which each of its own firings writes: "
        "it would fire for ever"
    ),
    A + "triggers = [{event = 'kernel.sched.enqueued'}]": (
        "agents.reader.triggers[0].event: 'kernel.sched.enqueued' would hear kernel.sched.enqueued, which each of its "
        "own firings writes: it would fire for ever"
    ),
    A + "triggers = [{event = 'a*b'}]": (
        'agents.reader.triggers[0].event: expected a kind, or its beginning and one * at the end, found "a*b"'
    ),
    A + "triggers = [{on = 'start', event_as = 'e'}]": (
        "agents.reader.triggers[0].event_as: goes with event or after: no other trigger has an event to hand on"
    ),
    # the file itself
    "slots = = 4": "is not TOML: Invalid value (at line 1, column 9)",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_file_is_refused_with_its_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    with pytest.raises(FleetInvalid) as caught:
        load(path)
    assert str(caught.value) == f"{path}: {WRONG[text]}. Correct the file; nothing was changed."
    assert caught.value.data["file"] == str(path)


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text("slots = 'x'\n[projects.lab]\nweight = 0\n" + A + "prio = 3\nlimits = {wall_s = 'x', memory = 'y'}")
    with pytest.raises(FleetInvalid) as caught:
        load(path)
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


def test_names_that_lead_nowhere_are_said_at_once_too(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text("policy = 'x'\n" + A + "project = 'p'\ndraws_on = ['l']\ntriggers = [{after = 'z'}, {cron = 'c'}]")
    with pytest.raises(FleetInvalid) as caught:
        load(path)
    assert len(caught.value.data["problems"]) == 5


def test_a_file_full_of_mistakes_is_answered_with_so_many_sentences_and_a_count(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text("\n".join(f"x{number} = 1" for number in range(PROBLEMS_MAX + 5)))
    with pytest.raises(FleetInvalid) as caught:
        load(path)
    assert len(caught.value.data["problems"]) == PROBLEMS_MAX + 1
    assert caught.value.data["problems"][-1] == "and 5 more"


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(FleetInvalid, match="cannot be read: No such file or directory"):
        load(tmp_path / "none.toml")


def test_a_file_that_is_not_text_says_where(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_bytes(b"slots = 4 # \xff")
    with pytest.raises(FleetInvalid, match="is not UTF-8 at byte 12"):
        load(path)


@pytest.mark.parametrize(
    ("table", "most"),
    [
        (lambda count: "\n".join(f"[projects.p{at}]" for at in range(count)), PROJECTS_MAX),
        (lambda count: A + "triggers = [" + "{on = 'start'}," * count + "]", TRIGGERS_MAX),
        (lambda count: "agents = {" + ",".join(f"a{at} = {{command = 'ls'}}" for at in range(count)) + "}", AGENTS_MAX),
    ],
    ids=["projects", "triggers", "agents"],
)
def test_a_limit_holds_at_its_number_and_not_one_beyond(table, most: int, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "fleet.toml"
    path.write_text(table(most))
    load(path)
    path.write_text(table(most + 1))
    with pytest.raises(FleetInvalid, match=f"may hold at most {most:,}, found {most + 1:,}"):
        load(path)


def test_a_file_may_be_as_long_as_its_limit_and_no_longer(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    text = "slots = 4\n#"
    path.write_text(text + "x" * (FILE_BYTES_MAX - len(text)))
    assert load(path).slots == 4
    path.write_text(text + "x" * (FILE_BYTES_MAX - len(text) + 1))
    with pytest.raises(FleetInvalid, match="at most 4,194,304 are read"):
        load(path)


def test_an_error_can_be_sent_and_made_again(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text("slots = 0")
    with pytest.raises(FleetInvalid) as caught:
        load(path)
    assert caught.value.to_rpc_data()["field"] == "slots"
    assert caught.value.code == -32211

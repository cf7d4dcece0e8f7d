"""`rota run --plan`: expected shares, how long budgets last, and warnings."""

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
from rota.cli import fleet_plan as cli
from rota.clock import ManualClock
from rota.errors import StoreUnavailable
from rota.fleet.config.apply import apply_fleet
from rota.fleet.config.loader import load_fleet
from rota.fleet.config.plan import FleetPlan, divide_slots, plan_fleet
from rota.fleet.config.tables import fleet_schema
from rota.host.cgroups import Cgroups
from rota.host.thread_settings import allowed_cores
from rota.kernel import Kernel
from rota.model.cpu import core_list
from rota.model.policy_setting import PolicySetting
from rota.service import this_host
from rota.service.store_policies import StorePolicies
from tests.daemon.harness import make_token, serving
from tests.fleet.support import START, FleetHarness
from tests.stores import everything

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


def planned(harness: FleetHarness, text: str) -> FleetPlan:
    return plan_fleet(harness.fleet(text), START)


def slots(plan: FleetPlan) -> dict[str, float | None]:
    return {row.name: row.slots and round(row.slots, 6) for row in plan.projects}


def shares(plan: FleetPlan) -> dict[str, float | None]:
    return {row.name: row.share and round(row.share, 6) for row in plan.agents}


# --- shares ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["eevdf", "wfq", "fair_share"])
def test_a_sharing_policy_divides_slots_by_project_weight(harness: FleetHarness, policy: str) -> None:
    assert slots(planned(harness, f"policy = '{policy}'\n" + THREE)) == {"a": 3, "b": 2, "c": 1}


def test_agents_of_a_project_share_by_weight(harness: FleetHarness) -> None:
    assert shares(planned(harness, THREE)) == {"a1": 0.166667, "a2": 0.333333, "b1": 0.333333, "c1": 0.166667}


def test_round_robin_gives_every_agent_the_same(harness: FleetHarness) -> None:
    plan = planned(harness, "policy = 'round_robin'\n" + THREE)
    assert slots(plan) == {"a": 3, "b": 1.5, "c": 1.5}
    assert set(shares(plan).values()) == {0.25}


def test_a_strict_policy_has_no_shares(harness: FleetHarness) -> None:
    plan = planned(harness, "policy = 'strict'\n" + THREE)
    assert set(slots(plan).values()) == {None}
    assert "policy: strict has no bound on waiting: entries of low priority may wait forever" in plan.warnings


def test_slots_that_a_cap_leaves_go_to_the_others(harness: FleetHarness) -> None:
    assert slots(planned(harness, THREE.replace("weight = 3", "weight = 3\nmax_concurrent = 1"))) == {
        "a": 1,
        "b": 3.333333,
        "c": 1.666667,
    }


def test_a_project_cannot_have_more_slots_than_its_agents_can_fill(harness: FleetHarness) -> None:
    capped = THREE.replace('project = "b"', 'project = "b"\nmax_concurrent = 1')
    assert slots(planned(harness, capped)) == {"a": 3.75, "b": 1, "c": 1.25}


def test_projects_without_agents_get_nothing_and_agents_without_a_project_share_as_one(
    harness: FleetHarness,
) -> None:
    plan = planned(harness, THREE.replace('project = "c"\n', ""))
    assert slots(plan) == {"a": 3, "b": 2, "c": 0.0, "–": 1}


@given(
    total=st.integers(1, 50),
    weights=st.dictionaries(st.text("abcdef", min_size=1, max_size=1), st.integers(1, 9), min_size=1),
    data=st.data(),
)
def test_divided_slots_use_all_that_caps_allow_and_are_proportional_below_the_caps(
    total: int, weights: dict[str, float], data: st.DataObject
) -> None:
    caps = {name: data.draw(st.integers(0, 20)) for name in weights if data.draw(st.booleans())}
    given_ = divide_slots(total, weights, caps)
    assert given_.keys() == weights.keys()
    assert sum(given_.values()) == pytest.approx(min(total, sum(caps.get(name, total) for name in weights)))
    assert all(given_[name] <= cap for name, cap in caps.items())
    below = [name for name in weights if given_[name] < caps.get(name, total)]
    rates = [given_[name] / weights[name] for name in below]
    assert all(rate == pytest.approx(rates[0]) for rate in rates)
    # and relative to its weight, a capped name gets at most as much as the others
    assert all(caps[name] / weights[name] <= max(rates, default=total) + 1e-9 for name in caps.keys() - set(below))


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


def test_a_budget_ends_when_triggered_runs_at_their_expected_usage_have_used_it(harness: FleetHarness) -> None:
    plan = planned(harness, BUDGETED)
    rows = {(row.owner, row.dim): (round(row.use_per_hour, 3), row.told) for row in plan.budgets}
    assert rows == {
        ("*", "tokens"): (3000.0, "lasts: 72,000 per window"),
        ("lab", "tokens"): (3000.0, "ends in 4.0 h, then waits for the 24 h window"),
        ("lab", "cost_micro"): (0.0, "unknown: no agent with a timed trigger sets its expected usage"),
        ("reader", "tokens"): (1000.0, "ends in 3.0 h"),
    }
    ends = {(row.owner, row.dim): row.ends_at for row in plan.budgets}
    assert ends["lab", "tokens"] == pytest.approx(START + 4 * 3600)
    assert ends["*", "tokens"] is None


def test_the_rate_of_an_agent_follows_from_its_triggers(harness: FleetHarness) -> None:
    rates = {row.name: (round(row.runs_per_hour, 2), row.and_more) for row in planned(harness, BUDGETED).agents}
    assert rates == {"reader": (10, False), "writer": (10, False), "nightly": (0.04, False)}
    cycle = "[agents.a]\ncommand = 'ls'\ntriggers = [{after = 'b'}, {every = '30m'}]\n"
    cycle += "[agents.b]\ncommand = 'ls'\ntriggers = [{after = 'a'}]\n[agents.c]\ncommand = 'ls'"
    rates = {row.name: (row.runs_per_hour, row.and_more) for row in planned(harness, cycle).agents}
    assert rates == {"a": (2, True), "b": (2, True), "c": (0, True)}


def test_usage_in_the_store_counts(harness: FleetHarness) -> None:
    harness.apply(BUDGETED)
    harness.api.ledger.charge(harness.agent("reader").pid, "tokens", 1_500)
    plan = plan_fleet(harness.fleet(BUDGETED), harness.clock.now(), harness.api)
    rows = {(row.level, row.owner, row.dim): (row.used, row.told) for row in plan.budgets}
    assert rows["agent", "reader", "tokens"] == (1_500, "ends in 1.5 h")
    assert rows["project", "lab", "tokens"][0] == 1_500
    assert plan.changes == []


def test_cpu_settings_are_listed_with_what_they_amount_to_here(harness: FleetHarness) -> None:
    more = "[projects.p]\ncpu = {weight = 3}\n" + A.replace("budget", "project = 'p'\ncpu = {quota = '20/100'}\nbudget")
    plan = planned(harness, more)
    assert [(row.owner, row.setting, row.value) for row in plan.cpu] == [
        ("project p", "weight", "3"),
        ("agent a", "quota", "20/100"),
    ]
    support = Cgroups(prepare=False).support
    assert [row.state for row in plan.cpu] == [
        "enforced" if support[feature].works else "cooperative" for feature in ("weight", "quota")
    ]
    assert planned(harness, A).cpu == []


def test_cpu_settings_of_a_project_are_listed_as_refused_for_its_functions_on_threads(harness: FleetHarness) -> None:
    agent = A.replace("command = 'ls'", "function = 'os:getpid'").replace("budget", "project = 'p'\nbudget")
    plan = planned(harness, "[projects.p]\ncpu = {weight = 3}\n" + agent)
    assert [(row.owner, row.setting, row.value) for row in plan.cpu] == [
        ("project p", "weight", "3"),
        ("agent a", "weight", "3"),
    ]
    assert plan.cpu[1].state == "refused"
    told = "agents.a.cpu: that of project p is not enforced for a function on a thread; set isolation = 'process'"
    assert [text for text in plan.warnings if "cpu" in text] == [told]
    in_process = agent.replace("function", "isolation = 'process'\nfunction")
    assert len(planned(harness, "[projects.p]\ncpu = {weight = 3}\n" + in_process).cpu) == 1


def test_cpu_settings_of_a_project_are_listed_as_refused_for_its_runs_on_ray(harness: FleetHarness) -> None:
    agent = A.replace("budget", "project = 'p'\nrunner = 'ray'\nbudget")
    plan = planned(harness, "[projects.p]\ncpu = {weight = 3}\n" + agent)
    assert [(row.owner, row.state) for row in plan.cpu][1:] == [("agent a", "refused")]
    told = "agents.a.cpu: that of project p is not enforced for runs on Ray; say what a run needs in `resources`"
    assert [text for text in plan.warnings if "cpu" in text] == [told]


def test_a_reservation_that_no_host_can_grant_is_listed_as_refused(harness: FleetHarness) -> None:
    (row,) = planned(harness, A.replace("budget", "cpu = {realtime = 'deadline:10/10'}\nbudget")).cpu
    assert (row.setting, row.state) == ("realtime", "refused")
    assert row.how == ("no core can reserve it (utilisation of core 0 in ppm: 1,000,000 needed, 950,000 available)")


def test_a_quota_of_more_than_the_machine_is_a_warning(harness: FleetHarness) -> None:
    count = len(allowed_cores())
    agent = A.replace("budget", f"cpu = {{quota = '{count + 1}s/1s'}}\nbudget")
    (warning,) = [text for text in planned(harness, agent).warnings if "cpu" in text]
    assert warning == (
        f"agents.a.cpu.quota: {count + 1}s/1s is {count + 1} cores, and it can use {count} here: no limit"
    )
    exactly = agent.replace(f"{count + 1}s", f"{count}s")
    assert [text for text in planned(harness, exactly).warnings if "cpu" in text] == []


@pytest.mark.parametrize(
    ("island", "budget", "told"),
    [
        ("{period_ms: 10}", 3, None),
        ("{period_ms: 10, cores: '4000'}", 3, "cores 4000 are asked of "),
        ("{period_ms: 10}", 10, "ppm: 1,000,000 needed, 950,000 available, so it is not admitted as an island here"),
        ("{period_ms: 10}", 0, "component tick has no budget_ms, so it is not admitted as an island here"),
    ],
)
def test_an_island_that_this_machine_cannot_admit_is_a_warning(
    harness: FleetHarness, island: str, budget: int, told: str | None
) -> None:
    (harness.folder / "voice.yaml").write_text(
        f"schema_version: 2\ngraph: {{name: voice, island: {island}}}\nlanes: {{loop: {{type: event_loop}}}}\n"
        f"edges: []\ncomponents: [{{id: tick, type: rota.input, execution: {{lane: loop, budget_ms: {budget}}}}}]\n"
    )
    graphs = "[graphs.voice]\nfile = 'voice.yaml'\ninputs = {tick = 1}\n"
    warnings = [text for text in planned(harness, graphs).warnings if text.startswith("graphs.voice.file: ")]
    assert len(warnings) == (told is not None)
    assert told is None or told in warnings[0]


def test_cores_and_leases_that_this_machine_cannot_give_are_listed_as_refused(harness: FleetHarness) -> None:
    usable = allowed_cores()
    project = f"[projects.p]\ncpu = {{cores = '{core_list({*usable, 4000})}'}}\n"
    agent = A.replace("budget", "project = 'p'\ncpu = {cores = '4000-4001', lease = 1}\nbudget")
    plan = planned(harness, project + agent)
    here = f"it can use cores {core_list(usable)} here"
    kept, *refused = [(row.owner, row.setting, row.value, row.state, row.how) for row in plan.cpu]
    assert kept[:3] == ("project p", "cores", core_list(usable))
    assert kept[3] in {"enforced", "cooperative"}
    assert refused == [
        ("project p", "cores", "4000", "refused", here),
        ("agent a", "cores", "4000-4001", "refused", here),
        ("agent a", "lease", "1", "refused", "1 asked, and it can use 0 of the cores here"),
    ]
    names, fails = [text.split(":")[0] for text in plan.warnings], "so its runs will fail here"
    assert names == ["projects.p.cpu.cores", "agents.a.cpu.cores"]  # the lease makes no difference
    assert [text.endswith(fails) for text in plan.warnings] == [False, True]


@pytest.mark.skipif(len(allowed_cores()) < 2, reason="a project and an agent with different cores")
def test_an_agent_whose_cores_its_project_does_not_allow_is_a_warning(harness: FleetHarness) -> None:
    first, second = sorted(allowed_cores())[:2]
    project = f"[projects.p]\ncpu = {{cores = '{first}'}}\n"
    agent = A.replace("budget", f"project = 'p'\ncpu = {{cores = '{second}'}}\nbudget")
    plan = planned(harness, project + agent)
    assert plan.cpu[-1].state == "refused"
    assert plan.cpu[-1].how == f"it can use cores {first} here"
    assert plan.warnings == [f"agents.a.cpu.cores: its project allows cores {first} only, so its runs will fail"]


def test_next_firings_and_limits_are_listed(harness: FleetHarness) -> None:
    more = '[limits.api]\ntokens_per_minute = 5\n[agents.x]\ncommand = "ls"\ndraws_on = ["api"]\n'
    plan = planned(harness, more + BUDGETED)
    (nightly,) = [row for row in plan.triggers if row.agent == "nightly"]
    assert (nightly.what, nightly.next_at[0]) == ("cron 0 3 * * * (UTC)", START - START % 86_400 + 86_400 + 3 * 3600)
    assert len(nightly.next_at) == 3
    (limit,) = plan.limits
    assert (limit.unit, limit.budget, limit.period_s, limit.drawn_by) == ("tokens", 5, 60, ["x"])


# --- warnings ----------------------------------------------------------------------------------------

A = "[agents.a]\ncommand = 'ls'\nbudget = {tokens = 50}\n"
WARNINGS = {
    "[agents.a]\ncommand = 'ls'": (
        "agents.a: its usage is unlimited: neither the agent, its project nor [scheduling] has a budget"
    ),
    A + "max_concurrent = 9": "agents.a.max_concurrent: is 9, more than the 4 slots, so it has no effect",
    A + "max_concurrent = 0": "agents.a.max_concurrent: is 0, so it runs nothing",
    A + "kind = 'gpu'": "agents.a.kind: this fleet has no slot of kind 'gpu', so it waits for another worker",
    A + "expected = {tokens = 51}": "agents.a: a run asks for 51 tokens and its own budget is 50, so it never runs",
    A + "limits = {tokens = 51}": "agents.a: a run asks for 51 tokens and its own budget is 50, so it never runs",
    A + "ceiling = {tokens = 9}\n[scheduling]\nbudget = {tokens = 8}": (
        "agents.a: a run asks for 9 tokens and the budget of all projects is 8, so it never runs"
    ),
    A + "triggers = [{after = 'a'}]": "agents.a: a → a runs forever once it has started",
    A + "triggers = [{event = 'kernel.run.*'}]": (
        "agents.a.triggers[0].event: kernel.run.* matches kernel.run.started, which its own runs write: "
        "it may fire forever"
    ),
    "[limits.x]\ntokens_per_minute = 5\n" + A: "limits.x: no agent draws on it",
    "[limits.x]\ntokens_per_minute = 5\n" + A + "draws_on = ['x']": (
        "agents.a: no tokens of limit x are reserved for a run; set tokens in expected or ceiling"
    ),
    "[projects.p]\n" + A: "projects.p: has no agents, so its weight has no effect",
    "[agents.f]\nfunction = 'json:dumps'\nbudget = {tokens = 5}\nlimits = {memory = '1GiB'}": (
        "agents.f.limits.memory: is not enforced for a function on a thread; set isolation = 'process'"
    ),
    "[agents.f]\nfunction = 'nowhere.jobs:f'\nbudget = {tokens = 5}": (
        "agents.f.function: there is no module nowhere in {folder} or on the path, so its runs will fail"
    ),
    "[agents.f]\nfunction = 'json:dump_all'\nbudget = {tokens = 5}": (
        "agents.f.function: module json does not define dump_all, so its runs will fail"
    ),
    "[agents.f]\nfunction = 'json:dumps'\nbudget = {tokens = 5}\ncpu = {weight = 3}": (
        "agents.f.cpu: is not enforced for a function on a thread; set isolation = 'process'"
    ),
    A + "cpu = {realtime = 'deadline:10/10'}": (
        "agents.a.cpu.realtime: no core can reserve deadline:10/10 "
        "(utilisation of core 0 in ppm: 1,000,000 needed, 950,000 available), so its runs will fail"
    ),
    "[projects.p]\ncpu = {lease = 1}\n[agents.f]\nproject = 'p'\nfunction = 'json:dumps'\nbudget = {tokens = 5}": (
        "agents.f.cpu: that of project p is not enforced for a function on a thread; set isolation = 'process'"
    ),
    A + "cpu = {lease = 4000}": (
        f"agents.a.cpu.lease: 4000 of {len(allowed_cores())} cores: one stays for everything else, "
        f"so it never runs on {this_host().name}: it waits for another host"
    ),
    A + "cpu = {cores = '4000'}": (
        f"agents.a.cpu.cores: this machine has no core 4000; usable cores: {core_list(allowed_cores())}, "
        "so its runs will fail here"
    ),
    "[projects.p]\nworkspaces = ['w']\n" + A.replace("budget", "project = 'p'\nbudget"): (
        "projects.p.workspaces: no agent asks for one; set workspace on an agent of the project"
    ),
    "store = 'unix:/run/rota.sock'\nlogs_max = 5\n" + A: (
        "logs_max: has no effect here, because a daemon keeps the logs: rota serve --limit logs_max=5"
    ),
    "[scheduling]\nmin_task_guarantee = false\n" + A: (
        "scheduling.min_task_guarantee: only fair_share has a guarantee, and the policy is eevdf"
    ),
}


@pytest.mark.parametrize("text", WARNINGS)
def test_a_probable_mistake_is_a_warning(harness: FleetHarness, text: str) -> None:
    assert planned(harness, text).warnings == [WARNINGS[text].replace("{folder}", str(harness.folder))]


def test_a_cycle_of_agents_is_reported_once(harness: FleetHarness) -> None:
    names = ("a", "b", "c")
    text = "[scheduling]\nbudget = {tokens = 5}\n" + "\n".join(
        f"[agents.{name}]\ncommand = 'ls'\ntriggers = [{{after = '{before}'}}]"
        for name, before in zip(names, (names[-1], *names), strict=False)
    )
    assert planned(harness, text).warnings == ["agents.c: c → a → b → c runs forever once it has started"]


def test_a_project_that_an_operator_paused_is_a_warning(harness: FleetHarness) -> None:
    text = "[projects.p]\nbudget = {tokens = 5}\n[agents.a]\nproject = 'p'\ncommand = 'ls'"
    harness.apply(text)
    harness.api.projects.move("p", "pause", by="anna")
    plan = plan_fleet(harness.fleet(text), START, harness.api)
    assert plan.warnings == ["projects.p: is paused in the store, so it runs nothing until it is resumed"]


def test_a_file_without_a_policy_is_planned_by_that_of_the_store(harness: FleetHarness) -> None:
    policies = StorePolicies(harness.api.policies)
    policies.set("strict")
    fleet = harness.fleet(THREE)
    plan = plan_fleet(fleet, START, harness.api, harness.api.policies.get())
    assert (plan.policy, set(slots(plan).values())) == ("strict", {None})
    policies.set("eevdf", by=fleet.author)  # by an earlier version of the file, which a run takes back
    assert (
        plan_fleet(fleet, START, harness.api, harness.api.policies.get()).policy_sentence
        == planned(harness, THREE).policy_sentence
    )


def test_a_policy_of_the_store_that_is_not_installed_here_is_a_warning(harness: FleetHarness) -> None:
    setting = PolicySetting(name="theirs", by="anna")  # who has its package
    stored = harness.api.policies.set(setting, by="anna", replace=True)
    plan = plan_fleet(harness.fleet(THREE), START, harness.api, stored)
    assert plan.policy == "strict"
    assert plan.warnings[0] == (
        "policy: theirs, set by anna, cannot be made here, so strict order replaces it: no policy is called 'theirs'"
    )


@pytest.mark.parametrize("line", ["policy = 'wfq'\n", "scheduling = {share_by = 'cpu'}\n"])
def test_a_file_that_contradicts_the_policy_of_the_store_is_a_warning(harness: FleetHarness, line: str) -> None:
    StorePolicies(harness.api.policies).set("strict", share_by="cost", by="anna")
    plan = plan_fleet(harness.fleet(line + THREE), START, harness.api, harness.api.policies.get())
    assert plan.warnings[0].startswith("policy: this file is refused: ")
    assert "set by anna" in plan.warnings[0]


def test_the_example_file_has_no_warnings() -> None:
    fleet = load_fleet(ROOT / "examples" / "fleet.toml")
    assert plan_fleet(fleet, START).warnings == []


# --- the command -------------------------------------------------------------------------------------


def printed(path: Path, **options: Any) -> str:
    out = io.StringIO()
    cli.print_plan(path, clock=ManualClock(START), console=Console(file=out, width=160), **options)
    return out.getvalue()


def test_the_plan_creates_no_store(harness: FleetHarness) -> None:
    harness.fleet(BUDGETED)
    text = printed(harness.folder / "fleet.toml", as_json=False)
    assert "will be created" in text
    assert "ends in 4.0 h" in text
    assert sorted(path.name for path in harness.folder.iterdir()) == ["fleet.toml"]


def test_the_plan_reads_a_store_and_does_not_change_it(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(BUDGETED)
    opened = store.open(str(tmp_path / "rota.db"))
    apply_fleet(Kernel(opened), load_fleet(tmp_path / "fleet.toml"))
    (tmp_path / "fleet.toml").write_text(BUDGETED.replace("[agents.nightly]", '[agents."[bold]"]'))
    StorePolicies(Kernel(opened).policies).set("round_robin")
    before = everything(opened)
    text = printed(tmp_path / "fleet.toml", as_json=False)
    assert "round_robin" in text
    assert "agent [bold] created" in text
    assert "agent nightly paused: no longer in the fleet file" in text
    assert everything(opened) == before
    opened.close()


@pytest.mark.parametrize("over", ["unix", "http"])
def test_a_daemon_is_asked_what_its_store_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over: str) -> None:
    """Over HTTP the plan was refused ("no store for http://"); over the socket it was that of a store without rows."""
    with serving(tmp_path / "rota.db") as served:
        if over == "http":
            monkeypatch.setenv("ROTA_ACCESS_TOKEN", make_token(served.path, "read"))
        address = f'store = "{served.unix if over == "unix" else served.url}"\n'
        (tmp_path / "fleet.toml").write_text(address + BUDGETED)
        with served.client() as client:
            apply_fleet(client, load_fleet(tmp_path / "fleet.toml"))
            client.policies.set("round_robin", by="anna")
        (tmp_path / "fleet.toml").write_text(address + BUDGETED.replace("[agents.nightly]", "[agents.weekly]"))
        text = printed(tmp_path / "fleet.toml", as_json=False)
        assert "(exists)" in text
        assert "round_robin" in text
        assert "agent weekly created" in text
        assert "agent nightly paused: no longer in the fleet file" in text
        (tmp_path / "fleet.toml").write_text(address + "policy = 'wfq'\n" + BUDGETED)
        text = printed(tmp_path / "fleet.toml", as_json=False)
        assert "policy: this file is refused: the policy of this store is round_robin, set by anna" in text


def test_a_plan_of_a_daemon_that_is_away_says_so(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(f'store = "unix:{tmp_path}/rota.sock"\n' + BUDGETED)
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        printed(tmp_path / "fleet.toml", as_json=False)


def test_the_json_output_is_the_whole_plan(harness: FleetHarness) -> None:
    harness.fleet(BUDGETED)
    plan = msgspec.json.decode(printed(harness.folder / "fleet.toml", as_json=True), type=FleetPlan)
    assert plan == plan_fleet(load_fleet(harness.folder / "fleet.toml"), START)


def test_a_long_table_shows_how_many_rows_are_left_out(harness: FleetHarness) -> None:
    harness.fleet("\n".join(f"[agents.a{at}]\ncommand = 'ls'" for at in range(cli.ROWS_MAX + 3)))
    assert "and 3 more" in printed(harness.folder / "fleet.toml", as_json=False)


def test_the_schema_is_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    cli.print_schema()
    assert msgspec.json.decode(capsys.readouterr().out) == msgspec.json.decode(msgspec.json.encode(fleet_schema()))

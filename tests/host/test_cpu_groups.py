"""CPU settings on real processes: groups in groups, what is enforced, and quotas by signals."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from rota.clock import AwakeClock
from rota.host.cgroup_files import FEATURES, FILES_BY_VERSION, Feature, GroupLimits
from rota.host.cgroup_mounts import hierarchies
from rota.host.cgroups import Cgroups, ControlGroup, FeatureSupport
from rota.host.command import Command
from rota.host.cpu_enforcement import Where, cpu_states, denied_policies
from rota.host.cpu_groups import CPU_FEATURES, CpuGroups, CpuOwner, niceness, run_scheduling
from rota.host.lineage import descendants_of
from rota.host.process_cpu import tree_cpu_ns
from rota.host.quota_signals import QuotaSignals
from rota.host.reaper_client import ReaperClient
from rota.host.thread_settings import Scheduling, allowed_cores
from rota.model.cpu import CpuQuota, CpuSettings, RealtimeRequest, core_list
from tests.host.support import PATIENCE_S, Pipe, cpu_measured, output_of, py, running, sh, state_of, until

CORE = max(allowed_cores())
MEASURED_NS = 600_000_000  # of CPU time, from which shares are measured
POINTS = 0.03
HOG = "print('ready', flush=True)\nwhile True: pass"
SUPPORT = Cgroups().support
needs_groups = pytest.mark.skipif(
    not all(SUPPORT[feature].works for feature in CPU_FEATURES),
    reason="no control groups for CPU time: none can be made here",
)
LIMITS = GroupLimits(cores=frozenset({CORE}))
FOUR = frozenset(range(4))
Support = dict[Feature, FeatureSupport]


@pytest.fixture
def groups() -> Iterator[CpuGroups]:
    made = CpuGroups(Cgroups())
    yield made
    made.close()
    assert [folder for each in hierarchies() for folder in each.base.glob(f"rota-{os.getpid()}-*")] == []


def owner(name: str, **fields: object) -> CpuOwner:
    return CpuOwner(name, name, CpuSettings(**fields))  # type: ignore[arg-type]


def shares_of(pids: list[int], expected: list[float]) -> list[float]:
    """What each of some processes uses, of the CPU time that they use together from now on."""
    before = [tree_cpu_ns(pid) for pid in pids]

    def shares() -> list[float] | None:
        used = [tree_cpu_ns(pid) - start for pid, start in zip(pids, before, strict=True)]
        return [each / sum(used) for each in used] if sum(used) >= MEASURED_NS else None

    return cpu_measured(shares, lambda found: found == pytest.approx(expected, abs=POINTS))


@needs_groups
def test_weights_compare_projects_first_and_then_the_agents_of_each(reaper: ReaperClient, groups: CpuGroups) -> None:
    """On one core: project 3 has two agents, 1 and 2; project 1 has one. So 25 : 50 : 25."""
    three, one = owner("three", weight=3), owner("one", weight=1)
    paths = [(three, owner("a", weight=1)), (three, owner("b", weight=2)), (one, owner("c", weight=5))]
    entered = [groups.enter(path, LIMITS) for path in paths]
    with (
        running(reaper, py(HOG), group=entered[0]) as (a, _),
        running(reaper, py(HOG), group=entered[1]) as (b, _),
        running(reaper, py(HOG), group=entered[2]) as (c, _),
    ):
        pids, shares = [a.pid, b.pid, c.pid], [0.25, 0.5, 0.25]
        assert shares_of(pids, shares) == pytest.approx(shares, abs=POINTS)
        groups.leave(groups.enter((owner("three", weight=1), owner("a", weight=1)), LIMITS))  # a project's new weight
        shares = [1 / 6, 2 / 6, 3 / 6]
        assert shares_of(pids, shares) == pytest.approx(shares, abs=POINTS)
    for group in entered:
        groups.leave(group)


@needs_groups
def test_a_throttled_group_does_not_delay_the_start_of_another_command_in_it(
    reaper: ReaperClient, groups: CpuGroups
) -> None:
    """The reaper stays outside: if it joined, it would be throttled, and with it every command that it starts."""
    limited = owner("limited", quota="1ms/1s")
    first = groups.enter((limited,), LIMITS)
    with running(reaper, sh("echo ready; while :; do :; done"), group=first):
        second = groups.enter((limited,), LIMITS)
        assert not any(name.endswith("cgroup.procs") and "limited" in name for name, _ in second.join(reaper.pid).join)
        session = reaper.start(sh("exit 3"), group=second)
        assert output_of(reaper, sh("echo unhindered")) == b"unhindered\n"
        session.kill()
        assert session.wait(PATIENCE_S) is not None
    groups.leave(first)
    groups.leave(second)


@needs_groups
def test_a_command_and_all_that_it_starts_are_in_their_group_and_on_its_cores(
    reaper: ReaperClient, groups: CpuGroups
) -> None:
    group = groups.enter((owner("p", cores=str(CORE)), owner("a", weight=2)), GroupLimits(processes=10))
    moved = f"until taskset -pc $$ | grep -q ': {CORE}$'; do :; done"  # a moment after its start
    script = f"{moved}; sh -c 'cat /proc/self/cgroup; taskset -pc $$' & wait"
    written = output_of(reaper, sh(script), group=group).decode()
    assert f"/{group.name}\n" in written
    assert written.rstrip().endswith(f": {CORE}")
    groups.leave(group)


@needs_groups
def test_nested_groups_of_exited_processes_are_removed_at_the_next_start() -> None:
    stale = [each.base / "rota-999999999-1" for each in hierarchies() if "cpu" in each.controllers]
    for folder in stale:
        (folder / "rota-999999999-2" / "rota-999999999-3").mkdir(parents=True)
    Cgroups()
    assert not any(folder.exists() for folder in stale)


def quotas(*groups: ControlGroup) -> list[str]:
    """The quotas that the kernel reports."""
    files = FILES_BY_VERSION[SUPPORT["quota"].version or 0]
    return [files.in_force("quota", group._folders["quota"]) for group in groups]


def above(group: ControlGroup) -> ControlGroup:
    assert group._parent is not None
    return group._parent


def cores_of(*groups: ControlGroup) -> list[str]:
    files = FILES_BY_VERSION[SUPPORT["cores"].version or 0]
    return [files.in_force("cores", group._folders["cores"]) for group in groups]


@needs_groups
def test_a_quota_of_a_project_is_lowered_and_raised_around_those_of_its_agents(groups: CpuGroups) -> None:
    """The kernel has it, also with other periods, and an agent gets back what it asks for when there is room."""

    def change(**fields: object) -> list[str]:
        groups.change(owner("p", **fields))
        assert groups.not_in_force([owner("p"), owner("a")]) == {}
        return quotas(project, one, two)

    runs = [
        groups.enter([owner("p", quota="80ms/100ms"), owner(name, quota=quota)], GroupLimits())
        for name, quota in (("a", "60ms/100ms"), ("b", "10ms/50ms"))
    ]
    one, two = map(above, runs)
    project = above(one)
    assert quotas(project, one, two) == ["80ms/100ms", "60ms/100ms", "10ms/50ms"]
    assert change(quota="40ms/100ms") == ["40ms/100ms", "40ms/100ms", "10ms/50ms"]
    assert change(quota="100ms/1s") == ["100ms/1000ms", "10ms/100ms", "5ms/50ms"]
    assert change(quota="2ms/200ms") == ["2ms/200ms", "1ms/100ms", "2ms/200ms"]  # half a millisecond is too little
    assert change(quota="50ms/100ms") == ["50ms/100ms", "50ms/100ms", "10ms/50ms"]
    assert change(weight=2) == ["", "60ms/100ms", "10ms/50ms"]
    groups.change(owner("b", quota="1s/1s"))
    assert quotas(project, one, two) == ["", "60ms/100ms", "1000ms/1000ms"]
    assert change(quota="70ms/100ms") == ["70ms/100ms", "60ms/100ms", "700ms/1000ms"]
    for run in runs:
        groups.leave(run)


@needs_groups
def test_a_new_run_lowers_the_quota_of_its_project_below_that_of_an_agent(groups: CpuGroups) -> None:
    before, after = (
        groups.enter([owner("p", quota=quota), owner("a", quota="60ms/100ms")], GroupLimits())
        for quota in ("80ms/100ms", "20ms/100ms")
    )
    agent = above(before)
    assert agent is above(after)
    assert quotas(above(agent), agent) == ["20ms/100ms", "20ms/100ms"]
    for run in (before, after):
        groups.leave(run)


@needs_groups
@pytest.mark.skipif(len(allowed_cores()) < 2, reason="two cores are needed")
def test_cores_of_a_project_change_around_those_of_its_agents_and_runs(groups: CpuGroups) -> None:
    low, high = str(min(allowed_cores())), str(CORE)
    leased = groups.enter(
        [owner("p", cores=core_list(allowed_cores())), owner("a", cores=low)], GroupLimits(cores=frozenset({int(low)}))
    )
    agent = above(leased)
    project = above(agent)
    groups.change(owner("p", cores=low))
    assert cores_of(project, agent, leased) == [low, low, low]
    groups.change(owner("p", cores=high))  # its run keeps what it has leased
    assert cores_of(project, agent, leased) == [f"{low}-{high}" if CORE == 1 else f"{low},{high}", low, low]
    assert groups.not_in_force([owner("p"), owner("a")]) == {}
    groups.change(owner("p"))
    assert cores_of(agent, leased) == [low, low]
    groups.leave(leased)


@needs_groups
@pytest.mark.skipif(len(allowed_cores()) < 2, reason="two cores are needed")
def test_a_group_is_kept_off_its_cores_while_runs_elsewhere_have_leased_all_of_them(groups: CpuGroups) -> None:
    """Its agent or its project was given them while its run was in progress."""
    every, high = core_list(allowed_cores()), str(CORE)
    others = core_list(allowed_cores() - {CORE})
    names = [owner("p"), owner("a")]
    run = groups.enter(names, GroupLimits())
    agent, (lower, upper) = above(run), (frozenset(allowed_cores() - {CORE}), frozenset({CORE}))
    groups.set_open(lower)
    groups.change(owner("a", cores=high))
    assert cores_of(agent) == [others]
    groups.change(owner("p", cores=high))
    assert cores_of(above(agent), agent) == [others, others]
    groups.set_open(allowed_cores())
    assert cores_of(above(agent), agent) == [high, high]
    groups.set_open(upper)
    assert cores_of(above(agent), agent) == [high, high]
    groups.change(owner("p"))
    groups.set_open(lower)  # a run of another agent of this project has leased it
    owner_of_lease = groups.enter([owner("p"), owner("b", cores=high)], GroupLimits(cores=upper))
    assert cores_of(above(agent), agent, owner_of_lease) == [every, others, high]
    groups.change(owner("p", cores=high))
    groups.change(owner("a"))
    assert cores_of(above(agent), agent, owner_of_lease) == [every, every, high]  # affinity keeps its run off
    assert groups.not_in_force([*names, owner("b")]) == {}
    for each in (run, owner_of_lease):
        groups.leave(each)


@needs_groups
def test_what_a_group_cannot_be_given_is_said_with_the_reason(groups: CpuGroups) -> None:
    """Where version 1 keeps cores apart from shares, a group that was made without a folder for them has none."""
    run = groups.enter([owner("p", weight=2)], GroupLimits())
    groups.change(owner("p", cores=str(CORE)))
    missing = {} if above(run).can_limit("cores") else {"p": {"cores": "the group was created without it"}}
    assert groups.not_in_force([owner("p")]) == missing
    groups.change(owner("p", weight=2))
    assert groups.not_in_force([owner("p")]) == {}
    groups.leave(run)


@pytest.mark.parametrize(
    ("where", "cores", "how"),
    [
        ("program", "cooperative", "as the affinity of each process, which a program may change; EBUSY"),
        ("process", "refused", "EBUSY"),
    ],
)
def test_what_the_kernel_did_not_take_is_not_reported_as_enforced(where: Where, cores: str, how: str) -> None:
    support: Support = {feature: FeatureSupport(feature, 1) for feature in FEATURES}
    missing = {"quota": "EINVAL; in force: 5ms/100ms", "cores": "EBUSY"}
    cpu = CpuSettings(weight=2, quota="20ms/100ms", cores="0-1")
    states = cpu_states(cpu, support, where, usable=FOUR, missing=missing)
    assert [each.state for each in states] == ["enforced", "refused", cores]
    assert states[1].how == "EINVAL; in force: 5ms/100ms"
    assert how in states[2].how


# --- without groups --------------------------------------------------------------------------------


def test_a_weight_becomes_the_nearest_niceness() -> None:
    assert [niceness(weight) for weight in (1, 3, 1 / 3, 10, 100, 0.01)] == [0, -5, 5, -10, -20, 19]


def test_class_and_realtime_become_scheduling() -> None:
    assert run_scheduling(CpuSettings()) is None
    assert run_scheduling(CpuSettings(), nice=5) == Scheduling(nice=5)
    assert run_scheduling(CpuSettings(class_="batch")) == Scheduling(policy="batch", slice_ns=12_000_000)
    assert run_scheduling(CpuSettings(class_="sensitive"), nice=2) == Scheduling(nice=2, slice_ns=750_000)
    assert run_scheduling(CpuSettings(realtime="fifo:3")) == Scheduling(policy="fifo", priority=3)
    deadline = Scheduling(policy="deadline", runtime_ns=2_000_000, deadline_ns=10_000_000, period_ns=10_000_000)
    assert run_scheduling(CpuSettings(realtime="deadline:2/10")) == deadline


def test_what_a_setting_amounts_to_depends_on_the_machine_and_on_where_it_runs() -> None:
    cpu = CpuSettings(weight=3, quota="20ms/100ms", cores="0", lease=1, class_="batch", realtime="fifo:1")
    none: Support = {feature: FeatureSupport(feature, None, "there are none") for feature in FEATURES}
    some: Support = {feature: FeatureSupport(feature, 2) for feature in FEATURES}

    def states(support: Support, where: Where, granted: tuple[str, ...] = ("batch",)) -> list[str]:
        denied = denied_policies(granted, in_group=False, on_all_cores=True)
        return [each.state for each in cpu_states(cpu, support, where, usable=FOUR, denied=denied)]

    assert states(some, "program") == [*["enforced"] * 4, "refused", "refused"]  # class: beside realtime, never
    assert states(some, "program", ("batch", "fifo")) == [
        *("refused", "refused"),  # weight and quota: they are not for realtime processes
        *("enforced", "enforced", "refused", "enforced"),
    ]
    assert states(none, "program", ("batch", "fifo")) == ["refused", *["cooperative"] * 3, "refused", "enforced"]
    assert states(none, "program") == ["refused", *["cooperative"] * 3, "refused", "refused"]  # no niceness either
    assert states(none, "process") == ["refused"] * 6
    assert states(some, "thread") == ["refused"] * 6
    plain = CpuSettings(weight=3, class_="batch")
    assert [each.state for each in cpu_states(plain, none, usable=FOUR)] == ["cooperative", "enforced"]
    assert str(cpu_states(plain, some, usable=FOUR)[0]) == "cpu weight = 3 is enforced: by control groups, version 2"


def test_which_policies_a_process_gets_depends_on_the_user_its_group_and_its_cores() -> None:
    every = {"batch", "slice", "fifo", "rr", "deadline"}
    assert denied_policies(every, in_group=False, on_all_cores=True) == {}
    assert denied_policies(every, in_group=True, on_all_cores=True).keys() == {"fifo", "rr"}
    assert denied_policies(every, in_group=False, on_all_cores=False).keys() == {"deadline"}
    denied = denied_policies({"batch", "slice"}, in_group=True, on_all_cores=False)
    (why,) = set(denied.values())
    assert why == "this machine does not allow it to this user; root, CAP_SYS_NICE or a raised limit may be needed"


def test_what_a_realtime_policy_leaves_without_effect_is_refused_unless_the_policy_is() -> None:
    """The policy may be the project's, and the weight and the quota the agent's."""
    some: Support = {feature: FeatureSupport(feature, 2) for feature in FEATURES}
    cpu, policy = CpuSettings(weight=3, quota="20ms/100ms"), RealtimeRequest("fifo", 1)
    both = cpu_states(cpu, some, usable=FOUR, policy=policy)
    assert [str(each) for each in both] == [
        "cpu weight = 3 is refused: the kernel runs realtime processes before all shares",
        "cpu quota = 20ms/100ms is refused: the kernel holds no realtime process to the quota of a control group",
    ]
    denied = cpu_states(cpu, some, usable=FOUR, policy=policy, denied={"fifo": "no right"})
    missing = cpu_states(cpu, some, usable=FOUR, policy=policy, missing={"realtime": "EPERM"})
    assert [each.state for each in (*denied, *missing)] == ["enforced"] * 4


ENFORCED = ("enforced", "by control groups, version 2")
CORE_STATES = [
    ("0-3", None, [("0-3", *ENFORCED)]),
    ("2-9", None, [("2-3", *ENFORCED), ("4-9", "refused", "it can use cores 0-3 here")]),
    ("7", None, [("7", "refused", "it can use cores 0-3 here")]),
    ("0-3", {1, 2}, [("1-2", *ENFORCED), ("0,3", "refused", "it can use cores 1-2 here")]),
    ("0", {1, 9}, [("0", "refused", "it can use cores 1 here")]),
    ("0", {9}, [("0", "refused", "it can use no core here")]),
]


@pytest.mark.parametrize("where", ["program", "process"])
@pytest.mark.parametrize(("cores", "within", "expected"), CORE_STATES)
def test_cores_that_cannot_be_used_are_refused_and_the_others_are_kept(
    where: Where, cores: str, within: set[int] | None, expected: list[tuple[str, str, str]]
) -> None:
    """On a machine with four cores, for a project, or for an agent whose project allows the cores `within`."""
    support: Support = {feature: FeatureSupport(feature, 2) for feature in FEATURES}
    allowed = None if within is None else frozenset(within)
    states = cpu_states(CpuSettings(cores=cores), support, where, usable=FOUR, within=allowed)
    assert [(each.value, each.state, each.how) for each in states] == expected


@pytest.mark.parametrize(
    ("cpu", "within", "why"),
    [
        (CpuSettings(lease=3), None, ""),
        (CpuSettings(lease=4), None, "4 of 4 cores: one stays for everything else"),
        (CpuSettings(lease=1, cores="3"), None, ""),
        (CpuSettings(lease=2, cores="3-9"), None, "2 asked, and it can use 1 of the cores here"),
        (CpuSettings(lease=2, cores="1-3"), {0, 1}, "2 asked, and it can use 1 of the cores here"),
        (CpuSettings(lease=2), {0, 1}, ""),
    ],
)
def test_a_lease_that_no_order_of_runs_can_grant_is_refused(
    cpu: CpuSettings, within: set[int] | None, why: str
) -> None:
    support: Support = {feature: FeatureSupport(feature, 2) for feature in FEATURES}
    allowed = None if within is None else frozenset(within)
    states = {each.setting: each for each in cpu_states(cpu, support, usable=FOUR, within=allowed)}
    assert (states["lease"].state, states["lease"].how) == (("refused", why) if why else ENFORCED)


def test_a_quota_by_signals_is_shared_by_sessions_and_holds_their_children() -> None:
    """Two sessions share 10 ms per 100 ms; one of them works in a child that has left its process group."""
    leaves = "setsid sh -c 'while :; do :; done' & echo ready; wait"
    quotas = QuotaSignals(AwakeClock(), cores=len(allowed_cores()))
    with ReaperClient() as reaper, running(reaper, sh(leaves)) as (one, _), running(reaper, py(HOG)) as (two, _):
        (child,) = descendants_of(one.pid)
        for session in (one, two):
            quotas.hold(session, {"agent": CpuQuota(10_000, 100_000)})
        for _ in range(2):
            used = tree_cpu_ns(child)
            until(lambda: state_of(child) == state_of(two.pid) == "T")
            until(lambda: state_of(child) != "T" and state_of(two.pid) != "T")
            assert tree_cpu_ns(child) > used  # it ran in between
        until(lambda: state_of(two.pid) == "T")
        quotas.release(two)
        until(lambda: state_of(two.pid) != "T")
        quotas.close()
        until(lambda: state_of(one.pid) != "T")


def test_a_quota_by_signals_that_changes_is_in_force_for_what_runs() -> None:
    """One that was not there when the session began, too; and without one it is continued."""
    quotas = QuotaSignals(AwakeClock(), cores=len(allowed_cores()))
    with ReaperClient() as reaper, running(reaper, py(HOG)) as (session, _):
        quotas.hold(session, {"agent": None})
        assert quotas.has("agent")
        until(lambda: tree_cpu_ns(session.pid) > 50_000_000)
        quotas.change("agent", CpuQuota(40_000, 1_000_000))
        assert not quotas._stopped  # by what it has used before
        until(lambda: state_of(session.pid) == "T")
        quotas.change("agent", None)
        until(lambda: state_of(session.pid) != "T")
        quotas.release(session)
        assert not quotas.has("agent")
        quotas.change("agent", CpuQuota(1_000, 1_000_000))  # of an agent that has nothing in progress
        quotas.close()


def test_a_niceness_is_in_force_for_the_whole_session(reaper: ReaperClient) -> None:
    """Right after the start, also for what the command has started by then; autogroup: the kernel compares sessions."""
    starts = sh("sh -c 'exec sleep 60' & echo $!; wait")
    nice = Command(argv=starts.argv, env=starts.env, scheduling=Scheduling(nice=7))
    with Pipe() as pipe:
        session = reaper.spawn(nice, stdout=pipe.theirs)
        for pid in (session.pid, int(pipe.line())):
            until(partial(_has_niceness, pid, 7))
        session.kill()
        assert session.wait(PATIENCE_S) is not None


def _has_niceness(pid: int, nice: int) -> bool:
    autogroup = Path(f"/proc/{pid}/autogroup")
    is_grouped = not autogroup.exists() or autogroup.read_text().endswith(f"nice {nice}\n")
    return is_grouped and os.getpriority(os.PRIO_PROCESS, pid) == nice

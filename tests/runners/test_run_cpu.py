"""Runs with `cpu` settings: programs, functions in processes and functions on threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from rota.errors import FleetInvalid
from rota.fleet.agent_settings import AgentSettings
from rota.fleet.run_cpu import NO_GROUPS, RunCpu, run_cpu
from rota.fleet.runners.callable import CallableRunner
from rota.fleet.runners.command import CommandRunner
from rota.fleet.runners.contract import RunChannel
from rota.fleet.runners.cpu_hold import CpuHold
from rota.fleet.runners.resources import RunnerResources
from rota.host.cgroup_mounts import hierarchies
from rota.host.cgroups import Cgroups
from rota.host.command import Command
from rota.host.cpu_groups import CPU_FEATURES, CpuOwner
from rota.host.thread_settings import allowed_cores
from rota.model.cpu import CpuSettings, core_list
from rota.model.work import Limits, Project
from tests.host.support import until
from tests.runners import functions
from tests.runners.recording import RecordingChannel, agent, assignment, shell

USABLE = allowed_cores()
CORE = max(USABLE)
SUPPORT = Cgroups().support
needs_groups = pytest.mark.skipif(
    not all(SUPPORT[feature].works for feature in CPU_FEATURES),
    reason="no control groups for CPU time: none can be made here",
)


def asked(project: dict[str, Any] | None = None, *, usable: frozenset[int] = USABLE, **fields: Any) -> RunCpu:
    settings = AgentSettings(argv=("x",), runner="command", cpu=CpuSettings(**fields) if fields else None)
    owner = None if project is None else Project(project_id="p", name="p", weight=2000, metadata={"cpu": project})
    found = run_cpu(agent("a"), settings, owner, usable)
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def no_group_is_left() -> Iterator[None]:
    yield
    assert [folder for each in hierarchies() for folder in each.base.glob(f"rota-{os.getpid()}-*")] == []


def test_an_agent_without_settings_has_none() -> None:
    assert run_cpu(agent("a"), AgentSettings(), None, USABLE) is None
    assert run_cpu(agent("a"), AgentSettings(), Project(project_id="p", name="p"), USABLE) is None
    with pytest.raises(FleetInvalid, match="weight must lie"):
        asked({"weight": 0})


def test_settings_of_a_project_and_of_an_agent_are_levels_and_the_run_asks_for_both() -> None:
    project = {"weight": 2, "cores": "0-3", "class": "batch"}
    cpu = asked(project, quota="20ms/100ms", cores="2-5", usable=frozenset(range(8)))
    assert [owner.key for owner in cpu.owners] == ["project:p", f"agent:{agent('a').pid}"]
    assert cpu.allowed == frozenset({2, 3})
    assert (cpu.own.class_, cpu.own.quota, cpu.own.weight) == ("batch", "20ms/100ms", None)


@needs_groups
def test_a_program_runs_in_its_group_and_says_what_is_enforced(
    resources: RunnerResources, channel: RecordingChannel
) -> None:
    cpu = asked({"weight": 3}, quota="50ms/100ms", cores=str(CORE))
    script = shell("cat /proc/self/cgroup; taskset -pc $$; sh -c 'i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done'")
    outcome = CommandRunner(resources).run(assignment(script, cpu=cpu), channel)
    assert outcome.exit_kind == "completed"
    written = channel.log_tail()
    assert f"rota-{os.getpid()}-" in written
    assert written.rstrip().endswith(f": {CORE}")
    assert outcome.cpu_ms > 0
    assert channel.advisories == ()
    version = SUPPORT["weight"].version
    assert channel.enforced[0] == f"p: cpu weight = 3 is enforced: by control groups, version {version}"
    assert len(channel.enforced) == 3


@needs_groups
def test_changed_settings_are_read_once_for_runs_in_groups_and_those_held_by_signals(
    resources: RunnerResources,
) -> None:
    """Both are there if the group of one run could not be made."""
    cpu = asked(weight=2)
    (owner,) = cpu.owners
    group = resources.cpu_groups.enter(cpu.owners, cpu.limits(Limits()))
    session = resources.reaper.spawn(Command(argv=("sleep", "60")))
    resources.quotas.hold(session, {owner.key: None})
    reads: list[CpuOwner] = []

    def read() -> CpuOwner:
        reads.append(owner._replace(cpu=CpuSettings(weight=3)))
        return reads[-1]

    resources.cpu_changed(owner.key, read)
    resources.cpu_changed("agent:unknown", read)
    session.kill()
    session.wait()
    resources.quotas.release(session)
    resources.cpu_groups.leave(group)
    assert len(reads) == 1


@pytest.mark.skipif(len(USABLE) < 2, reason="one core is always the same")
@pytest.mark.parametrize("use_groups", [pytest.param(True, marks=needs_groups), False], ids=["groups", "none"])
def test_changed_cores_apply_to_a_program_that_runs(resources: RunnerResources, use_groups: bool) -> None:
    """More of them, fewer, some where there were none before, and all again."""
    cpu, one, other = asked(weight=1), str(min(USABLE)), str(CORE)
    (owner,) = cpu.owners
    hold = CpuHold(resources, assignment(shell("sleep 60")), cpu, [], use_groups=use_groups)
    session = resources.reaper.spawn(Command(argv=("sleep", "60")), group=hold.group)
    hold.started(session)
    found = []
    for cores in (one, f"{one},{other}", other, None):
        resources.cpu_changed(owner.key, partial(owner._replace, cpu=CpuSettings(weight=1, cores=cores)))
        found.append(allowed_cores(session.pid))
    session.kill()
    session.wait()
    hold.end(session)
    assert found == [{min(USABLE)}, {min(USABLE), CORE}, {CORE}, USABLE]


def test_without_groups_a_program_is_nice_and_says_what_is_only_cooperative(
    resources: RunnerResources, channel: RecordingChannel
) -> None:
    cpu = asked(weight=0.33, cores=str(CORE), quota="500ms/1s")
    outcome = CommandRunner(resources, use_groups=False).run(
        assignment(shell("until [ $(nice) = 5 ]; do :; done; nice; taskset -pc $$"), cpu=cpu), channel
    )
    assert outcome.exit_kind == "completed"
    nice, cores = channel.log_tail().splitlines()
    assert int(nice) == 5
    assert cores.endswith(f": {CORE}")
    assert [text.split(":")[0] for text in channel.advisories] == [
        "cpu weight = 0.33 is cooperative",
        "cpu quota = 500ms/1s is cooperative",
        f"cpu cores = {CORE} is cooperative",
    ]
    assert channel.enforced == ()


def test_without_groups_the_weight_of_a_function_in_a_process_is_refused_and_its_worker_is_not_made_nice(
    resources: RunnerResources, channel: RecordingChannel
) -> None:
    """A worker that may not take its niceness back would keep it for the functions of other agents."""
    resources._cgroups = Cgroups(versions=())
    runner = CallableRunner(resources, {"where": functions.where}, slots=1)
    process = AgentSettings(isolation="process")
    outcome = runner.run(assignment(process, name="where", cpu=asked(weight=0.33)), channel)
    runner.close()
    assert [text.split(":")[0] for text in channel.advisories] == ["cpu weight = 0.33 is refused"]
    assert outcome.result["nice"] == os.getpriority(os.PRIO_PROCESS, 0)


@pytest.mark.parametrize(
    ("cpu", "named"),
    [
        (asked(cores="998-999"), "a names cores 998-999"),
        (asked({"cores": "998"}), "p names cores 998"),
        (asked({"cores": "998"}, cores="0-997"), "p names cores 998, a names cores 0-997"),
    ],
)
@pytest.mark.parametrize("kind", ["program", "process"])
def test_cores_that_are_not_there_are_refused_before_the_run_starts(
    resources: RunnerResources, channel: RecordingChannel, cpu: RunCpu, named: str, kind: str
) -> None:
    if kind == "program":
        outcome = CommandRunner(resources).run(assignment(shell("true"), cpu=cpu), channel)
    else:
        runner = CallableRunner(resources, {"plain": functions.plain}, slots=1)
        process = assignment(AgentSettings(isolation="process"), {"a": 1, "b": 2}, name="plain", cpu=cpu)
        outcome = runner.run(process, channel)
        runner.close()
    assert outcome.exit_kind == "failed"
    assert f"there is no core that it may use: {named}; usable cores: {core_list(USABLE)}" in outcome.result["error"]
    assert outcome.result["hint"].startswith("Correct `cores`")


@pytest.mark.parametrize("use_groups", [pytest.param(True, marks=needs_groups), False])
def test_a_program_runs_on_those_of_its_cores_that_are_there_and_the_others_are_refused(
    resources: RunnerResources, channel: RecordingChannel, use_groups: bool
) -> None:
    """Its project has a core that it does not name, and it names cores that this machine does not have."""
    cpu = asked({"cores": core_list({*USABLE, 998})}, cores=f"{CORE},999")
    outcome = CommandRunner(resources, use_groups=use_groups).run(assignment(shell("taskset -pc $$"), cpu=cpu), channel)
    assert outcome.exit_kind == "completed"
    assert channel.log_tail().rstrip().endswith(f": {CORE}")
    refused = [text for text in channel.advisories if "refused" in text]
    assert refused == [
        f"p: cpu cores = 998 is refused: it can use cores {core_list(USABLE)} here",
        f"a: cpu cores = 999 is refused: it can use cores {core_list(USABLE)} here",
    ]
    kept = [*channel.enforced, *(text for text in channel.advisories if text not in refused)]
    how = "enforced" if use_groups else "cooperative"
    assert [text.split(":")[1] for text in kept] == [
        f" cpu cores = {core_list(USABLE)} is {how}",
        f" cpu cores = {CORE} is {how}",
    ]


def test_an_agent_has_settings_of_its_own_in_place_of_those_of_its_project() -> None:
    """Also if they are those that a run without settings has."""
    project = {"lease": 1, "class": "batch", "realtime": "fifo:1"}
    own = asked(project, lease=0, class_="normal", realtime="rr:2")
    assert (own.own.lease, own.own.class_, own.own.realtime) == (0, "normal", "rr:2")
    inherited = asked(project, weight=2).own
    assert (inherited.lease, inherited.class_, inherited.realtime) == (1, "batch", "fifo:1")
    told = [text.split(" is ")[0] for text, _state in own.states(NO_GROUPS, "thread")]
    assert told == ["a: cpu class = normal", "a: cpu realtime = rr:2"]  # nothing of the project


def test_a_run_asks_for_the_cores_that_project_and_agent_share_with_a_lease_or_without() -> None:
    assert asked({"cores": "0-3"}, cores="2-5").own.cores == "2-3"
    assert asked({"cores": "0-3"}, weight=2).own.cores == "0-3"
    assert asked({"cores": "0-3"}, cores="3-5", quota="200ms/100ms").own.quota is None  # more than core 3 has
    assert asked({"cores": "0-3"}, cores="2-5", lease=1).own.cores == "2-3"
    assert asked({"cores": "0-3", "lease": 1}).own.cores == "0-3"
    with pytest.raises(FleetInvalid, match="lease \\(2\\) is more than the cores that it may use \\(3\\)"):
        asked({"cores": "0-3"}, cores="3-5", lease=2)


def test_changed_cores_are_not_for_a_run_that_has_leased_some() -> None:
    cpu = asked({"cores": "0-3"}, cores="2-3", lease=1)
    changed = CpuSettings(cores="0-1", quota="20ms/100ms", realtime="fifo:3")
    other = cpu.changed(cpu.owners[1]._replace(cpu=changed))
    assert (other.own.cores, other.allowed) == ("0-1", frozenset({0, 1}) & USABLE)
    leased = msgspec.structs.replace(cpu, leased=frozenset({3}))
    same = leased.changed(leased.owners[1]._replace(cpu=changed)).changed(leased.owners[0]._replace(cpu=changed))
    assert [owner.cpu.cores for owner in same.owners] == ["0-3", "2-3"]
    assert (same.own.cores, same.own.lease, same.own.quota, same.own.realtime) == ("3", 1, "20ms/100ms", None)


@pytest.mark.skipif(len(allowed_cores()) < 2, reason="a lease needs two cores")
@pytest.mark.parametrize("use_groups", [pytest.param(True, marks=needs_groups), False])
def test_a_program_whose_cores_are_leased_by_others_is_kept_off_them_and_says_where_it_runs(
    resources: RunnerResources, channel: RecordingChannel, use_groups: bool
) -> None:
    others = allowed_cores() - {CORE}
    cpu = msgspec.structs.replace(asked(cores=str(CORE)), confinement=resources.confinement)
    resources.set_open(others)
    try:
        script = assignment(shell("taskset -pc $$"), cpu=cpu)
        outcome = CommandRunner(resources, use_groups=use_groups).run(script, channel)
    finally:
        resources.set_open(resources.confinement.usable)
    assert outcome.exit_kind == "completed"
    assert channel.log_tail().rstrip().endswith(f": {core_list(others)}")
    elsewhere = f"it runs on {core_list(others)} until they are returned"
    assert channel.advisories[-1] == f"cores {CORE} are leased by other runs: {elsewhere}"


class _Told:
    """A supervisor that is told of changes."""

    def __init__(self) -> None:
        self.log: list[list[str]] = []

    def settings_changed(self, *, advisories: list[str], enforced: list[str]) -> None:
        """Record them without the reasons."""
        self.log.append([each.partition(":")[0].removeprefix("cpu ") for each in (*advisories, *enforced)])


@pytest.mark.skipif(len(USABLE) < 2, reason="one core is always the same")
@pytest.mark.parametrize("use_groups", [pytest.param(True, marks=needs_groups), False], ids=["groups", "none"])
@pytest.mark.parametrize("where", ["program", "process"])
def test_a_run_says_what_changed_settings_amount_to(resources: RunnerResources, use_groups: bool, where: Any) -> None:
    """`rota show` went on with those of its start."""
    if where == "process" and not use_groups:
        pytest.skip("everything is refused there")
    told, advisories = _Told(), ["of something else"]
    cpu = asked(weight=1, class_="batch")
    (owner,) = cpu.owners
    hold = CpuHold(resources, assignment(shell("sleep 60")), cpu, advisories, use_groups=use_groups, where=where)
    session = resources.reaper.spawn(Command(argv=("sleep", "60")), group=hold.group)
    if where == "program":
        hold.started(session)

    def change(**settings: Any) -> None:
        resources.cpu_changed(owner.key, lambda: owner._replace(cpu=CpuSettings(**settings)))

    change(weight=2, quota="40ms/100ms", class_="sensitive", lease=1)
    hold.report_changes(cast("RunChannel", told))  # it was changed while it started
    state = "enforced" if use_groups else "cooperative"
    weight = f"weight = {2 if use_groups else 1} is {state}"  # a niceness stays
    quota, cores = f"quota = 40ms/100ms is {state}", f"cores = {CORE} is {state}"
    began = {"of something else", weight, "class = batch is enforced"}  # the class stays, and no core is leased
    assert [set(each) for each in told.log] == [{*began, quota}]
    change(weight=2, quota="40ms/100ms", cores=str(CORE))
    change(weight=2, quota="40ms/100ms", cores=str(CORE))
    resources.set_open(USABLE - {CORE})
    resources.set_open(USABLE)
    is_leased = f"cores {CORE} are leased by other runs"
    assert [set(each) for each in told.log[1:]] == [{*began, quota, where} for where in (cores, is_leased, cores)]
    session.kill()
    session.wait()
    hold.end(session)
    change(weight=5)
    assert len(told.log) == 4


@pytest.mark.parametrize("use_groups", [pytest.param(True, marks=needs_groups), False])
def test_a_policy_is_reported_as_the_kernel_has_it(
    resources: RunnerResources, channel: RecordingChannel, use_groups: bool
) -> None:
    """The niceness of a weight is tried together with it, so it is not in force either."""
    cpu = asked({"class": "batch"}, weight=2, realtime="fifo:3")
    script = shell("n=0; until chrt -p $$ | grep -q FIFO || [ $n = 50 ]; do n=$((n+1)); done; chrt -p $$")
    outcome = CommandRunner(resources, use_groups=use_groups).run(assignment(script, cpu=cpu), channel)
    assert outcome.exit_kind == "completed"
    is_in_force = "SCHED_FIFO" in channel.log_tail()
    assert any("realtime = fifo:3 is enforced" in told for told in channel.enforced) == is_in_force
    assert any("realtime = fifo:3 is refused" in told for told in channel.advisories) != is_in_force
    assert not any(told.startswith("scheduling") for told in channel.advisories)  # it is told once, with its reason


@needs_groups
def test_a_function_in_a_process_says_that_its_group_has_no_realtime(channel: RecordingChannel) -> None:
    with RunnerResources() as resources:
        runner = CallableRunner(resources, {"where": functions.where}, slots=1)
        cpu = asked(realtime="fifo:3")
        outcome = runner.run(assignment(AgentSettings(isolation="process"), name="where", cpu=cpu), channel)
        runner.close()
    is_in_force = outcome.result["policy"] == os.SCHED_FIFO
    assert [told.partition(": ")[0] for told in channel.enforced] == ["cpu realtime = fifo:3 is enforced"] * is_in_force
    assert [told.partition(": ")[0] for told in channel.advisories] == ["cpu realtime = fifo:3 is refused"] * (
        not is_in_force
    )
    assert ("scheduling is not in force" in channel.log_tail()) != is_in_force


@needs_groups
def test_a_function_in_a_process_is_in_its_group_while_it_runs(channel: RecordingChannel) -> None:
    with RunnerResources() as resources:
        runner = CallableRunner(resources, {"where": functions.where}, slots=1)
        process = AgentSettings(isolation="process")
        inside = runner.run(assignment(process, name="where", cpu=asked(weight=2, class_="batch")), channel)
        outside = runner.run(assignment(process, name="where"), RecordingChannel())
        runner.close()
    assert f"rota-{os.getpid()}-" in inside.result["groups"]
    assert f"rota-{os.getpid()}-" not in outside.result["groups"]
    assert inside.result["pid"] == outside.result["pid"]  # the same worker, which has returned
    assert (inside.result["policy"], outside.result["policy"]) == (os.SCHED_BATCH, os.SCHED_OTHER)
    assert channel.advisories == ()


def test_a_function_on_a_thread_cannot_be_held_to_it(resources: RunnerResources, channel: RecordingChannel) -> None:
    runner = CallableRunner(resources, {"plain": functions.plain}, slots=1)
    outcome = runner.run(assignment(AgentSettings(), {"a": 1, "b": 2}, name="plain", cpu=asked(weight=2)), channel)
    runner.close()
    assert outcome.result == 3
    (advisory,) = channel.advisories
    assert advisory.startswith("cpu weight = 2 is refused: the function shares the supervisor's process")


@needs_groups
def test_what_a_program_leaves_behind_ends_with_its_group(
    resources: RunnerResources, channel: RecordingChannel, tmp_path: Path
) -> None:
    """A process with another session and an empty environment has no tie to its run but the group."""
    file = tmp_path / "pid"
    script = f"setsid env -i /bin/sh -c 'echo $$ > {file}; exec sleep 600' & while [ ! -s {file} ]; do :; done"
    outcome = CommandRunner(resources).run(assignment(shell(script), cpu=asked(weight=1)), channel)
    assert outcome.exit_kind == "completed"
    until(lambda: not Path("/proc", file.read_text().strip()).exists())

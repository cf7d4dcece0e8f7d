"""Control groups on this machine: a supported feature works, and a missing one is reported.

Machines support different features, so each test has two branches: the feature works, or it is refused. Which branch
ran depends on `Cgroups().support`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.errors import CommandInvalid, Conflict, HostUnsupported
from rota.host.cgroup_files import FEATURES, FILES_BY_VERSION, CgroupFiles, Feature, FileWrite, GroupLimits, Limit
from rota.host.cgroup_mounts import hierarchies
from rota.host.cgroups import Cgroups, ControlGroup
from rota.host.command import Command
from rota.host.reaper_client import ReaperClient
from rota.model.work import Limits
from tests.host.support import PATIENCE_S, Pipe, client, dies, output_of, py, running, sh, state_of, until, watch

MIB = 1024 * 1024
HOG = "print('ready', flush=True)\nwhile True: pass"


@pytest.fixture(params=[(1, 2), (1,), (2,)], ids=["any version", "version 1", "version 2"])
def cgroups(request: pytest.FixtureRequest) -> Iterator[Cgroups]:
    yield Cgroups(versions=request.param)
    left = [folder for hierarchy in hierarchies() for folder in hierarchy.base.glob(f"rota-{os.getpid()}-*")]
    assert left == [], "a group was left behind"


def works(cgroups: Cgroups, feature: Feature) -> bool:
    """Whether the feature works; if not, check that it has a reason."""
    support = cgroups.support[feature]
    assert support.works or support.why_not
    return support.works


def remove(group: ControlGroup) -> None:
    until(group.remove)


def test_every_feature_is_reported_with_its_version_or_a_reason(cgroups: Cgroups) -> None:
    assert set(cgroups.support) == set(FEATURES)
    for feature, support in cgroups.support.items():
        assert works(cgroups, feature) == (support.version in FILES_BY_VERSION)
    versions = {support.version for support in cgroups.support.values()} - {None}
    names = {frozenset({1, 2}): "hybrid", frozenset({1}): "v1", frozenset({2}): "v2", frozenset(): "none"}
    assert cgroups.backend == names[frozenset(versions)]  # type: ignore[arg-type]


def test_a_command_is_in_its_group_from_its_first_instruction_and_the_reaper_is_not(
    reaper: ReaperClient, cgroups: Cgroups
) -> None:
    before = Path(f"/proc/{reaper.pid}/cgroup").read_text()
    group = cgroups.create()
    output = output_of(reaper, sh("cat /proc/self/cgroup"), group=group).decode()
    assert output.count(f"/{group.name}\n") == len(group.folders)
    assert Path(f"/proc/{reaper.pid}/cgroup").read_text() == before
    remove(group)


def test_limits_that_the_machine_does_not_support_are_reported_and_the_others_are_enforced(cgroups: Cgroups) -> None:
    asked = GroupLimits(quota_us=50_000, weight=200, memory_bytes=64 * MIB, processes=20)
    group = cgroups.create(asked)
    missing = {advisory.what for advisory in group.advisories}
    limits: tuple[Limit, ...] = ("quota", "weight", "memory", "processes")
    assert missing == {limit for limit in limits if not works(cgroups, limit)}
    assert {limit for limit in limits if group.enforces(limit)} == set(limits) - missing
    group.set(GroupLimits())
    assert not any(group.enforces(limit) for limit in limits)
    remove(group)


ALLOCATES = """
import os, signal
allocated = 0
for _ in range(6):
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        data = b"x" * 20_000_000
        os.write(write_end, b".")
        signal.pause()
    os.close(write_end)
    allocated += len(os.read(read_end, 1))  # nothing, if it was killed
print(allocated)
"""


def test_memory_is_limited_for_all_processes_in_total(reaper: ReaperClient, cgroups: Cgroups) -> None:
    """Six processes that each stay within the limit and together exceed it."""
    group = cgroups.create(GroupLimits(memory_bytes=64 * MIB))
    allocated = output_of(reaper, py(ALLOCATES, limits=Limits(memory_bytes=64 * MIB)), group=group)
    if works(cgroups, "memory"):
        usage = group.usage()
        assert usage.oom_kills is not None
        assert usage.memory_bytes_max is not None
        assert usage.oom_kills > 0
        assert usage.memory_bytes_max <= 64 * MIB
    else:
        assert [advisory.what for advisory in group.advisories] == ["memory"]
        assert allocated == b"6\n"
    remove(group)


def test_the_memory_limit_of_the_group_replaces_that_of_each_process(reaper: ReaperClient, cgroups: Cgroups) -> None:
    group = cgroups.create(GroupLimits(memory_bytes=64 * MIB))
    output = output_of(reaper, sh("ulimit -d", limits=Limits(memory_bytes=64 * MIB)), group=group)
    assert output == (b"unlimited\n" if works(cgroups, "memory") else b"65536\n")
    remove(group)


FORKS = """
import os, signal
forked = 0
try:
    while forked < 300:
        if os.fork() == 0:
            signal.pause()
        forked += 1
except BlockingIOError:
    pass
print(forked, flush=True)
"""


def test_a_fork_storm_is_contained_and_cleaned_up(reaper: ReaperClient, cgroups: Cgroups) -> None:
    group = cgroups.create(GroupLimits(processes=20))
    with Pipe() as pipe:
        session = reaper.spawn(py(FORKS), stdout=pipe.theirs, group=group)
        pipe.close_theirs()
        assert pipe.line() == ("19" if works(cgroups, "processes") else "300")
        found = session.wait(PATIENCE_S)
    assert found is not None
    assert found.code == 0
    assert group.members() == []
    remove(group)


def test_a_quota_limits_cpu_time(reaper: ReaperClient, cgroups: Cgroups) -> None:
    """A busy loop with a tenth of a core is throttled, and the kernel counts how often."""
    group = cgroups.create(GroupLimits(quota_us=10_000, period_us=100_000))
    with running(reaper, py(HOG), group=group) as (_session, _pipe):
        if works(cgroups, "quota"):
            until(lambda: _throttled(group) >= 3)
        else:
            assert [advisory.what for advisory in group.advisories] == ["quota"]
    remove(group)


def _throttled(group: ControlGroup) -> int:
    files = [folder / "cpu.stat" for folder in group.folders if (folder / "cpu.stat").exists()]
    lines = [line.split() for file in files for line in file.read_text().splitlines()]
    return sum(int(count) for name, count in lines if name == "nr_throttled")


def quota_of(cgroups: Cgroups, group: ControlGroup) -> str:
    """The quota that the kernel reports."""
    return FILES_BY_VERSION[cgroups.support["quota"].version or 0].in_force("quota", group._folders["quota"])


def test_a_quota_that_the_kernel_refuses_leaves_the_one_before_and_is_reported_with_it(cgroups: Cgroups) -> None:
    """Version 1 takes no quota above that of the parent; version 2 takes it, and the parent's holds."""
    if not works(cgroups, "quota"):
        return
    parent = cgroups.create(GroupLimits(quota_us=500_000, period_us=1_000_000))
    parent.hold_groups()
    child = cgroups.create(GroupLimits(quota_us=40_000), parent=parent)
    assert (quota_of(cgroups, parent), quota_of(cgroups, child)) == ("500ms/1000ms", "40ms/100ms")
    refused = child.set(GroupLimits(quota_us=120_000, period_us=200_000))
    if cgroups.support["quota"].version == 1:
        assert [(each.what, each.asked, each.in_force) for each in refused] == [
            ("quota", "120ms/200ms", "40ms/100ms"),
        ]
        assert refused[0].why == "the group above it has less, or one below it has more [EINVAL]"
        assert not child.enforces("quota")
        assert child.set(GroupLimits(quota_us=100_000, period_us=200_000)) == ()
    assert parent.set(GroupLimits(quota_us=50_000)) == ()  # with another period
    assert parent.set(GroupLimits(quota_us=600_000, period_us=1_000_000)) == ()
    remove(child)
    remove(parent)


def test_a_group_with_a_weight_may_get_a_quota_later(cgroups: Cgroups) -> None:
    features: tuple[Feature, ...] = ("weight",)
    group = cgroups.create(features=features)
    if works(cgroups, "quota") and works(cgroups, "weight"):
        assert group.set(GroupLimits(quota_us=20_000)) == ()
        assert quota_of(cgroups, group) == "20ms/100ms"
    remove(group)


def test_weight_is_written_in_the_units_of_the_version(cgroups: Cgroups) -> None:
    group = cgroups.create(GroupLimits(weight=300))
    if works(cgroups, "weight"):
        files = {1: ("cpu.shares", "3072"), 2: ("cpu.weight", "300")}
        name, expected = files[cgroups.support["weight"].version or 0]
        (folder,) = [folder for folder in group.folders if (folder / name).exists()]
        assert (folder / name).read_text().strip() == expected
        group.set(GroupLimits(weight=100))
        assert (folder / name).read_text().strip() == {"cpu.shares": "1024", "cpu.weight": "100"}[name]
    remove(group)


def test_a_frozen_group_uses_no_cpu_time_until_it_thaws(reaper: ReaperClient, cgroups: Cgroups) -> None:
    group = cgroups.create()
    with running(reaper, py(HOG), group=group) as (session, _pipe):
        if works(cgroups, "freeze"):
            group.freeze()
            until(group.is_frozen)
            frozen_at = session.cpu_ns()
            reaper.spawn(sh("exit")).wait(PATIENCE_S)  # other sessions run meanwhile
            assert session.cpu_ns() == frozen_at
            group.thaw()
            until(lambda: session.cpu_ns() > frozen_at)
        else:
            with pytest.raises(HostUnsupported):
                group.freeze()
    remove(group)


def test_a_frozen_session_can_be_killed(reaper: ReaperClient, cgroups: Cgroups) -> None:
    group = cgroups.create()
    with running(reaper, py(HOG), group=group) as (session, _pipe):
        if works(cgroups, "freeze"):
            group.freeze()
            until(group.is_frozen)
        session.kill()
        found = session.wait(PATIENCE_S)
        assert found is not None
        assert found.signal == signal.SIGKILL
    remove(group)


EXITS_ON_TERM = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_a_frozen_session_can_still_act_on_term(reaper: ReaperClient, cgroups: Cgroups) -> None:
    group = cgroups.create()
    with running(reaper, py(EXITS_ON_TERM), group=group) as (session, _pipe):
        if works(cgroups, "freeze"):
            group.freeze()
            until(group.is_frozen)
        found = session.terminate(PATIENCE_S)
        assert (found.by, found.exit.code) == ("term", 7)
    remove(group)


ESCAPES = """
import os, signal, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-I", "-c",
            "import os, signal; print(os.getpid(), flush=True); signal.pause()"], {})
    os._exit(0)
os.wait()
print("ready", flush=True)
signal.pause()
"""


def test_killing_a_group_kills_processes_that_left_the_session(cgroups: Cgroups) -> None:
    group = cgroups.create()
    with ReaperClient() as reaper, Pipe() as pipe:
        session = reaper.spawn(py(ESCAPES), stdout=pipe.theirs, group=group)
        pipe.close_theirs()
        lines = {pipe.line(), pipe.line()}
        escaped = watch(int(next(line for line in lines if line != "ready")))
        if works(cgroups, "kill"):
            group.kill()
            assert dies(escaped)
        else:
            with pytest.raises(HostUnsupported):
                group.kill()
            os.close(escaped)
            session.kill()
        assert session.wait(PATIENCE_S) is not None
    remove(group)  # by now the escaped process has been killed with the reaper


def test_the_usage_of_a_group_includes_exited_processes(reaper: ReaperClient, cgroups: Cgroups) -> None:
    group = cgroups.create()
    reaper.spawn(sh("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"), group=group).wait(PATIENCE_S)
    cpu_ns = group.usage().cpu_ns
    assert cpu_ns is None if not works(cgroups, "cpu_usage") else cpu_ns is not None and cpu_ns > 1_000_000
    remove(group)


def test_a_group_accepts_one_session_only(reaper: ReaperClient, cgroups: Cgroups) -> None:
    group = cgroups.create()
    with running(reaper, py(HOG), group=group) as (_session, _pipe):
        if group.folders:
            with pytest.raises(Conflict, match="already has a session"):
                reaper.spawn(sh("exit"), group=group)
            assert not group.remove()
    remove(group)


def test_a_group_is_not_frozen_or_killed_while_the_reaper_is_in_it(reaper: ReaperClient, cgroups: Cgroups) -> None:
    """Freeze or kill right after requesting the start: the reaper, which is in the group briefly, is not affected."""
    for number in range(20):
        group = cgroups.create()
        session = reaper.start(py(HOG), group=group)
        if works(cgroups, "freeze") and number % 2:
            group.freeze()
        elif works(cgroups, "kill"):
            group.kill()
        session.kill()
        assert session.wait(PATIENCE_S) is not None
        remove(group)


def test_a_group_whose_session_failed_to_start_can_be_reused(reaper: ReaperClient, cgroups: Cgroups) -> None:
    group = cgroups.create()
    reaper.start(Command(argv=("/no/such/program",), env={}), group=group)
    if works(cgroups, "kill"):
        group.kill()
    assert output_of(reaper, sh("echo runs"), group=group) == b"runs\n"
    remove(group)


def test_a_frozen_group_is_not_joined(reaper: ReaperClient, cgroups: Cgroups) -> None:
    group = cgroups.create()
    if works(cgroups, "freeze"):
        group.freeze()
        until(group.is_frozen)
        with pytest.raises(Conflict, match="is frozen"):
            reaper.spawn(sh("exit"), group=group)
        group.thaw()
    remove(group)


CLIENT = """
import signal, sys
from rota.host.cgroups import Cgroups
from rota.host.command import Command
from rota.host.reaper_client import ReaperClient
reaper = ReaperClient(on_loss={on_loss!r})
group = Cgroups(versions={versions!r}).create()
session = reaper.spawn(Command(argv=(sys.executable, "-I", "-c", {hog!r}), env={{}}), stdout=1, group=group)
print(session.pid, group.name, flush=True)
sys.stdin.readline()
if group._support["freeze"].works:
    group.freeze()
    while not group.is_frozen(): pass
print("frozen", flush=True)
signal.pause()
"""


@pytest.mark.parametrize("versions", [(1,), (2,)], ids=["version 1", "version 2"])
@pytest.mark.parametrize("on_loss", ["kill", "continue"])
def test_when_the_client_dies_a_frozen_session_is_killed_or_continued(versions: tuple[int, ...], on_loss: str) -> None:
    hog = "while True: pass"
    with client(CLIENT.format(on_loss=on_loss, versions=versions, hog=hog)) as (process, pipe):
        pid, name = pipe.line().split()
        watched = watch(int(pid))
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
        assert pipe.line() == "frozen"
        process.kill()
        if on_loss == "continue":
            until(lambda: state_of(int(pid)) == "R")
            os.kill(int(pid), signal.SIGKILL)
        assert dies(watched)
    folders = [hierarchy.base / name for hierarchy in hierarchies()]
    if on_loss == "kill":
        until(lambda: not any(folder.exists() for folder in folders))  # the reaper removed them
    else:
        for folder in folders:
            if folder.exists():
                until(lambda folder=folder: _gone(folder))  # type: ignore[misc]


def test_when_the_reaper_dies_a_frozen_session_is_killed(cgroups: Cgroups) -> None:
    group = cgroups.create()
    with ReaperClient() as reaper, Pipe() as pipe:
        session = reaper.spawn(py(HOG), stdout=pipe.theirs, group=group)
        assert pipe.line() == "ready"
        watched = watch(session.pid)
        if works(cgroups, "freeze"):
            group.freeze()
            until(group.is_frozen)
        os.kill(reaper.pid, signal.SIGKILL)
        assert dies(watched)
    remove(group)


def _gone(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return not folder.exists()
    return True


def test_empty_groups_of_exited_processes_are_removed_at_the_next_start(cgroups: Cgroups) -> None:
    stale = [hierarchy.base / "rota-999999999-1" for hierarchy in {*cgroups._providers.values()}]
    for folder in stale:
        folder.mkdir()
    Cgroups()
    assert not any(folder.exists() for folder in stale)


def test_a_group_name_that_exists_is_skipped(cgroups: Cgroups) -> None:
    group = cgroups.create()
    number = int(group.name.rpartition("-")[2])
    taken = [folder.with_name(f"rota-{os.getpid()}-{number + 1}") for folder in group.folders[-1:]]
    for folder in taken:
        folder.mkdir()
    other = cgroups.create()
    assert all(folder.is_dir() for folder in other.folders)
    assert other.name not in {folder.name for folder in taken}
    remove(group)
    remove(other)
    assert not any(folder.exists() for folder in taken)  # empty leftovers are removed


def test_without_control_groups_commands_still_run(reaper: ReaperClient) -> None:
    none = Cgroups(versions=())
    assert none.backend == "none"
    group = none.create(GroupLimits(memory_bytes=64 * MIB, weight=50))
    assert {advisory.what for advisory in group.advisories} == {"memory", "weight"}
    assert output_of(reaper, sh("echo runs"), group=group) == b"runs\n"
    assert (group.folders, group.members(), group.remove()) == ([], [], True)
    assert group.usage().cpu_ns is None


# --- the files of both versions, without a machine that has them --------------------------------------

ALL_LIMITS = GroupLimits(quota_us=20_000, period_us=100_000, weight=50, memory_bytes=1000, processes=7)


def writes(files: CgroupFiles, limits: GroupLimits) -> list[FileWrite]:
    return [write for limit in ("quota", "weight", "memory", "processes") for write in files.limit(limit, limits)]


def test_the_files_of_version_2() -> None:
    assert writes(FILES_BY_VERSION[2], ALL_LIMITS) == [
        FileWrite("cpu.max", "20000 100000"),
        FileWrite("cpu.weight", "50"),
        FileWrite("memory.max", "1000"),
        FileWrite("memory.swap.max", "0", required=False),
        FileWrite("pids.max", "7"),
    ]
    assert [write.text for write in writes(FILES_BY_VERSION[2], GroupLimits())] == [
        "max 100000",
        "100",
        "max",
        "max",
        "max",
    ]


def test_the_files_of_version_1() -> None:
    assert writes(FILES_BY_VERSION[1], ALL_LIMITS) == [
        FileWrite("cpu.cfs_quota_us", "-1"),
        FileWrite("cpu.cfs_period_us", "100000"),
        FileWrite("cpu.cfs_quota_us", "20000"),
        FileWrite("cpu.shares", "512"),
        FileWrite("memory.limit_in_bytes", "1000"),
        FileWrite("memory.memsw.limit_in_bytes", "1000", required=False),
        FileWrite("pids.max", "7"),
    ]
    assert [write.text for write in writes(FILES_BY_VERSION[1], GroupLimits())] == [
        "-1",
        "100000",
        "1024",
        "-1",
        "-1",
        "max",
    ]


def test_the_smallest_weight_is_the_smallest_share_that_version_1_takes() -> None:
    assert FILES_BY_VERSION[1].limit("weight", GroupLimits(weight=1)) == [FileWrite("cpu.shares", "10")]


@pytest.mark.parametrize(
    "fields",
    [{"quota_us": 999}, {"period_us": 0}, {"weight": 0}, {"weight": 10_001}, {"memory_bytes": 0}, {"processes": 0}],
)
def test_limits_that_no_kernel_takes_are_refused_when_they_are_made(fields: dict[str, Any]) -> None:
    with pytest.raises(CommandInvalid):
        GroupLimits(**fields)


def test_cores_are_a_list_of_ranges_and_without_a_limit_those_of_the_parent() -> None:
    some, none = GroupLimits(cores=frozenset({0, 1, 3})), GroupLimits()
    assert [FILES_BY_VERSION[version].limit("cores", some) for version in (1, 2)] == [
        [FileWrite("cpuset.cpus", "0-1,3")],
        [FileWrite("cpuset.cpus", "0-1,3")],
    ]
    assert [FILES_BY_VERSION[version].limit("cores", none) for version in (1, 2)] == [
        [],
        [FileWrite("cpuset.cpus", "\n")],
    ]
    with pytest.raises(CommandInvalid, match="must name at least one core"):
        GroupLimits(cores=frozenset())


def test_a_discarded_group_is_emptied_and_removed(reaper: ReaperClient, cgroups: Cgroups) -> None:
    groups = [cgroups.create() for _ in range(3)]
    sessions = [reaper.spawn(py(HOG), group=group) for group in groups]
    for group in groups:
        cgroups.discard(group)  # each still has a process
    if works(cgroups, "kill"):
        assert all(session.wait(PATIENCE_S) is not None for session in sessions)
    for session in sessions:
        session.kill()
    cgroups.close()
    assert not [folder for group in groups for folder in group.folders if folder.exists()]

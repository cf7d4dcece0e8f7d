"""Control groups, on this very machine: what works is shown to work, and what does not is shown to be said.

A machine offers some features and not others, so each test has two halves: the feature at work, or its refusal. Which
half was run is for `Cgroups().support` to tell.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.errors import CommandInvalid, Conflict, HostUnsupported
from rota.host.cgroup_files import DIALECTS, FEATURES, Dialect, Feature, GroupLimits, Limit, Write
from rota.host.cgroup_mounts import trees
from rota.host.cgroups import Cgroups, Group
from rota.host.command import Command
from rota.host.reaper_client import Minder
from rota.model.work import Limits
from tests.host.support import PATIENCE_S, Pipe, client, dies, output_of, py, running, sh, state_of, until, watch

MIB = 1024 * 1024
HOG = "print('ready', flush=True)\nwhile True: pass"


@pytest.fixture(params=[(1, 2), (1,), (2,)], ids=["any version", "version 1", "version 2"])
def cgroups(request: pytest.FixtureRequest) -> Iterator[Cgroups]:
    yield Cgroups(versions=request.param)
    left = [folder for tree in trees() for folder in tree.base.glob(f"rota-{os.getpid()}-*")]
    assert left == [], "a group was left behind"


def works(cgroups: Cgroups, feature: Feature) -> bool:
    """Whether to test the feature; if not, that it says why not."""
    support = cgroups.support[feature]
    assert support.works or support.why_not
    return support.works


def remove(group: Group) -> None:
    until(group.remove)


def test_every_feature_is_reported_with_its_version_or_a_reason(cgroups: Cgroups) -> None:
    assert set(cgroups.support) == set(FEATURES)
    for feature, support in cgroups.support.items():
        assert works(cgroups, feature) == (support.version in DIALECTS)
    versions = {support.version for support in cgroups.support.values()} - {None}
    names = {frozenset({1, 2}): "hybrid", frozenset({1}): "v1", frozenset({2}): "v2", frozenset(): "none"}
    assert cgroups.backend == names[frozenset(versions)]  # type: ignore[arg-type]


def test_a_command_is_in_its_group_from_its_first_instruction_and_the_minder_is_not(
    minder: Minder, cgroups: Cgroups
) -> None:
    home = Path(f"/proc/{minder.pid}/cgroup").read_text()
    group = cgroups.make()
    told = output_of(minder, sh("cat /proc/self/cgroup"), group=group).decode()
    assert told.count(f"/{group.name}\n") == len(group.folders)
    assert Path(f"/proc/{minder.pid}/cgroup").read_text() == home
    remove(group)


def test_limits_that_the_machine_does_not_give_are_said_and_the_others_hold(cgroups: Cgroups) -> None:
    asked = GroupLimits(quota_us=50_000, weight=200, memory_bytes=64 * MIB, processes=20)
    group = cgroups.make(asked)
    missing = {advisory.what for advisory in group.advisories}
    limits: tuple[Limit, ...] = ("quota", "weight", "memory", "processes")
    assert missing == {limit for limit in limits if not works(cgroups, limit)}
    assert {limit for limit in limits if group.holds(limit)} == set(limits) - missing
    group.set(GroupLimits())
    assert not any(group.holds(limit) for limit in limits)
    remove(group)


HUNGRY = """
import os, signal
fed = 0
for _ in range(6):
    said, says = os.pipe()
    if os.fork() == 0:
        food = b"x" * 20_000_000
        os.write(says, b".")
        signal.pause()
    os.close(says)
    fed += len(os.read(said, 1))  # nothing, if it was killed
print(fed)
"""


def test_memory_is_limited_for_all_processes_together(minder: Minder, cgroups: Cgroups) -> None:
    """Six that each stay within the limit, and together do not."""
    group = cgroups.make(GroupLimits(memory_bytes=64 * MIB))
    fed = output_of(minder, py(HUNGRY, limits=Limits(memory_bytes=64 * MIB)), group=group)
    if works(cgroups, "memory"):
        usage = group.usage()
        assert usage.oom_kills is not None
        assert usage.memory_bytes_max is not None
        assert usage.oom_kills > 0
        assert usage.memory_bytes_max <= 64 * MIB
    else:
        assert [advisory.what for advisory in group.advisories] == ["memory"]
        assert fed == b"6\n"
    remove(group)


def test_the_groups_memory_limit_takes_the_place_of_the_processes_own(minder: Minder, cgroups: Cgroups) -> None:
    group = cgroups.make(GroupLimits(memory_bytes=64 * MIB))
    told = output_of(minder, sh("ulimit -d", limits=Limits(memory_bytes=64 * MIB)), group=group)
    assert told == (b"unlimited\n" if works(cgroups, "memory") else b"65536\n")
    remove(group)


FORKS = """
import os, signal
born = 0
try:
    while born < 300:
        if os.fork() == 0:
            signal.pause()
        born += 1
except BlockingIOError:
    pass
print(born, flush=True)
"""


def test_a_fork_storm_is_contained_and_cleaned_up(minder: Minder, cgroups: Cgroups) -> None:
    group = cgroups.make(GroupLimits(processes=20))
    with Pipe() as pipe:
        session = minder.spawn(py(FORKS), stdout=pipe.theirs, group=group)
        pipe.close_theirs()
        assert pipe.line() == ("19" if works(cgroups, "processes") else "300")
        found = session.wait(PATIENCE_S)
    assert found is not None
    assert found.code == 0
    assert group.members() == []
    remove(group)


def test_a_quota_holds_processor_time_down(minder: Minder, cgroups: Cgroups) -> None:
    """A tenth of a processor is not enough for a hog, and the kernel says how often it had to wait."""
    group = cgroups.make(GroupLimits(quota_us=10_000, period_us=100_000))
    with running(minder, py(HOG), group=group) as (_session, _pipe):
        if works(cgroups, "quota"):
            until(lambda: _throttled(group) >= 3)
        else:
            assert [advisory.what for advisory in group.advisories] == ["quota"]
    remove(group)


def _throttled(group: Group) -> int:
    files = [folder / "cpu.stat" for folder in group.folders if (folder / "cpu.stat").exists()]
    lines = [line.split() for file in files for line in file.read_text().splitlines()]
    return sum(int(count) for name, count in lines if name == "nr_throttled")


def test_weight_is_what_was_asked_in_the_versions_own_measure(cgroups: Cgroups) -> None:
    group = cgroups.make(GroupLimits(weight=300))
    if works(cgroups, "weight"):
        files = {1: ("cpu.shares", "3072"), 2: ("cpu.weight", "300")}
        name, expected = files[cgroups.support["weight"].version or 0]
        (folder,) = [folder for folder in group.folders if (folder / name).exists()]
        assert (folder / name).read_text().strip() == expected
        group.set(GroupLimits(weight=100))
        assert (folder / name).read_text().strip() == {"cpu.shares": "1024", "cpu.weight": "100"}[name]
    remove(group)


def test_a_frozen_group_stands_still_and_goes_on(minder: Minder, cgroups: Cgroups) -> None:
    group = cgroups.make()
    with running(minder, py(HOG), group=group) as (session, _pipe):
        if works(cgroups, "freeze"):
            group.freeze()
            until(group.is_frozen)
            stands_at = session.cpu_ns()
            minder.spawn(sh("exit")).wait(PATIENCE_S)  # others go on meanwhile
            assert session.cpu_ns() == stands_at
            group.thaw()
            until(lambda: session.cpu_ns() > stands_at)
        else:
            with pytest.raises(HostUnsupported):
                group.freeze()
    remove(group)


def test_a_frozen_session_dies_when_it_is_killed(minder: Minder, cgroups: Cgroups) -> None:
    group = cgroups.make()
    with running(minder, py(HOG), group=group) as (session, _pipe):
        if works(cgroups, "freeze"):
            group.freeze()
            until(group.is_frozen)
        session.kill()
        found = session.wait(PATIENCE_S)
        assert found is not None
        assert found.signal == signal.SIGKILL
    remove(group)


POLITE = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_a_frozen_session_can_still_act_on_term(minder: Minder, cgroups: Cgroups) -> None:
    group = cgroups.make()
    with running(minder, py(POLITE), group=group) as (session, _pipe):
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


def test_a_group_is_killed_with_all_who_escaped_from_the_session(cgroups: Cgroups) -> None:
    group = cgroups.make()
    with Minder() as minder, Pipe() as pipe:
        session = minder.spawn(py(ESCAPES), stdout=pipe.theirs, group=group)
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
    remove(group)  # by now also who escaped has ended, with the minder


def test_what_a_group_used_has_its_dead_in_it(minder: Minder, cgroups: Cgroups) -> None:
    group = cgroups.make()
    minder.spawn(sh("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"), group=group).wait(PATIENCE_S)
    cpu_ns = group.usage().cpu_ns
    assert cpu_ns is None if not works(cgroups, "cpu_usage") else cpu_ns is not None and cpu_ns > 1_000_000
    remove(group)


def test_a_group_takes_one_session_and_no_second(minder: Minder, cgroups: Cgroups) -> None:
    group = cgroups.make()
    with running(minder, py(HOG), group=group) as (_session, _pipe):
        if group.folders:
            with pytest.raises(Conflict, match="holds a session already"):
                minder.spawn(sh("exit"), group=group)
            assert not group.remove()
    remove(group)


def test_a_group_is_not_frozen_or_killed_under_the_minder(minder: Minder, cgroups: Cgroups) -> None:
    """As soon as the order is given we act on the group; the minder, which is in it for a moment, must not be hit."""
    for number in range(20):
        group = cgroups.make()
        session = minder.start(py(HOG), group=group)
        if works(cgroups, "freeze") and number % 2:
            group.freeze()
        elif works(cgroups, "kill"):
            group.kill()
        session.kill()
        assert session.wait(PATIENCE_S) is not None
        remove(group)


def test_a_group_whose_session_was_refused_can_be_used_again(minder: Minder, cgroups: Cgroups) -> None:
    group = cgroups.make()
    minder.start(Command(argv=("/no/such/program",), env={}), group=group)
    if works(cgroups, "kill"):
        group.kill()
    assert output_of(minder, sh("echo runs"), group=group) == b"runs\n"
    remove(group)


def test_a_frozen_group_is_not_joined(minder: Minder, cgroups: Cgroups) -> None:
    group = cgroups.make()
    if works(cgroups, "freeze"):
        group.freeze()
        until(group.is_frozen)
        with pytest.raises(Conflict, match="is frozen"):
            minder.spawn(sh("exit"), group=group)
        group.thaw()
    remove(group)


CLIENT = """
import signal, sys
from rota.host.cgroups import Cgroups
from rota.host.command import Command
from rota.host.reaper_client import Minder
minder = Minder(on_loss={on_loss!r})
group = Cgroups(versions={versions!r}).make()
session = minder.spawn(Command(argv=(sys.executable, "-I", "-c", {hog!r}), env={{}}), stdout=1, group=group)
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
def test_when_the_client_dies_a_frozen_session_is_killed_or_goes_on(versions: tuple[int, ...], on_loss: str) -> None:
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
    folders = [tree.base / name for tree in trees()]
    if on_loss == "kill":
        until(lambda: not any(folder.exists() for folder in folders))  # the minder cleaned up
    else:
        for folder in folders:
            if folder.exists():
                until(lambda folder=folder: _gone(folder))  # type: ignore[misc]


def test_when_the_minder_dies_a_frozen_session_is_killed(cgroups: Cgroups) -> None:
    group = cgroups.make()
    with Minder() as minder, Pipe() as pipe:
        session = minder.spawn(py(HOG), stdout=pipe.theirs, group=group)
        assert pipe.line() == "ready"
        watched = watch(session.pid)
        if works(cgroups, "freeze"):
            group.freeze()
            until(group.is_frozen)
        os.kill(minder.pid, signal.SIGKILL)
        assert dies(watched)
    remove(group)


def _gone(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return not folder.exists()
    return True


def test_empty_groups_of_processes_that_are_gone_are_removed_at_the_next_start(cgroups: Cgroups) -> None:
    stale = [tree.base / "rota-999999999-1" for tree in {*cgroups._homes.values()}]
    for folder in stale:
        folder.mkdir()
    Cgroups()
    assert not any(folder.exists() for folder in stale)


def test_a_name_that_is_taken_is_passed_over(cgroups: Cgroups) -> None:
    group = cgroups.make()
    number = int(group.name.rpartition("-")[2])
    taken = [folder.with_name(f"rota-{os.getpid()}-{number + 1}") for folder in group.folders[-1:]]
    for folder in taken:
        folder.mkdir()
    other = cgroups.make()
    assert all(folder.is_dir() for folder in other.folders)
    assert other.name not in {folder.name for folder in taken}
    remove(group)
    remove(other)
    assert not any(folder.exists() for folder in taken)  # what is empty and in the way goes


def test_without_any_control_group_everything_still_runs(minder: Minder) -> None:
    none = Cgroups(versions=())
    assert none.backend == "none"
    group = none.make(GroupLimits(memory_bytes=64 * MIB, weight=50))
    assert {advisory.what for advisory in group.advisories} == {"memory", "weight"}
    assert output_of(minder, sh("echo runs"), group=group) == b"runs\n"
    assert (group.folders, group.members(), group.remove()) == ([], [], True)
    assert group.usage().cpu_ns is None


# --- the words, without a machine that has them --------------------------------------------------------

EVERYTHING = GroupLimits(quota_us=20_000, period_us=100_000, weight=50, memory_bytes=1000, processes=7)


def words(dialect: Dialect, limits: GroupLimits) -> list[Write]:
    return [word for limit in ("quota", "weight", "memory", "processes") for word in dialect.limit(limit, limits)]


def test_version_2_says_it_like_this() -> None:
    assert words(DIALECTS[2], EVERYTHING) == [
        Write("cpu.max", "20000 100000"),
        Write("cpu.weight", "50"),
        Write("memory.max", "1000"),
        Write("memory.swap.max", "0", needed=False),
        Write("pids.max", "7"),
    ]
    assert [word.text for word in words(DIALECTS[2], GroupLimits())] == ["max 100000", "100", "max", "max", "max"]


def test_version_1_says_it_like_this() -> None:
    assert words(DIALECTS[1], EVERYTHING) == [
        Write("cpu.cfs_period_us", "100000"),
        Write("cpu.cfs_quota_us", "20000"),
        Write("cpu.shares", "512"),
        Write("memory.limit_in_bytes", "1000"),
        Write("memory.memsw.limit_in_bytes", "1000", needed=False),
        Write("pids.max", "7"),
    ]
    assert [word.text for word in words(DIALECTS[1], GroupLimits())] == ["100000", "-1", "1024", "-1", "-1", "max"]


def test_the_smallest_weight_is_the_smallest_share_that_version_1_takes() -> None:
    assert DIALECTS[1].limit("weight", GroupLimits(weight=1)) == [Write("cpu.shares", "10")]


@pytest.mark.parametrize(
    "fields",
    [{"quota_us": 999}, {"period_us": 0}, {"weight": 0}, {"weight": 10_001}, {"memory_bytes": 0}, {"processes": 0}],
)
def test_limits_that_no_kernel_takes_are_refused_when_they_are_made(fields: dict[str, int]) -> None:
    with pytest.raises(CommandInvalid):
        GroupLimits(**fields)

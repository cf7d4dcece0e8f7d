"""The live driver: real commands on a real core. What they do is told by themselves, through files and pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from rota.cpu.events import Migrate, PostTimeout
from rota.errors import CommandInvalid, ContextExists, EntityUnknown, LeaseRefused, SpawnFailed
from rota.host.affinity import allowed_cores
from rota.host.command import Command
from rota.runtime.cpu_driver import CpuDriver, DriverReport

MS = 1_000_000
CORE = max(allowed_cores())
HOG = "while True: pass"


def python(code: str) -> Command:
    return Command(argv=(sys.executable, "-S", "-c", code), env={"PATH": os.environ["PATH"]})


def count_to(number: int) -> Command:
    """A command that has a certain amount of work to do, and ends."""
    return python(f"for _ in range({number}): pass")


@contextmanager
def driver(*cores: int, slice_ns: int = 2 * MS) -> Iterator[CpuDriver]:
    with CpuDriver(cores=cores or (CORE,), slice_ns=slice_ns) as made:
        yield made


def turns(report: DriverReport) -> dict[str, int]:
    return {one.name: one.turn_ns for one in report.processes}


def state_of(pid: int) -> str:
    return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]


def test_commands_run_to_their_end_in_turns_and_nobody_is_left() -> None:
    with driver() as cpu:
        cpu.launch("a", count_to(1_000_000))
        cpu.launch("b", count_to(1_000_000))
        cpu.run()
        report = cpu.report()
    assert [one.name for one in report.processes] == ["a", "b"]
    assert all(one.cpu_ns > 0 and one.turn_ns > 0 for one in report.processes)
    assert sum(one.share_ppm for one in report.processes) in range(999_990, 1_000_001)
    cpu.machine.audit()


def test_two_hogs_have_turns_by_their_weights() -> None:
    """Counted in the turns that were given: how much of its turn a machine gives to a process is the machine's."""
    with driver() as cpu:
        cpu.launch("heavy", python(HOG), weight=3000)
        cpu.launch("light", python(HOG), weight=1000)
        cpu.run(0.4)
        had = turns(cpu.report())
    assert 0.6 < had["heavy"] / sum(had.values()) < 0.9


def test_while_one_runs_the_other_stands_still() -> None:
    with driver() as cpu:
        for name in ("a", "b"):
            cpu.launch(name, python(HOG))
        cpu.run(0.05)
        (runs,) = (one for one, _ in cpu._ends.values())
        (waits,) = (one for one in cpu._by_entity.values() if one is not runs)
        for one, state in ((waits, "T"), (runs, "R")):
            while state_of(one.session.pid) != state:
                os.sched_yield()  # a signal is on its way; if not, this test runs into its time limit
        assert allowed_cores(runs.session.pid) == {CORE}


def test_a_context_limits_a_process_to_its_budget_and_says_so() -> None:
    with driver() as cpu:
        entity = cpu.launch("a", python(HOG))
        cpu.limit("a", budget_ns=5 * MS, period_ns=50 * MS, endpoint=9)
        cpu.run(0.4)
        report = cpu.report()
        assert [one for one in cpu.notices if isinstance(one, PostTimeout)] == [PostTimeout(9, 1, entity, 1)]
    had = turns(report)["a"]
    assert had <= (report.wall_ns // (50 * MS) + 1) * 5 * MS + 100 * MS  # and what ticks were late
    assert had >= 5 * MS


def test_whoever_sleeps_gives_its_core_away_and_is_seen_to_wake(tmp_path: Path) -> None:
    """The sleeper waits for a byte that the hog writes only once it has had the core; then it ends, and so do we."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    sleeper = f"open({str(pipe)!r}, 'rb').read(1)\nfor _ in range(300000): pass"
    waker = f"for _ in range(300000): pass\nopen({str(pipe)!r}, 'wb').write(b'!')"
    with driver() as cpu:
        cpu.launch("sleeper", python(sleeper))
        cpu.launch("waker", python(waker))
        cpu.run()
        assert sorted(turns(cpu.report())) == ["sleeper", "waker"]
        assert cpu._by_entity == {}


def test_a_command_that_ends_while_it_stands_still_is_heard_of() -> None:
    with driver() as cpu:
        cpu.launch("a", python(HOG))
        cpu.launch("b", python(HOG))
        cpu.run(0.02)
        for process in list(cpu._by_entity.values()):
            process.session.kill()
        cpu.run()
        assert cpu._by_entity == {}


def test_a_name_can_be_used_again_when_its_command_has_ended() -> None:
    with driver() as cpu:
        for _ in range(2):
            cpu.launch("a", count_to(1000))
            with pytest.raises(ContextExists):
                cpu.launch("a", count_to(1000))
            cpu.run()


@pytest.mark.skipif(len(allowed_cores()) < 2, reason="a lease needs two cores")
def test_a_lease_empties_a_core_of_everybody_else() -> None:
    first, second = sorted(allowed_cores())[:2]
    with driver(first, second) as cpu:
        for name in ("a", "b", "c"):
            cpu.launch(name, python(HOG))
        cpu.limit("a", budget_ns=90 * MS, period_ns=100 * MS)
        cpu.run(0.05)
        cpu.lease("a", (second,))
        cpu.run(0.05)
        pinned = {one.name: allowed_cores(one.session.pid) for one in cpu._by_entity.values()}
        assert pinned["b"] == pinned["c"] == {first}
        assert not any(isinstance(one, Migrate) and one.target == 1 for one in list(cpu.notices)[-3:])
        with pytest.raises(LeaseRefused, match="are not free"):
            cpu.lease("a", (second,))


def test_what_cannot_be_is_refused_and_leaves_nothing_behind() -> None:
    with pytest.raises(CommandInvalid):
        CpuDriver(cores=())
    with driver() as cpu:
        with pytest.raises(SpawnFailed):
            cpu.launch("a", Command(argv=("no-such-program-anywhere",)))
        with pytest.raises(EntityUnknown, match="there is no command 'a'"):
            cpu.limit("a", budget_ns=1, period_ns=2)
        with pytest.raises(EntityUnknown, match="core 99 is not one that is driven"):
            cpu.lease("a", (99,))
        cpu.launch("a", count_to(1000))  # the name is free
        cpu.run()


DRIVER = """
import os, sys
from rota.host.command import Command
from rota.runtime.cpu_driver import CpuDriver
cpu = CpuDriver(cores=({core},), slice_ns=5_000_000)
for name in "ab":
    cpu.launch(name, Command(argv=(sys.executable, "-S", "-c", "while True: pass")))
print(*(one.session.pid for one in cpu._by_entity.values()), flush=True)
cpu.run()
"""


def test_when_the_driver_is_killed_every_process_it_stopped_is_continued() -> None:
    code = DRIVER.format(core=CORE)
    started = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    pids = [int(word) for word in started.stdout.readline().split()]
    pidfds = [os.pidfd_open(pid) for pid in pids]
    try:
        started.kill()
        started.wait()
        clocks = [Path("/proc") / str(pid) / "schedstat" for pid in pids]
        before = [clock.read_text().split()[0] for clock in clocks]
        while any(clock.read_text().split()[0] == seen for clock, seen in zip(clocks, before, strict=True)):
            os.sched_yield()  # each of them goes on, or this test runs into its time limit
    finally:
        for pidfd in pidfds:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
        started.stdout.close()


# --- the command -----------------------------------------------------------------------------------


def rota(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from rota.cli import main; main()", "cpu", "run", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_runs_commands_and_reports() -> None:
    done = rota("--weight", "a=3", "--cores", str(CORE), "--json", "--", "true", "+", "sh", "-c", "true")
    assert done.returncode == 0, done.stderr
    report = msgspec.json.decode(done.stdout, type=DriverReport)
    assert [one.name for one in report.processes] == ["a", "b"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--weight", "z=3", "--", "true"), "there is no command 'z'"),
        (("--weight", "a=x", "--", "true"), "'x' cannot be read"),
        (("--cores", "one", "--", "true"), "give numbers with commas"),
        (("--", "true", "+"), "separated by a lone +"),
        (("--budget", "a=20/10", "--", "true"), "longer than its period"),
    ],
)
def test_the_command_says_what_is_wrong_in_one_sentence(words: tuple[str, ...], said: str) -> None:
    done = rota(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr

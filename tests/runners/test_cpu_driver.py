"""The live driver: real commands on a real core. The commands report what they do through files and pipes."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from rota.cores.events import Migrate, PostTimeout
from rota.errors import CommandInvalid, ContextExists, EntityUnknown, LeaseRefused, SpawnFailed
from rota.fleet.cores_driver import CpuDriver, DriverReport
from rota.host.command import Command
from rota.host.thread_settings import Scheduling, allowed_cores, read_scheduling

MS = 1_000_000
CORE = max(allowed_cores())
HOG = "while True: pass"
PR_CAPBSET_DROP, CAP_SYS_NICE = 24, 23


def python(code: str) -> Command:
    return Command(argv=(sys.executable, "-S", "-c", code), env={"PATH": os.environ["PATH"]})


def count_to(number: int) -> Command:
    """A command that does a fixed amount of work and ends."""
    return python(f"for _ in range({number}): pass")


@contextmanager
def driver(*cores: int, slice_ns: int = 2 * MS) -> Iterator[CpuDriver]:
    with CpuDriver(cores=cores or (CORE,), slice_ns=slice_ns) as made:
        yield made


def core_ns_by_name(report: DriverReport) -> dict[str, int]:
    return {one.name: one.turn_ns for one in report.processes}


def state_of(pid: int) -> str:
    return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]


def test_commands_run_to_their_end_in_slices_and_none_is_left() -> None:
    with driver() as cpu:
        cpu.launch("a", count_to(1_000_000))
        cpu.launch("b", count_to(1_000_000))
        cpu.run()
        report = cpu.report()
    assert [one.name for one in report.processes] == ["a", "b"]
    assert all(one.cpu_ns > 0 and one.turn_ns > 0 for one in report.processes)
    assert sum(one.share_ppm for one in report.processes) in range(999_990, 1_000_001)
    cpu.engine.check_invariants()


def test_two_hogs_get_time_by_their_weights() -> None:
    """Measured by the slices granted: how much CPU time a process gets within its slice is up to the machine."""
    with driver() as cpu:
        cpu.launch("heavy", python(HOG), weight=3000)
        cpu.launch("light", python(HOG), weight=1000)
        cpu.run(0.4)
        had = core_ns_by_name(cpu.report())
    assert 0.6 < had["heavy"] / sum(had.values()) < 0.9


def test_while_one_runs_the_other_is_stopped() -> None:
    with driver() as cpu:
        for name in ("a", "b"):
            cpu.launch(name, python(HOG))
        cpu.run(0.05)
        (runs,) = (one for one, _ in cpu._running.values())
        (waits,) = (one for one in cpu._by_entity.values() if one is not runs)
        for one, state in ((waits, "T"), (runs, "R")):
            while state_of(one.session.pid) != state:
                os.sched_yield()  # a signal is in flight; otherwise this test times out
        assert allowed_cores(runs.session.pid) == {CORE}


def test_a_context_limits_a_process_to_its_budget_and_says_so() -> None:
    with driver() as cpu:
        entity = cpu.launch("a", python(HOG))
        cpu.limit("a", budget_ns=5 * MS, period_ns=50 * MS, endpoint=9)
        cpu.run(0.4)
        report = cpu.report()
        assert [one for one in cpu.notices if isinstance(one, PostTimeout)] == [PostTimeout(9, 1, entity, 1)]
    had = core_ns_by_name(report)["a"]
    assert had <= (report.wall_ns // (50 * MS) + 1) * 5 * MS + 100 * MS  # plus the lateness of ticks
    assert had >= 5 * MS


def test_a_sleeping_command_frees_its_core_and_its_wake_is_noticed(tmp_path: Path) -> None:
    """The sleeper waits for a byte that the hog writes once it has had the core; then both end."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    sleeper = f"open({str(pipe)!r}, 'rb').read(1)\nfor _ in range(300000): pass"
    waker = f"for _ in range(300000): pass\nopen({str(pipe)!r}, 'wb').write(b'!')"
    with driver() as cpu:
        cpu.launch("sleeper", python(sleeper))
        cpu.launch("waker", python(waker))
        cpu.run()
        assert sorted(core_ns_by_name(cpu.report())) == ["sleeper", "waker"]
        assert cpu._by_entity == {}


def test_a_command_that_ends_while_it_is_stopped_is_noticed() -> None:
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


@pytest.mark.parametrize(
    "wanted",
    [
        Scheduling(policy="fifo", priority=5),
        Scheduling(policy="rr", priority=5),
        Scheduling(policy="deadline", runtime_ns=1 * MS, deadline_ns=90 * MS, period_ns=100 * MS),
    ],
    ids=lambda wanted: wanted.policy,
)
def test_a_kernel_policy_is_applied_if_allowed_and_else_reported_as_cooperative(
    wanted: Scheduling,
) -> None:
    with driver() as cpu:
        command = msgspec.structs.replace(python(HOG), scheduling=wanted)
        cpu.launch("a", command)
        cpu.run(0.03)
        (process,) = cpu._by_entity.values()
        in_force = read_scheduling(process.session.pid)
        (row,) = cpu.report().processes
    advisory = [text for text in row.advisories if text.startswith("scheduling")]
    if advisory:
        assert in_force.policy == "other"
        assert f"({wanted} requested) is not in force" in advisory[0]
        assert "its time slices are cooperative" in advisory[0]
    else:
        assert in_force.policy == wanted.policy
        assert in_force.priority == wanted.priority
    if in_force.policy == "deadline":  # which the kernel does not pin to one core
        assert any("its placement is cooperative" in text for text in row.advisories)


@pytest.mark.skipif(len(allowed_cores()) < 2, reason="a lease needs two cores")
def test_a_lease_moves_other_commands_off_a_core() -> None:
    first, second = sorted(allowed_cores())[:2]
    with driver(first, second) as cpu:
        for name in ("a", "b", "c"):
            cpu.launch(name, python(HOG))
        cpu.limit("a", budget_ns=90 * MS, period_ns=100 * MS)
        cpu.run(0.05)
        cpu.lease("a", (second,))
        cpu.run(0.05)
        owner = cpu._find("a")
        while owner.core != second or owner.is_stopped:
            cpu.run(0.005)  # it moves to its core, or this test times out
        pinned = {one.name: allowed_cores(one.session.pid) for one in cpu._by_entity.values()}
        assert pinned == {"a": {second}, "b": {first}, "c": {first}}
        cpu.notices.clear()
        cpu.run(0.05)
        assert not any(isinstance(one, Migrate) for one in cpu.notices)
        with pytest.raises(LeaseRefused, match="are not free"):
            cpu.lease("a", (second,))


def test_an_invalid_request_is_refused_and_leaves_nothing_behind() -> None:
    with pytest.raises(CommandInvalid):
        CpuDriver(cores=())
    with driver() as cpu:
        with pytest.raises(SpawnFailed):
            cpu.launch("a", Command(argv=("no-such-program-anywhere",)))
        with pytest.raises(EntityUnknown, match="command 'a' does not exist"):
            cpu.limit("a", budget_ns=1, period_ns=2)
        with pytest.raises(EntityUnknown, match="core 99 is not driven"):
            cpu.lease("a", (99,))
        cpu.launch("a", count_to(1000))  # the name is free
        cpu.run()


DRIVER = """
import os, sys
from rota.host.command import Command
from rota.fleet.cores_driver import CpuDriver
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
            os.sched_yield()  # each of them continues, or this test times out
    finally:
        for pidfd in pidfds:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
        started.stdout.close()


# --- the command -----------------------------------------------------------------------------------


def rota(*words: str, preexec_fn: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from rota.cli import main; main()", "cpu", "run", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=preexec_fn)


def test_the_command_runs_commands_and_reports() -> None:
    done = rota("--weight", "a=3", "--cores", str(CORE), "--json", "--", "true", "+", "sh", "-c", "true")
    assert done.returncode == 0, done.stderr
    report = msgspec.json.decode(done.stdout, type=DriverReport)
    assert [one.name for one in report.processes] == ["a", "b"]


def test_a_trace_of_real_processes_has_every_event_and_its_cost_is_reported(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    done = rota("--trace", str(trace), "--json", "--", "true")
    assert done.returncode == 0, done.stderr
    kinds = [msgspec.json.decode(line)[1] for line in trace.read_bytes().splitlines()]
    assert kinds[0] == "Wake"
    assert {"Tick", "ExitGroup"} <= set(kinds)
    assert msgspec.json.decode(done.stdout, type=DriverReport).spent.logging_ns > 0


def without_realtime_rights() -> None:
    """Drop the rights to request a realtime policy, for good."""
    resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SYS_NICE)  # applies from the next exec on; only root can and must


@pytest.mark.parametrize("wish", ["fifo:5", "rr:5", "deadline:1/100"])
def test_a_refused_policy_is_reported_as_cooperative_and_the_command_runs(wish: str) -> None:
    words = ("--realtime", f"a={wish}", "--for", "0.02", "--json", "--", sys.executable, "-S", "-c", HOG)
    done = rota(*words, preexec_fn=without_realtime_rights)
    assert done.returncode == 0, done.stderr
    (one,) = msgspec.json.decode(done.stdout, type=DriverReport).processes
    (advisory,) = (text for text in one.advisories if text.startswith("scheduling"))
    assert wish.split(":", maxsplit=1)[0] in advisory
    assert "[EPERM]; its time slices are cooperative; in force: other" in advisory


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--weight", "z=3", "--", "true"), "there is no command 'z'"),
        (("--realtime", "a=soon", "--", "true"), "'soon' is not valid"),
        (("--trace", "/no/such/folder/trace", "--", "true"), "cannot be written"),
        (("--realtime", "a=fifo:100", "--", "true"), "priority"),
        (("--weight", "a=x", "--", "true"), "'x' is not valid"),
        (("--cores", "one", "--", "true"), "expected numbers with commas"),
        (("--", "true", "+"), "separated by a lone +"),
        (("--budget", "a=20/10", "--", "true"), "longer than its period"),
    ],
)
def test_the_command_reports_an_error_in_one_sentence(words: tuple[str, ...], expected: str) -> None:
    done = rota(*words)
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr

"""`rota cpu run` and its driver: real commands on real cores, with control groups and without.

Shares are compared between competitors on one core, by the CPU time that the kernel counted: how much of the core they
had together is up to the machine. Where no control group can be made the same tests run without them.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from rota.cli import app
from rota.errors import CommandInvalid, ContextExists, LeaseRefused, RotaError, SpawnFailed
from rota.fleet.cores_driver import CpuDriver, DriverReport
from rota.host.cgroup_mounts import hierarchies
from rota.host.cgroups import Cgroups
from rota.host.command import Command
from rota.host.cpu_groups import CPU_FEATURES
from rota.host.lineage import descendants_of
from rota.host.thread_settings import allowed_cores
from rota.model.cpu import CpuSettings

CORE = max(allowed_cores())
HOG = "while True: pass"
PATIENCE_S = 60.0
SUPPORT = Cgroups().support
HAS_GROUPS = all(SUPPORT[feature].works for feature in CPU_FEATURES)
needs_groups = pytest.mark.skipif(not HAS_GROUPS, reason="no control groups for CPU time: none can be made here")
both_ways = pytest.mark.parametrize("groups", [pytest.param(True, marks=needs_groups), False], ids=["groups", "none"])


def python(code: str) -> Command:
    return Command(argv=(sys.executable, "-S", "-c", code), env={"PATH": os.environ["PATH"]})


@contextmanager
def driver(*cores: int, groups: bool = True) -> Iterator[CpuDriver]:
    with CpuDriver(cores=cores or (CORE,), use_groups=groups) as made:
        yield made
    assert groups_of(os.getpid()) == []


def groups_of(pid: int) -> list[Path]:
    return [folder for each in hierarchies() for folder in each.base.glob(f"rota-{pid}-*")]


def cpu_ns(cpu: CpuDriver) -> dict[str, int]:
    return {one.name: one.cpu_ns for one in cpu.report().processes}


def run_until(cpu: CpuDriver, used_ns: int) -> dict[str, int]:
    """Run until the commands together have used this much CPU time since now; return what each used."""
    before = cpu_ns(cpu)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        cpu.run(0.05)
        used = {name: now - before[name] for name, now in cpu_ns(cpu).items()}
        if sum(used.values()) >= used_ns or time.monotonic() > deadline:
            return used


@both_ways
def test_commands_run_to_their_end_and_their_exit_codes_are_reported(groups: bool) -> None:
    with driver(groups=groups) as cpu:
        cpu.launch("a", python("for _ in range(300_000): pass"))
        cpu.launch("b", python("raise SystemExit(3)"))
        cpu.launch("c", python("import os; os.kill(os.getpid(), 9)"))
        cpu.run()
        report = cpu.report()
    assert [(one.name, one.exit_code, one.signal, one.ended_by) for one in report.processes] == [
        ("a", 0, None, "itself"),
        ("b", 3, None, "itself"),
        ("c", None, signal.SIGKILL, "itself"),
    ]
    assert report.processes[0].cpu_ns > 0
    assert sum(one.share_ppm for one in report.processes) in range(999_990, 1_000_001)


@needs_groups
def test_what_was_made_for_a_command_is_removed_also_if_its_exit_is_reported_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CpuDriver, "_on_exit", lambda *_: None)  # so late that it is never reported
    with driver() as cpu:
        cpu.launch("a", python(HOG))
    assert [one.name for one in cpu.report().processes] == ["a"]


@needs_groups
def test_a_command_that_leaves_its_group_is_reported_with_what_it_has_used() -> None:
    outside = [str(each.base / "cgroup.procs") for each in hierarchies()]
    leaves = f"import time\nfor path in {outside}: open(path, 'w').write('0')\nwhile time.process_time() < 0.2: pass"
    with driver() as cpu:
        cpu.launch("a", python(leaves))
        cpu.run()
        (report,) = cpu.report().processes
    assert (report.exit_code, report.cpu_ns >= 200_000_000) == (0, True)


@both_ways
def test_two_hogs_on_one_core_get_time_by_their_weights(groups: bool) -> None:
    with driver(groups=groups) as cpu:
        cpu.launch("heavy", python(HOG), CpuSettings(weight=3), heaviest=3)
        cpu.launch("light", python(HOG), CpuSettings(weight=1), heaviest=3)
        run_until(cpu, 50_000_000)  # both have started
        used = run_until(cpu, 500_000_000)
    assert 0.70 < used["heavy"] / sum(used.values()) < 0.80


@needs_groups
def test_a_command_with_many_processes_gets_no_more_than_one_with_one() -> None:
    many = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"
    with driver() as cpu:
        cpu.launch("many", python(many))
        cpu.launch("one", python(HOG))
        run_until(cpu, 100_000_000)
        used = run_until(cpu, 500_000_000)
    assert 0.45 < used["many"] / sum(used.values()) < 0.55


@both_ways
def test_a_quota_is_held_and_the_rest_goes_to_the_others(groups: bool) -> None:
    with driver(groups=groups) as cpu:
        cpu.launch("limited", python(HOG), CpuSettings(quota="10ms/100ms"))
        cpu.launch("free", python(HOG))
        run_until(cpu, 50_000_000)
        before, began = cpu_ns(cpu), time.monotonic()
        run_until(cpu, 400_000_000)
        elapsed_s = time.monotonic() - began
        used = {name: now - before[name] for name, now in cpu_ns(cpu).items()}
    periods = elapsed_s / 0.1 + 1  # a window of n periods holds n + 1 budgets at most
    assert used["limited"] <= periods * 10_000_000 * 1.25
    assert used["free"] > used["limited"]


@pytest.mark.skipif(len(allowed_cores()) < 2, reason="a lease needs two cores")
@both_ways
def test_a_lease_empties_its_core_of_everything_and_gives_it_back(groups: bool) -> None:
    shared, leased = sorted(allowed_cores())[:2]
    before = allowed_cores()
    with driver(shared, leased, groups=groups) as cpu:
        cpu.launch("other", python(HOG))
        cpu.launch("owner", python("import signal; signal.pause()"), CpuSettings(cores=str(leased), lease=1))
        owner, other = (cpu._running[name].session for name in ("owner", "other"))
        assert allowed_cores(owner.pid) == {leased}
        for pid in (other.pid, cpu._reaper.pid, os.getpid()):
            assert leased not in allowed_cores(pid)
        with pytest.raises(LeaseRefused, match=f"core {leased} is leased by command owner"):
            cpu.launch("late", python(HOG), CpuSettings(cores=str(leased), lease=1))
        owner.kill()
        owner.wait(PATIENCE_S)
        cpu.run(0.01)
        assert leased in allowed_cores(other.pid)
        assert allowed_cores() == before
    assert allowed_cores() == before


def test_an_invalid_request_is_refused_and_leaves_nothing_behind() -> None:
    with pytest.raises(CommandInvalid, match="must not be empty"):
        CpuDriver(cores=())
    with pytest.raises(CommandInvalid, match=r"cores 99 cannot be used; usable cores: "):
        CpuDriver(cores=(CORE, 99))
    with driver() as cpu:
        with pytest.raises(SpawnFailed):
            cpu.launch("a", Command(argv=("no-such-program-anywhere",)))
        cpu.launch("a", python("pass"))  # the name is free
        with pytest.raises(ContextExists):
            cpu.launch("a", python("pass"))
        cpu.run()


def test_without_groups_a_quota_cannot_outlive_its_driver() -> None:
    with CpuDriver(use_groups=False, on_loss="continue") as cpu:
        cpu.launch("free", python("pass"))
        with pytest.raises(CommandInvalid, match="would end with this process"):
            cpu.launch("limited", python(HOG), CpuSettings(quota="10ms/100ms"))


# --- lifetimes -------------------------------------------------------------------------------------

DRIVER = """
import signal, sys
from rota.fleet.cores_driver import CpuDriver
from rota.host.command import Command
from rota.model.cpu import CpuSettings
cpu = CpuDriver(on_loss={on_loss!r}, use_groups={groups!r})
hog = Command(argv=(sys.executable, "-S", "-c", "while True: pass"))
for name, settings in (("a", CpuSettings(quota={quota!r})), ("b", CpuSettings(weight=2))):
    cpu.launch(name, hog, settings)
print(cpu._reaper.pid, *(one.session.pid for one in cpu._running.values()), flush=True)
cpu.run()
"""


@contextmanager
def a_driver(**fields: object) -> Iterator[tuple[subprocess.Popen[str], int, list[int]]]:
    """A driver in a process of its own, with two commands; yields it, its reaper and the commands."""
    code = DRIVER.format(**{"on_loss": "kill", "groups": True, "quota": "10ms/100ms", **fields})
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        reaper, *pids = (int(word) for word in started.stdout.readline().split())
        try:
            yield started, reaper, pids
        finally:
            started.kill()
            for pid in (reaper, *pids):
                if Path(f"/proc/{pid}").exists() and fields.get("on_loss") == "continue":
                    os.kill(pid, signal.SIGKILL)


def all_end(pidfds: list[int]) -> bool:
    return all(select.select([fd], [], [], PATIENCE_S)[0] for fd in pidfds)


@both_ways
@pytest.mark.parametrize("killed", ["driver", "reaper", "both"])
def test_when_they_are_killed_no_command_is_left(killed: str, groups: bool) -> None:
    with a_driver(groups=groups) as (started, reaper, pids):
        pidfds = [os.pidfd_open(pid) for pid in pids]
        if killed != "driver":
            os.kill(started.pid, signal.SIGSTOP)  # so that it cannot act before it is killed, too
            os.kill(reaper, signal.SIGKILL)
        if killed != "reaper":
            started.kill()
        else:
            os.kill(started.pid, signal.SIGCONT)
        assert all_end(pidfds)
        for fd in pidfds:
            os.close(fd)
        started.wait()
    deadline = time.monotonic() + PATIENCE_S
    while groups_of(started.pid) and time.monotonic() < deadline:
        Cgroups()  # what the reaper could not remove is removed at the next start
    assert groups_of(started.pid) == []


STAYS = """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: os.write(2, b"term\\n"))
os.write(2, b"%d\\n" % os.getpid())
while True: pass
"""
ENDING = """
import sys
from rota.fleet.cores_driver import CpuDriver
from rota.host.command import Command
from rota.model.cpu import CpuSettings
cpu = CpuDriver(use_groups=False)
cpu.launch("a", Command(argv=(sys.executable, "-S", "-c", sys.argv[1])), CpuSettings(quota="50ms/100ms"))
print(cpu._reaper.pid, flush=True)
sys.stdin.readline()
cpu.end_commands()
"""


def test_commands_that_are_about_to_end_end_also_if_driver_and_reaper_are_killed() -> None:
    """One ignores SIGTERM: until it is killed, the guard watches it."""
    words, pipe = [sys.executable, "-c", ENDING, STAYS], subprocess.PIPE
    with subprocess.Popen(words, text=True, stdin=pipe, stdout=pipe, stderr=pipe) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        assert started.stderr is not None
        reaper, pid = int(started.stdout.readline()), int(started.stderr.readline())
        pidfd = os.pidfd_open(pid)
        started.stdin.write("\n")
        started.stdin.flush()
        assert started.stderr.readline() == "term\n"
        os.kill(started.pid, signal.SIGSTOP)  # so that it cannot act before it is killed, too
        os.kill(reaper, signal.SIGKILL)
        started.kill()
        try:
            assert all_end([pidfd])
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.close(pidfd)


@needs_groups
@pytest.mark.parametrize("killed", ["driver", "both"])
def test_commands_that_continue_are_still_limited_and_run(killed: str) -> None:
    with a_driver(on_loss="continue") as (started, reaper, pids):
        if killed == "both":
            os.kill(started.pid, signal.SIGSTOP)  # so that it cannot act before it is killed, too
            os.kill(reaper, signal.SIGKILL)
        started.kill()
        started.wait()
        limited, _free = pids
        (group,) = [folder for folder in groups_of(started.pid) if (folder / "cpu.stat").exists() and _quota(folder)]
        before = _cpu_ticks(limited)
        deadline = time.monotonic() + PATIENCE_S
        while _cpu_ticks(limited) == before:  # it is neither stopped nor frozen
            assert time.monotonic() < deadline
        assert any(str(limited) in each.read_text().split() for each in group.rglob("cgroup.procs"))
        assert _quota(group) == 10_000


@both_ways
def test_when_only_the_reaper_is_killed_commands_that_continue_end_with_their_groups(groups: bool) -> None:
    """The driver no longer sees them. Without groups they go on, and it says so."""
    with a_driver(on_loss="continue", groups=groups, quota="10ms/100ms" if groups else None) as (started, reaper, pids):
        pidfds = [os.pidfd_open(pid) for pid in pids]
        os.kill(reaper, signal.SIGKILL)
        started.wait(PATIENCE_S)
        if groups:
            assert all_end(pidfds)
        else:
            before = [_cpu_ticks(pid) for pid in pids]
            deadline = time.monotonic() + PATIENCE_S
            while not all(_cpu_ticks(pid) > ticks for pid, ticks in zip(pids, before, strict=True)):
                assert time.monotonic() < deadline
        for fd in pidfds:
            os.close(fd)
    Cgroups()  # its groups are removed at the next start


def _cpu_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def _quota(folder: Path) -> int | None:
    for name in ("cpu.cfs_quota_us", "cpu.max"):
        if (folder / name).exists():
            text = (folder / name).read_text().split()[0]
            return int(text) if text.isdecimal() else None
    return None


# --- the command -----------------------------------------------------------------------------------


def test_the_report_is_alone_on_standard_output_and_the_first_failure_is_the_exit_code(
    capfd: pytest.CaptureFixture[str],
) -> None:
    words = ("--weight", "a=3", "--json", "--", "echo", "said", "+", "sh", "-c", "exit 7", "+", "sh", "-c", "exit 9")
    done = CliRunner().invoke(app, ["cpu", "run", *words])
    assert done.exit_code == 7
    report = msgspec.json.decode(done.stdout, type=DriverReport)
    assert [(one.name, one.exit_code) for one in report.processes] == [("a", 0), ("b", 7), ("c", 9)]
    assert capfd.readouterr() == ("", "said\n")


def test_output_can_go_to_files_and_a_command_ended_by_the_time_has_not_failed(tmp_path: Path) -> None:
    words = ("--for", "0.05", "--logs", str(tmp_path / "logs"), "--", "sh", "-c", "echo said; sleep 60")
    done = CliRunner().invoke(app, ["cpu", "run", *words])
    assert done.exit_code == 0
    assert "SIGTERM (ended here)" in done.stdout
    assert (tmp_path / "logs" / "a.log").read_text() in ("said\n", "")  # the time may be over before it writes


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_commands_and_is_the_exit_code(number: signal.Signals, tmp_path: Path) -> None:
    words = ("--logs", str(tmp_path), "--json", "--", "sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 600")
    command = [sys.executable, "-c", "from rota.cli import main; main()", "cpu", "run", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        deadline = time.monotonic() + PATIENCE_S
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().endswith("\n"):
            assert time.monotonic() < deadline
        pidfd = os.pidfd_open(int((tmp_path / "pid").read_text()))
        started.send_signal(number)
        written, _ = started.communicate(timeout=PATIENCE_S)
        assert started.returncode == 128 + number
        assert all_end([pidfd])
        os.close(pidfd)
    assert msgspec.json.decode(written, type=DriverReport).processes[0].ended_by == "driver"


WITHOUT_RIGHTS = """
import ctypes, os, resource, sys
resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
ctypes.CDLL(None).prctl(24, 23)  # PR_CAPBSET_DROP, CAP_SYS_NICE: applies from the next exec on
os.execv(sys.executable, [sys.executable, "-c", "from rota.cli import main; main()", *sys.argv[1:]])
"""


def test_a_refused_policy_is_reported_and_the_command_runs() -> None:
    words = ("cpu", "run", "--realtime", "a=fifo:5", "--json", "--", "true")
    done = subprocess.run([sys.executable, "-c", WITHOUT_RIGHTS, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (one,) = msgspec.json.decode(done.stdout, type=DriverReport).processes
    assert [(each.setting, each.state) for each in one.settings] == [("realtime", "refused")]
    assert one.settings[0].how.startswith("this machine does not allow it to this user; root, CAP_SYS_NICE or ")
    assert one.advisories == ()  # it is told once


@both_ways
@pytest.mark.parametrize("realtime", ["fifo:5", "rr:5", "deadline:1/100"])
@pytest.mark.parametrize("cores", [(CORE,), tuple(sorted(allowed_cores()))], ids=["one core", "all cores"])
def test_realtime_is_reported_as_the_kernel_has_it(cores: tuple[int, ...], realtime: str, groups: bool) -> None:
    """A group may have no time for fifo and rr, deadline needs all cores, and a user may have no right to any."""
    numbers = {os.SCHED_FIFO: "fifo", os.SCHED_RR: "rr", 6: "deadline"}
    with driver(*cores, groups=groups) as cpu:
        settings = CpuSettings(realtime=realtime, weight=2, quota="20ms/100ms")
        cpu.launch("a", python("import signal; signal.pause()"), settings)
        policy = os.sched_getscheduler(cpu._running["a"].session.pid) & ~os.SCHED_RESET_ON_FORK
        (one,) = cpu.report().processes
    is_in_force = numbers.get(policy) == realtime.partition(":")[0]
    states = {each.setting: each.state for each in one.settings}
    assert states["realtime"] == ("enforced" if is_in_force else "refused")
    if groups:  # the kernel has no weight and no quota for realtime processes
        assert states["weight"] == states["quota"] == ("refused" if is_in_force else "enforced")
    else:
        assert (states["weight"], states["quota"]) == ("refused", "cooperative")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--weight", "z=3", "--", "true", "+", "true"), "there is no command 'z'; the commands are a, b"),
        (("--weight", "3", "--", "true"), "--weight 3 names no command"),
        (("--weight", "a=x", "--", "true"), "'x' is not a number"),
        (("--weight", "a=nan", "--", "true"), "weight must be finite, not nan"),
        (("--weight", "a=inf", "--", "true"), "weight must be finite, not inf"),
        (("--weight", "a=-1", "--", "true"), "weight must lie from 0.01 to 100"),
        (("--quota", "a=inf/100", "--", "true"), "must have times such as 20ms"),
        (("--realtime", "a=soon", "--", "true"), "must be fifo:PRIORITY"),
        (("--realtime", "a=fifo:100", "--", "true"), "realtime must lie from 1 to 99"),
        (("--class", "a=fast", "--", "true"), "expected one of batch, normal, sensitive"),
        (("--cores", "one", "--", "true"), "must be numbers and ranges"),
        (("--cores", "98-99", "--", "true"), "cores 98-99 cannot be used"),
        (("--lease", "a=99", "--", "true"), "cores 99 cannot be used"),
        (("--logs", "/proc/none", "--", "true"), "cannot be written"),
        (("--for", "nan", "--", "true"), "--for nan is not a number of seconds"),
        (("--for", "inf", "--", "true"), "--for inf is not a number of seconds"),
        (("--", "true", "+"), "separated by a lone +"),
    ],
)
def test_the_command_reports_an_error_in_one_sentence(words: tuple[str, ...], expected: str) -> None:
    done = CliRunner().invoke(app, ["cpu", "run", *words])
    problem = done.exception
    assert isinstance(problem, RotaError), done.output
    assert expected in problem.message
    assert "\n" not in problem.message


def test_a_command_with_busy_children_uses_as_many_cores_as_it_is_given() -> None:
    children = "import os\nfor _ in range(2): os.fork()\nwhile True: pass"
    with driver(*allowed_cores()) as cpu:
        cpu.launch("a", python(children))
        run_until(cpu, 50_000_000)
        tree = [cpu._running["a"].session.pid, *descendants_of(cpu._running["a"].session.pid)]
        assert len(tree) == 4
        assert all(allowed_cores(pid) == allowed_cores() for pid in tree)

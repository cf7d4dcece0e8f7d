"""Limits, cores and scheduling are in force from the first instruction, or reported as not in force."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

from rota.host.command import Command
from rota.host.reaper_client import ReaperClient
from rota.host.thread_settings import Scheduling
from rota.model.work import Limits
from tests.host.support import PATIENCE_S, Pipe, output_of, py, py_with_rota, sh

PRINT_LIMITS = """
import os, resource
input()
names = ("RLIMIT_CPU", "RLIMIT_NOFILE", "RLIMIT_DATA", "RLIMIT_NPROC")
print({name: resource.getrlimit(getattr(resource, name)) for name in names})
"""


def test_every_limit_is_in_force_soft_and_hard(reaper: ReaperClient) -> None:
    limits = Limits(cpu_s=7.2, open_files=100, memory_bytes=512 * 1024 * 1024, processes=5_000)
    output = eval(output_after_the_start(reaper, py(PRINT_LIMITS, limits=limits)))
    assert output == {
        "RLIMIT_CPU": (8, 9),
        "RLIMIT_NOFILE": (100, 100),
        "RLIMIT_DATA": (512 * 1024 * 1024,) * 2,
        "RLIMIT_NPROC": (5_000, 5_000),
    }


def output_after_the_start(reaper: ReaperClient, command: Command) -> bytes:
    """The output of a command that first waits for a line: by then the attributes set after its start are set."""
    with Pipe() as go, Pipe() as out:
        reaper.spawn(command, stdin=go.ours, stdout=out.theirs)
        out.close_theirs()
        os.write(go.theirs, b"go\n")
        return out.rest()


def test_a_soft_limit_is_in_force_before_the_first_instruction(reaper: ReaperClient) -> None:
    for _ in range(20):
        assert output_of(reaper, sh("ulimit -n", limits=Limits(open_files=77))) == b"77\n"


def test_the_reaper_restores_its_own_attributes(reaper: ReaperClient) -> None:
    before = _reaper_attributes(reaper)
    limits = Limits(cpu_s=1, open_files=50, memory_bytes=64 * 1024 * 1024, processes=10)
    reaper.spawn(sh("exit", cwd="/tmp", limits=limits, cores=frozenset({min(os.sched_getaffinity(0))}))).wait(
        PATIENCE_S
    )
    assert _reaper_attributes(reaper) == before
    assert output_of(reaper, sh("ulimit -n")) == f"{resource.getrlimit(resource.RLIMIT_NOFILE)[0]}\n".encode()


def _reaper_attributes(reaper: ReaperClient) -> object:
    limits = [resource.prlimit(reaper.pid, which) for which in range(resource.RLIMIT_NOFILE + 1)]
    return limits, os.sched_getaffinity(reaper.pid), Path(f"/proc/{reaper.pid}/cwd").readlink()


def test_a_limit_above_our_own_is_lowered_to_ours(reaper: ReaperClient) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    output = output_of(reaper, sh("ulimit -Hn", limits=Limits(open_files=hard + 1)))
    assert output == f"{hard}\n".encode()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)


def test_a_memory_limit_is_enforced(reaper: ReaperClient) -> None:
    grow = "try: x = bytearray(300_000_000)\nexcept MemoryError: raise SystemExit(9)"
    found = reaper.spawn(py(grow, limits=Limits(memory_bytes=200_000_000))).wait(PATIENCE_S)
    assert found is not None
    assert found.code == 9


def test_a_large_reservation_of_address_space_is_allowed(reaper: ReaperClient) -> None:
    """As node, Go and Java do at their start."""
    reserve = "import mmap; mmap.mmap(-1, 64 << 30, flags=mmap.MAP_PRIVATE | 0x4000, prot=0); print('fine')"
    written = output_of(reaper, py(reserve, limits=Limits(memory_bytes=200_000_000)))
    assert written == b"fine\n"


def test_a_cpu_limit_is_enforced_by_the_kernel(reaper: ReaperClient) -> None:
    found = reaper.spawn(sh("while :; do :; done", limits=Limits(cpu_s=1))).wait(PATIENCE_S)
    assert found is not None
    assert found.signal == signal.SIGXCPU
    assert 0.5 < found.cpu_user_s + found.cpu_system_s < 1.9  # the kernel counts in ticks


def test_a_process_that_ignores_sigxcpu_is_killed(reaper: ReaperClient) -> None:
    found = reaper.spawn(sh("trap '' XCPU; while :; do :; done", limits=Limits(cpu_s=1))).wait(PATIENCE_S)
    assert found is not None
    assert found.signal == signal.SIGKILL


def test_an_open_files_limit_is_enforced(reaper: ReaperClient) -> None:
    opens = "files = []\ntry:\n  while True: files.append(open('/dev/null'))\nexcept OSError: print(len(files) + 3)"
    assert output_of(reaper, py(opens, limits=Limits(open_files=20))) == b"20\n"


def test_a_command_runs_on_its_cores(reaper: ReaperClient) -> None:
    core = max(os.sched_getaffinity(0))
    with Pipe() as pipe:
        script = "import os; print(sorted(os.sched_getaffinity(0)))"
        session = reaper.spawn(py(script, cores=frozenset({core})), stdout=pipe.theirs)
        pipe.close_theirs()
        assert pipe.line() == str([core])
        assert session.advisories == ()


def test_cores_that_do_not_exist_are_left_out_and_reported(reaper: ReaperClient) -> None:
    core = max(os.sched_getaffinity(0))
    session = reaper.spawn(sh("exit", cores=frozenset({core, 900})))
    (advisory,) = session.advisories
    assert (advisory.what, advisory.asked, advisory.in_force) == ("cores", f"{core},900", str(core))


def test_nice_and_policy_are_in_force(reaper: ReaperClient) -> None:
    script = "import os; input(); print(os.sched_getscheduler(0) == os.SCHED_BATCH, os.nice(0))"
    command = py(script, scheduling=Scheduling(policy="batch", nice=5))
    assert output_after_the_start(reaper, command) == b"True 5\n"


WITHOUT_PRIVILEGES = """
import ctypes, os
from rota.host.command import Command
from rota.host.reaper_client import ReaperClient
from rota.host.thread_settings import Scheduling
from rota.model.work import Limits

PR_CAPBSET_DROP, CAP_SYS_NICE, CAP_SYS_RESOURCE = 24, 23, 24
if os.geteuid() == 0:  # processes started from now on are root without these two privileges
    for privilege in (CAP_SYS_NICE, CAP_SYS_RESOURCE):
        assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, privilege, 0, 0, 0) == 0

def run(command):
    ready, go = os.pipe()
    session = reaper.spawn(command, stdin=ready, stdout=1)
    os.write(go, b"go\\n")
    print([advisory.what for advisory in session.advisories], session.wait().code, flush=True)

def true(**fields):
    return Command(argv=("/bin/sh", "-c", "exit 0"), env={}, **fields)

with ReaperClient() as reaper:
    run(true(scheduling=Scheduling(policy="fifo", priority=1)))
    run(true(scheduling=Scheduling(nice=-5)))
    limits = Limits(open_files=50, cpu_s=5, memory_bytes=100_000_000)
    show = "read go; ulimit -Hn; ulimit -Sn; ulimit -Ht; ulimit -Hd"
    run(Command(argv=("/bin/sh", "-c", show), env={}, limits=limits))
    run(true(limits=Limits(open_files=60)))  # the reaper has restored its own
"""


def test_without_a_privilege_the_command_runs_and_an_advisory_is_reported(reaper: ReaperClient) -> None:
    written = output_of(reaper, py_with_rota(WITHOUT_PRIVILEGES), stderr=2)
    assert written.decode().splitlines() == [
        "['scheduling'] 0",
        "['scheduling'] 0",
        "50",
        "50",
        "6",
        "97656",
        "[] 0",
        "[] 0",
    ]

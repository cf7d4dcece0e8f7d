"""Limits, cores and scheduling: in force from the first instruction, or said not to be."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

from rota.host.command import Command
from rota.host.realtime import Scheduling
from rota.host.reaper_client import Minder
from rota.model.work import Limits
from tests.host.support import PATIENCE_S, Pipe, output_of, py, py_with_rota, sh

TELL = """
import os, resource
input()
names = ("RLIMIT_CPU", "RLIMIT_NOFILE", "RLIMIT_DATA", "RLIMIT_NPROC")
print({name: resource.getrlimit(getattr(resource, name)) for name in names})
"""


def test_every_limit_is_in_force_soft_and_hard(minder: Minder) -> None:
    limits = Limits(cpu_s=7.2, open_files=100, memory_bytes=512 * 1024 * 1024, processes=5_000)
    told = eval(told_after_the_start(minder, py(TELL, limits=limits)))
    assert told == {
        "RLIMIT_CPU": (8, 9),
        "RLIMIT_NOFILE": (100, 100),
        "RLIMIT_DATA": (512 * 1024 * 1024,) * 2,
        "RLIMIT_NPROC": (5_000, 5_000),
    }


def told_after_the_start(minder: Minder, command: Command) -> bytes:
    """What a command says that waits for a line first: by then what is set right after its start is set too."""
    with Pipe() as go, Pipe() as out:
        minder.spawn(command, stdin=go.ours, stdout=out.theirs)
        out.close_theirs()
        os.write(go.theirs, b"go\n")
        return out.rest()


def test_a_soft_limit_is_there_before_the_first_instruction(minder: Minder) -> None:
    for _ in range(20):
        assert output_of(minder, sh("ulimit -n", limits=Limits(open_files=77))) == b"77\n"


def test_the_minder_itself_is_as_it_was(minder: Minder) -> None:
    before = _of_the_minder(minder)
    limits = Limits(cpu_s=1, open_files=50, memory_bytes=64 * 1024 * 1024, processes=10)
    minder.spawn(sh("exit", cwd="/tmp", limits=limits, cores=frozenset({min(os.sched_getaffinity(0))}))).wait(
        PATIENCE_S
    )
    assert _of_the_minder(minder) == before
    assert output_of(minder, sh("ulimit -n")) == f"{resource.getrlimit(resource.RLIMIT_NOFILE)[0]}\n".encode()


def _of_the_minder(minder: Minder) -> object:
    limits = [resource.prlimit(minder.pid, which) for which in range(resource.RLIMIT_NOFILE + 1)]
    return limits, os.sched_getaffinity(minder.pid), Path(f"/proc/{minder.pid}/cwd").readlink()


def test_a_limit_cannot_be_above_our_own_and_is_then_ours(minder: Minder) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    told = output_of(minder, sh("ulimit -Hn", limits=Limits(open_files=hard + 1)))
    assert told == f"{hard}\n".encode()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)


def test_a_memory_hog_meets_its_limit(minder: Minder) -> None:
    grow = "try: x = bytearray(300_000_000)\nexcept MemoryError: raise SystemExit(9)"
    found = minder.spawn(py(grow, limits=Limits(memory_bytes=200_000_000))).wait(PATIENCE_S)
    assert found is not None
    assert found.code == 9


def test_a_large_reservation_that_is_never_written_to_is_allowed(minder: Minder) -> None:
    """What node, Go and Java do at their start."""
    reserve = "import mmap; mmap.mmap(-1, 64 << 30, flags=mmap.MAP_PRIVATE | 0x4000, prot=0); print('fine')"
    written = output_of(minder, py(reserve, limits=Limits(memory_bytes=200_000_000)))
    assert written == b"fine\n"


def test_a_processor_hog_is_ended_by_the_kernel(minder: Minder) -> None:
    found = minder.spawn(sh("while :; do :; done", limits=Limits(cpu_s=1))).wait(PATIENCE_S)
    assert found is not None
    assert found.signal == signal.SIGXCPU
    assert 0.5 < found.cpu_user_s + found.cpu_system_s < 1.9  # the kernel counts in ticks


def test_a_hog_that_ignores_the_warning_is_killed(minder: Minder) -> None:
    found = minder.spawn(sh("trap '' XCPU; while :; do :; done", limits=Limits(cpu_s=1))).wait(PATIENCE_S)
    assert found is not None
    assert found.signal == signal.SIGKILL


def test_too_many_files_are_refused(minder: Minder) -> None:
    opens = "files = []\ntry:\n  while True: files.append(open('/dev/null'))\nexcept OSError: print(len(files) + 3)"
    assert output_of(minder, py(opens, limits=Limits(open_files=20))) == b"20\n"


def test_a_command_is_put_on_its_cores(minder: Minder) -> None:
    core = max(os.sched_getaffinity(0))
    with Pipe() as pipe:
        said = "import os; print(sorted(os.sched_getaffinity(0)))"
        session = minder.spawn(py(said, cores=frozenset({core})), stdout=pipe.theirs)
        pipe.close_theirs()
        assert pipe.line() == str([core])
        assert session.advisories == ()


def test_cores_that_are_not_there_are_left_out_and_it_is_said(minder: Minder) -> None:
    core = max(os.sched_getaffinity(0))
    session = minder.spawn(sh("exit", cores=frozenset({core, 900})))
    (advisory,) = session.advisories
    assert (advisory.what, advisory.asked, advisory.in_force) == ("cores", f"{core}, 900", str(core))


def test_nice_and_policy_are_in_force(minder: Minder) -> None:
    said = "import os; input(); print(os.sched_getscheduler(0) == os.SCHED_BATCH, os.nice(0))"
    command = py(said, scheduling=Scheduling(policy="batch", nice=5))
    assert told_after_the_start(minder, command) == b"True 5\n"


WITHOUT_RIGHTS = """
import ctypes, os
from rota.host.command import Command
from rota.host.reaper_client import Minder
from rota.host.realtime import Scheduling
from rota.model.work import Limits

PR_CAPBSET_DROP, CAP_SYS_NICE, CAP_SYS_RESOURCE = 24, 23, 24
if os.geteuid() == 0:  # what is started from now on is root without these two rights
    for right in (CAP_SYS_NICE, CAP_SYS_RESOURCE):
        assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, right, 0, 0, 0) == 0

def said(command):
    ready, go = os.pipe()
    session = minder.spawn(command, stdin=ready, stdout=1)
    os.write(go, b"go\\n")
    print([advisory.what for advisory in session.advisories], session.wait().code, flush=True)

def true(**fields):
    return Command(argv=("/bin/sh", "-c", "exit 0"), env={}, **fields)

with Minder() as minder:
    said(true(scheduling=Scheduling(policy="fifo", priority=1)))
    said(true(scheduling=Scheduling(nice=-5)))
    limits = Limits(open_files=50, cpu_s=5, memory_bytes=100_000_000)
    tell = "read go; ulimit -Hn; ulimit -Sn; ulimit -Ht; ulimit -Hd"
    said(Command(argv=("/bin/sh", "-c", tell), env={}, limits=limits))
    said(true(limits=Limits(open_files=60)))  # the minder could raise its own again
"""


def test_without_the_right_it_is_said_and_never_a_crash(minder: Minder) -> None:
    written = output_of(minder, py_with_rota(WITHOUT_RIGHTS), stderr=2)
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

"""What this machine offers is found by trying, and where something is missing it is said; nothing fails to import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import rota.host
from rota.errors import HostUnsupported
from rota.host.capabilities import Capabilities, detect
from rota.host.cgroups import Cgroups
from rota.host.lineage import children_of
from rota.host.realtime import read
from rota.host.reaper_client import Minder, python_start
from tests.host.support import PATIENCE_S, running, sh


@pytest.fixture(scope="module")
def here() -> Capabilities:
    return detect()


def test_this_machine_can_mind_commands(here: Capabilities) -> None:
    assert here.can_mind
    assert here.system == "Linux"
    assert here.cores == tuple(sorted(os.sched_getaffinity(0)))


def test_every_offer_works_or_says_why_not(here: Capabilities) -> None:
    names = [offer.name for offer in here.offers]
    assert len(names) == len(set(names)) == 14
    assert all(offer.for_what for offer in here.offers)
    for name in ("pidfd", "limits", "cpu_clock", "affinity", "lineage", "batch", "idle"):
        assert here.offer(name).works, here.offer(name).why_not  # no right is needed for these


def test_what_needs_a_right_is_found_by_trying(here: Capabilities) -> None:
    status = Path("/proc/self/status").read_text()
    rights = int(next(line for line in status.splitlines() if line.startswith("CapEff")).split()[1], 16)
    if rights & (1 << 23):  # CAP_SYS_NICE
        assert here.offer("nice").works
    else:
        assert "right" in here.offer("fifo").why_not


def test_control_groups_are_reported_as_they_are(here: Capabilities) -> None:
    assert here.cgroup_backend == Cgroups(prepare=False).backend
    assert {support.feature for support in here.cgroups} >= {"quota", "weight", "memory", "freeze", "kill"}


def test_trying_changes_nothing() -> None:
    before = read(0), os.sched_getaffinity(0), Path("/proc/self/cgroup").read_text()
    detect()
    assert (read(0), os.sched_getaffinity(0), Path("/proc/self/cgroup").read_text()) == before


def test_it_is_one_frozen_structure_that_can_be_sent(here: Capabilities) -> None:
    assert msgspec.json.decode(msgspec.json.encode(here), type=Capabilities) == here
    with pytest.raises(AttributeError):
        here.system = "other"  # type: ignore[misc]


# --- elsewhere ----------------------------------------------------------------------------------------

MODULES = sorted(path.stem for path in Path(*rota.host.__path__).glob("*.py") if path.stem != "__init__")
ELSEWHERE = f"""
import os, resource, select, signal, socket, sys
sys.platform = "darwin"
for module, names in {{
    os: ("pidfd_open", "sched_setaffinity", "sched_getaffinity", "sched_setscheduler", "sched_getscheduler", "waitid",
         "P_ALL", "P_PID", "WEXITED", "WNOWAIT", "posix_spawn", "POSIX_SPAWN_DUP2"),
    signal: ("pidfd_send_signal", "SIGRTMIN", "SIGRTMAX"),
    resource: ("prlimit",),
    select: ("epoll",),
    socket: ("MSG_CMSG_CLOEXEC", "SOCK_CLOEXEC"),
}}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
for module in {MODULES}:
    __import__("rota.host." + module)
from rota.errors import HostUnsupported
from rota.host.capabilities import detect
from rota.host.reaper_client import Minder
found = detect()
print(found.can_mind, sorted(offer.name for offer in found.offers if offer.works))
try:
    Minder()
except HostUnsupported as refused:
    print(refused)
"""


def test_elsewhere_everything_imports_and_says_what_is_missing() -> None:
    """Linux with what macOS lacks taken away: as near as this machine comes to one."""
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.stdout.splitlines() == [
        "False ['lineage']",
        f"commands are minded on Linux only: there is no subreaper here, and no pidfd. {HostUnsupported.hint}",
    ], done.stderr


# --- the minder is small ------------------------------------------------------------------------------

HEAVY = {
    "msgspec",
    "apsw",
    "rich",
    "typer",
    "asyncio",
    "logging",
    "pathlib",
    "subprocess",
    "threading",
    "inspect",
}


def test_the_reaper_loads_only_what_it_needs() -> None:
    line = python_start("rota.host.reaper", "-I", "-S")
    code = line[-1].replace("main(sys.argv[1:])", "print(*sys.modules)")
    done = subprocess.run([*line[:-1], code], capture_output=True, text=True, timeout=PATIENCE_S, check=True, env={})
    loaded = {name for name in done.stdout.split() if not name.startswith("_")}
    assert loaded & HEAVY == set()
    assert {name for name in loaded if name.startswith("rota.")} == {
        "rota.host",
        *(f"rota.host.{name}" for name in ("frames", "child_exits", "syscalls", "lineage", "spawning", "reaper")),
    }


def test_the_minder_runs_outside_our_session_so_that_a_terminals_signals_pass_it_by(minder: Minder) -> None:
    with running(minder, sh("echo ready; sleep 1000")):
        assert os.getsid(minder.pid) == minder.pid != os.getsid(0)
        assert len(children_of(minder.pid)) == 1
        for number in (1, 2, 3, 15):  # HUP, INT, QUIT, TERM: its life hangs on its client alone
            os.kill(minder.pid, number)
        assert minder.spawn(sh("exit 4")).wait(PATIENCE_S).code == 4  # type: ignore[union-attr]

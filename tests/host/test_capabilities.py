"""Capabilities are detected by trying, missing ones are reported, and every module can be imported anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import rota.host
from rota.errors import HostUnsupported
from rota.host.capabilities import Capabilities, allowed_policies, detect
from rota.host.cgroups import Cgroups
from rota.host.confinement import Confinement
from rota.host.lineage import children_of
from rota.host.reaper_client import ReaperClient, python_command
from rota.host.thread_settings import read_scheduling
from tests.host.support import PATIENCE_S, running, sh


@pytest.fixture(scope="module")
def capabilities() -> Capabilities:
    return detect()


def test_this_machine_can_run_commands(capabilities: Capabilities) -> None:
    assert capabilities.can_run_commands
    assert capabilities.system == "Linux"
    assert capabilities.cores == tuple(sorted(os.sched_getaffinity(0)))


def test_every_capability_works_or_has_a_reason(capabilities: Capabilities) -> None:
    names = [offer.name for offer in capabilities.offers]
    assert len(names) == len(set(names)) == 16
    assert all(offer.for_what for offer in capabilities.offers)
    for name in ("pidfd", "limits", "cpu_clock", "affinity", "lineage", "batch", "idle"):
        assert capabilities.offer(name).works, capabilities.offer(name).why_not  # these need no privilege


def test_what_needs_a_privilege_is_detected_by_trying(capabilities: Capabilities) -> None:
    status = Path("/proc/self/status").read_text()
    privileges = int(next(line for line in status.splitlines() if line.startswith("CapEff")).split()[1], 16)
    if privileges & (1 << 23):  # CAP_SYS_NICE
        assert capabilities.offer("nice").works
    else:
        assert "privilege" in capabilities.offer("fifo").why_not


def test_what_is_allowed_does_not_depend_on_the_leases_of_this_moment() -> None:
    """A run that leased a core was told that this user may not use `deadline`, and so was every later one."""
    allowed, confinement = allowed_policies.__wrapped__(), Confinement()
    confinement.set_open([min(confinement.usable)])
    try:
        assert allowed_policies.__wrapped__() == allowed
    finally:
        confinement.set_open(confinement.usable)


def test_control_group_support_is_reported(capabilities: Capabilities) -> None:
    assert capabilities.cgroup_backend == Cgroups(prepare=False).backend
    assert {support.feature for support in capabilities.cgroups} >= {"quota", "weight", "memory", "freeze", "kill"}


def test_detection_changes_nothing() -> None:
    before = read_scheduling(0), os.sched_getaffinity(0), Path("/proc/self/cgroup").read_text()
    detect()
    assert (read_scheduling(0), os.sched_getaffinity(0), Path("/proc/self/cgroup").read_text()) == before


def test_capabilities_are_frozen_and_can_be_encoded(capabilities: Capabilities) -> None:
    assert msgspec.json.decode(msgspec.json.encode(capabilities), type=Capabilities) == capabilities
    with pytest.raises(AttributeError):
        capabilities.system = "other"  # type: ignore[misc]


# --- other systems ------------------------------------------------------------------------------------

MODULES = sorted(path.stem for path in Path(*rota.host.__path__).glob("*.py") if path.stem != "__init__")
OTHER_SYSTEM = f"""
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
from rota.host.reaper_client import ReaperClient
found = detect()
print(found.can_run_commands, sorted(offer.name for offer in found.offers if offer.works))
try:
    ReaperClient()
except HostUnsupported as refused:
    print(refused)
"""


def test_on_another_system_every_module_imports_and_missing_features_are_reported() -> None:
    """Simulates macOS by removing what it lacks."""
    done = subprocess.run(
        [sys.executable, "-c", OTHER_SYSTEM], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.stdout.splitlines() == [
        "False ['lineage']",
        f"commands need Linux: this system has no subreaper and no pidfd. {HostUnsupported.hint}",
    ], done.stderr


# --- the reaper process -------------------------------------------------------------------------------

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
    line = python_command("rota.host.reaper", "-I", "-S")
    code = line[-1].replace("main(sys.argv[1:])", "print(*sys.modules)")
    done = subprocess.run([*line[:-1], code], capture_output=True, text=True, timeout=PATIENCE_S, check=True, env={})
    loaded = {name for name in done.stdout.split() if not name.startswith("_")}
    assert loaded & HEAVY == set()
    assert {name for name in loaded if name.startswith("rota.")} == {
        "rota.host",
        *(
            f"rota.host.{name}"
            for name in ("frames", "child_exits", "request_loop", "syscalls", "lineage", "spawning", "reaper")
        ),
        "rota.lazy",
    }


def test_the_reaper_has_its_own_session_and_ignores_the_signals_of_a_terminal(reaper: ReaperClient) -> None:
    with running(reaper, sh("echo ready; sleep 1000")):
        assert os.getsid(reaper.pid) == reaper.pid != os.getsid(0)
        assert len(children_of(reaper.pid)) == 1
        for number in (1, 2, 3, 15):  # HUP, INT, QUIT, TERM: only the end of its client ends it
            os.kill(reaper.pid, number)
        assert reaper.spawn(sh("exit 4")).wait(PATIENCE_S).code == 4  # type: ignore[union-attr]

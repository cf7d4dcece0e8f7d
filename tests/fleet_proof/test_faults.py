"""Faults with real processes: killed supervisors and reapers, agents that ignore signals, floods and memory hogs.

Nothing is mocked. A test waits for what must happen, never for an amount of time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota import Rota
from rota.app import Job
from rota.host.capabilities import detect
from rota.model.work import Limits, ReadyEntry, RestartPolicy
from tests.host.support import PATIENCE_S, state_of, until

SUPERVISE = """
import sys
from rota import Rota
Rota(sys.argv[1]).run(slots=4, claim_timeout_s=2.0, heartbeat_s=0.5)
"""


@pytest.fixture
def rota(tmp_path: Path) -> Iterator[Rota]:
    with Rota(tmp_path / "rota.db") as made:
        yield made


def supervise(path: Path) -> subprocess.Popen[bytes]:
    """Start a supervisor in its own process."""
    return subprocess.Popen([sys.executable, "-c", SUPERVISE, str(path)])


def ended(job: Job) -> ReadyEntry:
    """Wait until the entry has ended and return it."""
    return job.wait(PATIENCE_S)


def is_gone(pid: int) -> bool:
    return state_of(pid) in ("", "Z", "X")


def pid_in(path: Path) -> int:
    until(lambda: path.exists() and path.read_text().strip() != "")
    return int(path.read_text())


class Background:
    """A supervisor on a thread of the test."""

    def __init__(self, rota: Rota, slots: int = 4, **settings: object) -> None:
        self.supervisor = rota.supervisor(slots, **settings)
        self._thread = threading.Thread(target=self.supervisor.run, daemon=True)

    def __enter__(self) -> Background:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.supervisor.drain()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


# --- killed ----------------------------------------------------------------------------------------------


def test_a_killed_supervisor_leaves_no_orphan_and_the_next_one_finishes_its_work(rota: Rota, tmp_path: Path) -> None:
    script = f"echo $$ > {tmp_path}/pid.$ROTA_ATTEMPT; if [ $ROTA_ATTEMPT = 1 ]; then sleep 1000; fi"
    agent = rota.command("sleeper", ["sh", "-c", script])
    job = agent.enqueue()
    first = supervise(tmp_path / "rota.db")
    sleeper = pid_in(tmp_path / "pid.1")
    first.send_signal(signal.SIGKILL)
    first.wait()
    until(lambda: is_gone(sleeper))
    assert job.entry().state == "dispatched"  # no worker extends its claim, which has not expired yet
    with Background(rota):
        entry = ended(job)
    assert (entry.exit_kind, entry.attempt) == ("completed", 2)
    assert rota.api.agents.get(agent.pid).state == "READY"


def test_the_commands_of_a_killed_reaper_are_killed_and_run_again(rota: Rota, tmp_path: Path) -> None:
    script = f"echo $$ > {tmp_path}/pid.$ROTA_ATTEMPT; if [ $ROTA_ATTEMPT = 1 ]; then sleep 1000; fi"
    job = rota.command("sleeper", ["sh", "-c", script]).enqueue()
    with Background(rota) as background:
        sleeper = pid_in(tmp_path / "pid.1")
        os.kill(background.supervisor.resources.reaper.pid, signal.SIGKILL)
        entry = ended(job)
        assert (entry.exit_kind, entry.attempt) == ("completed", 2)
        until(lambda: is_gone(sleeper))


# --- misbehaving agents ----------------------------------------------------------------------------------


def test_an_agent_that_ignores_sigterm_is_killed_and_the_record_says_so(rota: Rota, tmp_path: Path) -> None:
    script = f"trap '' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 0.05; done"
    agent = rota.command("stubborn", ["sh", "-c", script], stop_grace_s=0.2)
    job = agent.enqueue()
    with Background(rota):
        stubborn = pid_in(tmp_path / "pid")
        job.cancel(by="anna")
        entry = ended(job)
    assert entry.exit_kind == "cancelled"
    (fact,) = [event.payload for event in rota.api.journal.tail(kinds=("kernel.run.ended",))]
    assert fact["stopped_by"] == "KILL"
    assert is_gone(stubborn)


def test_a_run_longer_than_its_wall_limit_is_stopped(rota: Rota) -> None:
    never = RestartPolicy(when="never")
    job = rota.command("slow", ["sleep", "1000"], limits=Limits(wall_s=0.3), restart=never).enqueue()
    with Background(rota):
        entry = ended(job)
    assert (entry.exit_kind, entry.outcome) == ("failed", "timed_out")


def test_a_fork_storm_ends_with_its_run_and_no_child_lives_on(rota: Rota, tmp_path: Path) -> None:
    storm = (
        "import os, sys, time\n"
        "left = 0\n"
        "for number in range(400):\n"
        "    try:\n"
        "        if os.fork() == 0:\n"
        "            os.setsid(); time.sleep(1000)\n"
        "        left += 1\n"
        "    except OSError:\n"
        "        break\n"
        f"open({str(tmp_path / 'children')!r}, 'w').write(str(left))\n"
    )
    agent = rota.command(
        "storm", [sys.executable, "-I", "-c", storm], limits=Limits(processes=64), restart=RestartPolicy(when="never")
    )
    job = agent.enqueue()
    with Background(rota):
        ended(job)
        until(lambda: not marked("storm", tmp_path))
    children = int((tmp_path / "children").read_text())
    if any(support.works for support in detect().cgroups if support.feature == "processes"):
        assert children < 64


def marked(_name: str, folder: Path) -> list[int]:
    """Processes whose command line names the test's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                if str(folder / "children").encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_a_memory_hog_ends_only_its_own_run(rota: Rota) -> None:
    hog = "data = []\nwhile True: data.append(bytearray(8 * 1024 * 1024))"
    agent = rota.command(
        "hog",
        [sys.executable, "-I", "-c", hog],
        limits=Limits(memory_bytes=128 * 1024 * 1024),
        restart=RestartPolicy(when="never"),
    )
    fine = rota.command("fine", ["true"])
    job, other = agent.enqueue(), fine.enqueue()
    with Background(rota):
        assert ended(job).exit_kind in ("failed", "crashed")
        assert ended(other).exit_kind == "completed"


def test_a_flood_of_output_is_bounded_on_disk_and_in_the_result(rota: Rota, tmp_path: Path) -> None:
    agent = rota.command(
        "flood", ["sh", "-c", "yes | head -c 50000000; echo the end"], limits=Limits(log_bytes=100_000)
    )
    job = agent.enqueue()
    logs = tmp_path / "logs"
    with Background(rota, logs=str(logs)):
        entry = ended(job)
    assert entry.exit_kind == "completed"
    assert entry.result["output_tail"].endswith("the end\n")
    assert sum(log.stat().st_size for log in logs.iterdir()) < 200_000


# --- shared things -------------------------------------------------------------------------------------


def test_a_workspace_is_never_held_twice_by_a_hundred_contenders(rota: Rota, tmp_path: Path) -> None:
    rota.project("lab")
    for number in range(3):
        folder = tmp_path / f"work-{number}"
        folder.mkdir()
        rota.api.projects.add_workspace(f"work-{number}", "lab", str(folder))
    held: set[str] = set()
    twice: list[str] = []
    guard = threading.Lock()

    def work(ctx: object) -> None:
        folder: str = ctx.workspace  # type: ignore[attr-defined]
        with guard:
            if folder in held:
                twice.append(folder)
            held.add(folder)
        Path(folder, "touched").write_text("x")
        with guard:
            held.discard(folder)

    agents = [rota.agent(f"agent {number}", project="lab", workspace_mode="exclusive")(work) for number in range(100)]
    jobs = [agent.enqueue() for agent in agents]
    rota.run(slots=8, until_idle=True)
    assert [job.entry().exit_kind for job in jobs] == ["completed"] * 100
    assert twice == []


def test_joint_overspend_is_bounded_by_what_each_run_charged_over_its_ceiling(rota: Rota) -> None:
    rota.project("lab", budget={"tokens": 1_000})
    over: list[int] = []
    guard = threading.Lock()

    def spend(ctx: object, amount: int) -> None:
        ctx.charge(tokens=amount)  # type: ignore[attr-defined]
        with guard:
            over.append(max(0, amount - 100))

    agent = rota.agent("spender", project="lab", ceiling={"tokens": 100})(spend)
    for number in range(40):
        agent.enqueue(amount=60 + 3 * number)
    rota.run(slots=8, until_idle=True)
    (line,) = rota.api.ledger.budgets()
    assert line.used > 0
    assert line.used <= line.limit + sum(over)
    assert rota.api.queue.counts()["queued"] > 0  # the rest waits for the window

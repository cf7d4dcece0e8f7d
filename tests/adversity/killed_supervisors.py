"""A supervisor that is to be killed, its agents, and what must hold afterwards.

Run as a module (ADDRESS LOG WORKER_ID) it is a supervisor, which ends when nothing is left to run. Every run appends a
line to the log when it begins and when it ends: the entry, the attempt, and which of the two.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from rota import Rota, store
from rota.host.lineage import children_of
from rota.kernel import Kernel, KernelState
from rota.model.work import Backoff, ReadyEntry, RestartPolicy
from tests.host.support import PATIENCE_S, until

WORKERS = ("box-1", "box-2")
VICTIMS = ("supervisor", "supervisor", "reaper", "fork_server")
RETRIES: dict[str, Any] = {
    "restart": RestartPolicy(backoff=Backoff(base_s=0.01, cap_s=0.05), quarantine_after=0),
    "max_attempts": 100,
}
SCRIPT = """
echo "$ROTA_SCHED_ID $ROTA_ATTEMPT begin" >> "$0"
sleep 0.0$((ROTA_SCHED_ID % 5))
echo "$ROTA_SCHED_ID $ROTA_ATTEMPT end" >> "$0"
"""


def note(log: str, ctx: Any, what: str) -> None:
    """Append a line at once: a run may be killed after it."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{ctx.sched_id} {ctx.attempt} {what}\n".encode())
    os.close(descriptor)


def work(ctx: Any, log: str) -> int:
    note(log, ctx, "begin")
    ctx.charge(tokens=1)
    note(log, ctx, "end")
    return int(ctx.attempt)


def parent(ctx: Any, log: str) -> int:
    note(log, ctx, "begin")
    ended = ctx.wait([ctx.spawn("work", lent={"tokens": 2}, log=log) for _ in range(2)])
    note(log, ctx, "end")
    return sum(entry.exit_kind == "completed" for entry in ended)


def agents(rota: Rota, log: str) -> dict[str, Any]:
    """Register the agents: a function in a process of its own, one that spawns others, and a program."""
    return {
        "work": rota.agent("work", isolation="process", budget={"tokens": 1_000_000}, **RETRIES)(work),
        "parent": rota.agent("parent", ceiling={"tokens": 10}, **RETRIES)(parent),
        "program": rota.command("program", ["sh", "-c", SCRIPT, log], **RETRIES),
    }


class KilledSupervisors:
    """Supervisors over one store, which are killed, with their helpers, and started again."""

    def __init__(self, folder: Path, address: str, path: str, seed: int) -> None:
        self.rng = random.Random(seed)
        self.log = folder / "log"
        self.log.touch()
        self.path = path
        self.address = address
        self.kills: Counter[str] = Counter()
        self._jobs: list[int] = []
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def enqueue(self, counts: dict[str, int]) -> None:
        with Rota(self.address) as rota:
            handles = agents(rota, str(self.log))
            for name, count in counts.items():
                payload = {} if name == "program" else {"log": str(self.log)}
                self._jobs += [job.sched_id for job in handles[name].enqueue_many([payload] * count)]

    def start(self) -> None:
        """Start the supervisors that do not run; one of the same id takes over what its predecessor left."""
        for worker_id in WORKERS:
            process = self._processes.get(worker_id)
            if process is None or process.poll() is not None:
                module = [sys.executable, "-m", "tests.adversity.killed_supervisors"]
                self._processes[worker_id] = subprocess.Popen([*module, self.address, str(self.log), worker_id])

    def kill_one(self) -> None:
        """Kill a supervisor, the reaper of one or its fork server, at a random moment of its work."""
        runs = len(self.lines()) + self.rng.randint(1, 12)
        until(lambda: len(self.lines()) >= runs or self._have_ended())
        victim, process = self.rng.choice(VICTIMS), self._processes[self.rng.choice(WORKERS)]
        pids = [process.pid] if victim == "supervisor" else _helpers(process.pid, victim)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            self.kills[victim] += 1
        if victim == "supervisor":
            process.wait(PATIENCE_S)

    def _have_ended(self) -> bool:
        return all(process.poll() is not None for process in self._processes.values())

    def finish(self) -> None:
        """Let the supervisors end by themselves, when nothing is left to run."""
        for process in self._processes.values():
            assert process.wait(4 * PATIENCE_S) == 0

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    # --- the law ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Nothing is lost, nothing is doubled, every entry has ended, and no process is left."""
        kernel = Kernel(store.open(self.path))
        try:
            entries = {entry.sched_id: entry for entry in kernel.queue.list(limit=10_000)[0]}
            assert set(self._jobs) <= set(entries)
            assert {(entry.state, entry.exit_kind) for entry in entries.values()} == {("completed", "completed")}
            self._check_runs(entries)
            ended = Counter(
                entry["sched_id"] if isinstance(entry, dict) else entry[0]
                for event in kernel.journal.tail(0, 10_000, kinds=("kernel.sched.completed",))
                for entry in event.payload["entries"]
            )
            assert ended == Counter(list(entries)), "each entry has completed once"
            now = kernel.clock.now()
            assert kernel.store.read(KernelState.from_journal).at(now) == kernel.store.read(KernelState.from_tables).at(
                now
            )
            assert kernel.check() == []
        finally:
            kernel.store.close()
        until(lambda: not _processes_of(self.log))

    def _check_runs(self, entries: dict[int, ReadyEntry]) -> None:
        """An attempt has begun once at most, and the attempt that counts has ended, as the last one."""
        begun = Counter(line for line in self.lines() if line.endswith("begin"))
        assert set(begun.values()) == {1}, [line for line, count in begun.items() if count > 1]
        attempts: dict[int, list[tuple[int, str]]] = {}
        for line in self.lines():
            sched_id, attempt, what = line.split()
            attempts.setdefault(int(sched_id), []).append((int(attempt), what))
        assert set(attempts) == set(entries)
        for entry in entries.values():
            found = attempts[entry.sched_id]
            assert max(found) == (entry.attempt, "end"), (found, entry)


def _helpers(pid: int, name: str) -> list[int]:
    """The reaper of a supervisor, or the fork server, which the reaper has started."""
    reapers = [child for child in children_of(pid) if b"rota.host.reaper" in _command_line(child)]
    if name == "reaper":
        return reapers
    return [child for reaper in reapers for child in children_of(reaper) if b"fork_server" in _command_line(child)]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _processes_of(log: Path) -> list[int]:
    """The programs that still write to a log."""
    pids = (int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal())
    return [pid for pid in pids if pid != os.getpid() and str(log).encode() in _command_line(pid)]


def main(address: str, log: str, worker_id: str) -> None:
    with Rota(address) as rota:
        agents(rota, log)
        rota.run(slots=3, until_idle=True, worker_id=worker_id, claim_timeout_s=2.0, heartbeat_s=0.5)


if __name__ == "__main__":
    main(*sys.argv[1:])

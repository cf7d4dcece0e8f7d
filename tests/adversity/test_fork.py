"""A process that forks with a store open loses nothing, doubles nothing and does not hang.

Each test runs a program of `fork_program.py` in a process of its own, since a fork of the test process would copy the
test runner.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rota import store
from rota.kernel import Kernel
from tests.adversity.conftest import Rounds
from tests.daemon.harness import PATIENCE_S, Served, make_token, serving

PROGRAM = Path(__file__).with_name("fork_program.py")
HANG_S = 120.0  # ends a program that hangs
FORKED_BUSY = "StoreUnavailable: this process was forked while its parent was inside a transaction or busy in SQLite"
FORKED_INSIDE = "StoreUnavailable: this process was forked inside a call of the store"
NOT_ITS_OWN = "StoreUnavailable: this transaction belongs to the process that began it"
IN_MEMORY = "StoreUnavailable: a store in memory belongs to the process that opened it"


class Program:
    """Runs the programs on one store and compares the store with what they were told."""

    def __init__(self, folder: Path, name: str = "rota.db") -> None:
        self.path = folder / name
        self.log = folder / f"{name}.acknowledged"
        kernel = Kernel(store.open(str(self.path)))
        kernel.agents.create("reader")
        kernel.store.close()

    def run(self, name: str, seed: int = 0, address: str | None = None, **env: str) -> list[dict[str, Any]]:
        """Run a program until its last process has ended; return what they said."""
        command = [sys.executable, str(PROGRAM), name, address or str(self.path), str(self.log), str(seed)]
        ended = subprocess.run(
            command,
            timeout=HANG_S,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env=env or None,
        )
        assert (ended.returncode, ended.stderr) == (0, ""), (seed, ended.stdout + ended.stderr)
        return [json.loads(line) for line in ended.stdout.splitlines()]

    def check(self) -> None:
        """Everything acknowledged is there once, under the id that was returned, and the file is sound."""
        kernel = Kernel(store.open(str(self.path)))
        rows = kernel.store.read(lambda tx: tx.run(_ALL))
        problems = kernel.store.check()
        kernel.store.close()
        stored = [(json.loads(payload)["n"], sched_id) for sched_id, payload in rows]
        acknowledged = [tuple(map(int, line.split())) for line in self.log.read_text().splitlines()]
        assert sorted(stored) == sorted(acknowledged)
        assert problems == []


_ALL = store.Statement("all", "All entries.", "SELECT sched_id, payload FROM agent_schedule_queue")


# --- everyday programs -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "in_test"), [("preload", 2), ("daemonize", 2), ("busy", 1), ("closes", 1), ("generations", 1)]
)
def test_nothing_acknowledged_is_lost_or_doubled(name: str, in_test: int, tmp_path: Path, rounds: Rounds) -> None:
    for seed in rounds(in_test):
        program = Program(tmp_path, f"{seed}.db")
        program.run(name, seed)
        program.check()


@pytest.mark.parametrize("name", ["processes", "spawn", "forkserver"])
def test_every_start_method_of_multiprocessing_works(name: str, tmp_path: Path) -> None:
    program = Program(tmp_path)
    (found,) = program.run(name)
    assert set(found["codes"]) == {0}
    program.check()


def test_the_command_line_finds_what_a_daemonized_program_enqueues(tmp_path: Path) -> None:
    program = Program(tmp_path)
    program.run("daemonize", 1)
    command = [sys.executable, "-m", "rota", "queue", "--store", str(program.path), "--json", "-n", "1000"]
    listed = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert listed["total"] == len(program.log.read_text().splitlines())
    subprocess.run([sys.executable, "-m", "rota", "db", "check", "--store", str(program.path)], check=True)
    program.check()


# --- what the child has ----------------------------------------------------------------------------


def test_the_child_has_locks_of_its_own_and_no_descriptor_of_its_parent(tmp_path: Path) -> None:
    child, parent = Program(tmp_path).run("locks")
    assert child == {"before": 2, "inherited": 0, "after": 2}
    assert parent == {"parent": 2}


def test_a_child_does_not_keep_its_parents_worker_id(tmp_path: Path) -> None:
    assert Program(tmp_path).run("worker_id") == [{"held": True}]


def test_a_request_that_waits_in_the_parent_is_served_there_and_once(tmp_path: Path) -> None:
    program = Program(tmp_path)
    assert program.run("waiting_claim") == [{"parked": 0}, {"claimed": ["parent"]}]
    program.check()


def test_the_child_reads_again_what_its_parent_had_cached(tmp_path: Path) -> None:
    assert Program(tmp_path).run("caches") == [{"claimed": 0}]


# --- forks at a bad moment -------------------------------------------------------------------------


def test_a_fork_inside_a_transaction_leaves_it_to_the_parent(tmp_path: Path) -> None:
    program = Program(tmp_path)
    (found,) = program.run("inside_write")
    assert found == {
        "statement": NOT_ITS_OWN,
        "read": FORKED_INSIDE,
        "write": FORKED_INSIDE,
        "open": FORKED_BUSY,
        "close": FORKED_INSIDE,
    }
    program.check()


def test_a_child_that_returns_from_an_inherited_transaction_gets_an_error(tmp_path: Path) -> None:
    program = Program(tmp_path)
    assert program.run("returns_from_write") == [{"write": NOT_ITS_OWN, "close": "done"}]
    program.check()


def test_a_child_that_was_forked_inside_a_transaction_ends_without_closing_the_file(tmp_path: Path) -> None:
    program = Program(tmp_path)
    program.run("late_exit")
    program.check()


def test_a_fork_inside_a_listener_or_a_read(tmp_path: Path) -> None:
    program = Program(tmp_path)
    listener, read = program.run("inside_listener")
    assert listener == {"read": FORKED_INSIDE, "write": FORKED_INSIDE, "open": "done"}
    assert read == {"statement": NOT_ITS_OWN, "read": "done", "write": "done"}
    program.check()


def test_a_fork_does_not_wait_for_ever_for_another_thread(tmp_path: Path) -> None:
    program = Program(tmp_path)
    (found,) = program.run("stuck_thread")
    assert found == {"read": FORKED_BUSY, "write": FORKED_BUSY, "open": FORKED_BUSY, "close": "done"}
    program.check()


ENDS_WITHOUT_CLOSING = """
import os, sys
from rota.kernel import Kernel
from rota.store import open as open_store

first = Kernel(open_store(sys.argv[1]))
if sys.argv[2:] and not os.fork():
    first.agents.create("child")
    sys.exit()
first.agents.create("a")
second = Kernel(open_store(sys.argv[1]))
second.queue.counts()
"""


@pytest.mark.parametrize("forks", [(), ("forks",)])
def test_a_program_that_closes_nothing_ends_without_a_word(tmp_path: Path, forks: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", ENDS_WITHOUT_CLOSING, str(tmp_path / "rota.db"), *forks]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("", "")


def test_a_store_in_memory_is_not_shared_with_a_child(tmp_path: Path) -> None:
    assert Program(tmp_path).run("in_memory") == [{"read": IN_MEMORY, "write": IN_MEMORY, "close": "done"}]


# --- clients of a daemon ---------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Any:
    Program(tmp_path)
    with serving(tmp_path / "rota.db") as daemon:
        yield daemon


@pytest.mark.parametrize("name", ["clients", "async_clients"])
@pytest.mark.parametrize("transport", ["unix", "http"])
def test_children_of_a_client_send_on_connections_and_with_keys_of_their_own(
    name: str, transport: str, served: Served, tmp_path: Path
) -> None:
    program = Program(tmp_path)
    token = make_token(served.path, "admin")
    address = served.unix if transport == "unix" else served.url
    program.run(name, address=address, ROTA_ACCESS_TOKEN=token)
    program.check()


def test_the_daemon_notices_the_end_of_a_client_whose_child_lives_on(served: Served, tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), "parent_is_killed", served.unix, str(tmp_path / "log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        served.until_parked(1)
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.stdout.readline()
        parent.kill()
        served._until(lambda: served.daemon.store.parked == 0)
        parent.stdin.close()  # its child ends
        parent.wait(PATIENCE_S)

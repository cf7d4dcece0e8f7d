"""`kill -9` of clients, prunes, daemons and supervisors, with a new seed in each round.

What is checked after the kills, and how, is in tests/kernel_proof/test_kill.py (embedded clients) and
tests/daemon/test_kill.py (daemons). Here prunes run beside them and are killed too, and the journal has to replay to
the tables after each of them. What holds after kills of supervisors and their helpers is in killed_supervisors.py.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from rota import store
from rota.errors import StoreUnavailable
from rota.kernel import Kernel
from rota.kernel.replay import KernelState
from rota.rpc import connect
from tests.adversity.conftest import Rounds
from tests.adversity.killed_supervisors import KilledSupervisors
from tests.daemon.harness import PATIENCE_S, Process
from tests.daemon.test_kill import PER_ROUND, Load, check_file
from tests.kernel_proof.test_kill import ROUND_S, ROUNDS, KilledProcess, KillRounds
from tests.kernel_proof.workers import prune_for_ever, start

KILLS = 4  # rounds of kills on one file
PRUNERS = 2
SUPERVISOR_KILLS = 5  # of supervisors, reapers and fork servers, in one round


def assert_law(kernel: Kernel) -> None:
    now = kernel.clock.now()
    tables, journal = kernel.store.read(
        lambda tx: (KernelState.from_tables(tx).at(now), KernelState.from_journal(tx).at(now))
    )
    assert journal == tables


class KillRoundsWithPrunes(KillRounds):
    """Rounds in which processes that prune what earlier rounds left are killed as well."""

    def _start(self, number: int) -> list[KilledProcess]:
        victims = super()._start(number)
        place = {"path": self.path, "now": (number + 1) * ROUND_S, "age_s": ROUND_S / 2}
        for each in range(PRUNERS):
            process = start(self.context, prune_for_ever, stride=self.rng.choice([1, 3, 10]), **place)
            victims.append(KilledProcess(f"r{number}p{each}", *process))
        return victims

    def round(self, number: int) -> None:
        super().round(number)
        with self.opened(number) as kernel:
            self.story.read(kernel)  # before the next round prunes what this one has enqueued again
            assert_law(kernel)


def test_killed_clients_and_prunes_lose_nothing_and_the_journal_replays(tmp_path: Path, rounds: Rounds) -> None:
    for seed in rounds(1):
        story = KillRoundsWithPrunes(str(tmp_path / f"{seed}.db"), seed)
        for number in range(KILLS):
            story.round(number)
        story.finish()
        with story.opened(ROUNDS + 1) as kernel:
            assert_law(kernel)
            kernel.retention.prune(events_older_than_s=0, entries_older_than_s=0)
            assert_law(kernel)
            assert len(kernel.queue.list()[0]) == 1, "the last prune removes what the killed ones left"


@pytest.mark.timeout(600)
def test_a_daemon_killed_while_it_prunes_loses_nothing_and_its_journal_replays(tmp_path: Path, rounds: Rounds) -> None:
    for seed in rounds(1):
        path = str(tmp_path / f"{seed}.db")
        daemon = Process(path)
        with connect(daemon.addresses[0]) as client:
            pids = [client.create_agent(f"agent {number}", "callable") for number in range(4)]
        load, done = Load(daemon.addresses[0], pids), threading.Event()
        pruner = threading.Thread(target=prune_until, args=(daemon.addresses[0], done))
        pruner.start()
        for _ in range(2):
            load.until(len(load.enqueued) + PER_ROUND)
            daemon.kill()
            daemon = Process(path)
        load.until(len(load.enqueued) + PER_ROUND)
        done.set()
        pruner.join(PATIENCE_S)
        load.stop()
        assert daemon.stop() == 0
        check_file(path, load)
        kernel = Kernel(store.open(path))
        assert_law(kernel)
        assert kernel.store.check() == []
        kernel.store.close()


def prune_until(address: str, done: threading.Event) -> None:
    """Prune events, again and again, at a daemon that is killed now and then."""
    while not done.is_set():
        try:
            with connect(address, retry_s=PATIENCE_S) as client:
                while not done.is_set():
                    client.retention.prune(events_older_than_s=0, entries_older_than_s=3_600)
        except StoreUnavailable:
            continue  # the answer was lost


# --- supervisors ---------------------------------------------------------------------------------


@pytest.mark.timeout(600)
@pytest.mark.parametrize("where", ["embedded", "daemon"])
def test_killed_supervisors_reapers_and_fork_servers_lose_nothing_and_double_nothing(
    tmp_path: Path, rounds: Rounds, where: str
) -> None:
    for seed in rounds(1):
        folder = tmp_path / str(seed)
        folder.mkdir()
        path = str(folder / "rota.db")
        daemon = Process(path) if where == "daemon" else None
        story = KilledSupervisors(folder, path if daemon is None else daemon.addresses[0], path, seed)
        try:
            story.enqueue({"work": 16, "program": 16, "parent": 4})
            for _ in range(SUPERVISOR_KILLS):
                story.start()
                story.kill_one()
                if daemon is not None and story.rng.random() < 0.3:
                    daemon.kill()
                    daemon = Process(path)
            story.start()
            story.finish()
        finally:
            story.stop()
            if daemon is not None:
                assert daemon.stop() == 0
        story.check()

"""`kill -9` of clients and of the PostgreSQL server, again and again, on one schema.

The rounds and what they check are those of kernel_proof/test_kill.py: nothing acknowledged is lost, nothing doubled
within a claim, what was under way happened whole or not at all. Here the server is killed too, under all its clients,
which have to reconnect, drop what they remember of it, and go on.

`ROTA_SOAK_ROUNDS` sets the number of rounds of a soak (200).
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rota.kernel import Kernel, KernelState
from tests.adversity.postgres_victims import work_for_ever, write_for_ever
from tests.kernel_proof.test_kill import POLICIES, ROUND_S, KilledProcess, KillRounds
from tests.kernel_proof.workers import PATIENCE_S, start
from tests.postgres_server import PostgresServer

ROUNDS = int(os.environ.get("ROTA_SOAK_ROUNDS", "200"))
IN_TEST = 2
LAST_WORD_MAX = 12  # messages of a process before it is killed
# so many messages of all processes of a round before its server is killed; None: it is not
SERVER_ENDS = (4, 15, None, 1, 9)


class ServerRounds(KillRounds):
    """Rounds in which the server may be killed as well."""

    def __init__(self, server: PostgresServer, seed: int) -> None:
        self.server = server
        self.server_ends = itertools.cycle(SERVER_ENDS)
        super().__init__(f"{server.dsn()}&schema=rota", seed)
        self.context.set_forkserver_preload([work_for_ever.__module__])

    def _start(self, number: int) -> list[KilledProcess]:
        place = {"path": self.path, "now": (number + 1) * ROUND_S}
        victims = []
        for each, pid in enumerate(self.pids):
            name = f"r{number}w{each}"
            process = start(self.context, write_for_ever, pid=pid, name=name, seed=self._seed(), **place)
            victims.append(KilledProcess(name, *process))
        for each in range(2):
            name = f"r{number}c{each}"
            policy = self.rng.choice(POLICIES)
            process = start(self.context, work_for_ever, worker_id=name, policy=policy, seed=self._seed(), **place)
            victims.append(KilledProcess(name, *process))
        return victims

    def _watch_and_kill(self, victims: list[KilledProcess]) -> None:
        """Kill the server after some message, and each process after its last; the first one, a writer, last."""
        server_end = next(self.server_ends)
        for victim in victims:
            victim.last_word = self.rng.randrange(1, LAST_WORD_MAX)
        talking = {victim.listen: victim for victim in victims}
        while talking:
            ready = wait(list(talking), PATIENCE_S)
            assert ready, "no process has reported anything for too long"
            for listen in ready:
                assert isinstance(listen, Connection)
                if not talking[listen].hear():
                    del talking[listen]
            if server_end is not None and sum(len(victim.told) for victim in victims) >= server_end:
                server_end = None
                self.server.restart(signal.SIGKILL)
            for victim in talking.values():
                if len(victim.told) >= victim.last_word and (victim is not victims[0] or len(talking) == 1):
                    victim.process.kill()
        for victim in victims:
            victim.bury()
        self._wait_for_sessions()

    def _wait_for_sessions(self) -> None:
        """Return when the server has ended the sessions of the killed: until then one may still commit."""
        give_up_at = time.monotonic() + PATIENCE_S
        count: Any = None
        while count != (0,):
            assert time.monotonic() < give_up_at, f"sessions of killed processes are left: {count}"
            with psycopg.connect(self.server.dsn(), autocommit=True) as connection:
                text = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'rota %'"
                count = connection.execute(text).fetchone()

    def finish(self) -> None:
        super().finish()
        with self.opened(ROUNDS) as kernel:
            check_journal(kernel)


def check_journal(kernel: Kernel) -> None:
    """The journal gives the tables."""
    now = kernel.clock.now()
    tables, journal = kernel.store.read(lambda tx: (KernelState.from_tables(tx), KernelState.from_journal(tx)))
    assert tables.at(now) == journal.at(now)


@pytest.fixture
def server(socket_folder: Path) -> Iterator[PostgresServer]:
    # what is not flushed by a client stays in the server's memory, and is lost with it
    with PostgresServer(socket_folder, settings={"wal_writer_delay": "10000"}) as server:
        yield server


def _rounds(server: PostgresServer, count: int) -> ServerRounds:
    rounds = ServerRounds(server, seed=20_261_116)
    for number in range(count):
        rounds.round(number)
    rounds.finish()
    return rounds


def test_nothing_acknowledged_is_lost_or_doubled_when_clients_and_server_are_killed(server: PostgresServer) -> None:
    _rounds(server, IN_TEST)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_nothing_acknowledged_is_lost_or_doubled_in_many_rounds(server: PostgresServer) -> None:
    rounds = _rounds(server, ROUNDS)
    assert rounds.story.reclaimed > 0, "no process was killed during a run, so the test proves nothing"
    print(f"{ROUNDS} rounds, {len(rounds.ids)} entries, {rounds.story.reclaimed} claims taken back")

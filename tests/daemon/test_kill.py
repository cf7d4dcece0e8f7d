"""The daemon is killed under load and restarted: nothing acknowledged is lost, nothing is claimed twice.

The clients reconnect and continue. In every round producers enqueue and workers claim and complete until the daemon is
killed. At the end the file must hold:

- every acknowledged enqueue, exactly once, however often it was sent
- no claim of an entry while an earlier claim of it was live
- every acknowledged completion
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path

import pytest

from rota import store
from rota.errors import RotaError, StoreUnavailable
from rota.kernel import Kernel, ReadyEntry, ScheduleSpec
from rota.kernel.journal import TAIL_MAX
from rota.rpc import Client, connect
from tests.daemon.harness import PATIENCE_S, Process

ROUNDS = int(os.environ.get("ROTA_SOAK_ROUNDS", "40" if "ROTA_SOAK" in os.environ else "2"))
PRODUCERS, WORKERS = 4, 4
PER_ROUND = 60  # acknowledged enqueues before the daemon is killed


class Load:
    """Producers and workers that run until stopped."""

    def __init__(self, address: str, pids: list[int]) -> None:
        self.address = address
        self.pids = pids
        self.enqueued: list[tuple[str, int]] = []  # acknowledged: the label, and the id that was returned
        self.completed: list[int] = []  # acknowledged
        self.problems: list[BaseException] = []
        self.stopping = threading.Event()
        self.progress = threading.Condition()
        jobs = [(self._produce, number) for number in range(PRODUCERS)] + [
            (self._work, number) for number in range(WORKERS)
        ]
        self.threads = [threading.Thread(target=self._guarded, args=job) for job in jobs]
        for thread in self.threads:
            thread.start()

    def _guarded(self, job: object, number: int) -> None:
        try:
            with connect(self.address, retry_s=PATIENCE_S) as client:
                job(client, number)  # type: ignore[operator]  # one of the two below
        except BaseException as problem:
            self.problems.append(problem)

    def _produce(self, client: Client, number: int) -> None:
        step = 0
        while not self.stopping.is_set():
            label = f"{number}-{step}"
            sched_id = client.enqueue(ScheduleSpec(self.pids[step % len(self.pids)], payload={"label": label}))
            with self.progress:
                self.enqueued.append((label, sched_id))
                self.progress.notify_all()
            step += 1

    def _work(self, client: Client, number: int) -> None:
        while not self.stopping.is_set():
            for entry in client.claim(f"worker {number}", 2, wait_s=0.2, claim_timeout_s=3_600.0):
                try:
                    client.complete(entry.sched_id, "completed", token=entry.token)
                except StoreUnavailable:  # the response was lost: it may have been executed
                    continue
                self.completed.append(entry.sched_id)

    def until(self, count: int) -> None:
        with self.progress:
            assert self.progress.wait_for(lambda: len(self.enqueued) >= count or bool(self.problems), PATIENCE_S)

    def stop(self) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        if self.problems:
            raise self.problems[0]


@pytest.mark.parametrize("rounds", [ROUNDS])
def test_a_daemon_killed_under_load_loses_and_duplicates_nothing(tmp_path: Path, rounds: int) -> None:
    path = str(tmp_path / "rota.db")
    daemon = Process(path)
    with connect(daemon.addresses[0]) as client:
        pids = [client.create_agent(f"agent {number}", "callable") for number in range(4)]
    load = Load(daemon.addresses[0], pids)
    for _ in range(rounds):
        load.until(len(load.enqueued) + PER_ROUND)
        daemon.kill()
        daemon = Process(path)
    load.until(len(load.enqueued) + PER_ROUND)
    load.stop()
    assert daemon.stop() == 0
    check_file(path, load)


def check_file(path: str, load: Load) -> None:
    kernel = Kernel(store.open(path, read_only=True))
    entries: dict[int, ReadyEntry] = {}
    offset = 0
    while page := kernel.queue.list(limit=10_000, offset=offset)[0]:
        entries |= {entry.sched_id: entry for entry in page}
        offset += len(page)
    for label, sched_id in load.enqueued:
        assert entries[sched_id].payload == {"label": label}
    words = Counter(entry.payload["label"] for entry in entries.values())
    assert max(words.values()) == 1, "a retried enqueue created one entry"
    assert all(entries[sched_id].state == "completed" for sched_id in load.completed)
    assert len(set(load.completed)) == len(load.completed)
    check_claims(kernel)
    kernel.store.close()


def check_claims(kernel: Kernel) -> None:
    """In the journal an entry is claimed only while it has no other claim."""
    held: set[int] = set()
    cursor = 0
    while events := kernel.journal.tail(cursor, TAIL_MAX):
        for event in events:
            match event.kind:
                case "kernel.sched.claimed":
                    ids = {entry[0] for entry in event.payload["entries"]}
                    assert not ids & held
                    held |= ids
                case "kernel.sched.completed":
                    held -= {entry[0] for entry in event.payload["entries"]}
                case "kernel.sched.returned":
                    held -= set(event.payload["sched_ids"])
        cursor = events[-1].event_id


def test_without_keys_a_lost_enqueue_is_not_retried(tmp_path: Path) -> None:
    """The error says that the call may have been executed."""
    daemon = Process(str(tmp_path / "rota.db"))
    with connect(daemon.addresses[0], keys=False, retry_s=0.0) as client:
        pid = client.create_agent("agent", "callable")
        os.kill(daemon.pid, 19)  # SIGSTOP: it accepts the request and does not respond
        answers: list[object] = []

        def enqueue() -> None:
            try:
                answers.append(client.enqueue(ScheduleSpec(pid)))
            except RotaError as error:
                answers.append(error)

        caller = threading.Thread(target=enqueue)
        caller.start()
        caller.join(0.2)
        daemon.kill()
        caller.join(PATIENCE_S)
    (answer,) = answers
    assert isinstance(answer, StoreUnavailable)
    assert "may have been executed" in answer.message

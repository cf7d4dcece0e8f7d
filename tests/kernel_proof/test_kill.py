"""`kill -9` of writers and claimers, again and again, on one file.

In every round two writers and two claimers work on the same file until each is killed in the middle of something.
Each tells on a pipe what it begins and what has been answered. After the round, on what is left in the file:

- nothing acknowledged is lost: every entry whose enqueue was answered is there, every claim, every completion
- what was under way happened whole or not at all, and doing it again under the same keys doubles nothing
- nothing ran twice: in the journal a second claim of an entry comes only after the first one ended, was put back,
  or had expired (a round begins long after the claims of the one before have run out)
- the file is sound, and so is what the next round makes of it

The seed decides who is killed when, counted in what they told; what exactly that hits is left to the machine.
`ROTA_SOAK_ROUNDS` sets the number of rounds (20; under `./dev soak` 500).
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from rota import store
from rota.clock import ManualClock
from rota.kernel import Completion, Kernel, ScheduleSpec
from rota.kernel.journal import TAIL_MAX
from rota.model.events import Event
from tests.kernel_proof.workers import (
    AT_ONCE,
    CLAIM_TIMEOUT_S,
    PATIENCE_S,
    fork_server,
    start,
    work_for_ever,
    write_for_ever,
)

ROUNDS = int(os.environ.get("ROTA_SOAK_ROUNDS", "500" if "ROTA_SOAK" in os.environ else "12"))
ROUND_S = 10_000.0  # from one round to the next, by the clocks of those who work in them
POLICIES = ("strict", "eevdf", "fair_share")
WORDS_MAX = 20  # told by one process before it is killed

Message = tuple[str, Any]


@dataclass
class KilledProcess:
    """A process that will be killed, and its messages."""

    name: str
    process: ForkServerProcess
    listen: Connection
    last_word: int = 0  # after how many messages it is killed
    told: list[Message] = field(default_factory=list)

    def hear(self) -> bool:
        """Take one message; False when there will be no more."""
        try:
            self.told.append(self.listen.recv())
        except (EOFError, OSError):  # it ended, perhaps in the middle of a word
            return False
        return True

    def answers(self, word: str) -> Iterator[Any]:
        return (what for said, what in self.told if said == word)

    def bury(self) -> None:
        self.process.join(PATIENCE_S)
        assert self.process.exitcode == -9, f"{self.name} ended by itself with {self.process.exitcode}"
        self.listen.close()


class Story:
    """The journal, read from where it was left, as what became of each entry."""

    def __init__(self) -> None:
        self.cursor = 0
        self.waiting: set[int] = set()
        self.running: dict[int, tuple[int, float]] = {}  # token, since
        self.done: set[int] = set()
        self.claims: dict[tuple[int, int], str] = {}  # (entry, token) to who has it
        self.put_back: set[tuple[int, int]] = set()
        self.pruned: set[int] = set()
        self.reclaimed = 0

    def read(self, kernel: Kernel) -> None:
        while events := kernel.journal.tail(self.cursor, TAIL_MAX):
            for event in events:
                self._fold(event)
            self.cursor = events[-1].event_id

    def _fold(self, event: Event) -> None:
        facts = event.payload
        match event.kind.removeprefix("kernel.sched."):
            case "enqueued":
                self.waiting.update(range(facts["first_id"], facts["first_id"] + facts.get("count", 1)))
            case "claimed":
                for sched_id, *_ in facts["entries"]:
                    self.waiting.remove(sched_id)  # a claimed entry was queued before
                    self.running[sched_id] = event.event_id, event.ts
                    self.claims[sched_id, event.event_id] = facts["worker_id"]
            case "completed":
                for sched_id, *_ in facts["entries"]:
                    del self.running[sched_id]
                    assert sched_id not in self.done
                    self.done.add(sched_id)
            case "returned":
                for sched_id in facts["sched_ids"]:
                    token, since = self.running.pop(sched_id)
                    self.waiting.add(sched_id)
                    if facts["verb"] == "reclaim":
                        assert event.ts >= since + CLAIM_TIMEOUT_S
                        self.reclaimed += 1
                    else:
                        self.put_back.add((sched_id, token))
            case "kernel.journal.pruned" if facts["table"] == "agent_schedule_queue":
                for first, last in facts["ranges"]:
                    self.pruned.update(range(first, last + 1))

    def check_against(self, kernel: Kernel) -> None:
        counts = {
            "queued": len(self.waiting),
            "dispatched": len(self.running),
            "completed": len(self.done - self.pruned),
        }
        assert kernel.queue.counts() == {state: count for state, count in counts.items() if count}


class KillRounds:
    """One file, and rounds of processes that are killed on it."""

    def __init__(self, path: str, seed: int) -> None:
        self.path = path
        self.rng = random.Random(seed)
        self.context = fork_server()
        self.story = Story()
        self.ids: dict[str, int] = {}  # by key, every entry that was ever acknowledged
        with self.opened(0) as kernel:
            self.pids = [kernel.agents.create(name) for name in ("one", "two")]

    def opened(self, number: int) -> _Opened:
        return _Opened(self.path, (number + 1) * ROUND_S)

    def round(self, number: int) -> None:
        victims = self._start(number)
        self._watch_and_kill(victims)
        with self.opened(number) as kernel:
            assert kernel.store.check() == []
            self.story.read(kernel)
            self.story.check_against(kernel)
            for victim in victims:
                self._check_enqueued(kernel, victim)
                self._check_runs(kernel, victim)
            for victim in victims:
                self._enqueue_again(kernel, victim)

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

    def _seed(self) -> int:
        return self.rng.randrange(10**6)

    def _watch_and_kill(self, victims: list[KilledProcess]) -> None:
        """Kill each after its last message; the first one, a writer, last, so that the others always find work."""
        for victim in victims:
            victim.last_word = self.rng.randrange(1, WORDS_MAX)
        talking = {victim.listen: victim for victim in victims}
        while talking:
            ready = wait(list(talking), PATIENCE_S)
            assert ready, "no process has reported anything for too long"
            for listen in ready:
                assert isinstance(listen, Connection)
                if not talking[listen].hear():
                    del talking[listen]
            for victim in talking.values():
                if len(victim.told) >= victim.last_word and (victim is not victims[0] or len(talking) == 1):
                    victim.process.kill()
        for victim in victims:
            victim.bury()

    # --- what was acknowledged is there ----------------------------------------------------------

    def _check_enqueued(self, kernel: Kernel, writer: KilledProcess) -> None:
        for ids in writer.answers("enqueued"):
            for key, sched_id in ids.items():
                entry = kernel.queue.get(sched_id)
                assert (entry.key, entry.payload) == (key, {"key": key})
                self.ids[key] = sched_id

    def _check_runs(self, kernel: Kernel, claimer: KilledProcess) -> None:
        for claims in claimer.answers("claimed"):
            for sched_id, token in claims:
                assert self.story.claims[sched_id, token] == claimer.name
        for ids in claimer.answers("completed"):
            for sched_id in ids:
                entry = kernel.queue.get(sched_id)
                assert (entry.state, entry.exit_kind, entry.worker_id) == ("completed", "completed", claimer.name)
        for claim in claimer.answers("was put back"):
            assert claim in self.story.put_back

    # --- what was under way happened whole or not at all -------------------------------------------

    def _enqueue_again(self, kernel: Kernel, writer: KilledProcess) -> None:
        begun = list(writer.answers("enqueue"))
        answered = list(writer.answers("enqueued"))
        for keys in begun[len(answered) :]:
            before = sum(kernel.queue.counts().values())
            specs = [ScheduleSpec(self.pids[0], key=key, payload={"key": key}, backoff=AT_ONCE) for key in keys]
            ids = kernel.queue.enqueue_many(specs)
            created = sum(kernel.queue.counts().values()) - before
            assert created in (0, len(keys))
            self.ids |= dict(zip(keys, ids, strict=True))

    # --- the end ---------------------------------------------------------------------------------

    def finish(self) -> None:
        """Run what is left: every entry that was ever asked for ends once, and there are no others."""
        with self.opened(ROUNDS) as kernel:
            while runs := kernel.queue.claim(worker_id="last", max_n=1_000):
                kernel.queue.complete_many([Completion(run.sched_id, token=run.token) for run in runs])
            self.story.read(kernel)
            self.story.check_against(kernel)
            assert len(self.ids) == len(set(self.ids.values()))
            assert self.story.done == set(self.ids.values())
            assert kernel.store.check() == []


class _Opened:
    """The file, opened for a moment by one who is not killed."""

    def __init__(self, path: str, now: float) -> None:
        self._kernel = Kernel(store.open(path, clock=ManualClock(now)))

    def __enter__(self) -> Kernel:
        return self._kernel

    def __exit__(self, *_: object) -> None:
        self._kernel.store.close()


def test_nothing_acknowledged_is_lost_and_nothing_runs_twice_however_often_processes_are_killed(
    tmp_path: Path,
) -> None:
    rounds = KillRounds(str(tmp_path / "rota.db"), seed=20_261_115)
    for number in range(ROUNDS):
        rounds.round(number)
    rounds.finish()
    assert rounds.story.reclaimed > 0, "no process was killed during a run, so the test proves nothing"

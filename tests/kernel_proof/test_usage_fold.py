"""usage_daily + the fold of the events after the cursor = the fold of all events ever, whatever is pruned or killed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from rota.kernel import EntryFilter, Kernel, usage
from rota.kernel.run_reports import RunReport
from rota.kernel.usage_fold import DAY_S
from rota.model.events import Event
from rota.store import Statement, Transaction
from tests.kernel_proof.test_replay import Life

T = TypeVar("T")
MODELS = (None, "gpt-x", "small")
NOTES = Statement("count_notes", "The number of notes.", "SELECT count(*) FROM usage_entries")


class Killed(BaseException):
    """The process ends here."""


class Mortal:
    """A store in which a process is killed before or after one of its writes."""

    def __init__(self, store: Any, rng: random.Random) -> None:
        self._store = store
        self._left = rng.randint(0, 6)
        self._before = rng.random() < 0.5

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def write(self, work: Callable[[Transaction], T]) -> T:
        self._left -= 1
        if self._left < 0 and self._before:
            raise Killed
        result: T = self._store.write(work)
        if self._left < 0:
            raise Killed
        return result


class UsageLife(Life):
    """A life with charges that name models, reports of supervisors, and processes that die while they fold or prune."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.clock.advance(DAY_S - 1_500)  # so that a day ends in the middle
        self.events: list[Event] = []  # all that were ever recorded
        self.agents: dict[int, int] = {}  # by entry
        self.deeds += [self.charge_model, self.charge_model, self.report, self.die, self.kernel.usage.fold]

    def step(self) -> None:
        super().step()
        self.collect()

    def collect(self) -> None:
        """Remember the new events, before a later step can remove them."""
        since = self.events[-1].event_id if self.events else 0
        self.events += self.kernel.journal.tail(since, 10_000)
        last = max(self.agents, default=0)
        entries, _ = self.kernel.queue.list(limit=10_000)
        self.agents |= {entry.sched_id: entry.pid for entry in entries if entry.sched_id > last}

    def charge_model(self) -> None:
        if self.live:
            sched_id, token = self.live[-1]
            entry = self.kernel.queue.get(sched_id)
            if (entry.state, entry.token) == ("dispatched", token):
                amounts = {"tokens": self.rng.randint(1, 90), "cost_micro": self.rng.randint(0, 500)}
                self.kernel.queue.charge(sched_id, amounts, token=token, model=self.rng.choice(MODELS))

    def report(self) -> None:
        if self.live:
            sched_id, token = self.live.pop()
            back: Any = self.rng.choice((None, "yield", "preempt"))
            self.api.turn(
                [RunReport(sched_id=sched_id, token=token, cpu_ms=70, wall_ms=90, back=back, usage={"tokens": 3})], "w"
            )
            self.live += [
                (entry.sched_id, entry.token or 0)
                for entry in self.kernel.queue.list(state="dispatched")[0]
                if (entry.sched_id, entry.token) not in self.live
            ]

    def die(self) -> None:
        """Another process folds or prunes, and is killed at one of its commits."""
        dying = Kernel(Mortal(self.kernel.store, self.rng), self.clock)
        try:
            if self.rng.random() < 0.5:
                dying.usage.fold()
            else:
                dying.retention.prune(events_older_than_s=0, entries_older_than_s=0)
        except Killed:
            pass

    def expected(self) -> Counter[tuple[str, int, str]]:
        """Sums over all events ever, by what was counted, agent and model."""
        found: Counter[tuple[str, int, str]] = Counter()
        model_of: dict[int, str] = {}
        for event in self.events:
            body, pid = event.payload, event.pid or 0
            if event.kind == "kernel.ledger.charged":
                model = body.get("model", "")
                if model:
                    model_of[body["sched_id"]] = model
                for dim in ("tokens", "cost_micro"):
                    found[dim, pid, model] += body["amounts"].get(dim, 0)
            elif event.kind == "kernel.ledger.refunded":
                found["tokens", pid, ""] -= body["amounts"]["tokens"]
            elif event.kind == "kernel.run.ended":
                found["cpu_ms", pid, model_of.get(body["sched_id"], "")] += body.get("cpu_ms", 0)
            elif event.kind == "kernel.sched.completed":
                for sched_id, exit_kind, *_ in body["entries"]:
                    key = self.agents[sched_id], model_of.get(sched_id, "")
                    found["runs", *key] += 1
                    found["failures", *key] += exit_kind in ("failed", "crashed")
                    found["waits", *key] += 1
            elif event.kind == "kernel.sched.returned":
                for sched_id in body["sched_ids"]:
                    key = self.agents[sched_id], model_of.get(sched_id, "")
                    found["waits", *key] += 1
                    if body["verb"] in ("retry", "reclaim"):
                        found["runs", *key] += 1
                        found["failures", *key] += 1
        return found

    def reported(self) -> Counter[tuple[str, int, str]]:
        names = {f"agent {n}": pid for n, pid in enumerate(self.pids)}
        found: Counter[tuple[str, int, str]] = Counter()
        for line in self.kernel.usage.report(("agent", "model", "day")).lines:
            assert line.agent is not None
            assert line.model is not None
            for field in ("tokens", "cost_micro", "cpu_ms", "runs", "failures", "waits"):
                found[field, names[line.agent], line.model] += getattr(line, field)
        return found


@pytest.mark.parametrize("seed", range(6))
def test_the_days_are_the_sum_of_all_events_ever(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "FOLD_MAX", 7)  # many steps
    life = UsageLife(seed)
    for _ in range(80):
        life.step()
    reported, expected = life.reported(), life.expected()
    assert +reported == +expected
    assert -reported == -expected
    assert reported.total()
    life.kernel.store.close()


def test_no_note_is_left_when_all_entries_have_ended() -> None:
    life = UsageLife(1)
    for _ in range(60):
        life.step()
    life.clock.advance(1_000)
    for entry in life.api.claim("w", 1_000):
        life.kernel.queue.charge(entry.sched_id, {"tokens": 1}, token=entry.token, model="gpt-x")
    life.kernel.usage.fold()
    for entry in life.kernel.queue.list(state="dispatched", limit=1_000)[0]:
        life.kernel.queue.complete(entry.sched_id, "completed")
    life.kernel.queue.cancel_where(EntryFilter(state="queued"))
    life.kernel.usage.fold()
    assert life.kernel.store.read(lambda tx: tx.run(NOTES)) == [(0,)]
    life.kernel.store.close()

"""Sharing policies: each project gets its weight, in measured tokens.

Over hundreds of runs shares must come out within one per cent: when estimates are wrong or missing, with many runs
under way at once, when one has many agents and another has one, when the dispatcher is replaced in the middle,
and when there are two of them on one file. eevdf and wfq keep debt for ever and credit never; fair_share remembers
its window and nothing before it.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rota.clock import ManualClock
from rota.kernel import Kernel, ReadyEntry, ScheduleSpec
from rota.service.dispatcher import Dispatcher
from rota.store import Transaction
from rota.store.sqlite import SqliteStore

START_AT = 1_000_000_000.0
SHARING = ("eevdf", "wfq", "fair_share")
BY_VIRTUAL_TIME = ("eevdf", "wfq")  # these forget no debt and keep no credit
DAY_S = 24 * 3_600.0


class RolledBack(Exception):
    """Raised instead of a commit."""


class Store(SqliteStore):
    """The real store, which can roll back the next write."""

    undoes = False

    def write(self, work: Callable[[Transaction], Any]) -> Any:
        def undone(tx: Transaction) -> None:
            work(tx)
            raise RolledBack

        return super().write(undone if self.undoes else work)


class Floor:
    """Projects that always have work, and one hand after another that does it."""

    def __init__(self, policy: str, path: str = ":memory:", *, seed: int = 1) -> None:
        self.policy, self.path = policy, path
        self.clock = ManualClock(START_AT)
        self.rng = random.Random(seed)
        self.jumps = random.Random(seed)
        self.used: Counter[str] = Counter()  # tokens, by project
        self.by_agent: Counter[int] = Counter()
        self.order: list[str] = []  # whose run each was
        self.expected: dict[str, int] = {"tokens": 100}
        self.kernel, self.api = self.open()

    def open(self) -> tuple[Kernel, Dispatcher]:
        kernel = Kernel(Store(self.path, clock=self.clock, durability="normal"))
        return kernel, Dispatcher(kernel, self.policy)

    def reopen(self) -> None:
        """Reopen the file, as after a crash."""
        self.kernel.store.close()
        self.kernel, self.api = self.open()

    def project(self, name: str, weight: float = 1, *, agents: int = 1, backlog: int = 0) -> list[int]:
        self.kernel.projects.create(name, weight=round(weight * 1_000))
        pids = [self.kernel.agents.create(f"{name}{number}", project_id=name) for number in range(agents)]
        for pid in pids:
            self.enqueue(pid, backlog // agents)
        return pids

    def enqueue(self, pid: int, count: int) -> None:
        if count:
            self.kernel.queue.enqueue_many([ScheduleSpec(pid, expected=self.expected)] * count)

    def run(self, count: int, cost: Callable[[], int] | None = None, *, hands: int = 1) -> None:
        """So many runs, at most `hands` at once, the oldest always ending first."""
        under_way: list[ReadyEntry] = []
        begun = 0
        while begun < count or under_way:
            room = min(hands - len(under_way), count - begun)
            runs = self.api.claim("w", room) if room else []
            begun += len(runs)
            under_way += runs
            assert under_way, "there is always a run"
            self.end(under_way.pop(0), cost() if cost is not None else self.rng.randint(50, 150))

    def end(self, run: ReadyEntry, tokens: int) -> None:
        assert run.token is not None
        self.kernel.queue.charge(run.sched_id, {"tokens": tokens}, token=run.token)
        self.kernel.queue.complete(run.sched_id, "completed", token=run.token)
        self.clock.advance(1)
        if self.jumps.random() < 0.1:  # which changes nothing: shares are by what was used in elapsed time
            self.clock.jump(self.jumps.choice((-86_400.0, -5.0, 5.0, 86_400.0)))
        self.used[run.project_id or ""] += tokens
        self.by_agent[run.pid] += tokens
        self.order.append(run.project_id or "")

    def claim_and_roll_back(self, most: int) -> None:
        """Claim, and roll it back."""
        assert isinstance(self.kernel.store, Store)
        self.kernel.store.undoes = True
        try:
            self.api.claim("w", most)
        finally:
            self.kernel.store.undoes = False

    def share(self, name: str) -> float:
        return self.used[name] / self.used.total()


ESTIMATES: dict[str, dict[str, int]] = {
    "right on average": {"tokens": 100},
    "none": {},
    "twice": {"tokens": 200},
}


@pytest.mark.parametrize("policy", SHARING)
@pytest.mark.parametrize("expected", ESTIMATES.values(), ids=ESTIMATES.keys())
def test_three_to_one_is_three_to_one_in_measured_tokens(policy: str, expected: dict[str, int]) -> None:
    floor = Floor(policy)
    floor.expected = expected
    floor.project("heavy", 3, backlog=240)
    floor.project("light", 1, backlog=100)
    floor.run(240)
    assert floor.share("heavy") == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize("policy", SHARING)
def test_many_hands_keep_the_shares(policy: str) -> None:
    floor = Floor(policy)
    floor.project("heavy", 3, backlog=300)
    floor.project("light", 1, backlog=200)
    floor.run(300, hands=4)
    assert floor.share("heavy") == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize("policy", SHARING)
def test_expensive_runs_are_charged_in_full(policy: str) -> None:
    """Both get the same share, so runs that cost ten times as much happen a tenth as often."""
    floor = Floor(policy)
    (expensive,) = floor.project("expensive", backlog=60)
    floor.project("cheap", backlog=450)
    runs: Counter[str] = Counter()
    for _ in range(440):
        (run,) = floor.api.claim("w")
        runs[run.project_id or ""] += 1
        floor.end(run, 1_000 if run.pid == expensive else 100)
    assert floor.share("expensive") == pytest.approx(0.5, abs=0.01)
    assert runs["cheap"] == pytest.approx(10 * runs["expensive"], rel=0.05)


@pytest.mark.parametrize("policy", SHARING)
def test_spreading_oneself_over_many_agents_gains_nothing(policy: str) -> None:
    floor = Floor(policy)
    floor.project("one", agents=1, backlog=250)
    floor.project("fifty", agents=50, backlog=250)
    floor.run(240)
    assert floor.share("fifty") == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("policy", BY_VIRTUAL_TIME)
def test_agents_of_a_project_share_what_is_the_projects_by_their_own_weights(policy: str) -> None:
    floor = Floor(policy)
    heavy, light = floor.project("ours", agents=2, backlog=600)
    floor.kernel.agents.update(heavy, weight=3_000)
    floor.project("theirs", backlog=300)
    floor.run(400)
    assert floor.share("ours") == pytest.approx(0.5, abs=0.01)
    assert floor.by_agent[heavy] / (floor.by_agent[heavy] + floor.by_agent[light]) == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize("policy", SHARING)
def test_a_new_weight_counts_from_the_next_dispatch_on(policy: str) -> None:
    floor = Floor(policy)
    floor.project("a", 1, backlog=400)
    floor.project("b", 1, backlog=200)
    floor.run(100)
    floor.kernel.projects.update("a", weight=4_000)
    if policy == "fair_share":
        floor.clock.advance(2 * DAY_S)  # it goes by the whole window: let the time of equal shares leave it
    floor.used.clear()
    floor.run(300)
    assert floor.share("a") == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("policy", SHARING)
def test_debt_is_kept_across_idleness(policy: str) -> None:
    floor = Floor(policy)
    (spender,) = floor.project("spender", backlog=1)
    floor.project("saver", backlog=300)
    while not floor.used["spender"]:
        (run,) = floor.api.claim("w")
        floor.end(run, 10_000 if run.pid == spender else 100)
    floor.run(20, lambda: 100)  # meanwhile it has nothing to do
    floor.enqueue(spender, 100)
    floor.order.clear()
    floor.run(150, lambda: 100)
    served = floor.order.index("spender")
    owed = (10_000 - 2_000) / 100
    assert served == pytest.approx(owed, abs=3)
    assert Counter(floor.order[served:])["spender"] == pytest.approx((150 - served) / 2, abs=2)


@pytest.mark.parametrize("policy", BY_VIRTUAL_TIME)
def test_idleness_earns_no_credit(policy: str) -> None:
    floor = Floor(policy)
    floor.project("busy", backlog=300)
    (idle,) = floor.project("idle")
    floor.run(100, lambda: 100)
    floor.enqueue(idle, 200)
    floor.order.clear()
    floor.run(100, lambda: 100)
    assert Counter(floor.order[:10])["idle"] == pytest.approx(5, abs=1)
    assert Counter(floor.order)["idle"] == pytest.approx(50, abs=1)


@pytest.mark.parametrize("policy", BY_VIRTUAL_TIME)
def test_idleness_earns_no_credit_while_no_dispatcher_runs(tmp_path: Path, policy: str) -> None:
    """The idle one returns while the dispatcher is down: a restart must not take its old place for a claim."""
    floor = Floor(policy, str(tmp_path / "rota.db"))
    floor.project("busy", backlog=300)
    (idle,) = floor.project("idle", backlog=1)
    floor.run(101, lambda: 100)
    floor.enqueue(idle, 200)
    floor.reopen()
    floor.order.clear()
    floor.run(100, lambda: 100)
    assert Counter(floor.order)["idle"] == pytest.approx(50, abs=2)


def test_fair_share_forgets_after_its_window_and_eevdf_never_forgets_debt() -> None:
    answers = {}
    for policy in ("fair_share", "eevdf"):
        floor = Floor(policy)
        (spender,) = floor.project("spender", backlog=1)
        floor.project("saver", backlog=200)
        while not floor.used["spender"]:
            (run,) = floor.api.claim("w")
            floor.end(run, 10_000 if run.pid == spender else 100)
        floor.clock.advance(2 * DAY_S)
        floor.enqueue(spender, 50)
        floor.order.clear()
        floor.run(20, lambda: 100)
        answers[policy] = Counter(floor.order)["spender"]
    assert answers["fair_share"] == pytest.approx(10, abs=1)
    assert answers["eevdf"] == 0


# --- restarts, and two of them -------------------------------------------------------------------


@pytest.mark.parametrize("policy", SHARING)
@pytest.mark.parametrize("every", [1, 24])
def test_restarts_in_the_middle_keep_the_shares(tmp_path: Path, policy: str, every: int) -> None:
    floor = Floor(policy, str(tmp_path / "rota.db"))
    floor.project("heavy", 3, backlog=300)
    floor.project("light", 1, backlog=300)
    for _ in range(240 // every):
        floor.run(every)
        if every > 1:
            floor.reopen()
        else:
            floor.api = Dispatcher(floor.kernel, policy)  # nothing but the rows is left of the last one
    assert floor.share("heavy") == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize("policy", SHARING)
def test_a_restart_while_runs_are_under_way_keeps_the_shares(tmp_path: Path, policy: str) -> None:
    floor = Floor(policy, str(tmp_path / "rota.db"))
    floor.project("heavy", 3, backlog=300)
    floor.project("light", 1, backlog=300)
    for _ in range(16):
        runs = floor.api.claim("w", 15)
        floor.reopen()
        for run in runs:
            floor.end(run, floor.rng.randint(50, 150))
    assert floor.share("heavy") == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize("policy", SHARING)
def test_two_dispatchers_on_one_file_keep_the_shares_together(tmp_path: Path, policy: str) -> None:
    """They take turns, for long and for short, each seeing what the other does only in the rows."""
    floor = Floor(policy, str(tmp_path / "rota.db"))
    floor.project("heavy", 3, backlog=500)
    floor.project("light", 1, backlog=500)
    here = floor.kernel, floor.api
    there = floor.open()
    lengths = itertools.cycle([1, 1, 2, 5, 13])
    for number in range(60):
        floor.kernel, floor.api = here if number % 2 else there
        floor.run(next(lengths))
    assert floor.share("heavy") == pytest.approx(0.75, abs=0.01)
    for kernel, _ in (here, there):
        kernel.store.close()


@pytest.mark.parametrize("policy", SHARING)
def test_a_rolled_back_claim_changes_no_order(policy: str) -> None:
    """A pass forgets what it picked in a transaction that was rolled back."""
    undisturbed, disturbed = floors = [Floor(policy), Floor(policy)]
    for floor in floors:
        floor.project("heavy", 3, backlog=100)
        floor.project("light", 1, backlog=100)
        floor.run(10, lambda: 100)
    for _ in range(10):
        with pytest.raises(RolledBack):
            disturbed.claim_and_roll_back(3)
        for floor in floors:
            floor.run(5, lambda: 100)
    assert disturbed.order == undisturbed.order

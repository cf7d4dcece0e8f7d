"""A random history of budgets: sixteen workers on one store, loans, kills, refunds and a clock, and who used what when.

The history keeps its own list of charges and adds it up itself, so that a check does not believe the sums of the store.
"""

from __future__ import annotations

import contextlib
import random
from collections import defaultdict
from collections.abc import Callable
from itertools import permutations
from typing import Any, NamedTuple

from rota import store
from rota.clock import ManualClock
from rota.errors import StaleClaim
from rota.kernel import Kernel, ScheduleSpec
from rota.kernel.replay import KernelState
from rota.model.work import ReadyEntry
from rota.service.dispatcher import Dispatcher

WORKERS = 16
CLAIM_TIMEOUT_S = 30.0
WINDOW_S = 60.0  # of the budgets of projects and of all projects
PERIOD_S = 20.0  # of the limits
POLICIES = ("strict", "eevdf", "fair_share", "round_robin")
ALL = "*"
NOISE_S = 1e-6  # of instants that were added up as floating-point numbers
ENDS = ("completed", "failed", "crashed", "crashed")  # a crashed run is tried again


class Charge(NamedTuple):
    """An amount of one dimension that a run used."""

    at: float
    pid: int
    project_id: str | None
    limits: tuple[str, ...]
    dim: str
    amount: int
    past_ask: int  # the part that it had not asked for


class History:
    """A store, its workers, and everything that was charged to it."""

    def __init__(self, seed: int, *, obedient: bool = True, path: str = ":memory:") -> None:
        self.rng = rng = random.Random(seed)
        self.obedient = obedient  # whether no run charges more than its ceiling
        self.clock = ManualClock(1_000.0)
        self.kernel = kernel = Kernel(store.open(path, clock=self.clock), rng=random.Random(seed))
        self.api = Dispatcher(kernel)
        self.budgets: dict[tuple[str, str], int] = {}
        for project_id in ("a", "b"):
            kernel.projects.create(project_id)
        for from_project, to_project in permutations((None, "a", "b"), 2):  # runs lend to agents of any project
            kernel.projects.grant(from_project, to_project)
        for owner in ("a", "b", ALL):
            for dim in ("tokens", "cost_micro"):
                if rng.random() < 0.6:
                    self.budgets[owner, dim] = limit = rng.randint(60, 200)
                    level: Any = "global" if owner == ALL else "project"
                    kernel.ledger.set_budget(level, owner, dim, limit, window_s=WINDOW_S)
        self.agents = [kernel.agents.create(f"agent {n}", project_id=(None, "a", "a", "b")[n]) for n in range(4)]
        self.grants: dict[tuple[int, str], int] = {}
        for pid in self.agents:
            if rng.random() < 0.5:
                self.grants[pid, "tokens"] = granted = rng.randint(100, 600)
                kernel.ledger.create(pid, {"tokens": granted})
        self.limits = {"api": rng.randint(60, 150), "calls": rng.randint(3, 8)}
        kernel.contexts.create(bound_to="name", bound_id="api", budget=self.limits["api"], period_s=PERIOD_S)
        kernel.contexts.create(
            bound_to="name", bound_id="calls", budget=self.limits["calls"], period_s=PERIOD_S, unit="requests"
        )
        self.slots: list[ReadyEntry | None] = [None] * WORKERS
        self.spent: defaultdict[int, dict[str, int]] = defaultdict(dict)  # by entry, in its present attempt
        self.charges: list[Charge] = []
        self.starts: list[float] = []  # of runs that draw on "calls"
        self.lost: list[ReadyEntry] = []  # runs of killed workers
        self.deeds: list[Callable[[], None]] = [
            *[self.enqueue] * 6,
            *[self.claim] * 10,
            *[self.charge] * 10,
            *[self.spawn] * 6,
            *[self.collect] * 3,
            *[self.end] * 8,
            *[self.wait] * 3,
            self.cancel,
            self.kill,
            self.put_back,
            self.refund,
            self.report_late,
        ]

    @property
    def now(self) -> float:
        return self.clock.now()

    def step(self) -> None:
        self.rng.choice(self.deeds)()

    # --- deeds -----------------------------------------------------------------------------------

    def enqueue(self) -> None:
        rng = self.rng
        ask = {dim: rng.randint(1, 60) for dim in ("tokens", "cost_micro") if rng.random() < 0.8}
        field = rng.choice(("ceiling", "ceiling", "expected"))
        draws_on = tuple(name for name in self.limits if rng.random() < 0.25)
        fields: dict[str, Any] = {field: ask, "draws_on": draws_on, "priority": rng.randint(0, 2)}
        self.kernel.queue.enqueue(ScheduleSpec(rng.choice(self.agents), **fields))

    def claim(self) -> None:
        free = [number for number, run in enumerate(self.slots) if run is None]
        if not free:
            return
        number = self.rng.choice(free)
        policy = self.rng.choice(POLICIES)
        found = self.api.claim(
            f"worker {number}",
            self.rng.choice((1, 1, 3)),
            policy=policy,
            claim_timeout_s=CLAIM_TIMEOUT_S,
        )
        for entry, slot in zip(found, free, strict=False):
            self.slots[slot] = entry
            self.spent[entry.sched_id] = {}
            self.starts += [self.now] if "calls" in entry.draws_on else []
        for entry in found[len(free) :]:
            self.lost.append(entry)
            self.starts += [self.now] if "calls" in entry.draws_on else []

    def charge(self) -> None:
        run = self._run()
        if run is None:
            return
        left = self.left(run)
        amounts = {}
        for dim in left if self.obedient or self.rng.random() < 0.7 else ("tokens", "cost_micro"):
            most = left.get(dim, 0) if self.obedient else left.get(dim, 0) + 10
            if most > 0:
                amounts[dim] = self.rng.choice((most, self.rng.randint(1, most)))
        with self._may_be_stale(run):
            self.kernel.queue.charge(run.sched_id, amounts, token=run.token)
            for dim, amount in amounts.items():
                past_ask = max(0, amount - left.get(dim, 0))
                self.charges.append(Charge(self.now, run.pid, run.project_id, run.draws_on, dim, amount, past_ask))
                spent = self.spent[run.sched_id]
                spent[dim] = spent.get(dim, 0) + amount

    def spawn(self) -> None:
        run = self._run()
        if run is None:
            return
        lent = {dim: self.rng.choice((most, self.rng.randint(1, most))) for dim, most in self.left(run).items() if most}
        draws_on = self.rng.choice((run.draws_on, run.draws_on, ()))
        spec = ScheduleSpec(
            self.rng.choice((run.pid, *self.agents)),
            parent_id=run.sched_id,
            draws_on=draws_on,
            priority=self.rng.randint(0, 2),
            max_attempts=self.rng.choice((1, 3)),
        )
        with self._may_be_stale(run):
            self.kernel.supervision.spawn(spec, run.token or 0, lent)

    def collect(self) -> None:
        for run in filter(None, self.slots):
            with self._may_be_stale(run):
                self.kernel.supervision.rest(run.sched_id, run.token or 0, waiting=False)

    def end(self) -> None:
        run = self._run()
        if run is not None:
            with self._may_be_stale(run):
                self.kernel.queue.complete(run.sched_id, self.rng.choice(ENDS), token=run.token)
            self._release(run)

    def put_back(self) -> None:
        run = self._run()
        if run is not None:
            with self._may_be_stale(run):
                self.kernel.queue.put_back(run.sched_id, token=run.token or 0)
            self._release(run)

    def kill(self) -> None:
        run = self._run()
        if run is not None:
            self._release(run)
            self.lost.append(run)

    def cancel(self) -> None:
        queued = self.kernel.queue.list(state="queued", limit=50)[0]
        if queued:
            self.kernel.queue.cancel(self.rng.choice(queued).sched_id)

    def refund(self) -> None:
        pid = self.rng.choice(self.agents)
        for line in self.kernel.ledger.get(pid):
            if line.used:
                amount = self.rng.randint(1, line.used)
                self.kernel.ledger.refund(pid, line.dim, amount)
                self._take_back(pid, line.dim, amount)

    def report_late(self) -> None:
        """A worker whose claim was taken back reports usage: it is refused, and nothing changes."""
        if self.lost:
            run = self.rng.choice(self.lost)
            if self.kernel.queue.get(run.sched_id).token != run.token:
                with contextlib.suppress(StaleClaim):
                    self.kernel.queue.charge(run.sched_id, {"tokens": 10}, token=run.token)
                    raise AssertionError(f"entry {run.sched_id} was charged with a token of an earlier claim")

    def wait(self) -> None:
        rng = self.rng
        next_at = self.kernel.queue.upkeep()
        if rng.random() < 0.4 and next_at is not None:
            self.clock.advance(max(0.0, next_at - self.now + rng.choice((0.0, 0.0, -0.0004, 0.0004))))
        else:
            self.clock.advance(rng.choice((0.0003, rng.random() * 0.01, rng.random(), rng.random() * 10)))
        for run in self.slots:
            if run is not None and rng.random() < 0.9:
                with self._may_be_stale(run):
                    self.kernel.queue.heartbeat(run.sched_id, run.token or 0)
        self.kernel.queue.upkeep()

    # --- looking ---------------------------------------------------------------------------------

    def left(self, run: ReadyEntry) -> dict[str, int]:
        """What a run may still use, per dimension, by its own ceiling or expectation."""
        entry = self.kernel.queue.get(run.sched_id)
        asked = {**entry.expected, **entry.ceiling}
        return {dim: max(0, most - self.spent[run.sched_id].get(dim, 0)) for dim, most in asked.items()}

    def violations(self) -> list[str]:
        """What exceeds its limit by more than runs have charged past their own ask."""
        found = []
        for (pid, dim), granted in self.grants.items():
            found += self._over(f"agent {pid}", granted, [c for c in self.charges if (c.pid, c.dim) == (pid, dim)])
        for (owner, dim), limit in self.budgets.items():
            mine = [c for c in self._since(WINDOW_S) if c.dim == dim and owner in (ALL, c.project_id)]
            found += self._over(f"budget of {owner}", limit, mine)
        of_api = [c for c in self._since(PERIOD_S) if c.dim == "tokens" and "api" in c.limits]
        found += self._over("limit api", self.limits["api"], of_api)
        starts = sum(at > self.now - PERIOD_S + NOISE_S for at in self.starts)
        if starts > self.limits["calls"]:
            found.append(f"limit calls: {starts} starts of {self.limits['calls']}")
        return found

    def reserved(self) -> list[str]:
        """Where the store itself says that more is used and reserved than allowed; only if no run passed its ask."""
        return [
            f"{line.owner} {line.dim}: used {line.used} and reserved {line.reserved} of {line.limit}"
            for line in self.kernel.ledger.budgets()
            if line.reserved < 0 or line.used + line.reserved > line.limit
        ]

    def journal_equals_tables(self) -> bool:
        read = self.kernel.env.store.read
        return read(KernelState.from_journal).at(self.now) == read(KernelState.from_tables).at(self.now)

    def _since(self, window_s: float) -> list[Charge]:
        return [c for c in self.charges if c.at > self.now - window_s + NOISE_S]

    def _over(self, what: str, limit: int, charges: list[Charge]) -> list[str]:
        used, past_ask = sum(c.amount for c in charges), sum(c.past_ask for c in charges)
        return [f"{what}: {used} used of {limit}, {past_ask} of it past an ask"] if used > limit + past_ask else []

    # --- inside ----------------------------------------------------------------------------------

    def _run(self) -> ReadyEntry | None:
        live = [run for run in self.slots if run is not None]
        return self.rng.choice(live) if live else None

    def _release(self, run: ReadyEntry) -> None:
        self.slots = [None if each is run else each for each in self.slots]

    @contextlib.contextmanager
    def _may_be_stale(self, run: ReadyEntry) -> Any:
        """Run calls of a worker that may have lost its claim; then its run is over."""
        try:
            yield
        except StaleClaim:
            self._release(run)

    def _take_back(self, pid: int, dim: str, amount: int) -> None:
        """Remove the latest charges of an agent."""
        for index in reversed(range(len(self.charges))):
            charge = self.charges[index]
            if (charge.pid, charge.dim) == (pid, dim) and amount:
                part = min(amount, charge.amount)
                amount -= part
                self.charges[index] = charge._replace(amount=charge.amount - part)

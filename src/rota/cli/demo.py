"""`rota demo`: rota's main job in about a minute, offline, with everything going wrong that may.

Three projects, weighted 3:2:1, share eight slots of two workers. A dozen agents, all real processes, think and charge
tokens. On the way one agent spends more than it may, one keeps crashing, and one of the two workers is killed with its
hands full. What is shown at the end is folded from the journal, and held against the tables.

    start           every project is given work, and is kept in work until the time is over
    soon            the spender is asked to run; it is stopped when it passes its ceiling
    at a third      worker-b is killed (SIGKILL) while it holds runs; their claims expire, worker-a goes on with them
    after that      the stumbler is asked to run: it crashes, is retried, and is left alone
    time over       no more work is given; shares are read now, while everybody still has some; the rest is finished
"""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from rota.app import Rota
from rota.cli.demo_report import Demonstrated, Incidents, print_report
from rota.cli.demo_worker import WORKER_ID
from rota.cli.view import LiveView
from rota.fleet.agent_settings import PLAN_KEY, RunPlan, plan_of, spec_for
from rota.fleet.supervisor import Supervisor
from rota.model.work import Agent, Backoff, Limits, ReadyEntry, RestartPolicy
from rota.observe.fleet_state import Board
from rota.observe.report import Report

__all__ = ["demonstrate", "show"]

SECONDS = 50.0  # of sharing; with the start, the kill and the end it takes about a minute
PATIENCE_S = 60.0  # how much longer than planned it may take before it gives up
TURN_S = 0.1  # between two looks of whoever gives out the work
SLOTS = 6
WORKER_SLOTS = 2
BACKLOG = 8  # entries that every project is kept waiting with
STEPS, TOKENS_PER_STEP = 4, 250
SPENDER_TOKENS_MAX = 1_200

PROJECTS = {"research": 3, "review": 2, "upkeep": 1}
TOKENS_PER_S_MAX = 9_000  # what all slots together can charge
THINKERS = {
    "research": ("scout", "reader", "analyst", "writer"),
    "review": ("reviewer", "tester", "auditor"),
    "upkeep": ("sweeper", "indexer", "archivist"),
}
SPENDER, STUMBLER = "spender", "stumbler"
LIMIT = "model-api"  # a provider's limit that all who think draw on

_AGENTS = Path(__file__).parent / "demo_agents"


def show(*, seconds: float = SECONDS, policy: str = "eevdf", as_json: bool = False) -> bool:
    """Run the demonstration and print what came of it; whether all went as it should."""
    console = Console(stderr=as_json)
    shown = demonstrate(seconds, policy, console)
    if as_json:
        print(msgspec.json.encode(shown.as_dict()).decode())
    else:
        print_report(shown, console)
    return shown.went_well


def demonstrate(seconds: float, policy: str, console: Console) -> Demonstrated:
    """Run it, with the live view, on a store that is thrown away."""
    with tempfile.TemporaryDirectory(prefix="rota-demo-") as folder:
        path = str(Path(folder) / "rota.db")
        with Rota(path, policy=policy) as rota:
            _furnish(rota, seconds)
            supervisor = rota.supervisor(SLOTS, worker_id="worker-a", claim_timeout_s=20.0, drain_s=1.0)
            script = _Script(rota, seconds)
            with (
                _warnings_unsaid(),
                _running(supervisor),
                _second_worker(path, policy, script.claim_timeout_s) as worker,
                LiveView(rota.desk, supervisor, console=console, store=path, board=Board()),
            ):
                script.play(worker)
            return script.result(policy)


# --- who there is ----------------------------------------------------------------------------------


def _furnish(rota: Rota, seconds: float) -> None:
    """Projects and agents. Budgets and the named limit can be seen to burn down, and hold nobody up."""
    budget = {"tokens": 100_000 + round(TOKENS_PER_S_MAX * seconds)}
    for project_id, weight in PROJECTS.items():
        rota.project(project_id, weight=weight, budget=budget)
    rota.desk.contexts.create(bound_to="name", bound_id=LIMIT, budget=12 * TOKENS_PER_S_MAX, period_s=10.0)
    for project_id, names in THINKERS.items():
        for name in names:
            _agent(rota, project_id, name, _thinking(draws_on=(LIMIT,)))
    _agent(rota, "review", SPENDER, _thinking(limits=Limits(tokens=SPENDER_TOKENS_MAX)))
    patience = RestartPolicy(backoff=Backoff(base_s=0.2, factor=1.5, cap_s=1.0), quarantine_after=3)
    _agent(rota, "upkeep", STUMBLER, _plan("command", "stumbler.py", restart=patience, max_attempts=3))


def _thinking(**more: Any) -> RunPlan:
    backoff = RestartPolicy(backoff=Backoff(base_s=0.1, factor=1.0, cap_s=0.1), quarantine_after=0)
    return _plan("ndjson", "thinker.py", expected={"tokens": STEPS * TOKENS_PER_STEP}, restart=backoff, **more)


def _plan(runner: str, program: str, **more: Any) -> RunPlan:
    return RunPlan(runner=runner, argv=(sys.executable, "-I", str(_AGENTS / program)), stop_grace_s=1.0, **more)


def _agent(rota: Rota, project_id: str, name: str, plan: RunPlan) -> None:
    rota.desk.agents.create(name, plan.runner, project_id=project_id, metadata={PLAN_KEY: msgspec.to_builtins(plan)})


# --- who works -----------------------------------------------------------------------------------


@contextmanager
def _warnings_unsaid() -> Iterator[None]:
    """What goes wrong here is meant to, and the view tells it."""
    log = logging.getLogger("rota.runtime")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


@contextmanager
def _running(supervisor: Supervisor) -> Iterator[None]:
    """The supervisor on a thread of its own; leaving ends what still runs."""
    thread = threading.Thread(target=supervisor.run, name="rota-demo")
    thread.start()
    try:
        yield
    finally:
        supervisor.kill()
        thread.join()


@contextmanager
def _second_worker(path: str, policy: str, claim_timeout_s: float) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process; whatever happens, it does not outlive us."""
    what = [sys.executable, "-m", "rota.cli.demo_worker", path, policy, str(WORKER_SLOTS), str(claim_timeout_s)]
    with subprocess.Popen(what, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as worker:  # noqa: S603  # our own program
        try:
            yield worker
        finally:
            worker.kill()


# --- what happens --------------------------------------------------------------------------------


class _Script:
    """Gives out the work, and sees to it that things go wrong in time."""

    def __init__(self, rota: Rota, seconds: float) -> None:
        self.claim_timeout_s = min(5.0, max(1.0, seconds / 10))
        self._rota = rota
        self._desk = rota.desk
        self._seconds = seconds
        self._agents = {agent.name: agent for agent in self._desk.agents.list(limit=100)[0]}
        self._given = dict.fromkeys(PROJECTS, 0)
        self._begun_at = self._desk.clock.monotonic()
        self._bell = threading.Condition()
        self._spender: int | None = None
        self._stumbler: int | None = None
        self._orphans: list[int] | None = None  # what the killed worker held
        self._shares: Report | None = None

    @property
    def _elapsed_s(self) -> float:
        return self._desk.clock.monotonic() - self._begun_at

    def play(self, worker: subprocess.Popen[bytes]) -> None:
        """From the first entry to the last."""
        while self._elapsed_s < self._seconds + PATIENCE_S and not (self._all_happened and self._is_over):
            self._keep_in_work()
            self._turn()
            self._go_wrong(worker)
        self._shares = self._report()
        while self._elapsed_s < self._seconds + 2 * PATIENCE_S and self._is_anything_left():
            self._turn()

    @property
    def _is_over(self) -> bool:
        return self._elapsed_s >= self._seconds

    @property
    def _all_happened(self) -> bool:
        return self._stumbler is not None

    def _turn(self) -> None:
        with self._bell:
            self._desk.clock.wait(self._bell, TURN_S)

    def _keep_in_work(self) -> None:
        """Let every project have some work that waits, so that all of them compete all the time."""
        for project_id, names in THINKERS.items():
            _, waiting = self._desk.queue.list(state="queued", project_id=project_id, limit=1)
            agents = [self._agents[name] for name in names]
            specs = []
            for _ in range(BACKLOG - waiting):
                self._given[project_id] += 1
                specs.append(_work(agents[self._given[project_id] % len(agents)], self._given[project_id]))
            if specs:
                self._desk.queue.enqueue_many(specs)

    def _go_wrong(self, worker: subprocess.Popen[bytes]) -> None:
        if self._spender is None and self._elapsed_s >= self._seconds / 10:
            spender = self._agents[SPENDER]
            self._spender = self._desk.queue.enqueue(_work(spender, 1, steps=40, priority=5))
        if self._orphans is None and self._elapsed_s >= self._seconds / 3 and self._has_its_hands_full():
            worker.kill()
            worker.wait()
            self._orphans = [entry.sched_id for entry in self._held()]
        if self._orphans is not None and self._stumbler is None:
            stumbler = self._agents[STUMBLER]
            self._stumbler = self._desk.queue.enqueue(spec_for(stumbler, plan_of(stumbler), {}, priority=5))

    def _held(self) -> list[ReadyEntry]:
        """What the second worker holds."""
        running, _ = self._desk.queue.list(state="dispatched", limit=SLOTS + WORKER_SLOTS)
        return [entry for entry in running if entry.worker_id == WORKER_ID]

    def _has_its_hands_full(self) -> bool:
        """Whether it is in the middle of something that was saved: then it can be seen to go on there."""
        return any(isinstance(entry.result, dict) and 0 < entry.result["next"] < STEPS for entry in self._held())

    def _is_anything_left(self) -> bool:
        counts = self._desk.queue.counts()
        return any(state.partition(":")[0] in ("queued", "dispatched") for state in counts)

    # --- what came of it ---------------------------------------------------------------------------

    def _report(self) -> Report:
        """A board of the whole journal, held against the tables."""
        board = Board()
        counts: dict[str, int] = {}
        while board.through_id < self._desk.journal.cursor():  # until nothing was written in between
            counts = self._desk.queue.counts()
            while events := self._desk.journal.tail(board.through_id, 10_000):
                for event in events:
                    board.fold(event)
        return board.report(counts, among=PROJECTS)

    def result(self, policy: str) -> Demonstrated:
        """What there is to be shown. Nothing runs any more."""
        report = self._report()
        return Demonstrated(
            policy=policy,
            seconds=self._elapsed_s,
            shares=self._shares or report,
            report=report,
            incidents=Incidents(
                orphans=[self._desk.queue.get(sched_id) for sched_id in self._orphans or []],
                spender=None if self._spender is None else self._desk.queue.get(self._spender),
                stumbler=None if self._stumbler is None else self._desk.queue.get(self._stumbler),
                stumbler_paused_by=self._desk.agents.get(self._agents[STUMBLER].pid).paused_by,
            ),
        )


def _work(agent: Agent, number: int, *, steps: int = STEPS, priority: int = 0) -> Any:
    """A little thinking. Every second one saves where it stands."""
    payload = {"steps": steps, "step_s": 0.2, "tokens": TOKENS_PER_STEP, "keeps": number % 2 == 0}
    return spec_for(agent, plan_of(agent), payload, priority=priority)

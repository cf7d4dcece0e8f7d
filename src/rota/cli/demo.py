"""`rota demo`: shares, budgets and recovery in about a minute, offline.

Three projects, weighted 3:2:1, share eight slots of two workers. A dozen agents, all real processes, think and charge
tokens. One agent exceeds its budget, one keeps crashing, and one of the two workers is killed while it holds runs. The
report at the end is folded from the journal and compared with the tables.

    start           every project gets entries, and keeps a backlog until the time is over
    soon            the spender is enqueued; it is stopped when it exceeds its ceiling
    at a third      worker-b is killed (SIGKILL) while it holds runs; their claims expire, worker-a retries them
    after that      the stumbler is enqueued: it crashes, is retried, and is quarantined
    time over       nothing more is enqueued; shares are read while every project has a backlog; the rest finishes
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
from rota.cli import output
from rota.cli.demo_report import Demonstrated, Incidents, print_report
from rota.cli.demo_worker import WORKER_ID
from rota.cli.view import LiveView
from rota.fleet import SETTINGS_KEY, AgentSettings, Supervisor, settings_of, spec_for
from rota.model import Agent, Backoff, Limits, ReadyEntry, RestartPolicy
from rota.observe import FleetReport, FleetState

__all__ = ["demonstrate", "show"]

SECONDS = 50.0  # of sharing; the whole takes about a minute
PATIENCE_S = 60.0  # how much longer than planned it may take before it fails
PERIOD_S = 0.1  # between two checks of the script
SLOTS = 6
WORKER_SLOTS = 2
BACKLOG = 8  # queued entries that every project keeps
STEPS, TOKENS_PER_STEP = 4, 250
SPENDER_TOKENS_MAX = 1_200

PROJECTS = {"research": 3, "review": 2, "upkeep": 1}
TOKENS_PER_S_MAX = 9_000  # the most that all slots together can charge
THINKERS = {
    "research": ("scout", "reader", "analyst", "writer"),
    "review": ("reviewer", "tester", "auditor"),
    "upkeep": ("sweeper", "indexer", "archivist"),
}
SPENDER, STUMBLER = "spender", "stumbler"
LIMIT = "model-api"  # a provider's limit that all thinkers draw on

_AGENTS = Path(__file__).parent / "demo_agents"


def show(*, seconds: float = SECONDS, policy: str = "eevdf", as_json: bool = False) -> bool:
    """Run the demonstration, print the report, and return whether it succeeded."""
    console = output.console(stderr=as_json, force_terminal=None)  # the view paints on it
    shown = demonstrate(seconds, policy, console)
    if as_json:
        output.print_json(shown.as_dict())
    else:
        print_report(shown, console)
    return shown.went_well


def demonstrate(seconds: float, policy: str, console: Console) -> Demonstrated:
    """Run it with the live view on a temporary store."""
    with tempfile.TemporaryDirectory(prefix="rota-demo-") as folder:
        path = str(Path(folder) / "rota.db")
        with Rota(path, policy=policy) as rota:
            _create_agents(rota, seconds)
            supervisor = rota.supervisor(SLOTS, worker_id="worker-a", claim_timeout_s=20.0, drain_s=1.0)
            script = _Script(rota, seconds)
            with (
                _warnings_hidden(),
                _running(supervisor),
                _second_worker(path, policy, script.claim_timeout_s) as worker,
                LiveView(rota.api, supervisor, console=console, store=path, state=FleetState()),
            ):
                script.play(worker)
            return script.result(policy)


# --- projects and agents ----------------------------------------------------------------------------------


def _create_agents(rota: Rota, seconds: float) -> None:
    """Create projects and agents, with budgets and a named limit that are large enough not to block."""
    budget = {"tokens": 100_000 + round(TOKENS_PER_S_MAX * seconds)}
    for project_id, weight in PROJECTS.items():
        rota.project(project_id, weight=weight, budget=budget)
    rota.api.contexts.create(bound_to="name", bound_id=LIMIT, budget=12 * TOKENS_PER_S_MAX, period_s=10.0)
    for project_id, names in THINKERS.items():
        for name in names:
            _agent(rota, project_id, name, _thinking(draws_on=(LIMIT,)))
    _agent(rota, "review", SPENDER, _thinking(limits=Limits(tokens=SPENDER_TOKENS_MAX)))
    patience = RestartPolicy(backoff=Backoff(base_s=0.2, factor=1.5, cap_s=1.0), quarantine_after=3)
    _agent(rota, "upkeep", STUMBLER, _settings("command", "stumbler.py", restart=patience, max_attempts=3))


def _thinking(**more: Any) -> AgentSettings:
    backoff = RestartPolicy(backoff=Backoff(base_s=0.1, factor=1.0, cap_s=0.1), quarantine_after=0)
    return _settings("ndjson", "thinker.py", expected={"tokens": STEPS * TOKENS_PER_STEP}, restart=backoff, **more)


def _settings(runner: str, program: str, **more: Any) -> AgentSettings:
    return AgentSettings(runner=runner, argv=(sys.executable, "-I", str(_AGENTS / program)), stop_grace_s=1.0, **more)


def _agent(rota: Rota, project_id: str, name: str, settings: AgentSettings) -> None:
    rota.api.agents.create(
        name, settings.runner, project_id=project_id, metadata={SETTINGS_KEY: msgspec.to_builtins(settings)}
    )


# --- workers -----------------------------------------------------------------------------------


@contextmanager
def _warnings_hidden() -> Iterator[None]:
    """Hide warnings: the failures are intended, and the view shows them."""
    log = logging.getLogger("rota.fleet")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


@contextmanager
def _running(supervisor: Supervisor) -> Iterator[None]:
    """Run the supervisor on a thread; stop its runs on exit."""
    thread = threading.Thread(target=supervisor.run, name="rota-demo")
    thread.start()
    try:
        yield
    finally:
        supervisor.kill()
        thread.join()


@contextmanager
def _second_worker(path: str, policy: str, claim_timeout_s: float) -> Iterator[subprocess.Popen[bytes]]:
    """Start the second worker process; kill it on exit."""
    argv = [sys.executable, "-m", "rota.cli.demo_worker", path, policy, str(WORKER_SLOTS), str(claim_timeout_s)]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as worker:  # noqa: S603  # our own program
        try:
            yield worker
        finally:
            worker.kill()


# --- the script --------------------------------------------------------------------------------


class _Script:
    """Enqueues entries and causes the failures."""

    def __init__(self, rota: Rota, seconds: float) -> None:
        self.claim_timeout_s = min(5.0, max(1.0, seconds / 10))
        self._rota = rota
        self._api = rota.api
        self._seconds = seconds
        self._agents = {agent.name: agent for agent in self._api.agents.list(limit=100)[0]}
        self._enqueued = dict.fromkeys(PROJECTS, 0)
        self._begun_at = self._api.clock.monotonic()
        self._bell = threading.Condition()
        self._spender: int | None = None
        self._stumbler: int | None = None
        self._orphans: list[int] | None = None  # entries the killed worker held
        self._shares: FleetReport | None = None

    @property
    def _elapsed_s(self) -> float:
        return self._api.clock.monotonic() - self._begun_at

    def play(self, worker: subprocess.Popen[bytes]) -> None:
        """Run from the first entry to the last."""
        while self._elapsed_s < self._seconds + PATIENCE_S and not (self._all_happened and self._is_over):
            self._fill_backlog()
            self._pause()
            self._cause_failures(worker)
        self._shares = self._report()
        while self._elapsed_s < self._seconds + 2 * PATIENCE_S and self._is_anything_left():
            self._pause()

    @property
    def _is_over(self) -> bool:
        return self._elapsed_s >= self._seconds

    @property
    def _all_happened(self) -> bool:
        return self._stumbler is not None

    def _pause(self) -> None:
        with self._bell:
            self._api.clock.wait(self._bell, PERIOD_S)

    def _fill_backlog(self) -> None:
        """Keep entries of every project queued, so that all projects compete all the time."""
        for project_id, names in THINKERS.items():
            _, waiting = self._api.queue.list(state="queued", project_id=project_id, limit=1)
            agents = [self._agents[name] for name in names]
            specs = []
            for _ in range(BACKLOG - waiting):
                self._enqueued[project_id] += 1
                specs.append(_work(agents[self._enqueued[project_id] % len(agents)], self._enqueued[project_id]))
            if specs:
                self._api.queue.enqueue_many(specs)

    def _cause_failures(self, worker: subprocess.Popen[bytes]) -> None:
        if self._spender is None and self._elapsed_s >= self._seconds / 10:
            spender = self._agents[SPENDER]
            self._spender = self._api.queue.enqueue(_work(spender, 1, steps=40, priority=5))
        if self._orphans is None and self._elapsed_s >= self._seconds / 3 and self._holds_saved_run():
            worker.kill()
            worker.wait()
            self._orphans = [entry.sched_id for entry in self._held()]
        if self._orphans is not None and self._stumbler is None:
            stumbler = self._agents[STUMBLER]
            self._stumbler = self._api.queue.enqueue(spec_for(stumbler, settings_of(stumbler), {}, priority=5))

    def _held(self) -> list[ReadyEntry]:
        """Return the entries that the second worker holds."""
        running, _ = self._api.queue.list(state="dispatched", limit=SLOTS + WORKER_SLOTS)
        return [entry for entry in running if entry.worker_id == WORKER_ID]

    def _holds_saved_run(self) -> bool:
        """Whether it holds a run with a checkpoint, so that the retry can be seen to resume there."""
        return any(isinstance(entry.result, dict) and 0 < entry.result["next"] < STEPS for entry in self._held())

    def _is_anything_left(self) -> bool:
        counts = self._api.queue.counts()
        return any(state.partition(":")[0] in ("queued", "dispatched") for state in counts)

    # --- the result ---------------------------------------------------------------------------

    def _report(self) -> FleetReport:
        """Fold the whole journal and compare it with the tables."""
        state = FleetState()
        counts: dict[str, int] = {}
        while state.through_id < self._api.journal.cursor():  # until nothing was written in between
            counts = self._api.queue.counts()
            while events := self._api.journal.tail(state.through_id, 10_000):
                for event in events:
                    state.fold(event)
        return state.report(counts, among=PROJECTS)

    def result(self, policy: str) -> Demonstrated:
        """Return the outcome, once nothing runs any more."""
        report = self._report()
        return Demonstrated(
            policy=policy,
            seconds=self._elapsed_s,
            shares=self._shares or report,
            report=report,
            incidents=Incidents(
                orphans=[self._api.queue.get(sched_id) for sched_id in self._orphans or []],
                spender=None if self._spender is None else self._api.queue.get(self._spender),
                stumbler=None if self._stumbler is None else self._api.queue.get(self._stumbler),
                stumbler_paused_by=self._api.agents.get(self._agents[STUMBLER].pid).paused_by,
            ),
        )


def _work(agent: Agent, number: int, *, steps: int = STEPS, priority: int = 0) -> Any:
    """An entry that thinks for a few steps. Every second one writes checkpoints."""
    payload = {"steps": steps, "step_s": 0.2, "tokens": TOKENS_PER_STEP, "keeps": number % 2 == 0}
    return spec_for(agent, settings_of(agent), payload, priority=priority)

"""S5: provider limits.

Five agents in two projects share 60 requests and 100,000 tokens per minute, and ask for them inside their runs. In no
window of a minute more than the limit is used, the shares of the projects follow their weights, nobody waits for ever,
and a run that waits is shown as waiting on the limit. Once in this process with a manual clock, once with programs that
are runs of a fleet at a daemon.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from rota.clock import SystemClock
from rota.errors import AskExceedsLimit, SchedInvalidPayload
from rota.fleet.agent_settings import settings_of, spec_for
from rota.fleet.config.apply import apply_fleet
from rota.fleet.config.loader import load_fleet
from rota.model.events import Event, LimitAcquired, LimitAwaited, LimitSettled
from rota.model.reasons import CapReached, WaitsOnLimit
from rota.rpc.client.connect import connect
from rota.service.explanation import explain
from rota.store.statements import limit_asks
from tests.stories.processes import daemon_of, run_rota
from tests.supervisor.world import World

REQUESTS, TOKENS, MINUTE_S = 60, 100_000, 60.0
STEPS = 100  # seconds after the first minute
PATIENCE_S = 60.0


def check_windows(used: list[tuple[float, int, int]], requests: int, tokens: int, period_s: float) -> None:
    """In no window of a period more than the limit: when, how many requests, how many tokens."""
    for start, _, _ in used:
        inside = [each for each in used if start <= each[0] < start + period_s]
        assert sum(count for _, count, _ in inside) <= requests
        assert sum(amount for _, _, amount in inside) <= tokens


def usage(events: Iterable[Event]) -> list[tuple[float, int, int]]:
    """What was used: what was acquired, without what was returned when it was settled."""
    open_asks: dict[int, list[Event]] = {}
    used: list[tuple[float, int, int]] = []
    for event in events:
        if event.kind == LimitAcquired.kind:
            open_asks.setdefault(event.payload["sched_id"], []).append(event)
        elif event.kind == LimitSettled.kind and event.payload.get("by", "run") == "run":
            acquired = open_asks[event.payload["sched_id"]].pop(0)
            amounts = event.payload["used"]
            used.append((acquired.ts, amounts.get("requests", 0), amounts.get("tokens", 0)))
    for left in open_asks.values():
        used += [(each.ts, each.payload["amounts"].get("requests", 0), 0) for each in left]
    return sorted(used)


class Office(World):
    """Five agents that ask without end, in two projects."""

    def __init__(self) -> None:
        super().__init__()
        self.rota.limit("openai", requests_per_minute=REQUESTS, tokens_per_minute=TOKENS)
        self.rota.project("lab", weight=3)
        self.rota.project("press", weight=1)
        self.got: list[str] = []  # the project of each answer
        self.answered = REQUESTS
        for at in range(5):
            self._add(f"agent{at}", "lab" if at < 2 else "press", 900 + 100 * at)

    def _add(self, name: str, project: str, tokens: int) -> None:
        @self.rota.agent(name, project=project)
        def ask(ctx: Any) -> None:
            while not ctx.should_stop:
                with ctx.acquire("openai", tokens=tokens, requests=1) as acquired:
                    self.got.append(project)
                    acquired.settle(tokens=tokens - 100)

        ask.enqueue()

    def waiting(self) -> list[int]:
        """The entries whose runs wait for the limit."""
        rows = self.rota.kernel.store.read(lambda tx: tx.run(limit_asks.WAITING, ("openai", None, 100)))
        return [row[6] for row in rows]

    def await_truth(self, holds: Callable[[], bool]) -> None:
        """Wait, without moving the clock."""
        give_up_at = SystemClock.monotonic() + PATIENCE_S
        while not holds():
            assert SystemClock.monotonic() < give_up_at, (len(self.got), self.waiting())
            self._moved.wait(0.002)

    def await_answer(self) -> None:
        """Wait until all runs wait, and one was answered or the limit has nothing."""
        before = self.answered
        self.await_truth(lambda: len(self.waiting()) == 5 and (len(self.got) > before or not self._has_requests()))
        self.answered = len(self.got)

    def _has_requests(self) -> bool:
        return self.rota.limit("openai").remaining()["requests"] > 0

    def events(self) -> list[Event]:
        found: list[Event] = []
        kinds = (LimitAcquired.kind, LimitSettled.kind, LimitAwaited.kind)
        while page := self.rota.api.journal.tail(found[-1].event_id if found else 0, kinds=kinds):
            found += page
        return found


def test_five_agents_share_a_provider_s_limit_by_weight() -> None:
    office = Office()
    running = office.run_in_background(slots=5)
    try:
        office.await_truth(lambda: len(office.got) == REQUESTS and len(office.waiting()) == 5)
        _check_that_waiting_is_shown(office)
        office.clock.advance(MINUTE_S)
        for _ in range(STEPS):  # a limit that was short gives out what it has evenly: one request a second
            office.await_answer()
            office.clock.advance(1.0)
        check_windows(usage(office.events()), REQUESTS, TOKENS, MINUTE_S)
        paced = office.got[REQUESTS:]
        assert len(paced) >= 0.9 * STEPS
        assert 0.7 <= paced.count("lab") / len(paced) <= 0.8
    finally:
        office.rota.stop()
        for sched_id in office.waiting():
            office.rota.job(sched_id).cancel(by="anna")
        for _ in range(2_000):  # a stop request ends the wait
            if not running.is_alive():
                break
            office.clock.advance(0.2)
            running.join(0.01)
    assert not running.is_alive()
    assert office.waiting() == []
    office.close()


def _check_that_waiting_is_shown(office: Office) -> None:
    sched_id = office.waiting()[0]
    found = explain(office.rota.api, sched_id)  # type: ignore[arg-type]  # it is in this process
    (waits,) = [reason for reason in found.blocking if isinstance(reason, WaitsOnLimit)]
    assert (waits.name, waits.asked["requests"]) == ("openai", 1)
    assert "waits for" in found.estimate.basis


def test_a_limit_is_declared_once_however_often_the_program_starts() -> None:
    world = World()
    for _ in range(3):
        world.rota.limit("openai", requests_per_minute=60, tokens_per_minute=100_000)
    cursor = world.rota.api.journal.cursor()
    limit = world.rota.limit("openai", requests_per_minute=60)
    assert world.rota.api.journal.cursor() == cursor
    assert limit.remaining() == {"requests": 60, "tokens": 100_000}
    world.rota.limit("openai", requests_per_minute=30)
    assert limit.remaining()["requests"] == 30
    assert limit.pause("30s") == world.clock.now() + 30
    world.close()


def test_a_run_hears_what_is_wrong_with_its_ask_and_a_wait_can_end() -> None:
    world = World()
    world.rota.limit("openai", requests_per_minute=2)
    said: list[Any] = []

    @world.rota.agent
    def ask(ctx: Any) -> None:
        for amounts in ({"requests": 3}, {"requests": 2}, {"requests": 1}):
            try:
                said.append(ctx.acquire("openai", wait_s=0.0, **amounts).amounts)
            except (AskExceedsLimit, TimeoutError) as problem:
                said.append(type(problem).__name__)

    ask.enqueue()
    world.rota.run(until_idle=True)
    assert said == ["AskExceedsLimit", {"requests": 2}, "WaitTimeout"]
    world.close()


def test_at_most_so_many_runs_of_a_concurrency_key_live_at_a_time() -> None:
    world = World()
    together = threading.Barrier(3)  # two of one repository and one of another
    live: list[tuple[str, ...]] = []

    @world.rota.agent(concurrency_key="repo:{repo}", concurrency_limit=2)
    def build(repo: str) -> None:
        together.wait(PATIENCE_S)
        live.append((repo,))

    for repo in ("a", "a", "a", "a", "b", "b"):
        build.enqueue(repo=repo)
    assert world.rota.run(slots=3, until_idle=True).runs == len(live) == 6
    with pytest.raises(SchedInvalidPayload, match="the payload has no 'repo'"):
        build.enqueue(branch="main")
    world.close()


def test_why_names_the_concurrency_key() -> None:
    world = World()

    @world.rota.agent(concurrency_key="repo:{repo}", concurrency_limit=2)
    def build(repo: str) -> str:
        return repo

    jobs = [build.enqueue(repo=repo) for repo in ("a", "a", "a", "a", "b")]
    claimed = world.rota.kernel.queue.claim(worker_id="w", max_n=10)
    assert [entry.payload["repo"] for entry in claimed] == ["a", "a", "b"]
    (reason,) = explain(world.rota.api, jobs[2].sched_id).blocking  # type: ignore[arg-type]  # in this process
    assert isinstance(reason, CapReached)
    assert reason.sentence() == "key repo:a runs 2 of at most 2"
    world.close()


# --- programs at a daemon ------------------------------------------------------------------------

PROGRAM = """
import sys
from rota.agent import connect

with connect() as run:
    for _ in range(int(run.payload["asks"])):
        with run.acquire("api", tokens=10, requests=1) as acquired:
            acquired.settle(tokens=6)
"""
SHELL = """
set -e
key=$("$0" -m rota acquire api tokens=10 requests=1)
"$0" -m rota settle "$key" tokens=6
"""
FLEET = """
name = "story"
store = "{address}"
slots = 4
logs_max = 0
[limits.api]
requests = {{budget = 8, period_s = 1}}
tokens = {{budget = 400, period_s = 1}}
[agents.program]
ndjson = ["{python}", "program.py"]
payload = {{asks = 6}}
[agents.shell]
command = ["/bin/sh", "-c", '''{shell}''', "{python}"]
env = {{ROTA_STORE = "{address}"}}
pass_env = ["PATH", "PYTHONPATH", "HOME", "XDG_RUNTIME_DIR"]
"""


def test_programs_and_shells_ask_at_a_daemon(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with daemon_of(tmp_path / "rota.db") as daemon:
        address = daemon.addresses[0]
        fleet = FLEET.format(address=address, python=sys.executable, shell=SHELL)
        path = tmp_path / "fleet.toml"
        path.write_text(fleet)
        with connect(address) as api:
            apply_fleet(api, load_fleet(path))
            for name, count in (("program", 3), ("shell", 2)):
                (agent,) = api.agents.find(name)
                api.queue.enqueue_many([spec_for(agent, settings_of(agent), {})] * count)
        run_rota("run", "fleet.toml", "--until-idle", "--plain", cwd=tmp_path)
        with connect(address) as api:
            kinds = (LimitAcquired.kind, LimitSettled.kind)
            events = api.journal.tail(0, 1_000, kinds=kinds)
    used = usage(events)
    assert (len(used), sum(tokens for _, _, tokens in used)) == (20, 120)
    check_windows(used, 8, 400, 1.0)

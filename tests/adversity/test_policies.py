"""A policy that misbehaves costs order and nothing else, whatever it does.

The cases are in misbehaving_policies.py. On a thread of the process that claims, most of them are contained; in a
process of its own, all of them. Contained means: the claim returns entries, strict order fills it in the same pass, the
journal says once and in short why, and every entry is handed out exactly once.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota import store
from rota.clock import ManualClock, SystemClock
from rota.errors import PolicyDiffers, PolicyInvalid, RotaError
from rota.kernel import Completion, Kernel, ScheduleSpec
from rota.model.events import EntriesClaimed, PolicyFellBack
from rota.model.snapshot import Candidate, Snapshot
from rota.policy import registry
from rota.policy.contract import Policy, PolicyIsolation
from rota.service import policy_guard, policy_process
from rota.service.dispatcher import Dispatcher
from rota.service.explanation import explain
from rota.service.policy_process import isolate
from rota.tick import AgentDescriptor, ProcessTable, SchedulerConfig, TickScheduler
from tests.adversity import misbehaving_policies as misbehaving
from tests.adversity.conftest import Rounds
from tests.adversity.misbehaving_policies import CASES, MAKERS_THAT_FAIL, NEEDS_PROCESS, policy_of, register
from tests.daemon.harness import Served
from tests.graph.test_lane_queue import Lane

ON_A_THREAD = sorted(set(CASES) - NEEDS_PROCESS)
ENTRIES = 6
DETAIL_MAX = 500
PATIENCE_S = 60.0
IN_GATE = 3  # cases, of those that a thread contains, that each round runs in processes, too


@pytest.fixture(autouse=True)
def _nothing_hangs_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Only a policy that never answers is late: `impatient` has those wait less."""
    monkeypatch.setattr(policy_guard, "POLICY_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(policy_process, "ANSWER_TIMEOUT_S", PATIENCE_S)
    misbehaving.let_go.clear()
    yield
    misbehaving.let_go.set()


@contextlib.contextmanager
def impatient(failure: str | None) -> Iterator[None]:
    """Give up early on a policy that is expected to stall; any other has the time that a slow machine needs."""
    with pytest.MonkeyPatch.context() as patch:
        if failure == "stalled":
            patch.setattr(policy_guard, "POLICY_TIMEOUT_S", 0.2)
            patch.setattr(policy_process, "ANSWER_TIMEOUT_S", 0.5)
        yield


class World:
    """Agents with an entry each, of priorities 0 to 5, and a dispatcher."""

    def __init__(self, policy: Policy | str, isolation: PolicyIsolation = "thread") -> None:
        self.kernel = Kernel(store.open(":memory:", clock=ManualClock(1_000.0)))
        self.api = Dispatcher(self.kernel, policy, policy_isolation=isolation)
        self.ids = [
            self.kernel.queue.enqueue(ScheduleSpec(self.kernel.agents.create(f"a{priority}"), priority))
            for priority in range(ENTRIES)
        ]

    def check(self, failure: str | None) -> None:
        """Hand out everything: by strict order if the policy fails, by the policy if it does not."""
        order = [5, 4, 3, 2, 1, 0] if failure else [0, 1, 2, 3, 4, 5]
        explained = explain(self.api, self.ids[order[0]])
        assert (explained.ordering, explained.position) == ((), 1)
        first = self.api.claim("w", 2)
        rest = self.api.turn([], "w", 3) if failure else self.api.turn([], "w", 3, wait_s=PATIENCE_S)
        last = self.api.complete_and_claim([Completion(first[0].sched_id, token=first[0].token)], "w", 5)
        claimed = [entry.priority for entry in (*first, *rest.entries, *last.entries)]
        assert claimed == order
        assert len(last.answers) == 1
        assert self.api.claim("w", 5) == []
        found = self.fallbacks()
        assert [event["failure"] for event in found] == ([failure] if failure else [])
        assert all(event["detail"].isprintable() and len(event["detail"]) <= DETAIL_MAX for event in found)
        claims = self.kernel.journal.tail(kinds=(EntriesClaimed.kind,), limit=100)
        reasons = [reason for event in claims for reason in event.payload.get("because", ())]
        assert len(reasons) == (0 if failure else ENTRIES)
        assert all(reason.isprintable() and len(reason) <= DETAIL_MAX for reason in reasons)

    def fallbacks(self) -> list[dict[str, Any]]:
        return [event.payload for event in self.kernel.journal.tail(kinds=(PolicyFellBack.kind,), limit=1_000)]


# --- claims --------------------------------------------------------------------------------------


def test_there_are_as_many_cases_as_were_found() -> None:
    assert len(CASES) + len(MAKERS_THAT_FAIL) >= 55


@pytest.mark.parametrize("name", ON_A_THREAD)
def test_a_thread_contains_it(name: str) -> None:
    world = World(policy_of(name))
    try:
        with impatient(CASES[name].failure):
            world.check(CASES[name].failure)
    finally:
        misbehaving.let_go.set()
        world.api.close()


def _check_process(name: str) -> None:
    world = World(policy_of(name), "process")
    try:
        with impatient(CASES[name].failure):
            world.check(CASES[name].failure)
    finally:
        world.api.close()


@pytest.mark.parametrize("name", sorted(NEEDS_PROCESS))
def test_a_process_contains_what_a_thread_cannot(name: str) -> None:
    _check_process(name)


def test_a_process_contains_the_others_too(rounds: Rounds) -> None:
    for seed in rounds(1):
        for name in random.Random(seed).sample(ON_A_THREAD, IN_GATE):
            _check_process(name)


# --- what a policy says about itself -------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "x" * 1_000},
        {"name": "\x1b[2J"},
        {"name": 3},
        {"sentence": None},
        {"rank": "strict"},
        {"bound": "never"},
        {"incremental": 3},
        {"window": "all"},
        {"window": ["owner"]},
        {"accounts": "owner"},
        {"accounts": ("owner", [])},
        {"holds_back": "no"},
    ],
)
def test_a_wrong_attribute_is_refused_when_the_policy_is_made(wrong: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"name": "mine", "rank": misbehaving.well, "sentence": "Mine."}
    with pytest.raises(PolicyInvalid):
        Policy(**(fields | wrong))


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("name", MAKERS_THAT_FAIL)
@pytest.mark.usefixtures("registered")
def test_a_policy_that_cannot_be_made_is_refused_in_one_sentence(name: str, isolation: PolicyIsolation) -> None:
    if isolation == "process" and name not in MAKERS_THAT_FAIL[:2]:
        return  # the process makes it by the same code
    with pytest.raises(RotaError) as refused:
        World(name, isolation)
    assert len(refused.value.message) <= DETAIL_MAX
    assert refused.value.message.isprintable()
    assert registry.make("strict").name == "strict"


@pytest.mark.usefixtures("registered")
def test_a_policy_that_is_never_made_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MAKE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(misbehaving.makers, "sleeps", lambda **_: misbehaving.hang())
    for _ in range(2):
        with pytest.raises(PolicyInvalid, match="was not made within"):
            registry.make("sleeps")
        monkeypatch.setattr(registry, "MAKE_TIMEOUT_S", 60.0)  # the second time it does not wait


def test_a_policy_without_an_importable_function_cannot_be_isolated() -> None:
    with pytest.raises(PolicyInvalid, match="another process"):
        isolate(Policy(name="mine", rank=lambda _: (), sentence="Local."))


def test_a_policy_that_declares_it_may_pick_nothing() -> None:
    holding = Policy(name="mine", rank=lambda _: (), sentence="Holds back.", holds_back=True)
    world = World(holding)
    assert (world.api.claim("w", 2), world.fallbacks()) == ([], [])
    world.api.close()


# --- a process is replaced -----------------------------------------------------------------------


def test_a_process_is_started_again_after_a_pause_that_grows() -> None:
    world = World(policy_of("ends_the_process"), "process")
    clock = world.kernel.clock
    assert isinstance(clock, ManualClock)
    for failures, pause_s in enumerate((1.0, 2.0, 4.0), start=1):
        assert len(world.api.claim("w", 1)) == 1
        clock.advance(pause_s - 0.1)
        assert len(world.api.claim("w", 1)) == 1
        assert len(world.fallbacks()) == failures  # it rests: neither asked nor recorded again
        clock.advance(0.2)
    assert "exit code 3" in world.fallbacks()[0]["detail"]
    world.api.close()


def test_writers_do_not_wait_for_a_policy_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the policy is asked, the same thread could write: here it is asked to write in between."""
    world = World(policy_of("leaves_threads_behind"), "process")
    process = world.api.policy.rank
    assert isinstance(process, policy_process.PolicyProcess)
    asked, ask = [], process.ask

    def ask_and_write(snapshot: Snapshot) -> Any:
        taken = world.kernel.queue.claim(worker_id="other", max_n=1)  # a whole transaction, meanwhile
        asked.append([entry.priority for entry in taken])
        return ask(snapshot)

    monkeypatch.setattr(process, "ask", ask_and_write)
    assert [entry.priority for entry in world.api.claim("w", 6)] == [0, 1, 2, 3, 4]  # 5 has gone meanwhile
    assert asked == [[5]]
    world.api.close()


def test_blocked_picks_hide_no_other_entry() -> None:
    """The process picks an entry whose agent is at its cap: the next question leaves it out."""
    world = World(policy_of("leaves_threads_behind"), "process")
    world.kernel.agents.update(world.kernel.queue.get(world.ids[0]).pid, max_concurrent=1)
    again = ScheduleSpec(world.kernel.queue.get(world.ids[0]).pid, -1)
    world.kernel.queue.enqueue_many([again, again])
    assert [entry.priority for entry in world.api.claim("w", 1)] == [-1]
    assert [entry.priority for entry in world.api.claim("w", 2)] == [1, 2]
    assert world.fallbacks() == []
    world.api.close()


# --- the tick world ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in ON_A_THREAD if CASES[name].failure in ("raised", "nonsense")])
def test_the_tick_world_contains_it(name: str) -> None:
    if name == "interrupts":
        return  # there the policy runs on the caller's thread, and an interrupt is the user's
    table = ProcessTable()
    for priority in (1, 5, 3):
        table.set_ready(table.spawn_agent(AgentDescriptor(priority=priority)))
    scheduler = TickScheduler(table, SchedulerConfig(policy_of(name), max_per_tick=2))
    assert scheduler.build_schedule(1) == [2, 3]
    assert scheduler.metrics.policy_failures == 1
    assert len(str(scheduler.policy_failure)) <= DETAIL_MAX


class LyingOrder:
    """An incremental order that picks what it was told to pick."""

    def __init__(self, picked: Any) -> None:
        self.picked = picked

    def set_account(self, *_: Any) -> None:
        pass

    add = remove = charge = set_account

    def pick(self) -> Any:
        if isinstance(self.picked, BaseException):
            raise self.picked
        return self.picked


LIES: dict[str, Any] = {
    "nothing": None,
    "something odd": misbehaving._Unprintable(),
    "a stranger": Candidate(99, 99),
    "the same again": Candidate(1, 1),
    "an odd id": Candidate([1], 1),  # type: ignore[arg-type]
    "an exit": SystemExit(3),
}


def lying(name: str) -> Policy:
    rank: Any = misbehaving.well
    return Policy(name="mine", rank=rank, sentence="Lies.", incremental=lambda: LyingOrder(LIES[name]))


@pytest.mark.parametrize("name", LIES)
def test_the_tick_world_and_a_lane_contain_an_order_that_lies(name: str) -> None:
    table = ProcessTable()
    for priority in (1, 5, 3):
        table.set_ready(table.spawn_agent(AgentDescriptor(priority=priority)))
    scheduler = TickScheduler(table, SchedulerConfig(lying(name), max_per_tick=2))
    assert scheduler.build_schedule(1) == [2, 3]
    assert scheduler.metrics.policy_failures == 1
    _check_lane(lying(name))


def _check_lane(policy: Policy) -> None:
    lane = Lane(policy)
    for component in ("low*", "high*", "normal*"):
        lane.add(component)
    assert sorted(lane.drain()) == ["high*", "low*", "normal*"]
    assert [event.kind for event in lane.reports.health_events] == ["policy_failed"]
    assert len(lane.reports.health_events[0].message) <= DETAIL_MAX


@pytest.mark.parametrize("name", [name for name in ON_A_THREAD if CASES[name].failure in ("raised", "nonsense")])
def test_a_lane_contains_it(name: str) -> None:
    if name not in ("interrupts", "picks_too_many"):  # see above; and a lane has one slot, which it does not exceed
        _check_lane(policy_of(name))


def test_a_policy_in_a_process_orders_the_tick_world_and_a_lane() -> None:
    policy = isolate(policy_of("leaves_threads_behind"))
    assert isinstance(policy.rank, policy_process.PolicyProcess)
    table = ProcessTable()
    for priority in (1, 5, 3):
        table.set_ready(table.spawn_agent(AgentDescriptor(priority=priority)))
    assert TickScheduler(table, SchedulerConfig(policy, max_per_tick=2)).build_schedule(1) == [1, 3]
    lane = Lane(policy)
    for component in ("low*", "high*", "normal*"):
        lane.add(component)
    assert lane.drain() == ["low*", "normal*", "high*"]
    policy.rank.close()


# --- a daemon and a fleet ------------------------------------------------------------------------


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The cases, registered by another package."""
    folder = tmp_path / "site"
    folder.mkdir()
    register(folder)
    monkeypatch.syspath_prepend(str(folder))
    registry._factories.cache_clear()
    yield folder
    registry._factories.cache_clear()


@pytest.mark.parametrize(
    ("name", "isolation"),
    [
        ("raises_an_error_without_text", "thread"),
        ("raises_a_huge_message", "thread"),
        ("picks_a_list", "thread"),
        ("gives_escape_codes_as_a_reason", "thread"),
        ("changes_everything_by_force", "process"),
        ("holds_the_interpreter_lock", "process"),
        ("ends_the_process", "process"),
    ],
)
@pytest.mark.usefixtures("registered")
def test_a_daemon_contains_it(name: str, isolation: PolicyIsolation, tmp_path: Path) -> None:
    failure = CASES[name].failure
    served = Served(str(tmp_path / "rota.db"), policy=name, policy_isolation=isolation, http=False)
    try:
        with impatient(failure), served.client() as client:
            specs = [ScheduleSpec(client.agents.create(f"a{priority}"), priority) for priority in range(4)]
            ids = client.queue.enqueue_many(specs)
            first = client.claim("w", 1)
            if failure is None:
                assert client.explain(ids[1]).ordering == ()
            else:
                assert "has failed" in client.explain(ids[0], max_n=4).policy_source
            ended = [Completion(first[0].sched_id, token=first[0].token)]
            rest = client.complete_and_claim(ended, "w", 2).entries + client.claim("w", 5, wait_s=10)
            claimed = [entry.priority for entry in (*first, *rest)]
            assert claimed == ([3, 2, 1, 0] if failure else [0, 1, 2, 3])
            assert client.claim("w", 5) == []
            with pytest.raises(PolicyDiffers, match=name):
                client.claim("w", 1, policy="strict")
            with pytest.raises(RotaError):
                client.claim("w", 1, policy="not_made")
    finally:
        served.stop()


@pytest.mark.parametrize(
    ("name", "isolation"), [("raises_an_error_without_text", "thread"), ("takes_all_memory", "process")]
)
def test_a_fleet_contains_it(name: str, isolation: PolicyIsolation, registered: Path, tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(
        f'policy = {{ name = "{name}", isolation = "{isolation}" }}\nslots = 2\n'
        '[agents.a]\ncommand = ["true"]\ntriggers = [{ on = "start" }]\n'
        '[agents.b]\ncommand = ["true"]\ntriggers = [{ on = "start" }]\n'
    )
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(registered), str(root)])}
    command = [sys.executable, "-m", "rota", "run", str(file), "--until-idle"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    kernel = Kernel(store.open(str(tmp_path / "rota.db"), clock=SystemClock()))
    assert kernel.queue.counts() == {"completed": 2}
    fell_back = kernel.journal.tail(kinds=(PolicyFellBack.kind,))
    assert [event.payload["failure"] for event in fell_back] == [CASES[name].failure]
    kernel.store.close()

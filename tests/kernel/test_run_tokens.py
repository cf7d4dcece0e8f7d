"""The access token of a run is made from its claim: valid while that lives, and stored nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from rota import store
from rota.clock import ManualClock
from rota.errors import SchedUnknownId, StaleClaim
from rota.kernel import Kernel, ScheduleSpec
from rota.kernel.run_tokens import LiveClaim
from rota.model.work import ReadyEntry

START = 1_700_000_000.0
TIMEOUT_S = 60.0


class World:
    """A kernel with one claimed entry."""

    def __init__(self, path: str = ":memory:") -> None:
        self.clock = ManualClock(START)
        self.kernel = Kernel(store.open(path, clock=self.clock))
        self.kernel.projects.create("red")
        self.pid = self.kernel.agents.create("agent", "command", project_id="red")
        self.kernel.queue.enqueue(ScheduleSpec(self.pid))
        (self.run,) = self.kernel.queue.claim(worker_id="worker", claim_timeout_s=TIMEOUT_S)

    def token_of(self, run: ReadyEntry) -> str:
        assert run.token is not None
        return self.kernel.supervision.access_token(run.sched_id, run.token)

    def live(self, token: str) -> LiveClaim | None:
        """The live claim that a token stands for."""
        tokens = self.kernel.supervision.run_tokens
        named = tokens.read(token)
        return None if named is None else tokens.live_claim(*named)


@pytest.fixture
def world() -> World:
    return World()


def test_a_token_names_its_claim_and_cannot_be_changed(world: World) -> None:
    token, run = world.token_of(world.run), world.run
    assert run.token is not None
    assert world.live(token) == LiveClaim(run.sched_id, world.pid, "red", run.token, START + TIMEOUT_S)
    assert world.token_of(world.run) == token
    head, _, mac = token.rpartition("_")
    changed = (
        f"{head}_{mac[::-1]}",
        f"{head}_{mac[:-1]}",
        token.upper(),
        f"{token}\n",
        f" {token}",
        token.replace("-1-", "-2-"),
        token.replace("-1-", "-01-"),
        token.replace("-1-", "-\u0661-"),
        "",
    )
    assert [world.live(text) for text in changed] == [None] * len(changed)


def test_only_a_live_claim_has_a_token(world: World) -> None:
    assert world.run.token is not None
    with pytest.raises(StaleClaim):
        world.kernel.supervision.access_token(world.run.sched_id, world.run.token + 1)
    with pytest.raises(SchedUnknownId):
        world.kernel.supervision.access_token(99, world.run.token)
    token = world.token_of(world.run)
    world.kernel.queue.complete(world.run.sched_id, "completed", token=world.run.token)
    assert world.live(token) is None
    with pytest.raises(StaleClaim):
        world.token_of(world.run)


def test_the_next_claim_of_an_entry_has_another_token(world: World) -> None:
    assert world.run.token is not None
    token = world.token_of(world.run)
    world.kernel.queue.put_back(world.run.sched_id, token=world.run.token)
    (again,) = world.kernel.queue.claim(worker_id="worker")
    assert world.live(token) is None
    assert world.live(world.token_of(again)) is not None


def test_a_token_expires_with_its_claim_and_is_extended_with_it(world: World) -> None:
    token = world.token_of(world.run)
    world.clock.advance(TIMEOUT_S - 1)
    assert world.live(token) is not None
    assert world.run.token is not None
    world.kernel.queue.heartbeat(world.run.sched_id, world.run.token)
    world.clock.advance(TIMEOUT_S - 1)
    assert world.live(token) is not None
    world.clock.advance(1)
    assert world.live(token) is None, "at the moment of its expiry, before it is taken back"
    assert world.kernel.queue.get(world.run.sched_id).state == "dispatched"


@pytest.mark.parametrize("by_s", [3_600.0, -3_600.0])
def test_a_jump_of_the_wall_clock_neither_ends_nor_extends_a_token(world: World, by_s: float) -> None:
    token = world.token_of(world.run)
    world.clock.jump(by_s)
    assert world.live(token) is not None
    world.kernel.queue.upkeep()
    world.clock.advance(TIMEOUT_S - 1)
    assert world.live(token) is not None
    world.clock.advance(1.1)
    assert world.live(token) is None


def test_two_processes_of_a_store_make_the_same_tokens_and_two_stores_do_not(tmp_path: Path) -> None:
    first, other = World(str(tmp_path / "a.db")), World(str(tmp_path / "b.db"))
    second = Kernel(store.open(str(tmp_path / "a.db"), clock=first.clock))
    assert first.run.token is not None
    token = second.supervision.access_token(first.run.sched_id, first.run.token)
    assert first.token_of(first.run) == token
    assert other.token_of(other.run) != token
    assert other.live(token) is None
    for kernel in (first.kernel, other.kernel, second):
        kernel.store.close()


def test_a_token_changes_neither_a_row_nor_the_journal(world: World) -> None:
    before, events = world.kernel.queue.get(world.run.sched_id), world.kernel.journal.tail()
    world.token_of(world.run)
    assert world.kernel.queue.get(world.run.sched_id) == before
    assert world.kernel.journal.tail() == events
    assert world.kernel.check() == []

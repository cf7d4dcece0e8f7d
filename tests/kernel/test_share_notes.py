"""Ended runs are noted, and added to the share windows of their projects later: every reader sees the same shares."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota import store
from rota.clock import ManualClock
from rota.kernel.copying import copy_store
from rota.kernel.project_shares import ProjectShares
from rota.kernel.usage_windows import BUCKETS, NOTED_TURNS_MAX, ShareNotes
from rota.model.snapshot import Key
from rota.service.dispatcher import Dispatcher
from rota.store import Statement, Store
from rota.store.statements.budgets import SHARES
from tests.kernel.test_budgets import spend
from tests.kernel.world import START, World

WINDOW_S = float(BUCKETS)  # buckets of one second


def shares(opened: Store) -> dict[Key, tuple[int, int]]:
    """What a policy sees of each project that has used anything: usage and ended runs."""
    rows = opened.read(lambda tx: tx.run(SHARES, (None,)))
    return {row[0]: (row[3], row[6]) for row in rows if row[3] or row[6]}


def notes(world: World) -> int:
    ((count,),) = world.rows("SELECT count(*) FROM share_notes")
    return int(count)


def counted(world: World) -> dict[str, tuple[int, int]]:
    """What is in the windows themselves."""
    rows = world.rows("SELECT owner, used, ended FROM usage_windows WHERE dim = 'share'")
    return {owner: (used, ended) for owner, used, ended in rows}


@pytest.fixture
def lab(world: World) -> int:
    world.projects.create("lab")
    return world.agent(project_id="lab")


def test_shares_are_up_to_date_whether_runs_are_noted_or_counted(world: World, lab: int) -> None:
    for turn in range(1, 2 * NOTED_TURNS_MAX + 10):
        world.clock.advance(0.5)
        spend(world, lab, 10)
        assert shares(world.store) == {"lab": (10 * turn, turn)}
        assert notes(world) < NOTED_TURNS_MAX
    assert notes(world)
    world.queue.upkeep()
    assert notes(world) == 0
    assert counted(world) == shares(world.store) == {"lab": (10 * turn, turn)}


def test_processes_that_end_after_one_run_leave_no_notes(world: World, lab: int) -> None:
    spend(world, lab, 1)
    spend(world, lab, 2)
    assert notes(world) == 1
    for _ in range(3):
        world.kernel.env.cache.share_notes = ShareNotes()  # that of a new process
        spend(world, lab, 4)
        assert notes(world) == 0
    assert counted(world) == {"lab": (15, 5)}


def test_a_process_that_ranks_projects_notes_nothing(world: World, lab: int) -> None:
    spend(world, lab, 1)
    spend(world, lab, 2)
    assert notes(world) == 1
    world.put(lab)
    (run,) = Dispatcher(world.kernel, "fair_share").claim("w", 1)
    assert notes(world) == 0
    world.queue.complete(run.sched_id, "completed")
    spend(world, lab, 4)
    assert notes(world) == 0
    assert counted(world) == {"lab": (8, 4)}


@pytest.mark.parametrize("policy", ["fair_share", "strict"])
def test_a_turn_that_is_rolled_back_counts_nothing(world: World, lab: int, policy: str) -> None:
    spend(world, lab, 5)
    spend(world, lab, 6)

    def counts_and_fails(tx: store.Transaction) -> None:
        world.kernel.env.cache.count_shares(tx, world.now, ranks=policy == "fair_share")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        world.store.write(counts_and_fails)
    assert notes(world) == 1
    spend(world, lab, 7)
    assert shares(world.store) == {"lab": (18, 3)}
    world.queue.upkeep()
    assert counted(world) == {"lab": (18, 3)}


def test_what_is_noted_leaves_its_window_when_it_would_have_left(world: World, lab: int) -> None:
    world.ledger.set_share_window(WINDOW_S)
    spend(world, lab, 1)
    world.clock.advance(10)
    spend(world, lab, 2)  # noted
    assert notes(world) == 1
    world.clock.advance(WINDOW_S - 10 + 2)
    world.queue.upkeep()
    assert shares(world.store) == {"lab": (2, 1)}
    world.clock.advance(10)
    world.queue.upkeep()
    assert shares(world.store) == {}


def test_notes_that_are_older_than_the_window_count_nowhere(world: World, lab: int) -> None:
    world.ledger.set_share_window(WINDOW_S)
    spend(world, lab, 1)
    spend(world, lab, 2)
    world.clock.advance(WINDOW_S + 2)
    world.queue.upkeep()
    assert (shares(world.store), notes(world)) == ({}, 0)


def test_another_length_of_the_window_applies_to_what_is_noted(world: World, lab: int) -> None:
    spend(world, lab, 1)
    world.clock.advance(7_200)
    spend(world, lab, 2)
    world.ledger.set_share_window(3_600.0)
    assert (shares(world.store), notes(world)) == ({"lab": (2, 1)}, 0)


def test_sharing_by_something_else_begins_at_zero_also_for_what_is_noted(world: World, lab: int) -> None:
    spend(world, lab, 1)
    spend(world, lab, 2)
    world.kernel.policies.set(None, "cost", by="ann", replace=True)
    assert shares(world.store) == {"lab": (0, 2)}


@pytest.mark.parametrize("by_s", [-500.0, 500.0])
def test_a_clock_that_jumps_takes_what_is_noted_with_it(world: World, lab: int, by_s: float) -> None:
    world.ledger.set_share_window(WINDOW_S)
    spend(world, lab, 1)
    spend(world, lab, 2)
    world.clock.jump(by_s)
    world.queue.upkeep()
    assert shares(world.store) == {"lab": (3, 2)}
    world.clock.advance(WINDOW_S + 2)
    world.queue.upkeep()
    assert shares(world.store) == {}


def test_a_copy_of_a_store_has_what_is_noted(world: World, lab: int) -> None:
    spend(world, lab, 1)
    spend(world, lab, 2)
    with contextlib.closing(store.open(":memory:")) as target:
        assert copy_store(world.store, target).rows["share_notes"] == 1
        assert shares(target) == {"lab": (3, 2)}


DAMAGED = ("", "{", "7", "null", "[1]", '{"lab": 7}', '{"lab": "much"}', '{"lab": {}}', '{"lab": ["much", null]}')


def damage_notes(world: World, text: str) -> None:
    damage = Statement("test", "Made for a test.", f"UPDATE share_notes SET runs = '{text}'")
    world.store.write(lambda tx: tx.run(damage))


@pytest.mark.parametrize("text", DAMAGED)
@pytest.mark.parametrize("policy", ["fair_share", "wfq", "eevdf"])
def test_a_damaged_note_stops_no_claim_that_ranks_projects(world: World, lab: int, policy: str, text: str) -> None:
    dispatcher = Dispatcher(world.kernel, policy)
    world.put(lab)
    assert len(dispatcher.claim("w", 1)) == 1
    world.kernel.env.cache.share_notes, ranks = ShareNotes(), world.kernel.env.cache.share_notes
    spend(world, lab, 1)
    spend(world, lab, 2)  # noted, by a process that does not rank
    world.kernel.env.cache.share_notes = ranks
    assert notes(world) == 1
    damage_notes(world, text)
    world.put(lab)
    world.kernel.env.cache.invalidate()  # another process has written: everything is read again
    assert len(dispatcher.claim("w", 1)) == 1
    failures = world.rows("SELECT payload FROM agent_events WHERE kind = 'kernel.policy.fell_back'")
    assert failures == []
    assert shares(world.store) == {"lab": (1, 1)}


@pytest.mark.parametrize("text", [*DAMAGED, '{"lab": [1]}'])
def test_a_damaged_note_stops_no_run_from_ending(world: World, lab: int, text: str) -> None:
    spend(world, lab, 1)
    spend(world, lab, 2)
    damage_notes(world, text)
    world.kernel.env.cache.share_notes = ShareNotes()  # that of a new process, whose first turn counts what is noted
    spend(world, lab, 4)
    assert (counted(world), notes(world)) == ({"lab": (5, 2)}, 0)


def test_a_run_of_a_project_that_has_no_window_counts_nowhere(world: World, lab: int) -> None:
    spend(world, lab, 1)
    spend(world, lab, 2)
    removal = Statement("test", "Made for a test.", "DELETE FROM usage_windows WHERE dim = 'share'")
    world.store.write(lambda tx: tx.run(removal))
    assert shares(world.store) == {}
    world.queue.upkeep()
    assert (shares(world.store), notes(world)) == ({}, 0)


class _Pair:
    """Two stores with the same story: one notes, the other adds every run at once."""

    def __init__(self) -> None:
        self.worlds = World(clock=ManualClock(START)), World(clock=ManualClock(START))
        for world in self.worlds:
            world.ledger.set_share_window(WINDOW_S)
            for name in ("a", "b"):
                world.projects.create(name)
                world.agent(project_id=name)
        at_once = self.worlds[1]
        at_once.store.write(lambda tx: ProjectShares().sync(tx, at_once.kernel.env.cache, at_once.now))

    def do(self, step: tuple[str, int]) -> None:
        what, number = step
        for world in self.worlds:
            if what == "spend":
                spend(world, 1 + number % 2, number)
            elif what == "wait":
                world.clock.advance(number / 3)
            elif what == "resize":
                world.ledger.set_share_window(WINDOW_S * (1 + number % 3))
            else:
                world.queue.upkeep()


@given(
    st.lists(
        st.tuples(st.sampled_from(["spend", "spend", "spend", "wait", "upkeep", "resize"]), st.integers(1, 300)),
        max_size=40,
    )
)
def test_after_any_story_the_windows_are_as_if_every_run_had_been_added_at_once(steps: list[tuple[str, int]]) -> None:
    pair = _Pair()
    for step in steps:
        pair.do(step)
    pair.do(("upkeep", 0))
    noted, at_once = pair.worlds
    assert shares(noted.store) == shares(at_once.store)
    assert counted(noted) == counted(at_once)
    buckets = "SELECT owner, window_s, leaves_at, amount, ended FROM usage_buckets ORDER BY owner, window_s, leaves_at"
    assert noted.rows(buckets) == at_once.rows(buckets)
    edges = "SELECT owner, edge_at FROM usage_windows WHERE dim = 'share' ORDER BY owner"
    assert noted.rows(edges) == at_once.rows(edges)
    for world in pair.worlds:
        world.close()

"""The ledger: grants that are totals, charges that are always recorded, and the marks they cross."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.errors import (
    LedgerExists,
    LedgerInvalidAmount,
    LedgerInvalidRefund,
    LedgerInvalidWarnAt,
    LedgerUnknownDim,
    RotaError,
    StaleClaim,
    UnknownPid,
)
from rota.kernel.ledger import ChargeResult
from rota.model.checks import INTEGER_MAX
from rota.model.events import LedgerBreached, LedgerCharged, LedgerGranted, LedgerRefunded, LedgerWarned
from tests.kernel.world import World


@pytest.fixture
def pid(world: World) -> int:
    """An agent with 100 tokens, and a warning at 80."""
    pid = world.agent()
    world.ledger.create(pid, {"tokens": 100})
    return pid


# --- grants --------------------------------------------------------------------------------------


def test_a_line_starts_unused_with_its_grant_as_its_limit_and_a_warning_at_four_fifths(world: World) -> None:
    pid = world.agent()
    lines = world.ledger.create(pid, {"tokens": 100, "cost_micro": 7, "my own": 1})
    assert lines == world.ledger.get(pid)
    assert [(line.dim, line.used, line.granted, line.hard_limit, line.warn_at) for line in lines] == [
        ("cost_micro", 0, 7, 7, 0.8),
        ("my own", 0, 1, 1, 0.8),
        ("tokens", 0, 100, 100, 0.8),
    ]


def test_an_agent_without_a_ledger_has_no_lines(world: World) -> None:
    assert world.ledger.get(world.agent()) == []
    assert world.ledger.get(99) == []


def test_a_later_create_adds_dimensions_and_one_that_overlaps_adds_none(world: World, pid: int) -> None:
    world.ledger.create(pid, {"cpu_s": 5}, warn_at=0.5)
    before = world.everything()
    with pytest.raises(LedgerExists) as caught:
        world.ledger.create(pid, {"wall_s": 5, "tokens": 1})
    assert (caught.value.code, caught.value.data["dim"]) == (-32122, "tokens")
    assert world.everything() == before
    assert [line.dim for line in world.ledger.get(pid)] == ["cpu_s", "tokens"]


@pytest.mark.parametrize(
    ("grants", "warn_at", "error"),
    [
        ({"tokens": 0}, 0.8, LedgerInvalidAmount),
        ({"tokens": -1}, 0.8, LedgerInvalidAmount),
        ({"tokens": True}, 0.8, LedgerInvalidAmount),
        ({"tokens": 1.0}, 0.8, LedgerInvalidAmount),
        ({"tokens": "1"}, 0.8, LedgerInvalidAmount),
        ({"good": 1, "tokens": 2**63}, 0.8, LedgerInvalidAmount),
        ({"": 1}, 0.8, LedgerInvalidAmount),
        ({7: 1}, 0.8, LedgerInvalidAmount),
        ([("tokens", 1)], 0.8, LedgerInvalidAmount),
        ({"tokens": 1}, -0.01, LedgerInvalidWarnAt),
        ({"tokens": 1}, 1.01, LedgerInvalidWarnAt),
        ({"tokens": 1}, float("nan"), LedgerInvalidWarnAt),
        ({"tokens": 1}, True, LedgerInvalidWarnAt),
    ],
)
def test_a_grant_is_a_whole_number_from_one_on_and_a_warning_lies_from_zero_to_one(
    world: World, grants: dict[str, int], warn_at: float, error: type[RotaError]
) -> None:
    pid = world.agent()
    before = world.everything()
    with pytest.raises(error) as caught:
        world.ledger.create(pid, grants, warn_at)
    assert caught.value.code == error.code
    assert world.everything() == before


def test_the_edges_of_grant_and_warning_are_taken(world: World) -> None:
    pid = world.agent()
    world.ledger.create(pid, {"least": 1, "most": INTEGER_MAX}, warn_at=0)
    world.ledger.create(pid, {"all": 1}, warn_at=1)
    assert len(world.ledger.get(pid)) == 3


def test_an_unknown_agent_gets_no_ledger(world: World) -> None:
    before = world.everything()
    with pytest.raises(UnknownPid):
        world.ledger.create(99, {"tokens": 1})
    assert world.everything() == before


# --- charges -------------------------------------------------------------------------------------


def test_a_charge_is_recorded_over_the_limit_too_and_says_what_it_crossed(world: World, pid: int) -> None:
    steps = [  # amount, used after, over, first breach, warned
        (0, 0, False, False, False),
        (79, 79, False, False, False),
        (1, 80, False, False, True),
        (20, 100, False, False, False),  # exactly at the limit is fine
        (1, 101, True, True, False),
        (50, 151, True, False, False),
    ]
    for amount, used, over, first, warned in steps:
        charged = world.ledger.charge(pid, "tokens", amount)
        assert charged == (used, 100, 100, over, first, warned)
    assert [fact for fact in world.facts() if isinstance(fact, (LedgerWarned, LedgerBreached))] == [
        LedgerWarned(dim="tokens", used=80, granted=100),
        LedgerBreached(level="agent", owner=str(pid), dim="tokens", used=101, limit=100),
    ]


def test_one_charge_may_cross_both_marks(world: World, pid: int) -> None:
    charged = world.ledger.charge(pid, "tokens", 500)
    assert (charged.over_limit, charged.first_breach, charged.warned) == (True, True, True)


def test_a_mark_crossed_again_after_a_refund_is_recorded_again(world: World, pid: int) -> None:
    world.ledger.charge(pid, "tokens", 101)
    world.ledger.refund(pid, "tokens", 101)
    charged = world.ledger.charge(pid, "tokens", 101)
    assert (charged.first_breach, charged.warned) == (True, True)


@given(st.lists(st.integers(0, 60), max_size=12), st.floats(0, 1))
def test_each_mark_is_recorded_exactly_once_on_the_way_up(amounts: list[int], warn_at: float) -> None:
    world = World()
    pid = world.agent()
    world.ledger.create(pid, {"tokens": 100}, warn_at)
    charges = [world.ledger.charge(pid, "tokens", amount) for amount in amounts]
    total = sum(amounts)
    assert world.ledger.get(pid)[0].used == total
    assert [charge.over_limit for charge in charges] == [charge.used > 100 for charge in charges]
    assert sum(charge.first_breach for charge in charges) == (total > 100)
    assert sum(charge.warned for charge in charges) == (0 < warn_at * 100 <= total)
    assert sum(fact.amounts["tokens"] for fact in world.facts() if isinstance(fact, LedgerCharged)) == total
    world.close()


def test_a_dimension_without_a_line_is_unknown(world: World, pid: int) -> None:
    calls: list[Callable[[], object]] = [
        lambda: world.ledger.charge(pid, "cpu_s", 1),
        lambda: world.ledger.check(pid, "cpu_s", 1),
        lambda: world.ledger.refund(pid, "cpu_s", 1),
        lambda: world.ledger.update_grant(pid, "cpu_s", 1),
    ]
    before = world.everything()
    for call in calls:
        with pytest.raises(LedgerUnknownDim) as caught:
            call()
        assert caught.value.code == -32121
    assert world.everything() == before


def test_an_unknown_agent_is_not_charged(world: World) -> None:
    before = world.everything()
    for call in (world.ledger.charge, world.ledger.refund):
        with pytest.raises(UnknownPid):
            call(99, "tokens", 1)
    assert world.everything() == before


@pytest.mark.parametrize("amount", [-1, True, 1.0, "1", None, 2**63, float("nan")])
def test_an_amount_is_a_whole_number_from_zero_on(world: World, pid: int, amount: int) -> None:
    before = world.everything()
    for call in (world.ledger.charge, world.ledger.check):
        with pytest.raises(LedgerInvalidAmount) as caught:
            call(pid, "tokens", amount)
        assert (caught.value.code, caught.value.field) == (-32123, "amount")
    assert world.everything() == before


def test_what_a_row_cannot_hold_is_refused_and_what_it_holds_is_right(world: World, pid: int) -> None:
    used = refused = 0
    for amount in [10**9, 10**12, 10**15, 10**18, INTEGER_MAX] * 2:
        before = world.everything()
        try:
            used = world.ledger.charge(pid, "tokens", amount).used
        except LedgerInvalidAmount:
            refused += 1
            assert world.everything() == before
        assert world.ledger.get(pid)[0].used == used
    assert used >= 2 * 10**9
    assert refused >= 1  # twice the largest number there is cannot be held


def test_a_dead_agent_can_still_be_charged_for_what_it_used(world: World, pid: int) -> None:
    world.kernel.terminate(pid, "failed")
    assert world.ledger.charge(pid, "tokens", 5).used == 5


def test_a_check_says_what_a_charge_would_do_and_does_nothing(world: World, pid: int) -> None:
    world.ledger.charge(pid, "tokens", 60)
    before = world.everything()
    assert world.ledger.check(pid, "tokens", 40) == (60, 100, 100, False)
    assert world.ledger.check(pid, "tokens", 41) == (60, 101, 100, True)
    assert world.everything() == before


# --- refunds and new grants ----------------------------------------------------------------------


def test_a_refund_gives_back_at_most_what_was_used(world: World, pid: int) -> None:
    world.ledger.charge(pid, "tokens", 30)
    before = world.everything()
    wrong: list[Any] = [31, -1, True, 1.5]
    for amount in wrong:
        with pytest.raises(LedgerInvalidRefund) as caught:
            world.ledger.refund(pid, "tokens", amount)
        assert caught.value.code == -32124
    assert world.everything() == before
    assert world.ledger.refund(pid, "tokens", 0).used == 30
    assert world.ledger.refund(pid, "tokens", 30).used == 0
    fact = world.facts()[-1]
    assert isinstance(fact, LedgerRefunded)
    assert fact.amounts == {"tokens": 30}


def test_a_new_grant_moves_both_limits_and_keeps_what_was_used(world: World, pid: int) -> None:
    world.ledger.charge(pid, "tokens", 150)
    line = world.ledger.update_grant(pid, "tokens", 150)
    assert (line.used, line.granted, line.hard_limit, line.over_limit) == (150, 150, 150, False)
    assert world.facts()[-1] == LedgerGranted(dim="tokens", granted=150, previous=100)
    assert world.ledger.update_grant(pid, "tokens", 1).over_limit is True


@pytest.mark.parametrize("granted", [0, -1, True, 1.0, None, 2**63])
def test_a_new_grant_is_a_whole_number_from_one_on(world: World, pid: int, granted: int) -> None:
    before = world.everything()
    with pytest.raises(LedgerInvalidAmount):
        world.ledger.update_grant(pid, "tokens", granted)
    assert world.everything() == before


def test_breached_lines_are_listed_by_agent_and_dimension(world: World) -> None:
    pids = [world.agent() for _ in range(3)]
    for pid in pids:
        world.ledger.create(pid, {"tokens": 10, "cpu_s": 10})
    world.ledger.charge(pids[2], "tokens", 11)
    world.ledger.charge(pids[0], "tokens", 12)
    world.ledger.charge(pids[0], "cpu_s", 13)
    world.ledger.charge(pids[1], "tokens", 10)
    breached = [(line.pid, line.dim, line.used) for line in world.ledger.list_breached()]
    assert breached == [(pids[0], "cpu_s", 13), (pids[0], "tokens", 12), (pids[2], "tokens", 11)]


# --- what a run is charged -----------------------------------------------------------------------


def test_a_run_is_charged_at_every_level_in_one_go(world: World) -> None:
    world.projects.create("lab")
    pid = world.agent(project_id="lab")
    world.ledger.create(pid, {"tokens": 100})
    world.ledger.set_budget("project", "lab", "tokens", 1_000)
    world.ledger.set_budget("global", "*", "tokens", 5_000)
    context = world.contexts.create(bound_to="name", bound_id="api", budget=500, period_s=60)
    sched_id = world.put(pid, draws_on=("api",))
    token = world.take_one().token
    cursor = world.journal.cursor()
    lines = world.queue.charge(sched_id, {"tokens": 40, "tool_calls": 3}, token=token)
    assert {dim: line.used for dim, line in lines.items()} == {"tokens": 40}  # it has no line for tool calls
    assert {budget.owner: budget.used for budget in world.ledger.budgets()} == {"lab": 40, "*": 40}
    assert world.contexts.get(context.context_id).remaining == 460
    (fact,) = world.facts(cursor)
    assert isinstance(fact, LedgerCharged)
    assert (fact.sched_id, fact.project_id, fact.amounts) == (sched_id, "lab", {"tokens": 40, "tool_calls": 3})
    assert fact.contexts == {str(context.context_id): 40}


def test_a_charge_of_a_run_that_is_repeated_with_its_key_counts_once(world: World) -> None:
    pid = world.agent()
    world.ledger.create(pid, {"tokens": 100, "cpu_s": 9})
    first, second = world.put(pid), world.put(pid)
    tokens = {entry.sched_id: entry.token for entry in world.take(2)}
    charge = world.queue.charge
    charged = charge(first, {"tokens": 100, "other": 1}, token=tokens[first], key="1")
    assert charged["tokens"].first_breach is False
    cursor = world.journal.cursor()
    for token in (tokens[first], None):
        assert charge(first, {"tokens": 100, "other": 1}, token=token, key="1") == {
            "tokens": ChargeResult(100, 100, 100, over_limit=False, first_breach=False, warned=False)
        }
    assert world.journal.cursor() == cursor
    assert charge(first, {"tokens": 1}, token=tokens[first], key="2")["tokens"].first_breach
    assert charge(second, {"tokens": 1}, token=tokens[second], key="1")["tokens"].used == 102
    with pytest.raises(LedgerInvalidAmount, match="key"):
        charge(first, {"tokens": 1}, key="")
    for key in "13":
        with pytest.raises(StaleClaim):
            charge(first, {"tokens": 1}, token=1_000_000, key=key)


@pytest.mark.parametrize("end", ["complete", "fail", "yield", "cancel", "expire"])
def test_the_keys_of_charges_are_forgotten_when_the_run_ends(world: World, end: str) -> None:
    pid = world.agent()
    sched_id = world.put(pid, max_attempts=2)
    token = world.take_one().token
    assert token is not None
    for key in "ab":
        world.queue.charge(sched_id, {"tokens": 1}, token=token, key=key)
    assert len(world.rows("SELECT * FROM charge_keys")) == 2
    if end == "yield":
        world.queue.put_back(sched_id, token=token)
    elif end == "expire":
        world.clock.advance(3_600)
        world.queue.upkeep()
    else:
        kinds = {"complete": "completed", "fail": "crashed", "cancel": "cancelled"}
        world.queue.complete(sched_id, kinds[end], token=token)
    assert world.rows("SELECT * FROM charge_keys") == []


def test_an_agents_charge_counts_for_its_project_and_all_projects(world: World) -> None:
    world.projects.create("lab")
    inside, outside = world.agent(project_id="lab"), world.agent()
    for pid in (inside, outside):
        world.ledger.create(pid, {"tokens": 100})
    world.ledger.set_budget("project", "lab", "tokens", 1_000)
    world.ledger.set_budget("global", "*", "tokens", 1_000)
    world.ledger.charge(inside, "tokens", 30)
    world.ledger.charge(outside, "tokens", 5)
    assert {budget.owner: budget.used for budget in world.ledger.budgets()} == {"lab": 30, "*": 35}
    world.ledger.refund(inside, "tokens", 10)
    assert {budget.owner: budget.used for budget in world.ledger.budgets()} == {"lab": 20, "*": 25}


def test_a_claim_writes_nothing_in_the_ledger(world: World, pid: int) -> None:
    world.put(pid, ceiling={"tokens": 60})
    before = world.rows("SELECT * FROM agent_ledgers")
    world.take_one()
    assert world.rows("SELECT * FROM agent_ledgers") == before

"""An event when usage reaches a share of a budget: once per crossing and window, in the transaction of the charge."""

from __future__ import annotations

import pytest

from rota.errors import LedgerInvalidAmount
from rota.kernel import ledger
from rota.model.events import BudgetAlert
from tests.kernel.world import World

HOUR_S = 3_600.0


def alerts(world: World) -> list[tuple[str, str, float, int]]:
    """The alerts so far: level, owner, share, used."""
    found = [event.payload for event in world.journal.tail(0, 10_000, kinds=(BudgetAlert.kind,))]
    return [(each["level"], each["owner"], each["share"], each["used"]) for each in found]


def spend(world: World, pid: int, tokens: int) -> None:
    """Charge a run of its own."""
    world.put(pid)
    entry = world.take_one(admission_check=False)
    world.queue.charge(entry.sched_id, {"tokens": tokens}, token=entry.token)
    world.queue.complete(entry.sched_id, "completed", token=entry.token)


def test_an_agent_crosses_each_share_once(world: World, pid: int) -> None:
    world.ledger.create(pid, {"tokens": 10}, alerts=(1.0, 0.5, 0.8))
    for tokens in (4, 1, 2, 1, 5, 1):
        world.ledger.charge(pid, "tokens", tokens)
    owner = str(pid)
    assert alerts(world) == [("agent", owner, 0.5, 5), ("agent", owner, 0.8, 8), ("agent", owner, 1.0, 13)]


def test_a_higher_grant_arms_the_alerts_of_an_agent_again(world: World, pid: int) -> None:
    world.ledger.create(pid, {"tokens": 10})
    world.ledger.charge(pid, "tokens", 10)
    world.ledger.update_grant(pid, "tokens", 20, alerts=(0.8,))
    world.ledger.charge(pid, "tokens", 5)
    world.ledger.charge(pid, "tokens", 5)
    assert [each[2:] for each in alerts(world)] == [(0.8, 10), (1.0, 10), (0.8, 20)]


def test_a_project_is_told_once_per_window(world: World, lab: int) -> None:
    world.ledger.set_budget("project", "lab", "tokens", 100, window_s=HOUR_S, alerts=(0.5, 0.8))
    world.ledger.set_budget("global", "*", "tokens", 1_000, window_s=HOUR_S, alerts=(0.1,))
    spend(world, lab, 49)
    assert alerts(world) == []
    spend(world, lab, 1)
    spend(world, lab, 20)
    assert alerts(world) == [("project", "lab", 0.5, 50)]
    world.clock.advance(HOUR_S / 2)
    spend(world, lab, 30)
    assert alerts(world)[1:] == [("global", "*", 0.1, 100), ("project", "lab", 0.8, 100)]
    world.clock.advance(HOUR_S / 2 + 60)  # the first 70 have left
    world.queue.upkeep()
    spend(world, lab, 25)  # crosses one half again, an hour later
    assert alerts(world)[3:] == [("project", "lab", 0.5, 55)]
    spend(world, lab, 30)  # crosses 0.8 again, half an hour after it was told
    assert alerts(world)[4:] == []


def test_a_changed_limit_arms_what_is_not_reached_any_more(world: World, lab: int) -> None:
    world.ledger.set_budget("project", "lab", "tokens", 100)
    spend(world, lab, 85)
    world.ledger.set_budget("project", "lab", "tokens", 1_000)
    spend(world, lab, 715)
    world.ledger.set_budget("project", "lab", "tokens", 900)  # 0.8 stays reached
    spend(world, lab, 100)
    assert [each[2:] for each in alerts(world)] == [(0.8, 85), (0.8, 800), (1.0, 900)]


def test_a_refund_lets_a_share_be_crossed_again_only_in_the_next_window(world: World, lab: int) -> None:
    world.ledger.create(lab, {"tokens": 10_000})
    world.ledger.set_budget("project", "lab", "tokens", 100, window_s=HOUR_S, alerts=(0.5,))
    world.ledger.charge(lab, "tokens", 60)
    world.ledger.refund(lab, "tokens", 60)
    world.ledger.charge(lab, "tokens", 60)
    world.clock.advance(HOUR_S + 60)
    world.queue.upkeep()
    world.ledger.charge(lab, "tokens", 60)
    assert alerts(world) == [("project", "lab", 0.5, 60)] * 2


def test_without_shares_there_are_no_alerts_and_bad_ones_are_refused(world: World, lab: int) -> None:
    world.ledger.set_budget("project", "lab", "tokens", 100, alerts=())
    spend(world, lab, 500)
    assert alerts(world) == []
    assert world.ledger.budgets()[0].alerts == ()
    for bad in ((0.0,), (-1.0,), (11.0,), (True,), ("0.5",), "0.5", (0.5,) * 17):
        with pytest.raises(LedgerInvalidAmount, match="alerts"):
            world.ledger.set_budget("project", "lab", "tokens", 100, alerts=bad)  # type: ignore[arg-type]


def test_a_charge_that_crosses_nothing_looks_up_no_alerts(
    world: World, lab: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.ledger.set_budget("project", "lab", "tokens", 1_000)
    spend(world, lab, 1)  # the first charge finds where the next alert is due
    looked_up: list[str] = []
    monkeypatch.setattr(ledger, "record_window_alerts", lambda *_: looked_up.append("looked up"))
    spend(world, lab, 700)
    assert looked_up == []
    spend(world, lab, 99)
    assert looked_up == ["looked up"]

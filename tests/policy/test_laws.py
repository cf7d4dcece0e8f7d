"""Every registered policy keeps every law."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings

from rota.model.reasons import PickReason
from rota.model.snapshot import Candidate, Slot, Snapshot
from rota.policy import registry
from rota.policy.contract import Bound, Policy, assign_slots
from rota.testing import policy_laws

VARIANTS: list[tuple[str, dict[str, object]]] = [
    *((name, {}) for name in registry.names()),
    ("eevdf", {"priority_first": True}),
    ("wfq", {"priority_first": True}),
    ("weighted_priority", {"growth": "fixed"}),
    ("weighted_priority", {"max_wait": 2.5, "starvation_boost": 0.5}),
    ("intent_weighted", {"growth": "fixed"}),
    ("fair_share", {"min_guarantee": False}),
]


@pytest.mark.parametrize("law", policy_laws.LAWS)
@pytest.mark.parametrize(("name", "params"), VARIANTS)
def test_a_policy_keeps_the_law(name: str, params: dict[str, object], law: str) -> None:
    policy_laws.check(registry.make(name, **params), law)


def test_the_eight_policies_are_registered() -> None:
    assert set(registry.names()) >= {
        "strict",
        "round_robin",
        "weighted_priority",
        "intent_weighted",
        "fair_share",
        "wfq",
        "eevdf",
        "edf",
    }


def test_only_those_that_say_so_may_starve() -> None:
    assert {name for name in registry.names() if registry.make(name).bound is None} == {"strict", "edf"}
    assert registry.make("weighted_priority", growth="fixed").bound is None


# A law that cannot fail is no law: each is broken here on purpose and must notice.


def _broken(**changes: object) -> Policy:
    strict = registry.make("strict")
    return Policy(**{"name": "strict", "rank": strict.rank, "sentence": "broken", **changes})  # type: ignore[arg-type]


def _breakers() -> dict[str, Policy]:
    strict = registry.make("strict")
    flip = iter(range(10**9))
    a_minute = Bound("owner", lambda _snapshot, _key: 1, "at once")
    return {
        "same_input_same_decisions": _broken(rank=lambda s: strict.rank(s) if next(flip) % 2 else ()),
        "input_order_is_irrelevant": _broken(
            rank=lambda s: assign_slots(((c, PickReason("strict", "as listed")) for c in s.candidates), s.slots)
        ),
        "accounts_it_does_not_read_are_irrelevant": _broken(rank=registry.make("round_robin").rank, accounts=()),
        "picks_are_valid_and_unique": _broken(rank=lambda s: strict.rank(s) * 2),
        "no_fitting_slot_stays_free": _broken(rank=lambda s: strict.rank(s)[1:]),
        "ties_end_in_the_lowest_id": _broken(
            rank=lambda s: assign_slots(
                ((c, PickReason("strict", "last first")) for c in sorted(s.candidates, key=lambda c: -c.id)),
                s.slots,
            )
        ),
        "every_pick_has_a_reason": _broken(name="another"),
        "incremental_picks_equal_the_plain_ranking": _broken(incremental=registry.make("edf").incremental),
        "the_bound_on_waiting_holds": _broken(bound=a_minute),
    }


@pytest.mark.parametrize("law", policy_laws.LAWS)
def test_each_law_catches_a_policy_that_breaks_it(law: str) -> None:
    settings.register_profile("first failure will do", settings.get_profile("test"), phases=[Phase.generate])
    profile = settings.get_current_profile_name()
    settings.load_profile("first failure will do")
    try:
        with pytest.raises((AssertionError, ExceptionGroup)):
            policy_laws.check(_breakers()[law], law)
    finally:
        settings.load_profile(profile)


# --- stories -------------------------------------------------------------------------------------


def _one_slot(*candidates: Candidate, now: float = 0) -> Snapshot:
    return Snapshot(now=now, slots=(Slot(0),), candidates=candidates)


def _run(policy: Policy, snapshot: Snapshot, passes: int) -> list[int]:
    worlds = policy_laws.closed_world(policy, snapshot, passes)
    return [decisions[0].candidate_id for _, decisions, _ in worlds]


def test_strict_starves_lower_priorities() -> None:
    world = _one_slot(Candidate(1, owner=1, priority=9), Candidate(2, owner=2, priority=1))
    assert _run(registry.make("strict"), world, 50) == [1] * 50


def test_edf_starves_candidates_without_a_deadline() -> None:
    world = _one_slot(Candidate(1, owner=1, deadline=10), Candidate(2, owner=2))
    assert _run(registry.make("edf"), world, 50) == [1] * 50


def test_a_fixed_boost_cannot_help_priority_1_against_priority_10() -> None:
    world = _one_slot(Candidate(1, owner=1, priority=10), Candidate(2, owner=2, priority=1))
    assert 2 not in _run(registry.make("weighted_priority", growth="fixed"), world, 200)


def test_linear_aging_lets_priority_1_run_after_25_passes() -> None:
    world = _one_slot(Candidate(1, owner=1, priority=10), Candidate(2, owner=2, priority=1))
    assert _run(registry.make("weighted_priority"), world, 26) == [1] * 25 + [2]


def test_round_robin_goes_round() -> None:
    world = _one_slot(*(Candidate(pid, owner=pid) for pid in (3, 1, 2)), now=1)
    assert _run(registry.make("round_robin"), world, 6) == [1, 2, 3, 1, 2, 3]


def test_a_candidate_that_fits_no_slot_is_skipped_and_special_slots_are_used_last() -> None:
    snapshot = Snapshot(
        slots=(Slot(0, ("gpu",)), Slot(1)),
        candidates=(
            Candidate(1, owner=1, priority=9, kind="browser"),
            Candidate(2, owner=2, priority=8),
            Candidate(3, owner=3, priority=7, kind="gpu"),
        ),
    )
    decisions = registry.make("strict").rank(snapshot)
    assert [(decision.candidate_id, decision.slot_id) for decision in decisions] == [(2, 1), (3, 0)]


@pytest.mark.parametrize("name", [name for name in registry.names() if registry.make(name).incremental])
def test_an_incremental_order_accepts_a_removed_candidate_again_and_refuses_a_duplicate(name: str) -> None:
    make_order = registry.make(name).incremental
    assert make_order is not None
    order = make_order()
    for cost in (1, 2, 3):  # the same assign_slots in the order, another candidate
        order.add(Candidate(1, owner=1, cost=cost))
        with pytest.raises(ValueError, match="added already"):
            order.add(Candidate(1, owner=1))
        order.remove(1)
    order.add(Candidate(1, owner=1, cost=4))
    order.add(Candidate(2, owner=2))
    picks = [order.pick(), order.pick(), order.pick()]
    assert [pick and (pick.id, pick.cost) for pick in picks] == [(1, 4), (2, 1), None]

"""The laws that every policy keeps, checked on generated snapshots.

    from rota.testing import policy_laws

    @pytest.mark.parametrize("law", policy_laws.LAWS)
    def test_my_policy_keeps_the_law(law):
        policy_laws.check(my_policy(), law)

Needs hypothesis: `pip install rota[testing]`.

The law on waiting runs a closed world: all candidates of the snapshot stay ready, each pass fills its slots, each pick
is charged its expected cost, and a pass takes one unit of time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rota.model.snapshot import Account, Candidate, Decision, Decisions, Key, Slot, Snapshot
from rota.model.work import WEIGHT_UNIT, Intent
from rota.policy.contract import Bound, Policy, load
from rota.policy.virtual_time import charged

__all__ = ["LAWS", "check", "closed_world", "settle", "snapshots"]

Law: TypeAlias = Callable[[Policy], None]

CANDIDATES_MAX = 12
PASSES_MAX = 300  # of a closed world; a bound beyond it is checked up to here

OWNERS = 5
_GROUPS = ("A", "B", "C")
_KINDS = ("gpu", "browser")
_KIND_SETS = st.sampled_from([(), ("gpu",), ("browser",), ("browser", "gpu")])
_INTENTS = tuple(Intent)
_CODES = st.integers(0, 10**12)


def _quiet() -> settings:
    """The active hypothesis profile without its speed checks: some policies are slow on purpose."""
    return settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


# One draw per field would be a hundred draws per snapshot, and slow. So an account or a candidate is one draw: an
# integer that is read digit by digit, each digit one field. Zero means defaults, so a failure shrinks to simple values.


def _account(code: int, now: int) -> Account:
    """Decode an account from an integer."""
    digit = _Digits(code)
    return Account(
        weight=(digit(5) + 1) * WEIGHT_UNIT // 2,
        virtual_time=digit(20) * 500_000,
        request=digit(5) + 1,
        usage=digit(100),
        reserved=digit(10),
        live=digit(3),
        ended=digit(4),
        last_run_at=digit(now + 1),
    )


def _candidate(code: int, number: int, home: Mapping[int, str], now: int, *, kinds: bool) -> Candidate:
    """Decode a candidate from an integer."""
    digit = _Digits(code)
    owner = digit(len(home)) + 1
    return Candidate(
        id=number,
        owner=owner,
        group=home[owner],
        priority=digit(11),
        ready_at=digit(now + 1),
        deadline=(None, digit(100))[digit(2)],
        intent=_INTENTS[digit(len(_INTENTS))],
        cost=digit(9) + 1,
        kind=(None, *_KINDS)[digit(len(_KINDS) + 1)] if kinds else None,
    )


class _Digits:
    """An integer read digit by digit, each digit in its own base."""

    def __init__(self, code: int) -> None:
        self._left = code

    def __call__(self, base: int) -> int:
        self._left, digit = divmod(self._left, base)
        return digit


@st.composite
def snapshots(draw: st.DrawFn, *, kinds: bool = True, slots_min: int = 0) -> Snapshot:
    """Generate a realistic snapshot: owners with several candidates, groups with several owners."""
    now = draw(st.integers(0, 50))
    home = dict(enumerate(draw(st.tuples(*[st.sampled_from(_GROUPS)] * OWNERS)), start=1))
    codes = draw(st.dictionaries(st.integers(1, 99), _CODES, max_size=CANDIDATES_MAX))
    slots = draw(st.dictionaries(st.integers(0, 20), _KIND_SETS, min_size=slots_min, max_size=6))
    standing = draw(st.tuples(*[_CODES] * (OWNERS + len(_GROUPS))))
    return Snapshot(
        now=now,
        slots=tuple(Slot(number, kinds_of if kinds else ()) for number, kinds_of in slots.items()),
        candidates=tuple(_candidate(code, number, home, now, kinds=kinds) for number, code in codes.items()),
        owners={owner: _account(code, now) for owner, code in zip(home, standing, strict=False)},
        groups={group: _account(code, now) for group, code in zip(_GROUPS, standing[OWNERS:], strict=True)},
    )


# --- the laws ------------------------------------------------------------------------------------


def same_input_same_decisions(policy: Policy) -> None:
    """Two calls with the same snapshot return the same decisions."""

    @_quiet()
    @given(snapshots())
    def holds(snapshot: Snapshot) -> None:
        assert policy.rank(snapshot) == policy.rank(snapshot)

    holds()


def input_order_is_irrelevant(policy: Policy) -> None:
    """The order of a snapshot's items does not affect the decisions."""

    @_quiet()
    @given(snapshots(), st.randoms(use_true_random=False))
    def holds(snapshot: Snapshot, chance: random.Random) -> None:
        assert policy.rank(_shuffled(snapshot, chance)) == policy.rank(snapshot)

    holds()


def _shuffled(snapshot: Snapshot, chance: random.Random) -> Snapshot:
    def mixed(things: Iterable[object]) -> list[object]:
        listed = list(things)
        chance.shuffle(listed)
        return listed

    return Snapshot(
        now=snapshot.now,
        slots=tuple(mixed(snapshot.slots)),  # type: ignore[arg-type]
        candidates=tuple(mixed(snapshot.candidates)),  # type: ignore[arg-type]
        owners=dict(mixed(snapshot.owners.items())),  # type: ignore[arg-type]
        groups=dict(mixed(snapshot.groups.items())),  # type: ignore[arg-type]
    )


def accounts_it_does_not_read_are_irrelevant(policy: Policy) -> None:
    """The accounts that a policy does not name in `accounts` do not affect its decisions."""

    @_quiet()
    @given(snapshots())
    def holds(snapshot: Snapshot) -> None:
        reduced = msgspec.structs.replace(
            snapshot,
            owners=snapshot.owners if "owner" in policy.accounts else {},
            groups=snapshot.groups if "group" in policy.accounts else {},
        )
        assert policy.rank(reduced) == policy.rank(snapshot)

    holds()


def picks_are_valid_and_unique(policy: Policy) -> None:
    """Every pick is a candidate of the snapshot in a free slot that fits it; no candidate or slot is used twice."""

    @_quiet()
    @given(snapshots())
    def holds(snapshot: Snapshot) -> None:
        decisions = policy.rank(snapshot)
        shown = {candidate.id: candidate for candidate in snapshot.candidates}
        free = {slot.id: slot for slot in snapshot.slots}
        assert len({decision.candidate_id for decision in decisions}) == len(decisions)
        assert len({decision.slot_id for decision in decisions}) == len(decisions)
        for decision in decisions:
            assert free[decision.slot_id].fits(shown[decision.candidate_id])

    holds()


def no_fitting_slot_stays_free(policy: Policy) -> None:
    """No slot stays free while a candidate that fits it waits, unless the policy says that it holds back."""
    if policy.holds_back:
        return

    @_quiet()
    @given(snapshots())
    def holds(snapshot: Snapshot) -> None:
        decisions = policy.rank(snapshot)
        picked = {decision.candidate_id for decision in decisions}
        taken = {decision.slot_id for decision in decisions}
        waiting = [candidate for candidate in snapshot.candidates if candidate.id not in picked]
        free = [slot for slot in snapshot.slots if slot.id not in taken]
        assert not any(slot.fits(candidate) for slot in free for candidate in waiting)

    holds()


def ties_end_in_the_lowest_id(policy: Policy) -> None:
    """Of two candidates that differ only in their id, the lower id goes first."""

    @_quiet()
    @given(snapshots(), st.integers(100, 199))
    def holds(snapshot: Snapshot, copy_id: int) -> None:
        if not snapshot.candidates:
            return
        original = snapshot.candidates[0]
        copy = msgspec.structs.replace(original, id=copy_id)
        picked = _picked(policy, msgspec.structs.replace(snapshot, candidates=(*snapshot.candidates, copy)))
        if copy.id in picked:
            assert original.id in picked
            assert picked.index(original.id) < picked.index(copy.id)

    holds()


def _picked(policy: Policy, snapshot: Snapshot) -> list[int]:
    return [decision.candidate_id for decision in policy.rank(snapshot)]


def every_pick_has_a_reason(policy: Policy) -> None:
    """Each decision names the policy and what decided."""

    @_quiet()
    @given(snapshots())
    def holds(snapshot: Snapshot) -> None:
        for decision in policy.rank(snapshot):
            assert decision.reason.policy == policy.name
            assert decision.reason.words

    holds()


def incremental_picks_equal_the_plain_ranking(policy: Policy) -> None:
    """The picks of the incremental order, if there is one, equal those of the plain function."""
    if policy.incremental is None:
        return
    make_order = policy.incremental

    @_quiet()
    @given(snapshots(kinds=False))
    def holds(snapshot: Snapshot) -> None:
        order = load(make_order(), snapshot)
        picks = [order.pick() for _ in snapshot.slots]
        assert [pick.id for pick in picks if pick is not None] == _picked(policy, snapshot)

    holds()


def the_bound_on_waiting_holds(policy: Policy) -> None:
    """In a closed world no subject waits longer than the policy's bound; without a bound it may starve."""
    if policy.bound is None:
        return
    bound = policy.bound

    @_quiet()
    @given(snapshots(kinds=False, slots_min=1))
    def holds(snapshot: Snapshot) -> None:
        _check_waiting(policy, bound, snapshot)

    holds()


LAWS: Mapping[str, Law] = {
    law.__name__: law
    for law in (
        same_input_same_decisions,
        input_order_is_irrelevant,
        accounts_it_does_not_read_are_irrelevant,
        picks_are_valid_and_unique,
        no_fitting_slot_stays_free,
        ties_end_in_the_lowest_id,
        every_pick_has_a_reason,
        incremental_picks_equal_the_plain_ranking,
        the_bound_on_waiting_holds,
    )
}


def check(policy: Policy, law: str) -> None:
    """Check one law, by name."""
    LAWS[law](policy)


# --- the closed world ----------------------------------------------------------------------------


def _check_waiting(policy: Policy, bound: Bound, snapshot: Snapshot) -> None:
    subjects = {_subject(bound, candidate) for candidate in snapshot.candidates}
    bounds = {subject: bound.passes(snapshot, subject) for subject in subjects}
    waited = dict.fromkeys(subjects, 0)
    horizon = min(PASSES_MAX, 2 * max(bounds.values(), default=0) + 1)
    by_id = {candidate.id: candidate for candidate in snapshot.candidates}
    for before, decisions, after in closed_world(policy, snapshot, horizon):
        served = {_subject(bound, by_id[decision.candidate_id]) for decision in decisions}
        for subject in subjects:
            if subject in served:
                waited[subject], bounds[subject] = 0, bound.passes(after, subject)
            else:
                waited[subject] += 1
                assert waited[subject] < bounds[subject], f"{subject} waits longer than the bound at {before.now}"


def _subject(bound: Bound, candidate: Candidate) -> Key:
    return candidate.owner if bound.subject == "owner" else candidate.group


def closed_world(policy: Policy, snapshot: Snapshot, passes: int) -> Iterable[tuple[Snapshot, Decisions, Snapshot]]:
    """Run passes in which all candidates stay ready; yield before, decisions, after."""
    for _ in range(passes):
        decisions = policy.rank(snapshot)
        after = settle(snapshot, decisions)
        yield snapshot, decisions, after
        snapshot = after


def settle(snapshot: Snapshot, decisions: Iterable[Decision]) -> Snapshot:
    """Return the next snapshot: every pick ran, cost what was expected, and is ready again."""
    by_id = {candidate.id: candidate for candidate in snapshot.candidates}
    owners, groups = dict(snapshot.owners), dict(snapshot.groups)
    for decision in decisions:
        candidate = by_id[decision.candidate_id]
        for table, key in ((owners, candidate.owner), (groups, candidate.group)):
            table[key] = _ran(table.get(key, Account()), candidate.cost, snapshot.now)
    return msgspec.structs.replace(snapshot, now=snapshot.now + 1, owners=owners, groups=groups)


def _ran(account: Account, cost: int, now: float) -> Account:
    return msgspec.structs.replace(
        account,
        usage=account.usage + cost,
        virtual_time=charged(account.virtual_time, cost, account.weight),
        ended=account.ended + 1,
        last_run_at=now,
    )

"""A copy of a level decides as the level does, and the two are independent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rota.model.snapshot import Account, Key
from rota.policy.level import Level

KEYS: tuple[Key, ...] = (1, 2, 3, "a", "a" * 40)  # the long one widens the heap entries
moves = st.tuples(
    st.sampled_from(["add", "remove", "charge", "serve", "reweigh"]), st.sampled_from(KEYS), st.integers(1, 9)
)


def do(level: Level, move: tuple[str, Key, int]) -> None:
    """Make one change, if it is possible."""
    verb, key, number = move
    if verb == "add" and key not in level:
        level.add(key, Account(weight=number * 1_000, virtual_time=number))
    elif verb == "remove" and key in level:
        level.remove(key)
    elif verb == "charge" and key in level:
        level.charge(key, number)
    elif verb == "serve" and len(level):
        level.charge(level.pick(), number)
    elif verb == "reweigh" and key in level:
        level.reweigh(key, number * 1_000)


def seen(level: Level) -> tuple[object, ...]:
    """The observable state of a level."""
    return level.pick() if len(level) else None, level.time, dict(level.accounts()), dict(level.debts())


@given(st.booleans(), st.lists(moves, max_size=30), st.lists(moves, max_size=30), st.lists(moves, max_size=30))
def test_a_copy_behaves_the_same_and_is_independent(
    eligibility: bool,
    before: list[tuple[str, Key, int]],
    after: list[tuple[str, Key, int]],
    on_other: list[tuple[str, Key, int]],
) -> None:
    level = Level(eligibility=eligibility)
    for move in before:
        do(level, move)
    copied, other = level.copy(), level.copy()
    assert seen(copied) == seen(level)
    for move in on_other:
        do(other, move)
    for move in after:
        do(level, move)
        do(copied, move)
        assert seen(copied) == seen(level)

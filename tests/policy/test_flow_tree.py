"""The incremental form picks what the plain form picks, on any sequence of calls, and forgets what it may."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.model.snapshot import Account, Candidate, Key, Slot, Snapshot
from rota.policy.flow_tree import FlowTree, eevdf, wfq
from rota.policy.level import Level
from rota.policy.virtual_time import (
    SCALE,
    LevelTime,
    Sibling,
    charged,
    choose,
    is_eligible,
    joined,
    key_order,
    level_time,
    owes,
    rank,
    reweighed,
)

Side = Literal["owner", "group"]

# --- a slow world, built from the plain functions only -----------------------------------------------


@dataclass
class PlainLevel:
    ready: dict[Key, Sibling] = field(default_factory=dict)
    debts: dict[Key, Sibling] = field(default_factory=dict)
    clock: int = 0

    def time(self) -> LevelTime:
        return level_time(self.ready.values()) if self.ready else LevelTime.at(self.clock)

    def own_time(self, key: Key, account: Account) -> int:
        debt = self.debts.pop(key, None)
        if debt is None:
            return account.virtual_time
        return max(account.virtual_time, reweighed(debt.virtual_time, debt.weight, account.weight, self.time()))

    def join(self, key: Key, account: Account, loading: bool) -> None:
        own = self.own_time(key, account)
        start = own if loading else joined(own, self.time())
        self.ready[key] = Sibling(key, account.weight, start, account.request)

    def leave(self, key: Key) -> None:
        gone = self.ready.pop(key)
        if self.ready:
            self.debts[key] = gone
        else:
            self.clock = gone.virtual_time

    def charge(self, key: Key, account: Account, cost: int) -> None:
        if key in self.ready:
            self.ready[key] = self.ready[key].after(cost)
        else:
            start = joined(self.own_time(key, account), self.time())
            self.debts[key] = Sibling(key, account.weight, charged(start, cost, account.weight), account.request)

    def forgive(self) -> None:
        time = self.time()
        self.debts = {key: debt for key, debt in self.debts.items() if owes(debt.virtual_time, time)}


class PlainWorld:
    """The calls of FlowTree in plain form; a pick is `rank` on a snapshot with one slot."""

    def __init__(self, eligibility: bool) -> None:
        self.eligibility = eligibility
        self.root = PlainLevel()
        self.inner: dict[Key, PlainLevel] = {}
        self.candidates: dict[int, Candidate] = {}
        self.known: dict[tuple[Side, Key], Account] = {}
        self.loading = True

    def set_account(self, side: Side, key: Key, account: Account) -> None:
        self.known[side, key] = account
        for level in self._where(side, key):
            level.ready[key] = Sibling(key, account.weight, account.virtual_time, account.request)
        self._forgive()

    def reweigh(self, side: Side, key: Key, weight: int) -> None:
        known = self._account(side, key)
        self.known[side, key] = Account(weight, known.virtual_time, known.request)
        for level in self._where(side, key):
            old = level.ready[key]
            moved = reweighed(old.virtual_time, old.weight, weight, level.time())
            level.ready[key] = Sibling(key, weight, moved, old.request)
        self._forgive()

    def add(self, candidate: Candidate) -> None:
        inner = self.inner.setdefault(candidate.group, PlainLevel())
        if candidate.owner not in inner.ready:
            inner.join(candidate.owner, self._account("owner", candidate.owner), self.loading)
        if candidate.group not in self.root.ready:
            self.root.join(candidate.group, self._account("group", candidate.group), self.loading)
        self.candidates[candidate.id] = candidate
        self._forgive()

    def remove(self, candidate_id: int) -> None:
        self._leave(self.candidates.pop(candidate_id))

    def charge(self, owner: Key, group: Key, cost: int) -> None:
        self.loading = False
        inner = self.inner.setdefault(group, PlainLevel())
        for side, level, key in self._sides(owner, group, inner):
            absent = key not in level.ready
            level.charge(key, self._account(side, key), cost)
            if absent:
                self._forget_time(side, key)
        self._forgive()

    def pick(self) -> Candidate | None:
        if not self.candidates:
            return None
        snapshot = Snapshot(
            slots=(Slot(0),),
            candidates=tuple(self.candidates.values()),
            owners={owner: account for (_, owner), account in self.owners().items()},
            groups=self.groups(),
        )
        (decision,) = rank(snapshot, eligibility=self.eligibility)
        candidate = self.candidates.pop(decision.candidate_id)
        self.charge(candidate.owner, candidate.group, candidate.cost)
        self._leave(candidate)
        return candidate

    def groups(self) -> dict[Key, Account]:
        return self._accounts("group", self.root)

    def owners(self) -> dict[tuple[Key, Key], Account]:
        return {
            (group, key): account
            for group, level in self.inner.items()
            for key, account in self._accounts("owner", level).items()
        }

    def _accounts(self, side: Side, level: PlainLevel) -> dict[Key, Account]:
        owing = {key: one._replace(request=self._account(side, key).request) for key, one in level.debts.items()}
        return {
            key: Account(one.weight, one.virtual_time, one.request) for key, one in {**owing, **level.ready}.items()
        }

    def _leave(self, gone: Candidate) -> None:
        left = self.candidates.values()
        if not any(one.owner == gone.owner for one in left):
            self.inner[gone.group].leave(gone.owner)
            self._forget_time("owner", gone.owner)
        if not any(one.group == gone.group for one in left):
            self.root.leave(gone.group)
            self._forget_time("group", gone.group)
        self._forgive()

    def _forgive(self) -> None:
        for level in (self.root, *self.inner.values()):
            level.forgive()
        self.inner = {group: level for group, level in self.inner.items() if level.ready or level.debts}

    def _where(self, side: Side, key: Key) -> list[PlainLevel]:
        levels = list(self.inner.values()) if side == "owner" else [self.root]
        return [level for level in levels if key in level.ready]

    def _sides(self, owner: Key, group: Key, inner: PlainLevel) -> list[tuple[Side, PlainLevel, Key]]:
        return [("owner", inner, owner), ("group", self.root, group)]

    def _account(self, side: Side, key: Key) -> Account:
        return self.known.get((side, key), Account())

    def _forget_time(self, side: Side, key: Key) -> None:
        known = self._account(side, key)
        self.known[side, key] = Account(weight=known.weight, request=known.request)


# --- the tree equals the plain form -------------------------------------------------------------------

HOMES: dict[Key, Key] = {None: "north", 1: "north", -2: "north", "b": None, "b\0": None, "é": None, 3: 7, 2**40: 7}
owners = st.sampled_from(list(HOMES))
sides = st.one_of(
    st.tuples(st.just("owner"), owners),
    st.tuples(st.just("group"), st.sampled_from(["north", None, 7])),
)
weights = st.one_of(st.integers(1, 10).map(lambda whole: whole * 1000), st.integers(1, 20_000))
times = st.one_of(st.just(0), st.integers(-20, 200).map(lambda usage: usage * 10_000))
accounts = st.builds(Account, weight=weights, virtual_time=times, request=st.integers(0, 9))
calls = st.one_of(
    st.tuples(st.just("add"), owners, st.integers(0, 2), st.integers(0, 9)),
    st.tuples(st.just("add"), owners, st.integers(0, 2), st.integers(0, 9)),
    st.tuples(st.just("pick")),
    st.tuples(st.just("pick")),
    st.tuples(st.just("remove"), st.integers(0, 30)),
    st.tuples(st.just("charge"), owners, st.integers(-9, 9)),
    st.tuples(st.just("reweigh"), sides, weights),
    st.tuples(st.just("set_account"), sides, accounts),
)


def _call(world: Any, call: tuple[Any, ...], number: int) -> Candidate | None:
    match call:
        case "add", owner, priority, cost:
            world.add(Candidate(number, owner, HOMES[owner], priority=priority, ready_at=number % 3, cost=cost))
        case ("pick",):
            picked: Candidate | None = world.pick()
            return picked
        case "remove", candidate_id:
            world.remove(candidate_id)
        case "charge", owner, cost:
            world.charge(owner, HOMES[owner], cost)
        case "reweigh", (side, key), weight:
            world.reweigh(side, key, weight)
        case "set_account", (side, key), account:
            world.set_account(side, key, account)
    return None


@pytest.mark.parametrize("eligibility", [True, False])
def test_the_tree_and_the_plain_world_agree_after_every_call(eligibility: bool) -> None:
    @given(st.lists(calls, min_size=10, max_size=80))
    def holds(sequence: list[tuple[Any, ...]]) -> None:
        tree, plain = FlowTree(eligibility=eligibility), PlainWorld(eligibility)
        for number, call in enumerate(sequence):
            if call[0] == "remove" and call[1] not in plain.candidates:
                continue
            assert _call(tree, call, number) == _call(plain, call, number)
            assert len(tree) == len(plain.candidates)
            assert tree.groups() == plain.groups()
            assert tree.owners() == plain.owners()

    holds()


@pytest.mark.parametrize("eligibility", [True, False])
def test_a_level_agrees_with_the_plain_choice_through_a_long_life(eligibility: bool) -> None:
    """Many plain picks between changes, so that the fast path of charge does most of the work."""
    chance = random.Random(7)
    keys: list[Key] = [None, *range(-3, 30), *(f"agent-{number}" for number in range(20)), "a" * 40]
    level = Level(eligibility=eligibility)
    for _ in range(4_000):
        key, change = chance.choice(keys), chance.random()
        if key not in level:
            start = level.time.whole + chance.randint(-SCALE, SCALE) // 100
            account = Account(chance.randint(1, 9_999), start, chance.randint(0, 9))
            level.add(key, account, keep_credit=change < 0.5)
        elif change < 0.02:
            level.remove(key)
        elif change < 0.04:
            level.reweigh(key, chance.randint(1, 9_999))
        elif change < 0.06:
            level.charge(key, chance.randint(-3, 3))
        siblings = [Sibling(name, one.weight, one.virtual_time, one.request) for name, one in level.accounts()]
        if siblings:
            assert level.pick() == choose(siblings, level_time(siblings), eligibility=eligibility).key
            assert level.time == level_time(siblings)
            level.charge(level.pick(), chance.randint(0, 9))


@given(st.lists(st.one_of(st.none(), st.integers(), st.text(max_size=40)), unique=True, min_size=1))
def test_ties_go_by_key_whatever_the_keys_are(keys: list[Key]) -> None:
    level = Level()
    for key in keys:
        level.add(key, Account())
    order: list[Key] = []
    while level:
        order.append(level.pick())
        level.remove(order[-1])
    assert order == sorted(keys, key=key_order)


def test_an_owner_that_works_for_two_groups_stands_in_each() -> None:
    tree = FlowTree()
    for number, group in enumerate("ABAB"):
        tree.add(Candidate(number, owner=1, group=group, cost=4))
    assert [tree.pick().id for _ in range(2)] == [0, 1]  # type: ignore[union-attr]
    assert tree.owners() == {(group, 1): Account(virtual_time=charged(0, 4, 1000)) for group in "AB"}


# --- what is remembered -------------------------------------------------------------------------------


def test_debt_survives_sleep_and_credit_does_not() -> None:
    tree = FlowTree()
    for number, owner in enumerate([1, 2, 2, 2, 2]):
        tree.add(Candidate(number, owner=owner, cost=10))
    tree.pick()  # owner 1 runs, costs 10, has nothing more to do and owes
    tree.charge(1, None, 90)  # it cost 100 after all
    owed = tree.owners()[None, 1].virtual_time - tree.time_in(None)
    assert owed == charged(0, 100, 1000)

    tree.pick()  # owner 2 works on; owner 1 still owes, less what owner 2 has used meanwhile
    tree.add(Candidate(9, owner=1, cost=10))
    assert tree.owners()[None, 1].virtual_time == charged(0, 100, 1000)

    tree.remove(9)
    for number in (10, 11):  # a long time, in which owner 2 uses more than owner 1 ever did
        tree.add(Candidate(number, owner=2, cost=500))
        tree.charge(2, None, 500)
    tree.add(Candidate(12, owner=1))
    assert tree.owners()[None, 1].virtual_time == tree.owners()[None, 2].virtual_time == tree.time_in(None)


def test_a_debt_is_forgotten_once_the_level_has_passed_it() -> None:
    tree = FlowTree()
    tree.add(Candidate(1, owner=1, cost=10))
    tree.add(Candidate(2, owner=2, cost=10))
    tree.pick()
    assert (None, 1) in tree.owners()
    tree.charge(2, None, 10)
    assert (None, 1) not in tree.owners()


def test_what_was_said_about_weight_and_request_outlives_a_sleep() -> None:
    tree = FlowTree()
    tree.set_account("owner", 1, Account(weight=3000, request=5))
    for number in range(3):
        tree.add(Candidate(number, owner=1))
        tree.pick()
    tree.add(Candidate(9, owner=1))
    assert tree.owners()[None, 1] == Account(3000, 0, 5)


def test_a_tree_that_is_stored_and_loaded_picks_the_same() -> None:
    chance = random.Random(5)
    tree = FlowTree()
    for pid in range(12):
        tree.set_account("owner", pid, Account(weight=chance.randint(1, 9) * 1000, request=chance.randint(1, 9)))
    waiting = {
        number: Candidate(number, owner=number % 12, group="ABC"[number % 3], cost=chance.randint(1, 9))
        for number in range(60)
    }
    for candidate in waiting.values():
        tree.add(candidate)
    for _ in range(30):
        picked = tree.pick()
        assert picked is not None
        del waiting[picked.id]

    loaded = FlowTree()
    for (group, owner), account in tree.owners().items():
        relative = account.virtual_time - tree.time_in(group)
        loaded.set_account("owner", owner, Account(account.weight, relative, account.request))
    for name, account in tree.groups().items():
        loaded.set_account("group", name, Account(account.weight, account.virtual_time - tree.time, account.request))
    for candidate in waiting.values():
        loaded.add(candidate)
    assert [loaded.pick() for _ in waiting] == [tree.pick() for _ in waiting]


# --- bounds -------------------------------------------------------------------------------------------


def test_heap_entries_never_exceed_twice_the_siblings() -> None:
    chance = random.Random(3)
    level = Level()
    for step in range(5_000):
        key = chance.randrange(50)
        if key not in level:
            level.add(key, Account(weight=chance.randint(1, 9) * 1000))
        elif step % 3:
            level.remove(key)
        else:
            level.charge(key, chance.randint(-5, 9))
        assert level.entries <= 2 * len(level)


def test_a_tree_without_candidates_keeps_only_debts() -> None:
    chance = random.Random(11)
    tree = FlowTree()
    for number in range(3_000):
        owner = chance.randrange(40)
        tree.add(Candidate(number, owner=owner, group=owner % 7, cost=chance.randint(1, 9)))
        if number >= 20:
            tree.pick()
    while tree.pick():
        pass
    assert len(tree) == 0
    for (group, _), account in tree.owners().items():
        assert account.virtual_time > tree.time_in(group)
    for account in tree.groups().values():
        assert account.virtual_time > tree.time


def test_of_too_many_debts_the_smallest_is_forgiven() -> None:
    level = Level(debts_max=2)
    level.add("stays", Account())
    for key, used in (("a", 30), ("b", 10), ("c", 20)):
        level.add(key, Account())
        level.charge(key, used)
        level.remove(key)
        assert len(dict(level.debts())) <= 2
    assert set(dict(level.debts())) == {"a", "c"}


def test_candidates_of_one_owner_leave_no_dead_entries_behind() -> None:
    tree = FlowTree()
    tree.add(Candidate(0, owner=1))
    for _ in range(500):
        tree.add(Candidate(1, owner=1, priority=5))
        tree.remove(1)
    assert tree.pick() == Candidate(0, owner=1)
    assert tree.pick() is None


# --- small print --------------------------------------------------------------------------------------


def test_picking_from_an_empty_level_or_tree() -> None:
    assert FlowTree().pick() is None
    with pytest.raises(IndexError, match="no sibling is ready"):
        Level().pick()


def test_the_same_candidate_or_sibling_twice_is_refused() -> None:
    tree, level = FlowTree(), Level()
    tree.add(Candidate(1, owner=1))
    level.add(1, Account())
    with pytest.raises(ValueError, match="added already"):
        tree.add(Candidate(1, owner=2))
    with pytest.raises(ValueError, match="added already"):
        level.add(1, Account())
    with pytest.raises(KeyError):
        tree.remove(2)
    with pytest.raises(KeyError):
        level.charge(2, 1)


def test_a_weight_below_one_thousandth_is_refused_and_changes_nothing() -> None:
    tree = FlowTree()
    tree.add(Candidate(1, owner=1))
    before = tree.owners()
    with pytest.raises(ValueError, match="weight"):
        tree.reweigh("owner", 1, 0)
    with pytest.raises(ValueError, match="weight"):
        tree.set_account("owner", 1, Account(weight=-1))
    assert tree.owners() == before


def test_a_group_drops_its_level_when_no_owner_owes() -> None:
    tree = FlowTree()
    tree.add(Candidate(1, owner=1, group="A", cost=5))
    tree.add(Candidate(2, owner=1, group="B", cost=5))
    tree.pick()
    assert tree.time_in("A") == 0
    assert tree.owners() == {("B", 1): Account()}
    assert tree.groups()["A"].virtual_time == 5 * SCALE // 1000  # but the group itself still owes

    tree.add(Candidate(3, owner=2, group="B", cost=5))
    tree.pick()  # owner 1 leaves group B, owing
    tree.remove(3)
    tree.charge(1, "B", -5)  # it cost nothing after all
    assert tree.owners() == {}
    assert tree.time_in("B") == 0


def test_the_policies_offer_what_they_say() -> None:
    assert (eevdf().name, wfq().name) == ("eevdf", "wfq")
    for policy in (eevdf(), wfq()):
        assert policy.incremental is not None
        assert policy.bound is not None
        assert policy.incremental().pick() is None


def test_the_top_is_checked_again_when_time_fell() -> None:
    """When a sibling far ahead leaves, V decreases, and another one is no longer eligible."""
    level = Level()
    level.add("ahead", Account(virtual_time=1_000_000, request=9), keep_credit=True)
    level.add("middle", Account(virtual_time=300_000, request=1), keep_credit=True)
    level.add("behind", Account(virtual_time=0, request=99), keep_credit=True)
    assert level.pick() == "middle"
    level.remove("ahead")
    assert not is_eligible(300_000, level.time)
    assert level.pick() == "behind"

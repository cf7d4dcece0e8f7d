"""A ranking that is kept and changed group by group equals one that is made anew."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rota.model.snapshot import Account, Candidate, Key
from rota.policy.fair_share.share_ranking import ShareRanking

GROUPS = ("a", "b", "c", "d")
ALL_KINDS = frozenset({"gpu"})

accounts = st.builds(
    Account,
    weight=st.sampled_from([1_000, 1_000, 3_000]),
    usage=st.integers(0, 5),
    reserved=st.integers(0, 2),
    live=st.integers(0, 1),
    ended=st.integers(0, 1),
)
drafts = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5)), max_size=3)  # priority and cost
changes = st.tuples(st.sampled_from(GROUPS), drafts, accounts, st.integers(0, 5))  # and how many picks follow


def picks(ranking: ShareRanking, count: int) -> list[tuple[Key, int, str]]:
    found: list[tuple[Key, int, str]] = []
    while len(found) < count and (group := ranking.next(ALL_KINDS)) is not None:
        reason = ranking.reason(group).words
        found.append((group.group, ranking.pick(group).id, reason))
    return found


@given(history=st.lists(changes, min_size=1, max_size=25), guarantee=st.booleans())
def test_a_kept_ranking_picks_what_a_new_one_picks(
    history: list[tuple[str, list[tuple[int, int]], Account, int]], guarantee: bool
) -> None:
    kept = ShareRanking({}, {}, min_guarantee=guarantee)
    candidates: dict[Key, list[Candidate]] = {}
    known: dict[Key, Account] = {}
    ids = iter(range(1, 10_000))
    for group, entries, account, count in history:
        candidates[group] = [Candidate(next(ids), 1, group, priority=at, cost=cost) for at, cost in entries]
        known[group] = account
        kept.set_group(group, candidates[group], account)
        new = ShareRanking(candidates, known, min_guarantee=guarantee)
        expected = picks(new, count)
        assert picks(kept, count) == expected
        for name, before in known.items():  # what the picks have moved goes back to where it was
            kept.set_group(name, candidates[name], before)
        assert (kept.weight_total, kept.usage_charged) == (
            sum(each.weight for name, each in known.items() if candidates[name]),
            sum(each.usage + each.reserved for name, each in known.items() if candidates[name]),
        )


def test_a_group_whose_next_candidate_is_unread_comes_as_early_as_any_could() -> None:
    ranking = ShareRanking(
        {"a": [Candidate(1, 1, "a", cost=1)], "b": [Candidate(2, 1, "b", cost=1)]}, {}, min_guarantee=False
    )
    first = ranking.next(ALL_KINDS)
    assert first is not None
    ranking.pick(first)
    ranking.set_candidates(first, [], has_unread=True)
    assert [group for group, _, _ in picks(ranking, 1)] == ["b"]
    assert ranking.next(ALL_KINDS) is first  # as much used as b, and perhaps a lower id
    ranking.set_candidates(first, [Candidate(9, 1, "a")], has_unread=False)
    assert picks(ranking, 2) == [("a", 9, "its group used 50.0% of a target of 50.0%")]

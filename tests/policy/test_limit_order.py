"""Who is served next at a limit: projects by weight, then the agents of a project, then the order of arrival."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rota.policy.limit_order import (
    COST_UNIT,
    ROOT,
    LimitAsk,
    ShareKey,
    ShareTime,
    ask_cost,
    joined_shares,
    moved_shares,
    next_ask,
    pace,
)


def ask(ask_id: int, project: str = "", pid: int = 1, *, weights: tuple[int, int] = (1, 1), cost: int = 10) -> LimitAsk:
    return LimitAsk(ask_id, project, pid, 1_000 * weights[0], 1_000 * weights[1], cost)


def serve(asks: list[LimitAsk], rounds: int, shares: dict[ShareKey, ShareTime] | None = None) -> list[LimitAsk]:
    """Serve so many; each that was served asks again."""
    shares = dict(shares or {})
    served: list[LimitAsk] = []
    last = max(each.ask_id for each in asks)
    for _ in range(rounds):
        first = next_ask(asks, shares)
        assert first is not None
        served.append(first)
        shares |= moved_shares(first, shares)
        last += 1
        again = first._replace(ask_id=last)
        asks = [each for each in asks if each is not first] + [again]
        shares |= joined_shares(again, asks, shares)
    return served


def test_an_ask_costs_its_largest_share_of_the_limit() -> None:
    assert ask_cost([(1, 60), (10_000, 100_000)]) == COST_UNIT // 10
    assert ask_cost([(0, 60)]) == 1
    assert pace([(1, 60, 60_000), (10_000, 100_000, 60_000)]) == 6_000


def test_nobody_waits_nobody_is_next() -> None:
    assert next_ask([], {}) is None


def test_projects_share_by_weight_however_many_agents_they_have() -> None:
    asks = [ask(at, "lab", at, weights=(3, 1)) for at in (1, 2)]
    asks += [ask(at, "press", at) for at in (3, 4, 5)]
    served = Counter(each.project_id for each in serve(asks, 400))
    assert served == {"lab": 300, "press": 100}


def test_the_agents_of_a_project_share_by_weight() -> None:
    asks = [ask(1, "lab", 1, weights=(1, 2)), ask(2, "lab", 2), ask(3, "press", 3)]
    served = Counter(each.pid for each in serve(asks, 600))
    assert served == {1: 200, 2: 100, 3: 300}


def test_the_asks_of_one_agent_are_served_in_the_order_of_arrival() -> None:
    assert next_ask([ask(2, cost=1), ask(1, cost=1_000)], {}) == ask(1, cost=1_000)


def test_who_comes_late_has_no_credit_and_who_owes_keeps_the_debt() -> None:
    shares = {ROOT: ShareTime(0, 500), ("project", "old"): ShareTime(900, 0), ("project", "new"): ShareTime(100, 0)}
    assert joined_shares(ask(1, "new"), [], shares)["project", "new"].virtual_time == 500
    assert joined_shares(ask(1, "old"), [], shares)["project", "old"].virtual_time == 900
    assert ("project", "new") not in joined_shares(ask(2, "new", 2), [ask(1, "new")], shares)


asks_of_many = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 2), st.integers(1, 3), st.integers(1, 5)), max_size=6
)


@given(asks_of_many)
def test_everybody_is_served(drawn: list[tuple[int, int, int, int]]) -> None:
    weights = {project: weight for project, _, weight, _ in drawn}
    asks = [
        ask(at, f"p{project}", 10 * project + agent, weights=(weights[project], 1), cost=cost)
        for at, (project, agent, _, cost) in enumerate(drawn, 1)
    ]
    everyone = {(each.project_id, each.pid) for each in asks}
    rounds = 3 * 5 * len(asks) * len(asks)  # the largest weight times the largest cost, for each beside each
    assert {(each.project_id, each.pid) for each in (serve(asks, rounds) if asks else [])} == everyone

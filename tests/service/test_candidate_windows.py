"""The order in which agents are shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.service import candidate_windows
from rota.service.candidate_windows import ServiceOrder

pids = st.integers(1, 9)
agents = st.lists(st.tuples(st.integers(0, 5).map(float), pids), max_size=12)


@given(batches=st.lists(st.tuples(agents, st.lists(pids, max_size=4)), max_size=8), many=st.integers(1, 12))
def test_agents_are_ordered_by_the_time_they_were_last_served(
    batches: list[tuple[list[tuple[float, int]], list[int]]], many: int
) -> None:
    order, served_at = ServiceOrder(), dict[int, float]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidate_windows, "WINDOW_MAX", many)  # more than this are sorted anew
        for put, removed in batches:
            order.put(put)
            served_at.update((pid, at) for at, pid in put)
            for pid in removed:
                order.remove(pid)
                served_at.pop(pid, None)
            expected = [pid for _, pid in sorted((at, pid) for pid, at in served_at.items())]
            assert order.first(100) == order.copy().first(100) == expected
            assert order.first(2) == expected[:2]
            assert len(order) == len(expected)

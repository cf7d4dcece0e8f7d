"""What connections share: memory, permits for large requests, places, and the counting of denied calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rota.errors import InvalidInput
from rota.rpc.authorization import Principal
from rota.rpc.daemon.buffers import BufferBudget, LargeRequests
from rota.rpc.daemon.connections import Connections
from rota.rpc.daemon.denials import Denials
from rota.rpc.daemon.transport import DaemonLimits


class Holder:
    """A connection that says what happens to it."""

    def __init__(self, name: str, log: list[str], idle_since: float | None = 0.0) -> None:
        self.name = name
        self.log = log
        self.idle_since = idle_since

    def drop(self, limit: str) -> None:
        self.log.append(f"{self.name} dropped by {limit}")

    def make_room(self) -> None:
        self.log.append(f"{self.name} made room")

    def finish(self) -> None: ...


def test_buffer_bytes_max_drops_the_one_without_progress_for_the_longest() -> None:
    log: list[str] = []
    budget = BufferBudget(100)
    first, second, third = (Holder(name, log) for name in ("first", "second", "third"))
    budget.take(first, 40)
    budget.take(second, 40)
    budget.take(third, 20)
    assert log == [], "at the limit all fit"
    budget.give(first, 1)  # progress
    budget.take(third, 2)
    assert log == ["second dropped by buffer_bytes_max"]
    assert budget.used == 39 + 22
    budget.take(third, 200)
    assert log[1:] == ["third dropped by buffer_bytes_max"], "also the one that asks for more"
    assert budget.used == 39, "what was dropped counts no longer"
    budget.give(third, 200)
    assert budget.used == 39


def test_large_requests_max_gives_permits_in_order() -> None:
    log: list[str] = []
    large = LargeRequests(1)
    assert large.acquire("a", lambda: log.append("a"))
    for name in ("b", "c", "d"):
        assert not large.acquire(name, lambda name=name: log.append(name))  # type: ignore[misc]  # bound now
    large.withdraw("c")
    large.release()
    large.release()
    assert log == ["b", "d"]
    large.release()
    assert large.acquire("e", lambda: None)


def test_a_new_connection_takes_the_place_of_a_stranger_or_of_one_that_is_idle() -> None:
    log: list[str] = []
    now = [100.0]
    connections = Connections(DaemonLimits(connections_max=3, idle_s=10.0), lambda: now[0])
    known, busy = Holder("known", log, idle_since=91.0), Holder("busy", log, idle_since=None)
    for each in (known, busy):
        assert connections.add(each)
        connections.authenticated(each)
    assert connections.add(Holder("stranger", log))
    assert connections.add(Holder("second", log))
    assert log == ["stranger made room"]
    connections.authenticated(connections.open()[0])
    assert len(connections) == 3
    fourth = Holder("fourth", log, idle_since=100.0)
    assert connections.add(fourth)
    connections.authenticated(fourth)
    assert log[-1] == "second made room"
    assert not connections.add(Holder("fifth", log)), "none is idle for 10 s"
    now[0] = 101.0
    assert connections.add(Holder("sixth", log))
    assert log[-1] == "known made room"


def test_denied_calls_are_one_event_now_and_one_later_with_their_number() -> None:
    recorded: list[tuple[str, str | None, int]] = []

    def record(principal: Principal, method: str | None, _reason: str, count: int) -> None:
        recorded.append((principal.name, method, count))

    async def story() -> None:
        loop: Any = asyncio.get_running_loop()
        denials = Denials(loop, DaemonLimits(denials_max=2, denials_s=600.0), record)
        caller = Principal(name="token:1", scope="read")
        for _ in range(5):
            denials.add(caller, "a", "reason")
        denials.add(caller, "b", "reason")
        assert recorded == [("token:1", "a", 1), ("token:1", "b", 1)]
        denials.add(caller, "c", "reason")  # one past the limit
        denials.add(caller, "d", "reason")
        assert recorded[2:] == [("others", None, 1)]
        denials._next()  # as when the time has passed
        assert recorded[3:] == [("token:1", "a", 4), ("others", None, 1)]
        denials.add(caller, "a", "reason")
        denials.close(record)
        assert recorded[5:] == [("token:1", "a", 1)]

    asyncio.run(story())


@pytest.mark.parametrize("wrong", [{"slow_s": 0}, {"connections_max": -1}, {"buffer_bytes_max": 1}])
def test_an_invalid_limit_is_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as invalid:
        DaemonLimits(**wrong)
    assert invalid.value.field in wrong

"""Posted writes share commits, wait without a thread, and fail without affecting the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota import store
from rota.errors import StoreUnavailable, UnknownPid
from rota.kernel import Kernel, ScheduleSpec
from rota.store import JoinedStore
from rota.store.requests import PostedWrite

PATIENCE_S = 30.0


class Mailbox:
    """Posts writes and collects the names of those that are done."""

    def __init__(self, joined: JoinedStore) -> None:
        self.joined = joined
        self._changed = threading.Condition()
        self.done: list[str] = []

    def write(self, name: str, call: Any, **how: Any) -> PostedWrite[Any]:
        return self.joined.posted_write(call, lambda: self._add(name), **how)

    def _add(self, name: str) -> None:
        with self._changed:
            self.done.append(name)
            self._changed.notify_all()

    def until(self, *names: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: set(names) <= set(self.done), PATIENCE_S), self.done


@pytest.fixture(params=["file", "memory"])
def kernel(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Kernel]:
    path = str(tmp_path / "rota.db") if request.param == "file" else ":memory:"
    made = Kernel(store.open_joined(path))
    made.agents.create("agent")
    yield made
    made.store.close()


def joined_of(kernel: Kernel) -> JoinedStore:
    assert isinstance(kernel.store, JoinedStore)
    return kernel.store


def enqueue(kernel: Kernel, pid: int = 1) -> Any:
    return lambda: kernel.queue.enqueue(ScheduleSpec(pid))


def test_writes_posted_together_share_one_commit(kernel: Kernel) -> None:
    joined = joined_of(kernel)
    box = Mailbox(joined)
    commits: list[int] = []
    joined.on_change(lambda: commits.append(1))
    writes = [box.write(str(number), enqueue(kernel)) for number in range(5)]
    joined.post(writes)
    box.until("0", "1", "2", "3", "4")
    assert [write.value for write in writes] == [1, 2, 3, 4, 5]
    assert len(commits) == 1


def test_try_run_finishes_the_writes_before_it_returns(kernel: Kernel) -> None:
    box = Mailbox(joined_of(kernel))
    writes = [box.write("a", enqueue(kernel)), box.write("b", enqueue(kernel))]
    assert joined_of(kernel).try_run(writes)
    assert box.done == ["a", "b"]
    assert [write.value for write in writes] == [1, 2]


def test_try_run_runs_nothing_while_another_thread_writes(kernel: Kernel) -> None:
    joined = joined_of(kernel)
    box = Mailbox(joined)
    inside, go_on = threading.Event(), threading.Event()

    def hold(_tx: Any) -> None:
        inside.set()
        go_on.wait(PATIENCE_S)

    writer = threading.Thread(target=kernel.store.write, args=(hold,))
    writer.start()
    inside.wait(PATIENCE_S)
    write = box.write("a", enqueue(kernel))
    assert not joined.try_run([write])
    joined.post([write])
    assert box.done == []
    go_on.set()
    box.until("a")
    writer.join(PATIENCE_S)


def test_a_write_that_raises_undoes_only_its_own_changes(kernel: Kernel) -> None:
    box = Mailbox(joined_of(kernel))

    def half() -> None:
        kernel.queue.enqueue(ScheduleSpec(1))
        kernel.queue.enqueue(ScheduleSpec(99))

    writes = [
        box.write("a", enqueue(kernel)),
        box.write("b", half),
        box.write("c", enqueue(kernel)),
    ]
    joined_of(kernel).post(writes)
    box.until("a", "b", "c")
    assert isinstance(writes[1].error, UnknownPid)
    assert kernel.queue.counts() == {"queued": 2}, "the entry that the second write enqueued first is undone with it"


def test_a_posted_call_sees_what_it_has_written(kernel: Kernel) -> None:
    box = Mailbox(joined_of(kernel))
    write = box.write("a", lambda: kernel.queue.get(kernel.queue.enqueue(ScheduleSpec(1, 7))).priority)
    joined_of(kernel).post([write])
    box.until("a")
    assert write.value == 7


def test_a_parked_write_is_done_in_the_commit_that_serves_it(kernel: Kernel) -> None:
    joined = joined_of(kernel)
    box = Mailbox(joined)
    claims = [
        box.write(name, lambda name=name: kernel.queue.claim(worker_id=name), may_park=True, equivalence_key="strict")
        for name in ("first", "second")
    ]
    joined.post([claims[0]])
    joined.post([claims[1]])
    for _ in range(10_000):
        if joined.parked == 2:
            break
        threading.Event().wait(0.001)
    assert box.done == []
    kernel.queue.enqueue(ScheduleSpec(1))
    box.until("first")
    assert [entry.worker_id for entry in claims[0].value or ()] == ["first"]
    assert joined.parked == 1
    joined.withdraw(claims[1])
    assert box.done == ["first", "second"]
    assert not claims[1].value
    kernel.queue.enqueue(ScheduleSpec(1))
    assert kernel.queue.counts() == {"dispatched": 1, "queued": 1}, "a withdrawn write claims nothing"


def test_parked_writes_are_done_when_the_store_closes(tmp_path: Path) -> None:
    kernel = Kernel(store.open_joined(str(tmp_path / "rota.db")))
    joined = joined_of(kernel)
    box = Mailbox(joined)
    claim = box.write("a", lambda: kernel.queue.claim(worker_id="w"), may_park=True)
    joined.post([claim])
    joined.close()
    box.until("a")
    assert isinstance(claim.error, StoreUnavailable)
    with pytest.raises(StoreUnavailable):
        joined.post([box.write("b", enqueue(kernel))])

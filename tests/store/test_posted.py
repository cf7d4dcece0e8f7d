"""Verbs that are posted: they share commits, wait without a thread, and one that fails harms no other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota import store
from rota.errors import StoreUnavailable, UnknownPid
from rota.kernel import Kernel, ScheduleSpec
from rota.store import JointStore
from rota.store.requests import Posted

PATIENCE_S = 30.0


class Box:
    """Where posted verbs say that they are answered."""

    def __init__(self, joint: JointStore) -> None:
        self.joint = joint
        self._bell = threading.Condition()
        self.told: list[str] = []

    def errand(self, name: str, verb: Any, **how: Any) -> Posted[Any]:
        return self.joint.errand(verb, lambda: self._hear(name), **how)

    def _hear(self, name: str) -> None:
        with self._bell:
            self.told.append(name)
            self._bell.notify_all()

    def until(self, *names: str) -> None:
        with self._bell:
            assert self._bell.wait_for(lambda: set(names) <= set(self.told), PATIENCE_S), self.told


@pytest.fixture(params=["file", "memory"])
def kernel(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Kernel]:
    path = str(tmp_path / "rota.db") if request.param == "file" else ":memory:"
    made = Kernel(store.open_joint(path))
    made.agents.create("agent")
    yield made
    made.store.close()


def joint_of(kernel: Kernel) -> JointStore:
    assert isinstance(kernel.store, JointStore)
    return kernel.store


def enqueue(kernel: Kernel, pid: int = 1) -> Any:
    return lambda: kernel.queue.enqueue(ScheduleSpec(pid))


def test_what_is_posted_together_is_one_commit(kernel: Kernel) -> None:
    joint = joint_of(kernel)
    box = Box(joint)
    commits: list[int] = []
    joint.on_change(lambda: commits.append(1))
    errands = [box.errand(str(number), enqueue(kernel)) for number in range(5)]
    joint.post(errands)
    box.until("0", "1", "2", "3", "4")
    assert [errand.answer for errand in errands] == [1, 2, 3, 4, 5]
    assert len(commits) == 1


def test_what_can_be_run_here_is_answered_here(kernel: Kernel) -> None:
    box = Box(joint_of(kernel))
    errands = [box.errand("a", enqueue(kernel)), box.errand("b", enqueue(kernel))]
    assert joint_of(kernel).run(errands)
    assert box.told == ["a", "b"]
    assert [errand.answer for errand in errands] == [1, 2]


def test_nothing_is_run_here_while_somebody_else_writes(kernel: Kernel) -> None:
    joint = joint_of(kernel)
    box = Box(joint)
    inside, go_on = threading.Event(), threading.Event()

    def hold(_tx: Any) -> None:
        inside.set()
        go_on.wait(PATIENCE_S)

    writer = threading.Thread(target=kernel.store.write, args=(hold,))
    writer.start()
    inside.wait(PATIENCE_S)
    errand = box.errand("a", enqueue(kernel))
    assert not joint.run([errand])
    joint.post([errand])
    assert box.told == []
    go_on.set()
    box.until("a")
    writer.join(PATIENCE_S)


def test_one_that_fails_undoes_itself_alone(kernel: Kernel) -> None:
    box = Box(joint_of(kernel))

    def half() -> None:
        kernel.queue.enqueue(ScheduleSpec(1))
        kernel.queue.enqueue(ScheduleSpec(99))

    errands = [box.errand("a", enqueue(kernel)), box.errand("b", half), box.errand("c", enqueue(kernel))]
    joint_of(kernel).post(errands)
    box.until("a", "b", "c")
    assert isinstance(errands[1].error, UnknownPid)
    assert kernel.queue.counts() == {"queued": 2}, "what the second one wrote first is gone with it"


def test_a_verb_sees_what_it_has_written(kernel: Kernel) -> None:
    box = Box(joint_of(kernel))
    errand = box.errand("a", lambda: kernel.queue.get(kernel.queue.enqueue(ScheduleSpec(1, 7))).priority)
    joint_of(kernel).post([errand])
    box.until("a")
    assert errand.answer == 7


def test_one_that_waits_is_answered_by_the_commit_that_brings_it_something(kernel: Kernel) -> None:
    joint = joint_of(kernel)
    box = Box(joint)
    claims = [
        box.errand(name, lambda name=name: kernel.queue.claim(worker_id=name), parks=True, same="strict")
        for name in ("first", "second")
    ]
    joint.post([claims[0]])
    joint.post([claims[1]])
    for _ in range(10_000):
        if joint.parked == 2:
            break
        threading.Event().wait(0.001)
    assert box.told == []
    kernel.queue.enqueue(ScheduleSpec(1))
    box.until("first")
    assert [entry.worker_id for entry in claims[0].answer or ()] == ["first"]
    assert joint.parked == 1
    joint.withdraw(claims[1])
    assert box.told == ["first", "second"]
    assert not claims[1].answer
    kernel.queue.enqueue(ScheduleSpec(1))
    assert kernel.queue.counts() == {"dispatched": 1, "queued": 1}, "one that was withdrawn takes nothing"


def test_those_who_wait_are_told_when_the_store_closes(tmp_path: Path) -> None:
    kernel = Kernel(store.open_joint(str(tmp_path / "rota.db")))
    joint = joint_of(kernel)
    box = Box(joint)
    claim = box.errand("a", lambda: kernel.queue.claim(worker_id="w"), parks=True)
    joint.post([claim])
    joint.close()
    box.until("a")
    assert isinstance(claim.error, StoreUnavailable)
    with pytest.raises(StoreUnavailable):
        joint.post([box.errand("b", enqueue(kernel))])

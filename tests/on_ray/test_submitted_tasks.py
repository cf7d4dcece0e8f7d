"""Tasks that go on with other runs: which run gets which task, and which tasks must end."""

from __future__ import annotations

from rota.fleet.on_ray.submitted_tasks import SubmittedTasks, Task

LINGER_S = 1.0
CPU = {"CPU": 1.0}


def submitted(tasks: SubmittedTasks, run: str, form: bytes = b"a", node: str = "n1") -> Task:
    """A task that Ray has accepted."""
    task, _ = tasks.place(run, form, node, CPU)
    task.reference = task.reference or f"task {task.number}"
    return task


def numbers(tasks: object) -> list[int]:
    return [task.number for task in tasks]  # type: ignore[attr-defined]


def test_the_next_run_of_the_same_form_gets_the_task_that_waits() -> None:
    tasks = SubmittedTasks(LINGER_S)
    first = submitted(tasks, "1:1")
    assert tasks.answered("1:1", "n1", now=0.0) == (True, None)
    again, over = tasks.place("2:2", b"a", "n1", CPU)
    assert (again, again.run, over) == (first, "2:2", ())
    other, _ = tasks.place("3:3", b"a", "n1", CPU)  # while the first has a run
    assert other.reference is None
    assert other.number != first.number


def test_a_new_task_ends_those_that_wait_on_its_node() -> None:
    tasks = SubmittedTasks(LINGER_S)
    here, there = submitted(tasks, "1:1"), submitted(tasks, "2:2", node="n2")
    tasks.answered("1:1", "n1", now=0.0)
    tasks.answered("2:2", "n2", now=0.0)
    _, over = tasks.place("3:3", b"b", "n1", CPU)
    assert list(over) == [here]
    assert tasks.place("4:4", b"a", "n2", CPU)[0] is there


def test_a_task_that_was_cancelled_gets_no_other_run() -> None:
    tasks = SubmittedTasks(LINGER_S)
    task = submitted(tasks, "1:1")
    assert tasks.cancel("1:1") is task
    assert tasks.answered("1:1", "n1", now=0.0) == (True, task)
    assert tasks.place("2:2", b"a", "n1", CPU)[0] is not task
    assert tasks.cancel("1:1") is None  # that run has ended


def test_a_task_waits_no_longer_than_it_may() -> None:
    tasks = SubmittedTasks(LINGER_S)
    for number, ended_at in ((1, 0.0), (2, 0.5)):
        submitted(tasks, f"{number}:{number}", form=str(number).encode())
        tasks.answered(f"{number}:{number}", "n1", now=ended_at)
    assert tasks.waiting_resources() == {"n1": {"CPU": 1.0}}  # the second one has ended the first
    assert numbers(tasks.overdue(now=1.4)) == []
    assert numbers(tasks.overdue(now=1.5)) == [2]
    assert numbers(tasks.overdue(now=9.0)) == []
    assert tasks.waiting_resources() == {}


def test_what_a_task_executed_when_it_ended() -> None:
    tasks = SubmittedTasks(LINGER_S)
    task = submitted(tasks, "1:1")
    assert tasks.ended(task) == "1:1"
    assert tasks.answered("1:1", "n1", now=0.0) == (False, None)  # a message that came too late
    waiting = submitted(tasks, "2:2")
    tasks.answered("2:2", "n1", now=0.0)
    assert tasks.ended(waiting) is None  # its process has died while it waited
    assert tasks.place("3:3", b"a", "n1", CPU)[0] is not waiting


def test_a_handed_on_run_is_the_one_that_breaks_with_its_task() -> None:
    tasks = SubmittedTasks(LINGER_S)
    task = submitted(tasks, "1:1")
    tasks.answered("1:1", "n1", now=0.0)
    submitted(tasks, "2:2")
    assert tasks.ended(task) == "2:2"

"""`agent.enqueue`, `map` and `enqueue_many`: arguments, options, times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rota import Rota
from rota.errors import InvalidInput, RunFailed, SchedInvalidPayload
from rota.testing import InMemoryRota


def test_options_become_fields_of_the_entry_behind_every_door(anywhere: Rota) -> None:
    @anywhere.agent
    def read(url: str, words: int = 5) -> str:
        return f"{url} {words}"

    first = read.enqueue("a", priority=7, tags="urgent", key="a")
    at = datetime(2100, 1, 1, tzinfo=UTC)
    later = read.enqueue(url="b", at=at, deadline=at + timedelta(hours=1), tags=["x", "y"])
    behind = read.enqueue("c", after=first)
    last = read.enqueue("d", after=[first, behind])
    entry = first.entry()
    assert (entry.payload, entry.priority, entry.tags, entry.key) == ({"url": "a"}, 7, ("urgent",), "a")
    entry = later.entry()
    assert (entry.runnable_at, entry.deadline, entry.tags) == (at.timestamp(), at.timestamp() + 3600, ("x", "y"))
    assert read.enqueue("another", key="a").sched_id == first.sched_id
    assert [job.status for job in (first, later, behind, last)] == ["ready", "waiting", "waiting", "waiting"]
    summary = anywhere.run(until_idle=True)
    assert (summary.runs, summary.completed, summary.ok) == (3, 3, True)
    assert [(each.kind, each.until_at, each.agent) for each in summary.waiting] == [("delayed", at.timestamp(), "read")]
    assert [job.result() for job in (first, behind, last)] == ["a 5", "c 5", "d 5"]


def test_a_delay_counts_from_now_and_a_naive_datetime_is_local_time(rota: InMemoryRota) -> None:
    @rota.agent
    def work() -> None: ...

    now = rota.clock.now()
    delays: list[Any] = [90, timedelta(minutes=1.5), "90s", "1.5m"]
    assert [work.enqueue(delay=delay).entry().runnable_at - now for delay in delays] == [90.0] * 4
    naive = datetime(2100, 1, 1)  # noqa: DTZ001  # that is what is tested
    assert work.enqueue(at=naive).entry().runnable_at == naive.timestamp()
    assert work.enqueue(deadline=timedelta(minutes=1)).entry().deadline == now + 60


def test_what_cannot_be_meant_is_refused_with_one_sentence(rota: InMemoryRota) -> None:
    @rota.agent
    def work(number: int = 0) -> None: ...

    for options, text in (
        ({"delay": -1}, "delay must be a duration of 0 or more, not -1"),
        ({"delay": "soon"}, "delay must be a duration"),
        ({"delay": True}, "delay must be a duration"),
        ({"at": "tomorrow"}, "at must be a datetime or epoch seconds, not 'tomorrow'"),
        ({"deadline": "later"}, "deadline must be a datetime"),
    ):
        with pytest.raises(InvalidInput, match=text):
            work.enqueue(**options)
    with pytest.raises(SchedInvalidPayload, match="delay_s must not be given together with runnable_at"):
        work.enqueue(delay=5, at=rota.clock.now() + 5)
    with pytest.raises(InvalidInput, match="work takes 1 arguments by position, not 2"):
        work.enqueue(1, 2)
    with pytest.raises(InvalidInput, match="agent shell is not a function"):
        rota.command("shell", ["true"]).enqueue("x")
    assert rota.enqueued(work) == []


def test_an_argument_with_the_name_of_an_option_is_never_taken_for_it(rota: InMemoryRota) -> None:
    @rota.agent
    def fetch(key: str) -> str:
        return key

    with pytest.raises(InvalidInput, match="fetch has an argument 'key', which is also an option of enqueue"):
        fetch.enqueue(key="k")
    job = fetch.enqueue("k", options={"key": "once"})
    rota.run_until_idle()
    assert (job.result(), job.entry().key) == ("k", "once")


def test_map_enqueues_one_entry_for_each_item_or_none(anywhere: Rota) -> None:
    @anywhere.agent
    def add(ctx: Any, a: int, b: int = 1) -> int:
        assert ctx.agent == "add"
        return a + b

    jobs = add.map([1, {"a": 2, "b": 2}, 3], priority=2, tags="sum")
    with pytest.raises(SchedInvalidPayload, match="is not JSON"):
        add.map([1, object()])
    anywhere.run(slots=2, until_idle=True)
    assert anywhere.gather(*jobs) == [2, 4, 4]
    assert {(job.entry().priority, job.entry().tags) for job in jobs} == {(2, ("sum",))}
    assert anywhere.api.queue.counts() == {"completed": 3}


def test_an_agent_may_be_declared_without_parentheses_and_may_have_a_default_payload(rota: InMemoryRota) -> None:
    @rota.agent
    async def plain(number: int) -> int:
        return number

    @rota.agent(payload={"number": 3})
    def with_payload(number: int) -> int:
        return number

    jobs = [plain.enqueue(2), with_payload.enqueue(), with_payload.enqueue(4)]
    rota.run_until_idle()
    assert rota.gather(*jobs) == [2, 3, 4]
    assert (plain.name, with_payload(number=9)) == ("plain", 9)


def test_a_failed_predecessor_cancels_what_comes_after_it(rota: InMemoryRota) -> None:
    @rota.agent(max_attempts=1)
    def fails() -> None:
        raise ValueError("no")

    @rota.agent
    def follows() -> None: ...

    job = follows.enqueue(after=fails.enqueue())
    summary = rota.run_until_idle()
    assert (summary.failed, summary.ok, job.status) == (1, False, "cancelled")
    with pytest.raises(RunFailed):
        job.result()


def test_pausing_an_agent_a_project_or_everything(anywhere: Rota) -> None:
    @anywhere.agent(project="lab")
    def work() -> None: ...

    job = work.enqueue()
    pauses: list[tuple[Any, dict[str, Any]]] = [
        (work, {}),
        ("work", {"project": "lab"}),
        (None, {"project": "lab"}),
        (None, {}),
    ]
    for target, where in pauses:
        anywhere.pause(target, **where)
        summary = anywhere.run(until_idle=True)
        assert (summary.runs, summary.ok) == (0, False)
        assert [each.kind for each in summary.waiting] == ["blocked"]
        assert "pause" in summary.waiting[0].why.lower()
        anywhere.resume(target, **where)
    assert anywhere.run(until_idle=True).completed == 1
    assert job.status == "succeeded"

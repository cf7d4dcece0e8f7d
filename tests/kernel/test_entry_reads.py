"""Reading entries by status, counting them, and searching what they hold."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import msgspec
import pytest

from rota.errors import SchedInvalidPayload, SchedInvalidStateFilter
from rota.kernel import EntryFilter, ScheduleSpec, entry_reads
from rota.model.entry_status import STATUSES, derive_status
from rota.model.lifecycle import ENTRY
from rota.model.work import EXIT_KINDS, Backoff
from rota.store import Statement
from rota.store.statements.entry_lists import STATUS
from tests.kernel.world import START, World


def one_of_each(world: World, pid: int) -> dict[str, list[int]]:
    """Entries of every status, in every way to get there."""
    found = {
        "succeeded": [world.ended(pid, "completed")],
        "failed": [world.ended(pid, "failed"), world.ended(pid, "crashed")],
        "cancelled": [world.ended(pid, "cancelled"), world.put(pid)],
        "running": [world.put(pid, priority=99)],
        "ready": [world.put(pid), world.put(pid)],
        "expired": [world.put(pid, priority=-1, deadline=START + 1)],
        "waiting": [world.put(pid, runnable_at=START + 500)],
    }
    world.queue.force_claim(found["running"][0], worker_id="worker")
    found["waiting"].append(world.put(pid, after=(found["running"][0],)))
    world.queue.cancel(found["cancelled"][1])
    world.put(pid, priority=50, max_attempts=2, backoff=Backoff(base_s=60.0))
    entry = world.take(1)[0]
    world.queue.complete(entry.sched_id, "crashed", token=entry.token)
    found["waiting"] += [entry.sched_id, world.put(pid, affinity="worker")]
    world.clock.advance(2)
    assert world.queue.gc_expired() == 1
    return found


@pytest.mark.parametrize("status", STATUSES)
def test_a_filter_by_status_finds_these_entries_and_each_says_its_status(world: World, pid: int, status: str) -> None:
    expected = one_of_each(world, pid)[status]
    for only in (None, pid):
        entries, total = world.queue.list(status=status, pid=only)
        assert ([entry.sched_id for entry in entries], total) == (sorted(expected), len(expected))
        assert {entry.status for entry in entries} == {status}


def test_several_statuses_are_one_page_by_id_with_offset_and_total(world: World, pid: int) -> None:
    found = one_of_each(world, pid)
    expected = sorted(found["failed"] + found["expired"] + found["waiting"])
    entries, total = world.queue.list(status=("failed", "expired", "waiting"), offset=1, limit=3)
    assert ([entry.sched_id for entry in entries], total) == (expected[1:4], len(expected))
    assert world.queue.list(status=("succeeded", "failed"))[1] == 3
    assert world.queue.list(status=())[0] == []
    assert world.queue.list(status="failed", exit_kind="crashed")[1] == 1
    assert world.queue.list(status="failed", state="queued")[1] == 0


@pytest.mark.parametrize("state", [None, *ENTRY.states])
@pytest.mark.parametrize("exit_kind", [None, *EXIT_KINDS])
def test_a_filter_by_state_and_exit_kind_finds_what_looking_at_all_would_find(
    world: World, pid: int, state: str | None, exit_kind: str | None
) -> None:
    one_of_each(world, pid)
    every = world.queue.list()[0]
    expected = [each for each in every if state in (None, each.state) and exit_kind in (None, each.exit_kind)]
    assert world.queue.list(state=state, exit_kind=exit_kind) == (expected, len(expected))


def test_counts_by_status_agree_with_the_entries_and_leave_out_what_is_not_there(world: World, pid: int) -> None:
    assert world.queue.counts(by="status") == {}
    found = one_of_each(world, pid)
    assert world.queue.counts(by="status") == {status: len(ids) for status, ids in found.items()}
    within = world.kernel.project_reads.counts(frozenset({None}), by="status")
    assert within == world.queue.counts(by="status")
    assert world.kernel.project_reads.counts(frozenset({"other"}), by="status") == {}


def test_the_status_in_sql_is_the_status_in_python(world: World) -> None:
    states, holds, kinds = ENTRY.states, (None, "time", "after", "backoff", "worker"), (None, *EXIT_KINDS, "odd")
    ask = Statement("status", "", f"SELECT {STATUS} FROM (SELECT ? AS state, ? AS hold, ? AS exit_kind) q")
    every = list(product(states, holds, kinds))
    found = world.store.read(lambda tx: [tx.run(ask, stored)[0][0] for stored in every])
    assert found == [derive_status(*stored) for stored in every]


def test_the_status_of_an_entry_is_sent_with_it(world: World, pid: int) -> None:
    entry = world.queue.get(world.put(pid))
    assert b'"status":"ready"' in msgspec.json.encode(entry)
    (run,) = world.queue.claim(worker_id="w")
    assert (run.status, world.queue.get(run.sched_id).status) == ("running", "running")
    world.queue.complete(run.sched_id, "failed", token=run.token)
    assert world.queue.get(run.sched_id).status == "failed"


def test_a_status_that_does_not_exist_is_refused(world: World) -> None:
    for status in ("bogus", ("failed", "queued")):
        with pytest.raises(SchedInvalidStateFilter, match="must be one of waiting, ready, running"):
            world.queue.list(status=status)
    with pytest.raises(SchedInvalidPayload):
        world.queue.counts(by="colour")  # type: ignore[arg-type]


def test_names_of_agents_are_read_at_once_also_of_dead_ones(world: World, pid: int) -> None:
    dead = world.agent("gone")
    world.kernel.terminate(dead, "completed")
    assert world.agents.names([pid, dead, dead, 999]) == {pid: "agent", dead: "gone"}
    assert world.agents.names([]) == {}


# --- search --------------------------------------------------------------------------------------


def test_a_search_finds_payloads_results_and_errors_of_all_attempts_newest_first(world: World, pid: int) -> None:
    payload = world.put(pid, payload={"url": "https://example.org/Needle"})
    result = world.put(pid, priority=9)
    world.queue.force_claim(result, worker_id="worker")
    world.queue.complete(result, "completed", result={"text": "a needle in a haystack"})
    retried = world.put(pid, priority=9, max_attempts=2)
    entry = world.take(1)[0]
    world.queue.complete(retried, "crashed", token=entry.token, result={"error": "sharp NEEDLE"})
    world.put(pid, payload={"url": "hay"}, tags=("needle",))
    found = world.queue.search("needle")
    assert ([each.sched_id for each in found.entries], found.is_complete) == ([retried, result, payload], True)
    assert [each.sched_id for each in world.queue.search("needle", status="succeeded").entries] == [result]
    assert [each.sched_id for each in world.queue.search("needle", status=["waiting", "ready"]).entries] == [
        retried,
        payload,
    ]
    assert world.queue.search("needle", limit=1) == ([found.entries[0]], False)
    assert world.queue.search("needle", pid=999) == ([], True)


@pytest.mark.parametrize("text", ['say "no"', "50%", "a_b", "C:\\temp", "naïve", "two\nlines", '{"k":'])
def test_a_search_takes_every_character_as_it_is(world: World, pid: int, text: str) -> None:
    wanted = world.put(pid, payload={"k": text})
    world.put(pid, payload={"other": "say no, 50 or axb, C:temp, naive, two lines"})
    assert [each.sched_id for each in world.queue.search(text).entries] == [wanted]


def test_a_search_looks_at_a_bounded_number_of_entries_and_says_so(
    world: World, pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_reads, "SEARCH_ROWS_MAX", 10)
    monkeypatch.setattr(entry_reads, "SEARCH_PART", 4)
    ids = world.queue.enqueue_many([ScheduleSpec(pid, payload={"n": "old" if n < 1 else "new"}) for n in range(10)])
    assert [each.sched_id for each in world.queue.search("old").entries] == [ids[0]]
    assert world.queue.search("old").is_complete
    world.put(pid, payload={"n": "one more"})
    assert world.queue.search("old") == ([], False)
    assert world.queue.search("old", status="failed") == ([], True)
    assert world.kernel.project_reads.search(frozenset({None}), "new").entries == world.queue.search("new").entries
    assert world.kernel.project_reads.search(frozenset({"other"}), "new").entries == []


def test_a_search_without_a_text_or_with_a_long_one_is_refused(world: World) -> None:
    for text in ("", "x" * 201):
        with pytest.raises(SchedInvalidPayload):
            world.queue.search(text)
    assert world.queue.search("x" * 200) == ([], True)


def test_a_filter_as_sent_over_the_wire_takes_one_status_or_several() -> None:
    for given, expected in (("failed", ("failed",)), (["failed", "expired"], ("failed", "expired"))):
        sent = msgspec.json.encode({"status": given})
        assert msgspec.json.decode(sent, type=EntryFilter).statuses == expected


@pytest.mark.parametrize(
    "wanted", [{}, {"pid": 1}, {"tag": "night"}, {"status": ("ready", "waiting")}, {"status": "succeeded"}], ids=str
)
def test_pages_after_an_id_hold_all_entries_once(world: World, pid: int, wanted: dict[str, Any]) -> None:
    one_of_each(world, pid)
    for _ in range(4):
        world.put(pid, tags=("night",))
    reads = (world.queue.list, partial(world.kernel.project_reads.entries, frozenset({None})))
    for read in reads:
        expected, total = read(limit=100, **wanted)
        after, found = 0, list[int]()
        while page := read(limit=2, after=after, **wanted):
            entries, count = page
            assert count == total
            if not entries:
                break
            found += [entry.sched_id for entry in entries]
            after = found[-1]
        assert found == [entry.sched_id for entry in expected]
    with pytest.raises(SchedInvalidPayload):
        world.queue.list(after=-1)

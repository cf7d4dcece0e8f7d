"""Facts as sentences."""

from __future__ import annotations

import pytest

from rota.model import events as facts
from rota.model.events import Event, Fact
from rota.observe.event_text import _TELLERS, STORIES_PER_FACT_MAX, tell

NOW = 100.0


class Names:
    """What things are called in these tests."""

    def agent(self, pid: int | None) -> str:
        return f"agent-{pid}"

    def run(self, sched_id: int) -> str:
        return f"run #{sched_id}"

    def why(self, _sched_id: int, reason: str | None) -> str:
        return reason or "failed"

    def how_it_ran(self, _sched_id: int, _at: float) -> str:
        return " after 2.0 s"


def told(fact: Fact, pid: int | None = None) -> list[tuple[str, str]]:
    event = Event(7, pid, NOW, fact.kind, {})
    stories = tell(event, fact, Names())
    assert all((story.event_id, story.at) == (7, NOW) for story in stories)
    return [(story.tone, story.text) for story in stories]


EXAMPLES: list[tuple[Fact, int | None, list[tuple[str, str]]]] = [
    (facts.EntriesEnqueued(first_id=3), 5, [("quiet", "agent-5 is to run: entry 3")]),
    (facts.EntriesEnqueued(first_id=3), None, [("quiet", "an entry joined the queue")]),
    (facts.EntriesEnqueued(first_id=3, count=1_200), None, [("quiet", "1,200 entries joined the queue")]),
    (
        facts.EntriesClaimed(
            worker_id="w",
            incarnation="i",
            policy="strict",
            entries=[facts.ClaimedEntry(1, 5, 1), facts.ClaimedEntry(2, 6, 3)],
        ),
        None,
        [("plain", "agent-5 #1 started on w"), ("plain", "agent-6 #2 started on w, attempt 3")],
    ),
    (
        facts.EntriesCompleted(
            entries=[
                facts.CompletedEntry(1, "completed"),
                facts.CompletedEntry(2, "failed", "over_budget"),
                facts.CompletedEntry(3, "cancelled", "cancelled"),
            ]
        ),
        None,
        [
            ("good", "run #1 ended well after 2.0 s"),
            ("bad", "run #2 ended failed (over budget) after 2.0 s"),
            ("bad", "run #3 ended cancelled after 2.0 s"),
        ],
    ),
    (
        facts.EntriesReturned(verb="retry", sched_ids=[1], runnable_at=NOW + 1.5, reason="timed_out"),
        None,
        [("warn", "run #1 ended timed out after 2.0 s; retried in 1.5 s")],
    ),
    (
        facts.EntriesReturned(verb="reclaim", sched_ids=[1], runnable_at=NOW),
        None,
        [("warn", "run #1 was taken back: nobody held on to its claim; to be run again")],
    ),
    (
        facts.EntriesReturned(verb="yield", sched_ids=[1], runnable_at=NOW + 9),
        None,
        [("plain", "run #1 gave its slot back after 2.0 s; goes on in 9.0 s")],
    ),
    (
        facts.EntriesReturned(verb="preempt", sched_ids=[1]),
        None,
        [("plain", "run #1 made room for more urgent work after 2.0 s; goes on later")],
    ),
    (facts.EntriesExpired(sched_ids=[4]), None, [("warn", "entry 4 was not run before its deadline")]),
    (facts.EntriesExpired(sched_ids=[4, 5]), None, [("warn", "2 entries were not run before their deadline")]),
    (
        facts.EntriesCancelled(sched_ids=[4, 5], reason="predecessor_failed"),
        None,
        [("warn", "2 entries were cancelled: predecessor failed")],
    ),
    (facts.CancelRequested(sched_ids=[4], by="ann"), None, [("plain", "run #4 was asked to stop by ann")]),
    (
        facts.AgentQuarantined(failures=3, until_at=NOW + 600),
        5,
        [("bad", "agent-5 failed 3 times in a row: quarantined for 600 s")],
    ),
    (facts.Paused(level="agent", key="5", by="ann"), None, [("warn", "agent-5 was paused by ann")]),
    (facts.Paused(level="agent", key="5", by="quarantine"), None, []),
    (
        facts.Paused(level="fleet", key="*", by="ann", reason="lunch"),
        None,
        [("warn", "the fleet was paused by ann: lunch")],
    ),
    (facts.Resumed(level="project", key="lab", by="ann"), None, [("plain", "project lab was resumed by ann")]),
    (
        facts.LimitThrottled(name="api", until_at=NOW + 2.5),
        None,
        [("warn", "limit api was throttled: all who draw on it wait 2.5 s")],
    ),
    (facts.LedgerWarned(dim="tokens", used=800, granted=1_000), 5, [("warn", "agent-5 used 800 of 1,000 tokens")]),
    (
        facts.LedgerBreached(level="project", owner="lab", dim="tokens", used=1_001, limit=1_000),
        5,
        [("bad", "project lab is over budget: 1,001 of 1,000 tokens")],
    ),
    (
        facts.LedgerBreached(level="agent", owner="5", dim="tokens", used=2, limit=1),
        5,
        [("bad", "agent agent-5 is over budget: 2 of 1 tokens")],
    ),
    (
        facts.ContextDepleted(context_id=3, remaining=0),
        None,
        [("warn", "context 3 is used up until it is refilled")],
    ),
    (facts.SupervisorMoved(worker_id="w", incarnation="i", verb="started"), None, [("plain", "w started")]),
    (
        facts.SupervisorMoved(worker_id="w", incarnation="i", verb="draining"),
        None,
        [("plain", "w takes nothing more")],
    ),
    (facts.TriggerFired(trigger="nightly", sched_id=9), 5, [("quiet", "trigger nightly asked for entry 9")]),
    (facts.TriggerFired(trigger="nightly", sched_id=9, created=False), 5, []),
    (
        facts.PolicyFellBack(policy="mine", failure="raised", detail="KeyError"),
        None,
        [("bad", "policy mine raised: strict order takes its place (KeyError)")],
    ),
    (facts.ClockJumped(by_s=-7.25), None, [("warn", "the wall clock jumped by -7.2 s")]),
    (facts.FleetReloaded(), None, [("plain", "the fleet file was read anew")]),
]


@pytest.mark.parametrize(("fact", "pid", "sentences"), EXAMPLES, ids=lambda value: getattr(value, "kind", ""))
def test_a_fact_is_told_like_this(fact: Fact, pid: int | None, sentences: list[tuple[str, str]]) -> None:
    assert told(fact, pid) == sentences


def test_every_fact_that_is_told_has_an_example() -> None:
    assert {type(fact) for fact, _, _ in EXAMPLES} == set(_TELLERS)


def test_what_comes_by_the_thousand_is_not_told() -> None:
    assert told(facts.LedgerCharged(amounts={"tokens": 5})) == []


def test_a_large_batch_is_told_in_part_and_the_rest_is_counted() -> None:
    entries = [facts.CompletedEntry(number, "completed") for number in range(1, STORIES_PER_FACT_MAX + 31)]
    stories = told(facts.EntriesCompleted(entries=entries))
    assert len(stories) == STORIES_PER_FACT_MAX + 1
    assert stories[-1] == ("good", "… and 30 more like this")
    whole = told(facts.EntriesCompleted(entries=entries[:STORIES_PER_FACT_MAX]))
    assert [text for _, text in whole][-1] == f"run #{STORIES_PER_FACT_MAX} ended well after 2.0 s"

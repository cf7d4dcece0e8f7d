"""Events as sentences."""

from __future__ import annotations

import pytest

from rota.model import events
from rota.model.events import Event, EventData
from rota.model.policy_setting import PolicySetting
from rota.observe.event_text import _DESCRIBERS, TEXTS_PER_EVENT_MAX, describe

NOW = 100.0


class Names:
    """The names in these tests."""

    def agent(self, pid: int | None) -> str:
        return f"agent-{pid}"

    def run(self, sched_id: int) -> str:
        return f"run #{sched_id}"

    def why(self, _sched_id: int, reason: str | None) -> str:
        return reason or "failed"

    def run_details(self, _sched_id: int, _at: float) -> str:
        return " after 2.0 s"


def described(data: EventData, pid: int | None = None) -> list[tuple[str, str]]:
    event = Event(7, pid, NOW, data.kind, {})
    texts = describe(event, data, Names())
    assert all((text.event_id, text.at) == (7, NOW) for text in texts)
    return [(text.tone, text.text) for text in texts]


EXAMPLES: list[tuple[EventData, int | None, list[tuple[str, str]]]] = [
    (events.EntriesEnqueued(first_id=3), 5, [("quiet", "agent-5 #3 queued")]),
    (events.EntriesEnqueued(first_id=3), None, [("quiet", "1 entry queued")]),
    (events.EntriesEnqueued(first_id=3, count=1_200), None, [("quiet", "1,200 entries queued")]),
    (
        events.EntriesClaimed(
            worker_id="w",
            incarnation="i",
            policy="strict",
            entries=[events.ClaimedEntry(1, 5, 1), events.ClaimedEntry(2, 6, 3)],
        ),
        None,
        [("plain", "agent-5 #1 started on w"), ("plain", "agent-6 #2 started on w, attempt 3")],
    ),
    (
        events.EntriesCompleted(
            entries=[
                events.CompletedEntry(1, "completed"),
                events.CompletedEntry(2, "failed", "over_budget"),
                events.CompletedEntry(3, "cancelled", "cancelled"),
            ]
        ),
        None,
        [
            ("good", "run #1 completed after 2.0 s"),
            ("bad", "run #2 failed (over budget) after 2.0 s"),
            ("bad", "run #3 cancelled after 2.0 s"),
        ],
    ),
    (
        events.RunProgressed(sched_id=1, attempt=1, fraction=0.4, text="reading"),
        None,
        [("quiet", "run #1 40% reading")],
    ),
    (
        events.EntriesReturned(verb="retry", sched_ids=[1], runnable_at=NOW + 1.5, reason="timed_out"),
        None,
        [("warn", "run #1 failed (timed out) after 2.0 s; retry in 1.5 s")],
    ),
    (
        events.EntriesReturned(verb="reclaim", sched_ids=[1], runnable_at=NOW),
        None,
        [("warn", "run #1 was requeued: its claim expired; runs again")],
    ),
    (
        events.EntriesReturned(verb="yield", sched_ids=[1], runnable_at=NOW + 9),
        None,
        [("plain", "run #1 yielded its slot after 2.0 s; continues in 9.0 s")],
    ),
    (
        events.EntriesReturned(verb="preempt", sched_ids=[1]),
        None,
        [("plain", "run #1 was preempted by more urgent work after 2.0 s; continues later")],
    ),
    (events.EntriesExpired(sched_ids=[4]), None, [("warn", "entry 4 expired: it did not start before its deadline")]),
    (
        events.EntriesExpired(sched_ids=[4, 5]),
        None,
        [("warn", "2 entries expired: they did not start before their deadline")],
    ),
    (
        events.EntriesCancelled(sched_ids=[4, 5], reason="predecessor_failed"),
        None,
        [("warn", "2 entries cancelled: predecessor failed")],
    ),
    (events.CancelRequested(sched_ids=[4], by="ann"), None, [("plain", "run #4 was asked to stop by ann")]),
    (
        events.AgentQuarantined(failures=3, until_at=NOW + 600),
        5,
        [("bad", "agent-5 failed 3 times in a row: quarantined for 600 s")],
    ),
    (
        events.AgentQuarantined(failures=0, reason="argv is required"),
        5,
        [("bad", "agent-5 quarantined until its settings are corrected: argv is required")],
    ),
    (
        events.RowUnreadable(table="contexts", key="7", problem="not JSON"),
        None,
        [("bad", "row 7 of contexts cannot be read and is left out: not JSON")],
    ),
    (events.Paused(level="agent", key="5", by="ann"), None, [("warn", "agent-5 was paused by ann")]),
    (events.Paused(level="agent", key="5", by="quarantine"), None, []),
    (
        events.Paused(level="fleet", key="*", by="ann", reason="lunch"),
        None,
        [("warn", "the fleet was paused by ann: lunch")],
    ),
    (events.Resumed(level="project", key="lab", by="ann"), None, [("plain", "project lab was resumed by ann")]),
    (
        events.LimitAwaited(sched_id=9, name="api", amounts={"tokens": 900, "requests": 1}),
        None,
        [("warn", "run #9 waits for 900 tokens and 1 requests of limit api")],
    ),
    (
        events.LimitAcquired(sched_id=9, name="api", amounts={"tokens": 900}, waited_ms=2_500),
        None,
        [("quiet", "run #9 waited 2.5 s for limit api")],
    ),
    (
        events.LimitThrottled(name="api", until_at=NOW + 2.5),
        None,
        [("warn", "limit api is throttled: its users wait 2.5 s")],
    ),
    (events.LimitResumed(name="api"), None, [("plain", "the pause of limit api was ended")]),
    (
        events.ProjectGranted(from_project="lab", to_project="shop"),
        None,
        [("warn", "project lab may reach into project shop: granted")],
    ),
    (
        events.ProjectGrantRevoked(from_project="", to_project="shop"),
        None,
        [("plain", "what has no project no longer reaches into project shop: revoked")],
    ),
    (events.LedgerWarned(dim="tokens", used=800, granted=1_000), 5, [("warn", "agent-5 used 800 of 1,000 tokens")]),
    (
        events.LedgerBreached(level="project", owner="lab", dim="tokens", used=1_001, limit=1_000),
        5,
        [("bad", "project lab is over budget: 1,001 of 1,000 tokens")],
    ),
    (
        events.LedgerBreached(level="agent", owner="5", dim="tokens", used=2, limit=1),
        5,
        [("bad", "agent agent-5 is over budget: 2 of 1 tokens")],
    ),
    (
        events.ContextBudgetDepleted(context_id=3, remaining=0),
        None,
        [("warn", "context 3 is exhausted until its refill")],
    ),
    (events.SupervisorChanged(worker_id="w", incarnation="i", verb="started"), None, [("plain", "w started")]),
    (
        events.SupervisorChanged(worker_id="w", incarnation="i", verb="draining"),
        None,
        [("plain", "w is draining: it claims no more entries")],
    ),
    (events.TriggerFired(trigger="nightly", sched_id=9), 5, [("quiet", "trigger nightly enqueued entry 9")]),
    (events.TriggerFired(trigger="nightly", sched_id=9, created=False), 5, []),
    (
        events.PolicyChosen(policy=PolicySetting(name="wfq", by="ann"), share_by="cost", by="ann"),
        None,
        [("plain", "ann set policy wfq, shared by cost")],
    ),
    (
        events.PolicyFellBack(policy="mine", failure="raised", detail="KeyError"),
        None,
        [("bad", "policy mine raised: strict order replaces it (KeyError)")],
    ),
    (events.ClockJumped(by_s=-7.25), None, [("warn", "the wall clock jumped by -7.2 s")]),
    (events.FleetReloaded(), None, [("plain", "the fleet file was reloaded")]),
]


@pytest.mark.parametrize(("data", "pid", "sentences"), EXAMPLES, ids=lambda value: getattr(value, "kind", ""))
def test_an_event_is_described_like_this(data: EventData, pid: int | None, sentences: list[tuple[str, str]]) -> None:
    assert described(data, pid) == sentences


def test_every_described_event_has_an_example() -> None:
    assert {type(data) for data, _, _ in EXAMPLES} == set(_DESCRIBERS)


def test_frequent_events_are_not_described() -> None:
    assert described(events.LedgerCharged(amounts={"tokens": 5})) == []


def test_a_large_batch_is_described_in_part_and_the_rest_is_counted() -> None:
    entries = [events.CompletedEntry(number, "completed") for number in range(1, TEXTS_PER_EVENT_MAX + 31)]
    texts = described(events.EntriesCompleted(entries=entries))
    assert len(texts) == TEXTS_PER_EVENT_MAX + 1
    assert texts[-1] == ("good", "… and 30 more like this")
    whole = described(events.EntriesCompleted(entries=entries[:TEXTS_PER_EVENT_MAX]))
    assert [text for _, text in whole][-1] == f"run #{TEXTS_PER_EVENT_MAX} completed after 2.0 s"

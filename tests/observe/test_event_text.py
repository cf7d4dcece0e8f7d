"""Events as sentences."""

from __future__ import annotations

import pytest

from rota.model import events
from rota.model.events import Event, EventData
from rota.model.policy_setting import PolicySetting
from rota.model.prices import ModelPrice
from rota.model.retention import RetentionSetting
from rota.observe.event_text import _DESCRIBERS, OWN_CHARS_MAX, TEXTS_PER_EVENT_MAX, FailedRun, describe, describe_own

NOW = 100.0


class Names:
    """The names in these tests."""

    def agent(self, pid: int | None) -> str:
        return f"agent-{pid}"

    def run(self, sched_id: int) -> str:
        return f"run #{sched_id}"

    def agent_of(self, sched_id: int) -> int | None:
        return 100 + sched_id

    def why(self, _sched_id: int, reason: str | None) -> str:
        return reason or "failed"

    def failed_run(self, _sched_id: int) -> FailedRun:
        return FailedRun(2, 3, "exit code 3\nand more lines")

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
            ("bad", "run #2 failed (over budget) after 2.0 s: exit code 3 (attempt 2 of 3)"),
            ("bad", "run #3 cancelled after 2.0 s"),
        ],
    ),
    (
        events.RunProgressed(sched_id=1, attempt=1, fraction=0.4, text="reading"),
        None,
        [("quiet", "run #1 40% reading")],
    ),
    (
        events.RunOverBudget(sched_id=1, token=5, level="run", dim="tokens", used=120, limit=100),
        None,
        [("bad", "run #1 is over its own budget: 120 of 100 tokens")],
    ),
    (
        events.EntriesReturned(verb="retry", sched_ids=[1], runnable_at=NOW + 1.5, reason="timed_out"),
        None,
        [("warn", "run #1 failed (timed out) after 2.0 s: exit code 3 (attempt 2 of 3; next in 1.5 s)")],
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
    (events.EntriesExpired(sched_ids=[4]), None, [("warn", "run #4 expired: it did not start before its deadline")]),
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
    (events.Paused(level="agent", key="5", by="quarantine"), None, [("detail", "agent-5 was paused by quarantine")]),
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
    (events.TriggerFired(trigger="nightly", sched_id=9), 5, [("quiet", "run #9 was enqueued by its trigger")]),
    (
        events.TriggerFired(trigger="nightly", sched_id=9, created=False),
        5,
        [("detail", "a trigger fired; run #9 was queued already")],
    ),
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
    (
        events.StoreFailedOver(before="1/00000001", after="1/00000002"),
        None,
        [
            (
                "bad",
                "the database was replaced by a standby or a backup: live claims are taken back, commits may be lost",
            )
        ],
    ),
    (events.ClockJumped(by_s=-7.25), None, [("warn", "the wall clock jumped by -7.2 s")]),
    (
        events.ProcessCreated(name="coder", template="command", project_id="lab"),
        5,
        [("quiet", "agent coder was created in project lab")],
    ),
    (
        events.ProcessTransitioned(prev_state="READY", new_state="RUNNING", reason="run_started"),
        5,
        [("detail", "agent-5 went from READY to RUNNING: run started")],
    ),
    (
        events.ProcessTerminated(prev_state="READY", exit_kind="cancelled"),
        5,
        [("quiet", "agent agent-5 ended (cancelled)")],
    ),
    (
        events.ProcessRecovered(
            prev_state="RUNNING", new_state="SUSPENDED", policy="mark-suspended", reason="daemon_restart"
        ),
        5,
        [("quiet", "agent-5 was recovered as SUSPENDED: daemon restart")],
    ),
    (
        events.ProcessUpdated(changes={"weight": 2_000, "max_concurrent": 1}),
        5,
        [("quiet", "the weight, max concurrent of agent agent-5 changed")],
    ),
    (
        events.EntriesReleased(hold="backoff", sched_ids=[4]),
        None,
        [("detail", "run #4 is ready: the back-off is over")],
    ),
    (
        events.EntriesHeldForWorker(hold="time", sched_ids=[4, 5]),
        None,
        [("detail", "2 entries are reserved for the affinity worker")],
    ),
    (
        events.EntriesChanged(sched_ids=[4], changes={"priority": 9, "runnable_at": NOW + 240, "deadline": None}),
        5,
        [("plain", "run #4 changed: priority = 9, runnable at in 4 min, deadline = None")],
    ),
    (
        events.ClaimsExtended(by_s=7.0, count=2),
        None,
        [("quiet", "2 claims were extended by +7.0 s, because the wall clock jumped")],
    ),
    (events.LedgerCreated(grants={"tokens": 9_000}, warn_at=0.8), 5, [("quiet", "agent-5 was granted 9,000 tokens")]),
    (events.LedgerCharged(amounts={"tokens": 500}, sched_id=9), 5, [("detail", "run #9 used 500 tokens")]),
    (events.LedgerCharged(amounts={"tokens": 500}), 5, [("detail", "agent-5 used 500 tokens")]),
    (events.LedgerRefunded(amounts={"tokens": 500}), 5, [("quiet", "agent-5 was refunded 500 tokens")]),
    (
        events.LedgerGranted(dim="tokens", granted=2_000, previous=1_000),
        5,
        [("quiet", "the grant of agent-5 changed from 1,000 to 2,000 tokens")],
    ),
    (
        events.BudgetSet(level="project", owner="lab", dim="tokens", limit=5_000, window_s=3_600),
        None,
        [("quiet", "the budget of project lab is 5,000 tokens per 3600 s")],
    ),
    (
        events.BudgetSet(level="global", owner="*", dim="tokens", limit=None),
        None,
        [("quiet", "the tokens budget of the fleet was removed")],
    ),
    (
        events.BudgetAlert(level="project", owner="lab", dim="tokens", share=0.8, used=800, limit=1_000),
        None,
        [("warn", "project lab has used 80% of its tokens budget: 800 of 1,000")],
    ),
    (
        events.BudgetAlert(level="agent", owner="5", dim="cost_micro", share=1.0, used=2_500_000, limit=2_000_000),
        5,
        [("warn", "agent agent-5 has used 100% of its cost budget: $2.50 of $2.00")],
    ),
    (
        events.PricesSet(prices={"gpt-x": None, "gpt-a": ModelPrice(input_micro=1, output_micro=2)}),
        None,
        [("quiet", "the prices of gpt-a, gpt-x changed")],
    ),
    (
        events.ShareWindowSet(window_s=60, previous_s=120),
        None,
        [("quiet", "fair_share looks back 60 s instead of 120 s")],
    ),
    (
        events.AffinityWaitSet(wait_s=5, previous_s=1),
        None,
        [("quiet", "entries are reserved for their affinity worker for 5 s instead of 1 s")],
    ),
    (
        events.BudgetLent(sched_id=9, parent_id=4, amounts={"tokens": 10}),
        None,
        [("detail", "run #4 lent 10 tokens to entry 9")],
    ),
    (
        events.BudgetReturned(sched_id=9, parent_id=4, amounts={"tokens": 3}),
        None,
        [("detail", "entry 9 gave 3 tokens back to run #4")],
    ),
    (
        events.FlowReweighted(level="agent", key="5", weight=2_000, previous=1_000),
        5,
        [("quiet", "the weight of agent-5 changed from 1 to 2")],
    ),
    (
        events.ContextCreated(
            context_id=3, budget=600, period=60_000, bound_to="name", bound_id="api", unit="requests"
        ),
        None,
        [("quiet", "limit api was created: 600 requests per 60 s")],
    ),
    (events.ContextAdjusted(context_id=3, changes={"budget": 9}), None, [("quiet", "the budget of context 3 changed")]),
    (
        events.ContextReplenished(context_id=3, amount=5, remaining=9),
        None,
        [("detail", "context 3 was refilled by 5: 9 remain")],
    ),
    (events.ContextRevoked(context_id=3), None, [("quiet", "context 3 was revoked")]),
    (
        events.LimitAcquired(sched_id=9, name="api", amounts={"tokens": 900}),
        None,
        [("detail", "run #9 got 900 tokens of limit api")],
    ),
    (
        events.LimitSettled(sched_id=9, name="api", used={"tokens": 700}),
        None,
        [("detail", "run #9 used 700 tokens of limit api")],
    ),
    (events.ProjectCreated(project_id="lab", weight=3_000), None, [("quiet", "project lab was created with weight 3")]),
    (
        events.ProjectUpdated(project_id="lab", changes={"weight": 1_000}),
        None,
        [("quiet", "the weight of project lab changed")],
    ),
    (
        events.ProjectTransitioned(project_id="lab", prev_status="ACTIVE", new_status="PAUSED", by="ann"),
        None,
        [("quiet", "project lab went from ACTIVE to PAUSED by ann")],
    ),
    (
        events.WorkspaceAdded(workspace_id="w1", project_id="lab", path="/src"),
        None,
        [("quiet", "project lab got workspace w1: /src")],
    ),
    (events.WorkspaceRemoved(workspace_id="w1"), None, [("quiet", "workspace w1 was removed")]),
    (
        events.SupervisorChanged(worker_id="w", incarnation="i", verb="drained"),
        None,
        [("quiet", "w has drained: all of its runs have ended")],
    ),
    (
        events.WorkerLost(worker_id="w", host="box", entries=1),
        None,
        [("bad", "worker w on box is lost with 1 run, which is tried again if attempts are left")],
    ),
    (
        events.WorkerLost(worker_id="w", host="box", entries=0),
        None,
        [("bad", "worker w on box is lost: it ran nothing")],
    ),
    (
        events.HookDropped(hook="pager", count=3),
        None,
        [("bad", "hook pager dropped 3 deliveries: too many were waiting")],
    ),
    (
        events.StoreMigrated(from_version=5, to_version=107),
        None,
        [("quiet", "the store was migrated from version 5 to 107")],
    ),
    (events.JournalCheckpointed(through_id=70), None, [("quiet", "the journal has a checkpoint through event 70")]),
    (events.RowsPruned(table="events", count=1_000), None, [("quiet", "1,000 old rows of events were deleted")]),
    (
        events.RetentionSet(setting=RetentionSetting(enabled=False), previous=RetentionSetting()),
        None,
        [("plain", "the store's retention was set: everything is kept: automatic retention is off")],
    ),
    (
        events.ProfileMapped(subject="lane a", hint="high", granted={"weight": 8}, epoch=1),
        None,
        [("quiet", "the hint high of lane a was granted weight 8")],
    ),
    (events.PolicyReloaded(epoch=2), None, [("quiet", "the policy's settings were reloaded")]),
    (
        events.CpuContextChanged(
            context_id=1, owner="a", verb="refuse", budget_ns=5_000_000, period_ns=10_000_000, reason="no_capacity"
        ),
        None,
        [("warn", "CPU context 1 of a: refused 5 ms of CPU time per 10 ms: no capacity")],
    ),
    (
        events.LeaseChanged(lease_id=1, owner="a", verb="grant", state="active"),
        None,
        [("plain", "lease 1 of a: grant, now active")],
    ),
    (
        events.IslandChanged(island_id=1, verb="admit", state="admitted"),
        None,
        [("plain", "island 1: admit, now admitted")],
    ),
    (
        events.CoresGranted(
            sched_id=4,
            token=9,
            host="boot",
            host_name="box",
            owner="build",
            leased=(1,),
            reserved_ppm={"1": 200_000},
            quota_us=20_000,
            quota_period_us=100_000,
        ),
        None,
        [
            (
                "plain",
                "build #4 on box: core 1 for itself; 20 % of core 1 reserved; at most 20 ms of CPU time per 100 ms",
            )
        ],
    ),
    (
        events.CoresGranted(sched_id=5, token=8, host="boot", host_name="box", owner="test"),  # of a class, for example
        None,
        [("plain", "test #5 on box: its cpu settings are granted")],
    ),
    (
        events.CoresRefused(sched_id=9, host="boot", host_name="box", owner="test", reason="0 free"),
        None,
        [("warn", "test #9 was refused its cores: 0 free")],
    ),
    (
        events.CoresReturned(sched_ids=[4], reason="claim_ended"),
        None,
        [("quiet", "the cores of entry 4 are free again (claim ended)")],
    ),
    (
        events.DeadlineMissed(subject="entry 9", lateness=1_200),
        None,
        [("warn", "entry 9 missed its deadline by 1,200")],
    ),
    (
        events.RunStarted(sched_id=9, attempt=1, token=7, slot="box-1", runner="command", os_pid=44),
        5,
        [("detail", "run #9 runs in slot box-1 (command) as process 44")],
    ),
    (
        events.RunSettingsChanged(sched_id=9, attempt=1, token=7, enforced=("cpu weight = 2 is enforced",)),
        5,
        [("detail", "run #9 has other cpu settings: cpu weight = 2 is enforced")],
    ),
    (
        events.RunEnded(sched_id=9, attempt=1, exit_kind="completed", wall_ms=12_345, usage={"tokens": 4}),
        5,
        [("detail", "run #9 took 12 s, 4 tokens")],
    ),
    (
        events.RunCheckpointed(sched_id=9, token=7, size_bytes=2_000, digest="d"),
        5,
        [("detail", "run #9 saved a checkpoint of 2,000 bytes")],
    ),
    (
        events.WorkspaceKept(workspace_id="w1", project_id="lab", reason="it failed"),
        None,
        [("quiet", "workspace w1 is kept: it failed")],
    ),
    (events.DaemonChanged(verb="started", rota_version="1.0"), None, [("plain", "the daemon started (rota 1.0)")]),
    (
        events.AccessDenied(peer="10.0.0.9", method="kernel.sched.retry", reason="scope", count=3),
        None,
        [("warn", "access to kernel.sched.retry was denied for 10.0.0.9: scope, 3 times")],
    ),
    (events.OperatorActed(who="ann", method="kernel.sched.retry"), None, [("quiet", "ann called kernel.sched.retry")]),
    (
        events.TokenChanged(token_id="t1", verb="created", scope=["read"]),
        None,
        [("quiet", "access token t1 was created with scope read")],
    ),
    (
        events.GraphRunTaken(run_id="r1", graph="g", next_epoch_id=3),
        None,
        [("quiet", "run r1 of graph g continues at epoch 3")],
    ),
    (
        events.GraphRunCommitted(run_id="r1", next_epoch_id=3),
        None,
        [("detail", "graph run r1 committed what is before epoch 3")],
    ),
    (events.GraphRunForgotten(run_id="r1"), None, [("quiet", "graph run r1 was deleted")]),
    (
        events.GraphBudgetSet(run_id="r1", node="writer", dim="tokens", limit=20_000),
        None,
        [("quiet", "the budget of graph run r1/writer is 20,000 tokens")],
    ),
    (
        events.GraphBudgetSet(run_id="r1", dim="cost_micro", limit=2_500_000),
        None,
        [("quiet", "the budget of graph run r1 is $2.50 cost")],
    ),
    (
        events.LedgerBreached(level="graph", owner="r1/writer", dim="tokens", used=21_000, limit=20_000),
        None,
        [("bad", "graph run r1/writer is over budget: 21,000 of 20,000 tokens")],
    ),
    (
        events.GraphRunStarted(run_id="r1", graph="g", sched_id=7),
        None,
        [("plain", "run r1 of graph g was started: entry 7")],
    ),
    (
        events.GraphRunStarted(run_id="r1", graph="g", sched_id=9, resumed=True),
        None,
        [("plain", "run r1 of graph g was resumed: entry 9")],
    ),
    (events.GraphRunWaits(run_id="r1", waits="2 entries"), None, [("detail", "graph run r1 waits for 2 entries")]),
    (
        events.GraphRunEnded(run_id="r1", graph="g", status="failed", error="n0: no such page"),
        None,
        [("bad", "run r1 of graph g failed: n0: no such page")],
    ),
    (
        events.GraphRunEnded(run_id="r1", graph="g", status="cancelled"),
        None,
        [("warn", "run r1 of graph g was cancelled")],
    ),
    (
        events.GraphRunEnded(run_id="r1", graph="g", status="succeeded"),
        None,
        [("good", "run r1 of graph g succeeded")],
    ),
    (
        events.FleetReloadRequested(by="ann", fleet="night"),
        None,
        [("quiet", "ann asked for a reload of fleet night")],
    ),
    (events.FleetReloaded(), None, [("plain", "the fleet file was reloaded")]),
]


@pytest.mark.parametrize(("data", "pid", "sentences"), EXAMPLES, ids=lambda value: getattr(value, "kind", ""))
def test_an_event_is_described_like_this(data: EventData, pid: int | None, sentences: list[tuple[str, str]]) -> None:
    assert described(data, pid) == sentences


def test_every_kind_of_event_has_a_sentence_and_an_example() -> None:
    every = set(events.EVENT_TYPES.values())
    assert set(_DESCRIBERS) == every
    assert {type(data) for data, _, sentences in EXAMPLES if sentences} == every


def test_a_sentence_says_which_entry_and_agent_it_is_about() -> None:
    ended = events.EntriesCompleted(entries=[events.CompletedEntry(1, "completed"), events.CompletedEntry(2, "failed")])
    texts = describe(Event(7, None, NOW, ended.kind, {}), ended, Names())
    assert [(text.sched_id, text.pid) for text in texts] == [(1, 101), (2, 102)]
    paused = events.Paused(level="agent", key="5", by="ann")
    (text,) = describe(Event(7, 5, NOW, paused.kind, {}), paused, Names())
    assert (text.sched_id, text.pid) == (None, 5)


def test_a_policy_that_fails_at_one_worker_is_said_to_fail_there() -> None:
    """The package of a policy may be missing on one of many hosts, and the others go on with it."""
    failed = events.PolicyFellBack(policy="mine", failure="raised", detail="no policy is called 'mine'")
    event = Event(7, None, NOW, failed.kind, {}, author="worker:box-b")
    said = "policy mine raised at worker:box-b: strict order replaces it there (no policy is called 'mine')"
    assert [text.text for text in describe(event, failed, Names())] == [said]


def test_an_event_of_a_users_own_is_shown_with_its_payload() -> None:
    (text,) = describe_own(Event(7, 5, NOW, "review.done", {"score": 9}), Names())
    assert (text.tone, text.text) == ("quiet", 'review.done of agent-5: {"score":9}')
    (text,) = describe_own(Event(7, None, NOW, "review.done", {"text": "x" * 2 * OWN_CHARS_MAX}), Names())
    assert len(text.text) == len("review.done: ") + OWN_CHARS_MAX + 1
    (text,) = describe_own(Event(7, None, NOW, "review.done", {}), Names())
    assert text.text == "review.done"


def test_a_large_batch_is_described_in_part_and_the_rest_is_counted() -> None:
    entries = [events.CompletedEntry(number, "completed") for number in range(1, TEXTS_PER_EVENT_MAX + 31)]
    texts = described(events.EntriesCompleted(entries=entries))
    assert len(texts) == TEXTS_PER_EVENT_MAX + 1
    assert texts[-1] == ("good", "… and 30 more like this")
    whole = described(events.EntriesCompleted(entries=entries[:TEXTS_PER_EVENT_MAX]))
    assert [text for _, text in whole][-1] == f"run #{TEXTS_PER_EVENT_MAX} completed after 2.0 s"

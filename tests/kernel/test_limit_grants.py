"""Asking a limit from inside a run: acquire, wait, settle, and what ends with the claim."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rota.errors import AskExceedsLimit, ContextInvalid, ContextUnknown, SchedInvalidPayload, StaleClaim
from rota.kernel import KernelState
from rota.kernel.limit_grants import LimitGrant
from rota.model.events import LimitAcquired, LimitAwaited, LimitSettled
from rota.model.work import ReadyEntry
from tests.kernel.world import World

REQUESTS, TOKENS = 60, 100_000


class Office(World):
    """A world with one provider's limit."""

    def __init__(self) -> None:
        super().__init__()
        create = self.contexts.create
        self.tokens = create(bound_to="name", bound_id="api", budget=TOKENS, period_s=60).context_id
        requests = create(bound_to="name", bound_id="api", budget=REQUESTS, period_s=60, unit="requests")
        self.requests = requests.context_id

    def run(self, name: str = "agent", *, project: str | None = None, weight: int = 1_000, **spec: Any) -> ReadyEntry:
        """Start a run of a new agent."""
        sched_id = self.put(self.agent(name, project_id=project, weight=weight), **spec)
        (entry,) = [each for each in self.take(10) if each.sched_id == sched_id]
        return entry

    def ask(self, run: ReadyEntry, key: str = "1", wait_s: float = 0.0, **amounts: int) -> LimitGrant:
        assert run.token is not None
        grants = self.kernel.supervision
        return grants.acquire(run.sched_id, run.token, "api", amounts, key=key, wait_s=wait_s)

    def settle(self, run: ReadyEntry, key: str = "1", **used: int) -> Any:
        assert run.token is not None
        return self.kernel.supervision.settle(run.sched_id, run.token, key, used).returned

    def left(self) -> tuple[int, int]:
        """Requests and tokens that are available."""
        return self.contexts.get(self.requests).remaining, self.contexts.get(self.tokens).remaining

    def check_replay(self) -> None:
        """The journal gives the same state as the tables."""
        now = self.now
        tables = self.store.read(KernelState.from_tables).at(now)
        assert self.store.read(KernelState.from_journal).at(now) == tables


@pytest.fixture
def office() -> Office:
    return Office()


def test_what_is_acquired_is_charged_at_once_and_returns_a_period_later(office: Office) -> None:
    grant = office.ask(office.run(), tokens=900, requests=1)
    assert grant == LimitGrant(key="1", name="api", amounts={"tokens": 900, "requests": 1}, granted_at=office.now)
    assert office.left() == (59, 99_100)
    office.clock.advance(59.999)
    assert office.left() == (59, 99_100)
    office.clock.advance(0.001)
    assert office.left() == (60, 100_000)
    office.check_replay()


def test_a_repeated_call_changes_nothing(office: Office) -> None:
    run = office.run()
    assert office.ask(run, tokens=900) == office.ask(run, tokens=900)
    assert office.left() == (60, 99_100)


def test_settling_records_the_usage_and_returns_the_rest(office: Office) -> None:
    run = office.run()
    office.ledger.create(run.pid, {"tokens": 5_000})
    office.ask(run, tokens=900, requests=1)
    assert office.settle(run, tokens=750) == {"tokens": 150}
    assert office.left() == (59, 99_250)
    assert office.ledger.get(run.pid)[0].used == 750
    assert office.settle(run, tokens=750) == {}  # the second time there is nothing to settle
    office.check_replay()


def test_more_than_was_asked_is_charged_in_addition(office: Office) -> None:
    run = office.run()
    office.ask(run, tokens=900)
    assert office.settle(run, tokens=1_000) == {}
    assert office.left() == (60, 99_000)
    office.check_replay()


def test_what_is_acquired_and_then_charged_counts_once(office: Office) -> None:
    run = office.run(draws_on=("api",))
    office.ledger.create(run.pid, {"tokens": 5_000})
    office.ask(run, tokens=900, requests=1)
    office.queue.charge(run.sched_id, {"tokens": 500}, token=run.token)
    assert office.left() == (59, 99_100)
    office.queue.charge(run.sched_id, {"tokens": 600}, token=run.token)  # 200 more than was acquired
    assert office.left() == (59, 98_900)
    assert office.settle(run, tokens=900) == {}
    assert (office.left(), office.ledger.get(run.pid)[0].used) == ((59, 98_900), 1_100)
    office.check_replay()


def test_the_request_of_the_start_is_not_counted_beside_the_first_ask(office: Office) -> None:
    run = office.run(draws_on=("api",))
    assert office.left()[0] == 59
    office.ask(run, requests=1)
    assert office.left()[0] == 59
    office.ask(run, "2", requests=1)
    assert office.left()[0] == 58
    office.check_replay()


def test_a_start_that_has_left_the_period_returns_nothing(office: Office) -> None:
    run = office.run(draws_on=("api",))
    office.clock.advance(60)
    other = office.run("other")
    office.ask(other, requests=1)
    office.ask(run, requests=1)
    assert office.left()[0] == 58


def test_what_a_run_reserved_through_draws_on_is_its_own(office: Office) -> None:
    run = office.run(draws_on=("api",), ceiling={"tokens": 60_000})
    other = office.run("other")
    assert office.ask(other, tokens=50_000).granted_at is None
    assert office.ask(run, tokens=60_000).granted_at is not None
    assert office.ask(other, tokens=50_000).granted_at is None  # 40,000 are left
    office.clock.advance(60)
    assert office.ask(other, tokens=50_000).granted_at is not None


def test_two_runs_that_reserved_half_each_and_ask_for_more_do_not_wait_for_each_other(office: Office) -> None:
    runs = [office.run(name, draws_on=("api",), ceiling={"tokens": 50_000}) for name in ("a", "b")]
    assert office.ask(runs[0], tokens=60_000).granted_at is None
    assert office.ask(runs[1], tokens=60_000).granted_at is None
    assert office.ask(runs[0], tokens=60_000).granted_at is not None
    office.clock.advance(60)
    assert office.ask(runs[1], tokens=60_000).granted_at is not None


def test_entries_that_have_not_begun_leave_a_limit_to_the_runs_that_wait_for_it(office: Office) -> None:
    first, second = office.run("first"), office.run("second")
    office.ask(first, tokens=60_000)
    assert office.ask(second, tokens=60_000).granted_at is None
    office.put(office.agent("third"), draws_on=("api",), ceiling={"tokens": 100})
    assert office.take_ids() == []
    office.clock.advance(60)
    office.ask(second, tokens=60_000)
    assert len(office.take_ids()) == 1


@pytest.mark.parametrize("amounts", [{"tokens": 100_001}, {"requests": 61, "tokens": 5}])
def test_an_ask_above_the_limit_is_refused(office: Office, amounts: dict[str, int]) -> None:
    run = office.run()
    assert run.token is not None
    with pytest.raises(AskExceedsLimit, match="per period") as caught:
        office.kernel.supervision.acquire(run.sched_id, run.token, "api", amounts, key="1")
    assert (caught.value.limit_name, caught.value.asked) == ("api", max(amounts.values()))
    assert office.left() == (60, 100_000)


def test_a_limit_that_was_lowered_refuses_the_run_that_waits_and_serves_the_others(office: Office) -> None:
    runs = [office.run(name) for name in ("a", "b", "c")]
    office.ask(runs[0], tokens=90_000)
    for run, tokens in zip(runs[1:], (80_000, 20_000), strict=True):
        assert office.ask(run, tokens=tokens).granted_at is None
    office.contexts.adjust(office.tokens, budget=50_000, period_s=60)
    office.clock.advance(60)
    with pytest.raises(AskExceedsLimit):
        office.ask(runs[1], tokens=80_000)
    assert office.ask(runs[2], tokens=20_000).granted_at is not None


def test_what_cannot_be_asked_is_refused(office: Office) -> None:
    run = office.run()
    assert run.token is not None
    acquire = office.kernel.supervision.acquire
    with pytest.raises(ContextUnknown, match="no limit named 'nowhere'"):
        acquire(run.sched_id, run.token, "nowhere", {"tokens": 5}, key="1")
    for amounts in ({}, {"tokens": 0}, {"dollars": 5}, {"tokens": True}):
        with pytest.raises(ContextInvalid):
            acquire(run.sched_id, run.token, "api", amounts, key="1")
    office.contexts.create(bound_to="name", bound_id="search", budget=5, period_s=1, unit="requests")
    with pytest.raises(ContextInvalid, match="no budget"):
        acquire(run.sched_id, run.token, "search", {"tokens": 5}, key="1")
    with pytest.raises(StaleClaim):
        acquire(run.sched_id, run.token + 1, "api", {"tokens": 5}, key="1")


# --- what ends with the claim --------------------------------------------------------------------


@pytest.mark.parametrize("exit_kind", ["cancelled", "failed", "crashed"])
def test_a_run_that_did_not_complete_returns_what_it_held(office: Office, exit_kind: str) -> None:
    run = office.run()
    office.ask(run, tokens=900, requests=1)
    office.ask(run, "2", tokens=100)
    office.settle(run, "2")
    office.queue.complete(run.sched_id, exit_kind, token=run.token)
    assert office.left() == (60, 99_900)
    office.check_replay()


def test_a_run_that_completed_has_used_what_it_held(office: Office) -> None:
    run = office.run()
    office.ask(run, tokens=900, requests=1)
    office.queue.complete(run.sched_id, "completed", token=run.token)
    assert office.left() == (59, 99_100)


def test_a_claim_that_expires_returns_what_it_held_and_its_place(office: Office) -> None:
    first, second = office.run("first"), office.run("second")
    office.ask(first, tokens=90_000)
    assert office.ask(second, tokens=90_000).granted_at is None
    office.queue.gc_dispatched(0.0, now=office.now + 1)
    assert office.left() == (60, 100_000)
    with pytest.raises(StaleClaim):
        office.ask(second, tokens=90_000)
    office.check_replay()


def test_what_has_returned_by_itself_does_not_return_a_second_time(office: Office) -> None:
    run, other = office.run(), office.run("other")
    office.ask(run, tokens=90_000)
    office.clock.advance(60)
    office.ask(other, tokens=90_000)
    office.queue.complete(run.sched_id, "failed", token=run.token)
    assert office.left()[1] == 10_000


# --- waiting -------------------------------------------------------------------------------------


def test_a_run_waits_until_the_limit_has_what_it_asks_for(office: Office) -> None:
    first, second = office.run("first"), office.run("second")
    office.ask(first, tokens=90_000)
    waiter = office.waiter_of(lambda: office.ask(second, wait_s=1_000, tokens=20_000))
    office.clock.advance(60)
    assert waiter.outcome().granted_at == office.now
    kinds = (LimitAwaited, LimitAcquired, LimitSettled)
    assert [type(fact) for fact in office.facts() if isinstance(fact, kinds)] == [
        LimitAcquired,
        LimitAwaited,
        LimitAcquired,
    ]


def test_a_refund_wakes_the_run_that_waits(office: Office) -> None:
    first, second = office.run("first"), office.run("second")
    office.ask(first, tokens=90_000)
    waiter = office.waiter_of(lambda: office.ask(second, wait_s=1_000, tokens=20_000))
    office.settle(first, tokens=10)
    assert waiter.outcome().granted_at == office.now


def test_a_wait_that_ends_keeps_the_place(office: Office) -> None:
    first, second = office.run("first"), office.run("second")
    office.ask(first, tokens=90_000)
    waiter = office.waiter_of(lambda: office.ask(second, wait_s=5, tokens=20_000))
    office.clock.advance(5)
    grant = waiter.outcome()
    assert (grant.granted_at, grant.retry_at) == (None, office.now + 55)
    office.clock.advance(55)
    office.ask(first, "2", tokens=100)  # any ask serves the limit, the first that waits before it
    assert office.ask(second, tokens=20_000).granted_at == office.now


def test_a_provider_that_asks_for_a_pause_makes_all_wait(office: Office) -> None:
    run = office.run()
    office.contexts.throttle("api", 30)
    assert office.ask(run, tokens=5) == LimitGrant(
        key="1", name="api", amounts={"tokens": 5}, granted_at=None, retry_at=office.now + 30
    )
    office.clock.advance(30)
    assert office.ask(run, tokens=5).granted_at == office.now


def test_small_asks_pass_a_large_one_only_as_long_as_they_have_had_less(office: Office) -> None:
    first, large, small = (office.run(name) for name in ("first", "large", "small"))
    office.ask(first, tokens=50_000)
    assert office.ask(large, tokens=60_000).granted_at is None
    passed = 0
    while office.ask(small, str(passed), tokens=5_000).granted_at is not None:
        office.settle(small, str(passed), tokens=0)  # so that the limit never lacks them
        office.clock.advance(3)
        passed += 1
    assert passed == 11  # the twelfth would be as much as the large one asks for
    office.settle(large)  # it gives up
    assert office.ask(small, str(passed), tokens=5_000).granted_at is not None


# --- any history -----------------------------------------------------------------------------------


class History:
    """Runs that ask, settle and end at random, and what they used, by ask: when, requests, tokens."""

    def __init__(self, office: Office, seed: int) -> None:
        self.office = office
        self.rng = random.Random(seed)
        self.runs: list[ReadyEntry] = []
        self.waiting: dict[tuple[int, str], tuple[ReadyEntry, dict[str, int]]] = {}
        self.held: dict[tuple[int, str], tuple[ReadyEntry, dict[str, int]]] = {}
        self.used: dict[tuple[int, str], tuple[float, dict[str, int]]] = {}
        self.count = 0

    def start(self) -> None:
        draws_on = ("api",) if self.rng.random() < 0.3 else ()
        pid = self.office.agent(f"agent{self.count}", weight=self.rng.choice((1_000, 3_000)))
        self.office.put(pid, draws_on=draws_on, ceiling={"tokens": 5_000} if draws_on else {}, max_attempts=1)
        self.runs += self.office.take(10)
        self.count += 1

    def ask(self) -> None:
        if not self.runs:
            return
        run, self.count = self.rng.choice(self.runs), self.count + 1
        amounts = {"tokens": self.rng.choice((10, 3_000, 40_000)), "requests": self.rng.choice((1, 5, 20))}
        self.waiting[run.sched_id, str(self.count)] = run, amounts
        self.poll()

    def poll(self) -> None:
        for (sched_id, key), (run, amounts) in list(self.waiting.items()):
            grant = self.office.ask(run, key, **amounts)
            if grant.granted_at is not None:
                self.held[sched_id, key] = self.waiting.pop((sched_id, key))
                self.used[sched_id, key] = grant.granted_at, amounts

    def settle(self) -> None:
        if self.held:
            which = self.rng.choice(list(self.held))
            run, amounts = self.held.pop(which)
            used = {unit: self.rng.randint(0, amount) for unit, amount in amounts.items()}
            self.office.settle(run, which[1], **used)
            self._returned(which, used)

    def _returned(self, which: tuple[int, str], used: dict[str, int]) -> None:
        granted_at, _ = self.used[which]
        if self.office.now < granted_at + 60:  # later it has returned by itself
            self.used[which] = granted_at, used

    def end(self) -> None:
        if not self.runs:
            return
        run = self.runs.pop(self.rng.randrange(len(self.runs)))
        exit_kind = self.rng.choice(("completed", "failed", "cancelled"))
        self.office.queue.complete(run.sched_id, exit_kind, token=run.token)
        for which in [which for which in self.held if which[0] == run.sched_id]:
            del self.held[which]
            if exit_kind != "completed":
                self._returned(which, {})
        for which in [which for which in self.waiting if which[0] == run.sched_id]:
            del self.waiting[which]

    def wait(self) -> None:
        self.office.clock.advance(self.rng.choice((0.001, 1.0, 13.0, 60.0)))
        self.poll()

    def check(self) -> None:
        for start, _ in self.used.values():
            inside = [amounts for at, amounts in self.used.values() if start <= at < start + 60]
            for unit, budget in (("requests", REQUESTS), ("tokens", TOKENS)):
                assert sum(amounts.get(unit, 0) for amounts in inside) <= budget


@pytest.mark.long_on_postgres
@pytest.mark.parametrize("seed", range(4))
def test_whatever_runs_do_no_window_has_more_than_the_limit(office: Office, seed: int) -> None:
    history = History(office, seed)
    steps = (history.start, history.ask, history.ask, history.ask, history.settle, history.end, history.wait)
    for _ in range(120):
        history.rng.choice(steps)()
    history.check()
    office.check_replay()
    for _ in range(200):  # and nobody waits for ever
        if not history.waiting:
            break
        history.wait()
    assert not history.waiting


# --- shares --------------------------------------------------------------------------------------


@pytest.mark.long_on_postgres
def test_projects_are_served_by_weight_and_no_window_has_more_than_the_limit(office: Office) -> None:
    """Two projects, 3 to 1, with two and three agents that ask again half a second after each answer."""
    office.projects.create("lab", weight=3_000)
    office.projects.create("press", weight=1_000)
    runs = [office.run(f"agent{at}", project="lab" if at < 2 else "press") for at in range(5)]
    next_at = dict.fromkeys(range(5), office.now)
    asked = dict.fromkeys(range(5), 0)
    got: list[tuple[float, int, int]] = []  # when, which project, tokens
    begins_at = office.now
    while office.now < begins_at + 240:
        for at, run in enumerate(runs):
            if next_at[at] <= office.now:
                tokens = 1_000 + 300 * at
                grant = office.ask(run, str(asked[at]), tokens=tokens, requests=1)
                if grant.granted_at is not None:
                    got.append((grant.granted_at, at, tokens))
                    asked[at] += 1
                    next_at[at] = grant.granted_at + 0.5
        office.clock.advance(0.5)
    for start, _, _ in got:
        inside = [tokens for at, _, tokens in got if start <= at < start + 60]
        assert len(inside) <= REQUESTS
        assert sum(inside) <= TOKENS
    after_burst = [at for when, at, _ in got if when >= begins_at + 60]
    lab = sum(at < 2 for at in after_burst)
    assert len(after_burst) >= 0.9 * 3 * REQUESTS
    assert 0.7 <= lab / len(after_burst) <= 0.8
    office.check_replay()


# --- limits of single projects -------------------------------------------------------------------


def test_limits_of_one_name_in_two_projects_are_two_limits(office: Office) -> None:
    for project in ("red", "blue"):
        office.projects.create(project)
        office.contexts.create(bound_to="name", bound_id="own", budget=100, period_s=60, project_id=project)
    red, blue, none = office.run("r", project="red"), office.run("b", project="blue"), office.run("n")
    acquire = office.kernel.supervision.acquire

    def ask(run: ReadyEntry, key: str, tokens: int) -> bool:
        return acquire(run.sched_id, run.token or 0, "own", {"tokens": tokens}, key=key).granted_at is not None

    assert ask(red, "1", 100)
    assert not ask(red, "2", 50)  # it waits at red's limit
    assert ask(blue, "1", 60)  # which does not hold up blue's
    assert not ask(blue, "2", 60)
    left = {each.project_id: each.remaining for each in office.contexts.list() if each.bound_id == "own"}
    assert left == {"red": 0, "blue": 40}
    with pytest.raises(ContextUnknown):
        ask(none, "1", 1)
    office.clock.advance(60)
    assert ask(blue, "2", 60)
    assert ask(red, "2", 50)
    office.check_replay()


def test_a_run_may_pause_a_limit_that_it_has_acquired(office: Office) -> None:
    run, other = office.run("run"), office.run("other")
    office.ask(run, tokens=10)
    throttle = office.kernel.supervision.throttle
    assert throttle(run.sched_id, run.token or 0, 30.0, "api") == {"api": office.now + 30.0}
    assert office.ask(other, tokens=10).granted_at is None
    stranger = office.run("stranger")
    with pytest.raises(SchedInvalidPayload, match="draws on"):
        throttle(stranger.sched_id, stranger.token or 0, 30.0, "api")

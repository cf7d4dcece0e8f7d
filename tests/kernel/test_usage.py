"""Usage reports: waits, models, days, projects as walls, prices, and steps of the fold."""

from __future__ import annotations

from typing import Any

import pytest

from rota.errors import InvalidPayload, LimitExceeded
from rota.kernel import usage, usage_report
from rota.kernel.project_reads import ProjectReads
from rota.model.prices import PRICES_MAX, ModelPrice
from rota.model.usage import OTHER_MODELS, UsageLine, add_sizes, percentile_ms
from rota.store import Statement
from tests.kernel.world import World

DAY_S = 86_400


def run(world: World, *, tokens: int = 0, model: str | None = None, exit_kind: str = "completed", **how: Any) -> int:
    """Claim the one entry that is ready, charge it and end it."""
    entry = world.take_one(**how)
    if tokens:
        world.queue.charge(entry.sched_id, {"tokens": tokens}, token=entry.token, model=model)
    world.queue.complete(entry.sched_id, exit_kind, token=entry.token)
    return entry.sched_id


def lines(world: World, *by: Any, **wanted: Any) -> list[UsageLine]:
    return world.kernel.usage.report(by, **wanted).lines


# --- waits -------------------------------------------------------------------------------------------


def test_a_wait_is_from_ready_to_claimed(world: World, pid: int) -> None:
    world.put(pid, runnable_at=world.now + 100)
    world.clock.advance(107)
    run(world)
    world.put(pid)
    world.clock.advance(1)
    run(world)
    total = world.kernel.usage.report().total
    assert (total.waits, total.wait_mean_ms, total.wait_max_ms) == (2, 4_000, 7_000)
    assert (total.wait_p50_ms, total.wait_p95_ms) == (1_023, 7_000)  # exact to a factor of two


def test_the_time_before_its_predecessors_ended_is_no_wait(world: World, pid: int) -> None:
    first = world.put(pid)
    world.put(pid, after=(first,))
    world.clock.advance(50)
    run(world)
    world.clock.advance(3)
    world.kernel.usage.fold()  # between the two, what is known of the second entry is kept
    run(world)
    assert world.kernel.usage.report().total.wait_max_ms == 50_000
    (line,) = lines(world, "agent")
    assert (line.waits, line.wait_mean_ms) == (2, 26_500)


def test_a_retry_waits_from_the_end_of_its_back_off(world: World, pid: int) -> None:
    world.put(pid, retry_on=("failed",), max_attempts=2)
    run(world, exit_kind="failed")
    world.clock.advance(11)  # the back-off was one second
    run(world)
    total = world.kernel.usage.report().total
    assert (total.runs, total.failures, total.waits, total.wait_max_ms) == (2, 1, 2, 10_000)


def test_percentiles_of_counts_by_size() -> None:
    sizes = add_sizes([1], [0, 0, 0, 0, 18, 1])  # one of 0 ms, 18 below 16 ms, one below 32
    assert (percentile_ms(sizes, 20, 1), percentile_ms(sizes, 20, 50), percentile_ms(sizes, 20, 100)) == (0, 15, 20)
    assert percentile_ms([], 0, 95) == 0


# --- models, days, projects --------------------------------------------------------------------------


def test_a_run_counts_for_the_model_that_it_named_last(world: World, pid: int) -> None:
    world.put(pid)
    entry = world.take_one()
    for model, tokens in (("small", 3), ("gpt-x", 4), (None, 5)):
        world.queue.charge(entry.sched_id, {"tokens": tokens}, token=entry.token, model=model)
        world.kernel.usage.fold()
    world.queue.complete(entry.sched_id, "failed", token=entry.token)
    found = [(line.model, line.tokens, line.runs, line.failures) for line in lines(world, "model")]
    assert found == [("", 5, 0, 0), ("gpt-x", 4, 1, 1), ("small", 3, 0, 0)]


def test_models_beyond_the_maximum_are_counted_together(
    world: World, pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "MODELS_MAX", 2)
    for model in ("a", "b", "c", "a", "d"):
        world.put(pid)
        run(world, tokens=1, model=model)
        world.kernel.usage.fold()
    assert {line.model: line.tokens for line in lines(world, "model")} == {"a": 2, "b": 1, OTHER_MODELS: 2}


def test_days_are_in_utc_and_both_ends_count(world: World, pid: int) -> None:
    for _ in range(3):
        world.put(pid)
        run(world, tokens=1)
        world.clock.advance(DAY_S)
    start = 1_000.0
    assert [line.day for line in lines(world, "day")] == ["1970-01-01", "1970-01-02", "1970-01-03"]
    report = world.kernel.usage.report(("day",), start + DAY_S, start + DAY_S)
    assert ([line.day for line in report.lines], report.since_day, report.until_day) == (
        ["1970-01-02"],
        "1970-01-02",
        "1970-01-02",
    )


def test_agents_of_one_name_and_project_are_one_line(world: World, lab: int) -> None:
    other = world.agent("agent")
    for pid in (lab, other):
        world.put(pid)
        run(world)
    world.kernel.terminate(lab, "completed")
    world.put(world.agent("agent", project_id="lab"))
    run(world)
    found = [(line.project_id, line.agent, line.runs) for line in lines(world, "agent")]
    assert found == [("", "agent", 1), ("lab", "agent", 2)]
    assert world.kernel.usage.report(("agent",), project_id="lab").total.runs == 2
    assert world.kernel.usage.report(("agent",), agent="nobody").total.runs == 0


def test_a_bound_caller_sees_its_own_projects_only(world: World, lab: int) -> None:
    other = world.agent("other")
    for pid in (lab, other):
        world.put(pid)
        run(world, tokens=5)
    reads, before = ProjectReads(world.kernel.env), world.store.read(usage.usage_cursor)
    assert reads.usage(frozenset({"lab"}), ("agent",)).total.tokens == 5
    assert [line.agent for line in reads.usage(frozenset({None}), ("agent",)).lines] == ["other"]
    assert reads.usage(frozenset({"lab"}), ("agent",), project_id="elsewhere").lines == []
    assert world.store.read(usage.usage_cursor) == before  # it reads, and writes nothing about other projects


def test_a_report_beyond_its_lines_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_report, "REPORT_LINES_MAX", 2)
    for name in ("a", "b", "c"):
        world.put(world.agent(name))
        run(world)
    report = world.kernel.usage.report(("agent",))
    assert (len(report.lines), report.left_out, report.total.runs) == (2, 1, 3)


@pytest.mark.parametrize(
    "bad",
    [
        *({"by": ("color",)}, {"by": "day"}, {"since_at": "x"}, {"until_at": -1}, {"agent": 5}, {"agent": ""}),
        *({"agent": "a\0b"}, {"project_id": "a\0b"}),
    ],
)
def test_what_is_not_a_question_is_refused_and_nothing_is_folded(world: World, pid: int, bad: dict[str, Any]) -> None:
    world.put(pid)
    run(world)
    before = world.store.read(usage.usage_cursor)
    with pytest.raises(InvalidPayload):
        world.kernel.usage.report(**bad)
    assert world.store.read(usage.usage_cursor) == before


def test_what_is_not_folded_yet_is_in_the_report(world: World, lab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "FOLD_MAX", 2)
    reads = ProjectReads(world.kernel.env)
    for model in ("a", "b", "a"):
        first = world.put(lab)
        world.put(lab, after=(first,))
        for _ in range(2):
            world.clock.advance(5)
            run(world, tokens=3, model=model)
    seen = reads.usage(frozenset({"lab"}), ("agent", "model", "day"))
    assert seen == world.kernel.usage.report(("agent", "model", "day"))
    assert (seen.total.runs, seen.total.wait_max_ms) == (6, 5_000)


# --- the fold --------------------------------------------------------------------------------------


def test_steps_are_bounded_and_end_although_others_go_on_writing(
    world: World, pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "FOLD_MAX", 3)
    for _ in range(5):
        world.put(pid)
        run(world)
    last, cursors = world.journal.cursor(), []

    def write_more() -> None:
        cursors.append(world.store.read(usage.usage_cursor))
        world.put(pid)

    world.kernel.usage.fold(write_more)
    assert cursors[:3] == [3, 6, 9]
    assert last <= cursors[-1] < last + 3


def test_automatic_retention_brings_the_days_up_to_date(world: World, pid: int) -> None:
    world.put(pid)
    run(world)
    last = world.journal.cursor()
    world.kernel.retention.keep("daemon")
    assert world.store.read(usage.usage_cursor) >= last


@pytest.mark.only_on("memory", "file", reason="PostgreSQL stores no word in a column of numbers")
def test_damaged_events_and_rows_do_not_stop_the_fold(world: World, pid: int) -> None:
    world.put(pid)
    run(world, tokens=5)
    world.kernel.usage.fold()
    for number, sql in enumerate(
        (
            "UPDATE usage_daily SET wait_sizes = '?', runs = 'many'",
            "INSERT INTO agent_events (ts, kind, payload) VALUES (1e300, 'kernel.sched.completed', '{\"entries\": 7}')",
            "INSERT INTO agent_events (ts, kind, payload) VALUES (1, 'kernel.ledger.charged', '[')",
            """INSERT INTO agent_events (pid, ts, kind, payload)
                VALUES (1, 1e300, 'kernel.ledger.charged', '{"amounts": {"tokens": 4}}')""",
        )
    ):
        world.store.write(lambda tx, sql=sql, number=number: tx.run(Statement(f"damage_{number}", "Damage.", sql)))  # type: ignore[misc]
    assert any("usage_daily" in problem for problem in world.kernel.check())
    world.put(pid)
    run(world, tokens=2)
    total = world.kernel.usage.report(("day",)).total
    assert (total.runs, total.tokens) == (1, 11)


# --- prices ------------------------------------------------------------------------------------------


def test_prices_are_kept_by_model_and_recorded(world: World) -> None:
    price = ModelPrice(input_micro=1, output_micro=2)
    world.kernel.usage.set_prices({"a": price, "b": price})
    world.kernel.usage.set_prices({"a": None, "c": price})
    world.kernel.usage.set_prices({"c": price})  # changes nothing
    assert world.kernel.usage.prices() == {"b": price, "c": price}
    events = world.journal.tail(0, 100, kinds=("kernel.prices.set",))
    assert [sorted(event.payload["prices"]) for event in events] == [["a", "b"], ["a", "c"]]


def test_prices_are_checked(world: World) -> None:
    with pytest.raises(InvalidPayload):
        ModelPrice(input_micro=-1, output_micro=0)
    with pytest.raises(InvalidPayload):
        world.kernel.usage.set_prices({"a": 5})  # type: ignore[dict-item]
    too_many = {str(number): ModelPrice(input_micro=0, output_micro=0) for number in range(PRICES_MAX + 1)}
    with pytest.raises(LimitExceeded):
        world.kernel.usage.set_prices(too_many)

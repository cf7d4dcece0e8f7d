"""Without contention the caller commits, with contention requests share a commit, and results wait for durability."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.errors import StoreError
from rota.store import Transaction
from rota.store.writer import BATCH_MAX
from tests.store.world import PUT, Caller, World, put, sql, words


def put_and_raise(word: str, error: BaseException) -> Any:
    """Work that writes and then raises."""

    def work(tx: Transaction) -> None:
        tx.run(PUT, (word,))
        raise error

    return work


# --- without contention --------------------------------------------------------------------------


def test_without_contention_work_commits_on_the_callers_thread(world: World) -> None:
    threads = []

    def work(tx: Transaction) -> int:
        threads.append(threading.current_thread())
        return put("one")(tx)

    assert world.writer.write(work) == 1
    assert threads == [threading.current_thread()]
    assert world.writer._thread is None
    assert world.engine.log == [
        "begin",
        "commit",
        "notify_listeners",
    ]  # and no savepoints


def test_without_contention_an_error_rolls_back_and_is_raised_unchanged(world: World) -> None:
    with pytest.raises(KeyError, match="mine"):
        world.writer.write(put_and_raise("one", KeyError("mine")))
    assert world.words() == []
    assert world.engine.log == ["begin", "rollback"]
    assert world.writer.write(put("two")) == 1


# --- with contention -----------------------------------------------------------------------------


def test_requests_that_arrive_during_a_write_share_one_commit(world: World) -> None:
    with world.busy():
        callers = [world.write(put(f"word {n}")) for n in range(20)]
        world.queue.until(20)
    assert sorted(caller.outcome() for caller in callers) == list(range(1, 21))
    assert world.commits == 2  # the active one, and one for all twenty
    assert len(world.words()) == 20


def test_queued_requests_run_in_order_of_arrival(world: World) -> None:
    with world.busy():
        callers = []
        for n in range(10):
            callers.append(world.write(put(f"word {n}")))
            world.queue.until(n + 1)
    for caller in callers:
        caller.outcome()
    assert world.words() == [f"word {n}" for n in range(10)]


@pytest.mark.parametrize(("in_line", "commits"), [(BATCH_MAX, 1), (BATCH_MAX + 1, 2), (2 * BATCH_MAX + 1, 3)])
def test_a_batch_has_a_limit(world: World, in_line: int, commits: int) -> None:
    with world.busy():
        callers = [world.write(put("word")) for _ in range(in_line)]
        world.queue.until(in_line)
    for caller in callers:
        caller.outcome()
    assert world.commits == 1 + commits
    assert len(world.words()) == in_line


def test_after_contention_a_caller_writes_on_its_own_thread_again(world: World) -> None:
    with world.busy():
        callers = [world.write(put("word")) for _ in range(3)]
        world.queue.until(3)
    for caller in callers:
        caller.outcome()
    world.writer.write(put("word"))  # the writer thread still expects contention, and finds none
    threads = []
    world.writer.write(lambda _tx: threads.append(threading.current_thread()))
    assert threads == [threading.current_thread()]


def test_no_caller_returns_before_the_commit_is_durable(world: World) -> None:
    callers: list[Caller[int]] = []
    answered_at_commit = []

    def look() -> None:
        answered_at_commit.append([caller.is_done for caller in callers])

    with world.busy():
        callers += [world.write(put(f"word {n}")) for n in range(8)]
        world.queue.until(8)
        world.engine.before["commit"] = world.engine.after["commit"] = look
    for caller in callers:
        caller.outcome()
    assert answered_at_commit == [[False] * 8] * 4  # before and after: the active commit, and theirs


def test_a_request_that_raises_undoes_only_its_own_changes(world: World) -> None:
    with world.busy():
        first = world.write(put("first"))
        world.queue.until(1)
        bad = world.write(put_and_raise("bad", ValueError("mine")))
        world.queue.until(2)
        last = world.write(put("last"))
        world.queue.until(3)
    assert str(bad.error()) == "mine"
    assert (first.outcome(), last.outcome()) == (1, 2)  # the id is free again: the failed insert left nothing
    assert world.words() == ["first", "last"]
    assert world.commits == 2
    batch = world.engine.log[world.engine.log.index("rollback") :]
    assert batch.count("savepoint") == batch.count("release") == 3  # only in the second run of the batch


def test_a_request_that_raises_before_it_writes_costs_the_others_nothing(world: World) -> None:
    def refuse(_tx: Transaction) -> None:
        raise ValueError("mine")

    with world.busy():
        first, refused, last = world.write(put("first")), world.write(refuse), world.write(put("last"))
        world.queue.until(3)
    assert str(refused.error()) == "mine"
    assert {first.outcome(), last.outcome()} == {1, 2}
    assert world.commits == 2
    assert not {"savepoint", "rollback", "rollback_to"} & set(world.engine.log)


def test_a_system_exit_reaches_only_its_own_caller(world: World) -> None:
    with world.busy():
        good, bad = world.write(put("good")), world.write(put_and_raise("bad", SystemExit(3)))
        world.queue.until(2)
    assert isinstance(bad.error(), SystemExit)
    good.outcome()
    assert world.words() == ["good"]
    world.writer.write(put("later"))
    assert world.words() == ["good", "later"]


def test_an_sql_error_undoes_only_its_own_request(world: World) -> None:
    def work(tx: Transaction) -> None:
        tx.run(PUT, ("bad",))
        tx.run(sql("INSERT INTO words (word) VALUES (NULL)"))

    with world.busy():
        good, bad = world.write(put("good")), world.write(work)
        world.queue.until(2)
    assert "NOT NULL" in str(bad.error())
    good.outcome()
    assert world.words() == ["good"]


@settings(max_examples=25)
@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=8), max_size=3))
def test_whichever_requests_fail_the_file_holds_the_successful_ones(groups: list[list[bool]]) -> None:
    world, expected = World(), set()
    for number, group in enumerate(groups):
        with world.busy():
            callers = []
            for place, good in enumerate(group):
                word = f"{number}.{place}"
                callers.append(world.write(put(word) if good else put_and_raise(word, KeyError(word))))
            world.queue.until(len(group))
        for place, (good, caller) in enumerate(zip(group, callers, strict=True)):
            if good:
                caller.outcome()
                expected.add(f"{number}.{place}")
            else:
                assert caller.error().args == (f"{number}.{place}",)
    written = world.words()
    assert sorted(written) == sorted(expected)
    world.close()


# --- effects and listeners -----------------------------------------------------------------------


def noting(world: World, log: list[Any], word: str, error: Exception | None = None) -> Any:
    """Work that adds a word and logs whether it became durable."""

    def work(tx: Transaction) -> str:
        tx.effects.on_commit.append(lambda: log.append(("durable", word, world.engine.log[-1])))
        tx.effects.on_rollback.append(lambda: log.append(("undone", word)))
        tx.run(PUT, (word,))
        if error is not None:
            raise error
        return word

    return work


def test_on_commit_is_called_once_before_the_caller_returns(world: World) -> None:
    log: list[Any] = []
    world.writer.write(noting(world, log, "one"))
    log.append("answered")
    assert log == [("durable", "one", "notify_listeners"), "answered"]


def test_work_that_raises_gets_on_rollback_only(world: World) -> None:
    log: list[Any] = []
    with pytest.raises(KeyError):
        world.writer.write(noting(world, log, "one", KeyError()))
    with world.busy():
        good = world.write(noting(world, log, "good"))
        world.queue.until(1)
        bad = world.write(noting(world, log, "bad", KeyError()))
        world.queue.until(2)
    good.outcome()
    bad.error()
    # the batch ran twice, because the bad one had written: what the first run did in memory was undone
    twice = [("undone", "bad"), ("undone", "bad"), ("undone", "good")]
    assert sorted(log) == [("durable", "good", "notify_listeners"), *twice, ("undone", "one")]


def test_listeners_are_called_for_commits_only(world: World) -> None:
    calls = []
    world.writer.on_change(lambda: calls.append(words_now(world)))
    world.writer.write(put("one"))
    with pytest.raises(KeyError):
        world.writer.write(put_and_raise("two", KeyError()))
    world.writer.write(put("three"))
    assert calls == [["one"], ["one", "three"]]


def words_now(world: World) -> list[str]:
    """The committed words, read from a commit listener."""
    with world.writer.exclusive():
        return [str(row[0]) for row in world.connection.execute("SELECT word FROM words ORDER BY id").fetchall()]


def test_a_listener_that_raises_is_logged_and_affects_no_request(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    log: list[Any] = []

    def fall() -> None:
        raise RuntimeError("a bad listener")

    def work(tx: Transaction) -> str:
        tx.effects.on_commit += [fall, lambda: log.append("called")]
        return "written"

    world.writer.on_change(fall)
    with world.busy():
        callers = [world.write(work) for _ in range(3)]
        world.queue.until(3)
    assert [caller.outcome() for caller in callers] == ["written"] * 3
    assert log == ["called"] * 3
    assert world.writer.write(put("later")) == 1
    assert {record.exc_info[0] for record in caplog.records if record.exc_info} == {RuntimeError}


@pytest.mark.parametrize("wrap", [lambda fall: fall, lambda fall: partial(fall, 1), lambda fall: lambda: fall(1)])
def test_what_fails_after_every_commit_is_logged_once(
    wrap: Callable[[Any], Callable[[], None]], world: World, caplog: pytest.LogCaptureFixture
) -> None:
    is_broken = True

    def fall(*_: object) -> None:
        if is_broken:
            raise RuntimeError("a bad listener")

    def work(tx: Transaction) -> None:
        tx.effects.on_commit += [wrap(fall), lambda: None]  # another call that works says nothing about this one

    for _ in range(3):
        world.writer.write(work)
    assert caplog.text.count("RuntimeError: a bad listener") == 1
    is_broken = False
    world.writer.write(work)
    is_broken = True
    world.writer.write(work)
    assert caplog.text.count("RuntimeError: a bad listener") == 2


def test_an_on_rollback_call_that_raises_affects_no_request(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def fall() -> None:
        raise RuntimeError("a bad listener")

    def work(tx: Transaction) -> None:
        tx.effects.on_rollback.append(fall)
        raise KeyError("mine")

    with world.busy():
        good, bad = world.write(put("good")), world.write(work)
        world.queue.until(2)
    assert isinstance(bad.error(), KeyError)
    good.outcome()
    assert world.words() == ["good"]
    assert "RuntimeError: a bad listener" in caplog.text


def test_a_failed_notification_affects_no_request(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def fall() -> None:
        raise OSError("too many open files")

    world.engine.before["notify_listeners"] = fall
    with world.busy():
        callers = [world.write(put("word")) for _ in range(3)]
        world.queue.until(3)
    assert sorted(caller.outcome() for caller in callers) == [1, 2, 3]
    assert "too many open files" in caplog.text


# --- a write inside a write ----------------------------------------------------------------------


def test_a_write_inside_a_write_is_refused(world: World) -> None:
    def work(tx: Transaction) -> None:
        tx.run(PUT, ("outer",))
        world.writer.write(put("inner"))

    with pytest.raises(StoreError, match="inside a write"):
        world.writer.write(work)
    with world.busy():
        caller = world.write(work)
        world.queue.until(1)
    assert isinstance(caller.error(), StoreError)
    assert world.words() == []


def test_an_on_commit_call_may_read_but_not_write(world: World, caplog: pytest.LogCaptureFixture) -> None:
    seen = []

    def work(tx: Transaction) -> None:
        tx.run(PUT, ("outer",))
        tx.effects.on_commit.append(lambda: seen.append(words_now(world)))
        tx.effects.on_commit.append(lambda: world.writer.write(lambda _tx: None))
        tx.effects.on_commit.append(world.writer.close)

    world.writer.write(work)
    assert seen == [["outer"]]
    assert world.words() == ["outer"]
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [StoreError, StoreError]
    assert world.writer.write(put("later")) == 2


def test_while_exclusive_is_held_writes_are_queued(world: World) -> None:
    with world.writer.exclusive():
        caller = world.write(put("word"))
        world.queue.until(1)
        assert words_now(world) == []
    assert caller.outcome() == 1
    assert world.writer.write(words) == ["word"]


# --- no thread -----------------------------------------------------------------------------------


def test_if_no_thread_can_be_started_the_caller_gets_the_error_and_leaves_the_queue(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with world.writer.exclusive():
        with monkeypatch.context() as patch:
            caller_thread_start = threading.Thread.start

            def start(thread: threading.Thread) -> None:
                refuse(thread) if thread.name == "rota-writer" else caller_thread_start(thread)

            patch.setattr(threading.Thread, "start", start)
            caller = world.write(put("word"))
            assert "can't start" in str(caller.error())
        assert len(world.queue) == 0
    with world.busy():
        later = world.write(put("later"))
        world.queue.until(1)
    assert later.outcome() == 1
    assert world.words() == ["later"]

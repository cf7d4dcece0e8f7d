"""Alone you commit yourself; in company you share; nobody is answered before it is durable."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.errors import StoreError
from rota.store import Transaction
from rota.store.writer import GROUP_MAX
from tests.store.world import PUT, Caller, World, put, sql, words


def put_and_raise(word: str, error: BaseException) -> Any:
    """Work that has written something by the time it fails."""

    def work(tx: Transaction) -> None:
        tx.run(PUT, (word,))
        raise error

    return work


# --- alone ---------------------------------------------------------------------------------------


def test_alone_work_runs_and_commits_on_the_callers_own_thread(world: World) -> None:
    threads = []

    def work(tx: Transaction) -> int:
        threads.append(threading.current_thread())
        return put("one")(tx)

    assert world.writer.write(work) == 1
    assert threads == [threading.current_thread()]
    assert world.writer._thread is None
    assert world.engine.log == ["begin", "commit", "ring"]  # and nothing is paid for company that is not there


def test_alone_a_failure_undoes_everything_and_is_raised_as_it_was(world: World) -> None:
    with pytest.raises(KeyError, match="mine"):
        world.writer.write(put_and_raise("one", KeyError("mine")))
    assert world.words() == []
    assert world.engine.log == ["begin", "rollback"]
    assert world.writer.write(put("two")) == 1


# --- in company ----------------------------------------------------------------------------------


def test_those_who_come_while_somebody_writes_share_one_commit(world: World) -> None:
    with world.busy():
        callers = [world.write(put(f"word {n}")) for n in range(20)]
        world.line.until(20)
    assert sorted(caller.outcome() for caller in callers) == list(range(1, 21))
    assert world.commits == 2  # the one that was under way, and one for all twenty
    assert len(world.words()) == 20


def test_company_is_served_in_the_order_it_came(world: World) -> None:
    with world.busy():
        callers = []
        for n in range(10):
            callers.append(world.write(put(f"word {n}")))
            world.line.until(n + 1)
    for caller in callers:
        caller.outcome()
    assert world.words() == [f"word {n}" for n in range(10)]


@pytest.mark.parametrize(("in_line", "commits"), [(GROUP_MAX, 1), (GROUP_MAX + 1, 2), (2 * GROUP_MAX + 1, 3)])
def test_a_group_has_a_limit(world: World, in_line: int, commits: int) -> None:
    with world.busy():
        callers = [world.write(put("word")) for _ in range(in_line)]
        world.line.until(in_line)
    for caller in callers:
        caller.outcome()
    assert world.commits == 1 + commits
    assert len(world.words()) == in_line


def test_after_company_has_gone_a_caller_writes_on_its_own_thread_again(world: World) -> None:
    with world.busy():
        callers = [world.write(put("word")) for _ in range(3)]
        world.line.until(3)
    for caller in callers:
        caller.outcome()
    world.writer.write(put("word"))  # the writer thread still expects company, and finds none
    threads = []
    world.writer.write(lambda _tx: threads.append(threading.current_thread()))
    assert threads == [threading.current_thread()]


def test_nobody_is_answered_before_the_commit_is_durable(world: World) -> None:
    callers: list[Caller[int]] = []
    answered_at_commit = []

    def look() -> None:
        answered_at_commit.append([caller.is_done for caller in callers])

    with world.busy():
        callers += [world.write(put(f"word {n}")) for n in range(8)]
        world.line.until(8)
        world.engine.before["commit"] = world.engine.after["commit"] = look
    for caller in callers:
        caller.outcome()
    assert answered_at_commit == [[False] * 8] * 4  # before and after: the one under way, and theirs


def test_a_request_that_fails_undoes_itself_alone(world: World) -> None:
    with world.busy():
        first = world.write(put("first"))
        world.line.until(1)
        bad = world.write(put_and_raise("bad", ValueError("mine")))
        world.line.until(2)
        last = world.write(put("last"))
        world.line.until(3)
    assert str(bad.error()) == "mine"
    assert (first.outcome(), last.outcome()) == (1, 2)  # the id is free again: nothing of it is left
    assert world.words() == ["first", "last"]
    assert world.commits == 2


def test_a_request_that_wants_to_end_the_program_ends_only_its_own_caller(world: World) -> None:
    with world.busy():
        good, bad = world.write(put("good")), world.write(put_and_raise("bad", SystemExit(3)))
        world.line.until(2)
    assert isinstance(bad.error(), SystemExit)
    good.outcome()
    assert world.words() == ["good"]
    world.writer.write(put("later"))
    assert world.words() == ["good", "later"]


def test_a_statement_that_fails_in_sql_undoes_its_request_alone(world: World) -> None:
    def work(tx: Transaction) -> None:
        tx.run(PUT, ("bad",))
        tx.run(sql("INSERT INTO words (word) VALUES (NULL)"))

    with world.busy():
        good, bad = world.write(put("good")), world.write(work)
        world.line.until(2)
    assert "NOT NULL" in str(bad.error())
    good.outcome()
    assert world.words() == ["good"]


@settings(max_examples=25)
@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=8), max_size=3))
def test_whatever_fails_in_whatever_group_the_file_holds_what_was_answered(groups: list[list[bool]]) -> None:
    world, expected = World(), set()
    for number, group in enumerate(groups):
        with world.busy():
            callers = []
            for place, good in enumerate(group):
                word = f"{number}.{place}"
                callers.append(world.write(put(word) if good else put_and_raise(word, KeyError(word))))
            world.line.until(len(group))
        for place, (good, caller) in enumerate(zip(group, callers, strict=True)):
            if good:
                caller.outcome()
                expected.add(f"{number}.{place}")
            else:
                assert caller.error().args == (f"{number}.{place}",)
    written = world.words()
    assert sorted(written) == sorted(expected)
    world.close()


# --- those who are told --------------------------------------------------------------------------


def noting(world: World, log: list[Any], word: str, error: Exception | None = None) -> Any:
    """Work that adds a word and wants to hear what became of it."""

    def work(tx: Transaction) -> str:
        tx.notes.after.append(lambda: log.append(("durable", word, world.engine.log[-1])))
        tx.notes.undone.append(lambda: log.append(("undone", word)))
        tx.run(PUT, (word,))
        if error is not None:
            raise error
        return word

    return work


def test_work_hears_once_when_it_is_durable_and_before_its_caller_is_answered(world: World) -> None:
    log: list[Any] = []
    world.writer.write(noting(world, log, "one"))
    log.append("answered")
    assert log == [("durable", "one", "ring"), "answered"]


def test_work_that_fails_hears_that_it_was_undone_and_nothing_else(world: World) -> None:
    log: list[Any] = []
    with pytest.raises(KeyError):
        world.writer.write(noting(world, log, "one", KeyError()))
    with world.busy():
        good = world.write(noting(world, log, "good"))
        bad = world.write(noting(world, log, "bad", KeyError()))
        world.line.until(2)
    good.outcome()
    bad.error()
    assert sorted(log) == [("durable", "good", "ring"), ("undone", "bad"), ("undone", "one")]


def test_listeners_hear_of_every_commit_and_of_no_failure(world: World) -> None:
    heard = []
    world.writer.listeners = (lambda: heard.append(words_now(world)),)
    world.writer.write(put("one"))
    with pytest.raises(KeyError):
        world.writer.write(put_and_raise("two", KeyError()))
    world.writer.write(put("three"))
    assert heard == [["one"], ["one", "three"]]


def words_now(world: World) -> list[str]:
    """What is committed, asked for by one who is being told of it."""
    with world.writer.exclusive():
        return [str(row[0]) for row in world.connection.execute("SELECT word FROM words ORDER BY id").fetchall()]


def test_one_who_is_told_and_fails_is_on_record_and_harms_nobody(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    log: list[Any] = []

    def fall() -> None:
        raise RuntimeError("a bad listener")

    def work(tx: Transaction) -> str:
        tx.notes.after += [fall, lambda: log.append("told")]
        return "written"

    world.writer.listeners = (fall,)
    with world.busy():
        callers = [world.write(work) for _ in range(3)]
        world.line.until(3)
    assert [caller.outcome() for caller in callers] == ["written"] * 3
    assert log == ["told"] * 3
    assert world.writer.write(put("later")) == 1
    assert {record.exc_info[0] for record in caplog.records if record.exc_info} == {RuntimeError}


def test_one_who_is_told_of_an_undoing_and_fails_harms_nobody(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def fall() -> None:
        raise RuntimeError("a bad listener")

    def work(tx: Transaction) -> None:
        tx.notes.undone.append(fall)
        raise KeyError("mine")

    with world.busy():
        good, bad = world.write(put("good")), world.write(work)
        world.line.until(2)
    assert isinstance(bad.error(), KeyError)
    good.outcome()
    assert world.words() == ["good"]
    assert "failed" in caplog.text


def test_a_bell_that_cannot_be_rung_harms_nobody(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def fall() -> None:
        raise OSError("too many open files")

    world.engine.before["ring"] = fall
    with world.busy():
        callers = [world.write(put("word")) for _ in range(3)]
        world.line.until(3)
    assert sorted(caller.outcome() for caller in callers) == [1, 2, 3]
    assert "too many open files" in caplog.text


# --- a write inside a write ----------------------------------------------------------------------


def test_a_write_inside_a_write_is_refused_instead_of_waiting_for_itself(world: World) -> None:
    def work(tx: Transaction) -> None:
        tx.run(PUT, ("outer",))
        world.writer.write(put("inner"))

    with pytest.raises(StoreError, match="inside a write"):
        world.writer.write(work)
    with world.busy():
        caller = world.write(work)
        world.line.until(1)
    assert isinstance(caller.error(), StoreError)
    assert world.words() == []


def test_one_who_is_told_of_a_commit_may_read_but_not_write(world: World, caplog: pytest.LogCaptureFixture) -> None:
    seen = []

    def work(tx: Transaction) -> None:
        tx.run(PUT, ("outer",))
        tx.notes.after.append(lambda: seen.append(words_now(world)))
        tx.notes.after.append(lambda: world.writer.write(lambda _tx: None))
        tx.notes.after.append(world.writer.close)

    world.writer.write(work)
    assert seen == [["outer"]]
    assert world.words() == ["outer"]
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [StoreError, StoreError]
    assert world.writer.write(put("later")) == 2


def test_while_somebody_has_the_file_to_itself_others_stand_in_line(world: World) -> None:
    with world.writer.exclusive():
        caller = world.write(put("word"))
        world.line.until(1)
        assert words_now(world) == []
    assert caller.outcome() == 1
    assert world.writer.write(words) == ["word"]


# --- where no thread can be had ------------------------------------------------------------------


def test_where_no_thread_can_be_started_the_caller_is_told_and_not_left_in_line(
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
        assert len(world.line) == 0
    with world.busy():
        later = world.write(put("later"))
        world.line.until(1)
    assert later.outcome() == 1
    assert world.words() == ["later"]

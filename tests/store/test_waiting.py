"""Those who wait are parked with the writer and ride in the commit that brings what they wait for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rota.store import Transaction
from tests.store.world import Caller, World, put, put_all, take


def counting(log: list[str], name: str, pattern: str = "none such") -> Callable[[Transaction], list[str]]:
    """Work that takes a word and notes each time it is tried."""

    def work(tx: Transaction) -> list[str]:
        log.append(name)
        return take(pattern)(tx)

    return work


# --- woken by a commit ---------------------------------------------------------------------------


def test_one_who_finds_something_does_not_wait(world: World) -> None:
    world.writer.write(put("word"))
    assert world.writer.wait(take(), 3_600, "words") == ["word"]
    assert world.writer.parked == 0
    assert world.writer._thread is None


def test_one_who_would_not_wait_is_told_that_there_is_nothing(world: World) -> None:
    for timeout_s in (0, 0.0, -1.0, float("nan")):
        assert world.writer.wait(take(), timeout_s, "words") == []
    assert world.writer.parked == 0


def test_a_waiter_is_answered_by_the_very_commit_that_brought_its_word(world: World) -> None:
    waiter = world.wait()
    world.engine.log.clear()
    world.writer.write(put("word"))
    assert waiter.outcome() == ["word"]
    assert world.commits == 1
    assert world.words() == []
    assert world.writer._thread is None  # on the thread of the one who wrote


def test_a_waiter_is_not_tried_by_what_cannot_change_its_answer(world: World) -> None:
    log: list[str] = []
    waiter = world.wait_for(counting(log, "waiter", "%"))
    world.writer.write(put("quiet", wake=False))
    assert log == ["waiter"]
    world.writer.write(put("loud"))
    assert waiter.outcome() == ["quiet"]


def test_a_waiter_is_tried_when_something_was_written_elsewhere(world: World) -> None:
    waiter = world.wait()
    world.writer.write(put("word", wake=False))
    assert world.writer.parked == 1
    world.engine.foreign = True
    world.writer.write(lambda _tx: None)
    assert waiter.outcome() == ["word"]


def test_a_look_elsewhere_tries_the_waiters_and_tells_whether_anything_was_there(world: World) -> None:
    waiter = world.wait()
    world.writer.write(put("word", wake=False))
    assert world.writer.look_elsewhere() is False
    assert world.writer.parked == 1
    world.engine.foreign = True
    assert world.writer.look_elsewhere() is True
    assert waiter.outcome() == ["word"]
    assert world.writer.look_elsewhere() is False


def test_what_a_commit_noticed_elsewhere_is_not_kept_from_the_next_look(world: World) -> None:
    waiter = world.wait()
    world.engine.foreign = True
    world.writer.write(lambda _tx: None)  # it notices, for the waiter's sake
    assert world.writer.look_elsewhere() is True  # and those who follow other processes hear of it as well
    assert world.writer.look_elsewhere() is False
    world.writer.write(put("word"))
    waiter.outcome()


# --- who is first --------------------------------------------------------------------------------


def test_the_oldest_waiter_is_served_first_and_one_word_wakes_one(world: World) -> None:
    waiters = [world.wait() for _ in range(5)]
    for n, waiter in enumerate(waiters):
        world.writer.write(put(f"word {n}"))
        assert waiter.outcome() == [f"word {n}"]
        assert [later.is_done for later in waiters[n + 1 :]] == [False] * (4 - n)
    assert world.writer.parked == 0


def test_several_words_in_one_commit_go_to_as_many_waiters_in_order(world: World) -> None:
    waiters = [world.wait() for _ in range(4)]

    world.writer.write(put_all([f"word {n}" for n in range(3)]))
    assert [waiter.outcome() for waiter in waiters[:3]] == [["word 0"], ["word 1"], ["word 2"]]
    assert not waiters[3].is_done
    world.writer.write(put("word 3"))
    assert waiters[3].outcome() == ["word 3"]


def test_waiting_in_vain_costs_nobody_its_place(world: World) -> None:
    old = world.wait("a%", same="a")
    middle = world.wait("%", same="any")
    for _ in range(3):
        world.writer.write(lambda tx: setattr(tx.notes, "wake", True))  # everybody is tried, in vain
    new = world.wait("a%", same="a")
    world.writer.write(put("a 1"))
    assert old.outcome() == ["a 1"]
    world.writer.write(put("a 2"))
    assert middle.outcome() == ["a 2"]
    world.writer.write(put("a 3"))
    assert new.outcome() == ["a 3"]


def test_a_newcomer_takes_nothing_from_those_who_waited_before_it(world: World) -> None:
    old = world.wait()
    with world.busy():
        writer = world.write(put("word"))
        world.line.until(1)
        new = Caller(lambda: world.writer.wait(take(), 3_600, "words"))
        world.line.until(2)
    writer.outcome()
    assert old.outcome() == ["word"]
    world.room.until(1)
    assert not new.is_done
    world.writer.write(put("next"))
    assert new.outcome() == ["next"]


def test_a_newcomer_sees_what_a_later_one_of_its_own_group_brought(world: World) -> None:
    with world.busy():
        waiter = Caller(lambda: world.writer.wait(take(), 3_600, "words"))
        world.line.until(1)
        writer = world.write(put("word"))
        world.line.until(2)
    writer.outcome()
    assert waiter.outcome() == ["word"]  # else it would be parked beside the word it waits for


def test_a_newcomer_that_waits_in_vain_stands_behind_those_before_it(world: World) -> None:
    old = world.wait()
    with world.busy():
        new = Caller(lambda: world.writer.wait(take(), 3_600, "words"))
        world.line.until(1)
        nothing = world.write(lambda tx: setattr(tx.notes, "wake", True))
        world.line.until(2)
    nothing.outcome()
    world.room.until(2)
    world.writer.write(put("word"))
    assert old.outcome() == ["word"]
    assert not new.is_done
    world.writer.write(put("next"))
    assert new.outcome() == ["next"]


# --- who is tried --------------------------------------------------------------------------------


def test_those_who_ask_the_same_are_spared_when_the_first_gets_nothing(world: World) -> None:
    log: list[str] = []
    waiters = [world.wait_for(counting(log, f"a{n}"), same="a") for n in range(3)]
    waiters += [world.wait_for(counting(log, f"b{n}"), same="b") for n in range(2)]
    log.clear()
    world.writer.write(put("word"))
    assert log == ["a0", "b0"]
    world.writer.close()
    assert len([waiter.error() for waiter in waiters]) == 5


def test_those_who_do_not_say_what_they_ask_are_all_tried(world: World) -> None:
    log: list[str] = []
    waiters = [world.wait_for(counting(log, str(n)), same=None) for n in range(3)]
    lucky = world.wait("word", same=None)
    log.clear()
    world.writer.write(put("word"))
    assert log == ["0", "1", "2"]
    assert lucky.outcome() == ["word"]
    world.writer.close()
    assert len([waiter.error() for waiter in waiters]) == 3


def test_the_same_question_is_tried_again_for_each_word_that_is_left(world: World) -> None:
    log: list[str] = []
    waiters = [world.wait_for(counting(log, str(n), "%"), same="a") for n in range(3)]
    log.clear()
    world.writer.write(put("word"))
    assert log == ["0", "1"]  # the first got it, the second got nothing, and the third would not either
    assert waiters[0].outcome() == ["word"]
    world.writer.write(put("word"))
    world.writer.write(put("word"))
    assert [waiter.outcome() for waiter in waiters[1:]] == [["word"], ["word"]]


def test_a_question_that_cannot_be_compared_is_its_askers_own_fault(world: World) -> None:
    with pytest.raises(TypeError, match="unhashable"):
        world.writer.wait(take(), 3_600, ["a list"])  # type: ignore[arg-type]
    assert world.writer.write(put("word")) == 1


def test_a_waiter_that_fails_is_told_and_the_others_are_served(world: World) -> None:
    def fail(tx: Transaction) -> list[str]:
        if take("%")(tx):
            raise KeyError("mine")
        return []

    bad, good = world.wait_for(fail, same="bad"), world.wait(same="good")
    world.writer.write(put("word"))
    assert isinstance(bad.error(), KeyError)
    assert good.outcome() == ["word"]  # what the other had taken is there again
    assert world.writer.parked == 0


def test_a_waiter_whose_answer_changes_that_of_one_before_it_has_that_one_tried_again(world: World) -> None:
    first = world.wait("b", same="b")

    def exchange(tx: Transaction) -> list[str]:
        got = take("a")(tx)
        for _ in got:
            put("b")(tx)
        return got

    second = world.wait_for(exchange, same="a")
    world.writer.write(put("a"))
    assert second.outcome() == ["a"]
    assert first.outcome() == ["b"]


def test_those_who_are_spared_do_not_repeat_what_the_first_has_to_say(world: World) -> None:
    told = []

    def work(tx: Transaction) -> list[str]:
        tx.notes.after.append(lambda: told.append("swept"))
        return take()(tx)

    waiters = [world.wait_for(work, same="a") for _ in range(4)]
    told.clear()
    world.writer.write(lambda tx: setattr(tx.notes, "wake", True))
    assert told == ["swept"]
    world.writer.close()
    assert len([waiter.error() for waiter in waiters]) == 4

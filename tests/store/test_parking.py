"""Waiting requests are parked with the writer and served in the commit that adds what they wait for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rota.store import Transaction
from tests.store.world import Caller, World, put, put_all, take


def counting(log: list[str], name: str, pattern: str = "none such") -> Callable[[Transaction], list[str]]:
    """Work that takes a word and logs each try."""

    def work(tx: Transaction) -> list[str]:
        log.append(name)
        return take(pattern)(tx)

    return work


# --- woken by a commit ---------------------------------------------------------------------------


def test_a_request_that_finds_something_does_not_wait(world: World) -> None:
    world.writer.write(put("word"))
    assert world.writer.wait(take(), 3_600, "words") == ["word"]
    assert world.writer.parked == 0
    assert world.writer._thread is None


def test_without_a_positive_timeout_the_result_is_empty(world: World) -> None:
    for timeout_s in (0, 0.0, -1.0, float("nan")):
        assert world.writer.wait(take(), timeout_s, "words") == []
    assert world.writer.parked == 0


def test_a_waiter_is_served_in_the_commit_that_adds_its_word(world: World) -> None:
    waiter = world.wait()
    world.engine.log.clear()
    world.writer.write(put("word"))
    assert waiter.outcome() == ["word"]
    assert world.commits == 1
    assert world.words() == []
    assert world.writer._thread is None  # on the thread of the writing caller


def test_a_write_that_does_not_wake_leaves_a_waiter_parked(world: World) -> None:
    log: list[str] = []
    waiter = world.wait_for(counting(log, "waiter", "%"))
    world.writer.write(put("quiet", wake=False))
    assert log == ["waiter"]
    world.writer.write(put("loud"))
    assert waiter.outcome() == ["quiet"]


def test_a_foreign_commit_wakes_a_waiter(world: World) -> None:
    waiter = world.wait()
    world.writer.write(put("word", wake=False))
    assert world.writer.parked == 1
    world.engine.foreign = True
    world.writer.write(lambda _tx: None)
    assert waiter.outcome() == ["word"]


def test_check_foreign_commit_wakes_waiters_and_reports_the_commit(world: World) -> None:
    waiter = world.wait()
    world.writer.write(put("word", wake=False))
    assert world.writer.check_foreign_commit() is False
    assert world.writer.parked == 1
    world.engine.foreign = True
    assert world.writer.check_foreign_commit() is True
    assert waiter.outcome() == ["word"]
    assert world.writer.check_foreign_commit() is False


def test_a_foreign_commit_noticed_by_a_write_is_still_reported(world: World) -> None:
    waiter = world.wait()
    world.engine.foreign = True
    world.writer.write(lambda _tx: None)  # it notices the foreign commit
    assert world.writer.check_foreign_commit() is True  # and the listener thread still learns of it
    assert world.writer.check_foreign_commit() is False
    world.writer.write(put("word"))
    waiter.outcome()


# --- order ---------------------------------------------------------------------------------------


def test_the_oldest_waiter_is_served_first_and_one_word_wakes_one(world: World) -> None:
    waiters = [world.wait() for _ in range(5)]
    for n, waiter in enumerate(waiters):
        world.writer.write(put(f"word {n}"))
        assert waiter.outcome() == [f"word {n}"]
        assert [later.is_done for later in waiters[n + 1 :]] == [False] * (4 - n)
    assert world.writer.parked == 0


def test_several_words_in_one_commit_serve_several_waiters_in_order(world: World) -> None:
    waiters = [world.wait() for _ in range(4)]

    world.writer.write(put_all([f"word {n}" for n in range(3)]))
    assert [waiter.outcome() for waiter in waiters[:3]] == [["word 0"], ["word 1"], ["word 2"]]
    assert not waiters[3].is_done
    world.writer.write(put("word 3"))
    assert waiters[3].outcome() == ["word 3"]


def test_a_try_without_success_keeps_the_order_of_waiters(world: World) -> None:
    old = world.wait("a%", equivalence_key="a")
    middle = world.wait("%", equivalence_key="any")
    for _ in range(3):
        world.writer.write(
            lambda tx: setattr(tx.effects, "wake_parked", True)
        )  # every waiter is tried and finds nothing
    new = world.wait("a%", equivalence_key="a")
    world.writer.write(put("a 1"))
    assert old.outcome() == ["a 1"]
    world.writer.write(put("a 2"))
    assert middle.outcome() == ["a 2"]
    world.writer.write(put("a 3"))
    assert new.outcome() == ["a 3"]


def test_a_new_request_takes_nothing_from_older_waiters(world: World) -> None:
    old = world.wait()
    with world.busy():
        writer = world.write(put("word"))
        world.queue.until(1)
        new = Caller(lambda: world.writer.wait(take(), 3_600, "words"))
        world.queue.until(2)
    writer.outcome()
    assert old.outcome() == ["word"]
    world.parked.until(1)
    assert not new.is_done
    world.writer.write(put("next"))
    assert new.outcome() == ["next"]


def test_a_new_request_sees_what_a_later_write_of_its_batch_adds(world: World) -> None:
    with world.busy():
        waiter = Caller(lambda: world.writer.wait(take(), 3_600, "words"))
        world.queue.until(1)
        writer = world.write(put("word"))
        world.queue.until(2)
    writer.outcome()
    assert waiter.outcome() == ["word"]  # else it would be parked while its word is there


def test_a_new_request_is_parked_behind_older_waiters(world: World) -> None:
    old = world.wait()
    with world.busy():
        new = Caller(lambda: world.writer.wait(take(), 3_600, "words"))
        world.queue.until(1)
        nothing = world.write(lambda tx: setattr(tx.effects, "wake_parked", True))
        world.queue.until(2)
    nothing.outcome()
    world.parked.until(2)
    world.writer.write(put("word"))
    assert old.outcome() == ["word"]
    assert not new.is_done
    world.writer.write(put("next"))
    assert new.outcome() == ["next"]


# --- equivalent requests -------------------------------------------------------------------------


def test_equivalent_waiters_are_skipped_when_the_first_finds_nothing(world: World) -> None:
    log: list[str] = []
    waiters = [world.wait_for(counting(log, f"a{n}"), equivalence_key="a") for n in range(3)]
    waiters += [world.wait_for(counting(log, f"b{n}"), equivalence_key="b") for n in range(2)]
    log.clear()
    world.writer.write(put("word"))
    assert log == ["a0", "b0"]
    world.writer.close()
    assert len([waiter.error() for waiter in waiters]) == 5


def test_waiters_without_an_equivalence_key_are_all_tried(world: World) -> None:
    log: list[str] = []
    waiters = [world.wait_for(counting(log, str(n)), equivalence_key=None) for n in range(3)]
    lucky = world.wait("word", equivalence_key=None)
    log.clear()
    world.writer.write(put("word"))
    assert log == ["0", "1", "2"]
    assert lucky.outcome() == ["word"]
    world.writer.close()
    assert len([waiter.error() for waiter in waiters]) == 3


def test_equivalent_waiters_are_tried_until_one_finds_nothing(world: World) -> None:
    log: list[str] = []
    waiters = [world.wait_for(counting(log, str(n), "%"), equivalence_key="a") for n in range(3)]
    log.clear()
    world.writer.write(put("word"))
    assert log == ["0", "1"]  # the first got it, the second found nothing, the third was skipped
    assert waiters[0].outcome() == ["word"]
    world.writer.write(put("word"))
    world.writer.write(put("word"))
    assert [waiter.outcome() for waiter in waiters[1:]] == [["word"], ["word"]]


def test_an_unhashable_equivalence_key_is_refused(world: World) -> None:
    with pytest.raises(TypeError, match="unhashable"):
        world.writer.wait(take(), 3_600, ["a list"])  # type: ignore[arg-type]
    assert world.writer.write(put("word")) == 1


def test_a_waiter_that_raises_gets_its_error_and_the_others_are_served(world: World) -> None:
    def fail(tx: Transaction) -> list[str]:
        if take("%")(tx):
            raise KeyError("mine")
        return []

    bad, good = world.wait_for(fail, equivalence_key="bad"), world.wait(equivalence_key="good")
    world.writer.write(put("word"))
    assert isinstance(bad.error(), KeyError)
    assert good.outcome() == ["word"]  # the word that the other had taken is back
    assert world.writer.parked == 0


def test_a_served_waiter_that_wakes_others_has_them_tried_again(world: World) -> None:
    first = world.wait("b", equivalence_key="b")

    def exchange(tx: Transaction) -> list[str]:
        got = take("a")(tx)
        for _ in got:
            put("b")(tx)
        return got

    second = world.wait_for(exchange, equivalence_key="a")
    world.writer.write(put("a"))
    assert second.outcome() == ["a"]
    assert first.outcome() == ["b"]


def test_skipped_waiters_do_not_repeat_the_effects_of_the_first(world: World) -> None:
    called = []

    def work(tx: Transaction) -> list[str]:
        tx.effects.on_commit.append(lambda: called.append("swept"))
        return take()(tx)

    waiters = [world.wait_for(work, equivalence_key="a") for _ in range(4)]
    called.clear()
    world.writer.write(lambda tx: setattr(tx.effects, "wake_parked", True))
    assert called == ["swept"]
    world.writer.close()
    assert len([waiter.error() for waiter in waiters]) == 4

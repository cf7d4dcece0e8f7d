"""Bells: who hangs one is rung, who is gone is forgotten, and nothing about them is ever an error."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.store import ipc_notify
from rota.store.ipc_notify import Bells, Board, Watch
from tests.store.world import acquire


class House:
    """A file with a lock file beside it, at whose door bells are hung."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "rota.db")
        self.folder = Path(f"{self.path}-bells")
        self._lock = os.open(f"{self.path}-lock", os.O_RDWR | os.O_CREAT)
        self._boards: list[Board] = []
        self._made: list[Bells] = []

    def board(self) -> Board:
        self._boards.append(Board(self._lock))
        return self._boards[-1]

    def bells(self) -> Bells:
        self._made.append(Bells(self.path, self.board()))
        return self._made[-1]

    def close(self) -> None:
        for bells in self._made:
            bells.take_down()
            bells.close()
        for board in self._boards:
            board.close()
        os.close(self._lock)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.close()


@pytest.fixture
def no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipc_notify, "POLL_S", 3_600.0)


def test_where_nobody_listens_ringing_makes_nothing(house: House) -> None:
    house.bells().ring()
    assert not house.folder.exists()


def test_every_bell_is_rung_but_ones_own(house: House) -> None:
    all_bells = [house.bells() for _ in range(4)]
    ends = [bells.hang() for bells in all_bells]
    all_bells[0].ring()
    for place, end in enumerate(ends):
        assert end is not None
        if place == 0:
            with pytest.raises(BlockingIOError):
                end.recv(64)
        else:
            assert end.recv(64) == b"!"


def test_a_bell_that_was_hung_a_moment_ago_is_rung(house: House) -> None:
    """Two changes of a folder within one tick of the system's clock look like one: none may be missed for that."""
    ringer = house.bells()
    for _ in range(200):
        newcomer = house.bells()
        end = newcomer.hang()
        ringer.ring()
        assert end is not None
        assert end.recv(64) == b"!"
        newcomer.take_down()


def test_a_bell_that_nobody_answers_yet_stays_where_it_is(house: House) -> None:
    slow, ringer = house.bells(), house.bells()
    end = slow.hang()
    for _ in range(2_000):  # more than the system keeps for one who does not listen
        ringer.ring()
    assert len(list(house.folder.iterdir())) == 1
    assert end is not None
    assert end.recv(64) == b"!"


def test_the_bell_of_one_who_is_gone_is_taken_down(house: House) -> None:
    gone, ringer = house.bells(), house.bells()
    end = gone.hang()
    assert end is not None
    end.close()  # and its name is left behind
    assert len(list(house.folder.iterdir())) == 1
    ringer.ring()
    assert list(house.folder.iterdir()) == []


def test_short_of_descriptors_a_ring_is_lost_and_no_bell_is_thrown_away(house: House) -> None:
    listener, ringer = house.bells(), house.bells()
    end = listener.hang()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        ringer.ring()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(list(house.folder.iterdir())) == 1
    ringer.ring()
    assert end is not None
    assert end.recv(64) == b"!"


def test_where_the_folder_cannot_be_made_there_is_no_bell_and_no_error(house: House) -> None:
    house.folder.write_text("not a folder")
    bells = house.bells()
    assert bells.hang() is None
    bells.ring()


@pytest.mark.usefixtures("no_poll")
def test_a_watch_looks_when_its_bell_is_rung_and_many_rings_are_one(house: House) -> None:
    looks, ringer = threading.Semaphore(0), house.bells()
    watch = Watch(house.bells(), looks.release)
    while not (house.folder.exists() and list(house.folder.iterdir())):
        os.sched_yield()
    for _ in range(3):
        ringer.ring()
        acquire(looks)
    watch.stop()
    assert list(house.folder.iterdir()) == []


def test_a_watch_without_a_bell_looks_all_the_same(house: House) -> None:
    looks = threading.Semaphore(0)
    house.folder.write_text("not a folder")
    watches = [Watch(house.bells(), looks.release), Watch(None, looks.release)]
    for _ in range(4):
        acquire(looks)
    for watch in watches:
        watch.stop()


@pytest.mark.usefixtures("no_poll")
def test_a_watch_works_in_a_process_with_thousands_of_open_files(house: House) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[1], 4_096), limits[1]))
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    try:
        looks, ringer = threading.Semaphore(0), house.bells()
        watch = Watch(house.bells(), looks.release)
        while not (house.folder.exists() and list(house.folder.iterdir())):
            os.sched_yield()
        ringer.ring()
        acquire(looks)
        watch.stop()
    finally:
        for descriptor in others:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_look_that_fails_is_on_record_and_the_next_one_comes(house: House, caplog: pytest.LogCaptureFixture) -> None:
    looks = threading.Semaphore(0)

    def look() -> None:
        looks.release()
        raise RuntimeError("cannot see")

    watch = Watch(house.bells(), look)
    for _ in range(3):
        acquire(looks)
    watch.stop()
    assert "cannot see" in caplog.text


def test_all_who_hold_the_file_see_the_same_board(house: House) -> None:
    one, two = house.board(), house.board()
    one.last_comer[:] = b"a name.."
    one.mark = b"12345678"
    assert two.mark == b"12345678"
    assert bytes(two.last_comer) == b"a name.."

"""What runs here is kept off leased cores, and gets its own cores back: also what starts while that is done."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import rota.host.confinement
from rota.host.confinement import Confinement
from rota.host.thread_settings import allowed_cores, pin

USABLE = allowed_cores()
LEASED = max(USABLE)
OPEN = USABLE - {LEASED}
pytestmark = pytest.mark.skipif(len(USABLE) < 2, reason="a lease needs two cores")
# forks a child for every line, and prints its number
FORKS = """
import os, sys, time
for _ in sys.stdin:
    child = os.fork()
    if not child:
        while True:
            time.sleep(60)
    print(child, flush=True)
"""


class Forking:
    """A process that starts another one when it is told."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def fork(self) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@pytest.fixture
def confinement() -> Iterator[Confinement]:
    found = Confinement()
    yield found
    found.set_open(USABLE)
    assert allowed_cores() == USABLE


@pytest.fixture
def forking() -> Iterator[Forking]:
    with ExitStack() as ending:
        command = [sys.executable, "-I", "-c", FORKS]
        process = subprocess.Popen(command, stdin=-1, stdout=-1, text=True, start_new_session=True)
        ending.enter_context(process)
        ending.callback(subprocess.run, ["pkill", "-KILL", "-s", str(process.pid)], check=False)
        yield Forking(process)


def test_everything_is_confined_and_gets_its_cores_back(confinement: Confinement, forking: Forking) -> None:
    child = forking.fork()
    confinement.set_open(OPEN)
    later = forking.fork()
    for pid in (0, forking.pid, child, later):
        assert allowed_cores(pid) == OPEN
    confinement.set_open(USABLE)
    for pid in (0, forking.pid, child, later):
        assert allowed_cores(pid) == USABLE


@pytest.mark.parametrize("is_confined_first", [True, False])
def test_one_that_starts_while_its_parent_is_confined_gets_back_what_its_parent_does(
    confinement: Confinement, forking: Forking, monkeypatch: pytest.MonkeyPatch, is_confined_first: bool
) -> None:
    children: list[int] = []

    def while_forking(pid: int, cores: frozenset[int], **options: Any) -> None:
        forks = pid == forking.pid and not children
        if forks and not is_confined_first:
            children.append(forking.fork())
        pin(pid, cores, **options)
        if forks and is_confined_first:
            children.append(forking.fork())

    monkeypatch.setattr(rota.host.confinement, "pin", while_forking)
    confinement.set_open(OPEN)
    assert [allowed_cores(pid) for pid in (forking.pid, *children)] == [OPEN, OPEN]
    confinement.set_open(USABLE)
    assert [allowed_cores(pid) for pid in (forking.pid, *children)] == [USABLE, USABLE]


@pytest.mark.parametrize("own", [OPEN, frozenset({LEASED})])
def test_one_that_had_chosen_its_cores_has_them_afterwards(
    confinement: Confinement, forking: Forking, own: frozenset[int]
) -> None:
    pin(forking.pid, own)
    confinement.set_open(OPEN)
    child = forking.fork()
    assert [allowed_cores(pid) for pid in (forking.pid, child)] == [OPEN, OPEN]
    confinement.set_open(USABLE)
    assert [allowed_cores(pid) for pid in (forking.pid, child)] == [own, own]


def test_one_that_chooses_its_cores_meanwhile_keeps_them(confinement: Confinement, forking: Forking) -> None:
    confinement.set_open(OPEN)
    pin(forking.pid, {LEASED})
    confinement.set_open(USABLE)
    assert allowed_cores(forking.pid) == {LEASED}


@pytest.mark.parametrize(
    ("at_start", "opened", "then"),
    [
        pytest.param(USABLE, OPEN, OPEN, id="a lease began"),
        pytest.param(OPEN, USABLE, USABLE, id="a lease ended"),
    ],
)
def test_a_session_whose_cores_were_decided_before_leases_changed(
    confinement: Confinement,
    forking: Forking,
    at_start: frozenset[int],
    opened: frozenset[int],
    then: frozenset[int],
) -> None:
    confinement.set_open(opened)
    pin(forking.pid, at_start)
    child = forking.fork()
    confinement.started(forking.pid, USABLE)
    assert [allowed_cores(pid) for pid in (forking.pid, child)] == [then, then]
    confinement.set_open(USABLE)
    assert [allowed_cores(pid) for pid in (forking.pid, child)] == [USABLE, USABLE]


def test_the_owner_of_a_lease_keeps_its_cores(confinement: Confinement, forking: Forking) -> None:
    child = forking.fork()
    confinement.hold(forking.pid, frozenset({LEASED}))
    confinement.set_open(OPEN)
    assert [allowed_cores(pid) for pid in (0, forking.pid, child)] == [OPEN, {LEASED}, {LEASED}]


def test_a_thread_of_this_process_has_its_leased_cores_with_what_it_starts(confinement: Confinement) -> None:
    """Also when other leases begin and end; everything else stays off them, and the thread goes back afterwards."""
    found: list[Any] = []
    done = threading.Event()

    def look() -> None:
        found.append(allowed_cores())

    def look_later() -> None:
        done.wait()
        look()

    def run() -> None:
        with confinement.placed(frozenset({LEASED}), leased=True):
            helper = subprocess.Popen(["sleep", "60"])
            for cores in (USABLE, OPEN):
                confinement.set_open(cores)
                found.extend([allowed_cores(), allowed_cores(helper.pid), allowed_cores(os.getpid())])
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()
            helper.kill()
            helper.wait()
            stays = threading.Thread(target=look_later)
            stays.start()
        look()
        done.set()
        stays.join()

    confinement.set_open(OPEN)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    leased = frozenset({LEASED})
    assert found == [leased, leased, USABLE, leased, leased, OPEN, leased, OPEN, OPEN]


def test_a_thread_that_names_its_cores_keeps_to_those_of_them_that_are_open(confinement: Confinement) -> None:
    found = []

    def run() -> None:
        with confinement.placed(frozenset({LEASED}), leased=False):
            for cores in (USABLE, OPEN, USABLE):
                confinement.set_open(cores)
                found.append(allowed_cores())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [frozenset({LEASED}), OPEN, frozenset({LEASED})]

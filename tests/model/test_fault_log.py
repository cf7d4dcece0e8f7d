"""Faults that last are logged once; the next one, and the same one after a success, are logged again."""

from __future__ import annotations

import pytest

from rota.errors import StoreUnavailable
from rota.fault_log import FAULTS_MAX, FaultLog


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.fixture
def faults() -> FaultLog:
    return FaultLog("rota.test")


def test_a_fault_is_logged_once_another_one_too_and_the_same_again_after_a_success(
    faults: FaultLog, caplog: pytest.LogCaptureFixture
) -> None:
    away, full = StoreUnavailable("away"), StoreUnavailable("full")
    for problem in (away, away, full, away, full):  # two that alternate would fill a log as well
        faults.failed("the loop", problem, then="continuing")
    assert caplog.messages == [f"the loop: {away}; continuing", f"the loop: {full}; continuing"]
    faults.worked()
    faults.failed("the loop", away)
    assert caplog.messages[2:] == [f"the loop: {away}"]


def test_a_server_that_cannot_be_reached_is_one_fault_whatever_it_says_of_it(
    faults: FaultLog, caplog: pytest.LogCaptureFixture
) -> None:
    for text in ("it is shutting down", "connection refused", "it is starting up"):
        faults.failed("the loop", StoreUnavailable(text, address="server/database"))
    faults.failed("the loop", StoreUnavailable("connection refused", address="another"))
    assert [message.partition(".")[0] for message in caplog.messages] == [
        "the loop: it is shutting down",
        "the loop: connection refused",
    ]


def test_only_an_unexpected_error_has_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    faults = FaultLog("rota.test", expected=OSError)
    for problem in (OSError("no room"), ValueError("a defect"), ValueError("a defect")):
        faults.failed("the loop", problem)
    assert [(record.levelname, record.getMessage(), bool(record.exc_info)) for record in caplog.records] == [
        ("WARNING", "the loop: no room", False),
        ("ERROR", "the loop: unexpected error", True),
    ]
    assert caplog.text.count("ValueError: a defect") == 1


def test_each_task_has_faults_of_its_own(faults: FaultLog, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        for task in ("first", "second"):
            faults.failed(task, StoreUnavailable("away"), of=task)
        faults.worked("third")
    assert len(caplog.messages) == 2
    faults.worked("first")
    assert faults.is_failing
    faults.worked("second")
    assert not faults.is_failing


def test_a_text_that_differs_at_every_attempt_does_not_fill_the_log(
    faults: FaultLog, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3 * FAULTS_MAX):
        faults.failed("the loop", KeyError(number))
    assert len(caplog.messages) == FAULTS_MAX
    assert caplog.messages[-1] == "the loop: unexpected error; further errors are not logged until it succeeds"


def test_an_error_without_a_text_is_logged(faults: FaultLog, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        faults.failed("the loop", Unspeakable())
    assert caplog.messages == ["the loop: unexpected error"]

"""Fault isolation: severity, recovery of the agent, and records."""

from __future__ import annotations

import pytest

from rota.errors import InvalidPayload
from rota.tick import AgentDescriptor, AgentProcessState, FaultIsolation, FaultSeverity, ProcessTable
from rota.tick.faults import RECORDS_MAX, Phase, classify

READY, RUNNING, BLOCKED, TERMINATED = list(AgentProcessState)[1:]


def world_of(state: AgentProcessState = RUNNING, quarantine_ticks: int = 3) -> tuple[ProcessTable, FaultIsolation]:
    table = ProcessTable()
    table.spawn_agent(AgentDescriptor(state=READY))
    path = {READY: [], RUNNING: [RUNNING], BLOCKED: [RUNNING, BLOCKED], TERMINATED: [TERMINATED]}
    for target in path[state]:
        table.transition_state(1, target)
    return table, FaultIsolation(table, quarantine_ticks=quarantine_ticks)


def raised(error: Exception) -> Exception:
    """An exception with a traceback, as if it had been caught."""
    try:
        _agent_code(error)
    except Exception as caught:
        return caught
    raise AssertionError


def _agent_code(error: Exception) -> None:
    raise error


class OddError(Exception):
    pass


class TiredError(RecursionError):
    pass


class LateError(TimeoutError, ValueError):
    pass


@pytest.mark.parametrize(
    ("error", "severity"),
    [
        *[(kind(), "RECOVERABLE") for kind in (ValueError, KeyError, IndexError, TypeError, AttributeError)],
        *[(kind(), "RECOVERABLE") for kind in (ArithmeticError, ZeroDivisionError, UnicodeError)],
        (InvalidPayload("no"), "RECOVERABLE"),  # it is a ValueError too
        *[(kind(), "QUARANTINE") for kind in (RuntimeError, TimeoutError, OSError, ConnectionError)],
        *[(kind(), "EXILE") for kind in (RecursionError, MemoryError, SystemError)],
        (TiredError(), "EXILE"),  # its base classes are RecursionError and RuntimeError: the most severe counts
        (LateError(), "QUARANTINE"),
        (OddError(), "QUARANTINE"),  # not listed
    ],
)
def test_severity_depends_on_the_exact_type_then_on_base_classes_most_severe_first(
    error: Exception, severity: str
) -> None:
    assert classify(error) == severity


@pytest.mark.parametrize("state", [READY, RUNNING, BLOCKED])
def test_recovery_by_severity_from_any_state(state: AgentProcessState) -> None:
    after = {}
    for error in (ValueError(), RuntimeError(), MemoryError()):
        table, faults = world_of(state)
        record = faults.handle(1, 10, error)
        after[record.severity] = (table.state(1), table.get_descriptor(1).blocked_until_tick, record.recovery_action)
    assert after == {
        FaultSeverity.RECOVERABLE: (READY, None, "ready again"),
        FaultSeverity.QUARANTINE: (BLOCKED, 13, "blocked until tick 13"),
        FaultSeverity.EXILE: (TERMINATED, None, "terminated"),
    }


@pytest.mark.parametrize("error", [ValueError(), RuntimeError(), MemoryError()])
def test_an_agent_that_had_ended_already_stays_ended(error: Exception) -> None:
    table, faults = world_of(TERMINATED)
    assert faults.handle(1, 10, error).recovery_action == "none: the agent had ended already"
    assert table.state(1) is TERMINATED


def test_quarantine_lasts_for_the_configured_ticks() -> None:
    table, faults = world_of(quarantine_ticks=7)
    faults.handle(1, 10, OSError())
    assert table.unblock_expired(16) == []
    assert table.unblock_expired(17) == [1]
    with pytest.raises(InvalidPayload):
        FaultIsolation(table, quarantine_ticks=0)


def test_a_record_has_the_agent_tick_phase_and_error() -> None:
    _, faults = world_of()
    record = faults.handle(1, 10, raised(ValueError("x" * 500)), Phase.DECIDE)
    assert (record.pid, record.agent_id, record.tick, record.phase) == (1, "agent_0001", 10, "DECIDE")
    assert (record.exception_type, record.message, record.severity) == ("ValueError", "x" * 200, "RECOVERABLE")
    assert len(record.traceback_hash) == 12
    assert list(faults.records) == [record]


def test_failures_at_the_same_place_have_the_same_traceback_hash() -> None:
    _, faults = world_of()
    same = {faults.handle(1, 0, raised(ValueError(text))).traceback_hash for text in ("a", "b")}
    other_kind = faults.handle(1, 0, raised(KeyError("a"))).traceback_hash
    nowhere = faults.handle(1, 0, ValueError()).traceback_hash
    assert len({*same, other_kind, nowhere}) == 3


def test_endless_recursion_has_one_traceback_hash_from_whatever_depth() -> None:
    def endless() -> None:
        endless()

    def deeper(levels: int) -> Exception:
        if levels:
            return deeper(levels - 1)
        try:
            endless()
        except RecursionError as caught:
            return caught
        raise AssertionError

    _, faults = world_of(TERMINATED)
    assert len({faults.handle(1, 0, deeper(levels)).traceback_hash for levels in (0, 7, 20)}) == 1


def test_an_exception_whose_message_cannot_be_read_is_recorded() -> None:
    class Mute(ValueError):
        def __str__(self) -> str:
            raise RuntimeError

    _, faults = world_of()
    assert faults.handle(1, 0, Mute()).message == "(its message could not be read)"


def test_the_healthy_ratio_counts_living_agents_that_never_failed() -> None:
    table, faults = world_of()
    assert FaultIsolation(ProcessTable()).get_healthy_ratio() == 1.0
    for _ in range(3):
        table.spawn_agent(AgentDescriptor(state=READY))
    assert faults.get_healthy_ratio() == 1.0
    faults.handle(1, 0, ValueError())
    faults.handle(1, 1, ValueError())
    assert faults.get_healthy_ratio() == 3 / 4
    faults.handle(2, 1, MemoryError())  # exiled: it is not counted
    assert faults.get_healthy_ratio() == 2 / 3
    assert (faults.fault_count(), faults.fault_count(1), faults.fault_count(3)) == (3, 2, 0)


def test_old_records_are_dropped_but_still_count_and_are_in_the_hash() -> None:
    _, faults = world_of()
    _, shorter = world_of()
    for tick in range(RECORDS_MAX + 1):
        faults.handle(1, tick, ValueError())
        if tick:
            shorter.handle(1, tick, ValueError())
    assert len(faults.records) == RECORDS_MAX
    assert list(faults.records) == list(shorter.records)
    assert faults.fault_count() == RECORDS_MAX + 1
    assert faults.to_hash() != shorter.to_hash()

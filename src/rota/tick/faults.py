"""Fault isolation: the failure of one agent does not affect the others.

An exception that leaves an agent's step gets a severity, which decides what happens to the agent. The tick continues.

    severity      examples                                the agent
    RECOVERABLE   ValueError, KeyError, TypeError, …      stays ready: it runs again next tick
    QUARANTINE    RuntimeError, TimeoutError, OSError     is blocked for `quarantine_ticks`
    EXILE         RecursionError, MemoryError, …          is terminated

The exact type is looked up first, then its base classes, most severe first. Both steps matter: RecursionError is a
RuntimeError, and is an EXILE; ZeroDivisionError is not listed, but is an ArithmeticError. Other exceptions are
quarantined. KeyboardInterrupt and SystemExit are not failures of an agent and are not caught.
"""

from __future__ import annotations

import hashlib
import traceback
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import PurePath

from rota.errors import InvalidPayload
from rota.model.checks import Checks
from rota.model.lifecycle import AgentProcessState
from rota.tick.process_table import ProcessTable

__all__ = ["FaultIsolation", "FaultRecord", "FaultSeverity", "Phase", "classify"]

QUARANTINE_TICKS = 3
MESSAGE_CHARS_MAX = 200
TRACEBACK_HASH_CHARS = 12
RECORDS_MAX = 10_000  # kept; older ones still count and are part of the hash

_checks = Checks("FaultIsolation", InvalidPayload)


class FaultSeverity(StrEnum):
    """How severe a failure is."""

    RECOVERABLE = "RECOVERABLE"
    QUARANTINE = "QUARANTINE"
    EXILE = "EXILE"


class Phase(StrEnum):
    """The phase of a step. A step that is a plain function is all ACT."""

    OBSERVE = "OBSERVE"
    DECIDE = "DECIDE"
    ACT = "ACT"


# most severe first: the order in which base classes are tried
_KINDS: Mapping[FaultSeverity, tuple[type[Exception], ...]] = {
    FaultSeverity.EXILE: (RecursionError, MemoryError, SystemError),
    FaultSeverity.QUARANTINE: (RuntimeError, TimeoutError, OSError),
    FaultSeverity.RECOVERABLE: (ValueError, KeyError, IndexError, TypeError, AttributeError, ArithmeticError),
}
_EXACT = {kind: severity for severity, kinds in _KINDS.items() for kind in kinds}


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """One failure of one agent."""

    pid: int
    agent_id: str
    tick: int
    phase: Phase
    exception_type: str
    message: str  # the first 200 characters
    traceback_hash: str  # equal for failures at the same place
    severity: FaultSeverity
    recovery_action: str


def classify(error: BaseException) -> FaultSeverity:
    """Return the severity of an exception: by its exact type, then by its base classes, else QUARANTINE."""
    exact = _EXACT.get(type(error))  # type: ignore[arg-type]  # another type is not found
    if exact is not None:
        return exact
    for severity, kinds in _KINDS.items():
        if isinstance(error, kinds):
            return severity
    return FaultSeverity.QUARANTINE


class FaultIsolation:
    """Handles and records the failures of the agents of a table."""

    def __init__(self, process_table: ProcessTable, *, quarantine_ticks: int = QUARANTINE_TICKS) -> None:
        self.process_table = process_table
        self.quarantine_ticks = _checks.whole("quarantine_ticks", quarantine_ticks, 1)
        self.records: deque[FaultRecord] = deque(maxlen=RECORDS_MAX)
        self._faults: Counter[int] = Counter()  # by pid
        self._digest = hashlib.sha256()  # of every record, kept or not

    def handle(self, pid: int, tick: int, error: Exception, phase: Phase = Phase.ACT) -> FaultRecord:
        """Recover the agent according to the severity of its failure, and record the failure."""
        severity = classify(error)
        record = FaultRecord(
            pid=pid,
            agent_id=self.process_table.agent_id(pid),
            tick=tick,
            phase=phase,
            exception_type=type(error).__name__,
            message=_message(error),
            traceback_hash=traceback_hash(error),
            severity=severity,
            recovery_action=self._recover(pid, tick, severity),
        )
        self.records.append(record)
        self._faults[pid] += 1
        self._digest.update(repr(asdict(record)).encode(errors="backslashreplace"))
        return record

    def fault_count(self, pid: int | None = None) -> int:
        """The number of failures of one agent, or of all agents."""
        return self._faults.total() if pid is None else self._faults[pid]

    def get_healthy_ratio(self) -> float:
        """The part of the living agents that never failed; 1.0 if no agent lives."""
        table = self.process_table
        alive = len(table) - table.count(AgentProcessState.TERMINATED)
        faulty = sum(table.state(pid) is not AgentProcessState.TERMINATED for pid in self._faults)
        return (alive - faulty) / alive if alive else 1.0

    def to_hash(self) -> str:
        """SHA-256 of every failure so far: equal runs give equal hashes."""
        return self._digest.hexdigest()

    # --- recovery -------------------------------------------------------------------------------

    def _recover(self, pid: int, tick: int, severity: FaultSeverity) -> str:
        if self.process_table.state(pid) is AgentProcessState.TERMINATED:
            return "none: the agent had ended already"
        if severity is FaultSeverity.EXILE:
            self.process_table.terminate(pid, tick, "exiled after a fault")
            return "terminated"
        self._make_ready(pid)
        if severity is FaultSeverity.RECOVERABLE:
            return "ready again"
        until_tick = tick + self.quarantine_ticks
        self.process_table.set_running(pid)  # only a running agent can be blocked
        self.process_table.block(pid, until_tick)
        return f"blocked until tick {until_tick}"

    def _make_ready(self, pid: int) -> None:
        if self.process_table.state(pid) is not AgentProcessState.READY:
            self.process_table.set_ready(pid)


def _message(error: Exception) -> str:
    """Return the message of an exception; one whose `__str__` raises must not fail the tick."""
    try:
        return str(error)[:MESSAGE_CHARS_MAX]
    except Exception:  # __str__ is the agent's code and may raise anything
        return "(its message could not be read)"


def traceback_hash(error: Exception) -> str:
    """Twelve hex digits over the source lines that an exception passed through in the agent's code.

    Each line counts once, so that endless recursion gives the same digits from any depth, and only file names count,
    not their directories.
    """
    frames = list(traceback.walk_tb(error.__traceback__))[1:]  # the first frame called the agent
    names = ((PurePath(frame.f_code.co_filename).name, line, frame.f_code.co_name) for frame, line in frames)
    places = dict.fromkeys(f"{file}:{line}:{function}" for file, line, function in names)
    text = "\n".join([type(error).__name__, *places])
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:TRACEBACK_HASH_CHARS]

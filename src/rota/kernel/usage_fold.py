"""Usage per day as a fold over the journal: what each agent ran, used and waited, by model.

Charges, claims and ends of runs are events. This file adds them up, one event after the other, into rows of
`usage_daily`: one for each day (UTC), agent and model. `usage.py` reads the events and writes the rows.

    event                            adds
    kernel.sched.completed           a run, and its wait from ready to claimed; a failure if it failed or crashed
    kernel.sched.returned            the same, if the attempt is tried again; only the wait for yield and preempt
    kernel.run.ended                 CPU time and run time, as its supervisor measured them
    kernel.ledger.charged, refunded  tokens and cost; a refund subtracts, on its own day

A few facts of an entry are needed later than they are recorded: the model that it named last, under which its run is
counted; how long it waited for its claim; and when its predecessors had ended, before which it was not ready. They are
kept per entry (`EntryNote`) until the entry ends, so the fold can stop after any event and go on in another process.

Waits are counted by size: the wait of n milliseconds is in the class of n's bit length. So a percentile is exact to a
factor of two, and a row has at most `SIZES_MAX` numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from rota.decoding import decode_json
from rota.errors import StoreCorrupt
from rota.model import events as facts
from rota.model.checks import INTEGER_MAX, SECONDS_MAX
from rota.model.event_codec import decode
from rota.model.events import Event
from rota.model.usage import FAILED, SUMMED, DayUsage, add_sizes

__all__ = ["FOLDED_KINDS", "NO_AGENT", "DayKey", "EntryNote", "FoldedUsage", "UsageFold", "entries_of", "merged"]

DAY_S = 86_400
SIZES_MAX = 48  # classes of waits: the last one begins at 2**47 ms
NO_AGENT = 0  # of an entry whose row is gone: it was removed before its events were added up
FOLDED_KINDS = tuple(
    kind.kind
    for kind in (
        facts.EntriesClaimed, facts.EntriesCompleted, facts.EntriesReturned, facts.EntriesReleased,
        facts.EntriesExpired, facts.EntriesCancelled, facts.RunEnded, facts.LedgerCharged, facts.LedgerRefunded,
    )
)  # fmt: skip
_AMOUNTS = ("tokens", "input_tokens", "cached_input_tokens", "output_tokens", "cost_micro")
DayKey = tuple[int, int, str]  # day, agent, model ("": none)


class EntryNote(msgspec.Struct, frozen=True):
    """What the fold knows of an entry that has not ended."""

    model: str = ""
    released_at: float | None = None  # when its predecessors had ended
    waited_ms: int | None = None  # for its live claim


class FoldedUsage(msgspec.Struct):
    """What some events add: to each day, agent and model, and to the notes; a note of None is deleted."""

    days: dict[DayKey, DayUsage] = {}
    notes: dict[int, EntryNote | None] = {}


def entries_of(events: Iterable[Event]) -> set[int]:
    """Return the entries that the fold of these events looks up."""
    found: set[int] = set()
    for event in events:
        for entry in _list(event.payload.get("entries")):
            if isinstance(entry, list):
                found.update(each for each in entry[:1] if type(each) is int)
        found.update(each for each in _list(event.payload.get("sched_ids")) if type(each) is int)
        if type(one := event.payload.get("sched_id")) is int:
            found.add(one)
    return found


def _list(value: Any) -> list[Any]:
    """Return a list as it is, and nothing for what a damaged payload has instead."""
    return value if isinstance(value, list) else []


class UsageFold:
    """Adds up events in order."""

    def __init__(self, agent_of: Callable[[int], int], notes: Mapping[int, EntryNote]) -> None:
        """`agent_of` returns the agent of an entry; `notes` has what earlier events said about entries."""
        self.result = FoldedUsage()
        self._agent_of = agent_of
        self._stored = notes

    def add(self, event: Event) -> None:
        """Add one event. One that cannot be read adds nothing: it must not keep later events from being added."""
        if event.kind not in FOLDED_KINDS:
            return
        try:
            data, at = decode(event.kind, event.payload), max(-SECONDS_MAX, min(event.ts, SECONDS_MAX))
        except (StoreCorrupt, TypeError):
            return
        day = int(at // DAY_S)
        if not self._add_entries(data, day, at):
            self._add_amounts(data, day, event.pid)

    def _add_entries(self, data: facts.EventData, day: int, at: float) -> bool:
        """Add an event about entries; returns whether it is one."""
        match data:
            case facts.EntriesClaimed():
                for claimed in data.entries:
                    self._claimed(claimed, at)
            case facts.EntriesCompleted():
                for ended in data.entries:
                    self._stopped(day, ended.sched_id, runs=1, failures=ended.exit_kind in FAILED)
                    self._forget(ended.sched_id)
            case facts.EntriesReturned():
                is_attempt = data.verb in ("retry", "reclaim")
                for sched_id in data.sched_ids:
                    self._stopped(day, sched_id, runs=is_attempt, failures=is_attempt)
            case facts.EntriesReleased():
                for sched_id in data.sched_ids if data.hold == "after" else ():
                    self._note(sched_id, released_at=at)
            case facts.EntriesExpired() | facts.EntriesCancelled():
                for sched_id in data.sched_ids:
                    self._forget(sched_id)
            case _:
                return False
        return True

    def _add_amounts(self, data: facts.EventData, day: int, pid: int | None) -> None:
        match data:
            case facts.RunEnded():
                measured = {"cpu_ms": data.cpu_ms, "wall_ms": data.wall_ms}
                self._add(day, pid, self._known(data.sched_id).model, measured)
            case facts.LedgerCharged():
                if data.model is not None and data.sched_id is not None:
                    self._note(data.sched_id, model=data.model)
                self._add(day, pid, data.model or "", _counted(data.amounts))
            case facts.LedgerRefunded():
                self._add(day, pid, "", {dim: -amount for dim, amount in _counted(data.amounts).items()})

    # --- entries ---------------------------------------------------------------------------------

    def _claimed(self, claimed: facts.ClaimedEntry, at: float) -> None:
        waited_ms = claimed.waited_ms
        if waited_ms is None:  # of an earlier version
            return
        released_at = self._known(claimed.sched_id).released_at
        if released_at is not None:
            waited_ms = min(waited_ms, max(0, round((at - released_at) * 1000)))
        self._note(claimed.sched_id, waited_ms=waited_ms)

    def _stopped(self, day: int, sched_id: int, *, runs: int, failures: int) -> None:
        note = self._known(sched_id)
        usage = self._row(day, self._agent_of(sched_id), note.model)
        usage.runs += runs
        usage.failures += failures
        if note.waited_ms is not None:
            usage.waits += 1
            usage.wait_ms += note.waited_ms
            usage.wait_max_ms = max(usage.wait_max_ms, note.waited_ms)
            size = min(note.waited_ms.bit_length(), SIZES_MAX - 1)
            usage.wait_sizes = add_sizes(usage.wait_sizes, [0] * size + [1])
            self._note(sched_id, waited_ms=None)

    def _known(self, sched_id: int) -> EntryNote:
        notes = self.result.notes
        found = notes[sched_id] if sched_id in notes else self._stored.get(sched_id)
        return found or EntryNote()

    def _note(self, sched_id: int, **changes: Any) -> None:
        self.result.notes[sched_id] = msgspec.structs.replace(self._known(sched_id), **changes)

    def _forget(self, sched_id: int) -> None:
        if sched_id in self._stored or sched_id in self.result.notes:
            self.result.notes[sched_id] = None

    # --- rows ------------------------------------------------------------------------------------

    def _add(self, day: int, pid: int | None, model: str, amounts: Mapping[str, int]) -> None:
        if any(amounts.values()):
            usage = self._row(day, pid, model)
            for field, amount in amounts.items():
                setattr(usage, field, getattr(usage, field) + amount)

    def _row(self, day: int, pid: int | None, model: str) -> DayUsage:
        return self.result.days.setdefault((day, pid if type(pid) is int else NO_AGENT, model), DayUsage())


def _counted(amounts: Mapping[str, int]) -> dict[str, int]:
    return {dim: amounts[dim] for dim in _AMOUNTS if dim in amounts}


def merged(stored: Sequence[Any], added: DayUsage) -> DayUsage:
    """Return a row with what was added. A damaged number counts as 0: it must not keep the others from being added."""
    *numbers, sizes_text = stored
    before = DayUsage()
    for field, number in zip(SUMMED, numbers, strict=False):
        setattr(before, field, number if type(number) is int else 0)
    longest = numbers[-1] if type(numbers[-1]) is int else 0
    try:
        sizes = decode_json(sizes_text, list[int])
    except (msgspec.DecodeError, TypeError):
        sizes = []
    for field in SUMMED:
        total = getattr(before, field) + getattr(added, field)
        setattr(before, field, max(-INTEGER_MAX, min(total, INTEGER_MAX)))
    before.wait_max_ms = max(longest, added.wait_max_ms)
    before.wait_sizes = add_sizes(sizes, added.wait_sizes)
    return before

"""Replay: the state of things, folded from the journal.

Every change is one fact, so the facts alone give the state: entries, ledgers, flows and contexts. Old facts cannot
be kept for ever, so now and then the folded state is written down as a *checkpoint*, and the facts before it may go.

    checkpoint + the facts after it = the tables

That is a law and not a hope: `State.of_tables` and `State.of_journal` must be equal at any moment, and the tests ask
after every kind of change and across a prune.

States of entries are written as stretches, [first id, how many, state], since a million finished entries are usually
one stretch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import msgspec

from rota.kernel.contexts import applied, in_ms
from rota.kernel.journal import event_of
from rota.model import events as facts
from rota.model.events import RESERVED_PREFIX, Event, FlowMove, decode
from rota.model.lifecycle import ContextState, EntryState
from rota.policy import replenishment
from rota.policy.replenishment import Allowance
from rota.store import Transaction
from rota.store.statements import journal as sql

__all__ = ["READ_MAX", "State", "stretches"]

READ_MAX = 10_000  # rows read at a time
PART_MAX = 10_000  # stretches in one part of a checkpoint
Stretch: TypeAlias = tuple[int, int, str]


class _Part(msgspec.Struct, omit_defaults=True):
    """One part of a checkpoint."""

    entries: list[Stretch] = []
    ledgers: list[tuple[int, str, int, int]] = []
    flows: list[tuple[str, str, int, int]] = []
    contexts: list[tuple[int, str, Allowance]] = []


class State(msgspec.Struct):
    """Where everything stands: what the journal and the tables must agree on."""

    through_id: int = 0
    entries: dict[int, str] = {}  # by sched_id
    ledgers: dict[tuple[int, str], tuple[int, int]] = {}  # by pid and dimension: used, granted
    flows: dict[tuple[str, str], tuple[int, int]] = {}  # by level and key: virtual time, clock
    contexts: dict[int, tuple[str, Allowance]] = {}

    # --- from the tables -------------------------------------------------------------------------

    @classmethod
    def of_tables(cls, tx: Transaction) -> State:
        """The state as the tables have it."""
        state = cls(through_id=tx.run(sql.EVENT_ENDS)[0][1] or 0)
        last = 0
        while rows := tx.run(sql.ENTRY_STATES, (last, READ_MAX)):
            state.entries.update((row[0], row[1]) for row in rows)
            last = rows[-1][0]
        state.ledgers = {(pid, dim): (used, granted) for pid, dim, used, granted in tx.run(sql.LEDGER_STATES)}
        state.flows = {("agent", str(pid)): (time, 0) for pid, time in tx.run(sql.AGENT_FLOW_STATES)}
        for project_id, time, clock in tx.run(sql.PROJECT_FLOW_STATES):
            state.flows["project", project_id] = time, clock
        for context_id, standing, text in tx.run(sql.CONTEXT_STATES):
            state.contexts[context_id] = standing, msgspec.json.decode(text, type=Allowance)
        return state

    # --- from the journal ------------------------------------------------------------------------

    @classmethod
    def of_journal(cls, tx: Transaction) -> State:
        """The state as the last checkpoint and the facts after it tell it."""
        state = cls.of_checkpoint(tx)
        while rows := tx.run(sql.EVENT_TAIL, (state.through_id, READ_MAX)):
            for row in rows:
                state.apply(event_of(row))
        return state

    @classmethod
    def of_checkpoint(cls, tx: Transaction) -> State:
        """The state as it was written down last."""
        state = cls()
        for through_id, body in tx.run(sql.CHECKPOINT_GET):
            part = msgspec.json.decode(body, type=_Part)
            state.through_id = through_id
            for first, count, entry_state in part.entries:
                state.entries.update((sched_id, entry_state) for sched_id in range(first, first + count))
            state.ledgers.update(((pid, dim), (used, granted)) for pid, dim, used, granted in part.ledgers)
            state.flows.update(((level, key), (time, clock)) for level, key, time, clock in part.flows)
            state.contexts.update((context_id, (name, standing)) for context_id, name, standing in part.contexts)
        return state

    def parts(self) -> Iterator[str]:
        """This state as the parts of a checkpoint."""
        encode = msgspec.json.Encoder().encode
        rest = _Part(
            ledgers=[(*key, *line) for key, line in self.ledgers.items()],
            flows=[(*key, *flow) for key, flow in self.flows.items()],
            contexts=[(context_id, *standing) for context_id, standing in self.contexts.items()],
        )
        yield encode(rest).decode()
        together = list(stretches(self.entries))
        for start in range(0, len(together), PART_MAX):
            yield encode(_Part(entries=together[start : start + PART_MAX])).decode()

    def at(self, now: float) -> State:
        """The same state with what has come back to contexts by now counted, so that two can be compared."""
        at_ms = in_ms(now)
        contexts = {
            context_id: (name, replenishment.refilled(standing, at_ms))
            for context_id, (name, standing) in self.contexts.items()
        }
        flows = {key: flow for key, flow in self.flows.items() if flow != (0, 0)}
        return msgspec.structs.replace(self, contexts=contexts, flows=flows)

    # --- one fact --------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Take one event into account."""
        self.through_id = event.event_id
        if not event.kind.startswith(RESERVED_PREFIX):
            return
        fact = decode(event.kind, event.payload)
        self._apply_to_entries(fact)
        self._apply_to_ledgers(fact, event.pid)
        self._apply_to_contexts(fact, event.ts)
        for move in _moves(fact):
            self.flows[move.level, move.key] = move.virtual_time, move.clock

    def _apply_to_entries(self, fact: facts.Fact) -> None:
        match fact:
            case facts.EntriesEnqueued():
                self._set(range(fact.first_id, fact.first_id + fact.count), EntryState.QUEUED)
            case facts.EntriesClaimed():
                self._set((entry.sched_id for entry in fact.entries), EntryState.DISPATCHED)
            case facts.EntriesCompleted():
                self._set((entry.sched_id for entry in fact.entries), EntryState.COMPLETED)
            case facts.EntriesReturned():
                self._set(fact.sched_ids, EntryState.QUEUED)
            case facts.EntriesExpired():
                self._set(fact.sched_ids, EntryState.EXPIRED)
            case facts.EntriesCancelled():
                self._set(fact.sched_ids, EntryState.CANCELLED)
            case facts.Pruned(table="agent_schedule_queue"):
                for first, last in fact.ranges:
                    for sched_id in range(first, last + 1):
                        self.entries.pop(sched_id, None)

    def _set(self, sched_ids: Iterable[int], state: str) -> None:
        self.entries.update((sched_id, str(state)) for sched_id in sched_ids)

    def _apply_to_ledgers(self, fact: facts.Fact, pid: int | None) -> None:
        if pid is None:
            return
        match fact:
            case facts.LedgerCreated():
                self.ledgers.update(((pid, dim), (0, grant)) for dim, grant in fact.grants.items())
            case facts.LedgerCharged():
                for dim, amount in fact.amounts.items():
                    self._use(pid, dim, amount)
            case facts.LedgerRefunded():
                for dim, amount in fact.amounts.items():
                    self._use(pid, dim, -amount)
            case facts.LedgerGranted():
                used, _ = self.ledgers[pid, fact.dim]
                self.ledgers[pid, fact.dim] = used, fact.granted

    def _use(self, pid: int, dim: str, amount: int) -> None:
        if (pid, dim) in self.ledgers:
            used, granted = self.ledgers[pid, dim]
            self.ledgers[pid, dim] = used + amount, granted

    def _apply_to_contexts(self, fact: facts.Fact, ts: float) -> None:
        at_ms = in_ms(ts)
        match fact:
            case facts.ContextCreated():
                full = replenishment.full(fact.budget, fact.period, at_ms)
                self.contexts[fact.context_id] = str(ContextState.ACTIVE), full
            case facts.ContextAdjusted():
                name, standing = self.contexts[fact.context_id]
                present = replenishment.refilled(standing, at_ms)
                changed = replenishment.adjusted(present, fact.changes["budget"], fact.changes["period"], at_ms)
                self.contexts[fact.context_id] = name, changed
            case facts.ContextDepleted():
                self._name(fact.context_id, ContextState.DEPLETED)
            case facts.ContextReplenished():
                self._name(fact.context_id, ContextState.ACTIVE)
            case facts.ContextRevoked():
                self._name(fact.context_id, ContextState.REVOKED)
            case facts.LedgerCharged() | facts.LedgerRefunded() | facts.EntriesClaimed():
                for key, amount in fact.contexts.items():
                    name, standing = self.contexts[int(key)]
                    self.contexts[int(key)] = name, applied(standing, amount, at_ms)

    def _name(self, context_id: int, name: str) -> None:
        self.contexts[context_id] = str(name), self.contexts[context_id][1]


def _moves(fact: Any) -> list[FlowMove]:
    return getattr(fact, "flows", [])


def stretches(entries: dict[int, str]) -> Iterator[Stretch]:
    """Entries by id, neighbours of the same state together."""
    first, count, state = 0, 0, ""
    for sched_id in sorted(entries):
        if count and sched_id == first + count and entries[sched_id] == state:
            count += 1
            continue
        if count:
            yield first, count, state
        first, count, state = sched_id, 1, entries[sched_id]
    if count:
        yield first, count, state

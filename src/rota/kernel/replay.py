"""Replay: rebuild the state from the journal.

Every change is an event, so the events alone give the state of entries, ledgers, flows, contexts and grants. Old events
cannot be kept for ever, so from time to time the state is written as a *checkpoint*, and the events before it may be
removed.

    checkpoint + the events after it = the tables

`KernelState.from_tables` and `KernelState.from_journal` must be equal after every commit; tests check this after every
kind of change and between the commits of a prune. A checkpoint is several rows. Which one is complete is a setting
(`current_checkpoint`); `retention.py` says how it changes.

The states of entries are stored as ranges, [first id, count, state], because a million finished entries are usually
one range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, TypeAlias, TypeVar

import msgspec

from rota.decoding import decode_json
from rota.errors import StoreCorrupt
from rota.kernel.clock_jumps import jump_ms
from rota.kernel.contexts import apply_charge, to_ms
from rota.kernel.journal import event_from_row
from rota.kernel.progress import NoRepeats
from rota.kernel.rows import DECODE_ERRORS
from rota.kernel.settings import read_setting, write_setting
from rota.kernel.store_policy import StorePolicy, read_store_policy
from rota.model import events
from rota.model.event_codec import decode
from rota.model.events import RESERVED_PREFIX, Event, FlowMove
from rota.model.lifecycle import ContextState, EntryState
from rota.policy import replenishment
from rota.policy.replenishment import Allowance
from rota.store import Transaction
from rota.store.statements import core_grants as cores_sql
from rota.store.statements import graph_budgets as graph_sql
from rota.store.statements import journal as sql

__all__ = ["READ_MAX", "Checkpoint", "KernelState", "current_checkpoint", "id_ranges", "set_current_checkpoint"]

READ_MAX = 10_000  # rows read at a time
PART_MAX = 10_000  # ranges in one part of a checkpoint
IdRange: TypeAlias = tuple[int, int, str]
T = TypeVar("T")
_CURRENT = "journal_checkpoint"  # the setting that names the current checkpoint


class Checkpoint(msgspec.Struct, frozen=True):
    """A checkpoint: the last event that it includes, and the number of its parts."""

    through_id: int = 0
    parts: int = 0


def current_checkpoint(tx: Transaction) -> Checkpoint:
    """Return the checkpoint that replay starts from; an empty one if none has been completed."""
    text = read_setting(tx, _CURRENT)
    return Checkpoint() if text is None else _decode(text, Checkpoint)


def set_current_checkpoint(tx: Transaction, checkpoint: Checkpoint) -> None:
    """Make replay start from a checkpoint, all of whose parts are stored."""
    write_setting(tx, _CURRENT, msgspec.json.encode(checkpoint).decode())


class _Part(msgspec.Struct, omit_defaults=True):
    """One part of a checkpoint, as stored."""

    entries: list[IdRange] = []
    ledgers: list[tuple[int, str, int, int]] = []
    flows: list[tuple[str, str, int, int]] = []
    contexts: list[tuple[int, str, Allowance]] = []
    grants: list[tuple[str, str]] = []
    cores: list[tuple[int, int, str, tuple[int, ...]]] = []
    policy: StorePolicy | None = None
    graph_budgets: list[tuple[str, str, str, int, int]] = []


class KernelState(msgspec.Struct):
    """The state that the journal and the tables must agree on."""

    through_id: int = 0
    entries: dict[int, str] = {}  # by sched_id
    ledgers: dict[tuple[int, str], tuple[int, int]] = {}  # by pid and dimension: used, granted
    flows: dict[tuple[str, str], tuple[int, int]] = {}  # by level and key: virtual time, clock
    contexts: dict[int, tuple[str, Allowance]] = {}
    grants: set[tuple[str, str]] = set()  # from one project to another
    cores: dict[int, tuple[int, str, tuple[int, ...]]] = {}  # core grants by sched_id: token, host, leased cores
    policy: StorePolicy = StorePolicy()
    graph_budgets: dict[tuple[str, str, str], tuple[int, int]] = {}  # by run, node and dimension: limit, used

    # --- from the tables -------------------------------------------------------------------------

    @classmethod
    def from_tables(cls, tx: Transaction) -> KernelState:
        """Read the state from the tables."""
        state = cls(through_id=tx.run(sql.EVENT_ENDS)[0][1] or 0)
        last, seen = 0, NoRepeats("entries")
        while rows := tx.run(sql.ENTRY_STATES, (last, READ_MAX)):
            seen.check([row[0] for row in rows])
            state.entries.update((row[0], row[1]) for row in rows)
            last = rows[-1][0]
        state.ledgers = {(pid, dim): (used, granted) for pid, dim, used, granted in tx.run(sql.LEDGER_STATES)}
        state.flows = {("agent", str(pid)): (time, 0) for pid, time in tx.run(sql.AGENT_FLOW_STATES)}
        for project_id, time, clock in tx.run(sql.PROJECT_FLOW_STATES):
            state.flows["project", project_id] = time, clock
        for context_id, context_state, text in tx.run(sql.CONTEXT_STATES):
            state.contexts[context_id] = context_state, _decode(text, Allowance, f"context {context_id}")
        state.grants = {(from_project, to_project) for from_project, to_project in tx.run(sql.GRANT_STATES)}
        for sched_id, token, host, leased in tx.run(cores_sql.STATES):
            state.cores[sched_id] = token, host, _decode(leased, tuple[int, ...], f"the core grant of {sched_id}")
        state.policy = read_store_policy(tx)
        state.graph_budgets = {(row[0], row[1], row[2]): (row[3], row[4]) for row in tx.run(graph_sql.STATES)}
        return state

    # --- from the journal ------------------------------------------------------------------------

    @classmethod
    def from_journal(cls, tx: Transaction) -> KernelState:
        """Rebuild the state from the last checkpoint and the events after it."""
        state, seen = cls.from_checkpoint(tx), NoRepeats("events")
        while rows := tx.run(sql.EVENT_TAIL, (state.through_id, READ_MAX)):
            seen.check([row[0] for row in rows])
            for row in rows:
                state.apply(event_from_row(row))
        return state

    @classmethod
    def from_checkpoint(cls, tx: Transaction) -> KernelState:
        """Read the state of the current checkpoint."""
        checkpoint = current_checkpoint(tx)
        state = cls(through_id=checkpoint.through_id)
        bodies = tx.run(sql.CHECKPOINT_GET, (checkpoint.through_id, checkpoint.parts))
        if len(bodies) != checkpoint.parts:
            found = f"{len(bodies)} of its {checkpoint.parts} parts"
            raise StoreCorrupt(f"the journal's checkpoint up to event {checkpoint.through_id} has {found}")
        for (body,) in bodies:
            part = _decode(body, _Part)
            for first, count, entry_state in part.entries:
                state.entries.update((sched_id, entry_state) for sched_id in range(first, first + count))
            state.ledgers.update(((pid, dim), (used, granted)) for pid, dim, used, granted in part.ledgers)
            state.flows.update(((level, key), (time, clock)) for level, key, time, clock in part.flows)
            state.contexts.update(
                (context_id, (context_state, allowance)) for context_id, context_state, allowance in part.contexts
            )
            state.grants.update(part.grants)
            state.cores.update((sched_id, (token, host, leased)) for sched_id, token, host, leased in part.cores)
            state.policy = part.policy or state.policy
            state.graph_budgets.update(
                ((run, node, dim), (limit, used)) for run, node, dim, limit, used in part.graph_budgets
            )
        return state

    def checkpoint_parts(self) -> Iterator[str]:
        """Encode the state as the parts of a checkpoint."""
        encode = msgspec.json.Encoder().encode
        rest = _Part(
            ledgers=[(*key, *line) for key, line in self.ledgers.items()],
            flows=[(*key, *flow) for key, flow in self.flows.items()],
            contexts=[(context_id, *context) for context_id, context in self.contexts.items()],
            grants=sorted(self.grants),
            cores=[(sched_id, *grant) for sched_id, grant in self.cores.items()],
            policy=self.policy,
            graph_budgets=[(*key, *line) for key, line in self.graph_budgets.items()],
        )
        yield encode(rest).decode()
        ranges = list(id_ranges(self.entries))
        for start in range(0, len(ranges), PART_MAX):
            yield encode(_Part(entries=ranges[start : start + PART_MAX])).decode()

    def at(self, now: float) -> KernelState:
        """Return the state with contexts refilled as of now and unused flows left out, for comparison."""
        at_ms = to_ms(now)
        contexts = {
            context_id: (context_state, replenishment.refilled(allowance, at_ms))
            for context_id, (context_state, allowance) in self.contexts.items()
        }
        flows = {key: flow for key, flow in self.flows.items() if flow != (0, 0)}
        return msgspec.structs.replace(self, contexts=contexts, flows=flows)

    # --- applying an event -----------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Apply one event."""
        self.through_id = event.event_id
        if not event.kind.startswith(RESERVED_PREFIX):
            return
        data = decode(event.kind, event.payload)
        self._apply_to_entries(data)
        self._apply_to_ledgers(data, event.pid)
        self._apply_to_contexts(data, event.ts)
        self._apply_to_grants(data)
        self._apply_to_graph_budgets(data)
        if isinstance(data, events.PolicyChosen):
            self.policy = StorePolicy(data.policy, data.share_by, data.share_by_set_by)
            if data.restarts_shares:
                self.flows.clear()
        for move in _moves(data):
            self.flows[move.level, move.key] = move.virtual_time, move.clock

    def _apply_to_entries(self, data: events.EventData) -> None:
        match data:
            case events.EntriesEnqueued():
                self._set(range(data.first_id, data.first_id + data.count), EntryState.QUEUED)
            case events.EntriesClaimed():
                self._set((entry.sched_id for entry in data.entries), EntryState.DISPATCHED)
            case events.EntriesCompleted():
                self._set((entry.sched_id for entry in data.entries), EntryState.COMPLETED)
            case events.EntriesReturned():
                self._set(data.sched_ids, EntryState.QUEUED)
            case events.EntriesExpired():
                self._set(data.sched_ids, EntryState.EXPIRED)
            case events.EntriesCancelled():
                self._set(data.sched_ids, EntryState.CANCELLED)
            case events.RowsPruned(table="agent_schedule_queue"):
                for first, last in data.ranges:
                    for sched_id in range(first, last + 1):
                        self.entries.pop(sched_id, None)

    def _set(self, sched_ids: Iterable[int], state: str) -> None:
        self.entries.update((sched_id, str(state)) for sched_id in sched_ids)

    def _apply_to_ledgers(self, data: events.EventData, pid: int | None) -> None:
        if pid is None:
            return
        match data:
            case events.LedgerCreated():
                self.ledgers.update(((pid, dim), (data.used.get(dim, 0), grant)) for dim, grant in data.grants.items())
            case events.LedgerCharged():
                for dim, amount in data.amounts.items():
                    self._add_usage(pid, dim, amount)
            case events.LedgerRefunded():
                for dim, amount in data.amounts.items():
                    self._add_usage(pid, dim, -amount)
            case events.LedgerGranted():
                used, _ = self.ledgers[pid, data.dim]
                self.ledgers[pid, data.dim] = used, data.granted

    def _add_usage(self, pid: int, dim: str, amount: int) -> None:
        if (pid, dim) in self.ledgers:
            used, granted = self.ledgers[pid, dim]
            self.ledgers[pid, dim] = used + amount, granted

    def _apply_to_contexts(self, data: events.EventData, ts: float) -> None:
        at_ms = to_ms(ts)
        match data:
            case events.ContextCreated():
                full = replenishment.full(data.budget, data.period, at_ms)
                self.contexts[data.context_id] = str(ContextState.ACTIVE), full
            case events.ContextAdjusted():
                context_state, allowance = self.contexts[data.context_id]
                refilled = replenishment.refilled(allowance, at_ms)
                changed = replenishment.adjusted(refilled, data.changes["budget"], data.changes["period"], at_ms)
                self.contexts[data.context_id] = context_state, changed
            case events.ClockJumped() if "contexts" in data.moved:
                by_ms = jump_ms(data.by_s)
                for context_id, (context_state, allowance) in self.contexts.items():
                    self.contexts[context_id] = context_state, replenishment.moved(allowance, by_ms)
            case events.ContextBudgetDepleted():
                self._set_context_state(data.context_id, ContextState.DEPLETED)
            case events.ContextReplenished():
                self._set_context_state(data.context_id, ContextState.ACTIVE)
            case events.ContextRevoked():
                self._set_context_state(data.context_id, ContextState.REVOKED)
            case (
                events.LedgerCharged()
                | events.LedgerRefunded()
                | events.EntriesClaimed()
                | events.LimitAcquired()
                | events.LimitSettled()
            ):
                for key, amount in data.contexts.items():
                    context_state, allowance = self.contexts[int(key)]
                    self.contexts[int(key)] = context_state, apply_charge(allowance, amount, ts)

    def _apply_to_grants(self, data: events.EventData) -> None:
        match data:
            case events.ProjectGranted():
                self.grants.add((data.from_project, data.to_project))
            case events.ProjectGrantRevoked():
                self.grants.discard((data.from_project, data.to_project))
            case events.CoresGranted():
                self.cores[data.sched_id] = data.token, data.host, tuple(sorted(data.leased))
            case events.CoresReturned():
                for sched_id in data.sched_ids:
                    self.cores.pop(sched_id, None)

    def _apply_to_graph_budgets(self, data: events.EventData) -> None:
        match data:
            case events.GraphBudgetSet():
                key = data.run_id, data.node, data.dim
                self.graph_budgets[key] = data.limit, self.graph_budgets.get(key, (0, 0))[1]
            case events.LedgerCharged(account=tuple(account)):
                for (run_id, node), (dim, amount) in product([account, *data.outer], data.amounts.items()):
                    for key in {(run_id, "", dim), (run_id, node, dim)} & self.graph_budgets.keys():
                        limit, used = self.graph_budgets[key]
                        self.graph_budgets[key] = limit, used + amount
            case events.GraphRunForgotten():
                gone = [key for key in self.graph_budgets if key[0] == data.run_id]
                for key in gone:
                    del self.graph_budgets[key]

    def _set_context_state(self, context_id: int, state: str) -> None:
        self.contexts[context_id] = str(state), self.contexts[context_id][1]


def _decode(text: str, kind: type[T], what: str = "the journal's checkpoint") -> T:
    try:
        return decode_json(text, kind)
    except DECODE_ERRORS as problem:
        raise StoreCorrupt(f"{what} cannot be read: {problem}") from problem


def _moves(data: Any) -> list[FlowMove]:
    return getattr(data, "flows", [])


def id_ranges(entries: dict[int, str]) -> Iterator[IdRange]:
    """Yield entries as ranges of consecutive ids in the same state."""
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

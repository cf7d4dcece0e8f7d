"""What every part of the kernel shares: the store, the clock, and what this process remembers between transactions.

Every claim asks the same few things: does anything fall due, and which limits apply? One row answers the first, the
*due summary*; the rows of a claim's agents and projects answer the second. Both seldom change, so the *cache* keeps
them. It must never be wrong, so:

- a write that may change any of it (`write`) drops the cache; the writes of every day (enqueue, claim, end of a run) do
  not, and adjust the due summary by what they did (`lower_due_summary`, `drop_due_summary`);
- a commit of another process or connection drops it (`Transaction.foreign_version`), except for one of every day, if
  the store can tell (`Transaction.facts_version`);
- what was read in a transaction that was rolled back is dropped.

A pass that keeps a picture of the queue between claims (the first entry of each project, say) must learn what changed
since. So the writes of every day also record the owners whose entries or usage they *touch*. Whatever drops the cache,
and every commit of others, starts a new *generation*, in which such a pass reads everything again.

**What others do every day** may only add instants to the due summary: a claim of theirs expires, usage leaves a window.
So while others write, a cached due summary is read again after `DUE_AGAIN_S`; that is how late this process may notice
such an instant. An entry with a time or a deadline is not an everyday write, and is noticed at once.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from rota.clock import JUMP_MIN_S, Clock
from rota.errors import InvalidPayload
from rota.kernel.entry_waiters import EntryWaiters
from rota.kernel.rows import decode_constraint
from rota.kernel.settings import write_setting
from rota.kernel.store_policy import POLICY_KEY, SHARE_BY_KEY, StorePolicy, read_store_policy
from rota.kernel.usage_windows import SHARE_WINDOW_KEY, ProjectRuns, ShareNotes, share_window_s
from rota.model.checks import Checks
from rota.model.policy_setting import SHARE_DIMS
from rota.model.work import ProjectConstraint
from rota.store import Row, Store, Transaction
from rota.store.forks import in_child
from rota.store.statements import claims as sql
from rota.store.statements.claims import FEW_PROJECTS
from rota.store.statements.file import META_GET

__all__ = [
    "ALIVE_S",
    "DUE_AGAIN_S",
    "OFFSET_KEY",
    "OWNERS_MAX",
    "RETURN_EVERY_S",
    "RETURN_S",
    "SEEN_EVERY_S",
    "SEEN_KEY",
    "TOUCHED_MAX",
    "UNLIMITED",
    "WORKERS_MAX",
    "CachedAgent",
    "CachedProject",
    "ChangeMark",
    "ClockOffset",
    "DueSummary",
    "KernelCache",
    "KernelEnvironment",
    "ReturnOfWorkers",
    "WorkersSeen",
    "kernel_environment",
    "read_due_summary",
    "worker_names",
]

ALIVE_S = 300.0  # how long after it was last seen a worker without claims counts as alive
WORKERS_MAX = 10_000  # workers remembered; the one first seen is dropped first
DUE_AGAIN_S = 1.0  # how long a due summary counts while others write
RETURN_S = 15.0  # for how long expired claims stay as they are when workers come back that were away
RETURN_EVERY_S = 60.0  # how often that may begin, so that a worker that is always late does not keep all claims
OWNERS_MAX = 20_000  # agents cached, and projects cached
SEEN_EVERY_S = 10.0  # how old the stored wall-clock time may become while there is work
SEEN_KEY = "clock_seen_at"  # the setting in the store that holds it
OFFSET_KEY = "clock_offset"  # the setting that holds the boot, and wall minus advancing clock (clock_jumps.py)
TOUCHED_MAX = 100_000  # touched owners recorded in one generation
_GONE = -math.inf
_JUMP_BACK_S = -JUMP_MIN_S
T = TypeVar("T")
_call = Checks("Call", InvalidPayload)


class KernelEnvironment(msgspec.Struct, frozen=True, eq=False):
    """The store, the clock, the generator for jitter, what is remembered of the store, and waiting callers."""

    store: Store
    clock: Clock
    rng: random.Random
    cache: KernelCache
    workers_seen: WorkersSeen
    waiters: EntryWaiters
    clock_offset: ClockOffset
    returning: ReturnOfWorkers
    is_isolated: bool = False  # its transaction is rolled back

    def isolated(self) -> KernelEnvironment:
        """Return an environment for a transaction that leaves nothing behind: what is remembered is copied or empty."""
        return msgspec.structs.replace(
            self,
            rng=copy.copy(self.rng),
            cache=KernelCache(),
            workers_seen=self.workers_seen.copy(),
            clock_offset=copy.copy(self.clock_offset),
            is_isolated=True,
        )

    def now(self, given: float | None = None) -> float:
        """Return the caller's `now` after checking it, or the clock's time."""
        return self.clock.now() if given is None else _call.instant("now", given)

    def read_clock(self, tx: Transaction, *, writes: bool = True) -> float:
        """Return the wall-clock time. If that clock has jumped, first move every duration that is running.

        A transaction that writes an instant a duration from now, or acts on one, has to use it (see clock_jumps.py).
        Without `writes` it may write nothing; it then calls `note_time` if it does.
        """
        known, version = self.clock_offset, tx.facts_version  # before the clock: this may wait for other processes
        now = self.clock.now()
        known.read_at = self.clock.monotonic()
        ahead_s = now - known.read_at
        if known.facts_version != version or not _JUMP_BACK_S <= ahead_s - known.offset_s <= JUMP_MIN_S:
            now = known.compare(tx, self, now, ahead_s)
        known.is_noted = known.seen_at <= now < known.seen_at + SEEN_EVERY_S
        if writes and not known.is_noted:
            self.note_time(tx, now)
        return now

    def note_time(self, tx: Transaction, now: float) -> None:
        """Store the time, which is from `read_clock`, unless a recent one is stored."""
        known = self.clock_offset
        if not known.seen_at <= now < known.seen_at + SEEN_EVERY_S:
            known.seen_at = now
            tx.effects.on_rollback.append(lambda: setattr(known, "seen_at", -math.inf))
            write_setting(tx, SEEN_KEY, repr(now))

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Run work that may change anything: nothing cached before it, or by it, is used afterwards."""

        def changing(tx: Transaction) -> T:
            self.cache.invalidate()
            result = work(tx)
            self.cache.invalidate()
            return result

        return self.store.write(changing)

    def write_keeping_cache(self, work: Callable[[Transaction], T]) -> T:
        """Run work that leaves the cached rows unchanged, or adjusts the cache itself."""
        return self.store.write(work)

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run work on one consistent view."""
        return self.store.read(work)


# --- the due summary -----------------------------------------------------------------------------


class DueSummary(msgspec.Struct, frozen=True, gc=False):
    """The instants at which something falls due, and which kinds of limits exist."""

    held_at: float | None  # the next held entry becomes ready
    expires_at: float | None  # the next claim expires
    deadline: float | None  # the next queued entry passes its deadline
    window_edge_at: float | None  # usage leaves a window
    refill_at: float | None  # a context gets budget back
    affinity_until: float | None  # the next affinity hold ends
    dependents_pending: int  # dependents of ended entries are still to be released or cancelled
    inbox_pending: int  # programs have enqueued in transactions of their own
    any_loan: int  # runs have lent budget to their children
    fleet_paused_by: str | None
    any_stopped: int  # agents that are paused or have a cap of 0
    any_capped: int
    any_ledger: int
    any_global_budget: int
    any_project_budget: int
    any_context: int
    any_limit: bool  # besides those in a project's own row

    def is_due(self, now: float) -> bool:
        """Whether maintenance has something to do."""
        return (
            (self.held_at is not None and self.held_at <= now)
            or (self.expires_at is not None and self.expires_at <= now)
            or (self.deadline is not None and self.deadline < now)
            or (self.window_edge_at is not None and self.window_edge_at <= now)
            or (self.refill_at is not None and self.refill_at <= now)
            or (self.affinity_until is not None and self.affinity_until <= now)
            or bool(self.dependents_pending or self.inbox_pending)
        )

    @property
    def next_at(self) -> float | None:
        """When the next thing falls due; 0 if some of it is left over from before."""
        instants = (
            self.held_at,
            self.expires_at,
            self.deadline,
            self.window_edge_at,
            self.refill_at,
            self.affinity_until,
        )
        pending = self.dependents_pending or self.inbox_pending
        return 0.0 if pending else min((at for at in instants if at is not None), default=None)

    @property
    def retry_at(self) -> float | None:
        """When a parked claim should run again: for a deadline just after it, since only past deadlines are swept."""
        after = None if self.deadline is None else math.nextafter(self.deadline, math.inf)
        return msgspec.structs.replace(self, deadline=after).next_at


def read_due_summary(tx: Transaction) -> DueSummary:
    """Read the due summary."""
    row = tx.run(sql.DUE_SUMMARY)[0]
    fleet_paused_by, *limits = row[DueSummary.__struct_fields__.index("fleet_paused_by") :]
    return DueSummary(*(*row, fleet_paused_by is not None or any(limits)))


# --- the cache -----------------------------------------------------------------------------------


class CachedAgent(msgspec.Struct, frozen=True, gc=False):
    """What an agent's row says about its entries."""

    project_id: str | None
    is_dead: bool
    paused_by: str | None
    cap: int | None


class CachedProject(msgspec.Struct, frozen=True, gc=False):
    """What a project's row says about its entries."""

    status: str
    paused_by: str | None
    cap: int | None
    constraint: ProjectConstraint


UNLIMITED = CachedProject("ACTIVE", None, None, ProjectConstraint())  # the row alone cannot block an entry


class ChangeMark(NamedTuple):
    """A position in the record of touched owners."""

    generation: int
    position: int


class KernelCache:
    """The due summary and the rows of agents and projects, as last read, and the owners touched since.

    A cached due summary may name instants that are too early, which costs one needless read, but never one that is too
    late.
    """

    __slots__ = (
        "_agents", "_due", "_due_again_at", "_due_version", "_facts_version", "_foreign_version", "_generation",
        "_policy", "_projects", "_share_window_s", "_touched", "share_notes",
    )  # fmt: skip

    def __init__(self) -> None:
        self._facts_version = -1  # of the transaction in which the cache was last used
        self._foreign_version = -1  # of the one in which the record of touched owners was last used
        self._due: DueSummary | None = None
        self._due_version = -1  # the `foreign_version` of the transaction in which it was last true
        self._due_again_at = 0.0  # when it has to be read again, if others have written since
        self._policy: StorePolicy | None = None
        self._share_window_s: float | None = None
        self.share_notes = ShareNotes()
        self._agents: dict[int, CachedAgent] = {}
        self._projects: dict[str, CachedProject] = {}
        self._generation = 0
        self._touched: list[tuple[int, str | None]] = []  # (pid, project) of changed entries, in this generation

    def invalidate(self) -> None:
        """Drop everything, so that it is read again."""
        self._due = self._policy = self._share_window_s = None
        self._agents, self._projects = {}, {}
        self._start_generation()

    def _start_generation(self) -> None:
        self._generation += 1
        self._touched = []

    def _start_over(self, tx: Transaction) -> None:
        """Drop everything, because another connection has written since the last use."""
        self._facts_version = tx.facts_version
        self.invalidate()

    def _note_foreign(self, tx: Transaction) -> None:
        """Start a new generation if another connection has written since the last use."""
        if self._foreign_version != tx.foreign_version:
            self._foreign_version = tx.foreign_version
            self._start_generation()

    # --- the due summary

    def due_summary(self, tx: Transaction) -> DueSummary | None:
        """Return the cached due summary, or None."""
        if self._facts_version != tx.facts_version:
            self._start_over(tx)
        due = self._due
        if due is not None and self._due_version != tx.foreign_version:
            self._due_version = tx.foreign_version
            if due.expires_at is None or due.expires_at > self._due_again_at:
                self._due = due = msgspec.structs.replace(due, expires_at=self._due_again_at)
        return due

    def set_due_summary(self, tx: Transaction, due: DueSummary, now: float) -> None:
        """Cache a due summary that was just read."""
        if self._facts_version != tx.facts_version:
            self._start_over(tx)
        self._due, self._due_version, self._due_again_at = due, tx.foreign_version, now + DUE_AGAIN_S
        tx.effects.on_rollback.append(self.invalidate)

    def drop_due_summary(self) -> None:
        """Read the due summary again, after a change that may have added instants to it."""
        self._due = None

    def lower_due_summary(
        self,
        *,
        held_at: float | None = None,
        expires_at: float | None = None,
        deadline: float | None = None,
        window_edge_at: float | None = None,
    ) -> None:
        """Move instants of the cached due summary forward to new, earlier ones."""
        due = self._due
        if due is None:
            return
        if expires_at is not None and (due.expires_at is None or expires_at < due.expires_at):
            due = msgspec.structs.replace(due, expires_at=expires_at)
        if held_at is not None and (due.held_at is None or held_at < due.held_at):
            due = msgspec.structs.replace(due, held_at=held_at)
        if deadline is not None and (due.deadline is None or deadline < due.deadline):
            due = msgspec.structs.replace(due, deadline=deadline)
        if window_edge_at is not None and (due.window_edge_at is None or window_edge_at < due.window_edge_at):
            due = msgspec.structs.replace(due, window_edge_at=window_edge_at)
        self._due = due

    # --- the policy of the store

    def share_dim(self, tx: Transaction) -> str:
        """Return the dimension of usage that sharing counts."""
        return SHARE_DIMS[self.store_policy(tx).share_by]

    def store_policy(self, tx: Transaction) -> StorePolicy:
        """Return the policy of the store, if one was given, and what sharing counts."""
        if self._facts_version != tx.facts_version:
            self._start_over(tx)
        if self._policy is None:
            self._policy = read_store_policy(tx)
            tx.effects.on_rollback.append(self.invalidate)
        return self._policy

    def share_window_s(self, tx: Transaction) -> float:
        """Return how long a run counts in the share of its project."""
        if self._facts_version != tx.facts_version:
            self._start_over(tx)
        if self._share_window_s is None:
            self._share_window_s = share_window_s(tx)
            tx.effects.on_rollback.append(self.invalidate)
        return self._share_window_s

    def add_shares(self, tx: Transaction, runs: ProjectRuns, event_id: int, now: float) -> None:
        """Record what the runs whose end is this event count in the shares of their projects."""
        window_s = self.share_window_s(tx)
        self.lower_due_summary(window_edge_at=self.share_notes.add(tx, runs, event_id, window_s, now))

    def count_shares(self, tx: Transaction, now: float, *, ranks: bool = False) -> None:
        """Add what is noted to the share windows; if this process `ranks` projects by them, it notes nothing more."""
        self.lower_due_summary(window_edge_at=self.share_notes.count_any(tx, self.share_window_s(tx), now))
        if ranks:
            self.share_notes.ranks = True

    # --- the rows of agents and projects

    def cached_agents(self, tx: Transaction) -> dict[int, CachedAgent]:
        """Return the agents that are cached."""
        if self._facts_version != tx.facts_version:
            self._start_over(tx)
        return self._agents

    def agents(self, tx: Transaction, pids: Collection[int]) -> dict[int, CachedAgent]:
        """Return cached agents, these and others; agents that do not exist are missing."""
        if self._facts_version != tx.facts_version:
            self._start_over(tx)
        wanted = [pid for pid in pids if pid not in self._agents]
        if wanted:
            if len(self._agents) + len(wanted) > OWNERS_MAX:
                self._agents = {}
                wanted = list(pids)
            rows = tx.run_for(sql.AGENT_FACTS, wanted)
            self._agents.update((row[0], CachedAgent(*row[1:])) for row in rows)
            tx.effects.on_rollback.append(self.invalidate)
        return self._agents

    def project(self, tx: Transaction, project_id: str) -> CachedProject | None:
        """Return one project."""
        if self._facts_version != tx.facts_version:
            self._start_over(tx)
        return self._projects.get(project_id) or self.projects(tx, (project_id,)).get(project_id)

    def projects(self, tx: Transaction, project_ids: Collection[str]) -> dict[str, CachedProject]:
        """Return cached projects, these and others."""
        if self._facts_version != tx.facts_version:
            self._start_over(tx)
        wanted = [project_id for project_id in project_ids if project_id not in self._projects]
        if wanted and not self._projects:
            found = tx.run(sql.FIRST_PROJECTS)
            self._add_projects(tx, found)
            wanted = [] if len(found) < FEW_PROJECTS else [each for each in wanted if each not in self._projects]
        if wanted:
            if len(self._projects) + len(wanted) > OWNERS_MAX:
                self._projects = {}
                wanted = list(project_ids)
            self._add_projects(tx, tx.run_for(sql.PROJECT_FACTS, wanted))
        return self._projects

    def _add_projects(self, tx: Transaction, rows: Iterable[Row]) -> None:
        for project_id, status, paused_by, cap, constraint in rows:
            self._projects[project_id] = CachedProject(status, paused_by, cap, decode_constraint(constraint))
        tx.effects.on_rollback.append(self.invalidate)

    # --- what changed

    def touch(self, pid: int, project_id: str | None) -> None:
        """Record that entries, live runs or the usage of an owner have changed."""
        if len(self._touched) >= TOUCHED_MAX:
            self._start_generation()
        self._touched.append((pid, project_id))

    def touch_all(self, owners: Iterable[tuple[int, str | None]]) -> None:
        """Record that entries, live runs or the usage of owners have changed."""
        if len(self._touched) >= TOUCHED_MAX:
            self._start_generation()
        self._touched.extend(owners)

    def mark(self, tx: Transaction) -> ChangeMark:
        """Return the present position, for `touched_since`."""
        self._note_foreign(tx)
        return ChangeMark(self._generation, len(self._touched))

    def touched_since(self, tx: Transaction, mark: ChangeMark | None) -> list[tuple[int, str | None]] | None:
        """Return the (pid, project) touched since a mark; None if anything may have changed."""
        self._note_foreign(tx)
        if mark is None or mark.generation != self._generation:
            return None
        return self._touched[mark.position :]


# --- workers that were seen ----------------------------------------------------------------------


class WorkersSeen:
    """When this process last saw each worker claim or end a run, so that affinity knows which workers are alive.

    It is in memory only. A claim that finds nothing writes nothing, so a process knows only the workers that it served
    itself; a daemon serves all of them. The instants are those of the advancing clock.
    """

    __slots__ = ("__weakref__", "_monotonic", "_seen_at")

    def __init__(self, monotonic: Callable[[], float], seen_at: dict[str, float] | None = None) -> None:
        self._monotonic = monotonic
        self._seen_at = seen_at if seen_at is not None else {}

    def copy(self) -> WorkersSeen:
        """Return an independent copy, for a dry run."""
        return WorkersSeen(self._monotonic, dict(self._seen_at))

    def forget(self) -> None:
        """In a forked child: the workers go on in the parent."""
        self._seen_at = {}

    def mark_seen(self, worker_id: str, at: float) -> None:
        """Record that a worker claimed or ended a run, at a time of the advancing clock."""
        self._seen_at[worker_id] = at
        if "/" in worker_id:
            self._seen_at.update(dict.fromkeys(worker_names(worker_id), at))
        while len(self._seen_at) > WORKERS_MAX:
            del self._seen_at[next(iter(self._seen_at))]

    def mark_gone(self, worker_id: str) -> None:
        """Record that a worker claims nothing more, because it said so or let a claim expire."""
        self.mark_seen(worker_id, _GONE)
        for name in [name for name in self._seen_at if name.startswith(f"{worker_id}/")]:
            self._seen_at[name] = _GONE

    def is_alive(self, tx: Transaction, worker_id: str) -> bool:
        """Whether a worker can be expected to claim again: it was seen lately, or it holds a claim."""
        seen_at = self._seen_at.get(worker_id)
        if seen_at is not None and (seen_at == _GONE or self._monotonic() - seen_at < ALIVE_S):
            return seen_at != _GONE
        return bool(tx.run(sql.WORKER_HAS_CLAIM, (worker_id,)))


def worker_names(worker_id: str) -> tuple[str, ...]:
    """Return the names by which an entry may address a worker: its own and, for `name/kind`, the name alone."""
    owner, slash, _ = worker_id.rpartition("/")
    return (worker_id, owner) if slash and owner else (worker_id,)


class ReturnOfWorkers:
    """When this process last saw a worker come back that was away for longer than its claims last.

    The store or the machine was away, so other workers were away too, and their heartbeats are on their way. For
    `RETURN_S` no claim is taken back. In memory only: each process sees by its own workers that it was away.
    """

    __slots__ = ("_monotonic", "_since")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._since = -math.inf

    def begin(self) -> None:
        """A worker has come back."""
        now = self._monotonic()
        if now >= self._since + RETURN_EVERY_S:
            self._since = now

    @property
    def is_going_on(self) -> bool:
        """Whether other workers may still be coming back."""
        return self._monotonic() < self._since + RETURN_S


# --- the clock offset ----------------------------------------------------------------------------

Compare: TypeAlias = Callable[[Transaction, KernelEnvironment, float, float], float]


class ClockOffset:
    """The store's record of how far the wall clock is ahead of the advancing one, as last read (see clock_jumps.py).

    `compare` is called if it is not known or no longer true; it returns the time.
    """

    __slots__ = ("boot_id", "compare", "facts_version", "is_noted", "offset_s", "read_at", "seen_at")

    def __init__(self, clock: Clock, compare: Compare) -> None:
        self.compare = compare
        self.boot_id = clock.boot_id()
        self.facts_version = -1  # of the transaction in which it was read: a later one may find another
        self.offset_s = 0.0
        self.read_at = clock.monotonic()  # when `KernelEnvironment.read_clock` was last called, by the advancing clock
        self.seen_at = -math.inf  # the last wall-clock time that this process has stored
        self.is_noted = False  # whether it was recent when the clock was last read: then there is nothing to note


_Remembered: TypeAlias = tuple[KernelCache, WorkersSeen, ClockOffset, ReturnOfWorkers]
_REMEMBERED: WeakKeyDictionary[Store, _Remembered] = WeakKeyDictionary()


def kernel_environment(store: Store, clock: Clock, rng: random.Random, compare: Compare) -> KernelEnvironment:
    """Return the environment of a kernel. All kernels over one store share what is remembered of it."""
    remembered = _REMEMBERED.get(store)
    if remembered is None:
        seen, returning = WorkersSeen(clock.monotonic), ReturnOfWorkers(clock.monotonic)
        remembered = _REMEMBERED[store] = KernelCache(), seen, ClockOffset(clock, compare), returning
        in_child(seen.forget)
        # what nearly every transaction reads when nothing remembered is valid any more
        settings = (OFFSET_KEY, POLICY_KEY, SHARE_BY_KEY, SHARE_WINDOW_KEY)
        store.prefetch([(META_GET, (key,)) for key in settings])
        store.prefetch([(sql.DUE_SUMMARY, ()), (sql.FIRST_PROJECTS, ())])
    cache, workers_seen, clock_offset, returning = remembered
    waiters = EntryWaiters(store, clock)
    return KernelEnvironment(store, clock, rng, cache, workers_seen, waiters, clock_offset, returning)

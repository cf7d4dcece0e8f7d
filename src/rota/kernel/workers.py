"""The register of workers: which processes claim entries, and which of them vanished.

The register says what is there now. It is not part of the state that the journal rebuilds: it holds no work, every row
is renewed within seconds by its worker, and after a restore the workers that are there register again. So registering,
renewing and leaving write no events, and checkpoints and replay do not know the table (decision 0035). One thing is a
fact to keep: a worker that vanished. `remove_lost` deletes its row and records that in the same transaction, so it is
recorded exactly once, however many processes look.

Rows are looked at when claims have expired (maintenance.py), when another worker registers or renews, and in `upkeep`;
never on the path of a claim. `seen_at` moves with the wall clock (clock_jumps.py), so a clock that is set makes no
worker lost and revives none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import cast, get_args

import msgspec

from rota.decoding import decode_json
from rota.errors import LimitExceeded, SchedInvalidPayload
from rota.kernel.clock_jumps import now_as_stored
from rota.kernel.environment import WORKERS_MAX, KernelEnvironment
from rota.kernel.journal import append
from rota.kernel.paging import LIST_MAX
from rota.kernel.rows import DECODE_ERRORS
from rota.kernel.turn import EXCEPT_AGENTS_MAX, check_worker
from rota.model.checks import ID_CHARS_MAX, NOTE_CHARS_MAX, Checks
from rota.model.events import WorkerLost
from rota.model.work import Worker
from rota.model.workers import ONLY_KINDS, WORKER_ALIVE_S, WORKER_SILENT_S, SlotPool, WorkerInfo, WorkerKind
from rota.store import Row, Transaction
from rota.store.author import MAINTENANCE, acting_as
from rota.store.statements import workers as sql

__all__ = [
    "LOST_MAX",
    "POOLS_MAX",
    "Workers",
    "count_returned",
    "next_lost_at",
    "read_runs",
    "read_workers",
    "remove_lost",
    "was_away",
]

LACKS_MAX = 20  # agents for which a worker says what it lacks
POOLS_MAX = 64  # pools of slots of one worker, and kinds of one pool
SLOTS_MAX = 1_000_000  # slots of one pool
LOST_MAX = 100  # workers removed in one transaction
_KINDS = get_args(WorkerKind)
_worker = Checks("Worker", SchedInvalidPayload)
_Live = dict[tuple[str, str], Row]  # the claims of a worker, by name and incarnation


class Workers:
    """Registering, leaving and listing."""

    def __init__(self, env: KernelEnvironment) -> None:
        self._env = env

    def register(
        self,
        worker_id: str,
        incarnation: str,
        *,
        kind: WorkerKind,
        host: str,
        os_pid: int,
        pools: Sequence[SlotPool],
        version: str = "",
        draining: bool = False,
        replaces: bool = False,
    ) -> None:
        """Register a worker, or renew its registration; with `replaces` the earlier processes of its id are gone."""
        worker = check_worker(worker_id, incarnation)
        _worker.one_of("kind", kind, _KINDS)
        _worker.name("host", host)
        _worker.whole("os_pid", os_pid, 0)
        if version != "":
            _worker.name("version", version)
        row = (worker_id, incarnation, kind, host, os_pid, _pools_text(pools), version)
        _worker.flag("draining", draining)
        _worker.flag("replaces", replaces)

        def work(tx: Transaction) -> None:
            now = self._env.read_clock(tx)
            if replaces:
                tx.run(sql.REPLACE, (worker_id, incarnation))
            if was_away(tx, worker, now):
                self._env.returning.begin()
            if not self._env.returning.is_going_on:
                remove_lost(tx, now)
            tx.run(sql.REGISTER, (*row, now, draining))
            count = int(tx.run(sql.COUNT)[0][0])
            if count > WORKERS_MAX:
                raise LimitExceeded("workers_max", WORKERS_MAX, count)

        self._env.write_keeping_cache(work)

    def leave(self, worker_id: str, incarnation: str) -> None:
        """Remove a worker from the register; a second time changes nothing."""
        check_worker(worker_id, incarnation)
        self._env.write_keeping_cache(lambda tx: tx.run(sql.LEAVE, (worker_id, incarnation)))

    def list(self, *, lost: bool = False) -> list[WorkerInfo]:
        """Return the workers that are alive, by id; with `lost` also those that vanished and are not removed yet."""
        _worker.flag("lost", lost)
        found = self._env.read(lambda tx: read_workers(tx, now_as_stored(tx, self._env)))
        return [worker for worker in found if worker.alive or lost]

    def remove_lost(self) -> None:
        """Remove and record the workers that vanished; writes nothing while there is none, or while some come back."""
        if self._env.returning.is_going_on:
            return
        lost_at = self._env.read(next_lost_at)
        if lost_at is not None and lost_at <= self._env.read(lambda tx: now_as_stored(tx, self._env)):
            self._env.write_keeping_cache(lambda tx: remove_lost(tx, self._env.read_clock(tx)))


# --- reading -------------------------------------------------------------------------------------


def read_workers(tx: Transaction, now: float) -> list[WorkerInfo]:
    """Return every registered worker, and those that are known by their live claims only, by id."""
    live: _Live = {(row[0], row[1]): row for row in tx.run(sql.CLAIMS, (now,))}
    found = [_registered(row, live, now) for row in tx.run(sql.LIST, (LIST_MAX,))]
    known = {(pool.worker_id, worker.incarnation) for worker in found for pool in worker.pools}
    found += [_by_claims(row) for key, row in live.items() if key not in known]
    return sorted(found, key=lambda worker: (worker.worker_id, worker.incarnation))


def read_runs(tx: Transaction) -> list[Row]:
    """Return the entries that occupy a slot, longest running first, at most `LIST_MAX`: id, worker, incarnation."""
    return tx.run(sql.RUNS, (LIST_MAX,))


def _registered(row: Row, live: _Live, now: float) -> WorkerInfo:
    worker_id, incarnation, kind, host, os_pid, text, version, started_at, seen_at, draining = row
    pools = tuple(
        msgspec.structs.replace(pool, running=_running(live.get((pool.worker_id, incarnation))))
        for pool in _pools(text)
    )
    running = sum(pool.running for pool in pools)
    return WorkerInfo(
        worker_id=worker_id,
        incarnation=incarnation,
        kind=kind,
        host=host,
        os_pid=os_pid,
        slots=sum(pool.slots for pool in pools),
        kinds=tuple(dict.fromkeys(kind for pool in pools for kind in pool.kinds if kind != ONLY_KINDS)),
        started_at=started_at,
        seen_at=seen_at,
        draining=bool(draining),
        alive=running > 0 or seen_at + WORKER_ALIVE_S > now,
        silent=seen_at + WORKER_SILENT_S <= now,
        running=running,
        pools=pools,
        version=version,
    )


def _running(claims: Row | None) -> int:
    return 0 if claims is None else int(claims[2])


def _by_claims(row: Row) -> WorkerInfo:
    worker_id, incarnation, running, started_at, seen_at = row
    return WorkerInfo(
        worker_id=worker_id,
        incarnation=incarnation,
        kind="unregistered",
        started_at=started_at,
        seen_at=seen_at,
        running=running,
    )


def _pools(text: str) -> tuple[SlotPool, ...]:
    """Return the pools of a row; none if the row is damaged: its worker soon writes it again."""
    try:
        return decode_json(text, tuple[SlotPool, ...])
    except DECODE_ERRORS:
        return ()


def _pools_text(pools: Sequence[SlotPool]) -> str:
    _worker.sequence("pools", pools)
    if len(pools) > POOLS_MAX:
        raise _worker.refuse("pools", f"may have at most {POOLS_MAX}, not {len(pools)}")
    for pool in pools:
        if type(pool) is not SlotPool:
            raise _worker.refuse("pools", f"must be slot pools, not {pool!r}")
        _worker.name("pools.worker_id", pool.worker_id, ID_CHARS_MAX)
        _worker.whole("pools.slots", pool.slots, 0, SLOTS_MAX)
        _worker.names("pools.kinds", pool.kinds, POOLS_MAX)
        _worker.whole("pools.running", pool.running, 0)
        if len(pool.problems) > POOLS_MAX:
            raise _worker.refuse("pools.problems", f"may be at most {POOLS_MAX}, not {len(pool.problems)}")
        if len(pool.except_agents) > EXCEPT_AGENTS_MAX:
            count = len(pool.except_agents)
            raise _worker.refuse("pools.except_agents", f"may be at most {EXCEPT_AGENTS_MAX:,}, not {count:,}")
        for pid in pool.except_agents:
            _worker.whole("pools.except_agents", pid)
        if len(pool.lacks) > LACKS_MAX:
            raise _worker.refuse("pools.lacks", f"may be at most {LACKS_MAX}, not {len(pool.lacks)}")
        for pid, text in pool.lacks.items():
            _worker.whole("pools.lacks", pid)
            _worker.text("pools.lacks", text, NOTE_CHARS_MAX)
        for problem in pool.problems:
            _worker.name("pools.problems.kind", problem.kind, ID_CHARS_MAX)
            _worker.text("pools.problems.text", problem.text, NOTE_CHARS_MAX)
    return msgspec.json.encode([msgspec.structs.replace(pool, running=0) for pool in pools]).decode()


# --- workers that vanished -----------------------------------------------------------------------


def count_returned(tx: Transaction, claims: Iterable[tuple[str | None, str | None]]) -> None:
    """Count, for the workers of expired claims (name and incarnation of each), the entries that they lose."""
    for (worker_id, incarnation), count in Counter(claims).items():
        if worker_id is not None:
            tx.run(sql.COUNT_RETURNED, (worker_id, incarnation or "", count))


def was_away(tx: Transaction, worker: Worker, now: float) -> bool:
    """Whether a registered worker is late to renew its registration, or let a claim expire since it last did.

    It may live: the store could not be reached, or the machine was suspended. Its heartbeats come before the renewal,
    so a claim that it has not extended by then is one that it does not know of.
    """
    name, incarnation = worker.worker_id, worker.incarnation
    return bool(incarnation and tx.run(sql.WAS_AWAY, (name, incarnation, now - WORKER_SILENT_S, now)))


def remove_lost(tx: Transaction, now: float) -> None:
    """Remove workers that were not seen for `WORKER_ALIVE_S` and hold no claim, and record it; `now` is the clock's."""
    unseen = tx.run(sql.UNSEEN, (now - WORKER_ALIVE_S, LOST_MAX))
    live = {(row[0], row[1]) for row in tx.run(sql.CLAIMS, (0.0,))} if unseen else set()
    for worker_id, incarnation, host, returned, text in unseen:
        if not any((pool.worker_id, incarnation) in live for pool in _pools(text)):
            tx.run(sql.LEAVE, (worker_id, incarnation))
            event = WorkerLost(worker_id=worker_id, host=host, entries=returned, incarnation=incarnation)
            with acting_as(MAINTENANCE):
                append(tx, event, now=now)


def next_lost_at(tx: Transaction) -> float | None:
    """Return when the next worker counts as lost unless it is seen before; None without registered workers."""
    seen_at = cast("float | None", tx.run(sql.FIRST_SEEN_AT)[0][0])
    return None if seen_at is None else seen_at + WORKER_ALIVE_S

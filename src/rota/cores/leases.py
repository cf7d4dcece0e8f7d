"""Isolation leases: cores for one owner alone.

A lease grants placement and nothing else: no budget, no priority. While it is in force everybody else is kept
off its cores, and the owner may still run elsewhere. It is granted only if five things can be shown; each that
cannot is named in the refusal:

    no_housekeeping_core       at least one core stays with everybody else, and the cores named as housekeeping do
    unrelated_work_pinned      nobody but the owner can run only there, and the driver has no work of its own there
    consumer_not_single        a poller's ring has exactly one consumer, and it is the owner's
    accounting_target_invalid  the context that pays exists, is in force and may be used on these cores
    revocation_too_slow        the engine can give the cores back within the time that the lease allows

Revoking tells the owner's endpoint and starts a clock. The owner gives the cores back, or they are taken when
the time is over: never later. They also go back when the owner's session closes, when its last entity ends,
and, if the lease says so, when the policy service is lost. When a core goes away and no housekeeping core would
be left, the youngest lease ends.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import msgspec

from rota.cores.contexts import Contexts
from rota.cores.cores import Cores
from rota.cores.events import Decision, LeaseEnded, PostRevoke
from rota.cores.handles import HandleTable, Right
from rota.cores.placement import Placement
from rota.cores.queues import Queues
from rota.cores.timers import Timers
from rota.errors import ContextExists, LeaseRefused
from rota.model.budgets import CpuIsolationLease, Handle, SchedulingContext
from rota.model.lifecycle import LEASE, LeaseState, advance

__all__ = ["REVOCATION_BOUND_NS", "LeaseRecord", "Leases", "Shortfall"]

REVOCATION_BOUND_NS = 1_000_000  # how soon the engine promises to take a core back once it has decided to


class Shortfall(msgspec.Struct, frozen=True):
    """One thing that could not be shown, with what stands in its way."""

    proof: str
    because: str


class LeaseRecord:
    """A lease that was asked for, and how far it has come."""

    __slots__ = ("granted_at", "handle", "lease", "order", "state")

    def __init__(self, lease: CpuIsolationLease, order: int) -> None:
        self.lease = lease
        self.order = order  # the later, the younger
        self.granted_at: int | None = None
        self.handle = Handle(0, 0)
        self.state = LeaseState(LEASE.initial)

    @property
    def mask(self) -> int:
        """Its cores."""
        return sum(1 << core for core in self.lease.cores)

    def picture(self) -> CpuIsolationLease:
        """The lease as everybody may see it."""
        generation = self.handle.generation
        return msgspec.structs.replace(
            self.lease, state=str(self.state), granted_at=self.granted_at, generation=generation
        )

    def advance(self, verb: str) -> None:
        """Do what the lifecycle allows."""
        self.state = LeaseState(advance(LEASE, self.state, verb, self.lease.lease_id))


class Leases:
    """Every lease of one engine."""

    def __init__(
        self, queues: Queues, placement: Placement, contexts: Contexts, cores: Cores, timers: Timers[Hashable]
    ) -> None:
        self._queues = queues
        self._placement = placement
        self._contexts = contexts
        self._cores = cores
        self._timers = timers
        self._handles: HandleTable[LeaseRecord] = HandleTable("lease")
        self._by_id: dict[int, LeaseRecord] = {}
        self._granted = 0

    def __iter__(self) -> Iterator[LeaseRecord]:
        return iter(self._by_id.values())

    def resolve(self, handle: Handle, right: Right = "use") -> LeaseRecord:
        """The lease behind a handle."""
        return self._handles.resolve(handle, right)

    def is_live(self, handle: Handle) -> bool:
        """Whether a handle is in force."""
        return self._handles.is_live(handle)

    # --- granting --------------------------------------------------------------------------------

    def grant(self, lease: CpuIsolationLease, now: int, out: list[Decision]) -> Handle:
        """Give cores to an owner alone, or refuse, naming everything that stands in the way."""
        record = LeaseRecord(lease, self._granted + 1)
        shortfalls = list(self.shortfalls(lease))
        if shortfalls:
            record.advance("refuse")
            raise LeaseRefused(
                f"lease {lease.lease_id} for {lease.owner}: {'; '.join(one.because for one in shortfalls)}",
                hint=f"What could not be shown: {', '.join(one.proof for one in shortfalls)}.",
                proofs=[one.proof for one in shortfalls],
                lease_id=lease.lease_id,
            )
        record.advance("grant")
        record.granted_at = now
        self._granted += 1
        record.handle = self._handles.give(record)
        self._by_id[lease.lease_id] = record
        self._close(record, now, out)
        return record.handle

    def shortfalls(
        self, lease: CpuIsolationLease, *, taken: int = 0, coming: Sequence[SchedulingContext] = ()
    ) -> Iterator[Shortfall]:
        """Everything that cannot be shown for a lease, when these cores are taken and these contexts come with it."""
        if lease.lease_id in self._by_id:
            raise ContextExists(f"there is a lease {lease.lease_id} already", lease_id=lease.lease_id)
        for core_id in lease.cores:
            self._queues.core(core_id)  # an unknown core is an error of another kind
        mask = sum(1 << core for core in lease.cores)
        yield from self._housekeeping(lease, mask, self._placement.open & ~taken)
        yield from self._pinned(lease, mask)
        yield from self._consumers(lease)
        yield from self._target(lease, mask, coming)
        if lease.revocation_latency_max < REVOCATION_BOUND_NS:
            allowed, takes = lease.revocation_latency_max, REVOCATION_BOUND_NS
            yield Shortfall("revocation_too_slow", f"it allows {allowed:,} ns to revoke and that takes up to {takes:,}")

    @staticmethod
    def _housekeeping(lease: CpuIsolationLease, mask: int, free: int) -> Iterator[Shortfall]:
        remaining = free & ~mask
        if mask & ~free:
            yield Shortfall("no_housekeeping_core", f"cores {_cores(mask & ~free)} are not free")
        elif not remaining:
            yield Shortfall("no_housekeeping_core", "no core would be left for everybody else")
        kept = sum(1 << core for core in lease.housekeeping)
        if kept & ~remaining:
            yield Shortfall("no_housekeeping_core", f"housekeeping cores {_cores(kept & ~remaining)} would not be left")

    def _pinned(self, lease: CpuIsolationLease, mask: int) -> Iterator[Shortfall]:
        remaining = self._placement.open & ~mask
        for entity in self._queues.entities.values():
            owned = entity.ties.group is not None and entity.ties.group.name == lease.owner
            if not owned and not entity.ties.allowed & remaining:
                yield Shortfall("unrelated_work_pinned", f"entity {entity.key} can run nowhere else")
                break  # one is enough to refuse; listing thousands helps nobody
        for core_id in lease.cores:
            work = self._queues.core(core_id).pinned_work
            if work:
                yield Shortfall("unrelated_work_pinned", f"{', '.join(sorted(work))} is done on core {core_id}")

    def _consumers(self, lease: CpuIsolationLease) -> Iterator[Shortfall]:
        if lease.mode != "poller":
            return
        if len(lease.consumers) != 1:
            yield Shortfall("consumer_not_single", f"its ring has {len(lease.consumers)} consumers")
            return
        consumer = self._queues.entities.get(lease.consumers[0])
        if consumer is None or consumer.ties.group is None or consumer.ties.group.name != lease.owner:
            yield Shortfall("consumer_not_single", f"entity {lease.consumers[0]} is not of {lease.owner}")

    def _target(self, lease: CpuIsolationLease, mask: int, coming: Sequence[SchedulingContext]) -> Iterator[Shortfall]:
        target = lease.accounting_target
        masks = {one.context_id: one.core_mask for one in (*self._contexts, *coming)}
        if target is None:
            yield Shortfall("accounting_target_invalid", "it names no context that pays")
        elif target not in masks:
            yield Shortfall("accounting_target_invalid", f"there is no context {target}")
        elif masks[target] and not masks[target] & mask:
            yield Shortfall("accounting_target_invalid", f"context {target} may not be used on these cores")

    # --- ending ----------------------------------------------------------------------------------

    def revoke(self, record: LeaseRecord, now: int, out: list[Decision]) -> None:
        """Ask an owner for its cores back; they are taken when its time is over."""
        record.advance("revoke")
        lease = record.lease
        by_ns = now + lease.revocation_latency_max - REVOCATION_BOUND_NS
        self._timers.set(record, by_ns)
        if lease.revoke_endpoint is not None:
            out.append(PostRevoke(lease.revoke_endpoint, lease.lease_id, now + lease.revocation_latency_max))

    def release(self, record: LeaseRecord, now: int, out: list[Decision]) -> None:
        """The cores of a lease are everybody's again."""
        record.advance("release")
        self._timers.cancel(record)
        self._handles.revoke(record.handle)
        del self._by_id[record.lease.lease_id]
        self._open(record, now, out)
        out.append(LeaseEnded(record.lease.lease_id, record.lease.cores))

    def time_is_over(self, record: LeaseRecord, now: int, out: list[Decision]) -> None:
        """An owner that was asked for its cores has not given them back: they are taken."""
        if record.state is LeaseState.REVOKING:
            self.release(record, now, out)

    def owner_gone(self, owner: str, now: int, out: list[Decision]) -> None:
        """An owner has ended or closed its session: what it leased goes back."""
        for record in [one for one in self if one.lease.owner == owner]:
            self.release(record, now, out)

    def service_lost(self, now: int, out: list[Decision]) -> None:
        """The policy service is lost: leases that say so are revoked."""
        for record in [one for one in self if one.lease.on_service_loss == "revoke"]:
            if record.state is LeaseState.ACTIVE:
                self.revoke(record, now, out)

    def keep_housekeeping(self, now: int, out: list[Decision]) -> None:
        """End the youngest leases until a core is left for everybody else."""
        while not self._placement.open and self._by_id:
            youngest = max(self, key=lambda one: one.order)
            self.release(youngest, now, out)

    # --- cores -----------------------------------------------------------------------------------

    def _close(self, record: LeaseRecord, now: int, out: list[Decision]) -> None:
        """Keep everybody but the owner off the cores of a lease."""
        owner, mask = record.lease.owner, record.mask
        self._placement.leased[owner] = self._placement.leased.get(owner, 0) | mask
        self._placement.set_open(self._placement.open & ~mask)
        for core_id in record.lease.cores:
            core = self._queues.core(core_id)
            core.lease_id = record.lease.lease_id
            self._placement.evacuate(core, now, out)
            brought = self._placement.bring(owner, core, now, out)
            current = core.current
            if brought if current is None else not self._placement.cores_for(current) & core.bit:
                out.extend(self._cores.ask(core))

    def _open(self, record: LeaseRecord, now: int, out: list[Decision]) -> None:
        owner, mask = record.lease.owner, record.mask
        self._placement.leased[owner] &= ~mask
        if not self._placement.leased[owner]:
            del self._placement.leased[owner]
        self._placement.set_open(self._placement.open | (mask & self._placement.online))
        for core_id in record.lease.cores:
            core = self._queues.core(core_id)
            core.lease_id = None
            if core.is_online:
                out.extend(self._cores.ask(core))  # there may be somebody to run there who could not before
        self._placement.bring_home(now, out)


def _cores(mask: int) -> str:
    return ", ".join(str(core) for core in range(mask.bit_length()) if mask >> core & 1)

"""Isolation leases: cores for one owner only.

A lease grants placement and nothing else: no budget, no priority. While it is active, other entities are kept off its
cores; the owner may also run elsewhere. A lease is granted only if five checks pass; a refusal names each failed one:

    no_housekeeping_core       at least one core stays open, and so do those that this or another lease names
    unrelated_work_pinned      no other entity can run only there, and the driver has no pinned work there
    consumer_not_single        the ring of a poller has exactly one consumer, which belongs to the owner
    accounting_target_invalid  the paying context exists and may be used on these cores
    revocation_too_slow        the engine can return the cores within the time that the lease allows

Revoking notifies the owner's endpoint and sets a timer. The owner releases the cores, or the engine takes them when the
time is over, never later. A lease also ends when the owner's session closes, when its last entity ends, when the
context that pays for it is revoked, and, if the lease says so, when the policy service is lost. When a core goes
offline and no housekeeping core would be left, the newest lease ends.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import msgspec

from rota.cores.contexts import SchedulingContexts
from rota.cores.core_scheduler import CoreScheduler
from rota.cores.events import Decision, LeaseEnded, PostRevoke
from rota.cores.handles import HandleTable, Right
from rota.cores.heaps import Timers
from rota.cores.placement import Placement
from rota.cores.queues import Queues
from rota.errors import ContextExists, LeaseRefused
from rota.model.budgets import CpuIsolationLease, Handle, SchedulingContext, mask_of
from rota.model.lifecycle import LEASE, LeaseState, advance

__all__ = ["REVOCATION_BOUND_NS", "FailedCheck", "LeaseRecord", "Leases"]

REVOCATION_BOUND_NS = 1_000_000  # maximum time the engine needs to take a core back


class FailedCheck(msgspec.Struct, frozen=True):
    """A failed check and its reason."""

    check: str
    reason: str


class LeaseRecord:
    """A requested lease and its state."""

    __slots__ = ("granted_at", "handle", "lease", "sequence", "state")

    def __init__(self, lease: CpuIsolationLease, sequence: int) -> None:
        self.lease = lease
        self.sequence = sequence  # higher: newer
        self.granted_at: int | None = None
        self.handle = Handle(0, 0)
        self.state = LeaseState(LEASE.initial)

    @property
    def mask(self) -> int:
        """The mask of its cores."""
        return mask_of(self.lease.cores)

    def view(self) -> CpuIsolationLease:
        """The current state of the lease, for readers outside the engine."""
        generation = self.handle.generation
        return msgspec.structs.replace(
            self.lease, state=str(self.state), granted_at=self.granted_at, generation=generation
        )

    def advance(self, verb: str) -> None:
        """Apply a verb of the lease lifecycle."""
        self.state = LeaseState(advance(LEASE, self.state, verb, self.lease.lease_id))


class Leases:
    """Every lease of one engine."""

    def __init__(
        self,
        queues: Queues,
        placement: Placement,
        contexts: SchedulingContexts,
        scheduler: CoreScheduler,
        timers: Timers[Hashable],
    ) -> None:
        self._queues = queues
        self._placement = placement
        self._contexts = contexts
        self._scheduler = scheduler
        self._timers = timers
        self._handles: HandleTable[LeaseRecord] = HandleTable("lease")
        self._by_id: dict[int, LeaseRecord] = {}
        self._granted = 0

    def __iter__(self) -> Iterator[LeaseRecord]:
        return iter(self._by_id.values())

    def resolve(self, handle: Handle, right: Right = "use") -> LeaseRecord:
        """Return the lease behind a handle."""
        return self._handles.resolve(handle, right)

    def is_live(self, handle: Handle) -> bool:
        """Whether a handle is valid and not revoked."""
        return self._handles.is_live(handle)

    # --- granting --------------------------------------------------------------------------------

    def grant(self, lease: CpuIsolationLease, now: int, out: list[Decision]) -> Handle:
        """Grant exclusive cores to an owner, or refuse and name every failed check."""
        record = LeaseRecord(lease, self._granted + 1)
        failed_checks = list(self.failed_checks(lease))
        if failed_checks:
            record.advance("refuse")
            raise LeaseRefused(
                f"lease {lease.lease_id} for {lease.owner}: {'; '.join(one.reason for one in failed_checks)}",
                hint=f"Failed checks: {', '.join(one.check for one in failed_checks)}.",
                proofs=[one.check for one in failed_checks],
                lease_id=lease.lease_id,
            )
        record.advance("grant")
        record.granted_at = now
        self._granted += 1
        record.handle = self._handles.issue(record)
        self._by_id[lease.lease_id] = record
        self._isolate(record, now, out)
        return record.handle

    def failed_checks(
        self,
        lease: CpuIsolationLease,
        *,
        before: Sequence[CpuIsolationLease] = (),
        contexts: Sequence[SchedulingContext] = (),
    ) -> Iterator[FailedCheck]:
        """The checks that fail for a lease, given the leases `before` it and the contexts of the same island."""
        if lease.lease_id in self._by_id:
            raise ContextExists(f"lease {lease.lease_id} already exists", lease_id=lease.lease_id)
        for core_id in lease.cores:
            self._queues.core(core_id)  # raises for an unknown core
        mask = mask_of(lease.cores)
        free = self._placement.open & ~mask_of(core for one in before for core in one.cores)
        yield from self._housekeeping(lease, mask, free, (*(record.lease for record in self), *before))
        yield from self._pinned(lease, free & ~mask)
        yield from self._consumers(lease)
        yield from self._target(lease, mask, contexts)
        if lease.revocation_latency_max < REVOCATION_BOUND_NS:
            allowed, takes = lease.revocation_latency_max, REVOCATION_BOUND_NS
            yield FailedCheck(
                "revocation_too_slow", f"it allows {allowed:,} ns to revoke; the engine needs up to {takes:,} ns"
            )

    @staticmethod
    def _housekeeping(
        lease: CpuIsolationLease, mask: int, free: int, others: Sequence[CpuIsolationLease]
    ) -> Iterator[FailedCheck]:
        remaining = free & ~mask
        if mask & ~free:
            yield FailedCheck("no_housekeeping_core", f"cores {_core_list(mask & ~free)} are not free")
        elif not remaining:
            yield FailedCheck("no_housekeeping_core", "no core would be left for other entities")
        lost = mask_of(lease.housekeeping) & ~remaining
        lost |= mask_of(core for one in others for core in one.housekeeping) & mask
        if lost:
            yield FailedCheck("no_housekeeping_core", f"housekeeping cores {_core_list(lost)} would not be left")

    def _pinned(self, lease: CpuIsolationLease, remaining: int) -> Iterator[FailedCheck]:
        for entity in self._queues.entities.values():
            owned = entity.details.group is not None and entity.details.group.name == lease.owner
            if not owned and not entity.details.allowed & remaining:
                yield FailedCheck("unrelated_work_pinned", f"entity {entity.key} can only run there")
                break  # one is enough to refuse
        for core_id in lease.cores:
            work = self._queues.core(core_id).pinned_work
            if work:
                yield FailedCheck("unrelated_work_pinned", f"core {core_id} has pinned work: {', '.join(sorted(work))}")

    def _consumers(self, lease: CpuIsolationLease) -> Iterator[FailedCheck]:
        if lease.mode != "poller":
            return
        if len(lease.consumers) != 1:
            yield FailedCheck("consumer_not_single", f"its ring has {len(lease.consumers)} consumers")
            return
        consumer = self._queues.entities.get(lease.consumers[0])
        if consumer is None or consumer.details.group is None or consumer.details.group.name != lease.owner:
            yield FailedCheck("consumer_not_single", f"entity {lease.consumers[0]} does not belong to {lease.owner}")

    def _target(
        self, lease: CpuIsolationLease, mask: int, contexts: Sequence[SchedulingContext]
    ) -> Iterator[FailedCheck]:
        target = lease.accounting_target
        masks = {one.context_id: one.core_mask for one in (*self._contexts, *contexts)}
        if target is None:
            yield FailedCheck("accounting_target_invalid", "it names no paying context")
        elif target not in masks:
            yield FailedCheck("accounting_target_invalid", f"context {target} does not exist")
        elif masks[target] and not masks[target] & mask:
            yield FailedCheck("accounting_target_invalid", f"context {target} may not be used on these cores")

    # --- ending ----------------------------------------------------------------------------------

    def revoke(self, record: LeaseRecord, now: int, out: list[Decision]) -> None:
        """Ask an owner to release its cores; a timer takes them when its time is over."""
        record.advance("revoke")
        lease = record.lease
        by_ns = now + lease.revocation_latency_max - REVOCATION_BOUND_NS
        self._timers.set(record, by_ns)
        if lease.revoke_endpoint is not None:
            out.append(PostRevoke(lease.revoke_endpoint, lease.lease_id, now + lease.revocation_latency_max))

    def release(self, record: LeaseRecord, now: int, out: list[Decision]) -> None:
        """End a lease: its cores are open again."""
        record.advance("release")
        self._timers.cancel(record)
        self._handles.revoke(record.handle)
        del self._by_id[record.lease.lease_id]
        self._return_cores(record, now, out)
        out.append(LeaseEnded(record.lease.lease_id, record.lease.cores))

    def revocation_due(self, record: LeaseRecord, now: int, out: list[Decision]) -> None:
        """The owner of a revoked lease has not released it in time: end it."""
        if record.state is LeaseState.REVOKING:
            self.release(record, now, out)

    def owner_gone(self, owner: str, now: int, out: list[Decision]) -> None:
        """An owner has ended or closed its session: its leases end."""
        for record in [one for one in self if one.lease.owner == owner]:
            self.release(record, now, out)

    def target_gone(self, context_id: int, now: int, out: list[Decision]) -> None:
        """A context is revoked: the leases that it pays for end."""
        for record in [one for one in self if one.lease.accounting_target == context_id]:
            self.release(record, now, out)

    def service_lost(self, now: int, out: list[Decision]) -> None:
        """The policy service is lost: revoke the leases that ask for it."""
        for record in [one for one in self if one.lease.on_service_loss == "revoke"]:
            if record.state is LeaseState.ACTIVE:
                self.revoke(record, now, out)

    def keep_housekeeping(self, now: int, out: list[Decision]) -> None:
        """End the newest leases until a core is open."""
        while not self._placement.open and self._by_id:
            newest = max(self, key=lambda one: one.sequence)
            self.release(newest, now, out)

    # --- cores -----------------------------------------------------------------------------------

    def _isolate(self, record: LeaseRecord, now: int, out: list[Decision]) -> None:
        """Keep other entities off the cores of a lease."""
        owner, mask = record.lease.owner, record.mask
        self._placement.leased[owner] = self._placement.leased.get(owner, 0) | mask
        self._placement.set_open(self._placement.open & ~mask)
        for core_id in record.lease.cores:
            core = self._queues.core(core_id)
            core.lease_id = record.lease.lease_id
            self._placement.evacuate(core, now, out)
            brought = self._placement.pull_member(owner, core, now, out)
            current = core.current
            if brought if current is None else not self._placement.cores_for(current) & core.bit:
                out.extend(self._scheduler.request_reschedule(core))

    def _return_cores(self, record: LeaseRecord, now: int, out: list[Decision]) -> None:
        owner, mask = record.lease.owner, record.mask
        self._placement.leased[owner] &= ~mask
        if not self._placement.leased[owner]:
            del self._placement.leased[owner]
        self._placement.set_open(self._placement.open | (mask & self._placement.online))
        for core_id in record.lease.cores:
            core = self._queues.core(core_id)
            core.lease_id = None
            if core.is_online:
                # entities that could not run there before may be waiting
                out.extend(self._scheduler.request_reschedule(core))
        self._placement.return_displaced(now, out)


def _core_list(mask: int) -> str:
    return ", ".join(str(core) for core in range(mask.bit_length()) if mask >> core & 1)

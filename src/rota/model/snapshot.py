"""What a policy sees and what it returns.

Every runtime uses the same structures: the tick world, the durable queue, a graph lane, the cores. Their fields mean:

    field         tick world       durable queue          graph lane         cores
    candidate id  pid              sched_id               enqueue number     entity id
    owner, group  pid, none        pid, project           component, lane    entity, account
    now           tick             epoch seconds          epoch number       nanoseconds
    slots         max_per_tick     free slots             active width       the requesting core
    priority      clamped float    int                    rank 3 … 0         band, then scalar
    weight        priority × 1000  project, then agent    8, 4, 2, 1         entity weight
    usage         activations      tokens, else seconds   measured ns        runtime ns

The snapshot carries the accounts. A policy only returns picks; the runtime that owns the accounts advances them. Hard
limits are not a policy's task: the runtime filters candidates before the pass and checks picks after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from rota.model.reasons import PickReason
from rota.model.work import WEIGHT_UNIT, Intent

__all__ = ["Account", "Candidate", "Decision", "Decisions", "Key", "Slot", "Snapshot"]

Key: TypeAlias = str | int | None  # the owner or group of an account; None is "no group"


class Slot(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A free slot, and the kinds of work it accepts besides work without a kind."""

    id: int
    kinds: tuple[str, ...] = ()

    def fits(self, candidate: Candidate) -> bool:
        """Whether this slot can run the candidate."""
        return candidate.kind is None or candidate.kind in self.kinds


class Candidate(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """An entry that may run now: blocked entries have been filtered out."""

    id: int
    owner: Key
    group: Key = None
    priority: float = 0  # higher is sooner
    ready_at: float = 0
    deadline: float | None = None
    intent: Intent = Intent.NEUTRAL
    cost: int = 1  # what the run is expected to use, in the unit of usage
    kind: str | None = None  # the kind of slot it needs; None runs anywhere


class Account(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Weight, virtual time and usage of an owner or a group."""

    weight: int = WEIGHT_UNIT  # thousandths
    virtual_time: int = 0  # see policy/virtual_time
    request: int = 1  # the expected size of one run, in the unit of usage
    usage: int = 0  # charged in the window
    reserved: int = 0  # expected usage of live runs
    live: int = 0  # live runs
    ended: int = 0  # runs that ended in the window, with any outcome
    last_run_at: float = 0  # its creation time if it never ran


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The state of one pass: free slots, eligible candidates, and all accounts."""

    now: float = 0
    slots: tuple[Slot, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    owners: Mapping[Key, Account] = {}
    groups: Mapping[Key, Account] = {}  # also groups without candidates: their usage counts

    def owner(self, candidate: Candidate) -> Account:
        """Return the account of a candidate's owner."""
        return self.owners.get(candidate.owner) or Account()

    def group(self, candidate: Candidate) -> Account:
        """Return the account of a candidate's group."""
        return self.groups.get(candidate.group) or Account()


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Run this candidate in this slot, for this reason."""

    candidate_id: int
    slot_id: int
    reason: PickReason


Decisions: TypeAlias = tuple[Decision, ...]

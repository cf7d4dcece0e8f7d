"""All a policy sees, and all it may say.

One shape serves every runtime: the tick world, the durable queue, a graph lane, the cores. What the
fields mean in each of them:

    field         tick world       durable queue          graph lane         cores
    candidate id  pid              sched_id               enqueue number     entity id
    owner, group  pid, none        pid, project           component, lane    entity, account
    now           tick             epoch seconds          epoch number       nanoseconds
    slots         max_per_tick     free slots             active width       the core that asks
    priority      clamped float    int                    rank 3 … 0         band, then scalar
    weight        priority × 1000  project, then agent    8, 4, 2, 1         entity weight
    usage         activations      tokens, else seconds   measured ns        runtime ns

Accounts travel in the snapshot; a policy only returns picks, and whoever owns the accounts advances
them. Hard limits are never the policy's: the runtime filters before and checks after.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from rota.model.reasons import Because
from rota.model.work import WEIGHT_UNIT, Intent

__all__ = ["Account", "Candidate", "Decision", "Decisions", "Key", "Slot", "Snapshot"]

Key: TypeAlias = str | int | None  # who an account belongs to; None is "no group"


class Slot(msgspec.Struct, frozen=True, gc=False):
    """A free place to run, and the kinds of work it takes besides work of no kind."""

    id: int
    kinds: tuple[str, ...] = ()

    def fits(self, candidate: Candidate) -> bool:
        """Whether this slot can run it."""
        return candidate.kind is None or candidate.kind in self.kinds


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """Something that may run now: everything that blocks it has been filtered out."""

    id: int
    owner: Key
    group: Key = None
    priority: float = 0  # higher is sooner
    ready_at: float = 0
    deadline: float | None = None
    intent: Intent = Intent.NEUTRAL
    cost: int = 1  # what the run is expected to use, in the unit of usage
    kind: str | None = None  # the kind of slot it needs; None runs anywhere


class Account(msgspec.Struct, frozen=True, gc=False):
    """Where an owner or a group stands."""

    weight: int = WEIGHT_UNIT  # thousandths
    virtual_time: int = 0  # see policy/virtual_time
    request: int = 1  # what one turn asks for, in the unit of usage
    usage: int = 0  # charged in the window
    reserved: int = 0  # expected by runs under way
    live: int = 0  # runs under way
    ended: int = 0  # runs that ended in the window, however
    last_run_at: float = 0  # never run: birth


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One moment: who may run, where, and where everybody stands."""

    now: float = 0
    slots: tuple[Slot, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    owners: Mapping[Key, Account] = {}
    groups: Mapping[Key, Account] = {}  # also those without candidates: their usage counts

    def owner(self, candidate: Candidate) -> Account:
        """The account of a candidate's owner."""
        return self.owners.get(candidate.owner, _FRESH)

    def group(self, candidate: Candidate) -> Account:
        """The account of a candidate's group."""
        return self.groups.get(candidate.group, _FRESH)


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Run this candidate in this slot, because."""

    candidate_id: int
    slot_id: int
    reason: Because


Decisions: TypeAlias = tuple[Decision, ...]

_FRESH = Account()

"""Handles: references to a record that can be passed on, restricted and revoked.

A handle is a slot in a table plus the generation of that slot. Revoking it increments the slot's generation, so an old
handle is stale even after the slot is used again:

    issue    → (slot 0, generation 0)
    revoke   slot 0 is free, generation 1
    issue    → (slot 0, generation 1)      the old (0, 0) is stale

*Attenuating* a handle makes a second handle to the same record with fewer rights. Revoking a handle also revokes every
handle made from it. Within one process this protects against mistakes, not against malicious code: code that can
import the table can read it.
"""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from rota.errors import Forbidden, StaleHandle
from rota.model.budgets import Handle

__all__ = ["ALL_RIGHTS", "HandleTable", "Right"]

Right = Literal["use", "adjust", "revoke"]
ALL_RIGHTS: frozenset[Right] = frozenset(("use", "adjust", "revoke"))
T = TypeVar("T")


class _Grant(Generic[T]):
    __slots__ = ("children", "rights", "thing")

    def __init__(self, thing: T, rights: frozenset[Right]) -> None:
        self.thing = thing
        self.rights = rights
        self.children: list[Handle] = []  # handles made from this one


class HandleTable(Generic[T]):
    """Handles to records of one kind, with their rights."""

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._grants: list[_Grant[T] | None] = []
        self._generations: list[int] = []
        self._free: list[int] = []

    def issue(self, thing: T, rights: frozenset[Right] = ALL_RIGHTS) -> Handle:
        """Return a new handle to a record."""
        if self._free:
            slot = self._free.pop()
        else:
            slot = len(self._grants)
            self._grants.append(None)
            self._generations.append(0)
        self._grants[slot] = _Grant(thing, rights)
        return Handle(slot, self._generations[slot])

    def attenuate(self, handle: Handle, rights: frozenset[Right]) -> Handle:
        """Return a handle to the same record with at most these rights. It is revoked together with the original."""
        grant = self._grant(handle)
        weaker = self.issue(grant.thing, grant.rights & rights)
        grant.children = [child for child in grant.children if self.is_live(child)] + [weaker]
        return weaker

    def resolve(self, handle: Handle, right: Right) -> T:
        """Return the record behind a live handle, or raise if the handle does not have this right."""
        grant = self._grant(handle)
        if right not in grant.rights:
            raise Forbidden(
                f"this handle has no right to {right} the {self._noun}",
                hint=f"Use a handle with the right {right!r}: attenuating removed it from this one.",
                right=right,
            )
        return grant.thing

    def revoke(self, handle: Handle) -> None:
        """Revoke a handle and every handle made from it."""
        pending = [handle]
        while pending:
            each = pending.pop()
            if self.is_live(each):
                pending += self._grant(each).children
                self._grants[each.slot] = None
                self._generations[each.slot] += 1
                self._free.append(each.slot)

    def is_live(self, handle: Handle) -> bool:
        """Whether a handle is valid and not revoked."""
        known = 0 <= handle.slot < len(self._generations)
        return known and self._generations[handle.slot] == handle.generation and self._grants[handle.slot] is not None

    def _grant(self, handle: Handle) -> _Grant[T]:
        grant = self._grants[handle.slot] if self.is_live(handle) else None
        if grant is None:
            raise StaleHandle(
                f"the handle to this {self._noun} is stale", slot=handle.slot, generation=handle.generation
            )
        return grant

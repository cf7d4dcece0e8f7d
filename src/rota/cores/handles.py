"""Handles: references that can be given away, weakened and taken back.

A handle is a slot in a table and the generation in which the slot was given out. Taking it back raises the slot's
generation, so whoever still holds the old pair finds it stale, however often the slot is used again:

    give     → (slot 0, generation 0)
    revoke   slot 0 is free, generation 1
    give     → (slot 0, generation 1)      the old (0, 0) is stale

A handle may be *attenuated*: a second handle to the same thing that allows less. Revoking a handle revokes all
that was made from it. In one process this guards against mistakes, not against malice: whoever can import the
table can read it.
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
    """Who may do what with which thing."""

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._grants: list[_Grant[T] | None] = []
        self._generations: list[int] = []
        self._free: list[int] = []

    def give(self, thing: T, rights: frozenset[Right] = ALL_RIGHTS) -> Handle:
        """A new handle to a thing."""
        if self._free:
            slot = self._free.pop()
        else:
            slot = len(self._grants)
            self._grants.append(None)
            self._generations.append(0)
        self._grants[slot] = _Grant(thing, rights)
        return Handle(slot, self._generations[slot])

    def attenuate(self, handle: Handle, rights: frozenset[Right]) -> Handle:
        """A handle to the same thing that allows no more than the first does, and ends with it."""
        grant = self._grant(handle)
        weaker = self.give(grant.thing, grant.rights & rights)
        grant.children = [child for child in grant.children if self.is_live(child)] + [weaker]
        return weaker

    def resolve(self, handle: Handle, right: Right) -> T:
        """The thing behind a handle, if it is in force and allows this."""
        grant = self._grant(handle)
        if right not in grant.rights:
            raise Forbidden(
                f"this handle does not allow to {right} the {self._noun}",
                hint="Ask for a handle that was not attenuated.",
                right=right,
            )
        return grant.thing

    def revoke(self, handle: Handle) -> None:
        """Take back a handle and all that was made from it."""
        pending = [handle]
        while pending:
            each = pending.pop()
            if self.is_live(each):
                pending += self._grant(each).children
                self._grants[each.slot] = None
                self._generations[each.slot] += 1
                self._free.append(each.slot)

    def is_live(self, handle: Handle) -> bool:
        """Whether a handle is in force."""
        known = 0 <= handle.slot < len(self._generations)
        return known and self._generations[handle.slot] == handle.generation and self._grants[handle.slot] is not None

    def _grant(self, handle: Handle) -> _Grant[T]:
        grant = self._grants[handle.slot] if self.is_live(handle) else None
        if grant is None:
            raise StaleHandle(
                f"the handle to this {self._noun} is stale", slot=handle.slot, generation=handle.generation
            )
        return grant

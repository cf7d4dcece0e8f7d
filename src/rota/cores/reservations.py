"""What of each core is promised: the contexts of the two upper bands.

A context of the band *high* or *critical* is a promise: its budget every period, done by its deadline. It is
made for one core, and only if that core can keep it together with everything promised there already:

    utilisation   all promises of a core together take at most `RESERVED_MAX_PPM` of it, so that something is always
                  left for everybody else
    demand        every stretch of time holds what must be done within it, band by band: whatever a more critical band
                  may use comes off first (`policy.deadline`)

`blocking_ns` is how long a core may go on with somebody else after it was asked to look again: the driver's
latency. It is allowed for in every test.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from rota.cores.records import NORMAL
from rota.model.budgets import CRITICALITIES, SchedulingContext
from rota.policy.deadline import Demand, overload, utilisation

__all__ = ["RESERVED_MAX_PPM", "Reservations", "Shortage", "is_reserved"]

PPM = 1_000_000
RESERVED_MAX_PPM = 950_000  # of each core


class Shortage(msgspec.Struct, frozen=True):
    """What is missing: how much there is, and how much would be needed."""

    what: str
    available: int
    needed: int

    def sentence(self) -> str:
        """The shortage in words."""
        return f"{self.what}: {self.needed:,} needed, {self.available:,} available"


def is_reserved(context: SchedulingContext) -> bool:
    """Whether a context is a promise about time, and not only a limit."""
    return CRITICALITIES.index(context.criticality) > NORMAL


class Reservations:
    """Every promise of one engine, by core."""

    def __init__(self, core_count: int, blocking_ns: int) -> None:
        self.core_count = core_count
        self.blocking_ns = blocking_ns
        self._promised: dict[int, SchedulingContext] = {}  # by context

    def promise(self, context: SchedulingContext) -> None:
        """Keep a promise that fits."""
        if is_reserved(context):
            self._promised[context.context_id] = context

    def end(self, context_id: int) -> None:
        """A promise is over."""
        self._promised.pop(context_id, None)

    def on_core(self, core_id: int) -> list[SchedulingContext]:
        """What is promised of a core."""
        return [one for one in self._promised.values() if one.core_mask == 1 << core_id]

    def utilisation_ppm(self, core_id: int, more: Sequence[SchedulingContext] = ()) -> int:
        """How much of a core is promised, with so much more, in millionths, rounded up."""
        part = utilisation(_demand(one) for one in (*self.on_core(core_id), *more))
        return -(-part.numerator * PPM // part.denominator)

    def shortages(self, asked: Sequence[SchedulingContext]) -> Iterator[Shortage]:
        """Everything that is missing for a set of contexts to be promised together."""
        by_core: dict[int, list[SchedulingContext]] = {}
        for context in filter(is_reserved, asked):
            mask = context.core_mask
            if mask.bit_count() != 1 or mask.bit_length() > self.core_count:
                yield Shortage(
                    f"cores named by context {context.context_id}, of {self.core_count}", 1, mask.bit_count()
                )
            else:
                by_core.setdefault(mask.bit_length() - 1, []).append(context)
        for core_id, contexts in sorted(by_core.items()):
            yield from self._core_shortages(core_id, contexts)

    def evidence(self, asked: Sequence[SchedulingContext]) -> dict[str, int]:
        """The numbers that a decision about a set of contexts rests on."""
        numbers: dict[str, int] = {}
        for core_id in sorted({one.core_mask.bit_length() - 1 for one in asked if is_reserved(one)}):
            here = [one for one in asked if is_reserved(one) and one.core_mask == 1 << core_id]
            numbers[f"core {core_id} utilisation ppm"] = self.utilisation_ppm(core_id, here)
            numbers[f"core {core_id} utilisation limit ppm"] = RESERVED_MAX_PPM
            numbers[f"core {core_id} contexts"] = len(self.on_core(core_id)) + len(here)
        return numbers

    def _core_shortages(self, core_id: int, more: list[SchedulingContext]) -> Iterator[Shortage]:
        needed_ppm = self.utilisation_ppm(core_id, more)
        if needed_ppm > RESERVED_MAX_PPM:
            yield Shortage(f"utilisation of core {core_id} in ppm", RESERVED_MAX_PPM, needed_ppm)
            return
        everybody = [*self.on_core(core_id), *more]
        ahead: list[Demand] = []
        for criticality in reversed(CRITICALITIES[NORMAL + 1 :]):
            band = [_demand(one) for one in everybody if one.criticality == criticality]
            found = overload(band, ahead, self.blocking_ns)
            if found is not None:
                yield Shortage(f"time of core {core_id} for {criticality} deadlines in ns", found.time, found.needed)
                return
            ahead += band


def _demand(context: SchedulingContext) -> Demand:
    return Demand(context.budget, context.period, context.deadline)

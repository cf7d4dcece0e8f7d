"""How much of each core is reserved for contexts of the bands high and critical.

Admitting a context of the band *high* or *critical* reserves its budget in every period, to be used by its deadline.
The reservation is made on one core, and only if that core can serve it together with its other reservations:

    utilisation   all reservations of a core together use at most `RESERVED_MAX_PPM` of it, so that some time is
                  always left for other entities
    demand        every interval is long enough for the work due within it, band by band: the time that a more
                  critical band may use is subtracted first (`policy.deadline`)

`blocking_ns` is how long a core may keep running another entity after a reschedule request: the driver's latency.
Every test allows for it.
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
    """A resource of which less is available than needed."""

    what: str
    available: int
    needed: int

    def sentence(self) -> str:
        """The shortage in words."""
        return f"{self.what}: {self.needed:,} needed, {self.available:,} available"


def is_reserved(context: SchedulingContext) -> bool:
    """Whether a context reserves time, and is not only a limit."""
    return CRITICALITIES.index(context.criticality) > NORMAL


class Reservations:
    """Every reservation of one engine, by core."""

    def __init__(self, core_count: int, blocking_ns: int) -> None:
        self.core_count = core_count
        self.blocking_ns = blocking_ns
        self._reserved: dict[int, SchedulingContext] = {}  # by context

    def reserve(self, context: SchedulingContext) -> None:
        """Add the reservation of a context that fits."""
        if is_reserved(context):
            self._reserved[context.context_id] = context

    def release(self, context_id: int) -> None:
        """Remove the reservation of a context."""
        self._reserved.pop(context_id, None)

    def on_core(self, core_id: int) -> list[SchedulingContext]:
        """The reservations on a core."""
        return [one for one in self._reserved.values() if one.core_mask == 1 << core_id]

    def utilisation_ppm(self, core_id: int, more: Sequence[SchedulingContext] = ()) -> int:
        """The reserved part of a core, including `more`, in millionths, rounded up."""
        part = utilisation(_demand(one) for one in (*self.on_core(core_id), *more))
        return -(-part.numerator * PPM // part.denominator)

    def shortages(self, asked: Sequence[SchedulingContext]) -> Iterator[Shortage]:
        """Every shortage that prevents a set of contexts from being reserved together."""
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
        """The numbers behind the decision about a set of contexts."""
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
        contexts = [*self.on_core(core_id), *more]
        ahead: list[Demand] = []
        for criticality in reversed(CRITICALITIES[NORMAL + 1 :]):
            band = [_demand(one) for one in contexts if one.criticality == criticality]
            found = overload(band, ahead, self.blocking_ns)
            if found is not None:
                yield Shortage(f"time of core {core_id} for {criticality} deadlines in ns", found.time, found.needed)
                return
            ahead += band


def _demand(context: SchedulingContext) -> Demand:
    return Demand(context.budget, context.period, context.deadline)

"""Two plans: what one has that the other has not, what changed, and whether the order did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from rota.graph.plan import Plan

__all__ = ["Change", "PlanDifference", "compare_plans"]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One field that is not what it was."""

    path: str  # such as edges.wire.policy.capacity
    before: Any
    after: Any


class PlanDifference(msgspec.Struct, frozen=True, kw_only=True):
    """What leads from one plan to another."""

    added: tuple[str, ...] = ()  # such as components.sink
    removed: tuple[str, ...] = ()
    changed: tuple[Change, ...] = ()
    order_before: tuple[str, ...] = ()
    order_after: tuple[str, ...] = ()

    @property
    def order_changed(self) -> bool:
        """Whether those regions that both have run in another order."""
        before, after = set(self.order_before), set(self.order_after)
        return [each for each in self.order_before if each in after] != [
            each for each in self.order_after if each in before
        ]

    @property
    def same(self) -> bool:
        """Whether there is no difference at all."""
        return not (self.added or self.removed or self.changed or self.order_before != self.order_after)


def compare_plans(before: Plan, after: Plan) -> PlanDifference:
    """The difference between two plans, in the order of the first and then of the second."""
    left, right = _parts(before), _parts(after)
    return PlanDifference(
        added=tuple(name for name in right if name not in left),
        removed=tuple(name for name in left if name not in right),
        changed=tuple(change for name in left if name in right for change in _changes(name, left[name], right[name])),
        order_before=before.region_order,
        order_after=after.region_order,
    )


def _parts(plan: Plan) -> dict[str, Any]:
    """Every named thing of a plan as plain values, by its path."""
    spec = plan.spec
    parts = {"graph": {**msgspec.to_builtins(spec.graph), "schema_version": spec.schema_version}}
    parts |= {f"lanes.{name}": msgspec.to_builtins(lane.spec) for name, lane in plan.lanes.items()}
    parts |= {f"components.{name}": msgspec.to_builtins(each) for name, each in plan.components.items()}
    parts |= {f"edges.{name}": msgspec.to_builtins(edge.spec) for name, edge in plan.edges.items()}
    parts |= {f"regions.{name}": msgspec.to_builtins(region) for name, region in plan.regions.items()}
    return parts


def _changes(path: str, before: Any, after: Any) -> Iterator[Change]:
    """Each field that differs, as deep as both sides are mappings."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys([*before, *after]):
            yield from _changes(f"{path}.{key}", before.get(key), after.get(key))
    elif before != after:
        yield Change(path=path, before=before, after=after)

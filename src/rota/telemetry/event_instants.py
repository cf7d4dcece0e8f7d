"""Which events are instants of a timeline: claims, preemptions, and what budgets and limits stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from rota.errors import StoreCorrupt
from rota.model import events as kinds
from rota.model.event_codec import decode
from rota.model.events import Event, EventData
from rota.telemetry.span_records import SpanAttributes

__all__ = ["INSTANT_KINDS", "EventInstant", "event_instant"]

IDS_SHOWN = 20  # of the entries of one event


class EventInstant(msgspec.Struct, frozen=True):
    """What an instant says; `track` is its track if it belongs to no worker."""

    name: str
    track: str = ""
    worker_id: str = ""
    details: SpanAttributes = {}


def _ids(sched_ids: list[int]) -> str:
    shown = ", ".join(f"#{each}" for each in sched_ids[:IDS_SHOWN])
    return shown if len(sched_ids) <= IDS_SHOWN else f"{shown}, …"


def _claimed(data: kinds.EntriesClaimed) -> EventInstant:
    ids = [each.sched_id for each in data.entries]
    details: SpanAttributes = {"entries": _ids(ids), "policy": data.policy}
    if data.because:
        details["because"] = "; ".join(data.because[:IDS_SHOWN])
    if data.forced_by is not None:
        details["forced_by"] = data.forced_by
    return EventInstant(f"claim {_ids(ids[:3])}", worker_id=data.worker_id, details=details)


def _returned(data: kinds.EntriesReturned) -> EventInstant:
    details: SpanAttributes = {"entries": _ids(data.sched_ids)}
    if data.reason is not None:
        details["reason"] = data.reason
    return EventInstant(f"{data.verb} {_ids(data.sched_ids[:3])}", "returned runs", details=details)


def _breached(data: kinds.LedgerBreached) -> EventInstant:
    details: SpanAttributes = {"used": data.used, "limit": data.limit, "level": data.level, "owner": data.owner}
    return EventInstant(f"{data.level} {data.owner} over {data.dim}", "budgets", details=details)


def _over_budget(data: kinds.RunOverBudget) -> EventInstant:
    details: SpanAttributes = {"used": data.used, "limit": data.limit, "level": data.level}
    return EventInstant(f"run #{data.sched_id} over {data.dim}", "budgets", details=details)


def _alert(data: kinds.BudgetAlert) -> EventInstant:
    details: SpanAttributes = {"used": data.used, "limit": data.limit, "share": data.share}
    return EventInstant(f"{data.level} {data.owner} at {data.share:.0%} of {data.dim}", "budgets", details=details)


def _depleted(data: kinds.ContextBudgetDepleted) -> EventInstant:
    return EventInstant(f"limit {data.context_id} is used up", "limits", details={"remaining": data.remaining})


def _throttled(data: kinds.LimitThrottled) -> EventInstant:
    return EventInstant(f"limit {data.name} is paused", "limits", details={"until_at": data.until_at})


def _awaited(data: kinds.LimitAwaited) -> EventInstant:
    amounts = ", ".join(f"{dim}={amount}" for dim, amount in data.amounts.items())
    return EventInstant(f"run #{data.sched_id} waits for {data.name}", "limits", details={"amounts": amounts})


def _paused(data: kinds.Paused) -> EventInstant:
    return EventInstant(f"{data.level} {data.key} paused".replace("  ", " "), "pauses", details={"by": data.by})


def _resumed(data: kinds.Resumed) -> EventInstant:
    return EventInstant(f"{data.level} {data.key} resumed".replace("  ", " "), "pauses")


def _fell_back(data: kinds.PolicyFellBack) -> EventInstant:
    return EventInstant(f"policy {data.policy} {data.failure}", "policy", details={"detail": data.detail})


_INSTANTS: Mapping[type[EventData], Callable[[Any], EventInstant]] = {
    kinds.EntriesClaimed: _claimed,
    kinds.EntriesReturned: _returned,
    kinds.LedgerBreached: _breached,
    kinds.RunOverBudget: _over_budget,
    kinds.BudgetAlert: _alert,
    kinds.ContextBudgetDepleted: _depleted,
    kinds.LimitThrottled: _throttled,
    kinds.LimitAwaited: _awaited,
    kinds.Paused: _paused,
    kinds.Resumed: _resumed,
    kinds.PolicyFellBack: _fell_back,
}
INSTANT_KINDS = frozenset(each.kind for each in _INSTANTS)


def event_instant(event: Event) -> EventInstant | None:
    """Return what an event is in a timeline; None if it is no instant, or cannot be read."""
    if event.kind not in INSTANT_KINDS:
        return None
    try:
        data = decode(event.kind, event.payload)
    except StoreCorrupt:
        return None
    return _INSTANTS[type(data)](data)

"""The `[retention]` table of a fleet file: what the store keeps.

It is a setting of the store, so it holds for every process, and the last one that sets it counts: a file, `rota serve`
or `rota db retention`. Without this table a file leaves the setting as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from rota.fleet.config.changes import FleetChange, PendingChange
from rota.fleet.config.units import DurationText
from rota.model.checks import INTEGER_MAX
from rota.service.api import KernelApi

__all__ = ["RetentionTable", "retention_changes"]

Rows = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]


class RetentionTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the store keeps; what is older or more is removed by itself."""

    enabled: Annotated[bool, Meta(description="Whether anything is removed.")] = True
    entries: Annotated[
        DurationText | None,
        Meta(description="How long finished entries are kept. Default: the store's, at first 7 days."),
    ] = None
    entries_max: Annotated[
        Rows | None, Meta(description="How many finished entries are kept. Default: the store's, at first 100,000.")
    ] = None
    events: Annotated[
        DurationText | None, Meta(description="How long events are kept. Default: the store's, at first 7 days.")
    ] = None
    events_max: Annotated[
        Rows | None, Meta(description="How many events are kept. Default: the store's, at first 1,000,000.")
    ] = None

    @property
    def wanted(self) -> dict[str, Any]:
        """What the file says, by the names of the store's setting."""
        given = {
            "enabled": self.enabled,
            "entries_s": None if self.entries is None else float(self.entries),
            "entries_max": self.entries_max,
            "events_s": None if self.events is None else float(self.events),
            "events_max": self.events_max,
        }
        return {field: value for field, value in given.items() if value is not None}


def retention_changes(api: KernelApi, table: RetentionTable | None, title: str) -> Iterator[PendingChange]:
    """Yield the change of the store's setting that a file asks for."""
    if table is None:
        return
    setting = api.retention.status().setting
    differs = {field: value for field, value in table.wanted.items() if getattr(setting, field) != value}
    if differs:
        fields = {field: [getattr(setting, field), value] for field, value in differs.items()}
        change = FleetChange(what="scheduling", name="retention", verb="changed", fields=fields)
        yield PendingChange(change, partial(api.retention.set, **differs, by=f"fleet {title}"))

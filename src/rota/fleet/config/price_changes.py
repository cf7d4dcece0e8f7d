"""What applying a fleet file changes about the prices of models."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

import msgspec

from rota.fleet.config.changes import FleetChange, PendingChange
from rota.fleet.config.tables import Fleet
from rota.service.api import KernelApi

__all__ = ["price_changes"]


def price_changes(api: KernelApi, fleet: Fleet, applied_before: Collection[str]) -> Iterator[PendingChange]:
    """Yield the differences. A price that this fleet has not applied before belongs to another caller and stays."""
    known = api.usage.prices()
    for model, table in fleet.prices.items():
        before, price = known.get(model), table.price
        if before != price:
            verb: Any = "created" if before is None else "changed"
            old, new = ({} if each is None else msgspec.structs.asdict(each) for each in (before, price))
            fields = {field: [old[field], new[field]] for field in old if old[field] != new[field]}
            change = FleetChange(what="price", name=model, verb=verb, fields=fields)
            yield PendingChange(change, partial(api.usage.set_prices, {model: price}))
    for model in applied_before:
        if model in known and model not in fleet.prices:
            change = FleetChange(what="price", name=model, verb="removed")
            yield PendingChange(change, partial(api.usage.set_prices, {model: None}))

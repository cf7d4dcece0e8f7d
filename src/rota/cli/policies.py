"""`rota policy list`."""

from __future__ import annotations

import msgspec
from rich.console import Console
from rich.table import Table

from rota.policy import registry

__all__ = ["show"]


def show(*, as_json: bool) -> None:
    """Print every registered policy."""
    policies = [registry.make(name) for name in registry.names()]
    if as_json:
        rows = [{"name": p.name, "sentence": p.sentence, "bound": p.bound and p.bound.sentence} for p in policies]
        print(msgspec.json.encode(rows).decode())
        return
    table = Table("policy", "what it does", "how long one can wait")
    for policy in policies:
        table.add_row(
            policy.name, policy.sentence, policy.bound.sentence if policy.bound else "for ever: it may starve"
        )
    Console().print(table)

"""The parameters of each method, where they are not a struct of the model.

Field names and defaults equal those of the function that implements the method (a test compares them). `entries.py`
has the parameters for entries and runs, `accounts.py` those for agents, projects and budgets, `system.py` those for
events, access tokens and the daemon.
"""

from __future__ import annotations

import msgspec

__all__ = ["NameParams", "NoParams", "Params"]


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters of a method."""


class NoParams(Params, frozen=True):
    """No parameters."""


class NameParams(Params, frozen=True):
    """A name."""

    name: str

"""What each method takes, where that is not one of the model's own nouns.

Field names and defaults are those of the kernel's verbs (a test compares them), so a call over the wire reads like a
call in the process. `work.py` has what is said about entries and their runs, `register.py` what is said about all
that is kept: agents, budgets, projects, events, tokens.
"""

from __future__ import annotations

import msgspec

__all__ = ["Nothing", "Params"]


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a method takes."""


class Nothing(Params, frozen=True):
    """No parameters."""

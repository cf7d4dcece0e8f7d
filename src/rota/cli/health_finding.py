"""The result of one check of `rota doctor`."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Finding", "Verdict"]

Verdict = Literal["good", "note", "bad"]


class Finding(msgspec.Struct, frozen=True):
    """The result of one check."""

    part: str
    verdict: Verdict
    words: str
    fix: str = ""

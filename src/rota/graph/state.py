"""Values that components share, changed between epochs only.

What a component sets is staged with its publications and becomes visible when the next epoch begins, for everybody at
once. If two components set the same key in one epoch, the one that was settled last wins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

__all__ = ["SharedState"]


class SharedState:
    """The committed values, and those that wait for the next epoch."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._staged: deque[Mapping[str, Any]] = deque()  # independent lanes stage from their own threads

    def values(self) -> Mapping[str, Any]:
        """The committed values. They never change under a reader: a commit makes a new mapping."""
        return MappingProxyType(self._values)

    def stage(self, values: Mapping[str, Any]) -> None:
        """Set these when the next epoch begins."""
        if values:
            self._staged.append(values)

    def commit(self) -> None:
        """An epoch begins."""
        if self._staged:
            values = dict(self._values)
            while self._staged:
                values.update(self._staged.popleft())
            self._values = values

    def restore(self, values: Mapping[str, Any]) -> None:
        """Begin with these values."""
        self._values = dict(values)

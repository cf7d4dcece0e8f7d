"""The daemon's own fixture."""

from __future__ import annotations

from tests.daemon.conftest import served

__all__ = ["served"]

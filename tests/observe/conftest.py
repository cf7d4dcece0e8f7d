"""The fixture of a running daemon."""

from __future__ import annotations

from tests.daemon.conftest import served

__all__ = ["served"]

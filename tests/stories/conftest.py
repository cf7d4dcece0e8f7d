"""Fixtures of the stories."""

from __future__ import annotations

from tests.adversity.conftest import rounds

__all__ = ["rounds"]

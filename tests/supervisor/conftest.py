"""Fixtures that the tests of supervisors share with those of fleet files."""

from __future__ import annotations

from tests.fleet.conftest import harness

__all__ = ["harness"]

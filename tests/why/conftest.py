"""Every test of this folder runs on each kind of store."""

from __future__ import annotations

from tests.stores import pytest_generate_tests, store_kind

__all__ = ["pytest_generate_tests", "store_kind"]

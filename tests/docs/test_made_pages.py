"""Pages made from code are current."""

from __future__ import annotations

import pytest

from tests.docs.pages import PAGES, ROOT, render


@pytest.mark.parametrize("page", PAGES)
def test_a_page_made_from_code_is_current(page: str) -> None:
    assert (ROOT / page).read_text() == render(page), f"{page} is old: run ./dev docs"

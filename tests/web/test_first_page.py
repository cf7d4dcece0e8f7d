"""The first page opens in a real browser, without an error, and is live."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.web.harness import picture


def test_the_first_page_opens_and_is_live(signed_in: Page) -> None:
    expect(signed_in.get_by_role("heading", name="Overview")).to_be_visible()
    expect(signed_in.get_by_role("status")).to_have_text("live")
    picture(signed_in, "overview-empty")

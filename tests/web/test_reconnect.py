"""The daemon is killed while a page is open: the page says so, and is live again when the daemon is back."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.web.harness import World, picture
from tests.web.made import agent, queued


def test_a_page_survives_a_killed_daemon(signed_in: Page, world: World) -> None:
    with world.client() as client:
        pid = agent(client, "survivor", "survives")
        queued(client, pid, runnable_at=4e9)
    signed_in.goto(f"{world.board.url}/queue?project=survives")
    status, place = signed_in.locator("header [role=status]"), signed_in.locator(".page [role=status]")
    expect(place).to_have_text("1 to 1 of 1")
    world.daemon.kill()
    expect(status).to_have_text("not connected")
    expect(signed_in.get_by_role("alert")).to_contain_text("cannot be reached")
    picture(signed_in, "daemon-away")
    world.start_daemon()
    expect(status).to_have_text("live")
    expect(signed_in.get_by_role("alert")).to_have_count(0)
    with world.client() as client:
        queued(client, pid, runnable_at=4e9)
    expect(place).to_have_text("1 to 2 of 2")


def test_a_page_that_is_opened_meanwhile_comes_alive_later(signed_in: Page, world: World) -> None:
    world.daemon.kill()
    signed_in.goto(f"{world.board.url}/queue")
    expect(signed_in.get_by_role("alert")).to_contain_text("cannot be reached")
    world.start_daemon()
    expect(signed_in.locator("header [role=status]")).to_have_text("live")
    expect(signed_in.get_by_role("alert")).to_have_count(0)

"""Overview: what the fleet is doing now."""

from __future__ import annotations

from rota.web.page_session import PageSession
from rota.web.widgets import Stat

__all__ = ["build"]


async def build(session: PageSession) -> None:
    """Build the page."""
    running = Stat("Running")

    async def refresh() -> None:
        counts = await session.read(session.api.queue.counts, "status")
        running.set(f"{counts.get('running', 0):,}")

    session.live(refresh)

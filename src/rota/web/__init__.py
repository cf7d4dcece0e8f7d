"""The dashboard: pages in a browser, served by a process of its own (`rota web`).

It reads and changes a store through the scheduler API only, so a slow browser never slows scheduling. NiceGUI, which
draws the pages, is loaded when the server starts and not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.lazy import exports

if TYPE_CHECKING:
    from rota.web.access import DashboardApi, Opener
    from rota.web.server import run_server
    from rota.web.settings import WebSettings

__all__ = ["DashboardApi", "Opener", "WebSettings", "run_server"]

__getattr__ = exports(
    __name__,
    {
        "access": ("DashboardApi", "Opener"),
        "server": ("run_server",),
        "settings": ("WebSettings",),
    },
)

"""The pages of the dashboard. A page is one function `build(session)`; `PAGES` says where it is.

A page's function makes its elements, and gives `session.live` a function that fills them: it is called at once and
after every change. What reads goes through `session.read`, what changes something through `session.act`.
"""

from __future__ import annotations

from rota.web.page_session import Page
from rota.web.pages import gantt, overview

__all__ = ["PAGES"]

PAGES: tuple[Page, ...] = (
    Page(path="/", title="Overview", build=overview.build, icon="dashboard", key="o"),
    Page(path="/gantt", title="Gantt", build=gantt.build, icon="view_timeline", key="n"),
)

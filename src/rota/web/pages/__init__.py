"""The pages of the dashboard. A page is one function `build(session)`; `PAGES` says where it is.

A page's function makes its elements, and gives `session.live` a function that fills them: it is called at once and
after every change. What reads goes through `session.read`, what changes something through `session.act`.
"""

from __future__ import annotations

from rota.web.page_session import WebPage
from rota.web.pages import cores, entry, gantt, graphs, journal, overview, policies, projects, queue

__all__ = ["PAGES"]

PAGES: tuple[WebPage, ...] = (
    WebPage(path="/", title="Overview", build=overview.build, icon="dashboard", key="o"),
    WebPage(path="/queue", title="Queue", build=queue.build, icon="list", key="q"),
    WebPage(path="/entry/{sched_id}", title="Entry", build=entry.build),
    WebPage(path="/gantt", title="Gantt", build=gantt.build, icon="view_timeline", key="n"),
    WebPage(path="/projects", title="Projects and agents", build=projects.build, icon="groups", key="p"),
    WebPage(path="/graphs", title="Graphs", build=graphs.build, icon="account_tree", key="r"),
    WebPage(path="/graph/{run_id:path}", title="Graph run", build=graphs.build_run),
    WebPage(path="/cores", title="Cores", build=cores.build, icon="memory", key="c"),
    WebPage(path="/journal", title="Journal", build=journal.build, icon="receipt_long", key="j"),
    WebPage(path="/policies", title="Policies", build=policies.build, icon="balance", key="l"),
)

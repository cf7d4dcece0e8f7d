"""The pages of the dashboard. A page is one function `build(session)`; `PAGES` says where it is.

A page's function makes its elements, and gives `session.live` a function that fills them: it is called at once and
after every change. What reads goes through `session.read`, what changes something through `session.act`.
"""

from __future__ import annotations

from rota.web.page_session import Page
from rota.web.pages import cores, entry, gantt, graphs, journal, overview, policies, projects, queue

__all__ = ["PAGES"]

PAGES: tuple[Page, ...] = (
    Page(path="/", title="Overview", build=overview.build, icon="dashboard", key="o"),
    Page(path="/queue", title="Queue", build=queue.build, icon="list", key="q"),
    Page(path="/entry/{sched_id}", title="Entry", build=entry.build),
    Page(path="/gantt", title="Gantt", build=gantt.build, icon="view_timeline", key="n"),
    Page(path="/projects", title="Projects and agents", build=projects.build, icon="groups", key="p"),
    Page(path="/graphs", title="Graphs", build=graphs.build, icon="account_tree", key="r"),
    Page(path="/graph/{run_id:path}", title="Graph run", build=graphs.build_run),
    Page(path="/cores", title="Cores", build=cores.build, icon="memory", key="c"),
    Page(path="/journal", title="Journal", build=journal.build, icon="receipt_long", key="j"),
    Page(path="/policies", title="Policies", build=policies.build, icon="balance", key="l"),
)

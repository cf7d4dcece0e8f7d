"""Projects and agents: their weights and caps, which an operator may change, and what they used per day."""

from __future__ import annotations

import datetime as dt
from typing import Any

from nicegui import ui

from rota.errors import InvalidInput
from rota.model import Agent, Project, UsageReport
from rota.web.page_session import PageSession
from rota.web.pictures import legend, picture_frame
from rota.web.project_view import COLOURS, agent_row, changes, day_chart, project_row, projects_of, usage_row
from rota.web.tables import Column, TextTable
from rota.web.widgets import answer_of, empty, section

__all__ = ["build"]

PROJECTS_MAX = 200
AGENTS_SHOWN = 50
DAYS = 14
USAGE_EVERY_S = 15.0  # a report brings the days up to date, which writes
_DAY_S = 86_400
_PROJECT_COLUMNS = (
    Column("project", "Project"),
    Column("status", "Status"),
    Column("weight", "Weight (thousandths)", is_number=True),
    Column("target", "Share by weight", is_number=True),
    Column("actual", "Share used, last 10 min", is_number=True),
    Column("cap", "Most runs at once", is_number=True),
    Column("paused", "Paused by"),
)
_AGENT_COLUMNS = (
    Column("pid", "Pid", is_number=True),
    Column("agent", "Agent"),
    Column("project", "Project"),
    Column("state", "State"),
    Column("priority", "Priority", is_number=True),
    Column("weight", "Weight (thousandths)", is_number=True),
    Column("cap", "Most runs at once", is_number=True),
    Column("paused", "Paused by"),
)
_USAGE_COLUMNS = (
    Column("day", "Day (UTC)"),
    Column("project", "Project"),
    Column("runs", "Runs", is_number=True),
    Column("failed", "Failed", is_number=True),
    Column("tokens", "Tokens", is_number=True),
    Column("cost", "Cost", is_number=True),
    Column("cpu", "CPU", is_number=True),
    Column("wait", "Wait p95", is_number=True),
)


async def build(session: PageSession) -> None:
    """Build the page."""
    projects = ProjectsSection(session)
    agents = AgentsSection(session)
    usage = UsageSection(session)
    for part in (projects, agents, usage):
        part.build()
        session.live(part.refresh)


class ProjectsSection:
    """The projects, with what they should get and what they got."""

    def __init__(self, session: PageSession) -> None:
        self._session = session
        self._found: dict[str, Project] = {}
        self._may_change = session.may("kernel.project.update")
        self._may_pause = session.may("kernel.project.move")

    def build(self) -> None:
        """Make the elements."""
        acts = self._act if self._may_change or self._may_pause else None
        with section("Projects"):
            self._table = TextTable(_PROJECT_COLUMNS, "Projects", links=("project",), on_act=acts)
            self._left = ui.label("").classes("soft small")
            self._empty = empty(
                "There is no project: all agents share alike. Create one:",
                self._session.command("rota projects create NAME"),
            )

    async def refresh(self) -> None:
        """Fill the table."""
        session = self._session
        found, total = await session.read(session.api.projects.list, limit=PROJECTS_MAX)
        self._found = {project.project_id: project for project in found}
        weights = sum(project.weight for project in found if project.status == "ACTIVE")
        state = session.feed.state
        recent = None if state is None else state.recent_shares(session.api.clock.now())
        shares = {} if recent is None else {each.project_id: each for each in recent.projects}
        self._table.show([project_row(project, shares, weights, self._actions(project)) for project in found])
        self._empty.set_visibility(not found)
        self._left.set_text(f"{len(found):,} of {total:,} projects" if total > len(found) else "")

    def _actions(self, project: Project) -> list[str]:
        actions = ["Change"] if self._may_change else []
        if self._may_pause and project.status in ("ACTIVE", "PAUSED"):
            actions.append("Pause" if project.status == "ACTIVE" else "Resume")
        return actions

    async def _act(self, project_id: str, word: str) -> None:
        session, project = self._session, self._found[project_id]
        if word == "Change":
            await change(session, project, project_id)
        else:
            words = f"project {project_id} is {'paused' if word == 'Pause' else 'resumed'}"
            move = session.api.projects.move
            await session.act("kernel.project.move", words, move, project_id, word.lower(), by=session.caller)


class AgentsSection:
    """A page of agents."""

    def __init__(self, session: PageSession) -> None:
        self._session = session
        self._found: dict[str, Agent] = {}
        self._page = 1
        self._project = session.query("project") or None
        self._may_change = session.may("kernel.agent.update")
        self._may_pause = session.may("kernel.agent.pause")

    def build(self) -> None:
        """Make the elements."""
        acts = self._act if self._may_change or self._may_pause else None
        with section("Agents"):
            with ui.element("div").classes("toolbar"):
                self._filter = ui.input("Only of project", value=self._project or "", on_change=self._choose).props(
                    "dense outlined clearable debounce=300"
                )
                self._pages = ui.pagination(1, 1, value=1, on_change=self._turn).props("max-pages=7")
                self._count = ui.label("").classes("soft small")
            self._table = TextTable(_AGENT_COLUMNS, "Agents", on_act=acts)
            self._empty = empty(
                "There is no agent here. Create one, or run a fleet:", self._session.command("rota agents create NAME")
            )

    async def _choose(self) -> None:
        self._project = self._filter.value or None
        self._page = 1
        self._pages.set_value(1)
        await self._session.refresh()

    async def _turn(self) -> None:
        self._page = int(self._pages.value or 1)
        await self._session.refresh()

    async def refresh(self) -> None:
        """Fill the table."""
        session, offset = self._session, (self._page - 1) * AGENTS_SHOWN
        found, total = await session.read(
            session.api.agents.list, project_id=self._project, limit=AGENTS_SHOWN, offset=offset
        )
        self._found = {str(agent.pid): agent for agent in found}
        self._table.show([agent_row(agent, self._actions(agent)) for agent in found])
        self._pages.max = max(1, -(-total // AGENTS_SHOWN))
        self._pages.set_visibility(total > AGENTS_SHOWN)
        self._count.set_text(f"{total:,} agent{'s' * (total != 1)}")
        self._empty.set_visibility(not found)

    def _actions(self, agent: Agent) -> list[str]:
        if agent.state == "DEAD":
            return []
        actions = ["Change"] if self._may_change else []
        if self._may_pause:
            actions.append("Pause" if agent.paused_by is None else "Resume")
        return actions

    async def _act(self, pid: str, word: str) -> None:
        session, agent = self._session, self._found[pid]
        if word == "Change":
            await change(session, agent, agent.name)
        elif word == "Pause":
            words = f"agent {agent.name} is paused"
            await session.act("kernel.agent.pause", words, session.api.agents.pause, agent.pid, session.caller)
        else:
            words = f"agent {agent.name} is resumed"
            await session.act("kernel.agent.resume", words, session.api.agents.resume, agent.pid, session.caller)


async def change(session: PageSession, thing: Project | Agent, name: str) -> None:
    """Ask for a new weight and cap, and set them."""
    with ui.dialog() as dialog, ui.card().classes("dialog"):
        ui.label(f"Change {name}").classes("card-title").props("role=heading aria-level=2")
        weight = ui.input("Weight (thousandths)", value=str(thing.weight)).props("dense outlined inputmode=numeric")
        cap_text = "" if thing.max_concurrent is None else str(thing.max_concurrent)
        cap = ui.input("Most runs at once (empty: no maximum)", value=cap_text).props(
            "dense outlined inputmode=numeric"
        )
        with ui.row().classes("dialog-buttons"):
            ui.button("Back", on_click=lambda: dialog.submit(None)).props("flat no-caps")
            ui.button("Save", on_click=lambda: dialog.submit((weight.value, cap.value))).props("no-caps")
    dialog.props["aria-label"] = f"Change {name}"
    answer: Any = await answer_of(dialog)
    if answer is None:
        return
    try:
        new = changes(thing, *answer)
    except InvalidInput as problem:
        session.say_problem(problem)
        return
    if not new:
        return
    words = f"{name}: " + ", ".join(_said(field, value) for field, value in new.items())
    if isinstance(thing, Project):
        await session.act("kernel.project.update", words, session.api.projects.update, thing.project_id, **new)
    else:
        await session.act("kernel.agent.update", words, session.api.agents.update, thing.pid, **new)


def _said(field: str, value: int | None) -> str:
    shown = "no maximum" if value is None else f"{value:,}"
    return f"weight {shown}" if field == "weight" else f"most runs at once: {shown}"


class UsageSection:
    """What projects used in the last days."""

    def __init__(self, session: PageSession) -> None:
        self._session = session
        self._shown: UsageReport | None = None

    def build(self) -> None:
        """Make the elements."""
        with section(f"Usage of the last {DAYS} days"):
            self._picture = picture_frame()
            self._legend = ui.element("div").classes("legend")
            self._table = TextTable(_USAGE_COLUMNS, "Usage by day and project", rows_shown=10)
            self._empty = empty(
                "Nothing was used in these days. Enqueue an entry:", self._session.command("rota enqueue AGENT")
            )

    async def refresh(self) -> None:
        """Read the days again, at most once in a while."""
        session = self._session
        since_at = (session.api.clock.now() // _DAY_S - DAYS + 1) * _DAY_S
        report = await session.read_every(USAGE_EVERY_S, session.api.usage.report, ("project", "day"), since_at)
        if report is self._shown:
            return
        self._shown = report
        days = [_day(since_at + number * _DAY_S) for number in range(DAYS)]
        drawing, _ = day_chart(report, days)
        self._picture.set_content(drawing if report.lines else "")
        legend(self._legend, [(name, at % COLOURS) for at, name in enumerate(projects_of(report))])
        newest = sorted(report.lines, key=lambda line: (line.day or "", line.project_id or ""), reverse=True)
        self._table.show([usage_row(line) for line in newest])
        self._empty.set_visibility(not report.lines)


def _day(at: float) -> str:
    return dt.datetime.fromtimestamp(at, dt.UTC).strftime("%Y-%m-%d")

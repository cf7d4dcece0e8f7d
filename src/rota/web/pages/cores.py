"""Cores: leases, reserved time and refusals on each host, budgets of CPU time, and the shares of projects."""

from __future__ import annotations

from nicegui import ui

from rota.model import CoreStatus
from rota.web.cores_view import budget_row, core_rows, grant_row, refusal_row, share_rows
from rota.web.page_session import PageSession
from rota.web.pictures import add_style
from rota.web.tables import Column, TextTable
from rota.web.widgets import empty, section

__all__ = ["build"]

SHARES_EVERY_S = 15.0  # a report of usage brings the days up to date, which writes
_DAY_S = 86_400
_CORES = (
    Column("host", "Host"),
    Column("core", "Core", is_number=True),
    Column("use", "Used by"),
    Column("reserved", "Reserved", is_number=True),
)
_GRANTS = (
    Column("entry", "Entry"),
    Column("agent", "Agent"),
    Column("project", "Project"),
    Column("host", "Host"),
    Column("granted", "Granted", is_wide=True),
    Column("weight", "Weight", is_number=True),
    Column("since", "Since"),
)
_REFUSALS = (
    Column("entry", "Entry"),
    Column("host", "Host"),
    Column("when", "When"),
    Column("reason", "Reason", is_wide=True),
    Column("held", "Held by entries"),
)
_BUDGETS = (
    Column("context", "Budget of"),
    Column("budget", "CPU time"),
    Column("left", "Left", is_number=True),
    Column("used", "Used", is_number=True),
    Column("refill", "Next refill"),
    Column("state", "State"),
)
_SHARES = (
    Column("project", "Project"),
    Column("cpu", "CPU time today", is_number=True),
    Column("share", "Share", is_number=True),
    Column("target", "Share by weight", is_number=True),
)


async def build(session: PageSession) -> None:
    """Build the page."""
    page = CoresPage(session)
    page.build()
    session.live(page.refresh)


class CoresPage:
    """The elements of the page."""

    def __init__(self, session: PageSession) -> None:
        self._session = session

    def build(self) -> None:
        """Make the elements."""
        add_style()
        with section("Cores"):
            self._cores = TextTable(_CORES, "Cores", links=("use",))
            self._no_cores = empty(
                "No run has leased cores or reserved time. An agent asks for a core in the fleet file:",
                "[agents.NAME]\ncpu = { lease = 1 }",
            )
        with section("Granted to runs"):
            self._grants = TextTable(_GRANTS, "Granted to runs", links=("entry",))
            self._no_grants = ui.label("No run has been granted cores.").classes("soft")
        with section("Refused") as self._refused:
            self._refusals = TextTable(_REFUSALS, "Refused", links=("entry",))
        with section("Budgets of CPU time"):
            self._budgets = TextTable(_BUDGETS, "Budgets of CPU time")
            self._no_budgets = empty(
                "There is no budget of CPU time. Create one:",
                self._session.command("rota limits create name NAME --unit cpu_ms --budget 500"),
            )
        with section("Shares of CPU time, today"):
            self._shares = TextTable(_SHARES, "Shares of CPU time")
            self._no_shares = ui.label("No project has used CPU time today.").classes("soft")

    async def refresh(self) -> None:
        """Fill the tables."""
        session = self._session
        now = session.api.clock.now()
        status: CoreStatus = await session.read(session.api.cores.status)
        cores = core_rows(status)
        grants = [grant_row(grant, now) for host in status.hosts for grant in host.grants]
        self._cores.show(cores)
        self._no_cores.set_visibility(not cores)
        self._grants.show(grants)
        self._no_grants.set_visibility(not grants)
        self._refusals.show([refusal_row(each, now) for each in status.refused])
        self._refused.set_visibility(bool(status.refused))
        self._budgets.show([budget_row(each, now) for each in status.contexts])
        self._no_budgets.set_visibility(not status.contexts)
        await self._show_shares(now)

    async def _show_shares(self, now: float) -> None:
        session = self._session
        since_at = now // _DAY_S * _DAY_S
        report = await session.read_every(SHARES_EVERY_S, session.api.usage.report, ("project",), since_at)
        projects, _ = await session.read(session.api.projects.list, limit=200)
        rows = share_rows(report.lines, projects)
        self._shares.show(rows)
        self._no_shares.set_visibility(not rows)

"""Graphs: the runs of graphs, and one run with its picture, its nodes and its budgets."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from rota.errors import GraphInvalid, GraphRunUnknown, InvalidInput
from rota.graph import Plan
from rota.model import GraphRunReport
from rota.model.graph_budgets import GraphBudgetLine
from rota.model.graph_runs import LIVE, STATUSES
from rota.web.graph_view import budget_row, facts, node_row, plan_of, raised, run_picture, run_row
from rota.web.page_session import PageSession
from rota.web.pictures import add_style, picture_frame
from rota.web.tables import Column, FieldList, TextTable
from rota.web.widgets import answer_of, confirm, empty, section

__all__ = ["build", "build_run"]

RUNS_SHOWN = 50
_RUNS = (
    Column("run", "Run"),
    Column("graph", "Graph"),
    Column("project", "Project"),
    Column("status", "Status"),
    Column("epoch", "Epoch", is_number=True),
    Column("entry", "Coordinator"),
    Column("started", "Started"),
    Column("ended", "Ended"),
    Column("note", "Waits for / error", is_wide=True),
)
_NODES = (
    Column("node", "Node"),
    Column("agent", "Agent"),
    Column("state", "State"),
    Column("epoch", "Epoch", is_number=True),
    Column("entries", "Entries"),
    Column("newest", "Newest entry"),
    Column("since", "Since"),
    Column("used", "Used"),
)
_BUDGETS = (
    Column("owner", "Of"),
    Column("dim", "Budget"),
    Column("limit", "Allowed", is_number=True),
    Column("used", "Used", is_number=True),
    Column("reserved", "Reserved", is_number=True),
)
START = "rota graph run FILE"


async def build(session: PageSession) -> None:
    """Build the list of runs."""
    page = RunsPage(session)
    page.build()
    session.live(page.refresh)


async def build_run(session: PageSession) -> None:
    """Build the page of one run."""
    page = RunPage(session, session.path("run_id"))
    page.build()
    session.live(page.refresh)


class RunsPage:
    """The list of runs, newest first."""

    def __init__(self, session: PageSession) -> None:
        self._session = session

    def build(self) -> None:
        """Make the elements."""
        add_style()
        with ui.element("div").classes("toolbar"):
            choices: dict[str, str] = {"": "all"} | {status: status for status in STATUSES}
            refresh = self._session.refresh
            self._status = ui.select(choices, value="", label="Status", on_change=refresh).props(
                "dense outlined options-dense"
            )
            self._graph = ui.input("Graph", on_change=refresh).props("dense outlined clearable debounce=300")
            self._page = ui.pagination(1, 1, value=1, on_change=refresh).props("max-pages=7")
            self._count = ui.label("").classes("soft small")
        with section("Runs"):
            self._table = TextTable(_RUNS, "Runs", links=("run", "entry"), tones=("status",))
            self._empty = empty("No graph run matches. Start one:", self._session.command(START))

    async def refresh(self) -> None:
        """Fill the table."""
        session, offset = self._session, (int(self._page.value or 1) - 1) * RUNS_SHOWN
        found, total = await session.read(
            session.api.graphs.list,
            status=self._status.value or None,
            graph=self._graph.value or None,
            limit=RUNS_SHOWN,
            offset=offset,
        )
        now = session.api.clock.now()
        self._table.show([run_row(run, now) for run in found])
        self._page.max = max(1, -(-total // RUNS_SHOWN))
        self._page.set_visibility(total > RUNS_SHOWN)
        self._count.set_text(f"{total:,} run{'s' * (total != 1)}")
        self._empty.set_visibility(not found)


class RunPage:
    """One run: what it is, its picture, its nodes and its budgets."""

    def __init__(self, session: PageSession, run_id: str) -> None:
        self._session = session
        self._run_id = run_id
        self._plan: Plan | None = None
        self._problem = ""  # why it cannot be drawn
        self._budgets: dict[str, GraphBudgetLine] = {}

    def build(self) -> None:
        """Make the elements."""
        add_style()
        session = self._session
        may_raise = session.may("kernel.ledger.set_graph_budget")
        with ui.element("div").classes("toolbar"):
            ui.link("All runs", "/graphs")
            ui.label(self._run_id).classes("mono")
            ui.space()
            self._cancel = ui.button("Cancel the run", on_click=self._ask_cancel).props("flat dense no-caps")
            self._resume = ui.button("Resume", on_click=self._go_on).props("flat dense no-caps")
        self._missing = empty(
            "There is no such graph run, or it is of another project.", self._session.command("rota graph ps")
        )
        with ui.element("div") as self._content:
            with section("Run"):
                self._facts = FieldList()
            with section("Picture"):
                self._picture = picture_frame(on_paper=True)
                self._no_picture = ui.label("").classes("soft")
            with section("Nodes"):
                self._nodes = TextTable(_NODES, "Nodes", links=("newest",), tones=("state",))
            with section("Budgets") as self._budget_card:
                self._lines = TextTable(_BUDGETS, "Budgets", tones=("used",), on_act=self._raise if may_raise else None)
        self._content.classes("page-part")

    async def refresh(self) -> None:
        """Fill the elements."""
        session = self._session
        try:
            report = await session.read(session.api.graphs.show, self._run_id)
        except GraphRunUnknown:
            self._show_missing(is_missing=True)
            return
        self._show_missing(is_missing=False)
        now, run = session.api.clock.now(), report.run
        self._cancel.set_visibility(run.status in LIVE and session.may("kernel.graph.cancel"))
        can_resume = run.status in ("failed", "cancelled") and run.sched_id is not None
        self._resume.set_visibility(can_resume and session.may("kernel.graph.resume"))
        self._facts.show(facts(report, now))
        self._nodes.show([node_row(node, now) for node in report.nodes])
        actions = ["Raise"] if session.may("kernel.ledger.set_graph_budget") else []
        rows = [budget_row(line, actions) for line in report.budgets]
        self._budgets = {row["id"]: line for row, line in zip(rows, report.budgets, strict=True)}
        self._lines.show(rows)
        self._budget_card.set_visibility(bool(rows))
        await self._draw(report)

    def _show_missing(self, *, is_missing: bool) -> None:
        self._missing.set_visibility(is_missing)
        self._content.set_visibility(not is_missing)
        if is_missing:
            self._cancel.set_visibility(False)
            self._resume.set_visibility(False)

    async def _draw(self, report: GraphRunReport) -> None:
        if self._plan is None and not self._problem:
            await self._compile(report)
        drawing = "" if self._plan is None else run_picture(self._plan, report)
        if drawing != self._picture.content:
            self._picture.set_content(drawing)
        self._no_picture.set_text(self._problem)

    async def _compile(self, report: GraphRunReport) -> None:
        if report.document is None:
            self._problem = "The process that runs this graph has its file; the store has none to draw."
            return
        try:
            self._plan = await self._session.access.call(plan_of, report.document)
        except GraphInvalid as problem:
            self._problem = f"The stored graph cannot be drawn: {problem.message}"

    # --- acting ----------------------------------------------------------------------------------

    async def _ask_cancel(self) -> None:
        text = "Its queued entries are cancelled, and its running ones are asked to stop."
        if await confirm(f"Cancel {self._run_id}", text, "Cancel the run"):
            session = self._session
            words = f"run {self._run_id} is cancelled"
            await session.act("kernel.graph.cancel", words, session.api.graphs.cancel, self._run_id, by=session.caller)

    async def _go_on(self) -> None:
        session = self._session
        words = f"run {self._run_id} goes on"
        await session.act("kernel.graph.resume", words, session.api.graphs.resume, self._run_id)

    async def _raise(self, row_id: str, _word: str) -> None:
        session, line = self._session, self._budgets[row_id]
        title = f"Raise {line.dim} of {line.node or 'the run'}"
        with ui.dialog() as dialog, ui.card().classes("dialog"):
            ui.label(title).classes("card-title").props("role=heading aria-level=2")
            limit = ui.input(f"Allowed ({line.dim})", value=str(raised(line))).props("dense outlined inputmode=numeric")
            with ui.row().classes("dialog-buttons"):
                ui.button("Back", on_click=lambda: dialog.submit(None)).props("flat no-caps")
                ui.button("Save", on_click=lambda: dialog.submit(limit.value)).props("no-caps")
        dialog.props["aria-label"] = title
        answer: Any = await answer_of(dialog)
        if answer is None:
            return
        if not str(answer).isdecimal():
            session.say_problem(InvalidInput("a budget must be a whole number", field="limit"))
            return
        words = f"{line.dim} of {line.node or 'the run'}: {int(answer):,}"
        raise_it = session.api.ledger.set_graph_budget
        await session.act(
            "kernel.ledger.set_graph_budget", words, raise_it, self._run_id, line.dim, int(answer), node=line.node
        )

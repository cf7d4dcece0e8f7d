"""Overview: what the fleet does now and did in the last minutes, who gets how much, and what is left of budgets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from nicegui import ui

from rota.model import COST_DIM, WEIGHT_UNIT, BudgetLine, SchedulingContext, WorkerInfo, dim_text, dollars
from rota.observe import BUCKET_S, EventText, FleetState, ProjectReport, RatePoint
from rota.time_text import local_time, span, when
from rota.web.access import DashboardApi
from rota.web.page_session import PageSession
from rota.web.widgets import Meter, Rows, Stat, confirm, labelled, section

__all__ = ["build"]

WAITING_S = 15.0  # how long the list of projects with ready entries is used: it costs a call for each project
PROJECTS_MAX = 50  # whose waiting entries are counted
LIMITS_MAX = 200
EVENTS_SHOWN = 12
HIGH = 0.9  # of a budget: from here on it is shown as nearly used up
MINUTE_BUCKETS = round(60 / BUCKET_S)
_TONES = {"good": "tone-good", "warn": "tone-warn", "bad": "tone-bad", "quiet": "tone-quiet"}


async def build(session: PageSession) -> None:
    """Build the page."""
    _pause(session)
    _numbers(session)
    with ui.element("div").classes("grid"):
        _charts(session)
    with ui.element("div").classes("grid"):
        _shares(session)
        _budgets(session)
        _limits(session)
    with ui.element("div").classes("grid"):
        if session.may("kernel.worker.list"):
            _workers(session)
        _events(session)


# --- the fleet's pause -----------------------------------------------------------------------------


def _pause(session: PageSession) -> None:
    """Say that the fleet is paused, with the button that changes it."""
    is_paused = False

    async def toggle() -> None:
        await (_resume_fleet(session) if is_paused else _pause_fleet(session))

    with ui.element("div").classes("toolbar"):
        button = ui.button(on_click=toggle).props("outline dense no-caps")
        button.set_visibility(session.may("kernel.project.pause_fleet"))
        words = ui.label("").classes("tone-warn").props("role=status")

    async def refresh() -> None:
        nonlocal is_paused
        by = await session.read(session.api.projects.fleet_paused_by)
        is_paused = by is not None
        words.set_text(f"The fleet is paused by {by}: nothing is claimed." if is_paused else "")
        button.set_text("Resume the fleet" if is_paused else "Pause the fleet")
        button.set_icon("play_arrow" if is_paused else "pause")

    session.live(refresh)


async def _pause_fleet(session: PageSession) -> None:
    text = "No entry is claimed until the fleet is resumed. Runs that have begun go on."
    if await confirm("Pause the whole fleet?", text, "Pause"):
        method = "kernel.project.pause_fleet"
        await session.act(method, "the fleet is paused", session.api.projects.pause_fleet, session.caller)


async def _resume_fleet(session: PageSession) -> None:
    method = "kernel.project.resume_fleet"
    await session.act(method, "the fleet is resumed", session.api.projects.resume_fleet, session.caller)


# --- numbers ---------------------------------------------------------------------------------------


def _numbers(session: PageSession) -> None:
    with ui.element("div").classes("stats"):
        slots = Stat("Slots") if session.may("kernel.worker.list") else None
        running = Stat("Running", "/queue?status=running")
        queued = Stat("Queued", "/queue?status=ready,waiting")
        failed = Stat("Failed", "/queue?status=failed")
        throughput = Stat("Throughput")
        waits = Stat("Wait, median")

    async def refresh() -> None:
        statuses = await session.read(session.api.queue.counts, "status")
        if slots is not None:
            workers = await session.read(session.api.workers.list)
            total = sum(worker.slots for worker in workers)
            busy = sum(worker.running for worker in workers if worker.slots)
            slots.set(f"{busy} of {total}" if total else "–", _count(len(workers), "worker"))
        running.set(f"{statuses.get('running', 0):,}")
        ready, waiting = statuses.get("ready", 0), statuses.get("waiting", 0)
        queued.set(f"{ready + waiting:,}", f"{ready:,} ready, {waiting:,} waiting")
        state = session.feed.state
        points = [] if state is None else state.rates.points(session.api.clock.now())
        recent = sum(point.failed for point in points)
        ended = statuses.get("failed", 0)
        failed.set(f"{ended:,}", f"{_count(recent, 'run')} in 10 min", is_bad=recent > 0)
        minute = points[-MINUTE_BUCKETS:]
        throughput.set(f"{sum(point.ended for point in minute):,}/min", "runs that ended in the last minute")
        if state is not None:
            known = state.waits()
            waits.set(_short(known.p50_s) if known.count else "–", f"p99 {_short(known.p99_s)}" if known.count else "")

    session.live(refresh)


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s" if seconds < 60 else span(seconds)  # noqa: PLR2004


# --- over time -------------------------------------------------------------------------------------


class _Line(NamedTuple):
    name: str
    color: str
    value: Callable[[RatePoint], float | None]


_THROUGHPUT = (
    _Line("ended", "#2f7fd1", lambda point: point.ended),
    _Line("started", "#1d8f9e", lambda point: point.started),
    _Line("failed", "#d2493f", lambda point: point.failed),
)
_WAITS = (
    _Line("p50", "#2f7fd1", lambda point: point.wait_p50_s),
    _Line("p95", "#b97a1a", lambda point: point.wait_p95_s),
    _Line("p99", "#d2493f", lambda point: point.wait_p99_s),
)


def _charts(session: PageSession) -> None:
    _chart(session, f"Runs per {BUCKET_S:g} s, last 10 minutes", _THROUGHPUT)
    _chart(session, "Seconds from ready to running", _WAITS)


def _chart(session: PageSession, title: str, lines: tuple[_Line, ...]) -> None:
    with section(title):
        chart = labelled(ui.echart(_chart_options(lines)).classes("chart").props("role=img"), title)
    shown: list[Any] = []

    async def refresh() -> None:
        state: FleetState | None = session.feed.state
        if state is None:
            return
        now = session.api.clock.now()
        points = state.rates.points(now)
        values = [[line.value(point) for point in points] for line in lines]
        if values == shown:
            return
        shown[:] = values
        chart.options["xAxis"]["data"] = [local_time(point.at, now) for point in points]
        for at, series in enumerate(values):
            chart.options["series"][at]["data"] = [None if each is None else round(each, 3) for each in series]
        chart.update()

    session.live(refresh)


def _chart_options(lines: tuple[_Line, ...]) -> dict[str, Any]:
    soft = {"color": "#7d8896"}
    return {
        "animation": False,
        "grid": {"left": 44, "right": 12, "top": 30, "bottom": 24},
        "legend": {"top": 0, "textStyle": soft, "icon": "roundRect"},
        "tooltip": {"trigger": "axis"},
        "xAxis": {"type": "category", "data": [], "axisLabel": soft},
        "yAxis": {"type": "value", "axisLabel": soft, "splitLine": {"lineStyle": {"color": "rgba(125,136,150,0.25)"}}},
        "series": [
            {
                "name": line.name,
                "type": "line",
                "data": [],
                "showSymbol": False,
                "color": line.color,
                "connectNulls": True,
            }
            for line in lines
        ],
    }


# --- shares ----------------------------------------------------------------------------------------


def _shares(session: PageSession) -> None:
    with section("Shares: actual against target"):
        words = ui.label("").classes("soft small")
        nothing = "No project has run yet. Projects share the slots by their weights:"
        rows = Rows(_share_row, nothing=nothing, command=session.command("rota projects create NAME --weight 3000"))

    async def refresh() -> None:
        state = session.feed.state
        if state is None:
            return
        waiting = await session.read_every(WAITING_S, _waiting_projects, session.api)
        shares = state.recent_shares(session.api.clock.now(), waiting)
        words.set_text(f"of {shares.measure}, last {_period(shares.window_s)}")
        rows.show({project.project_id: project for project in shares.projects[:PROJECTS_MAX]})

    session.live(refresh)


def _waiting_projects(api: DashboardApi) -> tuple[str, ...]:
    """Return the projects with entries that are ready: only among them shares are comparable with targets."""
    projects, _ = api.projects.list(limit=PROJECTS_MAX)
    ready = api.queue.list
    ids = (project.project_id for project in projects)
    return tuple(each for each in ids if ready(status="ready", project_id=each, limit=1)[1])


def _share_row(project: ProjectReport) -> Callable[[ProjectReport], None]:
    meter = Meter(project.project_id)

    def update(now: ProjectReport) -> None:
        weight = f"weight {now.weight / WEIGHT_UNIT:g}, {_count(now.runs, 'run')}"
        meter.set(now.share, f"{now.share:.0%} of {now.target:.0%} target · {weight}", target=now.target)

    return update


# --- budgets and limits ----------------------------------------------------------------------------


def _budgets(session: PageSession) -> None:
    with section("Budgets"):
        rows = Rows(
            _budget_row,
            nothing="No budget is set:",
            command=session.command("rota ledger budget global tokens 1000000"),
        )

    async def refresh() -> None:
        lines = await session.read(session.api.ledger.budgets)
        rows.show({(line.level, line.owner, line.dim): line for line in lines})

    session.live(refresh)


def _budget_row(line: BudgetLine) -> Callable[[BudgetLine], None]:
    owner = "whole store" if line.level == "global" else line.owner
    meter = Meter(f"{owner}: {dim_text(line.dim)}")

    def update(now: BudgetLine) -> None:
        used = now.used / now.limit if now.limit else 1.0
        reserved = f", {_amount(now.dim, now.reserved)} reserved" if now.reserved else ""
        text = f"{_amount(now.dim, now.used)} of {_amount(now.dim, now.limit)} per {_period(now.window_s)}{reserved}"
        meter.set(used, text, is_high=used >= HIGH)

    return update


def _period(seconds: float) -> str:
    """Return a duration without a needless fraction: "1 min"."""
    return span(seconds).replace(".0 ", " ")


def _amount(dim: str, amount: int) -> str:
    return dollars(amount) if dim == COST_DIM else f"{amount:,}"


class _Limit(NamedTuple):
    context: SchedulingContext
    now: float
    paused_until: float | None
    waits: int  # runs


def _limits(session: PageSession) -> None:
    with section("Provider limits"):
        nothing = "No limit is set. A limit is shared by all that draw on it:"
        rows = Rows(
            _limit_row,
            nothing=nothing,
            command=session.command("rota limits create name NAME --unit requests --budget 60 --period 60s"),
        )

    async def refresh() -> None:
        found = await session.read(session.api.contexts.list, limit=LIMITS_MAX)
        state, now = session.feed.state, session.api.clock.now()
        throttles = {} if state is None else state.throttles
        awaited = [] if state is None else list(state.awaited.values())
        named = [limit for limit in found if limit.bound_to == "name"]
        rows.show(
            {
                limit.context_id: _Limit(limit, now, throttles.get(limit.bound_id), awaited.count(limit.bound_id))
                for limit in named
            }
        )

    session.live(refresh)


def _limit_row(limit: _Limit) -> Callable[[_Limit], None]:
    meter = Meter(f"{limit.context.bound_id}: {limit.context.unit}")

    def update(now: _Limit) -> None:
        context = now.context
        used = 1.0 - max(0, context.remaining) / context.budget
        text = f"{max(0, context.remaining):,} left of {context.budget:,} per {_period(context.period / 1000)}"
        meter.set(used, text + _refill_text(now), is_high=used >= HIGH)

    return update


def _refill_text(limit: _Limit) -> str:
    """Say when a limit has more again, and who waits for it."""
    parts = []
    if limit.paused_until is not None and limit.paused_until > limit.now:
        parts.append(f"paused, ends {when(limit.paused_until, limit.now)}")
    elif limit.context.refills:
        refill = min(limit.context.refills, key=lambda each: each.at)
        parts.append(f"{refill.amount:,} more {when(refill.at / 1000, limit.now)}")
    if limit.waits:
        parts.append("1 run waits" if limit.waits == 1 else f"{limit.waits:,} runs wait")
    return "".join(f" · {part}" for part in parts)


# --- workers and events ----------------------------------------------------------------------------


def _workers(session: PageSession) -> None:
    with section("Workers"):
        nothing = "No worker is running, so nothing is claimed. Start one:"
        rows = Rows(_worker_row, nothing=nothing, command=session.fleet_command)

    async def refresh() -> None:
        workers = await session.read(session.api.workers.list)
        rows.show({worker.worker_id: worker for worker in workers})

    session.live(refresh)


def _worker_row(worker: WorkerInfo) -> Callable[[WorkerInfo], None]:
    meter = Meter(worker.worker_id)

    def update(now: WorkerInfo) -> None:
        where = f" on {now.host}" if now.host else ""
        state = ", silent" if now.silent else ", draining" if now.draining else ""
        busy = f"{now.running} of {_count(now.slots, 'slot')} busy" if now.slots else f"{_count(now.running, 'run')}"
        text = f"{busy} · {now.kind.replace('_', ' ')}{where}{state}"
        meter.set(now.running / now.slots if now.slots else 0.0, text)

    return update


def _events(session: PageSession) -> None:
    with section("Last events"):
        rows = Rows(
            _event_row,
            nothing="Nothing has happened yet. Enqueue an entry of an agent:",
            command=session.command("rota enqueue NAME"),
        )

    async def refresh() -> None:
        state = session.feed.state
        if state is not None:
            last = list(state.texts)[-EVENTS_SHOWN:]
            rows.show({(text.event_id, at): text for at, text in enumerate(reversed(last))})

    session.live(refresh)


def _event_row(text: EventText) -> Callable[[EventText], None]:
    with ui.element("div").classes("event-row"):
        ui.label(local_time(text.at, text.at)).classes("soft small mono")
        ui.label(text.text).classes(_TONES.get(text.tone, "tone-plain"))
    return lambda _: None

"""The live view of a fleet: a thread that follows the journal and paints or, without a terminal, prints lines.

The view only reads. It folds new events for a small part of each quarter second and sleeps the rest. If events arrive
faster than that, it restarts at the latest event and says how many it skipped. A failure of the view is logged, and
the run continues.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections import Counter
from datetime import UTC, datetime
from types import TracebackType
from typing import TypeAlias

from rich.console import Console
from rich.live import Live
from rich.text import Text

from rota.cli import output
from rota.cli.panels import Look, Scene, column_s, scene_view, window_s_for
from rota.cli.terminal_text import harmless
from rota.errors import StoreReplaced
from rota.fleet import Supervisor
from rota.model import BudgetLine, SchedulingContext
from rota.observe import AgentName, ChartRow, EventText, FleetState, RunSpan, StartingState
from rota.service import SchedulerApi

__all__ = ["LiveView", "log_line", "look_of", "start_of"]

PAUSE_S = 0.25  # between two refreshes: at most four per second
FOLD_S = 0.025  # of which this much may be spent on reading
LAST_S = 1.0  # for the last refresh, which should show the end
CLOSE_S = 5.0  # how long `close` waits for a store that does not answer
PAGE = 500  # events read at a time
LAG_MAX = 50_000  # events; a view that is further behind restarts at the latest
IDLE_STEP_S = 10.0  # how often the clock is painted while nothing runs
FAILURES_MAX = 5  # in a row; then the view ends
START_AGENTS_MAX = 20_000  # agents whose names are read at the start
START_TRIES = 5
LIST_PAGE = 1_000

Allowances: TypeAlias = tuple[tuple[BudgetLine, ...], tuple[SchedulingContext, ...]]

_log = logging.getLogger("rota.view")


class LiveView:
    """Show what a supervisor does while the context is entered."""

    def __init__(
        self,
        api: SchedulerApi,
        supervisor: Supervisor | None = None,
        *,
        console: Console | None = None,
        store: str = "",
        state: FleetState | None = None,
        full_screen: bool = False,
    ) -> None:
        self.state = state  # None: created on entry; read it only after close()
        self._api = api
        self._supervisor = supervisor
        self._console = console or output.console()
        self._store = store
        self._paints = self._console.is_terminal and not self._console.is_dumb_terminal
        self._full_screen = full_screen
        self._live: Live | None = None
        self._shown: Scene | None = None
        self._skipped = 0
        self._asked = -1, -1
        self._answer: Allowances = ((), ())
        self._begun_at = api.clock.monotonic()
        self._bell = threading.Condition()
        self._is_over = False
        self._thread = threading.Thread(target=self._follow, name="rota-view", daemon=True)

    # --- life ------------------------------------------------------------------------------------

    def __enter__(self) -> LiveView:
        try:
            if self.state is None:
                self.state = FleetState(start_of(self._api))
            if self._paints:
                self._live = Live(
                    console=self._console, auto_refresh=False, vertical_overflow="crop", screen=self._full_screen
                )
                self._live.start()
        except Exception:
            _log.exception("the view could not start; the run continues without it")
            return self
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _problem: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def wait(self) -> None:
        """Block until the view is closed or the thread is interrupted."""
        with self._bell:
            while not self._is_over:
                self._bell.wait()

    def close(self) -> None:
        """Show the remaining events and stop."""
        with self._bell:
            self._is_over = True
            self._bell.notify_all()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)
        live, self._live = self._live, None
        if live is None or self._thread.is_alive():  # do not wait for a terminal that accepts no output
            return
        try:
            live.stop()
        except Exception:
            _log.exception("the view could not be closed")

    def _follow(self) -> None:
        failures = 0
        while failures < FAILURES_MAX:
            is_last = self._is_over
            try:
                self.look(is_last=is_last)
                failures = 0
            except StoreReplaced:
                return  # the supervisor ends and says why
            except Exception:
                failures += 1
                _log.exception("the view failed; the run continues")
            with self._bell:
                if is_last:
                    return
                if not self._is_over:
                    self._api.clock.wait(self._bell, PAUSE_S)

    # --- one refresh --------------------------------------------------------------------------------

    def look(self, *, is_last: bool = False) -> bool:
        """Read new events and show them; return whether anything was shown."""
        texts = self._catch_up(LAST_S if is_last else FOLD_S)
        if not self._paints:
            return self._print(texts)
        look = look_of(self._console)
        scene = self._scene(look)
        live = self._live
        if live is None or scene == self._shown:
            return False
        live.update(scene_view(scene, look), refresh=True)
        self._shown = scene
        return True

    def _catch_up(self, limit_s: float) -> list[EventText]:
        """Fold new events for at most `limit_s` and return their texts."""
        told: list[EventText] = []
        state = self._state
        cursor = self._api.journal.cursor()
        if cursor - state.through_id > LAG_MAX:
            state = self._restart(cursor - state.through_id)
        give_up_at = self._api.clock.monotonic() + limit_s
        while state.through_id < cursor:
            events = self._api.journal.tail(state.through_id, PAGE)
            for event in events:
                told += state.fold(event)
            if not events or self._api.clock.monotonic() >= give_up_at:
                break
        return told

    def _restart(self, count: int) -> FleetState:
        self._skipped += count
        self.state = FleetState(start_of(self._api))
        if not self._paints:
            self._console.print(f"… {count:,} events skipped: they arrived faster than they can be shown")
        return self.state

    @property
    def _state(self) -> FleetState:
        assert self.state is not None  # noqa: S101  # created on entry
        return self.state

    def _print(self, told: list[EventText]) -> bool:
        lines = [log_line(story) for story in told if story.tone != "quiet"]
        if lines:
            self._console.print(Text("\n".join(lines)), soft_wrap=True)
        return bool(lines)

    def _scene(self, look: Look) -> Scene:
        state = self._state
        measure, projects = state.shares(among=state.projects)
        budgets, limits = self._allowances()
        lanes = state.rows
        window_s = window_s_for(lanes, self._api.clock.now())
        step_s = column_s(look.width, window_s) if state.running else IDLE_STEP_S
        at = (self._api.clock.now() // step_s + 1) * step_s
        supervisor = self._supervisor
        return Scene(
            at=at,
            store=self._store,
            policy=state.policy,
            worker_id="" if supervisor is None else supervisor.worker_id,
            uptime_s=(self._api.clock.monotonic() - self._begun_at) // step_s * step_s,
            slots=0 if supervisor is None else sum(loop.slots for loop in supervisor.slot_loops),
            window_s=window_s,
            lanes=tuple(_visible(lane, at - window_s) for lane in lanes),
            measure=measure,
            projects=tuple(projects),
            budgets=budgets,
            limits=limits,
            throttles=dict(state.throttles),
            awaited=dict(Counter(state.awaited.values())),
            queued=state.queued,
            running=state.running,
            finished=state.finished.total(),
            holds=state.holds,
            retries=state.retries,
            failures=dict(state.failures),
            reclaimed=state.reclaimed,
            stories=tuple(state.texts),
            skipped=self._skipped,
        )

    def _allowances(self) -> Allowances:
        """Return budgets and limits, read again after new events and once a second, because limits refill."""
        moment = self._state.through_id, int(self._api.clock.monotonic())
        if self._asked != moment:
            self._asked = moment
            self._answer = tuple(self._api.ledger.budgets()), tuple(self._api.contexts.list())
        return self._answer


def _visible(lane: ChartRow, since_at: float) -> tuple[str, int, tuple[RunSpan, ...]]:
    """Return an immutable copy of a chart row: the fleet state goes on changing its spans."""
    spans = tuple(copy.copy(span) for span in lane.spans if span.end_at is None or span.end_at >= since_at)
    return lane.worker_id, lane.number, spans


def look_of(console: Console) -> Look:
    """Return what the terminal can show, less one row for the cursor."""
    return Look(
        width=console.width,
        height=max(1, console.height - 1),
        in_color=console.color_system is not None and not console.no_color,
        ascii_only=console.options.ascii_only,
    )


def log_line(story: EventText) -> str:
    """Format an event text as a log line."""
    return f"{datetime.fromtimestamp(story.at, UTC):%H:%M:%S}Z {harmless(story.text)}"


def start_of(api: SchedulerApi) -> StartingState:
    """Read the current counts and names, as the start of a fleet state."""
    for _ in range(START_TRIES):
        cursor = api.journal.cursor()
        counts = api.queue.counts()
        if api.journal.cursor() == cursor:  # otherwise the counts may be off by a few entries
            break
    queued = sum(count for state, count in counts.items() if state.partition(":")[0] == "queued")
    in_force = api.policies.get()
    return StartingState(
        through_id=cursor,
        at=api.clock.now(),
        weights=_weights(api),
        agents=_agents(api),
        queued=queued,
        running=counts.get("dispatched", 0),
        policy=in_force.short(),
        share_by=in_force.share_by,
    )


def _weights(api: SchedulerApi) -> dict[str, int]:
    weights: dict[str, int] = {}
    while True:
        page, count = api.projects.list(limit=LIST_PAGE, offset=len(weights))
        weights |= {project.project_id: project.weight for project in page}
        if not page or len(weights) >= count:
            return weights


def _agents(api: SchedulerApi) -> dict[int, AgentName]:
    agents: dict[int, AgentName] = {}
    while True:
        page, count = api.agents.list(limit=LIST_PAGE, offset=len(agents))
        agents |= {agent.pid: AgentName(agent.name, agent.project_id) for agent in page}
        if not page or len(agents) >= min(count, START_AGENTS_MAX):
            return agents

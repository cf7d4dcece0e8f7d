"""The live view of a fleet: a thread that follows the journal and paints or, without a terminal, prints lines.

The view only reads. It folds new events for a small part of each quarter second and sleeps the rest. If events arrive
faster than that, it restarts at the latest event and says how many it skipped. It goes on after an outage of the store.
A failure of the view is logged, and the run continues.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections import Counter
from datetime import datetime
from types import TracebackType
from typing import Any, TypeAlias

import msgspec
from rich.console import Console
from rich.live import Live
from rich.text import Text

from rota.cli import output
from rota.cli.panels import SNAPSHOT_MAX, Look, Scene, column_s, scene_view, snapshot_view, window_s_for
from rota.cli.terminal_text import harmless
from rota.errors import StoreReplaced, StoreUnavailable
from rota.fleet import Supervisor
from rota.model import BudgetLine, SchedulingContext
from rota.observe import (
    ChartRow,
    EntryLookup,
    EventText,
    FleetState,
    Overview,
    RunSpan,
    StartingState,
    read_agents,
    read_counts,
    read_overview,
    read_weights,
)
from rota.service import SchedulerApi

__all__ = ["LiveView", "log_line", "look_of", "start_of", "table_facts"]

PAUSE_S = 0.25  # between two refreshes: at most four per second
FOLD_S = 0.025  # of which this much may be spent on reading
LAST_S = 1.0  # for the last refresh, which should show the end
CLOSE_S = 5.0  # how long `close` waits for a store that does not answer
PAGE = 500  # events read at a time
FAILED_OVER = "kernel.store.failed_over"
LAG_MAX = 50_000  # events; a view that is further behind restarts at the latest
IDLE_STEP_S = 10.0  # how often the clock is painted while nothing runs
FAILURES_MAX = 5  # in a row; then the view ends
TABLES_EVERY_S = 2.0  # how often `rota top` reads the tables

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
        overview: Overview | None = None,
        full_screen: bool = False,
    ) -> None:
        self.state = state  # None: created on entry; read it only after close()
        self._api = api
        self._supervisor = supervisor
        self._console = console or output.console(force_terminal=None)
        self._store = store
        self._paints = self._console.is_terminal and not self._console.is_dumb_terminal
        self._full_screen = full_screen
        self._live: Live | None = None
        self._shown: Scene | None = None
        self._skipped = 0
        self._asked = -1, -1
        self._answer: Allowances = ((), ())
        self._overview = overview  # with one, the tables are read again and again
        self._overview_at = api.clock.monotonic()
        self._lookup = EntryLookup(api)
        self._begun_at = api.clock.monotonic()
        self._bell = threading.Condition()
        self._is_over = False
        self._thread = threading.Thread(target=self._follow, name="rota-view", daemon=True)

    # --- life ------------------------------------------------------------------------------------

    def __enter__(self) -> LiveView:
        try:
            if self.state is None:
                self.state = FleetState(start_of(self._api), lookup=self._lookup)
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
            except StoreUnavailable as problem:  # it may be there again at the next refresh
                self.show_problem(problem.message)
            except Exception:
                failures += 1
                _log.exception("the view failed; the run continues")
            with self._bell:
                if is_last:
                    return
                if not self._is_over:
                    self._api.clock.wait(self._bell, PAUSE_S)
        with self._bell:  # it cannot go on, and `wait` returns
            self._is_over = True
            self._bell.notify_all()

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

    def show_problem(self, text: str) -> None:
        """Show what was painted last, and that it is old."""
        if self._live is not None and self._shown is not None and self._shown.problem != text:
            self._shown = msgspec.structs.replace(self._shown, problem=text)
            self._live.update(scene_view(self._shown, look_of(self._console)), refresh=True)

    def print_once(self) -> None:
        """Print everything but the chart as one snapshot."""
        look = Look(width=self._console.width, in_color=False, rows_max=SNAPSHOT_MAX)
        self._console.print(snapshot_view(self._scene(look), look))

    def _catch_up(self, limit_s: float) -> list[EventText]:
        """Fold new events for at most `limit_s` and return their texts."""
        told: list[EventText] = []
        self._lookup.refill()
        state = self._state
        cursor = self._api.journal.cursor()
        if cursor - state.through_id > LAG_MAX and not self._has_failed_over(state.through_id):
            state = self._restart(cursor - state.through_id)
        if cursor < state.through_id:  # a standby that lacks the last commits, to which nothing was written yet
            state = self._read_again()
        give_up_at = self._api.clock.monotonic() + limit_s
        while state.through_id < cursor:
            events = self._api.journal.tail(state.through_id, PAGE)
            for event in events:
                told += state.fold(event)
            if any(event.kind == FAILED_OVER for event in events):  # what was folded before may be lost
                state = self._read_again()
            if not events or self._api.clock.monotonic() >= give_up_at:
                break
        return told

    def _has_failed_over(self, after_id: int) -> bool:
        """Whether the store has failed over after an event: the ids leave out many then, which were no events."""
        return bool(self._api.journal.tail(after_id, 1, kinds=(FAILED_OVER,)))

    def _restart(self, count: int) -> FleetState:
        self._skipped += count
        if not self._paints:
            self._console.print(f"… {count:,} events skipped: they arrived faster than they can be shown")
        return self._read_again()

    def _read_again(self) -> FleetState:
        self.state = FleetState(start_of(self._api), lookup=self._lookup)
        return self.state

    @property
    def _state(self) -> FleetState:
        assert self.state is not None  # noqa: S101  # created on entry
        return self.state

    def _print(self, told: list[EventText]) -> bool:
        lines = [log_line(story) for story in told if story.tone not in ("quiet", "detail")]
        if lines:
            self._console.print(Text("\n".join(lines)), soft_wrap=True)
        return bool(lines)

    def _scene(self, look: Look) -> Scene:
        state = self._state
        overview = self._read_tables()
        now = self._api.clock.now()
        shares = state.recent_shares(now, state.projects if overview is None else overview.ready)
        budgets, limits = self._allowances()
        lanes = state.rows
        window_s = window_s_for(lanes, now)
        step_s = column_s(look.width, window_s) if state.running else IDLE_STEP_S
        at = (now // step_s + 1) * step_s
        supervisor = self._supervisor
        slots = 0 if supervisor is None else sum(loop.slots for loop in supervisor.slot_loops)
        return Scene(
            at=at,
            store=self._store,
            policy=state.policy,
            worker_id="" if supervisor is None else supervisor.worker_id,
            uptime_s=(self._api.clock.monotonic() - self._begun_at) // step_s * step_s,
            slots=slots if overview is None else overview.slots,
            window_s=window_s,
            lanes=tuple(_visible(lane, at - window_s) for lane in lanes),
            measure=shares.measure,
            share_window_s=shares.window_s // IDLE_STEP_S * IDLE_STEP_S or None,
            projects=shares.projects,
            agents=shares.agents,
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
            waits=state.recent_wait_s(),
            stories=tuple(state.texts),
            skipped=self._skipped,
            **({} if overview is None else table_facts(overview, state)),
        )

    def _read_tables(self) -> Overview | None:
        """Return the facts of the tables, if they are shown."""
        now = self._api.clock.monotonic()
        if self._overview is not None and now - self._overview_at >= TABLES_EVERY_S:
            self._overview, self._overview_at = read_overview(self._api), now
        return self._overview

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
    return f"{datetime.fromtimestamp(story.at).astimezone():%H:%M:%S} {harmless(story.text)}"


def table_facts(overview: Overview, state: FleetState) -> dict[str, Any]:
    """Return what a scene shows of the tables."""
    oldest = overview.oldest
    return {
        "workers": overview.workers,
        "statuses": overview.statuses,
        "paused_by": overview.paused_by,
        "runs": tuple(
            (f"{state.agent(run.pid)} #{run.sched_id}", run.worker_id or "", run.dispatched_at or 0.0, run.attempt)
            for run in overview.running
        ),
        "oldest": None if oldest is None else (f"{state.agent(oldest.pid)} #{oldest.sched_id}", overview.oldest_wait_s),
    }


def start_of(api: SchedulerApi) -> StartingState:
    """Read the current counts and names, as the start of a fleet state."""
    counts, cursor = read_counts(api)
    queued = sum(count for state, count in counts.items() if state.partition(":")[0] == "queued")
    in_force = api.policies.get()
    return StartingState(
        through_id=cursor,
        at=api.clock.now(),
        weights=read_weights(api),
        agents=read_agents(api),
        queued=queued,
        running=counts.get("dispatched", 0),
        policy=in_force.short(),
        share_by=in_force.share_by,
    )

"""The live view of a fleet: a thread that follows the journal and paints, or, without a terminal, prints lines.

It looks on and has no part in the run. It only reads; it folds what was recorded for a small part of each quarter of a
second and sleeps the rest; if events come faster than that, it begins anew at the latest one and says how many it left
out. What goes wrong here is logged, and the run goes on.
"""

from __future__ import annotations

import copy
import logging
import threading
from datetime import UTC, datetime
from types import TracebackType
from typing import TypeAlias

from rich.console import Console
from rich.live import Live
from rich.text import Text

from rota.cli.panels import Look, Scene, column_s, scene_view, window_s_for
from rota.fleet.supervisor import Supervisor
from rota.model.budgets import BudgetLine, SchedulingContext
from rota.observe.event_text import Story
from rota.observe.fleet_state import AgentTag, Board, Start
from rota.observe.spans import Lane, Span
from rota.service.api import Desk

__all__ = ["LiveView", "log_line", "look_of", "start_of"]

PAUSE_S = 0.25  # between two looks, so at most four paintings in a second
FOLD_S = 0.025  # how much of that is spent on reading
LAST_S = 1.0  # on the last look, which should show the end of it all
CLOSE_S = 5.0  # how long the end waits for the view: a store that does not answer holds up nobody
PAGE = 500  # events read at a time
LAG_MAX = 50_000  # events; who is further behind begins anew
IDLE_STEP_S = 10.0  # how often the time is painted while nothing runs
FAILURES_MAX = 5  # in a row; then the view is over
START_AGENTS_MAX = 20_000  # agents whose names are read at the start
START_TRIES = 5
LIST_PAGE = 1_000

Allowances: TypeAlias = tuple[tuple[BudgetLine, ...], tuple[SchedulingContext, ...]]

_log = logging.getLogger("rota.view")


class LiveView:
    """Shows what a supervisor does, from entering to leaving it."""

    def __init__(
        self,
        desk: Desk,
        supervisor: Supervisor | None = None,
        *,
        console: Console | None = None,
        store: str = "",
        board: Board | None = None,
        full_screen: bool = False,
    ) -> None:
        self.board = board  # None: one that begins now. Whoever reads it waits until the view is closed
        self._desk = desk
        self._supervisor = supervisor
        self._console = console or Console()
        self._store = store
        self._policy = str(getattr(getattr(desk, "policy", None), "name", ""))
        self._paints = self._console.is_terminal and not self._console.is_dumb_terminal
        self._full_screen = full_screen
        self._live: Live | None = None
        self._shown: Scene | None = None
        self._skipped = 0
        self._asked = -1, -1
        self._answer: Allowances = ((), ())
        self._begun_at = desk.clock.monotonic()
        self._bell = threading.Condition()
        self._is_over = False
        self._thread = threading.Thread(target=self._follow, name="rota-view", daemon=True)

    # --- life ------------------------------------------------------------------------------------

    def __enter__(self) -> LiveView:
        try:
            if self.board is None:
                self.board = Board(start_of(self._desk))
            if self._paints:
                self._live = Live(
                    console=self._console, auto_refresh=False, vertical_overflow="crop", screen=self._full_screen
                )
                self._live.start()
        except Exception:
            _log.exception("the view could not begin; the run goes on without it")
            return self
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _problem: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def wait(self) -> None:
        """Stay until somebody closes the view, or interrupts."""
        with self._bell:
            while not self._is_over:
                self._bell.wait()

    def close(self) -> None:
        """Show what is left to show, and end."""
        with self._bell:
            self._is_over = True
            self._bell.notify_all()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)
        live, self._live = self._live, None
        if live is None or self._thread.is_alive():  # a terminal that takes nothing is not waited for
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
            except Exception:
                failures += 1
                _log.exception("the view failed; the run goes on")
            with self._bell:
                if is_last:
                    return
                if not self._is_over:
                    self._desk.clock.wait(self._bell, PAUSE_S)

    # --- one look --------------------------------------------------------------------------------

    def look(self, *, is_last: bool = False) -> bool:
        """Read what is new and show it; whether there was something to be shown."""
        told = self._catch_up(LAST_S if is_last else FOLD_S)
        if not self._paints:
            return self._print(told)
        look = look_of(self._console)
        scene = self._scene(look)
        live = self._live
        if live is None or scene == self._shown:
            return False
        live.update(scene_view(scene, look), refresh=True)
        self._shown = scene
        return True

    def _catch_up(self, most_s: float) -> list[Story]:
        """Fold what was recorded, for so long at most; the answer is what there is to say."""
        told: list[Story] = []
        board = self._board
        cursor = self._desk.journal.cursor()
        if cursor - board.through_id > LAG_MAX:
            board = self._begin_anew(cursor - board.through_id)
        give_up_at = self._desk.clock.monotonic() + most_s
        while board.through_id < cursor:
            events = self._desk.journal.tail(board.through_id, PAGE)
            for event in events:
                told += board.fold(event)
            if not events or self._desk.clock.monotonic() >= give_up_at:
                break
        return told

    def _begin_anew(self, count: int) -> Board:
        self._skipped += count
        self.board = Board(start_of(self._desk))
        if not self._paints:
            self._console.print(f"… {count:,} events are not shown: they came faster than they can be told")
        return self.board

    @property
    def _board(self) -> Board:
        assert self.board is not None  # noqa: S101  # made when the view was entered
        return self.board

    def _print(self, told: list[Story]) -> bool:
        lines = [log_line(story) for story in told if story.tone != "quiet"]
        if lines:
            self._console.print(Text("\n".join(lines)), soft_wrap=True)
        return bool(lines)

    def _scene(self, look: Look) -> Scene:
        board = self._board
        measure, projects = board.shares(among=board.projects)
        budgets, limits = self._allowances()
        lanes = board.lanes
        window_s = window_s_for(lanes, self._desk.clock.now())
        step_s = column_s(look.width, window_s) if board.running else IDLE_STEP_S
        at = (self._desk.clock.now() // step_s + 1) * step_s
        supervisor = self._supervisor
        return Scene(
            at=at,
            store=self._store,
            policy=self._policy,
            worker_id="" if supervisor is None else supervisor.worker_id,
            uptime_s=(self._desk.clock.monotonic() - self._begun_at) // step_s * step_s,
            slots=0 if supervisor is None else sum(shift.slots for shift in supervisor.shifts),
            window_s=window_s,
            lanes=tuple(_visible(lane, at - window_s) for lane in lanes),
            measure=measure,
            projects=tuple(projects),
            budgets=budgets,
            limits=limits,
            throttles=dict(board.throttles),
            queued=board.queued,
            running=board.running,
            finished=board.finished.total(),
            holds=board.holds,
            retries=board.retries,
            failures=dict(board.failures),
            reclaimed=board.reclaimed,
            stories=tuple(board.stories),
            skipped=self._skipped,
        )

    def _allowances(self) -> Allowances:
        """Budgets and limits, asked for when something was recorded, and once a second: limits refill by themselves."""
        moment = self._board.through_id, int(self._desk.clock.monotonic())
        if self._asked != moment:
            self._asked = moment
            self._answer = tuple(self._desk.ledger.budgets()), tuple(self._desk.contexts.list())
        return self._answer


def _visible(lane: Lane, since_at: float) -> tuple[str, int, tuple[Span, ...]]:
    """A row as it is now: the board changes its spans, a scene must not change."""
    spans = tuple(copy.copy(span) for span in lane.spans if span.end_at is None or span.end_at >= since_at)
    return lane.worker_id, lane.number, spans


def look_of(console: Console) -> Look:
    """What the terminal can show. One row is left for the cursor."""
    return Look(
        width=console.width,
        height=max(1, console.height - 1),
        in_color=console.color_system is not None and not console.no_color,
        ascii_only=console.options.ascii_only,
    )


def log_line(story: Story) -> str:
    """A sentence as a line of a log."""
    return f"{datetime.fromtimestamp(story.at, UTC):%H:%M:%S}Z {story.text}"


def start_of(desk: Desk) -> Start:
    """How things stand now, as a board's beginning."""
    for _ in range(START_TRIES):
        cursor = desk.journal.cursor()
        counts = desk.queue.counts()
        if desk.journal.cursor() == cursor:  # else they may be of different moments: a few entries too many or too few
            break
    queued = sum(count for state, count in counts.items() if state.partition(":")[0] == "queued")
    return Start(
        through_id=cursor,
        at=desk.clock.now(),
        weights=_weights(desk),
        agents=_agents(desk),
        queued=queued,
        running=counts.get("dispatched", 0),
    )


def _weights(desk: Desk) -> dict[str, int]:
    weights: dict[str, int] = {}
    while True:
        page, count = desk.projects.list(limit=LIST_PAGE, offset=len(weights))
        weights |= {project.project_id: project.weight for project in page}
        if not page or len(weights) >= count:
            return weights


def _agents(desk: Desk) -> dict[int, AgentTag]:
    agents: dict[int, AgentTag] = {}
    while True:
        page, count = desk.agents.list(limit=LIST_PAGE, offset=len(agents))
        agents |= {agent.pid: AgentTag(agent.name, agent.project_id) for agent in page}
        if not page or len(agents) >= min(count, START_AGENTS_MAX):
            return agents

"""A scene: everything that the live view shows at one moment, and what the terminal can show of it.

Its time is rounded to the width of a chart column, so two scenes that look alike are equal, and an equal scene is not
painted again.
"""

from __future__ import annotations

import msgspec

from rota.model import BudgetLine, SchedulingContext, WorkerInfo
from rota.observe import AgentShare, EventText, ProjectReport, RunSpan

__all__ = ["NAME_MAX", "NARROW", "SECTION_MAX", "WINDOWS_S", "Look", "Scene"]

NARROW = 60  # columns; below this, bars and worker names are omitted
NAME_MAX = 18
SECTION_MAX = 8  # rows of projects, budgets or limits
WINDOWS_S = (30.0, 60.0, 120.0, 300.0, 600.0)  # how much time a full chart row may show


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What the terminal can show."""

    width: int = 80
    height: int = 40
    in_color: bool = True
    ascii_only: bool = False
    rows_max: int = SECTION_MAX  # of a section

    @property
    def is_narrow(self) -> bool:
        """Whether it is too narrow for bars beside numbers."""
        return self.width < NARROW


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is shown at one moment."""

    at: float
    store: str = ""
    policy: str = ""
    worker_id: str = ""
    uptime_s: float = 0.0
    slots: int = 0
    window_s: float = WINDOWS_S[0]  # how much time a chart row shows
    lanes: tuple[tuple[str, int, tuple[RunSpan, ...]], ...] = ()
    measure: str = "tokens"
    share_window_s: float | None = None  # of the shares; None: since the start
    projects: tuple[ProjectReport, ...] = ()
    agents: tuple[AgentShare, ...] = ()
    workers: tuple[WorkerInfo, ...] | None = ()  # None: the caller may not see them
    runs: tuple[tuple[str, str, float, int], ...] = ()  # what runs, where, since when, and its attempt
    oldest: tuple[str, float] | None = None  # the entry that is ready for longest, and for how long
    waits: tuple[float, int] = (0.0, 0)  # the mean of the last waits, and their number
    statuses: dict[str, int] | None = None  # entries by status, from the tables
    paused_by: str | None = None
    problem: str = ""  # why what is shown is old
    budgets: tuple[BudgetLine, ...] = ()
    limits: tuple[SchedulingContext, ...] = ()
    throttles: dict[str, float] = {}  # by limit name: paused until
    awaited: dict[str, int] = {}  # by limit name: runs that wait for it
    queued: int = 0
    running: int = 0
    finished: int = 0
    holds: dict[str, int] = {}
    retries: int = 0
    failures: dict[str, int] = {}
    reclaimed: int = 0
    stories: tuple[EventText, ...] = ()
    skipped: int = 0  # events that arrived too fast to be shown

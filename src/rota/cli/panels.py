"""The panels of the live view, as pure functions from a scene to text.

A scene holds everything that is shown at one moment. Its time is rounded to the width of a chart column, so two scenes
that look alike are equal, and an equal scene is not painted again.

Colours distinguish projects; without colour, a letter does.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.text import Text

from rota.cli.terminal_text import harmless
from rota.model import WEIGHT_UNIT, BudgetLine, SchedulingContext
from rota.observe import ChartRow, EventText, ProjectReport, RunSpan, TextTone

__all__ = ["Look", "Scene", "bar", "column_s", "gantt", "lane_cells", "scene_view", "window_s_for"]

NARROW = 60  # columns; below this, bars and worker names are omitted
NAME_MAX = 18
BAR_MAX = 24
STORIES_MIN = 4
SECTION_MAX = 8  # rows of projects, budgets or limits
WINDOWS_S = (30.0, 60.0, 120.0, 300.0, 600.0)  # how much time a full chart row may show
RUNS_PER_ROW = 20  # the window is chosen so that about this many typical runs fit
COLORS = ("cyan", "magenta", "yellow", "green", "blue", "bright_red", "bright_cyan", "bright_magenta")
TONES: dict[TextTone, str] = {"quiet": "dim", "plain": "", "good": "green", "warn": "yellow", "bad": "bold red"}


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What the terminal can show."""

    width: int = 80
    height: int = 40
    in_color: bool = True
    ascii_only: bool = False

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
    projects: tuple[ProjectReport, ...] = ()
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


def scene_view(scene: Scene, look: Look) -> RenderableType:
    """Return the whole view, no higher than the terminal."""
    tables = [_projects(scene, look), _budgets(scene, look), _limits(scene, look)]
    below = [lines for lines in tables if lines]
    queue = _queue(scene)
    room = look.height - len(queue) - sum(len(lines) + 1 for lines in below) - STORIES_MIN - 3
    chart = gantt(scene, look, max(1, room))
    parts = [_header(scene, look), _rule(f"slots · the last {scene.window_s:g} s", look), *chart, *queue]
    for title, lines in zip(_titles(tables, scene), below, strict=True):
        parts += [_rule(title, look), *lines]
    left = look.height - len(parts) - 1
    if left > 1:
        parts += [_rule("last events", look), *_stories(scene, look, left - 1)]
    return Group(*(_cut(part, look) for part in parts[: look.height]))


def _titles(tables: Sequence[Sequence[Text]], scene: Scene) -> Iterable[str]:
    titles = (f"projects · share of {scene.measure} against target", "budgets", "named limits")
    return [title for title, lines in zip(titles, tables, strict=True) if lines]


# --- lines ---------------------------------------------------------------------------------------


def _cut(line: Text, look: Look) -> Text:
    """Cut a line to the width; on an ASCII terminal, replace other characters. Codes in names are shown."""
    if not line.plain.isprintable():
        line = Text(harmless(line.plain))
    if look.ascii_only:
        line = Text(line.plain.translate(_PLAIN).encode("ascii", "replace").decode())
    line.truncate(look.width, overflow="crop" if look.ascii_only else "ellipsis")
    line.no_wrap = True
    return line


_PLAIN = str.maketrans({"·": "-", "─": "-", "…": "."})


def _rule(title: str, look: Look) -> Text:
    return Text(f"─ {title} ".ljust(look.width, "─")[: look.width], style="dim")


def _header(scene: Scene, look: Look) -> Text:
    parts = [("rota", "bold"), (f" {scene.policy}", "cyan"), (f" · {scene.slots} slots", "")]
    parts.append((f" · up {_duration(scene.uptime_s)}", ""))
    if not look.is_narrow:
        parts += [(f" · {text}", "dim") for text in (scene.worker_id, scene.store) if text]
    if scene.skipped:
        parts.append((f" · {scene.skipped:,} events not shown", "yellow"))
    return Text.assemble(*parts)


def _queue(scene: Scene) -> list[Text]:
    """Return what waits and runs and, on a second line, failures if there are any."""
    held = ", ".join(f"{count:,} {_HOLDS.get(hold, hold)}" for hold, count in scene.holds.items())
    parts = [("queue ", "dim"), (f"{scene.queued:,} waiting", "")]
    parts += [(f" ({held})", "dim")] if held else []
    parts += [(f" · {scene.running:,} running", ""), (f" · {scene.finished:,} ended", "")]
    wrong = [f"{count:,} {outcome.replace('_', ' ')}" for outcome, count in scene.failures.items()]
    wrong += [f"{scene.retries:,} retried"] if scene.retries else []
    wrong += [f"{scene.reclaimed:,} reclaimed"] if scene.reclaimed else []
    lines = [Text.assemble(*parts)]
    return [*lines, Text.assemble(("failures ", "dim"), (" · ".join(wrong), "yellow"))] if wrong else lines


_HOLDS = {"time": "delayed", "backoff": "backing off", "after": "after others", "worker": "reserved"}


def _duration(seconds: float) -> str:
    whole = int(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def _stories(scene: Scene, look: Look, rows: int) -> list[Text]:
    lines = []
    for story in scene.stories[-rows:] if rows > 0 else ():
        ago = f"{max(0.0, scene.at - story.at):5.0f} s ago  "
        lines.append(Text.assemble(("" if look.is_narrow else ago, "dim"), (story.text, TONES[story.tone])))
    return lines


# --- slots ---------------------------------------------------------------------------------------


def window_s_for(lanes: Iterable[ChartRow], now: float) -> float:
    """Return how much time the chart should show, from the median run length."""
    lengths_s = sorted((span.end_at or now) - span.start_at for lane in lanes for span in lane.spans)
    usual_s = lengths_s[len(lengths_s) // 2] if lengths_s else 0.0
    return next((window_s for window_s in WINDOWS_S if window_s >= RUNS_PER_ROW * usual_s), WINDOWS_S[-1])


def column_s(width: int, window_s: float) -> float:
    """Return how much time one chart column shows."""
    return window_s / max(10, width - _label_width(width))


def _label_width(width: int) -> int:
    return 5 if width < NARROW else NAME_MAX + 5


def gantt(scene: Scene, look: Look, rows_max: int) -> list[Text]:
    """Return a row for each slot, with now at the right end."""
    marks = _marks(scene)
    shown = scene.lanes[:rows_max] if len(scene.lanes) <= rows_max else scene.lanes[: max(1, rows_max - 1)]
    lines = [_lane(scene, look, lane, marks) for lane in shown]
    if len(shown) < len(scene.lanes):
        lines.append(Text(f"  … {len(scene.lanes) - len(shown)} more slots", style="dim"))
    return lines or [Text("  nothing has run yet", style="dim")]


def _lane(scene: Scene, look: Look, lane: tuple[str, int, tuple[RunSpan, ...]], marks: dict[str, str]) -> Text:
    worker_id, number, spans = lane
    name = "" if look.is_narrow else set_cell_size(_short(worker_id), NAME_MAX)
    cells = lane_cells(spans, scene, look, marks)
    line = Text(f"{name}{number:>3} |")
    colors = {mark: COLORS[index % len(COLORS)] for index, mark in enumerate(marks.values())}
    for mark, glyph in cells:
        style = "bold red" if glyph in _BAD else colors.get(mark, "")
        line.append(glyph, style=style if look.in_color else "")
    return line


def lane_cells(spans: Sequence[RunSpan], scene: Scene, look: Look, marks: dict[str, str]) -> list[tuple[str, str]]:
    """Return a chart row: for each column the project's letter and the character to draw."""
    width = max(10, look.width - _label_width(look.width))
    step_s = column_s(look.width, scene.window_s)
    start_at = scene.at - width * step_s
    cells = [("", " ")] * width
    ends: dict[int, tuple[str, str]] = {}
    for span in spans:
        end_at = scene.at if span.end_at is None else span.end_at
        first = int((span.start_at - start_at) // step_s)
        last = min(width - 1, int((end_at - start_at) // step_s))
        mark = marks.get(span.project_id or "", "?")
        fill = mark if not look.in_color or look.ascii_only else "█"
        for column in range(max(0, first), last + 1):
            cells[column] = (mark, fill)
        if span.ending is not None and last >= 0 and (last > first or span.ending != "completed"):
            ends[last] = (mark, (_ASCII if look.ascii_only else _GLYPHS)[span.ending])
    for column, end in ends.items():  # over a run that began in the same column: the end matters more
        cells[column] = end
    return cells


_GLYPHS = {"completed": "▏", "failed": "✗", "lost": "☠", "returned": "↺"}
_BAD = frozenset("✗☠x!")
_ASCII = {"completed": "|", "failed": "x", "lost": "!", "returned": "<"}


def _marks(scene: Scene) -> dict[str, str]:
    """Give each project a letter: its own first free one, else any free one."""
    names = sorted({span.project_id or "" for *_, spans in scene.lanes for span in spans} | _known(scene))
    marks: dict[str, str] = {}
    for name in names:
        letters = [letter for letter in name.lower() if letter in string.ascii_lowercase]
        free = (letter for letter in (*letters, *string.ascii_lowercase) if letter not in marks.values())
        marks[name] = next(free, "?") if name else "·"
    return marks


def _known(scene: Scene) -> set[str]:
    return {project.project_id for project in scene.projects}


def _short(name: str) -> str:
    """Keep the end of a long name: it distinguishes workers of one machine."""
    return name if cell_len(name) <= NAME_MAX else "…" + name[-(NAME_MAX - 1) :]


# --- bars ----------------------------------------------------------------------------------------


def bar(share: float, width: int, look: Look, target: float | None = None) -> str:
    """Return a bar of this width, filled to `share`, with a tick at `target`."""
    full, empty, tick = ("#", ".", "|") if look.ascii_only else ("█", "░", "│")
    filled = round(max(0.0, min(1.0, share)) * width)
    cells = [full] * filled + [empty] * (width - filled)
    if target is not None and width:
        cells[min(width - 1, int(max(0.0, target) * width))] = tick
    return "".join(cells)


def _bar_width(look: Look) -> int:
    return 0 if look.is_narrow else min(BAR_MAX, (look.width - NARROW) // 2 + 8)


def _projects(scene: Scene, look: Look) -> list[Text]:
    marks = _marks(scene)
    order = {mark: COLORS[index % len(COLORS)] for index, mark in enumerate(marks.values())}
    lines = []
    for project in scene.projects[:SECTION_MAX]:
        mark = marks.get(project.project_id, "?")
        name = f"{mark} {set_cell_size(project.project_id, 12 if look.is_narrow else NAME_MAX)} "
        drawn = bar(project.share, _bar_width(look), look, project.target)
        numbers = f" {project.share:4.0%} of {project.target:4.0%}"
        more = f"  weight {project.weight / WEIGHT_UNIT:g} · {_amount(_had(project, scene))} · {project.runs:,} runs"
        color = order[mark] if look.in_color and mark in order else ""
        lines.append(Text.assemble((name, color), (drawn, color), numbers, ("" if look.is_narrow else more, "dim")))
    return _with_rest(lines, len(scene.projects), "projects")


def _had(project: ProjectReport, scene: Scene) -> float:
    return project.seconds if scene.measure == "seconds" else project.charged.get(scene.measure, 0)


def _budgets(scene: Scene, look: Look) -> list[Text]:
    lines = []
    for line in scene.budgets[:SECTION_MAX]:
        owner = "global" if line.level == "global" else line.owner
        used = line.used / line.limit if line.limit else 1.0
        name = set_cell_size(f"{owner} {line.dim}", 14 if look.is_narrow else NAME_MAX + 2)
        left = f" {_amount(max(0, line.limit - line.used))} left of {_amount(line.limit)}"
        live = f", {_amount(line.reserved)} reserved" if line.reserved and not look.is_narrow else ""
        lines.append(
            Text.assemble(f"{name} ", (bar(1.0 - used, _bar_width(look), look), _heat(used)), left, (live, "dim"))
        )
    return _with_rest(lines, len(scene.budgets), "budgets")


def _limits(scene: Scene, look: Look) -> list[Text]:
    named = [limit for limit in scene.limits if limit.bound_to == "name"]
    lines = []
    for limit in named[:SECTION_MAX]:
        left = max(0, limit.remaining) / limit.budget
        name = set_cell_size(f"{limit.bound_id} {limit.unit}", 14 if look.is_narrow else NAME_MAX + 2)
        numbers = f" {_amount(limit.remaining)} of {_amount(limit.budget)} per {limit.period / 1000:g} s"
        paused_s = scene.throttles.get(limit.bound_id, 0.0) - scene.at
        waits = scene.awaited.get(limit.bound_id, 0)
        state = f"  throttled for {paused_s:.0f} s" if paused_s > 0 else _state(limit)
        state += f"  {waits:,} {'run waits' if waits == 1 else 'runs wait'}" if waits else ""
        lines.append(
            Text.assemble(f"{name} ", (bar(left, _bar_width(look), look), _heat(1.0 - left)), numbers, (state, "red"))
        )
    return _with_rest(lines, len(named), "limits")


def _state(limit: SchedulingContext) -> str:
    return "" if limit.state == "active" else f"  {limit.state}"


def _with_rest(lines: list[Text], count: int, what: str) -> list[Text]:
    return [*lines, Text(f"  … {count - len(lines)} more {what}", style="dim")] if count > len(lines) else lines


def _heat(used: float) -> str:
    """Return the colour of a budget of which this much is used."""
    return "green" if used < 0.8 else "yellow" if used < 1.0 else "red"  # noqa: PLR2004  # where ledgers warn


def _amount(amount: float) -> str:
    """Format a number compactly: 12,345,678 is 12.3M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(amount) >= size:
            return f"{amount / (1e3 if letter == 'k' else size):.1f}{letter}"
    return f"{amount:,.0f}"

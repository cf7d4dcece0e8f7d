"""The chart of the live view: a row for each slot with the runs of the last minutes, now at the right end.

Colours distinguish projects; without colour, a letter does.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from rota.cli.scene import NAME_MAX, NARROW, WINDOWS_S, Look, Scene
from rota.observe import ChartRow, RunSpan

__all__ = ["COLORS", "column_s", "gantt", "lane_cells", "project_marks", "short_name", "window_s_for"]

RUNS_PER_ROW = 20  # the window is chosen so that about this many typical runs fit
COLORS = ("cyan", "magenta", "yellow", "green", "blue", "bright_red", "bright_cyan", "bright_magenta")


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
    marks = project_marks(scene)
    shown = scene.lanes[:rows_max] if len(scene.lanes) <= rows_max else scene.lanes[: max(1, rows_max - 1)]
    lines = [_lane(scene, look, lane, marks) for lane in shown]
    if len(shown) < len(scene.lanes):
        lines.append(Text(f"  … {len(scene.lanes) - len(shown)} more slots", style="dim"))
    return lines or [Text("  nothing has run yet", style="dim")]


def _lane(scene: Scene, look: Look, lane: tuple[str, int, tuple[RunSpan, ...]], marks: dict[str, str]) -> Text:
    worker_id, number, spans = lane
    name = "" if look.is_narrow else set_cell_size(short_name(worker_id), NAME_MAX)
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


def project_marks(scene: Scene) -> dict[str, str]:
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


def short_name(name: str) -> str:
    """Keep the end of a long name: it distinguishes workers of one machine."""
    return name if cell_len(name) <= NAME_MAX else "…" + name[-(NAME_MAX - 1) :]

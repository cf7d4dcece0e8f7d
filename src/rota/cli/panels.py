"""The panels of the live view, as pure functions from a scene to text.

`scene.py` says what a scene is, `slot_chart.py` draws the slots.
"""

from __future__ import annotations

from rich.cells import set_cell_size
from rich.console import Group, RenderableType
from rich.text import Text

from rota.cli.scene import NAME_MAX, NARROW, SECTION_MAX, WINDOWS_S, Look, Scene
from rota.cli.slot_chart import COLORS, column_s, gantt, lane_cells, project_marks, short_name, window_s_for
from rota.cli.terminal_text import harmless
from rota.model import COST_DIM, WEIGHT_UNIT, SchedulingContext, dim_text, dollars
from rota.observe import ProjectReport, TextTone
from rota.time_text import rough_span

__all__ = [
    "SECTION_MAX",
    "SNAPSHOT_MAX",
    "WINDOWS_S",
    "Look",
    "Scene",
    "bar",
    "column_s",
    "gantt",
    "lane_cells",
    "scene_view",
    "snapshot_view",
    "window_s_for",
]

BAR_MAX = 24
STORIES_MIN = 4
SNAPSHOT_MAX = 50  # rows of a section where the height is not limited
SNAPSHOT_STORIES = 10
TONES: dict[TextTone, str] = {
    "detail": "dim",
    "quiet": "dim",
    "plain": "",
    "good": "green",
    "warn": "yellow",
    "bad": "bold red",
}


def scene_view(scene: Scene, look: Look) -> RenderableType:
    """Return the whole view, no higher than the terminal."""
    sections = [section for section in _sections(scene, look) if section[1]]
    queue = _queue(scene)
    room = look.height - len(queue) - sum(len(lines) + 1 for _, lines in sections) - STORIES_MIN - 3
    more = []  # what is shown if there is room for it and for the chart
    for title, lines in _details(scene, look):
        if lines and room - len(lines) - 1 >= len(scene.lanes):
            more.append((title, lines))
            room -= len(lines) + 1
    chart = gantt(scene, look, max(1, room))
    parts = [_header(scene, look), _rule(f"slots · the last {scene.window_s:g} s", look), *chart, *queue]
    for title, lines in (*sections, *more):
        parts += [_rule(title, look), *lines]
    left = look.height - len(parts) - 1
    if left > 1:
        parts += [_rule("last events", look), *_stories(scene, look, left - 1)]
    return Group(*(_cut(part, look) for part in parts[: look.height]))


def snapshot_view(scene: Scene, look: Look) -> RenderableType:
    """Return one snapshot, as high as it has to be: everything but the chart."""
    parts = [_header(scene, look), *_queue(scene)]
    for title, lines in (*_details(scene, look)[:2], *_sections(scene, look), *_details(scene, look)[2:]):
        parts += [_rule(title, look), *lines] if lines else []
    parts += [_rule("last events", look), *_stories(scene, look, SNAPSHOT_STORIES)]
    return Group(*(_cut(part, look) for part in parts))


def _sections(scene: Scene, look: Look) -> list[tuple[str, list[Text]]]:
    window = "" if scene.share_window_s is None else f", last {rough_span(scene.share_window_s)}"
    return [
        (f"projects · share of {scene.measure} against target{window}", _projects(scene, look)),
        ("budgets", _budgets(scene, look)),
        ("named limits", _limits(scene, look)),
    ]


def _details(scene: Scene, look: Look) -> list[tuple[str, list[Text]]]:
    agents = f"agents · share of {scene.measure} in their project against target"
    return [
        ("workers", _workers(scene, look)),
        ("running", _runs(scene, look)),
        (agents, _agents(scene, look)),
    ]


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
    parts = [("rota", "bold")]
    if scene.problem:
        parts.append((f" · {scene.problem} ·", "bold red"))
    parts.append((f" {scene.policy}", "cyan"))
    if scene.workers is not None:
        parts.append((f" · {scene.slots} slots", ""))
    if scene.workers:
        parts.append((f" · {_count(len(scene.workers), 'worker')}", ""))
    if scene.statuses is None:
        parts.append((f" · up {_elapsed(scene.uptime_s)}", ""))
    if scene.paused_by is not None:
        parts.append((f" · the fleet is paused by {scene.paused_by}", "yellow"))
    if not look.is_narrow:
        parts += [(f" · {text}", "dim") for text in (scene.worker_id, scene.store) if text]
    if scene.skipped:
        parts.append((f" · {scene.skipped:,} events not shown", "yellow"))
    return Text.assemble(*parts)


def _queue(scene: Scene) -> list[Text]:
    """Return what waits and runs, how long entries wait, and failures if there are any."""
    if scene.statuses is None:
        held = ", ".join(f"{count:,} {_HOLDS.get(hold, hold)}" for hold, count in scene.holds.items())
        parts = [("queue ", "dim"), (f"{scene.queued:,} waiting", "")]
        parts += [(f" ({held})", "dim")] if held else []
        parts += [(f" · {scene.running:,} running", ""), (f" · {scene.finished:,} ended", "")]
    else:
        counts = " · ".join(f"{count:,} {status}" for status, count in scene.statuses.items() if count)
        parts = [("queue ", "dim"), (counts or "empty", "")]
    wrong = [f"{count:,} {outcome.replace('_', ' ')}" for outcome, count in scene.failures.items()]
    wrong += [f"{scene.retries:,} retried"] if scene.retries else []
    wrong += [f"{scene.reclaimed:,} reclaimed"] if scene.reclaimed else []
    lines = [Text.assemble(*parts), *_waits(scene)]
    return [*lines, Text.assemble(("failures ", "dim"), (" · ".join(wrong), "yellow"))] if wrong else lines


def _waits(scene: Scene) -> list[Text]:
    mean_s, starts = scene.waits
    parts = [] if scene.oldest is None else [f"{scene.oldest[0]} has waited longest: {rough_span(scene.oldest[1])}"]
    parts += [f"mean of the last {_count(starts, 'start')}: {rough_span(mean_s)}"] if starts else []
    return [Text.assemble(("waits ", "dim"), " · ".join(parts))] if parts and scene.statuses is not None else []


_HOLDS = {"time": "delayed", "backoff": "backing off", "after": "after others", "worker": "reserved"}


def _elapsed(seconds: float) -> str:
    whole = int(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _stories(scene: Scene, look: Look, rows: int) -> list[Text]:
    lines = []
    for story in scene.stories[-rows:] if rows > 0 else ():
        ago = f"{max(0.0, scene.at - story.at):5.0f} s ago  "
        lines.append(Text.assemble(("" if look.is_narrow else ago, "dim"), (story.text, TONES[story.tone])))
    return lines


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
    marks = project_marks(scene)
    order = {mark: COLORS[index % len(COLORS)] for index, mark in enumerate(marks.values())}
    lines = []
    for project in scene.projects[: look.rows_max]:
        mark = marks.get(project.project_id, "?")
        name = f"{mark} {set_cell_size(project.project_id, 12 if look.is_narrow else NAME_MAX)} "
        drawn = bar(project.share, _bar_width(look), look, project.target)
        numbers = f" {project.share:4.0%} of {project.target:4.0%}"
        more = f"  weight {project.weight / WEIGHT_UNIT:g} · {_amount(_had(project, scene))} · {project.runs:,} runs"
        color = order[mark] if look.in_color and mark in order else ""
        lines.append(Text.assemble((name, color), (drawn, color), numbers, ("" if look.is_narrow else more, "dim")))
    return _with_rest(lines, len(scene.projects), "projects")


def _agents(scene: Scene, look: Look) -> list[Text]:
    """Return the agents that used most, with their share of their project."""
    order = sorted(scene.agents, key=lambda agent: (-agent.used, agent.pid))[: look.rows_max]
    lines = []
    for agent in order:
        name = set_cell_size(agent.name, 14 if look.is_narrow else NAME_MAX + 2)
        numbers = f" {agent.share:4.0%} of {agent.target:4.0%}"
        where = f"  {agent.project_id}" if agent.project_id else ""
        runs = f"{where}  weight {agent.weight / WEIGHT_UNIT:g} · {agent.running} running · {agent.runs:,} runs"
        runs += f" · {agent.failed:,} failed" if agent.failed else ""
        drawn = bar(agent.share, _bar_width(look), look, agent.target)
        lines.append(Text.assemble(f"{name} ", drawn, numbers, ("" if look.is_narrow else runs, "dim")))
    return _with_rest(lines, len(scene.agents), "agents")


def _workers(scene: Scene, look: Look) -> list[Text]:
    lines = []
    for worker in (scene.workers or ())[: look.rows_max]:
        name = set_cell_size(short_name(worker.worker_id), NAME_MAX + 2)
        slots = f"{worker.running} of {_count(worker.slots, 'slot')} busy" if worker.slots else f"{worker.running} runs"
        silence = f"  silent for {rough_span(max(0.0, scene.at - worker.seen_at))}" if worker.silent else ""
        more = [worker.kind.replace("_", " "), f"on {worker.host}" if worker.host else ""]
        more += [f"kinds {', '.join(worker.kinds)}" if worker.kinds else "", "draining" if worker.draining else ""]
        text = "" if look.is_narrow else " · ".join(part for part in more if part)
        lines.append(Text.assemble(f"{name} {slots}", (silence, "red"), (f"  {text}", "dim")))
    return _with_rest(lines, len(scene.workers or ()), "workers")


def _runs(scene: Scene, look: Look) -> list[Text]:
    """Return the runs that began first."""
    lines = []
    for name, worker_id, start_at, attempt in sorted(scene.runs, key=lambda run: run[2])[: look.rows_max]:
        since = rough_span(max(0.0, scene.at - start_at))
        more = f"  on {worker_id}" + (f", attempt {attempt}" if attempt > 1 else "")
        lines.append(Text.assemble(f"{set_cell_size(name, NAME_MAX + 2)} for {since}", (more, "dim")))
    return _with_rest(lines, len(scene.runs), "runs")


def _had(project: ProjectReport, scene: Scene) -> float:
    return project.seconds if scene.measure == "seconds" else project.charged.get(scene.measure, 0)


def _budgets(scene: Scene, look: Look) -> list[Text]:
    lines = []
    for line in scene.budgets[: look.rows_max]:
        owner = "global" if line.level == "global" else line.owner
        used = line.used / line.limit if line.limit else 1.0
        name = set_cell_size(f"{owner} {dim_text(line.dim)}", 14 if look.is_narrow else NAME_MAX + 2)
        shown = dollars if line.dim == COST_DIM else _amount
        left = f" {shown(max(0, line.limit - line.used))} left of {shown(line.limit)}"
        live = f", {shown(line.reserved)} reserved" if line.reserved and not look.is_narrow else ""
        lines.append(
            Text.assemble(f"{name} ", (bar(1.0 - used, _bar_width(look), look), _heat(used)), left, (live, "dim"))
        )
    return _with_rest(lines, len(scene.budgets), "budgets")


def _limits(scene: Scene, look: Look) -> list[Text]:
    named = [limit for limit in scene.limits if limit.bound_to == "name"]
    lines = []
    for limit in named[: look.rows_max]:
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

"""Projects, agents and what they used per day, as rows of tables and as a chart. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from rota.errors import InvalidInput
from rota.model import Agent, Project, UsageLine, UsageReport, dollars, main_measure
from rota.model.work import WEIGHT_MAX
from rota.observe import ProjectReport
from rota.svg import element, picture, text
from rota.time_text import fine_span

__all__ = ["COLOURS", "agent_row", "changes", "day_chart", "project_row", "projects_of", "usage_row"]

COLOURS = 8
CHART_WIDTH, CHART_HEIGHT, CHART_TOP, DAY_WIDTH_MAX = 960, 180, 22, 90
PROJECTS_SHOWN = 7  # in colours of their own; the others are added up
OTHERS = "others"
NO_PROJECT = "no project"
CAP_MAX = 1_000_000


def project_row(
    project: Project, shares: Mapping[str, ProjectReport], weights: int, actions: Sequence[str]
) -> dict[str, Any]:
    """Return a row: a project with its share by weight, and what it really got in the last minutes."""
    share = shares.get(project.project_id)
    return {
        "id": project.project_id,
        "label": project.project_id,
        "project": project.project_id,
        "status": project.status.lower(),
        "weight": f"{project.weight:,}",
        "target": f"{100 * project.weight / weights:.1f} %" if weights else "–",
        "actual": "–" if share is None else f"{100 * share.share:.1f} %",
        "cap": _cap(project.max_concurrent),
        "paused": project.paused_by or "–",
        "links": {"project": f"/projects?project={quote(project.project_id, safe='')}"},
        "actions": list(actions),
    }


def agent_row(agent: Agent, actions: Sequence[str]) -> dict[str, Any]:
    """Return a row: an agent with its settings."""
    return {
        "id": str(agent.pid),
        "label": agent.name,
        "pid": str(agent.pid),
        "agent": agent.name,
        "project": agent.project_id or "–",
        "state": agent.state.lower(),
        "priority": str(agent.priority),
        "weight": f"{agent.weight:,}",
        "cap": _cap(agent.max_concurrent),
        "paused": agent.paused_by or "–",
        "actions": list(actions),
    }


def _cap(maximum: int | None) -> str:
    return "–" if maximum is None else f"{maximum:,}"


def changes(thing: Project | Agent, weight: object, cap: object) -> dict[str, int | None]:
    """Return what a form changes of a project or an agent; an empty maximum removes it."""
    new_weight = _whole("weight", weight, 1, WEIGHT_MAX)
    new_cap = None if cap in (None, "") else _whole("the maximum of concurrent runs", cap, 0, CAP_MAX)
    found: dict[str, int | None] = {}
    if new_weight != thing.weight:
        found["weight"] = new_weight
    if new_cap != thing.max_concurrent:
        found["max_concurrent"] = new_cap
    return found


def _whole(name: str, given: object, least: int, most: int) -> int:
    """Return a whole number that a person wrote."""
    try:
        number = float(str(given))
    except ValueError:
        number = -1.0
    if not number.is_integer() or not least <= number <= most:
        raise InvalidInput(f"{name} must be a whole number from {least:,} to {most:,}", field=name)
    return int(number)


# --- usage ---------------------------------------------------------------------------------------


def usage_row(line: UsageLine) -> dict[str, Any]:
    """Return a row: what a project used on one day."""
    project = line.project_id or NO_PROJECT
    return {
        "id": f"{line.day} {project}",
        "day": line.day or "–",
        "project": project,
        "runs": f"{line.runs:,}",
        "failed": f"{line.failures:,}",
        "tokens": f"{line.tokens:,}",
        "cost": dollars(line.cost_micro) if line.cost_micro else "–",
        "cpu": fine_span(line.cpu_ms / 1_000) if line.cpu_ms else "–",
        "wait": fine_span(line.wait_p95_ms / 1_000) if line.waits else "–",
    }


def projects_of(report: UsageReport) -> list[str]:
    """Return the projects that used most, in the order of their colours; the others are added up."""
    field, _ = main_measure(report.total)
    used: dict[str, int] = {}
    for line in report.lines:
        name = line.project_id or NO_PROJECT
        used[name] = used.get(name, 0) + getattr(line, field)
    names = sorted(used, key=lambda name: (-used[name], name))
    return names if len(names) <= COLOURS else [*names[:PROJECTS_SHOWN], OTHERS]


def day_chart(report: UsageReport, days: Sequence[str]) -> tuple[str, str]:
    """Return a drawing of what each project used on each day, and what it counts."""
    field, words = main_measure(report.total)
    projects = projects_of(report)
    stacks = {day: _stack(report.lines, day, field, projects) for day in days}
    most = max((sum(stack.values()) for stack in stacks.values()), default=0)
    width = min(DAY_WIDTH_MAX, CHART_WIDTH / max(1, len(days)))
    parts: list[str] = []
    for at, day in enumerate(days):
        x, bottom = at * width, float(CHART_TOP + CHART_HEIGHT)
        whole = sum(stacks[day].values())
        for project, amount in stacks[day].items():
            height = CHART_HEIGHT * amount / most if most else 0.0
            bottom -= height
            tip = f"{day}, {project}: {_amount(field, amount)} {words}"
            shape: dict[str, float] = {"x": x + 4, "y": bottom, "width": width - 8, "height": max(1.0, height)}
            parts.append(element("rect", class_=f"bar-{projects.index(project) % COLOURS}", **shape, tip=tip))
        if whole:
            parts.append(text(x + width / 2, bottom - 5, _amount(field, whole), class_="small", text_anchor="middle"))
        name_y = CHART_TOP + CHART_HEIGHT + 16
        parts.append(text(x + width / 2, name_y, day[5:], class_="small", text_anchor="middle"))
    return picture(max(320, width * len(days)), CHART_TOP + CHART_HEIGHT + 24, f"{words} by day", parts), words


def _stack(lines: Iterable[UsageLine], day: str, field: str, projects: Collection[str]) -> dict[str, int]:
    """Return the amounts of one day by project, in the order of the colours."""
    found = dict.fromkeys(projects, 0)
    for line in lines:
        if line.day == day:
            name = line.project_id or NO_PROJECT
            found[name if name in found else OTHERS] += getattr(line, field)
    return {name: amount for name, amount in found.items() if amount > 0}


def _amount(field: str, amount: int) -> str:
    shown: dict[str, Callable[[int], str]] = {"cost_micro": dollars, "cpu_ms": lambda ms: fine_span(ms / 1_000)}
    return shown.get(field, _short)(amount)


def _short(amount: int) -> str:
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**4, "k")):
        if amount >= size:
            return f"{amount / (10**3 if letter == 'k' else size):.1f}{letter}"
    return f"{amount:,}"

"""The journal as rows: a sentence for each event, newest first, and what a reader wants of them. Pure functions."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from rota.model import Event
from rota.observe import EventText, FleetState, TextFilter, project_named
from rota.time_text import local_time

__all__ = ["KINDS", "ROWS_MAX", "filter_of", "has_words", "row"]

ROWS_MAX = 200  # sentences on a page
KINDS = {  # what a reader may choose, and the kinds that match
    "everything": "",
    "entries": "kernel.sched.*",
    "runs": "kernel.run.*",
    "agents": "kernel.process.*",
    "projects": "kernel.project.*",
    "budgets": "kernel.budget.*",
    "limits": "kernel.context.*",
    "pauses": "kernel.pause.*",
    "policies": "kernel.policy.*",
    "graphs": "kernel.graph.*",
    "access": "kernel.auth.*",
}


def filter_of(*, kind: str, pid: int | None, project_id: str, details: bool) -> TextFilter:
    """Return a filter from what a reader has written; empty texts mean all."""
    return TextFilter(kind=kind or None, pid=pid, project_id=project_id or None, everything=details or bool(kind))


def row(event: Event, text: EventText, number: int, state: FleetState, now: float) -> dict[str, Any]:
    """Return a row for a sentence; `number` tells sentences about one event apart."""
    links = {}
    if text.sched_id is not None:
        links["entry"] = f"/entry/{text.sched_id}"
    project_id = state.project_of(text.pid) or project_named(event)
    if project_id:
        links["project"] = f"/projects?project={quote(project_id, safe='')}"
    return {
        "id": f"{event.event_id}.{number}",
        "event": str(event.event_id),
        "when": local_time(text.at, now),
        "what": text.text,
        "kind": event.kind,
        "agent": "–" if text.pid is None else state.agent(text.pid),
        "project": project_id or "–",
        "entry": "–" if text.sched_id is None else str(text.sched_id),
        "by": event.author or "–",
        "tone": "quiet" if text.tone == "detail" else text.tone,
        "links": links,
    }


def has_words(shown: dict[str, Any], words: str) -> bool:
    """Return whether a row has all words that a reader searches for, in any of its texts."""
    whole = " ".join(str(shown[name]) for name in ("what", "kind", "agent", "project", "entry", "by")).lower()
    return all(word in whole for word in words.lower().split())

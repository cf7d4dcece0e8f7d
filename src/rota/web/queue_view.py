"""Which entries the queue page shows: the filter and the page as one value, to and from the page's address. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec

from rota.kernel import EntryFilter
from rota.model import STATUSES, ReadyEntry
from rota.time_text import local_time
from rota.web.widgets import TONES

__all__ = ["PAGE_SIZE", "QueueView", "QueueWindow", "row_of"]

PAGE_SIZE = 50
TEXT_MAX = 200  # characters of an error or of tags in a row


class QueueWindow(msgspec.Struct, frozen=True):
    """The part of a list that a page shows. The list is by id; the newest come first on the page."""

    offset: int
    limit: int
    first: int  # as people count: 1 is the newest
    last: int
    pages: int


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown: conditions, and which page."""

    status: tuple[str, ...] = ()
    text: str = ""
    agent: str = ""  # a name or a pid
    project: str = ""
    tag: str = ""
    page: int = 1

    @classmethod
    def of_query(cls, query: Mapping[str, str]) -> QueueView:
        """Return what an address asks for; what makes no sense there is left out."""
        status = tuple(each for each in query.get("status", "").split(",") if each in STATUSES)
        number = query.get("page", "1")
        page = int(number) if number.isascii() and number.isdecimal() and number != "0" else 1
        words = {name: query.get(name, "").strip()[:TEXT_MAX] for name in ("text", "agent", "project", "tag")}
        return cls(status=status, page=min(page, 10**9), **words)

    def address(self) -> str:
        """Return the page's address with this view."""
        fields = {"status": ",".join(self.status), "text": self.text, "agent": self.agent}
        fields |= {"project": self.project, "tag": self.tag, "page": str(self.page) if self.page > 1 else ""}
        query = urlencode({name: value for name, value in fields.items() if value})
        return f"/queue?{query}" if query else "/queue"

    def conditions(self, pid: int | None) -> dict[str, Any]:
        """Return the conditions as arguments of `list` and `search`."""
        return {
            "status": self.status or None,
            "pid": pid,
            "project_id": self.project or None,
            "tag": self.tag or None,
        }

    def filter(self, pid: int | None) -> EntryFilter:
        """Return the conditions for a bulk change."""
        return EntryFilter(**self.conditions(pid))

    def window(self, total: int) -> QueueWindow:
        """Return which part of `total` entries this page shows, newest first."""
        pages = max(1, -(-total // PAGE_SIZE))
        page = min(self.page, pages)
        skipped = (page - 1) * PAGE_SIZE
        limit = max(0, min(PAGE_SIZE, total - skipped))
        return QueueWindow(total - skipped - limit, limit, skipped + 1 if limit else 0, skipped + limit, pages)


def row_of(entry: ReadyEntry, agents: Mapping[int, str], now: float) -> dict[str, Any]:
    """Return an entry as a row of the table: texts only."""
    return {
        "id": entry.sched_id,
        "entry": f"#{entry.sched_id}",
        "links": {"entry": f"/entry/{entry.sched_id}"},
        "agent": agents.get(entry.pid, f"agent {entry.pid}"),
        "project": entry.project_id or "–",
        "status": entry.status,
        "tone": TONES.get(entry.status, "tone-plain"),
        "detail": _detail(entry, now),
        "priority": entry.priority,
        "attempt": f"{entry.attempt} of {entry.max_attempts}",
        "created": local_time(entry.created_at, now),
        "tags": ", ".join(entry.tags)[:TEXT_MAX],
        "pid": entry.pid,
    }


_HOLDS = {"after": "waits for others", "worker": "reserved for its worker"}


def _detail(entry: ReadyEntry, now: float) -> str:
    """Say in a few words what matters about an entry of its status. Instants, not ages: rows change only with facts."""
    if entry.cancel_requested and entry.status == "running":
        return "asked to stop"
    if entry.status == "running":
        return f"since {local_time(entry.dispatched_at or now, now)} on {entry.worker_id}"
    if entry.status == "waiting":
        return _HOLDS.get(entry.hold or "") or f"until {local_time(entry.runnable_at, now)}"
    if entry.status == "ready":
        return f"since {local_time(max(entry.created_at, entry.runnable_at), now)}"
    error = entry.result.get("error") if isinstance(entry.result, dict) else None
    ended = local_time(entry.completed_at, now) if entry.completed_at else ""
    return ": ".join(part for part in (ended, str(error or entry.outcome or "")) if part)[:TEXT_MAX]

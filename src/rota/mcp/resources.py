"""Resources: pages that a client can attach to a conversation. Pages of the store are read with the caller's rights.

rota://queue                what waits and runs
rota://entry/{sched_id}     everything about one entry
rota://project/{project_id} a project, its budgets and its work
rota://policy               the policy in force; rota://policy/{name} what a policy does
rota://glossary             what rota's words mean
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from rota.doc_pages import read_page
from rota.errors import InvalidInput, NotFound
from rota.mcp.answers import detail_of
from rota.mcp.callers import Caller
from rota.mcp.subjects import lines_of
from rota.policy import registry

__all__ = ["PAGES", "TEMPLATES", "PageTemplate", "StaticPage", "page_text"]

LINES_MAX = 50  # entries of each kind on a page
MARKDOWN = "text/markdown"
JSON = "application/json"


class StaticPage(NamedTuple):
    """A page with a fixed address."""

    uri: str
    about: str
    mime_type: str
    read: Callable[[Caller], Any]


class PageTemplate(NamedTuple):
    """Pages whose address has a parameter."""

    uri: str
    parameter: str
    about: str
    mime_type: str
    read: Callable[[Caller, str], Any]

    def value_in(self, uri: str) -> str | None:
        """Return the parameter in an address; None if this is not a page of this kind."""
        before, _, _ = self.uri.partition("{")
        value = uri.removeprefix(before)
        return value if uri.startswith(before) and re.fullmatch(r"[^/?#]+", value) else None


def page_text(caller: Caller, uri: str) -> tuple[str, str]:
    """Return a page's text and type; raises `NotFound` for an address that no page has."""
    page = PAGES.get(uri)
    if page is not None:
        return _text(page.read(caller)), page.mime_type
    for template in TEMPLATES:
        if (value := template.value_in(uri)) is not None:
            return _text(template.read(caller, value)), template.mime_type
    known = ", ".join((*PAGES, *(template.uri for template in TEMPLATES)))
    raise NotFound(f"there is no page {uri}", hint=f"There are {known}.")


def _text(content: Any) -> str:
    return content if isinstance(content, str) else msgspec.json.format(msgspec.json.encode(content)).decode()


# --- pages of the store --------------------------------------------------------------------------


def _queue(caller: Caller) -> Any:
    running = caller.api.queue.running(limit=LINES_MAX)
    queued, total = caller.api.queue.list(status=("waiting", "ready"), limit=LINES_MAX)
    return {
        "counts": caller.api.queue.counts("status"),
        "running": lines_of(caller, [each.entry for each in running.running]),
        "queued": lines_of(caller, queued),
        "queued_total": total,
        "more": "list_work pages through all of them" if total > len(queued) else None,
    }


def _entry(caller: Caller, sched_id: str) -> Any:
    if not (sched_id.isascii() and sched_id.isdecimal()):
        raise InvalidInput(f"{sched_id!r} is not the id of an entry", field="sched_id", hint="For example 7.")
    return detail_of(caller.api.show(int(sched_id)))


def _project(caller: Caller, project_id: str) -> Any:
    project = caller.api.projects.get(project_id)
    queued, total = caller.api.queue.list(status=("waiting", "ready"), project_id=project_id, limit=LINES_MAX)
    running = caller.api.queue.running(project_id=project_id, limit=LINES_MAX)
    return {
        "project": project,
        "budgets": [line for line in caller.api.ledger.budgets() if line.owner == project_id],
        "agents_total": caller.api.agents.list(project_id=project_id, limit=1)[1],
        "running": lines_of(caller, [each.entry for each in running.running]),
        "queued": lines_of(caller, queued),
        "queued_total": total,
    }


def _policy_in_force(caller: Caller) -> str:
    found = caller.api.policies.get()
    counted = f"Shares are counted in {found.share_by}."
    return f"# The policy in force\n\n{found.sentence()}. {counted}\n\n{_policy_page(found.name)}"


# --- pages about rota ----------------------------------------------------------------------------


def _policy(_caller: Caller, name: str) -> str:
    return _policy_page(name)


def _policy_page(name: str) -> str:
    """Say what a policy does; one of another package that cannot be loaded here is only named."""
    if not registry.is_built_in_name(name):
        return f"# {name}\n\nA policy of another package.\n"
    policy = registry.make(name)
    waiting = policy.bound.sentence if policy.bound else "none: it can starve"
    params = "\n".join(f"- `{key}`, by default `{value}`" for key, value in registry.parameters(name).items())
    return f"# {name}\n\n{policy.sentence}\n\nBound on waiting: {waiting}\n\n{params or 'It has no parameters.'}\n"


def _glossary(_caller: Caller) -> str:
    return read_page("glossary") or ""


_pages = (
    StaticPage("rota://queue", "What waits and what runs, with counts by status.", JSON, _queue),
    StaticPage("rota://policy", "The policy in force: which entry runs next.", MARKDOWN, _policy_in_force),
    StaticPage("rota://glossary", "What rota's words mean.", MARKDOWN, _glossary),
)
PAGES: Mapping[str, StaticPage] = {page.uri: page for page in _pages}
TEMPLATES = (
    PageTemplate("rota://entry/{sched_id}", "sched_id", "Everything about one entry.", JSON, _entry),
    PageTemplate("rota://project/{project_id}", "project_id", "A project, its budgets and its work.", JSON, _project),
    PageTemplate(
        "rota://policy/{name}", "name", "What a policy does, and how long work may wait under it.", MARKDOWN, _policy
    ),
)

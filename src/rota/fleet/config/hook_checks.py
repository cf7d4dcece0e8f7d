"""Checks of the hooks in a fleet file, and of the kinds of events that triggers and hooks name."""

from __future__ import annotations

import re

from rota.fleet.config.tables import FleetFile, HookTable
from rota.fleet.hook_rules import HOOK_KIND, HOOK_PREFIX, NAMES
from rota.fleet.runners.hook import url_problem
from rota.fleet.trigger_rules import matches_kind
from rota.model.struct_reader import Problems, join_key
from rota.model.value_types import closest

__all__ = ["check_event", "check_hooks"]

# Every firing of a trigger writes these events, so a trigger on one of them would fire forever.
WRITTEN_BY_FIRINGS = ("kernel.trigger.fired", "kernel.sched.enqueued")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OWN_HEADERS = (
    "content-length",
    "content-type",
    "host",
    "rota-attempt",
    "rota-delivery-id",
    "rota-event",
    "transfer-encoding",
)


def check_event(pattern: str, path: str, problems: Problems) -> None:
    """Check a kind of event, or a prefix of kinds."""
    if "*" in pattern[:-1]:
        problems.add_mismatch(path, "an event kind, or a prefix of kinds followed by one *", pattern)
        return
    written = next((kind for kind in WRITTEN_BY_FIRINGS if matches_kind(pattern, kind)), None)
    if written is not None:
        problems.add(
            path, f"{pattern!r} matches {written}, which every firing of this trigger writes: it would fire forever"
        )


def check_hooks(fleet: FleetFile, problems: Problems) -> None:
    """Check all hooks, and that no agent is mistaken for one."""
    for name, table in fleet.hooks.items():
        _check_hook(fleet, table, join_key("hooks", name), problems)
    for name, agent in fleet.agents.items():
        if name.startswith(HOOK_PREFIX):
            problems.add(
                join_key("agents", name), f"the names of hooks begin with {HOOK_PREFIX!r}; choose another name"
            )
        if agent.kind == HOOK_KIND:
            problems.add(f"{join_key('agents', name)}.kind", f"{HOOK_KIND!r} is reserved for hooks")
    if isinstance(fleet.slots, dict) and HOOK_KIND in fleet.slots:
        problems.add(join_key("slots", HOOK_KIND), "is reserved: every supervisor has such slots for its hooks")


def _check_hook(fleet: FleetFile, table: HookTable, path: str, problems: Problems) -> None:
    for at, name in enumerate(table.on):
        key = f"{path}.on[{at}]"
        if "." not in name and "*" not in name and name not in NAMES:
            similar = closest(name, NAMES)
            hint = f"did you mean {similar!r}?" if similar else f"expected {', '.join(NAMES)} or a kind of event"
            problems.add(key, f"unknown name {name!r}; {hint}")
        elif name not in NAMES:
            check_event(name, key, problems)
    if table.project is not None and table.project not in fleet.projects:
        problems.add_unknown_name(f"{path}.project", "project", table.project, fleet.projects)
    if table.agent is not None and table.agent not in fleet.agents:
        problems.add_unknown_name(f"{path}.agent", "agent", table.agent, fleet.agents)
    if table.timeout_s <= 0:
        problems.add(f"{path}.timeout_s", "expected more than 0, found 0: no delivery could succeed")
    if table.post is not None and "${" not in table.post and (problem := url_problem(table.post)) is not None:
        problems.add(f"{path}.post", problem)
    if table.command is not None and not _is_program(table):
        problems.add(f"{path}.command", "expected a program and its arguments")
    for name, value in table.headers.items():
        key = join_key(f"{path}.headers", name)
        if not _HEADER.fullmatch(name) or name.lower() in _OWN_HEADERS:
            problems.add(key, "expected the name of a header that rota does not set itself")
        elif not value.isprintable() or not value.isascii():
            problems.add(key, "expected a value of printable ASCII characters")


def _is_program(table: HookTable) -> bool:
    try:
        return bool(table.argv and table.argv[0]) and not any("\0" in part for part in table.argv)
    except ValueError:  # an open quotation mark
        return False

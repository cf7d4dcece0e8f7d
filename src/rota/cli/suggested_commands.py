"""Suggestions as commands to paste: what `rota why` prints below each change that would start an entry.

A suggestion names a method and its arguments. Where the method declares a command, the command is written from the
declaration (registers.py); the commands that are written by hand, such as `rota change`, are listed here. A suggestion
without a command is something to wait for.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rota.cli.options import STORE, access
from rota.store import without_password

if TYPE_CHECKING:
    from rota.model import Suggestion

__all__ = ["command_of"]

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"))
DEADLINE = "+1h"  # a time that has not passed when the command is pasted


def command_of(change: Suggestion, *, agent: str, store: str) -> str | None:
    """Return a suggestion as a command that can be pasted; None if there is none.

    `agent` is the agent of the entry, by name or pid.
    """
    write = _COMMANDS.get(change.verb or "")
    if write is None:
        return None
    words = map(str, write(change.arguments, agent))
    return shlex.join(["rota", *_access_options(), *words, *_store_option(store)])


def _changes(given: dict[str, Any]) -> Iterator[str]:
    if "priority" in given:
        yield from ("--priority", str(given["priority"]))
    if "runnable_at" in given:
        yield from ("--at", "now")
    if "deadline" in given:
        yield from ("--deadline", DEADLINE)


def _constraint(constraint: dict[str, Any]) -> Iterator[str]:
    if constraint.get("exclusive"):
        yield "--exclusive"
    if constraint.get("pause_scheduling"):
        yield "--paused"
    for kind, most in constraint.get("max_by_kind", {}).items():
        yield from ("--kind", f"{kind}={most}")


def _budget(given: dict[str, Any]) -> Iterator[str]:
    yield from (given["level"], given["dim"], str(given["limit"]))
    if given["level"] == "project":
        yield from ("--project", given["owner"])
    yield from ("--window", _duration(given["window_s"]))


def _graph_budget(given: dict[str, Any]) -> Iterator[str]:
    yield given["run_id"]
    yield f"{given['dim']}={given['limit']}"
    if given["node"]:
        yield from ("--node", given["node"])


def _duration(seconds: float) -> str:
    for size, unit in _UNITS:
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + "s"


def _move(given: dict[str, Any]) -> tuple[str, ...]:
    return ("projects", "restore") if given["verb"] == "restore" else ("resume", "project")


def _declared(part: str, verb: str, given: dict[str, Any]) -> list[str]:
    from rota.cli.registers import command_words

    return command_words(part, verb, given)


_COMMANDS: dict[str, Callable[[dict[str, Any], str], Iterable[object]]] = {
    "queue.change": lambda given, _: ("change", given["sched_id"], *_changes(given)),
    "queue.release": lambda given, _: ("release", given["sched_id"]),
    "queue.retry": lambda given, _: ("retry", given["sched_id"]),
    "agents.resume": lambda _, agent: ("resume", "agent", agent),
    "agents.update": lambda given, agent: _declared("agents", "update", given | {"pid": agent}),
    "projects.update": lambda given, _: _declared("projects", "update", given),
    "projects.resume_fleet": lambda *_: ("resume", "fleet"),
    "projects.move": lambda given, _: (*_move(given), given["project_id"]),
    "projects.constrain": lambda given, _: (
        *("projects", "constrain", given["project_id"]),
        *_constraint(given["constraint"]),
    ),
    "ledger.update_grant": lambda given, agent: ("ledger", "grant", agent, given["dim"], given["granted"]),
    "ledger.set_budget": lambda given, _: ("ledger", "budget", *_budget(given)),
    "ledger.set_graph_budget": lambda given, _: ("graph", "budget", *_graph_budget(given)),
}


def _access_options() -> Iterator[str]:
    for option, value in (("--token-file", access.token_file), ("--ca-file", access.ca_file)):
        if value is not None:
            yield from (option, value)


def _store_option(store: str) -> list[str]:
    """Return the option that names the store; none if the same shell finds it without."""
    return [] if store == os.environ.get("ROTA_STORE", STORE) else ["--store", without_password(store)]

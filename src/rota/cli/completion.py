"""Completion of names and ids in the shell: agents, projects and entries of the store that the command names.

A press of the tab key must neither fail nor wait: without a store, or with a daemon that is away, there is nothing to
offer. `rota --install-completion` sets the shell up.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import typer

from rota.cli.options import STORE, access

if TYPE_CHECKING:
    from rota.cli.embedded_api import EmbeddedApi
    from rota.model import Agent
    from rota.rpc import Client

__all__ = ["agents_in", "entries_in", "mend_words", "projects_in"]

LISTED_MAX = 1_000  # agents or projects that are looked at
OFFERED_MAX = 50  # of each kind
Offer: TypeAlias = tuple[str, str]  # what is inserted, and what it is
Api: TypeAlias = "EmbeddedApi | Client"


def mend_words(environ: MutableMapping[str, str]) -> None:
    """Put together what bash has split: at the colon of `--store unix:/run/rota.sock`, at the sign of `--store=`."""
    words, current = environ.get("COMP_WORDS", "").split("\n"), int(environ.get("COMP_CWORD") or 0)
    whole: list[str] = []
    removed = 0
    for number, word in enumerate(words):
        is_before = number < current
        if word == "=" and number and words[number - 1].startswith("--"):
            whole += [] if is_before else [""]
            removed += is_before
        elif whole and is_before and ":" in (word, words[number - 1]):
            whole[-1] += word
            removed += 1
        else:
            whole.append(word)
    environ["COMP_WORDS"], environ["COMP_CWORD"] = "\n".join(whole), str(current - removed)


def agents_in(ctx: typer.Context, start: str) -> list[Offer]:
    """Return the live agents whose name begins like this; of several with a name, their pids."""

    def read(api: Api) -> list[Offer]:
        live = [agent for agent in api.agents.list(limit=LISTED_MAX)[0] if agent.state not in ("DEAD", "ZOMBIE")]
        names = [agent.name for agent in live]
        return [(agent.name if names.count(agent.name) == 1 else str(agent.pid), _about(agent)) for agent in live]

    return _offers(ctx, start, read)


def _about(agent: Agent) -> str:
    return f"pid {agent.pid}" if agent.project_id is None else f"pid {agent.pid}, project {agent.project_id}"


def projects_in(ctx: typer.Context, start: str) -> list[Offer]:
    """Return the projects whose id begins like this."""

    def read(api: Api) -> list[Offer]:
        return [(project.project_id, project.status) for project in api.projects.list(limit=LISTED_MAX)[0]]

    return _offers(ctx, start, read)


def entries_in(ctx: typer.Context, start: str) -> list[Offer]:
    """Return entries whose id begins like this: those that run, then those that wait or have failed."""

    def read(api: Api) -> list[Offer]:
        running = [each.entry for each in api.queue.running(limit=OFFERED_MAX).running]
        others, _ = api.queue.list(status=("waiting", "ready", "failed"), limit=OFFERED_MAX)
        found = (*running, *others)
        names = api.agents.names(sorted({entry.pid for entry in found}))
        return [(str(entry.sched_id), f"{names.get(entry.pid, '')} {entry.status}") for entry in found]

    return _offers(ctx, start, read)


def _offers(ctx: typer.Context, start: str, read: Callable[[Api], list[Offer]]) -> list[Offer]:
    """Read from the store that the command names; nothing if it cannot be reached at once."""
    from rota.cli.connection import is_file, open_api, open_client
    from rota.errors import RotaError

    address, given = str(ctx.params.get("store") or STORE), ctx.find_root().params
    access.token_file, access.ca_file = given.get("token_file"), given.get("ca_file")
    if is_file(address) and not Path(address).exists():
        return []
    try:
        with open_api(address) if is_file(address) else open_client(address, retry_s=0.0) as api:
            found = read(api)
    except RotaError:
        return []
    return [offer for offer in found if offer[0].startswith(start)][:OFFERED_MAX]

"""Options that many commands share. Every `rota --help` loads this file, so it imports little."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer

__all__ = [
    "FLEET_FILE",
    "STORE",
    "AsJson",
    "By",
    "CaFile",
    "Limit",
    "Offset",
    "OnlyAgent",
    "OnlyProject",
    "Otel",
    "Store",
    "TokenFile",
    "access",
    "complete_agent",
    "complete_entry",
    "complete_project",
]


def _load(name: str) -> Any:
    """Return a function of the completion, which only a press of the tab key needs."""
    return getattr(importlib.import_module("rota.cli.completion"), name)


def complete_agent(ctx: typer.Context, incomplete: str) -> list[Any]:
    """Offer the names of agents in the shell."""
    return list(_load("agents_in")(ctx, incomplete))


def complete_project(ctx: typer.Context, incomplete: str) -> list[Any]:
    """Offer the ids of projects in the shell."""
    return list(_load("projects_in")(ctx, incomplete))


def complete_entry(ctx: typer.Context, incomplete: str) -> list[Any]:
    """Offer the ids of entries in the shell."""
    return list(_load("entries_in")(ctx, incomplete))


STORE = "rota.db"  # the default store
FLEET_FILE = "fleet.toml"  # the default fleet file

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Store = Annotated[
    str,
    typer.Option(
        "--store", "-s", envvar="ROTA_STORE", help="The store: a file, postgresql://…, or a daemon's address."
    ),
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of rows.")]
Offset = Annotated[int, typer.Option("--offset", min=0, help="Skip this many rows.")]
TokenFile = Annotated[
    str | None,
    typer.Option(
        "--token-file",
        help="File with the daemon's access token. Default: ROTA_ACCESS_TOKEN or ROTA_ACCESS_TOKEN_FILE.",
    ),
]
CaFile = Annotated[
    str | None,
    typer.Option("--ca-file", help="CA certificates for the daemon (PEM). Default: ROTA_CA_FILE or the system's."),
]
OnlyAgent = Annotated[
    str | None, typer.Option("--agent", help="Only this agent's, by pid or name.", autocompletion=complete_agent)
]
OnlyProject = Annotated[
    str | None, typer.Option("--project", help="Only this project's.", autocompletion=complete_project)
]
Otel = Annotated[
    bool,
    typer.Option("--otel", envvar="ROTA_OTEL", help="Send traces, metrics and logs to an OpenTelemetry collector."),
]
By = Annotated[str, typer.Option("--by", help="Who does this, for the journal.")]


class Access:
    """How to authenticate with a daemon: the options given before the command."""

    token_file: str | None = None
    ca_file: str | None = None


access = Access()

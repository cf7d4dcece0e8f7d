"""`rota run`: a fleet at work, in the terminal. `rota reload`: let it read its file anew."""

from __future__ import annotations

import getpass
import logging
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.logging import RichHandler

from rota import store
from rota.cli.connection import reach
from rota.cli.output import print_json
from rota.cli.view import LiveView
from rota.errors import FleetInvalid
from rota.fleet.config.file import load
from rota.fleet.config.tables import Fleet
from rota.fleet.fleet_run import FleetRun, ask_for_reload
from rota.kernel import Kernel
from rota.policy import registry
from rota.rpc.client import is_remote
from rota.service.api import Desk
from rota.service.dispatcher import Dispatcher

__all__ = ["reload", "run"]

DEFAULT_FLEET = "fleet.toml"
RETRY_S = 30.0  # for a daemon that is away while a fleet runs


def run(path: Path | None, *, until_idle: bool, plain: bool, **overrides: Any) -> int:
    """Run a fleet until it is stopped, or until there is nothing to do; how many runs have ended."""
    fleet = load(found(path))
    console = Console(stderr=True, force_terminal=False if plain else None)
    live = console.is_terminal
    _log_to(console, quiet=live)
    desk = _desk(fleet)
    try:
        fleet_run = FleetRun(desk, fleet, **{name: value for name, value in overrides.items() if value is not None})
        for change in fleet_run.changes if not live else ():
            console.print(f"{change}", highlight=False)
        with LiveView(desk, fleet_run.supervisor, console=console, store=fleet.store_path):
            return fleet_run.run(until_idle=until_idle, handles_signals=True)
    finally:
        desk.close()


def _desk(fleet: Fleet) -> Desk:
    """A daemon's desk, whose policy is its own, or one over a file, by the fleet's policy."""
    if is_remote(fleet.store_path):
        return reach(fleet.store_path, retry_s=RETRY_S)
    policy = registry.make(fleet.policy_name, **fleet.policy_params)
    return Dispatcher(Kernel(store.open(fleet.store_path)), policy)


def reload(path: Path | None, *, as_json: bool) -> None:
    """Ask whoever runs this fleet to read its file anew, once the file is found to be right."""
    fleet = load(found(path))
    desk = _desk(fleet)
    try:
        event_id = ask_for_reload(desk, getpass.getuser(), fleet.title)
    finally:
        desk.close()
    if as_json:
        print_json({"fleet": fleet.title, "file": fleet.path, "event_id": event_id})
    else:
        print(f"asked every supervisor of {fleet.title} to read {fleet.path} anew", file=sys.stderr)


def found(path: Path | None) -> Path:
    """The fleet file that was named, or the one that lies here."""
    if path is not None:
        return path
    here = Path(DEFAULT_FLEET)
    if not here.exists():
        raise FleetInvalid(
            f"there is no {DEFAULT_FLEET} here", hint="Name a fleet file: `rota run path/to/fleet.toml`."
        )
    return here


def _log_to(console: Console, *, quiet: bool) -> None:
    handler = RichHandler(console=console, show_path=False, markup=False)
    logging.basicConfig(level=logging.ERROR if quiet else logging.INFO, format="%(message)s", handlers=[handler])

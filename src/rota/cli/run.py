"""`rota run` runs a fleet in the terminal; `rota reload` makes a running fleet read its file again."""

from __future__ import annotations

import getpass
import logging
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.logging import RichHandler

from rota import store
from rota.cli.connection import open_client
from rota.cli.output import print_json
from rota.cli.view import LiveView
from rota.errors import FleetInvalid
from rota.fleet import Fleet, FleetRun, load_fleet, request_reload
from rota.kernel import Kernel
from rota.rpc import is_remote
from rota.service import Dispatcher, SchedulerApi, make_policy

__all__ = ["find_fleet_file", "reload", "run"]

DEFAULT_FLEET = "fleet.toml"
RETRY_S = 30.0  # how long calls are retried while the daemon of a running fleet is unreachable


def run(path: Path | None, *, until_idle: bool, plain: bool, **overrides: Any) -> int:
    """Run a fleet until it is stopped or, with `until_idle`, has nothing to do; return the number of ended runs."""
    fleet = load_fleet(find_fleet_file(path))
    console = Console(stderr=True, force_terminal=False if plain else None)
    live = console.is_terminal
    _log_to(console, quiet=live)
    api = _open(fleet)
    try:
        fleet_run = FleetRun(api, fleet, **{name: value for name, value in overrides.items() if value is not None})
        for change in fleet_run.changes if not live else ():
            console.print(f"{change}", highlight=False)
        with LiveView(api, fleet_run.supervisor, console=console, store=fleet.store_path):
            return fleet_run.run(until_idle=until_idle, handles_signals=True)
    finally:
        api.close()


def _open(fleet: Fleet) -> SchedulerApi:
    """Open the scheduler API of the fleet's store. A daemon uses its own policy, a file the fleet's policy."""
    if is_remote(fleet.store_path):
        return open_client(fleet.store_path, retry_s=RETRY_S)
    policy = make_policy(fleet.policy_name, fleet.policy_params, fleet.policy_isolation)
    return Dispatcher(Kernel(store.open(fleet.store_path)), policy, policy_isolation=fleet.policy_isolation)


def reload(path: Path | None, *, as_json: bool) -> None:
    """Check the file, then make every supervisor of the fleet read it again."""
    fleet = load_fleet(find_fleet_file(path))
    api = _open(fleet)
    try:
        event_id = request_reload(api, getpass.getuser(), fleet.title)
    finally:
        api.close()
    if as_json:
        print_json({"fleet": fleet.title, "file": fleet.path, "event_id": event_id})
    else:
        print(f"requested a reload of {fleet.path} from every supervisor of fleet {fleet.title}", file=sys.stderr)


def find_fleet_file(path: Path | None) -> Path:
    """Return the given path, or the default fleet file of the current folder."""
    if path is not None:
        return path
    default = Path(DEFAULT_FLEET)
    if not default.exists():
        raise FleetInvalid(
            f"there is no {DEFAULT_FLEET} in {Path.cwd()}", hint="Name a fleet file: `rota run path/to/fleet.toml`."
        )
    return default


def _log_to(console: Console, *, quiet: bool) -> None:
    handler = RichHandler(console=console, show_path=False, markup=False)
    logging.basicConfig(level=logging.ERROR if quiet else logging.INFO, format="%(message)s", handlers=[handler])

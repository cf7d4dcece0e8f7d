"""`rota run` runs a fleet in the terminal; `rota reload` makes a running fleet read its file again."""

from __future__ import annotations

import getpass
import logging
import shlex
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.logging import RichHandler

from rota import store
from rota.cli import output
from rota.cli.arguments import seconds
from rota.cli.connection import open_client
from rota.cli.log_lines import HarmlessFormatter
from rota.cli.options import FLEET_FILE
from rota.cli.telemetry import exporting, start_tracing
from rota.cli.terminal_text import say
from rota.cli.view import LiveView
from rota.errors import FleetInvalid, NotFound
from rota.fleet import STOP_LOGGER, Fleet, FleetRun, IdleRule, RunSummary, load_fleet, request_reload
from rota.kernel import Kernel
from rota.rpc import give_programs_access, is_remote
from rota.service import OUTAGE_S, Dispatcher, SchedulerApi, call_through_outage

__all__ = ["find_fleet_file", "print_summary", "reload", "run"]

RETRY_S = 30.0  # how long calls are retried while the daemon of a running fleet is unreachable


def run(
    path: Path | None, *, until_idle: bool, horizon: str | None, plain: bool, otel: bool = False, **overrides: Any
) -> RunSummary:
    """Run a fleet until it is stopped or, with `until_idle`, has nothing to wait for; return what was done."""
    rule = IdleRule() if horizon is None else IdleRule(seconds(horizon, "horizon"))
    fleet = load_fleet(find_fleet_file(path))
    console = output.console(stderr=True, force_terminal=False if plain else None)
    live = console.is_terminal
    _log_to(console, quiet=live)
    _wait_for_daemon(fleet, console)
    api = _open(fleet)
    try:
        start_tracing(api.journal, fleet.store_path, asked=otel)
        fleet_run = FleetRun(api, fleet, **{name: value for name, value in overrides.items() if value is not None})
        for change in fleet_run.changes if not live else ():
            console.print(str(change), markup=False)
        view = LiveView(api, fleet_run.supervisor, console=console, store=fleet.shown_store)
        with exporting(fleet.store_path, asked=otel, is_quiet=live), view:
            return fleet_run.run(until_idle=rule if until_idle else False, handles_signals=True)
    finally:
        api.close()


def _wait_for_daemon(fleet: Fleet, console: Console) -> None:
    """Wait, like a fleet whose daemon goes away, for one that is started after the fleet; say so at once."""
    if not is_remote(fleet.store_path):
        return
    limit = f"for at most {OUTAGE_S / 60:.0f} min; Ctrl-C ends it"
    with open_client(fleet.store_path, retry_s=0.0) as client:
        call_through_outage(
            client.clock,
            client.journal.cursor,
            lambda: False,
            say=lambda problem: console.print(
                f"{problem.message}; waiting for it, {limit}", markup=False, soft_wrap=True
            ),
        )


def print_summary(summary: RunSummary, *, as_json: bool) -> None:
    """Print what was done and what is left: as JSON, or as lines for people."""
    if as_json:
        fields = msgspec.to_builtins(summary)
        output.print_json({"ended": fields.pop("runs"), **fields, "ok": summary.ok})
        return
    say(summary, err=True)
    if summary.last_failed is not None:
        say(f"  why it failed: rota show {summary.last_failed}", err=True)
    for each in summary.waiting:
        until = f" ({output.when(each.until_at, output.now())})" if each.until_at is not None else ""
        say(f"  {each}{until}", err=True)
    for advisory in summary.advisories:
        say(f"  warning: {advisory}", err=True)


def _open(fleet: Fleet) -> SchedulerApi:
    """Open the scheduler API of the fleet's store."""
    if is_remote(fleet.store_path):
        return open_client(fleet.store_path, retry_s=RETRY_S)
    api = Dispatcher(Kernel(store.open_joined(fleet.store_path)), policy_isolation=fleet.policy_isolation)
    give_programs_access(api, fleet.store_path)
    return api


def reload(path: Path | None, *, as_json: bool) -> None:
    """Check the file, then make every supervisor of the fleet read it again; refused if none is running."""
    fleet = load_fleet(find_fleet_file(path))
    api = _open(fleet)
    try:
        if not any(worker.alive and worker.kind == "supervisor" for worker in api.workers.list()):
            text = f"no supervisor is running at the store of fleet {fleet.title}: there is nothing to reload"
            raise NotFound(text, hint=f"The file is read when one starts: `rota run {shlex.quote(str(fleet.path))}`.")
        event_id = request_reload(api, getpass.getuser(), fleet.title)
    finally:
        api.close()
    if as_json:
        output.print_json({"fleet": fleet.title, "file": fleet.path, "event_id": event_id})
    else:
        readers = f"every supervisor of fleet {fleet.title}"
        say(f"requested a reload from {readers}: each reads the file that it was started with", err=True)


def find_fleet_file(path: Path | None) -> Path:
    """Return the given path, or the default fleet file of the current folder."""
    if path is not None:
        return path
    default = Path(FLEET_FILE)
    if not default.exists():
        raise FleetInvalid(
            f"there is no {FLEET_FILE} in {Path.cwd()}", hint="Name a fleet file: `rota run path/to/fleet.toml`."
        )
    return default


def _log_to(console: Console, *, quiet: bool) -> None:
    handler = RichHandler(console=console, show_path=False, markup=False)
    handler.setFormatter(HarmlessFormatter("%(message)s"))
    logging.basicConfig(level=logging.ERROR if quiet else logging.INFO, handlers=[handler])
    stop_log = logging.getLogger(STOP_LOGGER)  # what it waits for is said in one line, also above the live view
    stop_log.handlers, stop_log.propagate = [_LineHandler(console)], False
    stop_log.setLevel(logging.WARNING)


class _LineHandler(logging.Handler):
    """Prints messages as they are."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print one message."""
        self._console.print(record.getMessage(), markup=False, soft_wrap=True)

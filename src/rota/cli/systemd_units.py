"""`--print-unit` of `rota run` and `rota web`: systemd units with the options of the command.

That of `rota serve` is in `rota.rpc`, beside what the daemon tells systemd.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rota.cli.terminal_text import say

__all__ = ["print_fleet_unit", "print_web_unit"]

STOP_MARGIN_S = 30  # that systemd waits longer than the supervisor waits for its runs
FLEET_UNIT = """\
[Unit]
Description=rota fleet {fleet}
After=network-online.target
Wants=network-online.target

[Service]
Type=exec
ExecStart={start}
ExecReload={reload}
WorkingDirectory={folder}
Restart=on-failure
KillMode=mixed
TimeoutStopSec={stop_s:.0f}

[Install]
WantedBy=multi-user.target
"""
WEB_UNIT = """\
[Unit]
Description=rota dashboard of {store}
After=network-online.target rota-serve.service
Wants=network-online.target

[Service]
Type=exec
ExecStart={start}
WorkingDirectory={folder}
Restart=on-failure
TimeoutStopSec=30
UMask=0077
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths={folder}
PrivateTmp=yes

[Install]
WantedBy=multi-user.target
"""


def print_fleet_unit(path: Path, options: Sequence[str], *, as_json: bool) -> None:
    """Print a systemd unit that runs a fleet with these options."""
    from rota.cli.output import print_json
    from rota.fleet import SupervisorSettings, load_fleet

    load_fleet(path)  # a file that is refused is refused here, not by systemd later
    file = path.resolve()
    unit = FLEET_UNIT.format(
        fleet=_escaped(str(file)),
        start=_words([sys.executable, "-m", "rota", "run", "--plain", *options, str(file)]),
        reload=_words([sys.executable, "-m", "rota", "reload", str(file)]),
        folder=_escaped(str(file.parent)),
        stop_s=SupervisorSettings().drain_s + STOP_MARGIN_S,
    )
    print_json({"unit": unit}) if as_json else say(unit, nl=False)


def print_web_unit(store: str, options: Sequence[str], *, ca_file: str | None) -> None:
    """Print a systemd unit that serves the dashboard of a store with these options."""
    from rota.cli.connection import is_file
    from rota.store import host_path, shown_address

    folder, address = Path.cwd(), store
    if store.startswith("unix:"):
        file = Path(store.removeprefix("unix:")).resolve()
        folder, address = file.parent, f"unix:{file}"
    elif is_file(store) or store.startswith("postgres"):
        folder, address = Path(host_path(store)).parent, shown_address(store)  # without a password
    trusted = [] if ca_file is None else ["--ca-file", str(Path(ca_file).resolve())]
    unit = WEB_UNIT.format(
        store=_escaped(address),
        start=_words([sys.executable, "-m", "rota", *trusted, "web", "--store", address, *options]),
        folder=_escaped(str(folder)),
    )
    say(unit, nl=False)


def _words(words: Sequence[str]) -> str:
    return _escaped(shlex.join(words))


def _escaped(text: str) -> str:
    """Return text in which systemd finds no placeholders."""
    return text.replace("%", "%%")

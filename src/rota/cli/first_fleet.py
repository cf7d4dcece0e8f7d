"""`rota init` writes a first fleet file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from rota.cli.options import FLEET_FILE, AsJson
from rota.cli.terminal_text import say

__all__ = ["init"]

FLEET = """\
# A fleet: what runs, how often, and on what share of the slots.
#
# `rota run --plan` prints what the file means; `rota reload` applies a change while the fleet runs.
# `rota docs reference/fleet` has every key; `rota run --schema` prints them as a JSON Schema, for editors.

store = "rota.db"                  # one SQLite file, beside this one
slots = 2                          # how many runs at a time

[projects.example]
weight = 1                         # its share of the slots while several projects have work
max_concurrent = 2

[agents.hello]
project = "example"
command = ["sh", "-c", "echo hello, this is entry $ROTA_SCHED_ID"]
limits = {wall_s = "30s"}          # a run that takes longer is stopped
restart = {attempts = 3}           # how often an entry is tried
triggers = [{on = "start"}]        # also: {every = "10m"}, {cron = "0 7 * * *"}, {after = "another agent"}

# A program that is given a task; enqueue it with: rota enqueue worker --payload '{"task": "read"}'
#
# [agents.worker]
# project = "example"
# command = ["python", "worker.py"]  # it reads the payload from standard input
# budget = {tokens = 100_000}        # a total; then it waits for `rota ledger grant worker tokens 200000`
"""


def init(
    folder: Annotated[Path, typer.Argument(help="The folder. It is created if it does not exist.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """Write a first fleet file, which works as it is, and print the next two commands.

    A file that exists is not overwritten.
    """
    from rota.cli.output import print_json
    from rota.errors import Conflict, InvalidInput

    path = folder / FLEET_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x") as file:
            file.write(FLEET)
    except FileExistsError as problem:
        raise Conflict(f"{path} exists already", hint=f"rota run {shlex.quote(str(path))}") from problem
    except OSError as problem:
        text = f"{path} cannot be written: {problem.strerror}"
        raise InvalidInput(text, field="folder", hint="Give another folder: rota init FOLDER.") from problem
    commands = _next_commands(folder)
    if as_json:
        print_json({"path": str(path), "next": commands})
        return
    say(f"wrote {path}")
    say("next:")
    for command in commands:
        say(f"  {command}")


def _next_commands(folder: Path) -> list[str]:
    """Return the commands that run the fleet once and show what its run printed."""
    if folder == Path():
        return ["rota run --until-idle", "rota logs 1"]
    fleet, store = shlex.quote(str(folder / FLEET_FILE)), shlex.quote(str(folder / "rota.db"))
    return [f"rota run --until-idle {fleet}", f"rota logs 1 --store {store}"]

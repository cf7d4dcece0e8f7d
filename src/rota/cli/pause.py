"""`rota pause` and `rota resume`: no more runs for a while."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from rota.cli.options import STORE, AsJson, By, Store

__all__ = ["pause", "resume"]

Level = Annotated[Literal["fleet", "agent", "project"], typer.Argument(help="Everybody, an agent or a project.")]
Whose = Annotated[str | None, typer.Argument(help="The agent's pid or name, or the project's id.")]


def pause(
    level: Level,
    whose: Whose = None,
    *,
    reason: Annotated[str | None, typer.Option("--reason", help="Why; the journal remembers.")] = None,
    by: By = "operator",
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Begin no more runs of an agent, of a project or at all. What runs, runs on."""
    from rota.cli.connection import open_desk
    from rota.cli.typed import pid_of

    key = _key(level, whose)
    with open_desk(store) as desk:
        if level == "fleet":
            desk.projects.pause_fleet(by, reason)
        elif level == "agent":
            key = str(pid_of(desk, key))
            desk.agents.pause(int(key), by, reason)
        else:
            desk.projects.move(key, "pause", by=by)
    _tell(level, key, "paused", as_json=as_json)


def resume(
    level: Level,
    whose: Whose = None,
    by: By = "operator",
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Lift the pause of an agent, of a project or of everybody."""
    from rota.cli.connection import open_desk
    from rota.cli.typed import pid_of

    key = _key(level, whose)
    with open_desk(store) as desk:
        if level == "fleet":
            desk.projects.resume_fleet(by)
        elif level == "agent":
            key = str(pid_of(desk, key))
            desk.agents.resume(int(key), by)
        else:
            desk.projects.move(key, "resume", by=by)
    _tell(level, key, "resumed", as_json=as_json)


def _key(level: str, whose: str | None) -> str:
    from rota.errors import InvalidInput

    if (level == "fleet") != (whose is None):
        text = "the fleet is everybody: name nobody" if level == "fleet" else f"say which {level}"
        raise InvalidInput(text, field="whose", hint=f"For example: rota pause {level}{' ID' * (level != 'fleet')}.")
    return whose or "*"


def _tell(level: str, key: str, done: str, *, as_json: bool) -> None:
    from rota.cli.output import print_json

    if as_json:
        print_json({"level": level, "key": key, "done": done})
    else:
        typer.echo(f"{done}: {level}{'' if level == 'fleet' else f' {key}'}")

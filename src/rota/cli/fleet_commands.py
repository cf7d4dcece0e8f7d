"""Commands about a fleet: run it, make it read its file again, show a demonstration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rota.cli.options import AsJson, Otel

__all__ = ["demo", "reload", "run"]


# other commands have this option, so it is tried here
StoreOfFile = Annotated[str | None, typer.Option("--store", "-s", help="Refused.", hidden=True)]


def _refuse_store(store: str | None) -> None:
    if store is not None:
        from rota.errors import InvalidInput
        from rota.store import without_password

        hint = f'Write store = "{without_password(store)}" at the top of the file.'
        raise InvalidInput("the store of a fleet is named in its file", field="store", hint=hint)


def run(
    fleet: Annotated[Path | None, typer.Argument(help="The fleet file. Default: fleet.toml.")] = None,
    *,
    plan: Annotated[bool, typer.Option("--plan", help="Print expected shares and budgets; run nothing.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of a fleet file.")] = False,
    print_unit: Annotated[bool, typer.Option("--print-unit", help="Print a systemd unit; run nothing.")] = False,
    slots: Annotated[int | None, typer.Option(help="Number of slots. Default: from the file.", min=1)] = None,
    worker_id: Annotated[
        str | None, typer.Option(help="The worker's name; a restart under it recovers its entries.")
    ] = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Exit when nothing is left to wait for; 1 if anything failed.")
    ] = False,
    horizon: Annotated[
        str | None,
        typer.Option("--horizon", help="With --until-idle: wait for entries due within 90s, 5m. Default: 60s."),
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Print log lines instead of the live view.")] = False,
    otel: Otel = False,
    as_json: AsJson = False,
    store: StoreOfFile = None,
) -> None:
    """Run the agents of a fleet file."""
    _refuse_store(store)
    if schema:
        from rota.cli.fleet_plan import print_schema

        print_schema()
    elif print_unit:
        from rota.cli.run import find_fleet_file
        from rota.cli.systemd_units import print_fleet_unit

        given = {"--slots": slots, "--worker-id": worker_id}
        options = [word for name, value in given.items() if value is not None for word in (name, str(value))]
        options += ["--otel"] if otel else []
        print_fleet_unit(find_fleet_file(fleet), options, as_json=as_json)
    elif plan:
        from rota.cli.fleet_plan import print_plan
        from rota.cli.run import find_fleet_file

        print_plan(find_fleet_file(fleet), as_json=as_json)
    else:
        from rota.cli.run import print_summary
        from rota.cli.run import run as supervise

        summary = supervise(
            fleet, until_idle=until_idle, horizon=horizon, plain=plain, otel=otel, slots=slots, worker_id=worker_id
        )
        print_summary(summary, as_json=as_json)
        if until_idle and not summary.ok:
            raise typer.Exit(1)


def reload(
    fleet: Annotated[Path | None, typer.Argument(help="The fleet file. Default: fleet.toml.")] = None,
    as_json: AsJson = False,
    store: StoreOfFile = None,
) -> None:
    """Make a running fleet read its file again.

    Runs in progress continue.
    """
    _refuse_store(store)
    from rota.cli.run import reload as request_reload

    request_reload(fleet, as_json=as_json)


def demo(
    seconds: Annotated[float, typer.Option(min=1.0, max=3600.0, help="How long to run, in seconds.")] = 50.0,
    policy: Annotated[str, typer.Option(help="The policy; see `rota policy list`.")] = "eevdf",
    as_json: AsJson = False,
) -> None:
    """Demonstrate shares, budgets and recovery. About a minute."""
    from rota.cli.demo import show

    if not show(seconds=seconds, policy=policy, as_json=as_json):
        raise typer.Exit(1)

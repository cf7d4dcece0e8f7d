"""`rota cpu …`: scheduling on cores, simulated or with real processes. Heavy imports wait until a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from rota.cli.options import STORE, AsJson, Store

__all__ = ["cpu"]

cpu = typer.Typer(help="Schedule CPU cores, simulated or with real processes.", no_args_is_help=True)


@cpu.command("sim")
def cpu_sim(  # noqa: PLR0917  # each is an option of the command line
    scenario: Annotated[Path, typer.Argument(help="A scenario file (TOML).")],
    policy: Annotated[str | None, typer.Option(help="eevdf, wfq, round_robin, or any of `rota policy list`.")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed; default: the scenario's.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a drawing of the run to this SVG file.")] = None,
    plot_ms: Annotated[int, typer.Option(help="How many ms from the beginning to draw.", min=1)] = 200,
    policy_isolation: Annotated[
        Literal["thread", "process"], typer.Option(help="Where a policy of another package runs.")
    ] = "thread",
    arrange_us: Annotated[int, typer.Option(help="How often a registered policy ranks, in us.", min=1)] = 3_000,
    as_json: AsJson = False,
) -> None:
    """Simulate a scenario and print shares, lag and latencies."""
    from rota.cli.cpu_sim import PlotOptions, PolicyOptions, simulate

    options = None if plot is None else PlotOptions(plot, plot_ms)
    chosen = None if policy is None else PolicyOptions(policy, policy_isolation, arrange_us)
    simulate(scenario, policy=chosen, seed=seed, plot=options, as_json=as_json)


@cpu.command("run")
def cpu_run(  # noqa: PLR0917  # each is an option of the command line
    commands: Annotated[list[str], typer.Argument(help="Commands separated by a lone +, named a, b, c …")],
    weight: Annotated[list[str] | None, typer.Option(help="The weight of a command: a=3. Default: 1.")] = None,
    quota: Annotated[
        list[str] | None, typer.Option("--quota", "--budget", help="CPU time per period: a=20ms/100ms.")
    ] = None,
    lease: Annotated[list[str] | None, typer.Option(help="Cores that one command has alone: a=1 is core 1.")] = None,
    latency_class: Annotated[
        list[str] | None, typer.Option("--class", help="The length of time slices: a=batch, a=sensitive.")
    ] = None,
    realtime: Annotated[list[str] | None, typer.Option(help="Kernel policy: a=fifo:10, a=deadline:20/100.")] = None,
    cores: Annotated[str | None, typer.Option(help="The cores to use: 0-1. Default: all allowed.")] = None,
    for_s: Annotated[
        float | None, typer.Option("--for", help="End all commands after this many seconds.", min=0)
    ] = None,
    on_loss: Annotated[
        Literal["kill", "continue"],
        typer.Option(help="What becomes of the commands if rota is killed; they stay limited in any case."),
    ] = "kill",
    groups: Annotated[
        bool, typer.Option("--groups/--no-groups", help="Use control groups; else niceness and signals.")
    ] = True,
    logs: Annotated[
        Path | None, typer.Option(help="A folder for what the commands write. Default: standard error.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run commands with weights, quotas and leases on real cores."""
    from rota.cli.cpu_run import RunOptions, run

    options = RunOptions(
        weights=weight or (),
        quotas=quota or (),
        leases=lease or (),
        classes=latency_class or (),
        realtime=realtime or (),
        cores=cores,
        for_s=for_s,
        on_loss=on_loss,
        groups=groups,
        logs=logs,
    )
    run(commands, options, as_json=as_json)


@cpu.command("status")
def cpu_status(store: Store = STORE, as_json: AsJson = False) -> None:
    """Show what runs were granted of the cores of each host: leases, reserved time, islands, budgets of CPU time."""
    from rota.cli.cpu_status import show_status

    show_status(store, as_json=as_json)

"""`rota cpu …`: scheduling on cores, simulated or with real processes. Heavy imports wait until a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from rota.cli.options import AsJson

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
    budget: Annotated[list[str] | None, typer.Option(help="The CPU time per period, in ms: a=20/100.")] = None,
    lease: Annotated[list[str] | None, typer.Option(help="An exclusive core; needs a budget: a=1.")] = None,
    realtime: Annotated[list[str] | None, typer.Option(help="Kernel policy: a=fifo:10, a=deadline:20/100.")] = None,
    cores: Annotated[str | None, typer.Option(help="The cores to use: 0,1. Default: all allowed.")] = None,
    slice_ms: Annotated[int, typer.Option(help="The length of a time slice.", min=1, max=100)] = 10,
    for_s: Annotated[
        float | None, typer.Option("--for", help="End all commands after this many seconds.", min=0)
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Write every event and decision to this file.")] = None,
    freezer: Annotated[bool, typer.Option(help="Stop commands by control groups if available.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run commands in time slices on real cores."""
    from rota.cli.cpu_run import RunOptions, run

    options = RunOptions(
        weights=weight or (),
        budgets=budget or (),
        leases=lease or (),
        realtime=realtime or (),
        cores=cores,
        slice_ms=slice_ms,
        for_s=for_s,
        freezer=freezer,
        trace=trace,
    )
    run(commands, options, as_json=as_json)

"""`rota cpu …`: cores, simulated or for real. Heavy imports wait until a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rota.cli.options import AsJson

__all__ = ["cpu"]

cpu = typer.Typer(help="Cores: who runs on them, simulated or for real.", no_args_is_help=True)


@cpu.command("sim")
def cpu_sim(  # noqa: PLR0917  # each is an option of the command line
    scenario: Annotated[Path, typer.Argument(help="A scenario file (TOML).")],
    policy: Annotated[str | None, typer.Option(help="eevdf, wfq, round_robin, or any of `rota policy list`.")] = None,
    seed: Annotated[int | None, typer.Option(help="Draw from this seed instead of the scenario's.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw who ran when, and lag, into this SVG file.")] = None,
    plot_ms: Annotated[int, typer.Option(help="Draw so much of the beginning.", min=1)] = 200,
    arrange_us: Annotated[int, typer.Option(help="How often another policy is asked.", min=1)] = 3_000,
    as_json: AsJson = False,
) -> None:
    """Simulate cores in virtual time and print shares, lag, latencies, misses, switches and migrations."""
    from rota.cli.cpu import Drawing, simulate

    drawing = None if plot is None else Drawing(plot, plot_ms)
    simulate(scenario, policy=policy, arrange_us=arrange_us, seed=seed, drawing=drawing, as_json=as_json)


@cpu.command("run")
def cpu_run(  # noqa: PLR0917  # each is an option of the command line
    commands: Annotated[list[str], typer.Argument(help="Commands, separated by a lone +; they are named a, b, c …")],
    weight: Annotated[list[str] | None, typer.Option(help="A share: a=3. Others have 1.")] = None,
    budget: Annotated[list[str] | None, typer.Option(help="At most so many ms per period in ms: a=20/100.")] = None,
    lease: Annotated[list[str] | None, typer.Option(help="A core for one that has a budget alone: a=1.")] = None,
    realtime: Annotated[list[str] | None, typer.Option(help="If allowed: a=fifo:10, a=deadline:20/100.")] = None,
    cores: Annotated[str | None, typer.Option(help="Use these cores only: 0,1.")] = None,
    slice_ms: Annotated[int, typer.Option(help="How long a turn is.", min=1, max=100)] = 10,
    for_s: Annotated[float | None, typer.Option("--for", help="End everything after so many seconds.", min=0)] = None,
    trace: Annotated[Path | None, typer.Option(help="Write every event and decision into this file.")] = None,
    freezer: Annotated[bool, typer.Option(help="Stop commands by control groups where they can.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run commands in turns on real cores, by weight and budget, and print what each had."""
    from rota.cli.cpu_run import Wishes, run

    wishes = Wishes(
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
    run(commands, wishes, as_json=as_json)

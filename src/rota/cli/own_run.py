"""Commands for the programs that rota runs: what a run reports about itself.

They find their run in the environment that the supervisor gave it: ROTA_SCHED_ID and ROTA_TOKEN name the run and its
claim, ROTA_STORE is the address of the daemon or of the supervisor's own socket, and ROTA_ACCESS_TOKEN lets the program
act for this run only.

While the store cannot be reached, they wait as the supervisor does (service/outages.py), for up to an hour: what a run
has used must not be lost because its database was restarted. A call that may have been executed is made again only if
executing it twice has the effect of once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import typer

from rota.cli.options import STORE, AsJson
from rota.cli.terminal_text import say

__all__ = [
    "OwnStore",
    "call_in_run",
    "charge",
    "checkpoint",
    "complete",
    "emit",
    "heartbeat",
    "own_run",
    "progress",
]

T = TypeVar("T")

OwnStore = Annotated[
    str | None,
    typer.Option(
        "--store", "-s", envvar="ROTA_STORE", help="The store: a file, postgresql://…, or a daemon's address."
    ),
]
STOP = 1  # exit code of `heartbeat`: the run was asked to stop


class OwnRun(NamedTuple):
    """The run that this program belongs to."""

    store: str
    sched_id: int
    token: int


def own_run(store: str | None) -> OwnRun:
    """Return this program's run, from its environment."""
    from rota.errors import InvalidInput, NotEnabled

    sched_id, token = os.environ.get("ROTA_SCHED_ID", ""), os.environ.get("ROTA_TOKEN", "")
    if not (sched_id.isdecimal() and token.isdecimal()):
        hint = "The supervisor sets ROTA_SCHED_ID and ROTA_TOKEN for the programs that it runs."
        raise InvalidInput("this command works only inside a run", field="ROTA_SCHED_ID", hint=hint)
    if store is None:  # never the default file: it may be another store, with an entry of the same number
        hint = "Give the store's file with --store, or do not clear the environment of the program."
        raise NotEnabled("the store of this run is not known: ROTA_STORE is not set", hint=hint)
    return OwnRun(store, int(sched_id), int(token))


def call_in_run(store: str, call: Callable[[Any], T], *, repeats: bool = False) -> T:
    """Make a call at a run's store; wait while that cannot be reached. `repeats`: the call may be executed twice."""
    from rota.cli.connection import open_api
    from rota.cli.outages import call_and_say_outage
    from rota.clock import SystemClock
    from rota.errors import StoreMissing

    is_missing = False

    def open_and_call() -> T:
        nonlocal is_missing
        try:
            with open_api(store) as api:
                return call(api)
        except StoreMissing:  # waiting does not bring it back
            is_missing = True
            raise

    return call_and_say_outage(SystemClock(), open_and_call, lambda: is_missing, repeats=repeats, prefix="rota: ")


def charge(
    amounts: Annotated[list[str], typer.Argument(help="What was used: tokens=500 usd=0.02.")],
    model: Annotated[
        str | None,
        typer.Option("--model", help="The model. input_tokens=400 output_tokens=100 then cost its price."),
    ] = None,
    store: OwnStore = None,
    as_json: AsJson = False,
) -> None:
    """Inside a run: record what it used.

    Prints the agent's budget in each of these dimensions that has one.
    """
    from rota.cli import arguments
    from rota.cli.output import print_json, print_table
    from rota.model import amount_text, priced
    from rota.service import new_charge_key

    run = own_run(store)
    prices = {} if model is None else call_in_run(run.store, lambda api: api.usage.prices(), repeats=True)
    found = priced(arguments.amounts(amounts, "amounts"), model, prices)
    key = new_charge_key()  # so that it counts once, however often it is made
    lines = call_in_run(
        run.store,
        lambda api: api.queue.charge(run.sched_id, found.amounts, token=run.token, model=model, key=key),
        repeats=True,
    )
    if found.advisory is not None:
        say(f"rota: {found.advisory}", err=True)
    if as_json:
        print_json({"lines": {dim: line._asdict() for dim, line in lines.items()}})
    elif lines:
        rows = [
            (dim, amount_text(dim, line.used), amount_text(dim, line.hard_limit), line.over_limit)
            for dim, line in lines.items()
        ]
        print_table(("dimension", "used", "limit", "over the limit"), rows, empty="")


def checkpoint(
    state: Annotated[str, typer.Argument(help="A JSON object for the next attempt.")],
    store: OwnStore = None,
    as_json: AsJson = False,
) -> None:
    """Inside a run: save its state for the next attempt, which finds it in ROTA_CHECKPOINT."""
    from rota.cli import arguments
    from rota.cli.output import print_json

    run = own_run(store)
    saved = arguments.json_object(state, "state")
    call_in_run(run.store, lambda api: api.supervision.checkpoint(run.sched_id, run.token, saved), repeats=True)
    if as_json:
        print_json({"sched_id": run.sched_id})


def progress(
    fraction: Annotated[str, typer.Argument(help="How far it is: 40% or 0.4.")],
    text: Annotated[str, typer.Argument(help="What it is doing, for people.")] = "",
    store: OwnStore = None,
    as_json: AsJson = False,
) -> None:
    """Inside a run: report how far it is."""
    from rota.cli.output import print_json
    from rota.errors import InvalidInput

    run = own_run(store)
    try:
        amount = float(fraction.removesuffix("%")) / (100 if fraction.endswith("%") else 1)
    except ValueError:
        amount = -1.0
    if not 0 <= amount <= 1:
        raise InvalidInput(
            f"progress must be from 0% to 100%, not {fraction!r}", field="fraction", hint="rota progress 40%"
        )
    event_id = call_in_run(
        run.store, lambda api: api.supervision.progress(run.sched_id, run.token, amount, text), repeats=True
    )
    if as_json:
        print_json({"event_id": event_id})


def heartbeat(store: OwnStore = None, as_json: AsJson = False) -> None:
    """Inside a run: extend its claim; exit with 1 if it was asked to stop.

    Not required: the supervisor extends the claim of every run that it started.
    """
    from rota.cli.output import print_json

    run = own_run(store)
    reply = call_in_run(run.store, lambda api: api.queue.heartbeat(run.sched_id, run.token), repeats=True)
    if as_json:
        print_json({"claim_expires_at": reply.claim_expires_at, "cancel_requested": reply.cancel_requested})
    elif reply.cancel_requested:
        say(f"entry {run.sched_id} was asked to stop")
    if reply.cancel_requested:
        raise typer.Exit(STOP)


def emit(
    kind: Annotated[str, typer.Argument(help="The kind of event; kernel.* is reserved.")],
    payload: Annotated[str, typer.Option("--payload", "-p", help="A JSON object.")] = "{}",
    *,
    agent: Annotated[
        str | None, typer.Option("--agent", help="The agent it is about, by pid or name. Inside a run: the run's.")
    ] = None,
    store: OwnStore = None,
    as_json: AsJson = False,
) -> None:
    """Append an event of your own to the journal, and print its id.

    Triggers and hooks may wait for it. Inside a run the event is about the run's agent.
    """
    from rota.cli import arguments
    from rota.cli.connection import open_api
    from rota.cli.output import print_json

    body = arguments.json_object(payload, "payload")
    run = own_run(store) if agent is None and "ROTA_SCHED_ID" in os.environ else None

    def append(api: Any) -> int:
        pid = api.queue.get(run.sched_id).pid if run is not None else None
        pid = arguments.pid_of(api, agent) if agent is not None else pid
        return int(api.journal.append(pid, kind, body))

    if run is not None:
        event_id = call_in_run(run.store, append)
    else:
        with open_api(store or STORE) as api:
            event_id = append(api)
    print_json({"event_id": event_id}) if as_json else say(event_id)


def complete(
    exit_kind: Annotated[
        Literal["completed", "failed", "crashed", "cancelled"], typer.Argument(help="How the run ended.")
    ] = "completed",
    *,
    result: Annotated[str | None, typer.Option("--result", help="The result, as JSON.")] = None,
    outcome: Annotated[str | None, typer.Option("--outcome", help="A more specific outcome.")] = None,
    store: OwnStore = None,
    as_json: AsJson = False,
) -> None:
    """Inside a run: end it now, with a result.

    Without this, a program's run ends when the program does. After it, the program may change nothing any more, and the
    supervisor stops it.
    """
    from rota.cli import arguments
    from rota.cli.output import print_json

    run = own_run(store)
    value = None if result is None else arguments.json_value(result, "result")
    before, after = call_in_run(
        run.store,
        lambda api: api.queue.complete(run.sched_id, exit_kind, token=run.token, result=value, outcome=outcome),
    )
    if as_json:
        print_json({"before": before, "after": after})
    else:
        say(f"entry {run.sched_id} is {after}")

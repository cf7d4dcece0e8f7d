"""Commands for programs inside a run: acquire from a shared limit, and settle what was used.

    key=$(rota acquire openai tokens=900 requests=1) && call-the-model && rota settle "$key" tokens=750

They find their run as the commands of own_run.py do.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from rota.cli.options import AsJson
from rota.cli.own_run import OwnStore, call_in_run, own_run
from rota.cli.terminal_text import say

if TYPE_CHECKING:
    from rota.service import SchedulerApi

__all__ = ["acquire", "settle"]

SLICE_S = 5.0  # one wait; then look whether the run was asked to stop
STOPPED = 1  # exit code: the run was asked to stop while it waited


def acquire(
    name: Annotated[str, typer.Argument(help="The name of the limit.")],
    amounts: Annotated[list[str], typer.Argument(help="What is needed: tokens=900 requests=1.")],
    *,
    wait: Annotated[str | None, typer.Option("--wait", help="Give up after 90s, 5m. Default: never.")] = None,
    store: OwnStore = None,
    as_json: AsJson = False,
) -> None:
    """Inside a run: wait until a shared limit has what is needed, and print the key to settle it with.

    Exits with 1 if the run is asked to stop meanwhile.
    """
    import secrets

    from rota.cli import arguments
    from rota.cli.connection import open_api
    from rota.cli.output import print_json
    from rota.errors import WaitTimeout

    where, sched_id, token = own_run(store)
    wanted, key = arguments.amounts(amounts, "amounts"), secrets.token_hex(8)
    left_s = None if wait is None else arguments.seconds(wait, "wait")
    is_granted = is_stopped = False

    def ask(slice_s: float, api: SchedulerApi) -> tuple[bool, bool]:
        """Wait a while; return whether it was granted, else whether the run was asked to stop."""
        if api.supervision.acquire(sched_id, token, name, wanted, key=key, wait_s=slice_s).granted_at is not None:
            return True, False
        return False, api.queue.get(sched_id).cancel_requested

    try:
        while not is_granted:
            slice_s = SLICE_S if left_s is None else max(0.0, min(left_s, SLICE_S))
            is_granted, is_stopped = call_in_run(where, partial(ask, slice_s), repeats=True)
            left_s = None if left_s is None else left_s - slice_s
            if not is_granted and left_s is not None and left_s <= 0:
                raise WaitTimeout(f"the limit {name} did not have what was asked within {wait}", sched_id=sched_id)
            if is_stopped:
                raise typer.Exit(STOPPED)
    finally:
        if not is_granted:  # give up the place
            with open_api(where) as api:
                api.supervision.settle(sched_id, token, key, dict.fromkeys(wanted, 0))
    print_json({"key": key, "name": name, "amounts": wanted}) if as_json else say(key)


def settle(
    key: Annotated[str, typer.Argument(help="What `rota acquire` printed.")],
    used: Annotated[list[str] | None, typer.Argument(help="What was used: tokens=750. Default: as acquired.")] = None,
    store: OwnStore = None,
    as_json: AsJson = False,
) -> None:
    """Inside a run: record what was used of what it acquired; the limit gets the rest back."""
    from rota.cli import arguments
    from rota.cli.output import print_json

    where, sched_id, token = own_run(store)
    amounts = arguments.amounts(used or [], "used")
    settled = call_in_run(where, lambda api: api.supervision.settle(sched_id, token, key, amounts), repeats=True)
    if as_json:
        print_json(settled)

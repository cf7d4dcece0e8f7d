"""`rota policy`: the policies there are, and the one in force on a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rota.cli.options import STORE, AsJson, By, Store

if TYPE_CHECKING:
    from rota.model import PolicyInForce

__all__ = ["policy"]

policy = typer.Typer(help="The policies that decide which entry runs next.", no_args_is_help=True)


@policy.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the policies with their order and waiting bound."""
    from rota.cli.output import print_json, print_table
    from rota.policy import descriptions

    found = descriptions()
    if as_json:
        print_json([{"name": each.name, "sentence": each.sentence, "bound": each.bound} for each in found])
        return
    table = [(each.name, each.sentence, each.bound or "none: it can starve") for each in found]
    print_table(("policy", "order", "waiting bound"), table, empty="no policies")


@policy.command()
def show(store: Store = STORE, as_json: AsJson = False) -> None:
    """Show the policy in force on a store, who set it, and what sharing counts."""
    from rota.cli.connection import open_api

    with open_api(store) as api:
        _print(api.policies.get(), as_json=as_json)


@policy.command("set")
def set_(
    name: Annotated[
        str | None, typer.Argument(help="The policy; `default` forgets the one that was set.", show_default=False)
    ] = None,
    *,
    param: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A parameter of the policy, in JSON; repeatable.")
    ] = None,
    share_by: Annotated[
        Literal["tokens", "cost", "cpu", "gpu", "seconds"] | None,
        typer.Option(help="What sharing counts. A new choice restarts all shares."),
    ] = None,
    isolation: Annotated[
        Literal["thread", "process"], typer.Option(help="Where a policy of another package runs.")
    ] = "thread",
    by: By = "operator",
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Set the policy of a store for all its supervisors and workers."""
    from rota.cli.arguments import policy_params
    from rota.cli.connection import open_api
    from rota.errors import InvalidInput

    if name is None and share_by is None:
        raise InvalidInput(
            "name a policy, or give --share-by", field="name", hint="`rota policy list` shows the names."
        )
    params = policy_params(tuple(param or ()))
    with open_api(store, create=True) as api:
        made = api.policies.set(name, params, isolation=isolation, share_by=share_by, by=by)
    _print(made, as_json=as_json)


def _print(in_force: PolicyInForce, *, as_json: bool) -> None:
    from rota.cli.output import console, print_json

    if as_json:
        print_json(in_force)
        return
    output = console()
    output.print(f"policy    {in_force.sentence()}", markup=False)
    set_by = "the default" if in_force.share_by_set_by is None else f"set by {in_force.share_by_set_by}"
    output.print(f"share by  {in_force.share_by}, {set_by}", markup=False)

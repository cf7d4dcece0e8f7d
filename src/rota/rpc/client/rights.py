"""What a client may do, as far as its server says it when they meet.

The server decides about every call. This only decides what to offer: buttons on a page, tools for an agent.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rota.rpc.methods import METHODS, PROTOCOL, SCOPES, Scope
from rota.rpc.server_api import Hello
from rota.store.author import process_user

__all__ = ["CallerRights", "rights_of"]


class CallerRights(msgspec.Struct, frozen=True):
    """What a caller may do, as the declarations of the methods say it."""

    scope: Scope = "admin"
    projects: tuple[str, ...] | None = None  # None: all
    is_run: bool = False  # it shows a run's own token
    caller: str = ""  # as the journal names it

    def allow(self, name: str, *fields: str) -> bool:
        """Return whether they include a method, and setting these of its fields; the rest only the call shows."""
        method = METHODS[name]
        is_for_bound = method.bound is not None and method.bound.allowed
        if self.is_run:
            return method.run not in (None, "refused") and (method.run != "view" or is_for_bound)
        scopes: set[Scope] = {method.scope} | ({"operate"} if set(fields) & set(method.operate_fields) else set())
        rank = SCOPES.index(self.scope)
        return all(rank >= SCOPES.index(scope) for scope in scopes) and (is_for_bound or self.projects is None)


def rights_of(api: Any, client: str, *, is_run: bool = False) -> CallerRights:
    """Ask a daemon what this caller may do; a program that opened the store itself may do everything."""
    if not hasattr(api, "server"):
        return CallerRights(caller=process_user())
    hello: Hello = api.server.hello(PROTOCOL, client)
    scope = next(scope for scope in SCOPES if scope == hello.scope)
    return CallerRights(scope, hello.projects, is_run, hello.caller)

"""Declaring a method of the scheduler API.

A method is declared once, as a function of a protocol:

    class QueueApi(Protocol):
        @method("kernel.sched.cancel", scope="enqueue", execution="write", bound=owned("sched_id"), run="own_or_child")
        def cancel(self, sched_id: int) -> tuple[str, str]:
            \"\"\"Cancel a queued entry.\"\"\"
            ...

The signature gives the parameters with their types and defaults, and the type of the result; the docstring's first
sentence describes the method. The kernel's classes implement the protocols. The daemon, both clients, `rpc.discover`,
the reference page and the command line are made from the declarations.

Scopes are ordered, and each includes the ones before it. `read` reads; `enqueue` enqueues and cancels entries; `work`
claims, runs, charges and reports; `operate` changes what other callers do, and which programs run; `admin` manages
access tokens.

Two more kinds of callers have a part of these rights, and every method declares which part; a method that does not is
refused to them. `bound`: a caller whose token is bound to projects. `run`: a run with its own token, which is bound to
its project and in addition may act for itself. What belongs to other projects does not exist for either of them.

The daemon's event loop must not block, so each method declares its execution:
- `read`: reads one consistent snapshot, and never waits
- `write`: one commit, shared with other writes of the same moment
- `claim`: a write that may wait for entries to claim
- `park`: a write that may wait, up to its `wait_s`, until its result is granted
- `multi_commit`: several commits in a row; other writes may come in between
- `dry_run`: makes changes and rolls them back, so it holds the write lock meanwhile
- `wait`: reads, and waits for a change
- `inline`: answered by the server in its event loop, without the kernel
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from rota.errors import RotaError

__all__ = [
    "REFUSED",
    "SCOPES",
    "BoundRule",
    "Declaration",
    "Execution",
    "RunRule",
    "Scope",
    "declaration_of",
    "declarations",
    "method",
    "own_reads",
    "owned",
    "unfiltered",
    "viewed",
]

Scope: TypeAlias = Literal["read", "enqueue", "work", "operate", "admin"]
SCOPES: tuple[Scope, ...] = ("read", "enqueue", "work", "operate", "admin")
Execution: TypeAlias = Literal["read", "write", "claim", "park", "multi_commit", "dry_run", "wait", "inline"]

# What a run may do with a method: nothing; what concerns its own run; enqueue children of its own run; what concerns
# its own entry or such a child; the same as other callers that are bound to its project.
RunRule: TypeAlias = Literal["refused", "own", "children", "own_or_child", "view"]

Function = TypeVar("Function", bound=Callable[..., Any])
_ATTRIBUTE = "__rota_method__"


class BoundRule(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller that is bound to projects may do with a method."""

    allowed: bool = True
    reason: str = ""  # why nothing needs to be taken out of the result
    owned: tuple[str, ...] = ()  # parameters that must name something of its projects; anything else is an unknown id
    view: str = ""  # the function of `rpc/project_views.py` that takes out of the result what is not of its projects
    reads: str = ""  # the function of `kernel/project_reads.py` that is called instead, and reads its projects only


REFUSED = BoundRule(allowed=False)


def unfiltered(reason: str) -> BoundRule:
    """Allowed, and the result is passed on whole: it holds nothing of a project, for this reason."""
    return BoundRule(reason=reason)


def owned(*parameters: str, view: str = "") -> BoundRule:
    """Allowed if these parameters name something of the caller's projects."""
    return BoundRule(owned=parameters, view=view)


def viewed(view: str) -> BoundRule:
    """Allowed; the view takes out of the result what is not of the caller's projects."""
    return BoundRule(view=view)


def own_reads(function: str) -> BoundRule:
    """Allowed; this function reads the caller's projects only. For pages and counts, which a view cannot correct."""
    return BoundRule(reads=function)


class Declaration(msgspec.Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """What is declared about a method."""

    name: str  # on the wire
    function: Callable[..., Any]  # of the protocol: its signature and its docstring
    scope: Scope
    execution: Execution
    result: str | tuple[str, ...]  # the result's field or fields on the wire; empty: those of the returned structure
    errors: tuple[type[RotaError], ...]  # in addition to those that every method may raise
    operate_fields: tuple[str, ...]  # parameters that need scope `operate` unless they have their default
    retry_safe: bool  # may be sent again when the response was lost: it changes nothing, or nothing more
    takes_struct: bool  # its one argument is a structure; the structure's fields are the parameters on the wire
    command: str  # of the command line that calls it; empty: none
    bound: BoundRule | None  # None: not declared, and so refused
    run: RunRule | None  # the same
    audited: bool  # a call that needs `operate` or `admin` is recorded in the journal

    @property
    def verb(self) -> str:
        """The function's name."""
        return self.function.__name__

    @property
    def summary(self) -> str:
        """One sentence about the method."""
        return " ".join((self.function.__doc__ or "").strip().split("\n\n", 1)[0].split())


def method(
    name: str,
    *,
    scope: Scope,
    execution: Execution,
    result: str | tuple[str, ...] = "",
    errors: tuple[type[RotaError], ...] = (),
    operate_fields: tuple[str, ...] = (),
    retry_safe: bool | None = None,
    takes_struct: bool = False,
    command: str = "",
    bound: BoundRule | None = None,
    run: RunRule | None = None,
    audited: bool = True,
) -> Callable[[Function], Function]:
    """Declare a protocol's function as a method. Methods that only read are safe to retry unless declared otherwise."""

    def declare(function: Function) -> Function:
        declaration = Declaration(
            name=name,
            function=function,
            scope=scope,
            execution=execution,
            result=result,
            errors=errors,
            operate_fields=operate_fields,
            retry_safe=execution in ("read", "wait") if retry_safe is None else retry_safe,
            takes_struct=takes_struct,
            command=command,
            bound=bound,
            run=run,
            audited=audited,
        )
        setattr(function, _ATTRIBUTE, declaration)
        return function

    return declare


def declaration_of(function: Callable[..., Any]) -> Declaration | None:
    """Return the declaration of a protocol's function, if it has one."""
    declaration: Declaration | None = getattr(function, _ATTRIBUTE, None)
    return declaration


def declarations(protocol: type) -> list[Declaration]:
    """Return the methods that a protocol declares, in order."""
    found = (declaration_of(member) for member in vars(protocol).values() if callable(member))
    return [declaration for declaration in found if declaration is not None]

"""Declaring a tool: a function of a caller and of its typed arguments, with a typed result.

    @tool(uses=("kernel.sched.show",))
    def show_work(caller: Caller, asked: ShowWork) -> EntryDetail:
        \"\"\"Show everything about one entry.\"\"\"

The second argument's type gives the input schema, the returned type the output schema, the docstring the description
that the model reads. `uses` names the methods that the tool calls; a caller is offered a tool if it may call them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, get_type_hints

import msgspec

from rota.decoding import convert
from rota.errors import Forbidden, InvalidInput
from rota.mcp.callers import Caller

__all__ = ["Tool", "refusal", "said", "tool"]

Function = TypeVar("Function", bound=Callable[[Caller, Any], Any])
_ALLOW = "Start the server with `rota mcp --allow-write`."
_RIGHTS = "Use a token with more rights (`rota token create --help`); `rota docs rights` lists what each may do."


def said(description: str) -> msgspec.Meta:
    """Describe a field, for the model that fills it in or reads it."""
    return msgspec.Meta(description=description)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tool:
    """A tool that a server may offer."""

    name: str
    about: str
    function: Callable[[Caller, Any], Any]
    uses: tuple[str, ...]
    writes: bool
    is_idempotent: bool
    needs_run: bool

    @property
    def title(self) -> str:
        """The name as people read it."""
        return self.name.replace("_", " ").capitalize()

    @cached_property
    def arguments(self) -> type[msgspec.Struct]:
        """The type of the arguments."""
        (hint,) = [hint for name, hint in get_type_hints(self.function).items() if name not in ("caller", "return")]
        return hint  # type: ignore[no-any-return]  # a structure

    @cached_property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments."""
        return _object_schema(self.arguments)

    @cached_property
    def output_schema(self) -> dict[str, Any]:
        """The JSON Schema of the result."""
        return _object_schema(get_type_hints(self.function)["return"])

    def call(self, caller: Caller, given: dict[str, Any]) -> dict[str, Any]:
        """Check the arguments, call the function and return its result as plain data."""
        try:
            asked = convert(given, self.arguments)
        except msgspec.ValidationError as problem:
            names = ", ".join(field.name for field in msgspec.structs.fields(self.arguments)) or "no arguments"
            hint = f"{self.name} takes {names}; its input schema says of which types."
            raise InvalidInput(f"{self.name}: {problem}", hint=hint) from problem
        result: dict[str, Any] = msgspec.to_builtins(self.function(caller, asked))
        return result


def tool(
    *, uses: tuple[str, ...], writes: bool = False, is_idempotent: bool = False, needs_run: bool = False
) -> Callable[[Function], Tool]:
    """Declare a function as a tool."""

    def declare(function: Function) -> Tool:
        about = "\n\n".join(" ".join(part.split()) for part in (function.__doc__ or "").strip().split("\n\n"))
        return Tool(
            name=function.__name__,
            about=about,
            function=function,
            uses=uses,
            writes=writes,
            is_idempotent=is_idempotent,
            needs_run=needs_run,
        )

    return declare


def refusal(wanted: Tool, caller: Caller) -> Forbidden | None:
    """Return why a tool is not offered to a caller; None if it is."""
    if wanted.writes and not caller.may_write:
        return Forbidden(f"{wanted.name} changes something, and this server only reads", hint=_ALLOW)
    if wanted.needs_run and caller.run is None:
        text = f"{wanted.name} acts for the run that calls it, and this caller is no run"
        return Forbidden(text, hint="It works in programs that rota runs: they have a token of their own.")
    missing = [name for name in wanted.uses if not caller.rights.allow(name)]
    if missing:
        return Forbidden(f"{wanted.name} needs {missing[0]}, which this caller may not call", hint=_RIGHTS)
    return None


def _object_schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON Schema of a structure, with the object itself at the top as the protocol requires."""
    (top,), named = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    whole = dict(named.pop(top["$ref"].rpartition("/")[2]))
    return {**whole, "$defs": named} if named else whole

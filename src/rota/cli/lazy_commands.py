"""A group whose commands are made when they are used.

typer reads the signature of every command that is registered with it, which takes longer than a short command itself.
So the group knows only which module has which command, and imports one when it is called or its help is asked for.
`rota --help` imports all of them, but reads only their sentences.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

__all__ = ["lazy_group"]


def lazy_group(package: str, table: Mapping[str, str]) -> type[TyperGroup]:
    """Return the class of a group with these commands.

    The table maps a command's name to its module in the package, and after a colon to its name there if that differs.
    """

    class LazyGroup(TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            self.commands: MutableMapping[str, Any] = _Commands(package, table)

        def list_commands(self, ctx: Any) -> list[str]:
            """Return the names, in the table's order."""
            del ctx
            return list(self.commands)

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            """Write the commands with their first sentences, for the help of the group."""
            del ctx
            limit = formatter.width - 6 - max(map(len, table))
            bare = [TyperCommand(name, help=_help(_load(package, table, name))) for name in table]
            with formatter.section("Commands"):
                formatter.write_dl([(str(each.name), each.get_short_help_str(limit)) for each in bare])

    return LazyGroup


class _Commands(MutableMapping[str, Any]):
    """The commands by name; one is made when it is first looked up."""

    def __init__(self, package: str, table: Mapping[str, str]) -> None:
        self._package, self._table = package, dict(table)
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _make(name, _load(self._package, self._table, name))
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._table.setdefault(name, "")
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._table[name]
        self._made.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


def _load(package: str, table: Mapping[str, str], name: str) -> Any:
    """Import the function or the group of a command."""
    module, _, attribute = table[name].partition(":")
    return getattr(importlib.import_module(f"{package}.{module}"), attribute or name)


def _make(name: str, found: Any) -> Any:
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    if isinstance(found, typer.Typer):
        app.add_typer(found, name=name)
    else:
        app.command(name)(found)
    return typer.main.get_group(app).commands[name]


def _help(found: Any) -> str:
    return str(found.info.help) if isinstance(found, typer.Typer) else inspect.getdoc(found) or ""

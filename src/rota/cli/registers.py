"""Commands that call one method each, made from the method's declaration.

A declaration in a part of `SchedulerApi` may name a command: `@method("kernel.agent.get", command="agents show", …)`.
The command's sentence, arguments, options, types and defaults are the method's. An argument without a default is an
argument of the command; every other one, and every keyword-only one, is an option. `results.py` prints what it returns.

Below is what a command line needs beyond that: how parameters are written, and sentences for people where the method's
are for programs. Commands are made when their group is used, so that `rota --help` stays quick.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, MutableMapping
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import typer
from typer.core import TyperGroup

from rota.cli.options import STORE, AsJson, Store, complete_agent, complete_project

if TYPE_CHECKING:
    from rota.cli.embedded_api import EmbeddedApi
    from rota.rpc import Client, Method

__all__ = ["command_words", "register_group", "run_command"]


class Written(NamedTuple):
    """How a parameter is written on the command line."""

    name: str  # of the argument or option
    help: str
    short: str | None = None  # a short form of the option
    min: int | None = None
    null_flag: tuple[str, str] | None = None  # a flag that sets it to null, and the flag's help


_WRITTEN = {
    "amount": Written("amount", "The amount.", min=0),
    "budget": Written("budget", "The amount per period.", min=1),
    "context_id": Written("context_id", "The limit id."),
    "dim": Written("dim", "The dimension: tokens, cost_micro, …"),
    "intent": Written("intent", "Its intent: PROTECT, DISCOVER, …"),
    "limit": Written("limit", "Maximum number of rows.", short="-n", min=1),
    "max_concurrent": Written(
        "max_concurrent",
        "Maximum number of concurrent runs.",
        null_flag=("unlimited", "Remove the maximum of concurrent runs."),
    ),
    "name": Written("name", "Its name."),
    "offset": Written("offset", "Skip this many rows.", min=0),
    "period_s": Written("period", "The period: 60s, 1h, 1d."),
    "pid": Written("agent", "The agent, by pid or name."),
    "priority": Written("priority", "Higher runs sooner."),
    "project_id": Written("project", "The project id."),
    "state": Written("state", "Only in this state: READY, RUNNING, DEAD, …"),
    "status": Written("status", "ACTIVE, PAUSED or ARCHIVED."),
    "template": Written("template", "Its template."),
    "weight": Written("weight", "Its share, in thousandths."),
}
_COMPLETED = {"agent": complete_agent, "project": complete_project}  # in the shell
_NOT_WRITTEN = {"agents create": ("parent_pid", "rerunnable", "unique")}  # settings of programs, not of operators
_HELP = {
    "agents create": "Create an agent and print its pid.\n\nCreates the store if it does not exist. Enqueues nothing.",
    "agents set": "Change an agent's priority, weight, cap or intent.",
    "limits list": "List limits by id.",
    "limits set": "Change a limit from its next refill on.",
    "projects create": "Create a project, and the store if it does not exist.",
    "projects set": "Change a project's name, weight or cap.",
}


# --- groups --------------------------------------------------------------------------------------


def register_group(path: str) -> type[TyperGroup]:
    """Return the class of a command group that has, besides its own commands, those that methods declare."""

    class RegisterGroup(TyperGroup):
        _commands: MutableMapping[str, Any]
        _complete = False

        @property
        def commands(self) -> MutableMapping[str, Any]:
            """The commands by name; the declared ones are made on first use."""
            if not self._complete:
                self._complete = True
                self._commands = dict(_commands_of(path)) | dict(self._commands)
            return self._commands

        @commands.setter
        def commands(self, commands: MutableMapping[str, Any]) -> None:
            self._commands = commands

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            """Return one command, and make no other: typer takes a millisecond for each."""
            del ctx
            if self._complete or cmd_name in self._commands:
                return self._commands.get(cmd_name)
            return dict(_commands_of(path, cmd_name)).get(cmd_name)

    return RegisterGroup


def run_command(path: str, *, store: str, as_json: bool) -> None:
    """Run a declared command without arguments, as `rota agents` runs `rota agents list`."""
    _run(_method_of(path), {}, store, as_json=as_json)


def command_words(part: str, verb: str, given: dict[str, Any]) -> list[str]:
    """Return the declared command that calls a method with these arguments, as its words after `rota`."""
    from rota.rpc import METHODS

    method = next(each for each in METHODS.values() if (each.part, each.verb) == (part, verb) and each.command)
    arguments: list[str] = []
    options: list[str] = []
    for name, kind, declared in _written_parameters(method):
        if name not in given:
            continue
        written, value = _written(name), given[name]
        if _default(kind, declared) is declared.empty and declared.kind is not declared.KEYWORD_ONLY:
            arguments.append(str(value))
        elif value is None and written.null_flag is not None:
            options.append(f"--{written.null_flag[0]}")
        else:
            options += [f"--{written.name.replace('_', '-')}", str(value)]
    return [*method.command.split(), *arguments, *options]


def _method_of(path: str) -> Method:
    from rota.rpc import METHODS

    return next(method for method in METHODS.values() if method.command == path)


def _commands_of(group: str, only: str | None = None) -> Iterator[tuple[str, Any]]:
    """Yield the declared commands of a group, or only the one of this name."""
    from rota.rpc import METHODS

    made = typer.Typer(rich_markup_mode=None)
    for method in sorted(METHODS.values(), key=lambda method: not method.command.endswith(" list")):  # lists first
        path, _, name = method.command.rpartition(" ")
        if name and path == group and only in (None, name):
            made.command(name, help=_HELP.get(method.command) or _sentence(method))(_function_of(method))
    if made.registered_commands:
        yield from typer.main.get_group(made).commands.items()


def _sentence(method: Method) -> str:
    """Return the command's sentence: a command shows what its method returns."""
    return method.summary.replace("Return ", "Show ", 1) if method.summary.startswith("Return ") else method.summary


# --- parameters ----------------------------------------------------------------------------------


def _function_of(method: Method) -> Any:
    """Return a function that typer makes the command from."""

    def run(**given: Any) -> None:
        store, as_json = given.pop("store"), given.pop("as_json")
        _run(method, given, store, as_json=as_json)

    parameters = [*_parameters(method), _parameter("store", Store, STORE), _parameter("as_json", AsJson, False)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _parameters(method: Method) -> Iterator[inspect.Parameter]:
    for name, kind, declared in _written_parameters(method):
        written = _written(name)
        default = _default(kind, declared)
        limits: Any = {"help": written.help, "min": written.min, "autocompletion": _COMPLETED.get(written.name)}
        if default is declared.empty and declared.kind is not declared.KEYWORD_ONLY:
            yield _parameter(written.name, Annotated[kind, typer.Argument(**limits)])
            continue
        names = [f"--{written.name.replace('_', '-')}", *([written.short] if written.short else [])]
        option = typer.Option(*names, **limits)
        yield _parameter(written.name, Annotated[kind | None if default is None else kind, option], default)
        if written.null_flag is not None and _can_be_unset(method.hints[name]):
            flag, text = written.null_flag
            yield _parameter(flag, Annotated[bool, typer.Option(f"--{flag}", help=text)], False)


def _default(kind: Any, declared: inspect.Parameter) -> Any:
    """Return the default to show in the help; None: the method's default applies."""
    if declared.default is declared.empty or (kind in (bool, int, float) and isinstance(declared.default, kind)):
        return declared.default
    return str(declared.default) if isinstance(declared.default, str) else None


def _written_parameters(method: Method) -> Iterator[tuple[str, Any, inspect.Parameter]]:
    """Yield the parameters that can be written on a command line, with their types there."""
    for name, declared in method.signature.parameters.items():
        kind = _type_of(name, method.hints[name])
        if kind is not None and name not in _NOT_WRITTEN.get(method.command, ()):
            yield name, kind, declared


def _type_of(name: str, hint: Any) -> Any:
    """Return a parameter's type on the command line; None if it has none there."""
    if name == "pid" or name.endswith("_s"):  # an agent by name, a duration as 5m
        return str
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for kind in kinds:
        if kind in (bool, int, float, str) or get_origin(kind) is Literal:
            return kind
        if isinstance(kind, type) and issubclass(kind, str):  # an enumeration, by its name
            return str
    return None


def _can_be_unset(hint: Any) -> bool:
    """Return whether leaving a parameter out differs from null."""
    from msgspec import UnsetType

    return {NoneType, UnsetType} <= set(get_args(hint))


def _written(name: str) -> Written:
    return _WRITTEN.get(name) or Written(name.removesuffix("_s"), f"The {name.replace('_', ' ')}.")


# --- calls and results ---------------------------------------------------------------------------


def _run(method: Method, given: dict[str, Any], store: str, *, as_json: bool) -> None:
    from rota.cli.connection import open_api
    from rota.cli.results import print_result

    with open_api(store, create=method.verb == "create") as api:
        part = api if method.part in ("claims", "system") else getattr(api, method.part)
        result = getattr(part, method.verb)(**dict(_arguments(method, given, api)))
    print_result(result, method.hints["return"], as_json=as_json, field=str(method.result))


def _arguments(method: Method, given: dict[str, Any], api: EmbeddedApi | Client) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of the call; for what was not given the method's defaults apply."""
    from rota.cli.arguments import pid_of, seconds

    for name, kind, _ in _written_parameters(method):
        written = _written(name)
        value, null_flag = given.get(written.name), written.null_flag
        if null_flag is not None and given.get(null_flag[0]):
            yield name, None
        elif value is not None and name == "pid":
            yield name, pid_of(api, value)
        elif value is not None:
            yield name, seconds(value, written.name) if name.endswith("_s") and kind is str else value

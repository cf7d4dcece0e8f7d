"""The pages that are made from code: what they say cannot drift from what the code does.

`./dev docs` writes them; a test holds them current.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import structs
from typer.main import get_command

from rota.cli import app
from rota.cli.exits import EXITS
from rota.errors import CODES, RESERVED
from rota.fleet.config import tables as fleet_tables
from rota.fleet.config.reader import expected
from rota.graph.capabilities import IMPLEMENTED, fields_without_use
from rota.graph.diagnostics import CODES as CODES_OF_GRAPHS
from rota.graph.document import InputLimits
from rota.graph.spec import LANE_TYPES_V1
from rota.model.events import FACTS
from rota.model.lifecycle import MACHINES, Machine
from rota.model.reasons import BLOCKING, ORDERING
from rota.policy import registry
from rota.rpc.methods import ANY_METHOD, METHODS, Method

ROOT = Path(__file__).parents[2]
MADE = "<!-- Made from the code by `./dev docs`; edit the code, not this page. -->\n"


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]


def state_machines() -> Iterator[str]:
    """docs/state-machines.md."""
    yield "# State machines\n"
    yield MADE
    yield "Every state machine in rota is a table of arrows in `rota/model/lifecycle.py`. A verb that is not drawn"
    yield "raises an error that names the state, the verb and what would be legal, and changes nothing.\n"
    for machine in MACHINES:
        yield f"## {machine.name}\n"
        yield f"{machine.about}\n"
        yield "```mermaid\nstateDiagram-v2"
        yield f"  [*] --> {machine.initial}"
        yield from _arrows(machine)
        for state in machine.states:
            if state in machine.final:
                yield f"  {state} --> [*]"
        yield "```\n"


def _arrows(machine: Machine) -> Iterator[str]:
    """One line for each pair of states, with every verb that leads from the one to the other."""
    verbs: dict[tuple[str, str], list[str]] = {}
    for (source, verb), target in machine.arrows.items():
        verbs.setdefault((source, target), []).append(verb)
    for (source, target), names in verbs.items():
        yield f"  {source} --> {target} : {' / '.join(names)}"


def errors() -> Iterator[str]:
    """docs/reference/errors.md."""
    yield "# Errors\n"
    yield MADE
    yield "Every error has a number, a name, its facts as data, and a sentence that says what to do.\n"
    yield "| code | name | raised as | meaning |\n|---|---|---|---|"
    for code in CODES.values():
        kind = f"`{code.raised_by.__name__}`" if code.raised_by else "the protocol"
        yield f"| {code.code} | `{code.name}` | {kind} | {code.meaning} |"
    yield "\nKept free for neighbours that share the numbers:\n"
    for numbers, whose in RESERVED.items():
        yield f"- {numbers.stop - 1} to {numbers.start}: {whose}"
    yield ""


def events() -> Iterator[str]:
    """docs/reference/events.md."""
    yield "# Events\n"
    yield MADE
    yield "Every fact the journal can hold. A user's own events may have any kind that does not begin with `kernel.`.\n"
    yield "| kind | version | what it says | fields |\n|---|---|---|---|"
    for kind, fact in FACTS.items():
        fields = ", ".join(f"`{name}`" for name in fact.__struct_fields__)
        yield f"| `{kind}` | {fact.version} | {_first_line(fact)} | {fields} |"
    yield ""


def reasons() -> Iterator[str]:
    """docs/reference/reasons.md."""
    yield "# Reasons\n"
    yield MADE
    yield "Why an entry waits. *Blocking*: it may not run, whoever asks. *Ordering*: it may, and others go first.\n"
    yield "| blocking | what it says | what lifts it |\n|---|---|---|"
    for reason in BLOCKING:
        yield f"| `{reason.__struct_config__.tag}` | {_first_line(reason)} | {reason.lifts} |"
    yield "\n| ordering | what it says |\n|---|---|"
    for ordering in ORDERING:
        yield f"| `{ordering.__struct_config__.tag}` | {_first_line(ordering)} |"
    yield ""


def policies() -> Iterator[str]:
    """docs/reference/policies.md."""
    yield "# Policies\n"
    yield MADE
    yield "A policy is a plain function from a snapshot to picks. Any policy works in any runtime.\n"
    yield "| name | what it does | bound on waiting | parameters |\n|---|---|---|---|"
    for name in registry.names():
        policy = registry.make(name)
        waiting = policy.bound.sentence if policy.bound else "**none: it may starve**"
        parameters = ", ".join(f"`{key}={_value(value)}`" for key, value in registry.parameters(name).items())
        yield f"| `{name}` | {policy.sentence} | {waiting} | {parameters or '–'} |"
    yield ""


def fleet_file() -> Iterator[str]:
    """docs/reference/fleet.md."""
    yield "# The fleet file, key by key\n"
    yield MADE
    yield "What it is for is told in [the guide](../fleet.md). `rota run --schema` prints the same for an editor.\n"
    for place, table in FLEET_TABLES.items():
        yield f"## {place}\n"
        yield f"{_first_line(table)}\n"
        yield "| key | what it takes | if nothing is said | what it means |\n|---|---|---|---|"
        for field in structs.fields(table):
            description = next(note.description for note in field.type.__metadata__ if note.description)
            yield f"| `{field.name}` | {expected(field.type)} | {_usual(field)} | {description} |"
        yield ""


FLEET_TABLES: Mapping[str, type[msgspec.Struct]] = {
    "At the top": fleet_tables.FleetFile,
    "`policy`, as a table": fleet_tables.PolicyTable,
    "`[scheduling]`": fleet_tables.SchedulingTable,
    "`scheduling.preemption`": fleet_tables.PreemptionTable,
    "`[projects.NAME]`": fleet_tables.ProjectTable,
    "`projects.NAME.workspaces`, as a table": fleet_tables.WorktreesTable,
    "`[limits.NAME]`": fleet_tables.LimitTable,
    "`limits.NAME.requests`, `limits.NAME.tokens`": fleet_tables.RationTable,
    "`[agents.NAME]`": fleet_tables.AgentTable,
    "`agents.NAME.limits`": fleet_tables.RunLimitsTable,
    "`agents.NAME.restart`": fleet_tables.RestartTable,
    "`agents.NAME.triggers`, each": fleet_tables.TriggerTable,
}


def _usual(field: structs.FieldInfo) -> str:
    """A key's default, as the file would write it."""
    if field.required:
        return "**must be said**"
    default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    shown = msgspec.to_builtins(default)
    return "–" if shown in (None, {}, [], ()) else f"`{msgspec.json.encode(shown).decode()}`"


def graph() -> Iterator[str]:
    """docs/reference/graph.md."""
    yield "# Graph files: diagnostics, lanes and limits\n"
    yield MADE
    yield "What `rota graph validate` can say, what each lane type does, and how large a file may be.\n"
    yield "## Diagnostics\n"
    yield "Errors refuse a graph; `--strict-diagnostics` refuses warnings too; advisories and notes refuse nothing.\n"
    yield "| code | severity | about | what it says | what to do |\n|---|---|---|---|---|"
    for name, code in CODES_OF_GRAPHS.items():
        yield f"| `{name}` | {code.severity} | {code.category} | {code.meaning} | {code.fix} |"
    yield "\n## Lane types\n"
    yield "Each word under *does* is the name of a test. `rota graph plan --format json` says the same of your lanes,"
    yield "together with the fields that this machine applies and those that it does not.\n"
    yield "| type | schema | does | fields it has no use for |\n|---|---|---|---|"
    for kind, words in IMPLEMENTED.items():
        version = "1" if kind in LANE_TYPES_V1 else "2"
        does = ", ".join(f"`{word}`" for word in words)
        idle = ", ".join(f"`{field}`" for field in fields_without_use(kind)) or "–"
        yield f"| `{kind}` | {version} | {does} | {idle} |"
    yield "\n## Limits of a file\n"
    yield "| limit | default |\n|---|---|"
    limits = InputLimits()
    for name in InputLimits.__struct_fields__:
        yield f"| `{name}` | {getattr(limits, name):,} |"
    yield ""


def cli() -> Iterator[str]:
    """docs/reference/cli.md."""
    yield "# The command line\n"
    yield MADE
    yield "Every command prints text for people and, with `--json`, JSON for programs. The store is named by `--store`,"
    yield "by `ROTA_STORE`, or it is `rota.db` in this folder. An error is one sentence on the standard error, or with"
    yield "`--json` an object with its code, name and facts; the number the command ends with says which sort it was.\n"
    yield "| ends with | meaning |\n|---|---|"
    for code, meaning in EXITS.items():
        yield f"| {code} | {meaning} |"
    yield "\nBefore a command: how to get in at a daemon ([guide](../daemon.md)).\n"
    yield "| option | what it is |\n|---|---|"
    root: Any = get_command(app)
    for param in root.params:
        if param.name in ("token_file", "ca_file"):
            yield f"| `{param.opts[0]}` | {param.help} |"
    yield from _commands(root, "rota")


def _commands(group: Any, path: str) -> Iterator[str]:
    """Each command below a group, and the groups below it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield f"\n## {path} {name}\n\n{command.help}"
            yield from _commands(command, f"{path} {name}")
        else:
            yield from _command(command, f"{path} {name}")


def _command(command: Any, path: str) -> Iterator[str]:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    words = " ".join(_metavar(param) for param in arguments)
    yield f"\n### {path}{' ' * bool(words)}{words}\n\n{command.help}\n"
    if command.params:
        yield "| | what it says | unless said |\n|---|---|---|"
    for param in command.params:
        shown = _metavar(param) if param in arguments else f"`{'`, `'.join([*param.opts, *param.secondary_opts])}`"
        unsaid = param.required or param.default is None or param.default is False
        default = "" if unsaid else f"`{param.default}`"
        yield f"| {shown} | {param.help} | {default} |"


def _metavar(argument: Any) -> str:
    word = argument.name.upper() + ("…" if argument.nargs == -1 else "")
    return word if argument.required else f"[{word}]"


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {item}" for key, item in value.items()) + "}"
    return repr(value)


def rpc() -> Iterator[str]:
    """docs/reference/rpc.md."""
    yield "# Methods\n"
    yield MADE
    yield "What the daemon can be asked, over the unix socket and over HTTP alike ([guide](../daemon.md)). Fields"
    yield "without a default must be given; a field that is none of these, or of another type, is -32602. Fields marked"
    yield "† need scope `operate` when they are not left at their default. *Safe* methods may be sent again when an"
    yield "answer was lost.\n"
    shared = ", ".join(f"`{kind.__name__}` {kind.code}" for kind in ANY_METHOD)
    yield f"Every method may answer with {shared}; what a method adds to these stands with it.\n"
    for method in METHODS.values():
        yield from _method(method)


def _method(method: Method) -> Iterator[str]:
    yield f"## {method.name}\n"
    safe = ", safe" if method.safe else ""
    yield f"{method.sentence} Scope `{method.scope}`{safe}.\n"
    fields = msgspec.structs.fields(method.params)
    if fields:
        yield "| parameter | type | default |\n|---|---|---|"
        for field in fields:
            mark = " †" if field.name in method.guarded else ""
            yield f"| `{field.name}`{mark} | {_type(field.type)} | {_default(field)} |"
        yield ""
    yield f"Answers with {_answer(method.shape.result)}."
    if method.errors:
        own = ", ".join(f"`{kind.__name__}` {kind.code}" for kind in method.errors)
        yield f"Its own errors: {own}."
    yield ""


def _type(kind: Any) -> str:
    text = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    text = re.sub(r"\b(?:rota\.[a-z_.]+|typing|msgspec(?:\._core)?)\.", "", text)
    text = text.replace(" | UnsetType", "")  # its default says so
    return f"`{text}`".replace("|", "\\|").replace("NoneType", "None")


def _default(field: Any) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        return f"`{field.default_factory()!r}`"
    if field.default is msgspec.NODEFAULT:
        return ""
    if field.default is msgspec.UNSET:
        return "left out"
    return f"`{msgspec.json.encode(field.default).decode()}`"


def _answer(result: Any) -> str:
    if not hasattr(result, "__struct_fields__"):
        return f"{_type(result)}"
    if not result.__struct_fields__:
        return "an empty object"
    if result.__module__.startswith("rota.model"):
        return f"`{result.__name__}`"
    fields = ", ".join(f"`{field.name}`: {_type(field.type)}" for field in msgspec.structs.fields(result))
    return fields.replace("\\|", "|")


PAGES: Mapping[str, Callable[[], Iterator[str]]] = {
    "docs/state-machines.md": state_machines,
    "docs/reference/errors.md": errors,
    "docs/reference/events.md": events,
    "docs/reference/reasons.md": reasons,
    "docs/reference/policies.md": policies,
    "docs/reference/fleet.md": fleet_file,
    "docs/reference/graph.md": graph,
    "docs/reference/cli.md": cli,
    "docs/reference/rpc.md": rpc,
}


def render(page: str) -> str:
    """A page's text."""
    return "\n".join(PAGES[page]())
